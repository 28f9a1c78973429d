#include "formats/hf_dcp.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "formats/named_tensors.h"
#include "formats/safetensors_layout.h"
#include "formats/safetensors_reader.h"
#include "formats/sharding_info.h"
#include "lib/base/dims_table.h"
#include "lib/base/shell_quoted.h"
#include "lib/ckpt/parts.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kWorldSizeKey = "fsdpctl.world_size";   // PyTorch records none

struct ShardFile {
  std::string name;
  ShardName number;
};

// By rank and part. Files of ranks beyond what any world size can be are none of ours.
std::vector<ShardFile> list_shards(const Source& source) {
  std::vector<ShardFile> files;
  for (const DirectoryEntry& entry : source.entries()) {
    ShardFile file{entry.name, {}};
    if (entry.kind == FileKind::file && parse_shard_name(entry.name, file.number) && file.number.shard <= kMaxWorldSize) {
      files.push_back(std::move(file));
    }
  }
  std::sort(files.begin(), files.end(), [](const ShardFile& a, const ShardFile& b) {
    return std::pair(a.number.shard, a.number.part) < std::pair(b.number.shard, b.number.part);
  });
  return files;
}

// ------------------------------------------------------------------------------------------------------- reading

// Pieces go straight into the checkpoint; their tensors follow when all files have shown how far these reach.
class Reader {
 public:
  Reader(std::shared_ptr<Source> source, FindingSink& sink) : sink_(sink) {
    checkpoint_.format = "hf-dcp";
    checkpoint_.source = std::move(source);
  }

  Checkpoint read(const std::vector<ShardFile>& files);

 private:
  struct Tensor {
    DType dtype = DType::float32;
    std::vector<int64_t> shape;    // as far as the pieces seen reach
  };
  struct File {
    const ShardFile& shard;
    SourceIndex source = 0;
    SafetensorsHeader header;
    ShardingInfo sharding;
  };

  void read_file(const ShardFile& shard);
  void read_piece(const File& file, const SafetensorsEntry& entry);
  void take_metadata(const SafetensorsMetadata& more, const std::string& file_name);
  void check_set(const std::vector<ShardFile>& files);
  void report_gap(uint64_t first, uint64_t end);
  void add_tensors();

  FindingSink& sink_;
  Checkpoint checkpoint_;
  std::unordered_map<std::string_view, TensorIndex> number_of_;   // name to number in tensors_
  std::vector<Tensor> tensors_;
  std::vector<std::string_view> names_;    // beside tensors_
  DimsTable dims_{*checkpoint_.arena};
  MergedMetadata metadata_;                // of all files
  uint64_t world_size_ = 0;                // recorded; 0: not
  bool any_read_ = false;
};

Checkpoint Reader::read(const std::vector<ShardFile>& files) {
  for (const ShardFile& shard : files) read_file(shard);
  check_set(files);
  add_tensors();
  checkpoint_.world_size = static_cast<int64_t>(std::max<uint64_t>(world_size_, files.back().number.shard));
  checkpoint_.world_size_inferred = world_size_ == 0;
  checkpoint_.metadata_file = files.front().name;
  checkpoint_.format_detail = fmt::format("{} {}", files.size(), files.size() == 1 ? "file" : "files");
  checkpoint_.tree = tree_of_names(names_, metadata_.entries(), files.front().name, sink_);
  keep_metadata(metadata_.entries(), names_, checkpoint_);
  checkpoint_.finish(sink_);
  return std::move(checkpoint_);
}

void Reader::read_file(const ShardFile& shard) {
  Source& source = *checkpoint_.source;
  try {
    File file{shard, source.add(shard.name), {}, {}};
    checkpoint_.data_files.push_back(shard.name);
    Arena arena;   // of names and dims that most files have alike
    file.header = read_safetensors_header(read_at(source, file.source), source.file(file.source).size, shard.name, arena, sink_);
    file.sharding = read_sharding_info(file.header, shard.name, arena);
    for (const SafetensorsEntry& entry : file.header.entries) read_piece(file, entry);
    take_metadata(file.header.metadata, shard.name);
  } catch (const Error& e) {   // the other files stay readable
    sink_.report(e.finding());
  }
}

