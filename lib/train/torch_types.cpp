#include "lib/train/torch_types.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <string>
#include <utility>

#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 9> kTypes = {{
    {DType::float64, at::kDouble},
    {DType::float32, at::kFloat},
    {DType::float16, at::kHalf},
    {DType::bfloat16, at::kBFloat16},
    {DType::int64, at::kLong},
    {DType::int32, at::kInt},
    {DType::int16, at::kShort},
    {DType::uint8, at::kByte},
    {DType::boolean, at::kBool},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == dtype) return theirs;
  }
  throw Error(Exit::unsupported, "nothing computes in this dtype").found_only(std::string(dtype_name(dtype)));
}

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == type) return ours;
  }
  throw Error(Exit::unsupported, "nothing computes in this dtype").found_only(c10::toString(type));
}

at::Tensor tensor_over(void* memory, uint64_t count, DType dtype) {
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(dtype));
  if (count == 0) return at::empty({0}, options);
  return at::from_blob(memory, {static_cast<int64_t>(count)}, options);
}

}  // namespace fsdpctl::train
