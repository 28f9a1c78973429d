#include "formats/safetensors_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "formats/named_tensors.h"
#include "formats/numbered_name.h"
#include "formats/safetensors_index.h"
#include "formats/sharding_info.h"
#include "formats/unread_files.h"

#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kEnding = ".safetensors";

// Collects tensors of one or several files; the tree is made at the end.
class Reader {
 public:
  Reader(std::shared_ptr<Source> source, FindingSink& sink) : sink_(sink) {
    checkpoint_.format = "safetensors";
    checkpoint_.source = std::move(source);
    zeros_ = checkpoint_.arena->store(Dims(std::array<int64_t, 64>{}));   // as many as a header may have dimensions
  }

  Checkpoint single_file(const std::string& name);
  Checkpoint indexed_shards(const std::string& index_name, const SafetensorsListing& listing);
  Checkpoint numbered_shards(const std::vector<std::string>& files);

 private:
  struct Row {   // a tensor of the index, and where it was found
    SourceIndex file = 0;
    uint64_t data_offset = 0;
    std::optional<SafetensorsEntry> entry;
  };
  using RowOf = std::unordered_map<std::string_view, uint32_t>;

  Source& source() { return *checkpoint_.source; }
  SafetensorsHeader read_header(SourceIndex file);
  void refuse_pieces(const SafetensorsHeader& header, const std::string& name);
  void add_tensor(SourceIndex file, uint64_t data_offset, const SafetensorsEntry& entry);
  void find_tensors(const SafetensorsIndex& index, uint32_t shard, const RowOf& row_of, std::vector<Row>& rows);
  void check_index(const SafetensorsIndex& index, const std::vector<Row>& rows, const std::string& index_name);
  Checkpoint finish(const std::string& metadata_name);

  FindingSink& sink_;
  Checkpoint checkpoint_;
  MergedMetadata metadata_;               // of all files and the index
  std::vector<std::string_view> names_;   // by tensor
  std::set<uint32_t> unreadable_;         // shards that were reported
  Dims zeros_;
};

SafetensorsHeader Reader::read_header(SourceIndex file) {
  const SourceFile& info = source().file(file);
  SafetensorsHeader header = read_safetensors_header(read_at(source(), file), info.size, info.name, *checkpoint_.arena, sink_);
  refuse_pieces(header, info.name);
  checkpoint_.data_files.push_back(info.name);
  metadata_.add(header.metadata, info.name, sink_);
  return header;
}

// One rank's file of a set (hf-dcp) has pieces of tensors under the tensors' names: alone it means nothing.
void Reader::refuse_pieces(const SafetensorsHeader& header, const std::string& name) {
  ShardName shard;
  bool pieces = parse_shard_name(name, shard);
  const ShardingInfo sharding = read_sharding_info(header, name, *checkpoint_.arena);
  for (const auto& [fqn, offset] : sharding) {
    pieces = pieces || std::any_of(offset.begin(), offset.end(), [](int64_t o) { return o != 0; });
  }
  if (!pieces) return;
  throw Error(Exit::refused, "file holds one rank's pieces of tensors, not whole tensors").at(name)
      .try_("fsdpctl inspect " + shell_quoted(parent_path(source().path())));
}

void Reader::add_tensor(SourceIndex file, uint64_t data_offset, const SafetensorsEntry& entry) {
  Piece piece;
  piece.tensor = checkpoint_.add_tensor(entry.dtype, entry.shape);
  piece.box = {zeros_.first(entry.shape.size()), entry.shape};
  piece.source = file;
  piece.stored = entry.dtype;
  piece.offset = data_offset + entry.begin;
  piece.length = entry.length;
  checkpoint_.add_piece(piece);
  names_.push_back(entry.name);
}

Checkpoint Reader::single_file(const std::string& name) {
  report_lone_shard(name, kEnding, sink_);
  const SourceIndex file = source().add(name);
  const SafetensorsHeader header = read_header(file);
  for (const SafetensorsEntry& entry : header.entries) add_tensor(file, header.data_offset, entry);
  checkpoint_.format_detail = "one file";
  return finish(name);
}

