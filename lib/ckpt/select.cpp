#include "lib/ckpt/select.h"

#include <fmt/format.h>

#include "lib/base/shell_quoted.h"
#include "lib/ckpt/name_map.h"
#include "lib/ckpt/renumber.h"
#include "lib/ckpt/tree_edit.h"

namespace fsdpctl {
namespace {

// Floating tensors of the model get another dtype; their pieces stay as they are stored.
void cast_model(Checkpoint& selected, const Parts& parts, const std::vector<TensorIndex>& numbers, DType to, std::vector<Change>& changes) {
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.part != Part::model || leaf.tensor == kNoTensor || numbers[leaf.tensor] == kNoTensor) continue;
    TensorInfo& info = selected.tensors[numbers[leaf.tensor]];
    if (dtype_kind(info.dtype) != DTypeKind::floating || info.dtype == to) continue;
    if (info.dtype == DType::float4_e2m1fn_x2) {
      throw Error(Exit::refused, "packed tensor cannot be cast").key(std::string(info.key)).found_only(std::string(dtype_name(info.dtype)))
          .try_("--drop " + shell_quoted(std::string(info.key)));
    }
    changes.push_back({"cast", std::string(info.key), fmt::format("{} -> {}", dtype_name(info.dtype), dtype_name(to))});
    info.dtype = to;
  }
}

bool takes_everything(const Selection& s) {
  return s.model && s.optimizer && s.extra && s.drop.empty() && s.rename.empty() && !s.strip_wrappers && !s.cast && !s.fill_missing;
}

}  // namespace

Checkpoint select(const Checkpoint& checkpoint, const Selection& selection, std::vector<Change>& changes) {
  if (selection.cast && (dtype_kind(*selection.cast) != DTypeKind::floating || *selection.cast == DType::float4_e2m1fn_x2)) {
    throw Error(Exit::usage, "dtype cannot be a target of --dtype").found_only(std::string(dtype_name(*selection.cast)));
  }
  if (takes_everything(selection)) return checkpoint;
  const Parts parts = find_parts(checkpoint);
  NameMap names(parts, selection);
  std::optional<Value> tree = TreeEditor(checkpoint, parts, selection, names, changes).edit();
  if (!tree) throw Error(Exit::refused, "nothing is left of the checkpoint").try_("--part all");
  if (selection.fill_missing) fill_schedulers(*tree, changes);
  names.list_renames(changes);
  std::vector<TensorIndex> numbers;
  Checkpoint selected = with_tree(checkpoint, std::move(*tree), &numbers);
  if (selection.cast) cast_model(selected, parts, numbers, *selection.cast, changes);
  return selected;
}

}  // namespace fsdpctl
