#include "formats/named_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "formats/annotations.h"
#include "formats/safetensors_header.h"
#include "formats/sharding_info.h"
#include "formats/special_tensors.h"
#include "lib/base/checksum.h"
#include "lib/base/shell_quoted.h"
#include "lib/base/utf8.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/parts.h"
#include "lib/ckpt/renumber.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kTreeKey = "fsdpctl.tree";
constexpr std::string_view kNamesKey = "fsdpctl.names";   // CRC-64 of the names that the tree was written for

// Keys of `__metadata__` with a meaning of their own: never an alias, whatever their value.
bool is_reserved(std::string_view key) {
  return key == kFormatTag || key.starts_with("fsdpctl.") || key.starts_with("DCP_");
}

// Tensors by name in byte order. A tree refers to tensors by their position here, so that it survives tools which
// reorder the header or cut the file into shards.
template <class NameOf>
std::vector<TensorIndex> sorted_by_name(size_t count, const NameOf& name_of) {
  std::vector<TensorIndex> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](TensorIndex a, TensorIndex b) { return name_of(a) < name_of(b); });
  return order;
}

template <class NameOf>
std::string names_crc(std::span<const TensorIndex> order, const NameOf& name_of) {
  std::string text;
  for (const TensorIndex i : order) {
    text += name_of(i);
    text += '\n';
  }
  return hex64(crc64(std::as_bytes(std::span(text))));
}

bool is_plain_leaf(const Value& value, TensorIndex tensor) {
  if (!value.is(Kind::tensor) || !value.tensor_attributes().is(Kind::none)) return false;
  const TensorLeaf leaf = value.as_tensor();
  return leaf.index == tensor && !leaf.parameter && !leaf.requires_grad;
}

// True where reading the names gives back this very tree: a flat dict of the stored tensors, then of the aliases.
bool names_suffice(const Value& tree, const TensorNames& names) {
  if (!tree.is(Kind::dict) || !tree.node<MappingNode>().attributes.is(Kind::none)) return false;
  const std::vector<Entry>& entries = tree.entries();
  if (entries.size() != names.stored.size() + names.aliases.size()) return false;
  for (size_t i = 0; i < entries.size(); ++i) {
    const size_t stored = names.stored.size();
    const TensorName& expected = i < stored ? names.stored[i] : names.aliases[i - stored];
    const Entry& e = entries[i];
    if (!e.key.is(Kind::string) || e.key.text() != expected.name || !is_plain_leaf(e.value, expected.tensor)) return false;
  }
  return true;
}

void append_tree(const Checkpoint& checkpoint, const TensorNames& names, SafetensorsMetadata& metadata) {
  auto name_of = [&](TensorIndex row) { return names.stored[row].name; };
  const std::vector<TensorIndex> order = sorted_by_name(names.stored.size(), name_of);
  std::vector<TensorIndex> number(checkpoint.tensors.size(), kNoTensor);
  for (size_t n = 0; n < order.size(); ++n) number[names.stored[order[n]].tensor] = static_cast<TensorIndex>(n);
  metadata.emplace_back(kNamesKey, names_crc(order, name_of));
  const Value tree = renumbered(checkpoint.tree, number);
  if (const uint64_t size = value_json_size(tree, JsonForm::stored); size > kMaxSafetensorsHeader) {   // before it is made
    throw Error(Exit::refused, "values are too long for a safetensors header")
        .saw(fmt::format("at most {} bytes of JSON", kMaxSafetensorsHeader), fmt::format("{}", size)).try_("--part model");
  }
  metadata.emplace_back(kTreeKey, value_to_json(tree, JsonForm::stored));
}

const std::string* find_entry(const SafetensorsMetadata& metadata, std::string_view key) {
  const auto hit = std::find_if(metadata.begin(), metadata.end(), [&](const auto& entry) { return entry.first == key; });
  return hit == metadata.end() ? nullptr : &hit->second;
}

