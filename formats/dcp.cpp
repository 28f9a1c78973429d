#include "formats/dcp.h"

#include "formats/annotations.h"
#include "formats/dcp_carry.h"
#include "formats/dcp_files.h"
#include "formats/dcp_layout.h"
#include "formats/dcp_reader.h"

namespace fsdpctl {
namespace {

class DcpFormat : public Format {
 public:
  std::string_view name() const override { return "dcp"; }

  bool is_part(std::string_view file_name) const override { return is_dcp_file(file_name); }

  std::optional<Match> recognize(Source& source) const override {
    const DcpFiles files = find_dcp_files(source);
    if (files.has_metadata) return Match{90, "directory with .metadata"};
    if (!files.rank_metadata.empty()) return Match{90, "directory with the metadata of each rank, " + files.rank_metadata[0].second};
    if (!files.shards.empty()) return Match{80, "directory with " + files.shards[0].name};
    if (!files.unfinished.empty()) return Match{60, "directory with " + files.unfinished[0]};
    return std::nullopt;
  }

  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override { return open_dcp(std::move(source), sink); }

  Capabilities capabilities() const override { return {.writes = true, .world_size = true, .single_file = false}; }

  void can_carry(const Checkpoint& checkpoint, const Target&, FindingSink& sink) const override {
    report_dcp_losses(checkpoint, sink);
    report_lost_annotations(checkpoint, sink);
  }

  FilePlan lay_out(const Checkpoint& checkpoint, const Target& target) const override { return lay_out_dcp(checkpoint, *target.placement); }
};

}  // namespace

std::unique_ptr<Format> dcp_format() { return std::make_unique<DcpFormat>(); }

}  // namespace fsdpctl
