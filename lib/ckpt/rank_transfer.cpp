#include "lib/ckpt/rank_transfer.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "lib/base/checksum.h"
#include "lib/ckpt/block_filler.h"
#include "lib/ckpt/crew.h"
#include "lib/ckpt/output_file.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kBlock = 4 << 20;
constexpr uint64_t kLeastMemory = kBlock + Gatherer::kLeastMemory;
constexpr int kThreads = 4;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeMemory>;

AlignedBuffer aligned_buffer() {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(OutputFile::kAlignment, kBlock));
  if (memory == nullptr) throw Error(Exit::failed, "out of memory");
  return AlignedBuffer(memory);
}

// Cut where blocks of a file would end, so that most of them can be written past the page cache.
std::vector<FileRange> blocks_of(const std::vector<FileRange>& ranges) {
  std::vector<FileRange> blocks;
  for (const FileRange& range : ranges) {
    for (uint64_t at = range.begin; at < range.end;) {
      const uint64_t end = std::min((at / kBlock + 1) * kBlock, range.end);
      blocks.push_back({range.file, at, end});
      at = end;
    }
  }
  return blocks;
}

uint64_t bytes_of(const std::vector<FileRange>& ranges) {
  uint64_t bytes = 0;
  for (const FileRange& range : ranges) bytes += range.end - range.begin;
  return bytes;
}

// Records of blocks, added up by file. Thread-safe.
class Records {
 public:
  void add(size_t file, const JobRecord& record) {
    const std::lock_guard lock(mutex_);
    File& sums = files_[file];
    for (const TensorPart& part : record.tensors) {
      TensorPart& sum = sums.tensors.try_emplace(part.tensor, TensorPart{part.tensor, 0, 0, 0, {}}).first->second;
      sum.bytes += part.bytes;
      sum.source_crc64 ^= part.source_crc64;
      sum.crc64 ^= part.crc64;
      sum.casts += part.casts;
    }
    for (const ItemPart& part : record.items) sums.items[part.item] ^= part.crc32;
  }

  RangeRecords take() const {
    RangeRecords records;
    for (const auto& [file, sums] : files_) {
      JobRecord record;
      record.job = file;
      for (const auto& [tensor, part] : sums.tensors) record.tensors.push_back(part);
      for (const auto& [item, crc] : sums.items) record.items.push_back({item, crc});
      records.push_back(std::move(record));
    }
    return records;
  }

 private:
  struct File {
    std::map<TensorIndex, TensorPart> tensors;
    std::map<uint64_t, uint32_t> items;
  };
  std::mutex mutex_;
  std::map<size_t, File> files_;
};

[[noreturn]] void foreign_records() { throw Error(Exit::failed, "ranks disagree about what they write"); }

}  // namespace

void create_files(const FilePlan& plan, const std::string& directory) {
  std::set<std::string> directories;
  for (const auto& file : plan) {
    const std::string path = join_path(directory, file->path());
    if (directories.insert(parent_path(path)).second) make_directories(parent_path(path));
    FileHandle handle = FileHandle::create(path);
    handle.resize(file->size());
    handle.preallocate(file->size());
    handle.close();
  }
}

std::string records_text(const RangeRecords& records) {
  std::string text;
  for (const JobRecord& record : records) text += journal_line(record);
  return text;
}

RangeRecords parse_records(std::string_view text) {
  RangeRecords records;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n') + 1);
    text.remove_prefix(line.size());
    JobRecord record;
    if (line.empty() || !parse_journal_line(line, record)) foreign_records();
    records.push_back(std::move(record));
  }
  return records;
}

