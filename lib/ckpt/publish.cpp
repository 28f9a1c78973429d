#include "lib/ckpt/publish.h"

#include <utility>

#include "lib/ckpt/publication.h"
#include "lib/ckpt/writable.h"

namespace fsdpctl {
namespace {

// Alone, or as one of several workers.
class Publisher {
 public:
  Publisher(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
            const PublishOptions& options, FindingSink& sink)
      : checkpoint_(checkpoint), options_(options), publication_(checkpoint, format, target, output, options, sink) {}

  PublishResult run() {
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
  }

 private:
  std::optional<PartialDirectory> alone(const std::string& id) const {
    PartialDirectory partial = PartialDirectory::open(result_.path, id);
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
      publication_.check_output();   // again: the others may have published while this one waited
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
    publication_.check_cancel();
    partial.close_journal();
    publication_.put_in_place(partial);
    publication_.clean_up(partial);
  }

  void prove(PartialDirectory& partial, const std::vector<TensorSum>& sums) {
    try {
      const Proof proof = publication_.reopen(partial.data());
      publication_.check_cancel();
      if (options_.read_back) read_back(proof, sums, options_.engine);
      result_.read_back = options_.read_back;
      publication_.write_manifest(partial, proof, sums);
    } catch (const Error& e) {
      if (is_disproof(e)) partial.start_again();   // continuing from it would fail for ever
      throw;
    }
  }

  const Checkpoint& checkpoint_;
  const PublishOptions& options_;
  Publication publication_;
  const FilePlan& plan_ = publication_.plan();
  PublishResult& result_ = publication_.result();
};

}  // namespace

PublishResult publish(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
                      const PublishOptions& options, FindingSink& sink) {
  check_writable(checkpoint);
  return Publisher(checkpoint, format, target, output, options, sink).run();
}

}  // namespace fsdpctl
