#include "lib/ckpt/publication.h"

#include <fmt/format.h>

#include <set>
#include <unordered_map>

#include "lib/base/shell_quoted.h"
#include "lib/ckpt/tiling.h"

namespace fsdpctl {
namespace {

bool is_below(const std::string& path, const std::string& directory) {
  return path == directory || (path.starts_with(directory) && (directory.back() == '/' || path[directory.size()] == '/'));
}

// The real path of something that may not be there yet.
std::string real_target(const std::string& path) {
  if (stat_path(path).kind != FileKind::absent) return real_path(path);
  return join_path(real_path(parent_path(path)), base_name(path));
}

// Gives `from` the name `to`. True when something of that name was replaced; it then lies at `from`.
bool place(const std::string& from, const std::string& to, bool replace) {
  const FileStat there = stat_path(to);
  if (!replace || (there.kind == FileKind::absent && !there.is_link)) {
    rename_new(from, to);
    return false;
  }
  if (exchange(from, to)) return true;
  throw Error(Exit::failed, "file system cannot exchange the old output and the new one in one step").at(to).try_("mv " + shell_quoted(to) + " " + shell_quoted(to + ".old"));
}

}  // namespace

Publication::Publication(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
            const PublishOptions& options, FindingSink& sink)
    : checkpoint_(checkpoint), format_(format), target_(target), options_(options), sink_(sink) {
  result_.path = output;
  while (result_.path.size() > 1 && result_.path.back() == '/') result_.path.pop_back();
  const Capabilities can = format.capabilities();
  single_ = !target.directory && (can.single_file || !can.endings.empty());
  result_.manifest = manifest_path(result_.path, !single_);
  result_.changes = options.changes;
}

void Publication::check_output() {
  const std::string& output = result_.path;
  if (stat_path(parent_path(output)).kind != FileKind::directory) {
    throw Error(Exit::failed, "directory of the output does not exist").at(parent_path(output)).try_("mkdir -p " + shell_quoted(parent_path(output)));
  }
  if (!checkpoint_.source->is_in_memory()) {
    const std::string source = real_path(checkpoint_.source->path()), target = real_target(output);
    if (is_below(target, source) || is_below(source, target)) {
      throw Error(Exit::usage, "output and input lie in each other").at(output).saw("a place beside the input", checkpoint_.source->path());
    }
  }
  const FileStat there = stat_path(output);
  if (!options_.force && (there.kind != FileKind::absent || there.is_link)) {
    throw Error(Exit::usage, "output exists").at(output).try_("--force");
  }
  if (single_ && !options_.force && stat_path(result_.manifest).kind != FileKind::absent && !is_manifest(result_.manifest)) {
    throw Error(Exit::usage, "output exists").at(result_.manifest).saw("a manifest, or nothing", "another file").try_("--force replaces it");
  }
}

void Publication::check_source() {
  FindingSink strict;
  check_tiling(checkpoint_, strict);
  FindingSink carried(/*strict=*/false);
  format_.can_carry(checkpoint_, target_, carried);
  for (const Finding& finding : carried.all()) {
    if (finding.severity == Severity::error) throw Error(finding);
  }
  for (const Finding& finding : carried.all()) {
    if (!finding.where.key.empty()) not_carried_.push_back(finding.where.key);
  }
}

void Publication::make_plan() {
  plan_ = format_.lay_out(checkpoint_, target_);
  for (const auto& file : plan_) result_.bytes += file->size();
  result_.files = plan_.size();
  result_.free_bytes = free_bytes(parent_path(result_.path));
}

void Publication::check_space() const {
  if (result_.bytes <= result_.free_bytes) return;
  throw Error(Exit::failed, "not enough space for the output")
      .at(parent_path(result_.path))
      .saw(fmt::format("{} bytes", result_.bytes), fmt::format("{} bytes free", result_.free_bytes));
}

void Publication::note_other_partials(const std::string& id) {
  for (const std::string& name : other_partials(result_.path, id)) {
    Finding other = note("partial output of another command is left alone, since a run may need it").at(name);
    if (options_.worker) {
      // Workers with other flags, or that see another source, would wait for each other for ever.
      other = warning("partial output of another command is there: give all workers the same source and flags, except --worker").at(name);
      other.saw(base_name(PartialDirectory::path_for(result_.path, id)), name);
    } else {
      other.try_("rm -r " + shell_quoted(join_path(parent_path(result_.path), base_name(name))));
    }
    sink_.report(std::move(other));
  }
}

void Publication::check_cancel() const {
  if (options_.engine.cancel != nullptr && options_.engine.cancel->load()) throw Error(Exit::interrupted, "interrupted");
}

// ---- proof

std::string Publication::data_path(const std::string& data) const { return single_ ? join_path(data, plan_.front()->path()) : data; }

Proof Publication::reopen(const std::string& data) const {
  return fsdpctl::reopen(checkpoint_, format_, data_path(data), not_carried_, options_.engine.threads);
}

void Publication::write_manifest(const PartialDirectory& partial, const Proof& proof, const std::vector<TensorSum>& sums) {
  list_casts(sums);
  Manifest manifest = describe(proof.reopened, sums_of_output(proof, sums));
  manifest.source_format = checkpoint_.format;
  manifest.source_fingerprint = is_changed(sums) ? source_fingerprint(sums) : manifest.fingerprint;
  manifest.read_back = result_.read_back;
  manifest.changes = result_.changes;
  result_.fingerprint = manifest.fingerprint;
  result_.source_fingerprint = manifest.source_fingerprint;
  const std::string path = single_ ? partial.manifest() : manifest_path(partial.data(), true);
  remove_tree(path);   // of a run that was killed after this step
  write_new_file(path, manifest_text(manifest));
}

// Can the output's fingerprint differ from the source's? Proven to be equal, it does not where nothing was cast or left out.
bool Publication::is_changed(const std::vector<TensorSum>& sums) const {
  const auto cast = [&](TensorIndex t) {
    return checkpoint_.tensors[t].piece_count > 0 && checkpoint_.pieces_of(t).front().stored != checkpoint_.tensors[t].dtype;
  };
  bool any = !not_carried_.empty();
  for (TensorIndex t = 0; t < sums.size() && !any; ++t) any = cast(t);
  return any;
}

// The content as it lies in the source: before casts.
uint64_t Publication::source_fingerprint(const std::vector<TensorSum>& sums) const {
  Checkpoint before = checkpoint_;
  std::vector<TensorSum> stored = sums;
  for (TensorIndex t = 0; t < stored.size(); ++t) {
    stored[t].crc64 = stored[t].source_crc64;
    if (before.tensors[t].piece_count > 0) before.tensors[t].dtype = before.pieces_of(t).front().stored;
  }
  return checkpoint_fingerprint(before, stored);
}

void Publication::list_casts(const std::vector<TensorSum>& sums) {
  std::unordered_map<std::string_view, size_t> listed;
  for (size_t i = 0; i < result_.changes.size(); ++i) {
    if (result_.changes[i].kind == "cast") listed.emplace(result_.changes[i].key, i);
  }
  for (TensorIndex t = 0; t < sums.size(); ++t) {
    const auto change = listed.find(checkpoint_.tensors[t].key);
    if (change == listed.end()) continue;
    result_.changes[change->second].casts = sums[t].casts;
  }
  for (Change& change : result_.changes) {
    if (!change.casts) continue;
    const CastCounts& c = *change.casts;
    change.detail += fmt::format(", {} value{} changed, {} overflowed, {} flushed to zero", c.changed, c.changed == 1 ? "" : "s", c.overflowed, c.flushed);
  }
}

// ---- names

void Publication::sync_directories(const PartialDirectory& partial) const {
  std::set<std::string> directories = {partial.data()};
  for (const auto& file : plan_) {
    // Every directory that a file made necessary, up to data/.
    for (std::string p = parent_path(file->path()); p != "." && !p.empty(); p = parent_path(p)) directories.insert(join_path(partial.data(), p));
  }
  for (const std::string& directory : directories) sync_directory(directory);
}

void Publication::put_in_place(const PartialDirectory& partial) const {
  sync_directories(partial);
  if (single_) {
    // The manifest first: a file without one is a checkpoint of somebody else's, a manifest without its file is nothing.
    const bool replaced = place(partial.manifest(), result_.manifest, true);
    try {
      place(data_path(partial.data()), result_.path, options_.force);
    } catch (...) {
      take_back(partial.manifest(), replaced);
      throw;
    }
  } else {
    place(partial.data(), result_.path, options_.force);
  }
  sync_directory(parent_path(result_.path));
}

// The output is complete; what cannot be removed does not change that.
void Publication::clean_up(PartialDirectory& partial) {
  try {
    partial.remove();
  } catch (const Error& e) {
    sink_.report(warning("partial output could not be removed").at(partial.path()).found_only(e.what()));
  }
}

void Publication::take_back(const std::string& manifest, bool replaced) const {
  try {
    if (replaced) exchange(manifest, result_.manifest);
    else rename_new(result_.manifest, manifest);
  } catch (const Error&) {
    // Then a manifest without a file, or of another save, stays behind: readers ignore it.
  }
}

}  // namespace fsdpctl