RangeRecords transfer_ranges(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
                             const std::vector<FileRange>& ranges, const EngineOptions& options) {
  const std::vector<FileRange> blocks = blocks_of(ranges);
  GatherContext context(checkpoint);
  Records records;
  std::atomic<DirectMode> mode(options.direct ? DirectMode::untried : DirectMode::refused);
  Crew crew(options, bytes_of(ranges));
  const CrewSize size = crew_size(options, kThreads, blocks.size(), kLeastMemory);
  crew.run(size.threads, blocks.size(), [&]() -> Crew::Worker {
    struct State {
      State(GatherContext& shared, uint64_t memory, const std::atomic<bool>* stop)
          : buffer(aligned_buffer()), gatherer(shared, memory - kBlock, stop), filler(shared.checkpoint, gatherer, /*all_late=*/true) {}
      AlignedBuffer buffer;
      Gatherer gatherer;
      BlockFiller filler;
      std::optional<OutputFile> output;
      size_t file = 0;
    };
    auto state = std::make_shared<State>(context, size.memory, crew.stop());
    return [&, state](uint64_t number) {
      const FileRange& block = blocks[number];
      if (!state->output || state->file != block.file) {
        if (state->output) state->output->close();
        state->output.emplace(join_path(directory, plan[block.file]->path()), mode);
        state->file = block.file;
      }
      JobRecord record;
      const std::span<std::byte> bytes(state->buffer.get(), block.end - block.begin);
      state->filler.fill(*plan[block.file], block.begin, bytes, record);
      state->output->write(block.begin, bytes);
      records.add(block.file, record);
      crew.advance(bytes.size());
    };
  });
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i > 0 && ranges[i].file == ranges[i - 1].file) continue;
    OutputFile(join_path(directory, plan[ranges[i].file]->path()), mode).sync();
  }
  return records.take();
}

RankTotals::RankTotals(const Checkpoint& checkpoint, const FilePlan& plan)
    : checkpoint_(checkpoint), plan_(plan), totals_(checkpoint), crcs_(plan.size()) {
  for (size_t i = 0; i < plan.size(); ++i) {
    if (plan[i]->needs_crc32()) crcs_[i] = std::make_unique<FileCrcs>(plan[i]->item_count());
  }
}

void RankTotals::add(const RangeRecords& records) {
  for (const JobRecord& record : records) {
    if (record.job >= plan_.size() || (!record.items.empty() && !crcs_[record.job])) foreign_records();
    for (const TensorPart& part : record.tensors) {
      if (part.tensor >= checkpoint_.tensors.size()) foreign_records();
      totals_.add(part);
    }
    for (const ItemPart& part : record.items) {
      if (part.item >= crcs_[record.job]->size()) foreign_records();
      crcs_[record.job]->add(part);
    }
  }
}

std::vector<TensorSum> RankTotals::sums() const {
  for (TensorIndex t = 0; t < checkpoint_.tensors.size(); ++t) {
    const uint64_t wanted = checkpoint_.bytes_of(t), written = totals_.bytes(t);
    if (written == wanted) continue;
    throw Error(Exit::failed, "ranks do not write every element exactly once")
        .key(std::string(checkpoint_.tensors[t].key))
        .saw(std::to_string(wanted) + " bytes", std::to_string(written));
  }
  return totals_.sums();
}

RangeRecords RankTotals::late_records() const {
  RangeRecords records;
  for (size_t file = 0; file < crcs_.size(); ++file) {
    if (!crcs_[file]) continue;
    JobRecord record;
    record.job = file;
    for (uint64_t item = 0; item < crcs_[file]->size(); ++item) {
      if (const uint32_t crc = crcs_[file]->crc32(item); crc != 0) record.items.push_back({item, crc});
    }
    records.push_back(std::move(record));
  }
  return records;
}

void finish_files(const FilePlan& plan, const std::string& directory, const RangeRecords& late, int rank, int ranks) {
  std::atomic<DirectMode> mode(DirectMode::refused);
  for (const JobRecord& record : late) {
    if (record.job >= plan.size()) foreign_records();
    const FileLayout& layout = *plan[record.job];
    if (!is_own_file(layout, rank, ranks)) continue;
    FileCrcs crcs(layout.item_count());
    for (const ItemPart& part : record.items) {
      if (part.item >= crcs.size()) foreign_records();
      crcs.add(part);
    }
    OutputFile output(join_path(directory, layout.path()), mode);
    write_late_segments(layout, crcs, output, /*all_late=*/true);
    output.sync();
    output.close();
  }
}

