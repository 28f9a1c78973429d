// NameMap: what becomes of each FQN of a checkpoint under --drop, --strip-wrappers and --rename.
//
// Decided once for all places where a name stands. Views point into the Parts, which must outlive the map.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/ckpt/parts.h"
#include "lib/ckpt/select.h"

namespace fsdpctl {

class NameMap {
 public:
  // Errors as select() says.
  NameMap(const Parts& parts, const Selection& selection);

  bool dropped(std::string_view fqn) const { return dropped_.count(fqn) != 0; }
  // The new name; the old one where nothing changes.
  std::string_view renamed(std::string_view fqn) const;
  bool renames() const { return !renamed_.empty(); }
  bool drops() const { return !dropped_.empty(); }
  // The glob that matches an extra's path or an FQN; empty: none. Remembers that the glob was of use.
  std::string_view drop_glob(std::string_view path);
  // The glob because of which the FQN of a model leaf is dropped.
  std::string_view drop_glob_of(const LeafInfo& leaf);
  // The glob because of which the optimizer at this path is dropped: of it ("optim") or of all below it ("optim.*").
  std::string_view drop_glob_of_optimizer(std::string_view path);
  // Error(refused) for a glob that nothing matched. Call when all paths were asked.
  void check_globs() const;
  // Module paths that renamed parameters or buffers moved from and to: for `_metadata`.
  std::unordered_map<std::string, std::string> modules() const;
  // One line for each new name, in the order of the names.
  void list_renames(std::vector<Change>& changes) const;

 private:
  void drop_by_path(const Parts& parts);
  void strip_wrappers(std::vector<std::string>& names, const Parts& parts) const;
  void apply_rules(std::vector<std::string>& names) const;
  void check_collisions(const std::vector<std::string>& names) const;

  const Selection& selection_;
  std::vector<std::string_view> fqns_;   // all, in order of first appearance
  std::unordered_set<std::string_view> dropped_;
  std::unordered_map<std::string_view, std::string> renamed_;
  std::vector<bool> glob_used_;
  // Globs that match an FQN. The others are taken for paths of model tensors and optimizers ("model.emb.weight", "optim.*"), these
  // are not: where FQNs begin as the containers' names do (Hugging Face's "model."), they would drop more than they say.
  std::vector<bool> for_fqns_;
};

}  // namespace fsdpctl
