#include "lib/ckpt/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "lib/base/checksum.h"
#include "lib/ckpt/parts.h"
#include "lib/ckpt/tiling.h"
#include "lib/ckpt/verify_data.h"
#include "lib/ckpt/writable.h"

namespace fsdpctl {
namespace {

// A tensor can be read when all of its pieces are raw and its box list is not known to be broken.
std::vector<bool> readable_tensors(const Checkpoint& checkpoint, const FindingSink& sink) {
  std::vector<bool> readable(checkpoint.tensors.size(), true);
  std::unordered_map<std::string_view, TensorIndex> by_key;
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    by_key.emplace(checkpoint.tensors[t].key, t);
    for (const Piece& p : checkpoint.pieces_of(t)) readable[t] = readable[t] && p.encoding == Encoding::raw;
  }
  for (const Finding& f : sink.all()) {
    const auto hit = by_key.find(f.where.key);
    if (f.severity == Severity::error && hit != by_key.end()) readable[hit->second] = false;
  }
  return readable;
}

// FSDP1 FULL optimizer dicts on CPU (use_orig_params=True) are written by PyTorch with exp_avg and exp_avg_sq as views of one
// buffer: the first holds the second's values. Two fields of one parameter never share bytes in a sound optimizer.
void check_shared_fields(const Checkpoint& checkpoint, FindingSink& sink) {
  struct Owner {
    const LeafInfo* leaf;
    uint64_t begin, end;
  };
  const Parts parts = find_parts(checkpoint);
  std::map<std::pair<std::string_view, SourceIndex>, std::vector<Owner>> owners;
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.part != Part::optimizer || leaf.field.empty() || leaf.tensor == kNoTensor) continue;
    if (checkpoint.bytes_of(leaf.tensor) == 0) continue;
    for (const Piece& p : checkpoint.pieces_of(leaf.tensor)) {
      if (p.encoding != Encoding::raw || p.length == 0) continue;
      owners[{leaf.fqn, p.source}].push_back({&leaf, p.offset, p.offset + p.length});
    }
  }
  for (auto& [where, list] : owners) {
    std::sort(list.begin(), list.end(), [](const Owner& a, const Owner& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < list.size(); ++i) {
      const Owner &a = list[i - 1], &b = list[i];
      if (b.begin >= a.end || a.leaf->field == b.leaf->field) continue;
      sink.report(error(Exit::damaged, "two optimizer fields of one parameter share bytes")
                      .at(checkpoint.source->file(where.second).name)
                      .key(std::string(b.leaf->path))
                      .range(b.begin, std::min(a.end, b.end))
                      .saw("bytes of its own", "the bytes of " + std::string(a.leaf->path))
                      .try_("the values of one field were lost when this was saved (FSDP1 full optimizer dicts on CPU do this): "
                            "use the sharded checkpoint of the same step"));
    }
  }
}

constexpr const char* kSavedAgain = "restore it from another copy; if it was saved again on purpose, --write-manifest --force seals it";

void check_manifest_names(const Checkpoint& checkpoint, const Manifest& manifest, FindingSink& sink) {
  std::unordered_map<std::string_view, const ManifestTensor*> recorded;
  for (const ManifestTensor& m : manifest.tensors) recorded.emplace(m.key, &m);
  for (const TensorInfo& info : checkpoint.tensors) {
    const auto hit = recorded.find(info.key);
    if (hit == recorded.end()) {
      if (info.role != Role::tensor) continue;
      sink.report(error(Exit::damaged, "tensor is not in the manifest").key(std::string(info.key)));
      continue;
    }
    const ManifestTensor& m = *hit->second;
    if (m.dtype != dtype_name(info.dtype) || !equal(Dims(m.shape), info.shape)) {
      sink.report(error(Exit::damaged, "tensor differs from the manifest")
                      .key(std::string(info.key))
                      .saw(m.dtype + " " + dims_text(m.shape), fmt::format("{} {}", dtype_name(info.dtype), dims_text(info.shape))));
    }
    recorded.erase(hit);
  }
  for (const ManifestTensor& m : manifest.tensors) {
    if (recorded.count(m.key)) {
      sink.report(error(Exit::damaged, "tensor of the manifest is missing").key(m.key));
    }
  }
}

void check_manifest_sums(const Checkpoint& checkpoint, const Manifest& manifest, const std::vector<TensorSum>& sums,
                         const std::vector<bool>& readable, VerifyReport& report, FindingSink& sink) {
  std::unordered_map<std::string_view, uint64_t> recorded;
  for (const ManifestTensor& m : manifest.tensors) recorded.emplace(m.key, m.crc64);
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    const auto hit = recorded.find(checkpoint.tensors[t].key);
    if (hit == recorded.end() || !readable[t]) continue;
    if (hit->second == sums[t].crc64) {
      ++report.manifest_matches;
      continue;
    }
    const std::span<const Piece> pieces = checkpoint.pieces_of(t);
    sink.report(error(Exit::damaged, "tensor checksum mismatch")
                    .at(pieces.size() == 1 ? checkpoint.source->file(pieces[0].source).name : std::string())
                    .key(std::string(checkpoint.tensors[t].key))
                    .saw("crc64 " + hex64(hit->second), "crc64 " + hex64(sums[t].crc64))
                    .try_(kSavedAgain));
  }
}

