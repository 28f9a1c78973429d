#include "formats/torch_sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/numbered_name.h"
#include "formats/safetensors_index.h"
#include "formats/torch_file.h"
#include "formats/unread_files.h"

#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kIndex = "pytorch_model.bin.index.json", kSingle = "pytorch_model.bin";
constexpr std::string_view kIndexEndingBin = ".bin.index.json", kShardEnding = ".bin";

SafetensorsIndex read_index(Source& source, const std::string& name, Arena& arena) {
  const SourceIndex file = source.add(name);
  const auto read = [&](uint64_t offset, std::span<std::byte> out) { source.read(file, offset, out); };
  return read_safetensors_index(read, source.file(file).size, name, arena);
}

std::vector<std::string> list_indexes(const Source& source) {
  std::vector<std::string> names;
  for (const DirectoryEntry& e : source.entries()) {
    if (e.kind == FileKind::file && e.name.ends_with(kIndexEndingBin)) names.push_back(e.name);
  }
  return names;
}

class ShardReader {
 public:
  ShardReader(Checkpoint& checkpoint, const std::string& index_name, FindingSink& sink)
      : checkpoint_(checkpoint), index_name_(index_name), sink_(sink) {}

  void read() {
    index_ = read_index(*checkpoint_.source, index_name_, names_);
    for (const IndexedTensor& t : index_.tensors) shard_of_.emplace(t.name, t.file);
    checkpoint_.data_files.push_back(index_name_);
    checkpoint_.tree = Value::mapping(Kind::dict);
    for (uint32_t file = 0; file < index_.files.size(); ++file) read_shard(file);
    for (const IndexedTensor& t : index_.tensors) {
      if (found_.contains(t.name) || unreadable_.contains(t.file)) continue;
      sink_.report(error(Exit::damaged, "tensor is missing from the shard that the index names")
                       .at(index_.files[t.file]).key(std::string(t.name)));
    }
  }

 private:
  // A shard that cannot be read leaves the others readable.
  void read_shard(uint32_t file) {
    const size_t tensors = checkpoint_.tensors.size(), pieces = checkpoint_.pieces.size(), crcs = checkpoint_.recorded_crcs.size();
    try {
      add_shard(file);
    } catch (const Error& e) {
      checkpoint_.tensors.resize(tensors);
      checkpoint_.pieces.resize(pieces);
      checkpoint_.recorded_crcs.resize(crcs);
      unreadable_.insert(file);
      sink_.report(e.finding());
    }
  }

  void add_shard(uint32_t file) {
    const std::string& name = index_.files[file];
    const SourceIndex source = checkpoint_.source->add(name);   // Error(damaged) when it is missing
    const Value shard = read_torch_file(checkpoint_, source, 0, sink_, &checkpoint_.format_detail);
    if (!shard.is_mapping()) throw Error(Exit::damaged, "shard is not a dict of tensors").at(name);
    std::vector<std::string_view> keys;
    for (const Entry& e : shard.entries()) keys.push_back(check_key(key_text(e.key), file));
    found_.insert(keys.begin(), keys.end());
    std::vector<Entry>& entries = checkpoint_.tree.mutable_entries();
    entries.insert(entries.end(), shard.entries().begin(), shard.entries().end());
    checkpoint_.data_files.push_back(name);
  }

  // A name that this shard may have: the index says so, or says nothing of it.
  std::string_view check_key(const std::string& key, uint32_t file) {
    const std::string& name = index_.files[file];
    const auto indexed = shard_of_.find(key);
    if (indexed != shard_of_.end() && indexed->second != file) {
      throw Error(Exit::damaged, "tensor is in another shard than the index says").at(name).key(key)
          .saw(index_.files[indexed->second], name);
    }
    if (found_.contains(key)) throw Error(Exit::damaged, "two shards have a tensor of one name").at(name).key(key);
    if (indexed != shard_of_.end()) return indexed->first;
    sink_.report(warning("shard has a tensor that the index does not name").at(name).key(key));
    return names_.store(key);
  }

  Checkpoint& checkpoint_;
  const std::string& index_name_;
  FindingSink& sink_;
  Arena names_;
  SafetensorsIndex index_;
  std::unordered_map<std::string_view, uint32_t> shard_of_;
  std::unordered_set<std::string_view> found_;
  std::unordered_set<uint32_t> unreadable_;   // shards that were reported
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void report_files_beside(const Checkpoint& checkpoint, FindingSink& sink) {
  std::vector<std::string> names;
  for (const DirectoryEntry& e : checkpoint.source->entries()) {
    if (e.kind != FileKind::file || !is_other_checkpoint_file(e.name)) continue;
    if (!contains(checkpoint.data_files, e.name) && !contains(checkpoint.stale_files, e.name)) names.push_back(e.name);
  }
  report_unread_files(*checkpoint.source, names, sink);
}

}  // namespace

std::optional<TorchDirectory> find_torch_directory(const Source& source) {
  TorchDirectory found;
  found.indexes = list_indexes(source);
  const auto usual = std::find(found.indexes.begin(), found.indexes.end(), kIndex);
  if (usual != found.indexes.end()) std::iter_swap(found.indexes.begin(), usual);
  if (found.indexes.empty() && source.has(kSingle)) found.only = kSingle;
  if (found.indexes.empty() && found.only.empty()) return std::nullopt;
  return found;
}

bool is_torch_part(std::string_view file_name) {
  const auto numbered = parse_numbered_name(file_name, kShardEnding);
  return file_name.ends_with(kIndexEndingBin) || (numbered && numbered->count > 1);
}

std::optional<TorchDirectory> find_torch_whole(Source& directory, const std::string& part) {
  for (const std::string& name : list_indexes(directory)) {
    Arena arena;
    if (name == part) return TorchDirectory{{name}, ""};
    const std::vector<std::string> files = read_index(directory, name, arena).files;
    if (std::find(files.begin(), files.end(), part) != files.end()) return TorchDirectory{{name}, ""};
  }
  return std::nullopt;
}

void read_torch_directory(Checkpoint& checkpoint, const TorchDirectory& directory, FindingSink& sink) {
  if (directory.indexes.empty()) {
    const SourceIndex source = checkpoint.source->add(directory.only);
    checkpoint.data_files.push_back(directory.only);
    checkpoint.metadata_file = directory.only;
    checkpoint.tree = read_torch_file(checkpoint, source, 0, sink, &checkpoint.format_detail);
    report_files_beside(checkpoint, sink);
    return;
  }
  const std::string& index = directory.indexes.front();
  if (directory.indexes.size() > 1 && index != kIndex) {
    throw Error(Exit::refused, "directory holds several indexes").found_only(index + ", " + directory.indexes[1]).try_("fsdpctl inspect " + shell_quoted(join_path(checkpoint.source->path(), index)));
  }
  checkpoint.metadata_file = index;
  ShardReader(checkpoint, index, sink).read();
  const std::string stem = index.substr(0, index.size() - kIndexEndingBin.size());
  for (const DirectoryEntry& e : checkpoint.source->entries()) {
    const bool shard_like = e.kind == FileKind::file && e.name.starts_with(stem) && e.name.ends_with(kShardEnding);
    if (shard_like && !contains(checkpoint.data_files, e.name)) checkpoint.stale_files.push_back(e.name);
  }
  report_files_beside(checkpoint, sink);
}

}  // namespace fsdpctl
