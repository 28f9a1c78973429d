// TreeEditor: a checkpoint's tree under a selection. Builds a new tree; the old one is not touched.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/ckpt/name_map.h"

namespace fsdpctl {

class TreeEditor {
 public:
  // All references must outlive the editor. `changes` receives what is dropped and filled.
  TreeEditor(const Checkpoint& checkpoint, const Parts& parts, const Selection& selection, NameMap& names, std::vector<Change>& changes);

  // nullopt when nothing is left.
  std::optional<Value> edit();

 private:
  class Element;
  std::optional<Value> edit(const Value& v);
  std::optional<Value> edit_leaf(const Value& v);
  std::optional<Value> edit_mapping(const Value& v);
  std::optional<Value> edit_sequence(const Value& v);
  // The key under which a kept entry goes on; nullopt when it was moved to `hoisted_`.
  std::optional<Value> key_for(const Value& key, const Value& old, const Value& kept);
  bool drop_extra();   // the value at path_
  bool mark_mixed(const Value& v, bool in_model);
  const LeafInfo* model_leaf(const Value& v) const;
  void list_dropped(std::string key, std::string why);
  Value module_metadata(const Value& attributes) const;

  const Checkpoint& checkpoint_;
  const Parts& parts_;
  const Selection& selection_;
  NameMap& names_;
  std::vector<Change>& changes_;
  std::string path_;
  bool in_model_ = false;   // at or below the model's container
  std::unordered_map<const Value*, const LeafInfo*> model_leaves_;
  std::unordered_map<const Value*, const OptimizerInfo*> optimizers_;
  std::unordered_set<const Value*> mixed_;   // containers above a model leaf or an optimizer
  std::vector<Entry> hoisted_;               // model entries whose new name fits no nested mapping: kept at the model's root
};

// An optimizer under a selection: state, groups and flattened keys follow the names, missing group fields are filled.
Value edit_optimizer(const OptimizerInfo& optimizer, const Selection& selection, const NameMap& names, std::vector<Change>& changes);

// Adds to state dicts of LRSchedulers what newer PyTorch keeps there.
void fill_schedulers(Value& tree, std::vector<Change>& changes);

// Error(refused) when two entries have one key.
void check_keys(const std::vector<Entry>& entries, const std::string& path);

}  // namespace fsdpctl