void collect(FindingSink& sink, VerifyReport& report) {
  report.findings = sink.all();
  std::stable_sort(report.findings.begin(), report.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
}

// What verify has learned besides the report; write_manifest needs it.
struct Examined {
  std::optional<Opened> opened;
  std::vector<TensorSum> sums;
};

// What ends an examination is a finding like the others, unless the user is the reason.
void keep(const Error& e, FindingSink& sink) {
  if (e.code() == Exit::interrupted || e.code() == Exit::terminated || e.code() == Exit::usage) throw e;
  sink.report(e.finding());
}

// nullopt where it cannot be opened at all. A function of its own because GCC 12 at -O3 was seen to leave an optional set that is
// assigned within a `try` by a call that throws.
std::optional<Opened> open_or_report(const FormatList& formats, const std::string& path, const VerifyOptions& options, FindingSink& sink) {
  try {
    return open_checkpoint(formats, path, sink, options.open);
  } catch (const Error& e) {
    keep(e, sink);
    return std::nullopt;
  }
}

void check_opened(Opened& opened, std::vector<TensorSum>& sums, const VerifyOptions& options, bool seal, VerifyReport& report, FindingSink& sink) {
  Checkpoint& checkpoint = opened.checkpoint;
  report.format = checkpoint.format;
  report.chosen = opened.chosen;
  report.tensors = checkpoint.tensors.size();
  report.pieces = checkpoint.pieces.size();
  report.files = checkpoint.data_files.size();
  check_tiling(checkpoint, sink);
  resolve_pieces(checkpoint, options.engine.threads, sink);
  check_shared_fields(checkpoint, sink);
  if (seal) check_keys_differ(checkpoint);
  if (seal && !options.replace_manifest && has_manifest_file(checkpoint)) {
    throw Error(Exit::usage, "checkpoint has a manifest already").at(checkpoint.source->path()).try_("verify --data compares with it; --force replaces it");
  }
  std::optional<Manifest> manifest;
  if (checkpoint.equal_keys.empty()) {
    if (!seal) manifest = find_manifest(checkpoint, sink, Severity::error);
  } else if (has_manifest_file(checkpoint)) {   // an older version's: which sum is whose cannot be told
    sink.report(warning("manifest is ignored: keys of the checkpoint are ambiguous").key(checkpoint.equal_keys.front().key));
  }
  report.has_manifest = manifest.has_value();
  if (manifest) check_manifest_names(checkpoint, *manifest, sink);
  if (!options.data) return;
  std::vector<bool> readable = readable_tensors(checkpoint, sink);
  sums = check_data(checkpoint, readable, options, report, sink);
  if (manifest) check_manifest_sums(checkpoint, *manifest, sums, readable, report, sink);
  if (sink.has_errors()) return;
  report.fingerprint = checkpoint_fingerprint(checkpoint, sums);
  if (manifest && manifest->fingerprint != report.fingerprint) {   // and each tensor is what it was
    sink.report(error(Exit::damaged, "values that are no tensors differ from the manifest")
                    .saw("fingerprint " + hex64(manifest->fingerprint), "fingerprint " + hex64(report.fingerprint))
                    .try_(kSavedAgain));
  }
}

Examined examine(const FormatList& formats, const std::string& path, const VerifyOptions& options, bool seal, VerifyReport& report) {
  FindingSink sink(/*strict=*/false);
  report.path = path;
  Examined found{open_or_report(formats, path, options, sink), {}};
  try {
    if (found.opened) check_opened(*found.opened, found.sums, options, seal, report, sink);
  } catch (const Error& e) {
    keep(e, sink);
  }
  collect(sink, report);
  return found;
}

// Gives it its name when it is whole; an older one is replaced in one step.
void put_manifest(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  remove_tree(partial);
  try {
    write_new_file(partial, text);
    if (stat_path(path).kind == FileKind::absent) {
      rename_new(partial, path);
    } else if (!exchange(partial, path)) {
      throw Error(Exit::failed, "file system cannot replace a manifest in one step").at(path);
    }
  } catch (const Error&) {
    remove_tree(partial);   // nothing of ours stays in an input
    throw;
  }
  remove_tree(partial);
  sync_directory(parent_path(path));
}

}  // namespace

Exit exit_code(const std::vector<Finding>& findings) {
  const auto rank = [](Exit code) { return code == Exit::ok ? 0 : code == Exit::failed ? 3 : code == Exit::damaged ? 2 : 1; };
  Exit worst = Exit::ok;
  for (const Finding& f : findings) {
    if (f.severity == Severity::error && rank(f.code) > rank(worst)) worst = f.code;
  }
  return worst;
}

Exit VerifyReport::exit_code() const { return fsdpctl::exit_code(findings); }

VerifyReport verify(const FormatList& formats, const std::string& path, const VerifyOptions& options) {
  VerifyReport report;
  examine(formats, path, options, /*seal=*/false, report);
  return report;
}

std::optional<Manifest> write_manifest(const FormatList& formats, const std::string& path, const VerifyOptions& options,
                                       VerifyReport& report) {
  VerifyOptions all = options;
  all.data = true;
  Examined found = examine(formats, path, all, /*seal=*/true, report);
  if (report.has_errors()) return std::nullopt;
  const Checkpoint& checkpoint = found.opened->checkpoint;
  Manifest manifest = describe(checkpoint, found.sums);
  put_manifest(manifest_path(checkpoint.source->path(), checkpoint.source->is_directory()), manifest_text(manifest));
  return manifest;
}

}  // namespace fsdpctl