void Reader::read_piece(const File& file, const SafetensorsEntry& entry) {
  auto report = [&](std::string what, std::string expected, std::string found) {
    sink_.report(error(Exit::damaged, std::move(what)).at(file.shard.name).key(std::string(entry.name))
                     .saw(std::move(expected), std::move(found)));
  };
  const auto saved = file.sharding.find(std::string(entry.name));
  if (saved == file.sharding.end()) return report("offset of a piece is not recorded", std::string(kShardingInfoKey), "");
  const Dims offset = saved->second;
  if (offset.size() != entry.shape.size()) {
    return report("recorded offset does not fit the piece", dims_text(entry.shape), dims_text(offset));
  }
  auto known = number_of_.find(entry.name);
  if (known == number_of_.end()) {
    names_.push_back(checkpoint_.arena->store(entry.name));
    known = number_of_.emplace(names_.back(), static_cast<TensorIndex>(tensors_.size())).first;
    tensors_.push_back({entry.dtype, std::vector<int64_t>(entry.shape.size(), 0)});
  }
  Tensor& tensor = tensors_[known->second];
  if (tensor.dtype != entry.dtype || tensor.shape.size() != entry.shape.size()) {
    return report("pieces of one tensor do not fit together", fmt::format("{} of {} dimensions", dtype_name(tensor.dtype), tensor.shape.size()),
                  fmt::format("{} of {}", dtype_name(entry.dtype), entry.shape.size()));
  }
  // The global shape is not recorded: it is as far as the pieces reach.
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    int64_t end = 0;
    if (__builtin_add_overflow(offset[d], entry.shape[d], &end)) return report("offset of a piece overflows", "", dims_text(offset));
    tensor.shape[d] = std::max(tensor.shape[d], end);
  }
  Piece piece;
  piece.tensor = known->second;
  piece.rank = static_cast<int32_t>(file.shard.number.shard - 1);
  piece.box = {dims_.store(offset), dims_.store(entry.shape)};
  piece.source = file.source;
  piece.stored = entry.dtype;
  piece.offset = file.header.data_offset + entry.begin;
  piece.length = entry.length;
  checkpoint_.add_piece(piece);
}

void Reader::take_metadata(const SafetensorsMetadata& more, const std::string& file_name) {
  uint64_t recorded = 0;
  for (const auto& [key, value] : more) {
    if (key == kWorldSizeKey) std::from_chars(value.data(), value.data() + value.size(), recorded);
  }
  if (any_read_ && recorded != world_size_) {
    return sink_.report(error(Exit::damaged, "files of different saves are mixed").at(file_name)
                            .saw(fmt::format("world size {}", world_size_), fmt::format("{}", recorded)));
  }
  world_size_ = std::min<uint64_t>(recorded, kMaxWorldSize);
  any_read_ = true;
  metadata_.add(more, file_name, sink_);
}

// What PyTorch's files say of the set: the number of parts per rank, and each its place. A missing file at the end can
// only be noticed where the world size is recorded; a gap may be a rank that held nothing.
void Reader::check_set(const std::vector<ShardFile>& files) {
  uint64_t next = 1;
  for (const ShardFile& file : files) {
    if (file.number.shard > next) report_gap(next, file.number.shard);
    next = file.number.shard + 1ull;
    if (file.number.parts != files.front().number.parts || file.number.part == 0 || file.number.part > file.number.parts) {
      sink_.report(error(Exit::damaged, "files of different saves are mixed").at(file.name)
                       .saw(fmt::format("part of {}", files.front().number.parts), fmt::format("{} of {}", file.number.part, file.number.parts)));
    }
  }
  if (world_size_ >= next) report_gap(next, world_size_ + 1);
}

void Reader::report_gap(uint64_t first, uint64_t end) {
  Finding finding = world_size_ != 0 ? error(Exit::damaged, "file of a rank is missing") : warning("rank has no file");
  finding.at(shard_name(static_cast<uint32_t>(first)));
  finding.where.rank = static_cast<int>(first - 1);
  if (end - first > 1) finding.found_only(fmt::format("no files of {} ranks", end - first));
  sink_.report(std::move(finding));
}

// In the order of their numbers, which thereby are their indices.
void Reader::add_tensors() {
  for (const Tensor& tensor : tensors_) checkpoint_.add_tensor(tensor.dtype, tensor.shape);
}

