#include "formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/named_tensors.h"
#include "formats/safetensors_index.h"
#include "formats/safetensors_layout.h"
#include "formats/safetensors_reader.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kEnding = ".safetensors";

std::optional<Match> recognize_file(Source& source) {
  const SourceIndex index = source.add(source.entries().front().name);
  const SourceFile& file = source.file(index);
  std::array<std::byte, 64> head{};
  const auto known = static_cast<size_t>(std::min<uint64_t>(head.size(), file.size));
  source.read(index, 0, std::span(head).first(known));
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<uint64_t>(head[i]);
  const auto begin = std::find_if(head.begin() + 8, head.end(), [](std::byte b) {
    return std::string_view(" \t\r\n").find(static_cast<char>(b)) == std::string_view::npos;
  });
  if (begin != head.end() && *begin == std::byte{'{'}) {
    if (length <= file.size - 8) return Match{90, "8 bytes of header length, then JSON"};
    return Match{40, "JSON from byte 8 on, as in safetensors, but not of the length that the first 8 bytes say"};
  }
  if (file.name.ends_with(kEnding)) return Match{5, "name ends in .safetensors, though the content does not look so"};
  return std::nullopt;
}

std::optional<Match> recognize_directory(const Source& source) {
  const SafetensorsListing listing = list_safetensors(source);
  if (!listing.indexes.empty()) return Match{90, "directory with " + listing.indexes.front()};
  if (listing.per_rank || listing.files.empty()) return std::nullopt;
  if (listing.files.size() == 1) return Match{70, "directory with one safetensors file"};
  return Match{60, fmt::format("directory with {} safetensors files", listing.files.size())};
}

// ------------------------------------------------------------------------------------------------------- writing

// What the layouts of a plan share and keep alive.
struct Shared {
  TensorNames names;
  std::vector<int64_t> zeros;    // offset of a whole tensor
};

std::shared_ptr<const Shared> share_names(const Checkpoint& checkpoint) {
  auto shared = std::make_shared<Shared>();
  shared->names = name_tensors(checkpoint);
  size_t dims = 0;
  for (const TensorInfo& info : checkpoint.tensors) dims = std::max(dims, info.shape.size());
  shared->zeros.resize(dims);
  return shared;
}

SafetensorsBox whole_tensor(const Checkpoint& checkpoint, const Shared& shared, const TensorName& name) {
  const TensorInfo& info = checkpoint.tensors[name.tensor];
  return {name.tensor, name.name, info.dtype, {Dims(shared.zeros).first(info.shape.size()), info.shape}};
}

// The index of a directory, rendered on demand.
class IndexLayout : public FileLayout {
 public:
  IndexLayout(SafetensorsIndex index, std::shared_ptr<const Shared> shared)
      : FileLayout(std::string(kIndexName)), index_(std::move(index)), shared_(std::move(shared)) {
    std::string text;
    write_safetensors_index(index_, text);
    size_ = text.size();
  }
  uint64_t size() const override { return size_; }
  uint64_t item_count() const override { return 1; }
  uint64_t item_offset(uint64_t item) const override { return item == 0 ? 0 : size_; }
  void segments(uint64_t, SegmentList& out) const override {
    out.segments.assign(1, Segment{});
    out.segments.front().length = size_;
  }
  void render(uint64_t, const Segment&, const ItemCrcs*, std::string& out) const override { write_safetensors_index(index_, out); }

 private:
  SafetensorsIndex index_;
  std::shared_ptr<const Shared> shared_;   // owns the names
  uint64_t size_ = 0;
};

using Shard = std::vector<SafetensorsBox>;

// Cuts tensors into shards as Hugging Face does: in order and greedily; a tensor above the limit gets a shard of its
// own at once, while the shard that was being filled goes on after it.
std::vector<Shard> pack(const Checkpoint& checkpoint, const Shared& shared, uint64_t limit) {
  std::vector<Shard> shards;
  Shard current;
  uint64_t filled = 0;
  for (const TensorName& name : shared.names.stored) {
    const SafetensorsBox box = whole_tensor(checkpoint, shared, name);
    const uint64_t bytes = checkpoint.bytes_of(name.tensor);
    if (bytes > limit) {
      shards.push_back({box});
      continue;
    }
    if (filled + bytes > limit) {
      shards.push_back(std::move(current));
      current.clear();
      filled = 0;
    }
    current.push_back(box);
    filled += bytes;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

FilePlan lay_out_shards(const Checkpoint& checkpoint, const std::vector<Shard>& shards, SafetensorsMetadata metadata,
                        const std::shared_ptr<const Shared>& shared) {
  FilePlan plan;
  SafetensorsIndex index;
  index.total_size = 0;
  std::vector<uint32_t> shard_of(checkpoint.tensors.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    index.files.push_back(fmt::format("model-{:05}-of-{:05}{}", i + 1, shards.size(), kEnding));
    for (const SafetensorsBox& box : shards[i]) {
      shard_of[box.tensor] = static_cast<uint32_t>(i);
      *index.total_size += checkpoint.bytes_of(box.tensor);
    }
    plan.push_back(safetensors_layout(index.files.back(), 0, metadata_of_others(metadata), shards[i], shared));
  }
  for (const TensorName& name : shared->names.stored) index.tensors.push_back({name.name, shard_of[name.tensor]});
  index.metadata = std::move(metadata);   // once, not in every shard
  plan.push_back(std::make_unique<IndexLayout>(std::move(index), shared));
  return plan;
}

class SafetensorsFormat : public Format {
 public:
  std::string_view name() const override { return "safetensors"; }

  bool is_part(std::string_view file_name) const override { return is_safetensors_part(file_name); }

  std::optional<Match> recognize(Source& source) const override {
    return source.is_directory() ? recognize_directory(source) : recognize_file(source);
  }

  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override {
    if (source->is_directory()) return read_safetensors_directory(std::move(source), sink);
    const std::string name = source->entries().front().name;
    return read_safetensors_file(std::move(source), name, sink);
  }

  std::optional<Checkpoint> open_whole(std::shared_ptr<Source> directory, const std::string& part, FindingSink& sink) const override {
    return read_safetensors_whole(std::move(directory), part, sink);
  }

  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.writes = true;
    capabilities.shard_size = true;
    capabilities.endings = {kEnding};
    return capabilities;
  }

  void can_carry(const Checkpoint& checkpoint, const Target&, FindingSink& sink) const override {
    check_safetensors_dtypes(checkpoint, sink);
    check_names(checkpoint, name_tensors(checkpoint), sink);
  }

  FilePlan lay_out(const Checkpoint& checkpoint, const Target& target) const override {
    const std::shared_ptr<const Shared> shared = share_names(checkpoint);
    SafetensorsMetadata metadata = metadata_to_write(checkpoint, shared->names);
    const std::vector<Shard> shards = pack(checkpoint, *shared, target.directory ? target.max_shard_bytes : UINT64_MAX);
    if (shards.size() > 1) return lay_out_shards(checkpoint, shards, std::move(metadata), shared);
    FilePlan plan;
    plan.push_back(safetensors_layout(target.directory ? "model.safetensors" : target.file_name, 0, std::move(metadata),
                                      shards.front(), shared));
    return plan;
  }
};

}  // namespace

std::unique_ptr<Format> safetensors_format() { return std::make_unique<SafetensorsFormat>(); }

}  // namespace fsdpctl
