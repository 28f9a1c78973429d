// The files of a distributed checkpoint by their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/ckpt/source.h"

namespace fsdpctl {

inline constexpr std::string_view kDcpMetadata = ".metadata";

struct DcpShard {
  std::string name;            // "__3_0.distcp"
  int32_t rank = -1;
  uint64_t size = 0;
};
struct DcpFiles {
  bool has_metadata = false;
  std::vector<std::pair<int32_t, std::string>> rank_metadata;   // "__3.metadata", by rank: saved without collectives
  std::vector<DcpShard> shards;                                 // by name
  std::vector<std::string> unfinished;                          // ".metadata.tmp"
};
DcpFiles find_dcp_files(const Source& source);

bool is_dcp_file(std::string_view name);   // ".metadata", "__3.metadata", "__3_0.distcp" and the like

// 3 of "__3_0.distcp", also below a folder; -1 for other names.
int32_t dcp_rank(std::string_view file_name);
std::string dcp_file_name(int64_t rank);   // "__3_0.distcp"

}  // namespace fsdpctl
