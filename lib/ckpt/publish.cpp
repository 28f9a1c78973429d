#include "lib/ckpt/publish.h"

#include <fmt/format.h>

#include <utility>

#include "lib/base/shell_quoted.h"
#include "lib/ckpt/publication.h"
#include "lib/ckpt/writable.h"

namespace fsdpctl {
namespace {

// Alone, or as one of several workers.
class Publisher {
 public:
  Publisher(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
            const PublishOptions& options, FindingSink& sink)
      : checkpoint_(checkpoint), options_(options), sink_(sink), publication_(checkpoint, format, target, output, options, sink) {}

  PublishResult run() try {
    publication_.check_output();
    publication_.check_source();
    publication_.make_plan();
    const std::string id = partial_id(checkpoint_, plan_, options_.arguments);
    result_.published = !options_.dry_run;
    if (options_.dry_run) return publication_.check_space(), std::move(result_);

    publication_.note_other_partials(id);
    result_.partial = PartialDirectory::path_for(result_.path, id);
    std::optional<PartialDirectory> partial = options_.worker ? after_share(id) : alone(id);
    if (partial) finish(*partial);
    result_.published = partial.has_value();
    return std::move(result_);
  } catch (const Error&) {
    note_own_partial();
    throw;
  }

 private:
  std::optional<PartialDirectory> alone(const std::string& id) {
    PartialDirectory partial = PartialDirectory::open(result_.path, id);
    held_ = true;
    if (options_.force || !partial.continued()) partial.start_again();
    if (partial.continued()) return partial;
    try {
      publication_.check_space();
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
      held_ = true;
      publication_.check_output();   // again: the others may have published while this one waited
      result_.bytes_written =
          transfer_share(checkpoint_, plan_, directory.data(), directory.journals(), *options_.worker, options_.engine);
    } catch (const Error& e) {
      // The last worker to leave; while others are at work, it is theirs.
      auto partial = PartialDirectory::open_after_workers(result_.path, id);
      if (partial && (is_hopeless(e) || (e.code() == Exit::usage && !partial->continued()))) discard(*partial);
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

  // What cannot be read today cannot be read tomorrow: a damaged source is never continued with, only replaced by another one. Nor is an
  // output that was found to be wrong.
  static bool is_hopeless(const Error& e) {
    return e.code() == Exit::damaged || e.code() == Exit::refused || e.code() == Exit::unsupported || is_disproof(e);
  }

  // After an error, which says more than one about the removal would.
  static void discard(PartialDirectory& partial) {
    try {
      partial.remove();
    } catch (const Error&) {
      // The caller sees that it is still there.
    }
  }

  void finish(PartialDirectory& partial) try {
    const TransferResult moved = transfer(checkpoint_, plan_, partial.data(), known_work(partial), options_.engine);
    result_.bytes_resumed = moved.bytes_resumed - result_.bytes_written;   // this worker's own share is in its journal, too
    result_.bytes_written += moved.bytes_written;
    if (moved.bytes_redone > 0) {
      sink_.report(warning("partial output had changed since it was written: that part was written again")
                       .at(base_name(partial.path()))
                       .found_only(fmt::format("{} bytes; where this happens again, the disk or its driver loses data", moved.bytes_redone)));
    }
    prove(partial, moved.tensors);
    publication_.check_cancel();
    partial.close_journal();
    publication_.put_in_place(partial);
    publication_.clean_up(partial);
  } catch (const Error& e) {
    if (is_hopeless(e)) discard(partial);
    throw;
  }

  // The last of several workers need not read what the others wrote a moment ago, if it is going to read all of it back.
  Journals known_work(const PartialDirectory& partial) const {
    Journals known = partial.journals();
    known.check = !options_.worker || !options_.read_back;
    return known;
  }

  void prove(const PartialDirectory& partial, const std::vector<TensorSum>& sums) {
    const Proof proof = publication_.reopen(partial.data());
    publication_.check_cancel();
    if (options_.read_back) read_back(proof, sums, options_.engine);
    result_.read_back = options_.read_back;
    publication_.write_manifest(partial, proof, sums);
  }

  // What a run that failed leaves, and what can be done with it.
  void note_own_partial() const {
    if (!held_ || stat_path(result_.partial).kind != FileKind::directory) return;
    // The journal is gone where the last step failed.
    const bool continues = stat_path(join_path(result_.partial, "journal")).kind == FileKind::file;
    Finding left = note(continues ? "unfinished output is kept: the same command continues it, --force starts it again"
                                  : "unfinished output is kept: the same command starts it again")
                       .at(base_name(result_.partial));
    if (options_.worker) left.what = "unfinished output is kept: the same command continues this share";
    else left.try_("rm -r " + shell_quoted(result_.partial));
    sink_.report(std::move(left));
  }

  const Checkpoint& checkpoint_;
  const PublishOptions& options_;
  FindingSink& sink_;
  Publication publication_;
  const FilePlan& plan_ = publication_.plan();
  PublishResult& result_ = publication_.result();
  bool held_ = false;   // the partial was ours
};

}  // namespace

PublishResult publish(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
                      const PublishOptions& options, FindingSink& sink) {
  check_writable(checkpoint);
  return Publisher(checkpoint, format, target, output, options, sink).run();
}

}  // namespace fsdpctl
