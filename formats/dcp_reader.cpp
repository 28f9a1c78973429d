#include "formats/dcp_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/dcp_catalog.h"
#include "formats/dcp_files.h"
#include "formats/dcp_tree.h"

namespace fsdpctl {
namespace {

// Which PyTorch wrote it, from what its metadata has.
std::string written_by(const DcpMetadata& metadata) {
  if (metadata.property_fields > 5) return "torch 2.15 or newer";
  if (!metadata.version.empty()) return "torch 2.9 or newer";
  if (metadata.has_storage_meta) return "torch 2.4 to 2.8";
  if (!metadata.old_homes) return "torch 2.3";
  return metadata.protocol == 2 ? "readable by torch 2.2 and newer" : "torch 2.2 or older";
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kShown ? fmt::format("{} and {} more", text, names.size() - kShown) : text;
}

std::vector<std::string> names_of(const std::vector<DcpShard>& shards) {
  std::vector<std::string> names;
  for (const DcpShard& shard : shards) names.push_back(shard.name);
  return names;
}

class Reader {
 public:
  Reader(std::shared_ptr<Source> source, FindingSink& sink)
      : sink_(sink), files_(find_dcp_files(*source)), items_(std::make_shared<DcpItems>()) {
    checkpoint_.format = "dcp";
    checkpoint_.source = std::move(source);
    checkpoint_.resolver = items_;           // set first: read_torch_archive looks at it
  }

  Checkpoint read() {
    if (files_.has_metadata) {
      read_metadata(std::string(kDcpMetadata));
    } else if (!files_.rank_metadata.empty()) {
      read_rank_metadata();
    } else {
      throw Error(Exit::damaged, "metadata is missing: the save never finished, or the file was lost")
          .at(std::string(kDcpMetadata)).found_only(some_of(names_of(files_.shards)));
    }
    items_->ready();
    read_tree();
    describe();
    checkpoint_.finish(sink_);
    return std::move(checkpoint_);
  }

 private:
  void read_metadata(const std::string& name) {
    const Source& source = *checkpoint_.source;
    const SourceIndex index = checkpoint_.source->add(name);
    DcpMetadata metadata = read_dcp_metadata([&](uint64_t at, std::span<std::byte> out) { source.read(index, at, out); },
                                             source.file(index).size, name, sink_);
    refuse_frameworks(metadata, name);
    if (checkpoint_.metadata_file.empty()) {
      checkpoint_.metadata_file = name;
      checkpoint_.format_detail = fmt::format("protocol {}, {}", metadata.protocol, written_by(metadata));
      has_paths_ = metadata.has_planner_data;
      checkpoint_.arena = metadata.arena;    // dims need not be copied
    }
    for (std::string_view field : metadata.unknown_fields) {
      sink_.report(warning("field of the metadata is not known and ignored").at(name).found_only(std::string(field)));
    }
    metadata_names_.push_back(name);
    DcpCatalog(checkpoint_, *items_, content_, metadata_names_.back(), sink_).add(std::move(metadata));
  }

  // They keep a part of their state elsewhere, so that this would be only a part of it.
  void refuse_frameworks(const DcpMetadata& metadata, const std::string& name) {
    auto has = [&](std::string_view field) {
      return std::find(metadata.unknown_fields.begin(), metadata.unknown_fields.end(), field) != metadata.unknown_fields.end();
    };
    if (has("mcore_data")) {
      throw Error(Exit::unsupported, "checkpoints of Megatron Core are not supported").at(name)
          .found_only("mcore_data; what Megatron's own tools export to safetensors can be opened");
    }
    if (metadata.home.starts_with("bytecheckpoint.")) {
      throw Error(Exit::unsupported, "checkpoints of ByteCheckpoint are not supported").at(name)
          .found_only(std::string(metadata.home) + "; what ByteCheckpoint's own tools export to safetensors can be opened");
    }
  }

  // Saved without collectives: each rank wrote metadata of what it had.
  void read_rank_metadata() {
    int32_t next = 0;
    for (const auto& [rank, name] : files_.rank_metadata) {
      for (; next < rank; ++next) report_missing_rank(next);
      next = rank + 1;
      read_metadata(name);
    }
    for (const DcpShard& shard : files_.shards) {
      for (; next <= shard.rank; ++next) report_missing_rank(next);
    }
    content_.highest_rank = std::max(content_.highest_rank, next - 1);
  }

