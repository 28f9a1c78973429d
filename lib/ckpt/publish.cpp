#include "lib/ckpt/publish.h"

#include <fmt/format.h>

#include <set>
#include <unordered_map>

#include "lib/base/shell_quoted.h"
#include "lib/ckpt/partial.h"
#include "lib/ckpt/prove.h"
#include "lib/ckpt/tiling.h"
#include "lib/ckpt/writable.h"

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

class Publication {
 public:
  Publication(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
              const PublishOptions& options, FindingSink& sink)
      : checkpoint_(checkpoint), format_(format), target_(target), options_(options), sink_(sink) {
    result_.path = output;
    while (result_.path.size() > 1 && result_.path.back() == '/') result_.path.pop_back();
    const Capabilities can = format.capabilities();
    single_ = !target.directory && (can.single_file || !can.endings.empty());
    result_.manifest = manifest_path(result_.path, !single_);
    result_.changes = options.changes;
  }

  PublishResult run() {
    check_output();
    check_source();
    plan_ = format_.lay_out(checkpoint_, target_);
    for (const auto& file : plan_) result_.bytes += file->size();
    result_.files = plan_.size();
    result_.free_bytes = free_bytes(parent_path(result_.path));
    const std::string id = partial_id(checkpoint_, plan_, options_.arguments);
    result_.published = !options_.dry_run;
    if (options_.dry_run) return check_space(), std::move(result_);

    note_other_partials(id);
    result_.partial = PartialDirectory::path_for(result_.path, id);
    std::optional<PartialDirectory> partial = options_.worker ? after_share(id) : alone(id);
    if (partial) finish(*partial);
    result_.published = partial.has_value();
    return std::move(result_);
  }

 private:
  std::optional<PartialDirectory> alone(const std::string& id) const {
    PartialDirectory partial = PartialDirectory::open(result_.path, id);
    if (options_.force || !partial.continued()) partial.start_again();
    if (partial.continued()) return partial;
    try {
      check_space();
    } catch (const Error&) {
      partial.remove();   // nothing is in it yet
      throw;
    }
    return partial;
  }

  // Does the share of this worker. nullopt unless all the others' are done, too.
  std::optional<PartialDirectory> after_share(const std::string& id) {
    try {
      const auto directory = WorkerDirectory::open(result_.path, id, *options_.worker, options_.engine.cancel);
      check_output();   // again: the others may have published while this one waited
      result_.bytes_written =
          transfer_share(checkpoint_, plan_, directory.data(), directory.journals(), *options_.worker, options_.engine);
    } catch (const Error& e) {
      // The last worker to leave; while others are at work, it is theirs.
      if (is_hopeless(e)) {
        if (auto partial = PartialDirectory::open_after_workers(result_.path, id)) partial->remove();
      }
      throw;
    }
    std::optional<PartialDirectory> partial = PartialDirectory::open_after_workers(result_.path, id);
    if (!partial) return std::nullopt;
    const Journals known = partial->journals();
    std::vector<std::string> paths = known.others;
    paths.push_back(known.own);
    if (!all_jobs_done(plan_, paths)) return std::nullopt;
    return partial;
  }

  // What cannot be read today cannot be read tomorrow: a damaged source is never continued with, only replaced by another one.
  static bool is_hopeless(const Error& e) {
    return e.code() == Exit::damaged || e.code() == Exit::refused || e.code() == Exit::unsupported;
  }

  TransferResult move(PartialDirectory& partial) const {
    try {
      return transfer(checkpoint_, plan_, partial.data(), partial.journals(), options_.engine);
    } catch (const Error& e) {
      if (is_hopeless(e)) partial.remove();
      throw;
    }
  }

  void finish(PartialDirectory& partial) {
    const TransferResult moved = move(partial);
    result_.bytes_resumed = moved.bytes_resumed - result_.bytes_written;   // this worker's own share is in its journal, too
    result_.bytes_written += moved.bytes_written;
    prove(partial, moved.tensors);
    check_cancel();
    partial.close_journal();
    put_in_place(partial);
    clean_up(partial);
  }

  // ---- before anything is written

  void check_output() {
    const std::string& output = result_.path;
    if (stat_path(parent_path(output)).kind != FileKind::directory) {
      throw Error(Exit::failed, "directory of the output does not exist").at(parent_path(output)).try_("mkdir -p " + shell_quoted(parent_path(output)));
    }
    const std::string source = real_path(checkpoint_.source->path()), target = real_target(output);
    if (is_below(target, source) || is_below(source, target)) {
      throw Error(Exit::usage, "output and input lie in each other").at(output).saw("a place beside the input", checkpoint_.source->path());
    }
    const FileStat there = stat_path(output);
    if (!options_.force && (there.kind != FileKind::absent || there.is_link)) {
      throw Error(Exit::usage, "output exists").at(output).try_("--force");
    }
    if (single_ && !options_.force && stat_path(result_.manifest).kind != FileKind::absent && !is_manifest(result_.manifest)) {
      throw Error(Exit::usage, "output exists").at(result_.manifest).saw("a manifest, or nothing", "another file").try_("--force replaces it");
    }
  }

