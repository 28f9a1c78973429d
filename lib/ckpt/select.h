// Select: pure functions from checkpoint to checkpoint. Each lists what it did as Changes.
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
  std::string pattern;       // RE2, matched anywhere in an FQN
  std::string replacement;   // \1 ... refer to groups
};

struct Selection {
  bool model = true, optimizer = true, extra = true;    // --part
  std::vector<std::string> drop;                        // globs over FQNs and extras' paths; * matches dots
  std::vector<RenameRule> rename;
  bool strip_wrappers = false;    // module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module.
  std::optional<DType> cast;      // floating model tensors
  bool fill_missing = false;      // param-group fields that newer PyTorch wants, with their documented default
};

// The selected checkpoint shares source and arena with the old one. Names change everywhere: model keys, optimizer
// state keys, group lists. Error(refused) when two names collide (both originals named), when nothing is left,
// or when a rule or glob matches nothing.
Checkpoint select(const Checkpoint& checkpoint, const Selection& selection, std::vector<Change>& changes);

bool glob_match(std::string_view glob, std::string_view text);   // * ? [abc]; * matches dots

}  // namespace fsdpctl