  void report_missing_rank(int32_t rank) {
    Finding f = error(Exit::damaged, "metadata of a rank is missing: its save never finished, or the file was lost");
    f.at(fmt::format("__{}.metadata", rank));
    f.where.rank = rank;
    sink_.report(std::move(f));
  }

  void read_tree() {
    const std::vector<Value> values = read_byte_items(checkpoint_, content_.values, sink_);
    // In the order of planner_data, which is that of the saved dicts; state_dict_metadata goes by rank.
    std::stable_sort(content_.leaves.begin(), content_.leaves.end(), [](const DcpLeaf& a, const DcpLeaf& b) {
      return std::pair(a.element_count == 0, a.first_element) < std::pair(b.element_count == 0, b.first_element);
    });
    PathTree tree(content_.leaves.size());
    for (const DcpLeaf& leaf : content_.leaves) {
      if (leaf.tensor == kNoTensor && leaf.value == DcpLeaf::kNoValue) continue;
      Value value = leaf.tensor != kNoTensor ? Value::tensor(TensorLeaf{leaf.tensor, false, false}) : values[leaf.value];
      const DcpPathElement flat{leaf.fqn.data(), static_cast<uint32_t>(leaf.fqn.size()), 0};
      std::span<const DcpPathElement> path(&flat, 1);   // what planner_data does not know stays flat
      if (leaf.element_count > 0) path = std::span(content_.elements).subspan(leaf.first_element, leaf.element_count);
      tree.put(leaf.fqn, path, std::move(value));
    }
    content_.elements = {};
    content_.leaves = {};
    checkpoint_.tree = tree.finish(sink_);
  }

  void describe() {
    std::vector<std::string>& data = checkpoint_.data_files;
    data = content_.files;
    data.insert(data.end(), metadata_names_.begin(), metadata_names_.end());
    std::sort(data.begin(), data.end());
    data.erase(std::unique(data.begin(), data.end()), data.end());
    find_stale_files();
    checkpoint_.world_size = std::max(content_.highest_rank, 0) + 1;
    checkpoint_.world_size_inferred = true;

    auto& facts = checkpoint_.facts;
    facts.emplace_back("nesting", has_paths_ ? "recorded (planner_data)" : "not recorded: names are flat");
    if (!files_.has_metadata) facts.emplace_back("metadata", "one file for each rank (saved without collectives)");
    if (content_.zstd) facts.emplace_back("transform", std::string(kDcpZstd));
  }

  void find_stale_files() {
    const auto is_ours = [this](const std::string& name) {
      return std::binary_search(checkpoint_.data_files.begin(), checkpoint_.data_files.end(), name);
    };
    int32_t idle = -1;                       // ranks that had nothing to write leave empty files
    for (const DcpShard& shard : files_.shards) {
      if (is_ours(shard.name)) continue;
      if (shard.size == 0) idle = std::max(idle, shard.rank);
      else checkpoint_.stale_files.push_back(shard.name);
    }
    for (const auto& [rank, name] : files_.rank_metadata) {
      if (!is_ours(name)) checkpoint_.stale_files.push_back(name);
    }
    if (checkpoint_.stale_files.empty()) content_.highest_rank = std::max(content_.highest_rank, idle);
    else sink_.report(warning("files of another save lie beside this one; they are not read").found_only(some_of(checkpoint_.stale_files)));
    if (!files_.unfinished.empty()) {
      sink_.report(note("unfinished metadata of another save lies beside this one").found_only(some_of(files_.unfinished)));
    }
  }

  FindingSink& sink_;
  DcpFiles files_;
  std::shared_ptr<DcpItems> items_;
  Checkpoint checkpoint_;
  DcpContent content_;
  std::vector<std::string> metadata_names_;
  bool has_paths_ = false;
};

}  // namespace

Checkpoint open_dcp(std::shared_ptr<Source> source, FindingSink& sink) { return Reader(std::move(source), sink).read(); }

}  // namespace fsdpctl
