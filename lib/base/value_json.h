// Values as JSON: tagged, so that nothing is lost, and canonical, so that equal values give equal text.
//
// The tags are those of the fixtures' expected.json (gen/README.md): {"tuple": [...]}, {"bytes": "hex"}, {"int": "decimal"} from
// 2^53 on, {"float": "nan"}, {"complex": [re, im]}, {"set": [...]}, {"dict": [[k, v], ...]}, {"object": "module.Class"}, {"torch":
// "torch.float32"}, {"torch.Size": [..]}, {"numpy_scalar": [dtype, hex]}, {"numpy_array": [dtype, shape, sha256]} ...
//   shown      exactly those tags: inspect --extra, expected.json. Objects show their class only.
//   canonical  as shown, but objects, arrays and attributes carry everything: fingerprints.
//   stored     reads back to an equal Value: safetensors __metadata__, HDF5. Tensors are {"tensor": n, ...}.
#pragma once

#include <string>
#include <string_view>

#include "lib/base/checksum.h"
#include "lib/base/value.h"

namespace fsdpctl {

enum class JsonForm { shown, canonical, stored };

std::string value_to_json(const Value& value, JsonForm form);
// Inverse of `stored`. Error(damaged) on anything else; limits as for pickles. Tensor numbers are returned as written.
Value value_from_json(std::string_view text, const std::string& file_name);

}  // namespace fsdpctl