using NameIndex = std::unordered_map<std::string_view, TensorIndex>;

NameIndex index_names(std::span<const std::string_view> names) {
  NameIndex index(names.size());
  for (size_t i = 0; i < names.size(); ++i) index.emplace(names[i], static_cast<TensorIndex>(i));
  return index;
}

// The tensor that a metadata entry {dropped name: stored name} stands for.
TensorIndex alias_target(const std::pair<std::string, std::string>& entry, const NameIndex& index) {
  if (is_reserved(entry.first) || index.count(entry.first)) return kNoTensor;
  const auto hit = index.find(entry.second);
  return hit == index.end() ? kNoTensor : hit->second;
}

// Can be written as an entry of `__metadata__` and is the same annotation when it is read again.
bool is_carried(const Checkpoint& checkpoint, const Annotation& annotation, const NameIndex& stored) {
  if (is_format_tag(checkpoint, annotation.first)) return true;
  return !is_reserved(annotation.first) && alias_target(annotation, stored) == kNoTensor && is_utf8(annotation.first) && is_utf8(annotation.second);
}

NameIndex index_names(const TensorNames& names) {
  NameIndex index(names.stored.size());
  for (const TensorName& name : names.stored) index.emplace(name.name, name.tensor);
  return index;
}

}  // namespace

TensorNames name_tensors(const Checkpoint& checkpoint) {
  Parts parts = find_parts(checkpoint);
  TensorNames names;
  names.arena = parts.arena;
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.tensor != kNoTensor && leaf.part != Part::model) names.model_only = false;
  }
  std::vector<uint32_t> row(checkpoint.tensors.size(), UINT32_MAX);
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.tensor == kNoTensor) continue;
    TensorName name{names.model_only ? leaf.fqn : leaf.path, leaf.tensor};
    if (row[leaf.tensor] == UINT32_MAX) {
      row[leaf.tensor] = static_cast<uint32_t>(names.stored.size());
      names.stored.push_back(name);
    } else {
      TensorName& stored = names.stored[row[leaf.tensor]];
      if (name.name < stored.name) std::swap(name, stored);
      names.aliases.push_back(name);
    }
  }
  // Tensors inside inert objects are no leaves; their key names them.
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    if (row[t] == UINT32_MAX) names.stored.push_back({checkpoint.tensors[t].key, t});
  }
  return names;
}

void check_names(const Checkpoint& checkpoint, const TensorNames& names, FindingSink& sink) {
  // An alias is what it is named, not its tensor's first key; so is a reserved name, whichever of several names is stored.
  auto refused = [&](std::string what, const TensorName& name, bool alias) {
    return error(Exit::refused, std::move(what)).key(std::string(alias ? name.name : checkpoint.tensors[name.tensor].key)).found_only(std::string(name.name));
  };
  const bool special = refuse_special_tensors(checkpoint, sink);   // says all of their storages too
  std::unordered_set<std::string_view> seen(names.stored.size() + names.aliases.size());
  for (const auto* list : {&names.stored, &names.aliases}) {
    const bool alias = list == &names.aliases;
    for (const TensorName& name : *list) {
      const std::string key(alias ? name.name : checkpoint.tensors[name.tensor].key);
      if (checkpoint.tensors[name.tensor].role == Role::storage) {
        if (!special) sink.report(refused("bytes of an inert object cannot be a named tensor", name, alias));
      } else if (!is_utf8(name.name)) {
        sink.report(refused("tensor name is not UTF-8", name, alias));
      } else if (name.name == "__metadata__") {
        sink.report(refused("tensor name is reserved", name, true).try_("--rename '__metadata__=metadata'"));
      } else if (!seen.insert(name.name).second) {
        sink.report(refused("two tensors would have one name", name, alias).try_("--drop " + shell_quoted(key)));
      }
    }
  }
  const NameIndex stored = index_names(names);
  for (const Annotation& annotation : annotations(checkpoint)) {
    if (!is_carried(checkpoint, annotation, stored)) report_lost_annotation(annotation, sink);
  }
}

