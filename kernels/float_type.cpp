#include "kernels/kernels.h"
#include "lib/base/finding.h"

namespace fsdpctl::kernels {

FloatType float_type(DType dtype) {
  switch (dtype) {
    case DType::float32: return FloatType::float32;
    case DType::float16: return FloatType::float16;
    case DType::bfloat16: return FloatType::bfloat16;
    default:
      throw Error(Exit::unsupported, "training state of this dtype is not supported")
          .saw("float32, float16 or bfloat16", std::string(dtype_name(dtype)));
  }
}

uint32_t float_size(FloatType type) { return type == FloatType::float32 ? 4 : 2; }

}  // namespace fsdpctl::kernels
