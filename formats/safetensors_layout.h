// One .safetensors file to be written: the header, then boxes of tensors in the order of the reference implementation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/safetensors_header.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

// Views must outlive the layout, or be owned by `owner`.
struct SafetensorsBox {
  TensorIndex tensor = kNoTensor;
  std::string_view name;
  DType dtype = DType::float32;
  Box box;                 // its size is the shape in the file
};

// `boxes` in the order of the header. Error(refused) when the header would be longer than readers accept.
std::unique_ptr<FileLayout> safetensors_layout(std::string path, int rank, SafetensorsMetadata metadata,
                                               const std::vector<SafetensorsBox>& boxes, std::shared_ptr<const void> owner);

// What a .safetensors file cannot hold, by name: dtypes without a tag, and 0-d float4.
void check_safetensors_dtypes(const struct Checkpoint& checkpoint, FindingSink& sink);

}  // namespace fsdpctl
