// Publication: the steps from a plan to a published output, for publish() and publish_as_rank(). Private to lib/ckpt.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/partial.h"
#include "lib/ckpt/prove.h"
#include "lib/ckpt/publish.h"

namespace fsdpctl {

class Publication {
 public:
  // All arguments must outlive it.
  Publication(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
              const PublishOptions& options, FindingSink& sink);

  // ---- before anything is written
  void check_output();
  void check_source();
  void make_plan();
  void check_space() const;
  void note_other_partials(const std::string& id);
  void check_cancel() const;

  // ---- proof
  std::string data_path(const std::string& data) const;   // of the output, in the data directory of a partial
  Proof reopen(const std::string& data) const;
  void write_manifest(const PartialDirectory& partial, const Proof& proof, const std::vector<TensorSum>& sums);

  // ---- names
  void put_in_place(const PartialDirectory& partial) const;
  void clean_up(PartialDirectory& partial);

  const FilePlan& plan() const { return plan_; }
  PublishResult& result() { return result_; }

 private:
  bool is_changed(const std::vector<TensorSum>& sums) const;
  uint64_t source_fingerprint(const std::vector<TensorSum>& sums) const;
  void list_casts(const std::vector<TensorSum>& sums);
  void sync_directories(const PartialDirectory& partial) const;
  void take_back(const std::string& manifest, bool replaced) const;

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

}  // namespace fsdpctl
