#include "formats/codec/torch_storage_class.h"

namespace fsdpctl {
namespace {

struct Row {
  std::string_view name;
  DType dtype;
};

constexpr Row kTyped[] = {
    {"FloatStorage", DType::float32},          {"BFloat16Storage", DType::bfloat16},
    {"HalfStorage", DType::float16},           {"DoubleStorage", DType::float64},
    {"LongStorage", DType::int64},             {"IntStorage", DType::int32},
    {"ShortStorage", DType::int16},            {"CharStorage", DType::int8},
    {"ByteStorage", DType::uint8},             {"BoolStorage", DType::boolean},
    {"ComplexFloatStorage", DType::complex64}, {"ComplexDoubleStorage", DType::complex128},
    {"QInt8Storage", DType::qint8},            {"QUInt8Storage", DType::quint8},
    {"QInt32Storage", DType::qint32},          {"QUInt4x2Storage", DType::quint4x2},
    {"QUInt2x4Storage", DType::quint2x4},
};

}  // namespace

std::optional<StorageClass> storage_class(std::string_view module, std::string_view name) {
  if (module != "torch" && module != "torch.storage" && module != "torch.cuda") return std::nullopt;
  if (name == "UntypedStorage" || name == "_UntypedStorage") return StorageClass{DType::uint8, true};
  for (const Row& row : kTyped) {
    if (row.name == name) return StorageClass{row.dtype, false};
  }
  return std::nullopt;
}

std::string_view typed_storage_name(DType dtype) {
  for (const Row& row : kTyped) {
    if (row.dtype == dtype) return row.name;
  }
  return {};
}

}  // namespace fsdpctl
