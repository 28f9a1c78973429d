// resolve_pieces of lib/ckpt/checkpoint.h: encoded items become raw bytes, in parallel, findings in order.
#include "lib/ckpt/resolve.h"

#include <exception>
#include <memory>

#include "lib/base/parallel.h"
#include "lib/ckpt/piece_check.h"
#include "lib/ckpt/piece_order.h"

namespace fsdpctl {
namespace {

// Enough to read a file in large steps, few enough to keep all threads busy to the end.
constexpr size_t kRunPieces = 1024;

// Pieces of one source, next to each other in it. What was found is kept apart for each run, so that
// the findings, and of several errors the one that is thrown, do not depend on the threads.
struct Run {
  explicit Run(std::span<Piece* const> p, bool strict) : pieces(p), sink(strict) {}
  std::span<Piece* const> pieces;
  FindingSink sink;
};

std::vector<Piece*> encoded_pieces(Checkpoint& checkpoint) {
  std::vector<Piece*> pieces;
  for (Piece& p : checkpoint.pieces) {
    if (p.encoding == Encoding::item) pieces.push_back(&p);
  }
  return pieces;
}

std::vector<std::unique_ptr<Run>> runs_of(std::span<Piece* const> pieces, bool strict) {
  std::vector<std::unique_ptr<Run>> runs;
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin + 1;
    while (end < pieces.size() && end - begin < kRunPieces && pieces[end]->source == pieces[begin]->source) ++end;
    runs.push_back(std::make_unique<Run>(pieces.subspan(begin, end - begin), strict));
    begin = end;
  }
  return runs;
}

void resolve_run(const Checkpoint& checkpoint, Run& run) {
  checkpoint.resolver->resolve(checkpoint, run.pieces, run.sink);
  for (Piece* piece : run.pieces) {
    // An item may claim other bytes than it has; such a piece must not look readable.
    if (piece->encoding == Encoding::raw && !check_piece(checkpoint, *piece, run.sink)) piece->encoding = Encoding::item;
  }
}

}  // namespace

void resolve_pieces(Checkpoint& checkpoint, int threads, FindingSink& sink) {
  resolve_some(checkpoint, encoded_pieces(checkpoint), threads, sink);
}

void resolve_some(Checkpoint& checkpoint, std::vector<Piece*> pieces, int threads, FindingSink& sink) {
  std::erase_if(pieces, [](const Piece* piece) { return piece->encoding != Encoding::item; });
  if (pieces.empty()) return;
  sort_by_place(pieces);
  if (!checkpoint.resolver) throw Error(Exit::unsupported, "nothing can decode this checkpoint's items");
  const std::vector<std::unique_ptr<Run>> runs = runs_of(pieces, sink.strict());

  std::exception_ptr thrown;
  try {
    parallel_for(runs.size(), threads, [&](size_t i) { resolve_run(checkpoint, *runs[i]); });
  } catch (...) {
    thrown = std::current_exception();   // after the findings of the runs before it
  }
  for (const auto& run : runs) {
    for (const Finding& f : run->sink.all()) sink.report(f);
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace fsdpctl
