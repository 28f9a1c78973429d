// Names of torch's storage classes, and which dtypes are rebuilt from which. Source: torch 2.13 `torch/storage.py`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lib/base/dtype.h"

namespace fsdpctl {

struct StorageClass {
  DType dtype = DType::uint8;
  bool untyped = false;        // counts bytes; the dtype stands elsewhere
};
// "torch", "FloatStorage" -> float32; also the homes of older releases ("torch.cuda", "torch.storage"). nullopt: no storage.
std::optional<StorageClass> storage_class(std::string_view module, std::string_view name);

// "FloatStorage" for the dtypes that torch.save writes with _rebuild_tensor_v2; empty for the others, which go through
// UntypedStorage and _rebuild_tensor_v3. The list is frozen: every later dtype is of the second kind.
std::string_view typed_storage_name(DType dtype);

}  // namespace fsdpctl
