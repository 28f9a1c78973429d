// Named tensors: how a tree becomes tensors with names, for formats that hold nothing else, and how it comes back.
// Shared by `safetensors` and `hf-dcp`; the scheme is described in formats/safetensors.md.
//
// Where every tensor belongs to the model, names are FQNs, as Hugging Face's tools want them; else they are keys, the
// whole path in the tree ("model.x", "optim.state.x.exp_avg"). Of tied tensors the first name in byte order is stored and the
// others are recorded, as `safetensors.torch.save_model` does. What names alone would lose (nesting, lists, numbers,
// OrderedDicts, objects) is kept as JSON beside them, so that reading gives back the tree that was written.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/safetensors_header.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct TensorName {
  std::string_view name;     // a view on the checkpoint's or the list's arena
  TensorIndex tensor = kNoTensor;
};

struct TensorNames {
  bool model_only = true;               // names are FQNs
  std::vector<TensorName> stored;       // each tensor once, in tree order
  std::vector<TensorName> aliases;      // further names of those, in tree order
  std::shared_ptr<const Arena> arena;   // of names that the checkpoint does not hold
};
TensorNames name_tensors(const Checkpoint& checkpoint);

// Reports what names cannot express (equal names, names that JSON cannot hold, the storages of inert objects) and annotations that
// would read as something else.
void check_names(const Checkpoint& checkpoint, const TensorNames& names, FindingSink& sink);

// ---- `__metadata__`

// Entries to write: annotations that the source brought along, `format`, the aliases and, where it is needed, the tree.
SafetensorsMetadata metadata_to_write(const Checkpoint& checkpoint, const TensorNames& names);

// What the other files of a set have, where the first has all of it: `format`, which loaders check.
SafetensorsMetadata metadata_of_others(const SafetensorsMetadata& first);

// The entries of all files of a set. Files of one save do not contradict each other: a warning, the first counts.
class MergedMetadata {
 public:
  void add(const SafetensorsMetadata& more, const std::string& file_name, FindingSink& sink);
  const SafetensorsMetadata& entries() const { return entries_; }

 private:
  SafetensorsMetadata entries_;
  std::unordered_map<std::string, size_t> index_;
};

// The tree of tensors that were read; names[i] belongs to tensor i. Entries of `metadata` that name an alias become
// one. A recorded tree that belongs to other names is a warning and ignored.
Value tree_of_names(std::span<const std::string_view> names, const SafetensorsMetadata& metadata,
                    const std::string& file_name, FindingSink& sink);

// Keeps the entries that are neither the tree nor an alias as annotations.
void keep_metadata(const SafetensorsMetadata& metadata, std::span<const std::string_view> names, Checkpoint& checkpoint);

}  // namespace fsdpctl
