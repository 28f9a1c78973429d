#include "formats/torch.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/annotations.h"
#include "formats/codec/torch_archive.h"
#include "formats/numbered_name.h"
#include "formats/torch_carry.h"
#include "formats/torch_file.h"
#include "formats/torch_ranks.h"
#include "formats/torch_sharded.h"
#include "lib/ckpt/writable.h"

namespace fsdpctl {
namespace {

// The first member of an archive as PyTorch writes it.
bool begins_with_pickle(Bytes head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  return text.substr(0, 300).find("/data.pkl") != std::string_view::npos;
}

std::optional<Match> recognize_file(Source& source) {
  const SourceIndex index = source.add(source.entries().front().name);
  std::vector<std::byte> head(std::min<uint64_t>(source.file(index).size, kTorchHead));
  source.read(index, 0, head);
  const auto container = torch_container(head);
  if (!container) return std::nullopt;
  switch (*container) {
    case TorchContainer::zip:
      if (begins_with_pickle(head)) return Match{95, "ZIP archive that begins with data.pkl"};
      return Match{50, "ZIP archive"};
    case TorchContainer::legacy: return Match{95, "torch's magic number in a pickle"};
    case TorchContainer::pickle: return Match{20, "pickle"};
    case TorchContainer::tar: return Match{40, "tar archive, as torch 0.1 wrote"};
    case TorchContainer::preview: return Match{90, "PYTORCH1"};
  }
  return std::nullopt;
}

void open_directory(Checkpoint& checkpoint, FindingSink& sink) {
  const Source& source = *checkpoint.source;
  if (const auto directory = find_torch_directory(source)) return read_torch_directory(checkpoint, *directory, sink);
  if (const auto ranks = find_rank_files(source); !ranks.empty()) refuse_rank_files(ranks);
  if (const auto files = find_deepspeed_files(source); !files.empty()) refuse_deepspeed_files(files);
  throw Error(Exit::unsupported, "directory has no torch.save checkpoint").at(source.path());
}

class ArchiveFile : public FileLayout {
 public:
  ArchiveFile(const Checkpoint& checkpoint, const std::string& file_name)
      : FileLayout(file_name), archive_(checkpoint, checkpoint.tree, torch_archive_prefix(file_name)) {}

  uint64_t size() const override { return archive_.size(); }
  uint64_t item_count() const override { return archive_.item_count(); }
  uint64_t item_offset(uint64_t item) const override { return archive_.item_offset(item); }
  void segments(uint64_t item, SegmentList& out) const override { archive_.segments(item, out); }
  void render(uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out) const override {
    archive_.render(item, segment, crcs, out);
  }
  bool needs_crc32() const override { return true; }

 private:
  TorchArchiveLayout archive_;
};

class TorchFormat : public Format {
 public:
  std::string_view name() const override { return "torch"; }

  bool is_part(std::string_view file_name) const override { return is_torch_part(file_name); }

  std::optional<Match> recognize(Source& source) const override {
    if (!source.is_directory()) return recognize_file(source);
    if (const auto directory = find_torch_directory(source)) {
      if (!directory->indexes.empty()) return Match{80, "directory with " + directory->indexes.front()};
      return Match{55, "directory with " + directory->only};
    }
    const std::vector<std::string> ranks = find_rank_files(source);
    if (!ranks.empty()) return Match{50, "directory with per-rank files such as " + ranks.front()};
    const std::vector<std::string> deepspeed = find_deepspeed_files(source);
    if (!deepspeed.empty()) return Match{50, "directory with DeepSpeed's files such as " + deepspeed.front()};
    return std::nullopt;
  }

  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override {
    Checkpoint checkpoint;
    checkpoint.format = name();
    checkpoint.source = std::move(source);
    Source& files = *checkpoint.source;
    if (files.is_directory()) {
      open_directory(checkpoint, sink);
    } else {
      const std::string file = files.entries().front().name;
      report_lone_shard(file, ".bin", sink);
      checkpoint.metadata_file = file;
      checkpoint.data_files = {file};
      checkpoint.tree = read_torch_file(checkpoint, files.add(file), 0, sink, &checkpoint.format_detail);
      if (const auto why = why_rank_part(file, checkpoint.tree)) {
        sink.report(warning("file holds one rank's part of a checkpoint").at(file).found_only(*why));
        mark_rank_part(checkpoint, *why);
      }
    }
    checkpoint.finish(sink);
    return checkpoint;
  }

  std::optional<Checkpoint> open_whole(std::shared_ptr<Source> source, const std::string& part, FindingSink& sink) const override {
    const auto directory = find_torch_whole(*source, part);
    if (!directory) return std::nullopt;
    Checkpoint checkpoint;
    checkpoint.format = name();
    checkpoint.source = std::move(source);
    read_torch_directory(checkpoint, *directory, sink);
    checkpoint.finish(sink);
    return checkpoint;
  }

  Capabilities capabilities() const override {
    return {.writes = true, .single_file = true, .endings = {".pt", ".pth", ".bin", ".ckpt"}};
  }

  void can_carry(const Checkpoint& checkpoint, const Target&, FindingSink& sink) const override {
    report_unloadable_values(checkpoint, sink);
    report_copied_views(checkpoint, sink);
    report_lost_annotations(checkpoint, sink);
  }

  FilePlan lay_out(const Checkpoint& checkpoint, const Target& target) const override {
    FilePlan plan;
    plan.push_back(std::make_unique<ArchiveFile>(checkpoint, target.file_name));
    return plan;
  }
};

}  // namespace

std::unique_ptr<Format> torch_format() { return std::make_unique<TorchFormat>(); }

}  // namespace fsdpctl
