#include "formats/torch_sharded.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <unordered_set>

#include "formats/safetensors_index.h"
#include "formats/torch_file.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kIndex = "pytorch_model.bin.index.json", kSingle = "pytorch_model.bin";
constexpr std::string_view kIndexEndingBin = ".bin.index.json";

class ShardReader {
 public:
  ShardReader(Checkpoint& checkpoint, const std::string& index_name, FindingSink& sink)
      : checkpoint_(checkpoint), index_name_(index_name), sink_(sink) {}

  void read() {
    const SourceIndex source = checkpoint_.source->add(index_name_);
    const uint64_t size = checkpoint_.source->file(source).size;
    index_ = read_safetensors_index(
        [&](uint64_t offset, std::span<std::byte> out) { checkpoint_.source->read(source, offset, out); }, size,
        index_name_, names_);
    for (const IndexedTensor& t : index_.tensors) shard_of_.emplace(t.name, t.file);
    checkpoint_.data_files.push_back(index_name_);
    checkpoint_.tree = Value::mapping(Kind::dict);
    for (uint32_t file = 0; file < index_.files.size(); ++file) read_shard(file);
    for (const IndexedTensor& t : index_.tensors) {
      if (!found_.contains(t.name)) {
        sink_.report(error(Exit::damaged, "tensor is missing from the shard that the index names")
                         .at(index_.files[t.file]).key(std::string(t.name)));
      }
    }
  }

 private:
  void read_shard(uint32_t file) {
    const std::string& name = index_.files[file];
    const SourceIndex source = checkpoint_.source->add(name);   // Error(damaged) when it is missing
    checkpoint_.data_files.push_back(name);
    const Value shard = read_torch_file(checkpoint_, source, 0, sink_, &checkpoint_.format_detail);
    if (!shard.is_mapping()) throw Error(Exit::damaged, "shard is not a dict of tensors").at(name);
    for (const Entry& e : shard.entries()) {
      const std::string key = key_text(e.key);
      const auto indexed = shard_of_.find(key);
      if (indexed == shard_of_.end()) {
        sink_.report(warning("shard has a tensor that the index does not name").at(name).key(key));
      } else if (indexed->second != file) {
        throw Error(Exit::damaged, "tensor is in another shard than the index says").at(name).key(key)
            .saw(index_.files[indexed->second], name);
      }
      if (!found_.insert(indexed == shard_of_.end() ? names_.store(key) : indexed->first).second) {
        throw Error(Exit::damaged, "two shards have a tensor of one name").at(name).key(key);
      }
      checkpoint_.tree.mutable_entries().push_back(e);
    }
  }

  Checkpoint& checkpoint_;
  const std::string& index_name_;
  FindingSink& sink_;
  Arena names_;
  SafetensorsIndex index_;
  std::unordered_map<std::string_view, uint32_t> shard_of_;
  std::unordered_set<std::string_view> found_;
};

}  // namespace

std::optional<TorchDirectory> find_torch_directory(const Source& source) {
  TorchDirectory found;
  for (const DirectoryEntry& e : source.entries()) {
    if (e.kind != FileKind::file) continue;
    if (e.name == kIndex || (e.name.ends_with(kIndexEndingBin) && found.index.empty())) found.index = e.name;
    if (e.name == kSingle) found.only = e.name;
  }
  if (found.index.empty() && found.only.empty()) return std::nullopt;
  if (!found.index.empty()) found.only.clear();
  return found;
}

void read_torch_directory(Checkpoint& checkpoint, const TorchDirectory& directory, FindingSink& sink) {
  if (directory.index.empty()) {
    const SourceIndex source = checkpoint.source->add(directory.only);
    checkpoint.data_files.push_back(directory.only);
    checkpoint.metadata_file = directory.only;
    checkpoint.tree = read_torch_file(checkpoint, source, 0, sink, &checkpoint.format_detail);
    return;
  }
  checkpoint.metadata_file = directory.index;
  ShardReader(checkpoint, directory.index, sink).read();
  const std::string stem = directory.index.substr(0, directory.index.size() - kIndexEndingBin.size());
  for (const DirectoryEntry& e : checkpoint.source->entries()) {
    const bool shard_like = e.kind == FileKind::file && e.name.starts_with(stem) && e.name.ends_with(".bin");
    if (shard_like && std::find(checkpoint.data_files.begin(), checkpoint.data_files.end(), e.name) == checkpoint.data_files.end()) {
      checkpoint.stale_files.push_back(e.name);
    }
  }
}

}  // namespace fsdpctl