  void check_source() {
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

  void check_space() const {
    if (result_.bytes <= result_.free_bytes) return;
    throw Error(Exit::failed, "not enough space for the output")
        .at(parent_path(result_.path))
        .saw(fmt::format("{} bytes", result_.bytes), fmt::format("{} bytes free", result_.free_bytes));
  }

  void note_other_partials(const std::string& id) {
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

  void check_cancel() const {
    if (options_.engine.cancel != nullptr && options_.engine.cancel->load()) throw Error(Exit::interrupted, "interrupted");
  }

  // ---- proof

  std::string data_path(const PartialDirectory& partial) const {
    return single_ ? join_path(partial.data(), plan_.front()->path()) : partial.data();
  }

  void prove(PartialDirectory& partial, const std::vector<TensorSum>& sums) {
    try {
      const Proof proof = reopen(checkpoint_, format_, data_path(partial), not_carried_, options_.engine.threads);
      check_cancel();
      if (options_.read_back) read_back(proof, sums, options_.engine);
      result_.read_back = options_.read_back;
      write_manifest(partial, proof, sums);
    } catch (const Error& e) {
      if (is_disproof(e)) partial.start_again();   // continuing from it would fail for ever
      throw;
    }
  }

  void write_manifest(const PartialDirectory& partial, const Proof& proof, const std::vector<TensorSum>& sums) {
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
  bool is_changed(const std::vector<TensorSum>& sums) const {
    const auto cast = [&](TensorIndex t) {
      return checkpoint_.tensors[t].piece_count > 0 && checkpoint_.pieces_of(t).front().stored != checkpoint_.tensors[t].dtype;
    };
    bool any = !not_carried_.empty();
    for (TensorIndex t = 0; t < sums.size() && !any; ++t) any = cast(t);
    return any;
  }

  // The content as it lies in the source: before casts.
  uint64_t source_fingerprint(const std::vector<TensorSum>& sums) const {
    Checkpoint before = checkpoint_;
    std::vector<TensorSum> stored = sums;
    for (TensorIndex t = 0; t < stored.size(); ++t) {
      stored[t].crc64 = stored[t].source_crc64;
      if (before.tensors[t].piece_count > 0) before.tensors[t].dtype = before.pieces_of(t).front().stored;
    }
    return checkpoint_fingerprint(before, stored);
  }

  void list_casts(const std::vector<TensorSum>& sums) {
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

  void sync_directories(const PartialDirectory& partial) const {
    std::set<std::string> directories = {partial.data()};
    for (const auto& file : plan_) {
      // Every directory that a file made necessary, up to data/.
      for (std::string p = parent_path(file->path()); p != "." && !p.empty(); p = parent_path(p)) directories.insert(join_path(partial.data(), p));
    }
    for (const std::string& directory : directories) sync_directory(directory);
  }

  void put_in_place(const PartialDirectory& partial) {
    sync_directories(partial);
    if (single_) {
      // The manifest first: a file without one is a checkpoint of somebody else's, a manifest without its file is nothing.
      const bool replaced = place(partial.manifest(), result_.manifest, true);
      try {
        place(data_path(partial), result_.path, options_.force);
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
  void clean_up(PartialDirectory& partial) {
    try {
      partial.remove();
    } catch (const Error& e) {
      sink_.report(warning("partial output could not be removed").at(partial.path()).found_only(e.what()));
    }
  }

  // Gives `from` the name `to`. True when something of that name was replaced; it then lies at `from`.
  static bool place(const std::string& from, const std::string& to, bool replace) {
    const FileStat there = stat_path(to);
    if (!replace || (there.kind == FileKind::absent && !there.is_link)) {
      rename_new(from, to);
      return false;
    }
    if (exchange(from, to)) return true;
    throw Error(Exit::failed, "file system cannot exchange the old output and the new one in one step").at(to).try_("mv " + shell_quoted(to) + " " + shell_quoted(to + ".old"));
  }

  void take_back(const std::string& manifest, bool replaced) const {
    try {
      if (replaced) exchange(manifest, result_.manifest);
      else rename_new(result_.manifest, manifest);
    } catch (const Error&) {
      // Then a manifest without a file, or of another save, stays behind: readers ignore it.
    }
  }

  const Checkpoint& checkpoint_;
  const Format& format_;
  const Target& target_;
  const PublishOptions& options_;
  FindingSink& sink_;
  PublishResult result_;
  FilePlan plan_;
  bool single_ = false;
  std::vector<std::string> not_carried_;
};

}  // namespace

PublishResult publish(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
                      const PublishOptions& options, FindingSink& sink) {
  check_writable(checkpoint);
  return Publication(checkpoint, format, target, output, options, sink).run();
}

}  // namespace fsdpctl
