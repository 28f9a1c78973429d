#include "lib/ckpt/prove.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <unordered_map>

#include "lib/base/checksum.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/renumber.h"
#include "lib/ckpt/tiling.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kDiffers = "output differs from its source", kUnreadable = "output cannot be read by its own reader";
constexpr std::string_view kAgain = "where this happens again, the disk or its driver loses data";

Error differs(std::string_view key, std::string expected, std::string found) {
  return Error(Exit::failed, std::string(kDiffers)).key(std::string(key)).saw(std::move(expected), std::move(found));
}

std::string tensor_text(const TensorInfo& info) { return std::string(dtype_name(info.dtype)) + " " + dims_text(info.shape); }

using TensorMap = std::unordered_map<std::string_view, TensorIndex>;

TensorMap all_keys(const Checkpoint& checkpoint) {
  TensorMap keys;
  keys.reserve(checkpoint.tensors.size() + checkpoint.aliases.size());
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) keys.emplace(checkpoint.tensors[t].key, t);
  for (const Alias& alias : checkpoint.aliases) keys.emplace(alias.key, alias.tensor);
  return keys;
}

using ValueList = std::vector<std::pair<std::string, std::string>>;   // path, what says all of it

// The JSON of a value, or the digest of a long one.
std::string value_mark(const Value& value) {
  constexpr size_t kLong = 1024;
  std::string text;
  std::optional<Sha256> sha;
  value_json_in_pieces(value, JsonForm::canonical, [&](std::string_view piece) {
    if (!sha && text.size() + piece.size() <= kLong) return void(text += piece);
    if (!sha) sha.emplace().update(std::as_bytes(std::span(text)));
    sha->update(std::as_bytes(std::span(piece)));
  });
  return sha ? "a value of SHA-256 " + sha->hex() : text;
}

// Leaves that are no tensors, sorted. Tensors inside objects get the numbers numbers[index], where given.
ValueList value_leaves(const Value& tree, const std::vector<TensorIndex>* numbers) {
  struct Visitor : TreeVisitor {
    const std::vector<TensorIndex>* numbers = nullptr;
    ValueList leaves;
    void leaf(std::string_view path, const Value& value) override {
      if (value.is(Kind::tensor)) return;
      leaves.emplace_back(path, value_mark(numbers == nullptr ? value : renumbered(value, *numbers)));
    }
  } visitor;
  visitor.numbers = numbers;
  walk_tree(tree, visitor);
  std::sort(visitor.leaves.begin(), visitor.leaves.end());
  return std::move(visitor.leaves);
}

// Leaves that a format said it would not carry as they are, with what they may have become: a Counter is one value here and several
// elsewhere. The key of a container excuses nothing that is in it.
class Exceptions {
 public:
  Exceptions(const std::vector<std::string>& keys, const Checkpoint& written, const ValueList& leaves) {
    if (keys.empty()) return;
    const TensorMap tensors = all_keys(written);
    for (const std::string& key : keys) {
      const auto leaf = std::lower_bound(leaves.begin(), leaves.end(), key, [](const auto& a, const std::string& b) { return a.first < b; });
      if ((leaf != leaves.end() && leaf->first == key) || tensors.count(key) != 0) keys_.push_back(key);
    }
    std::sort(keys_.begin(), keys_.end());
  }
  bool covers(std::string_view path) const {
    for (size_t end = path.size(); end != std::string_view::npos; end = end == 0 ? std::string_view::npos : path.rfind('.', end - 1)) {
      if (std::binary_search(keys_.begin(), keys_.end(), path.substr(0, end))) return true;
    }
    return false;
  }

 private:
  std::vector<std::string> keys_;
};

void compare_values(const ValueList& in, const Proof& proof, const Exceptions& except) {
  const ValueList out = value_leaves(proof.reopened.tree, &proof.source);
  auto a = in.begin();
  auto b = out.begin();
  while (a != in.end() || b != out.end()) {
    if (a != in.end() && b != out.end() && *a == *b) {
      ++a, ++b;
      continue;
    }
    const bool missing = b == out.end() || (a != in.end() && a->first < b->first);
    const bool added = a == in.end() || (b != out.end() && b->first < a->first);
    const std::string& path = added ? b->first : a->first;
    if (!except.covers(path)) throw differs(path, added ? "no such value" : a->second, missing ? "no such value" : b->second);
    if (!added) ++a;
    if (!missing) ++b;
  }
}

bool same_tensor(const TensorInfo& a, const TensorInfo& b) { return a.dtype == b.dtype && equal(a.shape, b.shape); }

