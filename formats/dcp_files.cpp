#include "formats/dcp_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "lib/ckpt/placement.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kShardSuffix = ".distcp";

// The number at the front, which goes; nullopt where there is none, or one that no rank can have.
std::optional<int32_t> take_number(std::string_view& text) {
  int32_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || text.front() == '-' || n >= kMaxWorldSize) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return n;
}

std::optional<int32_t> metadata_rank(std::string_view name, std::string_view suffix) {
  if (!name.starts_with("__")) return std::nullopt;
  name.remove_prefix(2);
  const std::optional<int32_t> rank = take_number(name);
  return rank && name == suffix ? rank : std::nullopt;
}

}  // namespace

int32_t dcp_rank(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);   // npos + 1 is 0
  if (!name.starts_with("__")) return -1;
  name.remove_prefix(2);
  const std::optional<int32_t> rank = take_number(name);
  if (!rank || !name.starts_with('_')) return -1;
  name.remove_prefix(1);
  return take_number(name) && name == kShardSuffix ? *rank : -1;
}

bool is_dcp_file(std::string_view name) {
  return name == kDcpMetadata || name.ends_with(kShardSuffix) || (name.starts_with("__") && name.ends_with(kDcpMetadata));
}

std::string dcp_file_name(int64_t rank) { return fmt::format("__{}_0{}", rank, kShardSuffix); }

DcpFiles find_dcp_files(const Source& source) {
  DcpFiles files;
  if (!source.is_directory()) return files;
  for (const DirectoryEntry& entry : source.entries()) {
    if (entry.kind == FileKind::directory) continue;
    const std::string& name = entry.name;
    if (name == kDcpMetadata) files.has_metadata = true;
    else if (const auto rank = metadata_rank(name, kDcpMetadata)) files.rank_metadata.emplace_back(*rank, name);
    else if (name == ".metadata.tmp" || metadata_rank(name, ".metadata.tmp")) files.unfinished.push_back(name);
    else if (const int32_t writer = dcp_rank(name); writer >= 0) files.shards.push_back({name, writer, entry.size});
  }
  std::sort(files.rank_metadata.begin(), files.rank_metadata.end());
  return files;
}

}  // namespace fsdpctl
