#include "lib/ckpt/verify_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lib/base/checksum.h"
#include "lib/base/element.h"

namespace fsdpctl {
namespace {

constexpr size_t kBlock = 1 << 20;

// Fingerprints `wanted`; damage in one tensor must not hide damage in another. Bad ones are no longer `readable`.
void sum_all(const Checkpoint& checkpoint, std::span<const TensorIndex> wanted, const EngineOptions& engine,
             std::vector<TensorSum>& sums, std::vector<bool>& readable, FindingSink& sink) {
  if (wanted.empty()) return;
  std::map<TensorIndex, Finding> bad;   // in catalog order
  EngineOptions options = engine;
  options.on_damage = [&bad](TensorIndex t, const Error& error) { bad.emplace(t, error.finding()); };
  const std::vector<TensorSum> got = fingerprint(checkpoint, wanted, options);
  for (TensorIndex t : wanted) sums[t] = got[t];
  for (const auto& entry : bad) {
    readable[entry.first] = false;
    sink.report(entry.second);
  }
}

// The checkpoint as its k-th replicas see it: for each box the piece of the k-th rank that holds it, else the last.
Checkpoint replica_view(const Checkpoint& checkpoint, uint32_t k, std::vector<TensorIndex>& affected) {
  Checkpoint view = checkpoint;
  view.pieces.clear();
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    const std::span<const Piece> pieces = checkpoint.pieces_of(t);
    view.tensors[t].first_piece = static_cast<PieceIndex>(view.pieces.size());
    bool deeper = false;
    for (size_t i = 0; i < pieces.size();) {
      size_t end = i + 1;
      while (end < pieces.size() && equal(pieces[end].box, pieces[i].box)) ++end;
      deeper |= end - i > k && !is_empty(pieces[i].box);
      view.pieces.push_back(pieces[std::min<size_t>(i + k, end - 1)]);
      i = end;
    }
    view.tensors[t].piece_count = static_cast<uint32_t>(view.pieces.size()) - view.tensors[t].first_piece;
    if (deeper) affected.push_back(t);
  }
  return view;
}

std::string ranks_text(const Checkpoint& checkpoint, TensorIndex t) {
  std::string text;
  for (const Piece& p : checkpoint.pieces_of(t)) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", p.rank);
  }
  return text;
}

void check_replicas(const Checkpoint& checkpoint, const std::vector<bool>& readable, const EngineOptions& engine,
                    const std::vector<TensorSum>& sums, VerifyReport& report, FindingSink& sink) {
  for (uint32_t k = 1;; ++k) {
    std::vector<TensorIndex> affected;
    const Checkpoint view = replica_view(checkpoint, k, affected);
    std::erase_if(affected, [&](TensorIndex t) { return !readable[t]; });
    if (affected.empty()) return;
    std::vector<TensorSum> others(checkpoint.tensors.size());
    std::vector<bool> read = readable;
    sum_all(view, affected, engine, others, read, sink);
    for (TensorIndex t : affected) {
      if (!read[t]) continue;
      ++report.replicas_checked;
      report.bytes_read += checkpoint.bytes_of(t);
      if (others[t].crc64 == sums[t].crc64) continue;
      sink.report(error(Exit::damaged, "replicas of a tensor differ")
                      .key(std::string(checkpoint.tensors[t].key))
                      .saw("crc64 " + hex64(sums[t].crc64), fmt::format("crc64 {} in replica {}", hex64(others[t].crc64), k))
                      .try_(fmt::format("the copies of ranks {} disagree: restore one of them from another save",
                                        ranks_text(checkpoint, t))));
    }
  }
}