// Formats that keep the order of tensors need no map of all keys.
bool match_in_order(const Checkpoint& written, const Checkpoint& reopened) {
  if (!written.aliases.empty() || !reopened.aliases.empty() || written.tensors.size() != reopened.tensors.size()) return false;
  for (TensorIndex t = 0; t < written.tensors.size(); ++t) {
    const TensorInfo &was = written.tensors[t], &found = reopened.tensors[t];
    if (was.key != found.key || !same_tensor(was, found)) return false;
  }
  return true;
}

std::vector<TensorIndex> match_tensors(const Checkpoint& written, const Checkpoint& reopened, const Exceptions& except) {
  if (match_in_order(written, reopened)) {
    std::vector<TensorIndex> source(reopened.tensors.size());
    std::iota(source.begin(), source.end(), TensorIndex{0});
    return source;
  }
  const TensorMap in = all_keys(written), out = all_keys(reopened);
  std::vector<TensorIndex> source(reopened.tensors.size(), kNoTensor);
  for (const auto& entry : out) {
    const TensorInfo& found = reopened.tensors[entry.second];
    const auto expected = in.find(entry.first);
    if (expected == in.end()) throw differs(entry.first, "no such tensor", tensor_text(found));
    const TensorInfo& was = written.tensors[expected->second];
    if (!same_tensor(was, found)) throw differs(entry.first, tensor_text(was), tensor_text(found));
    TensorIndex& known = source[entry.second];
    if (known != kNoTensor && known != expected->second) throw differs(entry.first, "a tensor of its own", "the tensor of another key");
    known = expected->second;
  }
  for (const auto& entry : in) {
    if (out.count(entry.first) != 0) continue;
    const TensorInfo& was = written.tensors[entry.second];
    if (was.role == Role::storage && except.covers(entry.first)) continue;   // went with its object
    throw differs(entry.first, tensor_text(was), "no such tensor");
  }
  return source;
}

}  // namespace

Proof reopen(const Checkpoint& written, const Format& format, const std::string& path, const std::vector<std::string>& not_carried,
             int threads) {
  Proof proof;
  FindingSink strict;
  try {
    proof.reopened = format.open(Source::open(path), strict);
    check_tiling(proof.reopened, strict);
    resolve_pieces(proof.reopened, threads, strict);
  } catch (const Error& e) {
    if (e.code() == Exit::interrupted || e.code() == Exit::terminated || e.code() == Exit::failed) throw;
    throw Error(Exit::failed, std::string(kUnreadable)).found_only(e.what());
  }
  const ValueList values = value_leaves(written.tree, nullptr);
  const Exceptions except(not_carried, written, values);
  proof.source = match_tensors(written, proof.reopened, except);
  compare_values(values, proof, except);
  return proof;
}

namespace {

// The output's own sums may find it out first: what is damaged then is not the source.
std::vector<TensorSum> sums_on_disk(const Checkpoint& output, const EngineOptions& options) try {
  return fingerprint(output, {}, options);
} catch (const Error& e) {
  if (e.code() != Exit::damaged) throw;
  Finding finding = e.finding();
  finding.found = finding.what + (finding.saw_text().empty() ? "" : ": " + finding.saw_text()) + "; " + std::string(kAgain);
  finding.expected.clear();
  finding.what = kDiffers;
  finding.code = Exit::failed;
  throw Error(std::move(finding));
}

}  // namespace

bool is_disproof(const Error& error) { return error.finding().what == kDiffers || error.finding().what == kUnreadable; }

std::vector<TensorSum> sums_of_output(const Proof& proof, const std::vector<TensorSum>& sums) {
  std::vector<TensorSum> out;
  out.reserve(proof.source.size());
  for (const TensorIndex t : proof.source) out.push_back(sums[t]);
  return out;
}

Error differs_when_read(const Checkpoint& output, TensorIndex tensor, const std::string& expected, const std::string& found) {
  const auto pieces = output.pieces_of(tensor);
  return Error(Exit::failed, std::string(kDiffers))
      .at(pieces.empty() ? std::string() : output.source->file(pieces.front().source).name)
      .key(std::string(output.tensors[tensor].key))
      .saw("crc64 " + expected, "crc64 " + found + "; " + std::string(kAgain));
}

void read_back(const Proof& proof, const std::vector<TensorSum>& sums, const EngineOptions& options) {
  const Checkpoint& output = proof.reopened;
  for (SourceIndex i = 0; i < output.source->file_count(); ++i) output.source->drop_cache(i);
  const std::vector<TensorSum> found = sums_on_disk(output, options);
  for (TensorIndex t = 0; t < found.size(); ++t) {
    const uint64_t expected = sums[proof.source[t]].crc64;
    if (found[t].crc64 == expected) continue;
    throw differs_when_read(output, t, hex64(expected), hex64(found[t].crc64));
  }
}

}  // namespace fsdpctl