Checkpoint Reader::indexed_shards(const std::string& index_name, const SafetensorsListing& listing) {
  const SourceIndex file = source().add(index_name);
  checkpoint_.data_files.push_back(index_name);
  const SafetensorsIndex index =
      read_safetensors_index(read_at(source(), file), source().file(file).size, index_name, *checkpoint_.arena);
  metadata_.add(index.metadata, index_name, sink_);

  RowOf row_of(index.tensors.size());
  for (uint32_t i = 0; i < index.tensors.size(); ++i) row_of.emplace(index.tensors[i].name, i);
  std::vector<Row> rows(index.tensors.size());
  for (uint32_t shard = 0; shard < index.files.size(); ++shard) find_tensors(index, shard, row_of, rows);
  check_index(index, rows, index_name);
  for (const Row& row : rows) {
    if (row.entry) add_tensor(row.file, row.data_offset, *row.entry);
  }
  for (const std::string& name : listing.files) {
    if (std::find(index.files.begin(), index.files.end(), name) != index.files.end()) continue;
    checkpoint_.stale_files.push_back(name);
    sink_.report(warning("file is not in the index and is ignored").at(name));
  }
  checkpoint_.format_detail = fmt::format("{} with an index", index.files.size() == 1 ? "one file" : fmt::format("{} shards", index.files.size()));
  return finish(index_name);
}

void Reader::find_tensors(const SafetensorsIndex& index, uint32_t shard, const RowOf& row_of, std::vector<Row>& rows) {
  const std::string& name = index.files[shard];
  try {
    const SourceIndex file = source().add(name);
    const SafetensorsHeader header = read_header(file);
    for (const SafetensorsEntry& entry : header.entries) {
      const auto row = row_of.find(entry.name);
      if (row != row_of.end() && index.tensors[row->second].file == shard) {
        rows[row->second] = {file, header.data_offset, entry};
      } else {
        sink_.report(warning("tensor is not where the index says and is ignored").at(name).key(std::string(entry.name))
                         .saw(row == row_of.end() ? "no such tensor" : index.files[index.tensors[row->second].file], name));
      }
    }
  } catch (const Error& e) {   // a shard that cannot be read leaves the others readable
    unreadable_.insert(shard);
    sink_.report(e.finding());
  }
}

void Reader::check_index(const SafetensorsIndex& index, const std::vector<Row>& rows, const std::string& index_name) {
  uint64_t total = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].entry) {
      total += rows[i].entry->length;
    } else if (!unreadable_.count(index.tensors[i].file)) {
      sink_.report(error(Exit::damaged, "tensor of the index is missing from its shard").at(index.files[index.tensors[i].file])
                       .key(std::string(index.tensors[i].name)));
    }
  }
  if (index.total_size && *index.total_size != total && unreadable_.empty()) {
    sink_.report(warning("total_size of the index does not match its tensors").at(index_name)
                     .saw(fmt::format("{} bytes", *index.total_size), fmt::format("{}", total)));
  }
}

// A set whose names say that it is complete can do without an index.
Checkpoint Reader::numbered_shards(const std::vector<std::string>& files) {
  const auto first = parse_numbered_name(files.front(), kEnding);
  std::vector<bool> present(first ? std::min<size_t>(first->count, 100'000) : 0);
  for (const std::string& name : files) {
    const auto numbered = parse_numbered_name(name, kEnding);
    if (!first || !numbered || numbered->set != first->set || numbered->count != first->count || numbered->number == 0 ||
        numbered->number > numbered->count) {
      throw Error(Exit::refused, "directory holds several safetensors files and no index").at(source().path())
          .found_only(some_names(files)).try_("fsdpctl inspect " + shell_quoted(join_path(source().path(), files.front())));
    }
    present[numbered->number - 1] = true;
  }
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i]) continue;
    sink_.report(error(Exit::damaged, "shard is missing")
                     .at(fmt::format("{}-{:05}-of-{:05}{}", first->set, i + 1, first->count, kEnding)));
  }
  sink_.report(warning("index is missing: every shard that is there was read").at(std::string(first->set) + std::string(kIndexEnding)));

  std::unordered_map<std::string_view, SourceIndex> owner;
  for (const std::string& name : files) {
    const SourceIndex file = source().add(name);
    const SafetensorsHeader header = read_header(file);
    for (const SafetensorsEntry& entry : header.entries) {
      const auto known = owner.emplace(entry.name, file);
      if (known.second) add_tensor(file, header.data_offset, entry);
      else sink_.report(error(Exit::damaged, "two shards hold one tensor").at(name).key(std::string(entry.name))
                            .saw("only " + source().file(known.first->second).name, name));
    }
  }
  checkpoint_.format_detail = fmt::format("{} shards without an index", files.size());
  return finish(files.front());
}