void check_recorded_crcs(const Checkpoint& checkpoint, VerifyReport& report, FindingSink& sink) {
  std::vector<std::byte> block(kBlock);
  for (const RecordedCrc& r : checkpoint.recorded_crcs) {
    const std::string& file = checkpoint.source->file(r.source).name;
    try {
      uint32_t sum = 0;
      for (uint64_t done = 0; done < r.length;) {
        const size_t n = static_cast<size_t>(std::min<uint64_t>(kBlock, r.length - done));
        checkpoint.source->read(r.source, r.offset + done, std::span(block).first(n));
        sum = crc32(std::span<const std::byte>(block).first(n), sum);
        done += n;
      }
      if (sum == r.crc32) {
        ++report.crc32_checked;
        continue;
      }
      sink.report(error(Exit::damaged, "zip member checksum mismatch")
                      .at(file)
                      .range(r.offset, r.offset + r.length)
                      .saw(fmt::format("{:08x}", r.crc32), fmt::format("{:08x}", sum)));
    } catch (const Error& e) {
      sink.report(e.finding());
    }
  }
}

// A bool has one byte, and two values. What comes of others depends on who computes with them.
void check_booleans(const Checkpoint& checkpoint, TensorIndex t, const EngineOptions& engine, FindingSink& sink) {
  const TensorInfo& info = checkpoint.tensors[t];
  if (info.dtype != DType::boolean) return;
  uint64_t wrong = 0, first = UINT64_MAX;
  int value = 0;
  read_tensor(checkpoint, t, engine, [&](uint64_t begin, std::span<const std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] <= std::byte{1}) continue;
      ++wrong;
      if (begin + i >= first) continue;
      first = begin + i;
      value = std::to_integer<int>(bytes[i]);
    }
  });
  if (wrong == 0) return;
  sink.report(error(Exit::damaged, "bool is neither false nor true")
                  .key(std::string(info.key))
                  .saw("0 or 1", fmt::format("{} at element {}{}", value, first, wrong > 1 ? fmt::format(", and {} more", wrong - 1) : "")));
}

void count_nonfinite(const Checkpoint& checkpoint, TensorIndex t, const EngineOptions& engine, VerifyReport& report) {
  const TensorInfo& info = checkpoint.tensors[t];
  const DTypeKind kind = dtype_kind(info.dtype);
  if (!is_numeric(info.dtype) || (kind != DTypeKind::floating && kind != DTypeKind::complex)) return;
  NonFinite counts;
  const size_t step = item_size(info.dtype);
  read_tensor(checkpoint, t, engine, [&](uint64_t, std::span<const std::byte> bytes) {
    for (size_t i = 0; i + step <= bytes.size(); i += step) {
      const FloatClass c = element_class(info.dtype, bytes.data() + i);
      counts.nan += c == FloatClass::nan;
      counts.inf += c == FloatClass::infinite;
    }
  });
  if (counts.nan + counts.inf == 0) return;
  counts.key = info.key;
  report.nonfinite.push_back(std::move(counts));
}

}  // namespace

std::vector<TensorSum> check_data(const Checkpoint& checkpoint, std::vector<bool>& readable, const VerifyOptions& options,
                                  VerifyReport& report, FindingSink& sink) {
  std::vector<TensorSum> sums(checkpoint.tensors.size());
  std::vector<TensorIndex> wanted;
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    if (readable[t]) wanted.push_back(t);
  }
  sum_all(checkpoint, wanted, options.engine, sums, readable, sink);
  std::erase_if(wanted, [&](TensorIndex t) { return !readable[t]; });
  for (TensorIndex t : wanted) {
    report.bytes_read += checkpoint.bytes_of(t);
    for (const Piece& p : checkpoint.pieces_of(t)) {
      if (!is_empty(p.box)) ++(p.has_crc32 ? report.crc32_checked : report.crc32_absent);
    }
  }
  check_replicas(checkpoint, readable, options.engine, sums, report, sink);
  check_recorded_crcs(checkpoint, report, sink);
  for (TensorIndex t : wanted) check_booleans(checkpoint, t, options.engine, sink);
  if (options.count_nonfinite) {
    for (TensorIndex t : wanted) count_nonfinite(checkpoint, t, options.engine, report);
  }
  return sums;
}

}  // namespace fsdpctl
