#include "lib/train/step_summary.h"

#include <algorithm>
#include <string>

#include "lib/comm/wire.h"

namespace fsdpctl::train {
namespace {

std::string bits_of(const std::vector<bool>& flags) {
  std::string bits((flags.size() + 7) / 8, '\0');
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
  }
  return bits;
}

std::string encode(StepSummary& summary) {
  WireWriter out;
  out.number(summary.failure ? 1 : 0);
  if (summary.failure) return out.finding(*summary.failure).take();
  kernels::normalize(summary.squares);
  for (const int64_t limb : summary.squares.limb) out.number(static_cast<uint64_t>(limb));
  out.number(summary.nonfinite).number(summary.stop).number(summary.has_gradient.size()).text(bits_of(summary.has_gradient));
  return out.take();
}

void throw_failure(const std::vector<std::string>& all) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    WireReader in(all[rank]);
    if (in.number() == 0) continue;
    Finding finding = in.finding();
    finding.where.rank = static_cast<int>(rank);
    throw Error(std::move(finding));
  }
}

void add(StepSummary& sum, const std::string& bytes, size_t rank) {
  WireReader in(bytes);
  in.number();
  kernels::ExactSum squares;
  for (int64_t& limb : squares.limb) limb = static_cast<int64_t>(in.number());
  kernels::add(sum.squares, squares);
  sum.nonfinite += in.number();
  sum.stop = std::max(sum.stop, static_cast<uint8_t>(in.number()));
  const uint64_t parameters = in.number();
  const std::string bits = in.text();
  if (rank == 0) sum.has_gradient.resize(parameters);
  if (parameters != sum.has_gradient.size() || bits.size() != (parameters + 7) / 8) {
    Finding finding = error(Exit::failed, "ranks disagree about the number of parameters");
    finding.saw(std::to_string(sum.has_gradient.size()), std::to_string(parameters)).where.rank = static_cast<int>(rank);
    throw Error(std::move(finding));
  }
  for (size_t i = 0; i < parameters; ++i) {
    if ((bits[i / 8] >> (i % 8) & 1) != 0) sum.has_gradient[i] = true;
  }
}

}  // namespace

StepSummary agree_on_step(Communicator& ranks, StepSummary mine) {
  const std::vector<std::string> all = ranks.exchange(encode(mine), "the optimizer step");
  throw_failure(all);
  StepSummary sum;
  for (size_t rank = 0; rank < all.size(); ++rank) add(sum, all[rank], rank);
  return sum;
}

}  // namespace fsdpctl::train