// ------------------------------------------------------------------------------------------------------- writing

// What the layouts of a plan share and keep alive.
struct Shared {
  TensorNames names;
  Arena boxes;
};

std::unique_ptr<FileLayout> lay_out_rank(const Checkpoint& checkpoint, const TargetPlacement& placement, int64_t rank,
                                         SafetensorsMetadata metadata, const std::shared_ptr<Shared>& shared) {
  std::vector<SafetensorsBox> boxes;
  std::string sharding;
  begin_sharding_info(sharding);
  for (const TensorName& name : shared->names.stored) {
    if (!placement.holds(checkpoint, name.tensor, rank)) continue;
    const TensorInfo& info = checkpoint.tensors[name.tensor];
    const std::span<int64_t> offset = shared->boxes.dims(info.shape.size()), size = shared->boxes.dims(info.shape.size());
    placement.box(checkpoint, name.tensor, rank, offset, size);
    boxes.push_back({name.tensor, name.name, info.dtype, {offset, size}});
    append_sharding_info(name.name, offset, sharding);
  }
  end_sharding_info(sharding);
  metadata.emplace_back(kShardingInfoKey, std::move(sharding));
  metadata.emplace_back("DCP_VERSION", "1.0");
  metadata.emplace_back(kWorldSizeKey, fmt::format("{}", placement.world_size()));
  return safetensors_layout(shard_name(static_cast<uint32_t>(rank + 1)), static_cast<int>(rank), std::move(metadata), boxes, shared);
}

class HfDcpFormat : public Format {
 public:
  std::string_view name() const override { return "hf-dcp"; }

  bool is_part(std::string_view file_name) const override {
    ShardName shard;
    return parse_shard_name(file_name, shard);
  }

  std::optional<Match> recognize(Source& source) const override {
    const std::vector<ShardFile> files = list_shards(source);
    if (files.empty()) return std::nullopt;
    // Stronger than `safetensors`, which an index beside them speaks for: then whole tensors are there too.
    if (!source.is_directory()) return Match{95, "one rank's file of a set, named " + files.front().name};
    return Match{80, fmt::format("directory with {} files like {}", files.size(), files.front().name)};
  }

  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override {
    const std::vector<ShardFile> files = list_shards(*source);
    if (!source->is_directory()) {
      throw Error(Exit::refused, "file holds one rank's pieces of tensors, not whole tensors").at(files.front().name)
          .try_("fsdpctl inspect " + shell_quoted(parent_path(source->path())));
    }
    return Reader(std::move(source), sink).read(files);
  }

  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.writes = true;
    capabilities.world_size = true;
    capabilities.ties = false;   // PyTorch's reader finds a name only where it is a tensor of a file
    return capabilities;
  }

  void can_carry(const Checkpoint& checkpoint, const Target&, FindingSink& sink) const override {
    const Parts parts = find_parts(checkpoint);
    for (const LeafInfo& leaf : parts.leaves) {
      if (leaf.part == Part::model && leaf.tensor != kNoTensor) continue;
      Finding finding = error(Exit::refused, "hf-dcp holds tensors of the model and nothing else").key(std::string(leaf.path));
      sink.report(finding.try_(leaf.part == Part::model ? "--drop " + shell_quoted(std::string(leaf.fqn)) : "--part model"));
    }
    check_safetensors_dtypes(checkpoint, sink);
    check_names(checkpoint, name_tensors(checkpoint), sink);
  }

  FilePlan lay_out(const Checkpoint& checkpoint, const Target& target) const override {
    auto shared = std::make_shared<Shared>();
    shared->names = name_tensors(checkpoint);
    const SafetensorsMetadata first = metadata_to_write(checkpoint, shared->names);
    FilePlan plan;
    for (int64_t rank = 0; rank < target.placement->world_size(); ++rank) {
      plan.push_back(lay_out_rank(checkpoint, *target.placement, rank, rank == 0 ? first : metadata_of_others(first), shared));
    }
    return plan;
  }
};

}  // namespace

std::unique_ptr<Format> hf_dcp_format() { return std::make_unique<HfDcpFormat>(); }

}  // namespace fsdpctl
