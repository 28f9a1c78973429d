// Select: pure functions from checkpoint to checkpoint. Each lists what it did as Changes.
//
// In this order: parts are left out, names dropped, wrappers stripped, names replaced (each rule on what the one before it made),
// dtypes cast, missing fields of groups and schedulers filled. Names are FQNs and change wherever they stand: model keys, optimizer
// state, group lists (param_names too), flattened keys, the module names of a state dict's `_metadata`. A dropped model tensor takes its optimizer state
// and its place in the groups along.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/ckpt/manifest.h"
#include "lib/ckpt/parts.h"

namespace fsdpctl {

struct RenameRule {
  std::string pattern;       // RE2; every match in an FQN is replaced, ^ and $ are its ends
  std::string replacement;   // \1 ... refer to groups
};

struct Selection {
  bool model = true, optimizer = true, extra = true;    // --part
  // Globs over FQNs and extras' paths; one that matches no FQN also over paths of optimizers and model tensors. * matches dots.
  std::vector<std::string> drop;
  std::vector<RenameRule> rename;
  // _orig_mod, _fsdp_wrapped_module and _checkpoint_wrapped_module wherever they are an element of an FQN; `module` at its start,
  // where all model keys start so (DDP's wrapper; a submodule of that name stays).
  bool strip_wrappers = false;
  std::optional<DType> cast;      // floating model tensors
  bool fill_missing = false;      // fields of param groups and schedulers that newer PyTorch wants, with their default
};

// The selected checkpoint shares source, arena and resolver with the old one and holds only the tensors that are left, in the same
// order. Error(refused) when two names become one (both originals named), when nothing is left, when a rule or glob matches nothing,
// or when names are dropped beside an optimizer that records only ids. Error(usage) for a bad pattern.
Checkpoint select(const Checkpoint& checkpoint, const Selection& selection, std::vector<Change>& changes);

bool glob_match(std::string_view glob, std::string_view text);   // * ? [abc] [!a-z]; * matches dots

}  // namespace fsdpctl