Checkpoint Reader::finish(const std::string& metadata_name) {
  checkpoint_.metadata_file = metadata_name;
  checkpoint_.tree = tree_of_names(names_, metadata_.entries(), metadata_name, sink_);
  keep_metadata(metadata_.entries(), names_, checkpoint_);
  checkpoint_.finish(sink_);
  return std::move(checkpoint_);
}

// The index of `part`, or empty.
std::string index_of(const SafetensorsListing& listing, Source& source, const std::string& part) {
  for (const std::string& name : listing.indexes) {
    if (name == part) return name;
    Arena arena;
    const SourceIndex file = source.add(name);
    const SafetensorsIndex index = read_safetensors_index(read_at(source, file), source.file(file).size, name, arena);
    if (std::find(index.files.begin(), index.files.end(), part) != index.files.end()) return name;
  }
  return {};
}

std::string choose_index(const Source& source, const SafetensorsListing& listing) {
  if (listing.indexes.size() == 1) return listing.indexes.front();
  if (std::find(listing.indexes.begin(), listing.indexes.end(), kIndexName) != listing.indexes.end()) return std::string(kIndexName);
  throw Error(Exit::refused, "directory holds several indexes").found_only(listing.indexes[0] + ", " + listing.indexes[1])
      .try_("fsdpctl inspect " + shell_quoted(join_path(source.path(), listing.indexes[0])));
}

}  // namespace

ReadAt read_at(const Source& source, SourceIndex file) {
  return [&source, file](uint64_t offset, std::span<std::byte> out) { source.read(file, offset, out); };
}

SafetensorsListing list_safetensors(const Source& source) {
  SafetensorsListing listing;
  ShardName unused;
  for (const DirectoryEntry& entry : source.entries()) {
    if (entry.kind != FileKind::file) continue;
    const std::string& name = entry.name;
    if (name.ends_with(kEnding)) listing.files.push_back(name);
    else if (name.ends_with(kIndexEnding)) listing.indexes.push_back(name);
    else if (is_other_checkpoint_file(name)) listing.others.push_back(name);
    listing.per_rank = listing.per_rank || parse_shard_name(name, unused);
  }
  return listing;
}

Checkpoint read_safetensors_file(std::shared_ptr<Source> source, const std::string& name, FindingSink& sink) {
  return Reader(std::move(source), sink).single_file(name);
}

Checkpoint read_safetensors_directory(std::shared_ptr<Source> source, FindingSink& sink) {
  const SafetensorsListing listing = list_safetensors(*source);
  report_unread_files(*source, listing.others, sink);
  const std::string index = listing.indexes.empty() ? std::string() : choose_index(*source, listing);
  Reader reader(std::move(source), sink);
  if (!index.empty()) return reader.indexed_shards(index, listing);
  if (listing.files.size() == 1) return reader.single_file(listing.files.front());
  return reader.numbered_shards(listing.files);
}

bool is_safetensors_part(std::string_view file_name) {
  const auto numbered = parse_numbered_name(file_name, kEnding);
  return file_name.ends_with(kIndexEnding) || (numbered && numbered->count > 1);
}

std::optional<Checkpoint> read_safetensors_whole(std::shared_ptr<Source> directory, const std::string& part, FindingSink& sink) {
  const SafetensorsListing listing = list_safetensors(*directory);
  const std::string index = index_of(listing, *directory, part);
  if (index.empty()) return std::nullopt;
  return Reader(std::move(directory), sink).indexed_shards(index, listing);
}

}  // namespace fsdpctl