namespace {

// Stretches to be read back, none longer than a block.
struct Reading {
  TensorIndex written = kNoTensor;
  std::vector<int64_t> offset, size;   // the box
  uint64_t begin = 0, end = 0;
};

std::vector<Reading> readings_of(const Checkpoint& output, const std::vector<TensorIndex>& place, const FilePlan& plan,
                                 const std::vector<FileRange>& ranges) {
  std::vector<Reading> readings;
  for (const FileRange& range : ranges) {
    for_each_stretch(plan, range, [&](const TensorStretch& stretch) {
      const TensorIndex t = place[stretch.tensor];
      if (t == kNoTensor) return;   // in an object that the format could not carry
      const uint64_t step = kBlock / item_size(output.tensors[t].dtype) * item_size(output.tensors[t].dtype);
      for (uint64_t at = stretch.begin; at < stretch.end; at += step) {
        readings.push_back({stretch.tensor,
                            {stretch.box.offset.begin(), stretch.box.offset.end()},
                            {stretch.box.size.begin(), stretch.box.size.end()},
                            at,
                            std::min(at + step, stretch.end)});
      }
    });
  }
  return readings;
}

}  // namespace

void read_back_ranges(const Proof& proof, const FilePlan& plan, const std::vector<FileRange>& ranges, const RangeRecords& records,
                      const EngineOptions& options) {
  const Checkpoint& output = proof.reopened;
  std::vector<TensorIndex> place;   // in the output, of a tensor that was written
  for (TensorIndex t = 0; t < proof.source.size(); ++t) {
    if (proof.source[t] == kNoTensor) continue;
    place.resize(std::max<size_t>(place.size(), proof.source[t] + size_t{1}), kNoTensor);
    place[proof.source[t]] = t;
  }
  std::map<TensorIndex, uint64_t> expected, found;   // contributions
  for (const JobRecord& record : records) {
    for (const TensorPart& part : record.tensors) {
      place.resize(std::max<size_t>(place.size(), part.tensor + size_t{1}), kNoTensor);
      expected[part.tensor] ^= part.crc64;
    }
  }
  for (SourceIndex i = 0; i < output.source->file_count(); ++i) output.source->drop_cache(i);
  const std::vector<Reading> readings = readings_of(output, place, plan, ranges);
  GatherContext context(output);
  std::mutex mutex;
  Crew crew(options, bytes_of(ranges));
  const CrewSize size = crew_size(options, kThreads, readings.size(), kLeastMemory);
  crew.run(size.threads, readings.size(), [&]() -> Crew::Worker {
    struct State {
      State(GatherContext& shared, uint64_t memory, const std::atomic<bool>* stop)
          : buffer(aligned_buffer()), gatherer(shared, memory - kBlock, stop) {}
      AlignedBuffer buffer;
      Gatherer gatherer;
    };
    auto state = std::make_shared<State>(context, size.memory, crew.stop());
    return [&, state](uint64_t number) {
      const Reading& r = readings[number];
      const std::span<std::byte> bytes(state->buffer.get(), r.end - r.begin);
      const uint64_t crc = state->gatherer.read(place[r.written], {Dims(r.offset), Dims(r.size)}, r.begin, r.end, bytes).crc64;
      {
        const std::lock_guard lock(mutex);
        found[r.written] ^= crc;
      }
      crew.advance(bytes.size());
    };
  });
  for (const auto& [tensor, crc] : expected) {
    if (place[tensor] != kNoTensor && found[tensor] != crc) {
      throw differs_when_read(output, place[tensor], hex64(crc), hex64(found[tensor]));
    }
  }
}

}  // namespace fsdpctl