SafetensorsMetadata metadata_to_write(const Checkpoint& checkpoint, const TensorNames& names) {
  SafetensorsMetadata metadata;
  const NameIndex stored = index_names(names);
  for (const Annotation& annotation : annotations(checkpoint)) {
    if (is_carried(checkpoint, annotation, stored)) metadata.push_back(annotation);
  }
  if (!find_entry(metadata, kFormatTag)) metadata.emplace(metadata.begin(), kFormatTag, "pt");   // loaders check it
  std::vector<std::string_view> stored_name(checkpoint.tensors.size());
  for (const TensorName& name : names.stored) stored_name[name.tensor] = name.name;
  const SafetensorsMetadata entries = metadata;
  std::unordered_set<std::string_view> carried;
  for (const auto& entry : entries) carried.insert(entry.first);
  bool all_aliases = true;
  for (const TensorName& alias : names.aliases) {
    if (is_reserved(alias.name) || carried.count(alias.name) != 0) all_aliases = false;
    else metadata.emplace_back(alias.name, stored_name[alias.tensor]);
  }
  if (!all_aliases || !names_suffice(checkpoint.tree, names)) append_tree(checkpoint, names, metadata);
  return metadata;
}

SafetensorsMetadata metadata_of_others(const SafetensorsMetadata& first) { return {{std::string(kFormatTag), *find_entry(first, kFormatTag)}}; }

void MergedMetadata::add(const SafetensorsMetadata& more, const std::string& file_name, FindingSink& sink) {
  for (const auto& entry : more) {
    if (entry.first == kShardingInfoKey) continue;   // differs from file to file
    const auto known = index_.emplace(entry.first, entries_.size());
    if (known.second) {
      entries_.push_back(entry);
    } else if (const std::string& first = entries_[known.first->second].second; first != entry.second) {
      sink.report(warning("files disagree about a metadata entry").at(file_name).key(entry.first)
                      .saw(first.substr(0, 80), entry.second.substr(0, 80)));
    }
  }
}

Value tree_of_names(std::span<const std::string_view> names, const SafetensorsMetadata& metadata,
                    const std::string& file_name, FindingSink& sink) {
  if (const std::string* tree = find_entry(metadata, kTreeKey)) {
    auto name_of = [&](TensorIndex i) { return names[i]; };
    const std::vector<TensorIndex> order = sorted_by_name(names.size(), name_of);
    const std::string* crc = find_entry(metadata, kNamesKey);
    if (crc && *crc == names_crc(order, name_of)) {
      try {
        return renumbered(value_from_json(*tree, file_name), order);
      } catch (Error& e) {
        throw e.in_file(file_name).in_tensor(kTreeKey);
      }
    }
    sink.report(warning("recorded tree belongs to other tensors and is ignored").at(file_name));
  }
  std::vector<Entry> entries;
  entries.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    entries.push_back({Value::string(names[i]), Value::tensor({static_cast<TensorIndex>(i), false, false})});
  }
  const NameIndex index = index_names(names);
  for (const auto& entry : metadata) {
    const TensorIndex target = alias_target(entry, index);
    if (target != kNoTensor) entries.push_back({Value::string(entry.first), Value::tensor({target, false, false})});
  }
  return Value::mapping(Kind::dict, std::move(entries));
}

void keep_metadata(const SafetensorsMetadata& metadata, std::span<const std::string_view> names, Checkpoint& checkpoint) {
  const NameIndex index = index_names(names);
  for (const auto& entry : metadata) {
    const bool ours = entry.first != kFormatTag && is_reserved(entry.first);
    if (!ours && alias_target(entry, index) == kNoTensor) add_annotation(checkpoint, entry.first, entry.second);
  }
}

}  // namespace fsdpctl
