#include "lib/ckpt/publish_as_rank.h"

#include <fmt/format.h>

#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/jobs.h"
#include "lib/ckpt/publication.h"
#include "lib/ckpt/rank_transfer.h"
#include "lib/ckpt/writable.h"

namespace fsdpctl {
namespace {

uint64_t hash_of(std::string_view text) { return crc64(std::as_bytes(std::span(text))); }

class RankPublisher {
 public:
  RankPublisher(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
                const PublishOptions& options, Coordinator& ranks, FindingSink& sink)
      : checkpoint_(checkpoint), options_(with_progress(options, ranks)), ranks_(ranks),
        publication_(checkpoint, format, target, output, options_, sink) {}

  PublishResult run() {
    try {
      agree_on_plan();
      write();
      prove_and_publish();
    } catch (...) {
      // All ranks have left off writing, or nobody waits for them any more.
      if (partial_) partial_->remove();
      throw;
    }
    if (partial_) publication_.clean_up(*partial_);
    return std::move(result_);
  }

 private:
  static PublishOptions with_progress(PublishOptions options, Coordinator& ranks) {
    options.engine.progress = [&ranks, told = std::move(options.engine.progress)](uint64_t done, uint64_t total) {
      ranks.make_progress();
      if (told) told(done, total);
    };
    return options;
  }

  // What the plans of ranks must have in common, values that are no tensors included.
  std::string hashes() const {
    std::string catalog = value_to_json(checkpoint_.tree, JsonForm::canonical);
    for (const TensorInfo& info : checkpoint_.tensors) catalog += fmt::format("\n{} {} {}", info.key, dtype_name(info.dtype), dims_text(info.shape));
    for (const Piece& piece : checkpoint_.pieces) catalog += fmt::format("\n{} {} {}", piece.tensor, piece.rank, box_text(piece.box));
    return fmt::format("plan {:016x}, content {:016x}", JobList(plan_).plan_hash(), hash_of(catalog));
  }

  void agree_on_plan() {
    const auto plan = [&] {
      check_writable(checkpoint_);
      if (ranks_.is_first()) publication_.check_output();
      publication_.check_source();
      publication_.make_plan();
      if (ranks_.is_first()) publication_.check_space();
      return hashes();
    };
    const std::string id = ranks_.meet("plan", contribution_of(plan), [&](const std::vector<std::string>& all) {
      for (size_t rank = 1; rank < all.size(); ++rank) {
        if (all[rank] == all[0]) continue;
        throw Error(Exit::failed, "ranks disagree about the checkpoint that they write").saw(all[0], fmt::format("{} of rank {}", all[rank], rank));
      }
      std::string made = partial_id(checkpoint_, plan_, options_.arguments);
      publication_.note_other_partials(made);
      partial_.emplace(PartialDirectory::open(result_.path, made));
      partial_->start_again();
      create_files(plan_, partial_->data());
      return made;
    });
    result_.partial = PartialDirectory::path_for(result_.path, id);
    data_ = join_path(result_.partial, "data");
  }

  void write() {
    const auto data = [&] {
      ranges_ = held_ranges(checkpoint_, plan_, ranks_.rank(), ranks_.size());
      for (const FileRange& range : ranges_) result_.bytes_written += range.end - range.begin;
      records_ = transfer_ranges(checkpoint_, plan_, data_, ranges_, options_.engine);
      return records_text(records_);
    };
    const std::string late = ranks_.meet("data", contribution_of(data), [&](const std::vector<std::string>& all) {
      RankTotals totals(checkpoint_, plan_);
      for (const std::string& text : all) totals.add(parse_records(text));
      sums_ = totals.sums();
      return records_text(totals.late_records());
    });
    const auto finish = [&] {
      finish_files(plan_, data_, parse_records(late), ranks_.rank(), ranks_.size());
      return std::string();
    };
    ranks_.meet("checksums", contribution_of(finish), [](const auto&) { return std::string(); });
  }

  void prove_and_publish() {
    Proof proof;
    const auto prove = [&] {
      if (ranks_.is_first() || options_.read_back) proof = publication_.reopen(data_);
      if (options_.read_back) read_back_ranges(proof, plan_, ranges_, records_, options_.engine);
      publication_.check_cancel();
      return std::string();
    };
    result_.read_back = options_.read_back;
    ranks_.meet("proof", contribution_of(prove), [&](const auto&) {
      publication_.write_manifest(*partial_, proof, sums_);
      publication_.put_in_place(*partial_);
      return std::string();
    });
  }

  const Checkpoint& checkpoint_;
  const PublishOptions options_;
  Coordinator& ranks_;
  Publication publication_;
  const FilePlan& plan_ = publication_.plan();
  PublishResult& result_ = publication_.result();
  std::optional<PartialDirectory> partial_;   // of the first rank
  std::string data_;
  std::vector<FileRange> ranges_;
  RangeRecords records_;                      // of this rank
  std::vector<TensorSum> sums_;               // of all; on the first rank
};

}  // namespace

PublishResult publish_as_rank(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
                              const PublishOptions& options, Coordinator& ranks, FindingSink& sink) {
  return RankPublisher(checkpoint, format, target, output, options, ranks, sink).run();
}

}  // namespace fsdpctl
