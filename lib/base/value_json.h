// Values as JSON: tagged, so that nothing is lost, and canonical, so that equal values give equal text.
//
// JSON's own null, true, false, strings, arrays (lists) and numbers (a real always has a point or an exponent) stand for
// themselves; everything else is an object with one tag, as in the fixtures' expected.json:
//
//   {"int": "decimal"}                 from 2^53 on           {"float": "nan" | "inf" | "-inf"}
//   {"complex": [re, im]}                                     {"str_surrogatepass_hex": "hex"}   no valid UTF-8
//   {"bytes": "hex"}, {"bytearray": "hex"}                    {"torch": "torch.float32"}         dtype, device, layout ...
//   {"tuple": [...]}, {"torch.Size": [...]}                   {"numpy_scalar": [dtype, hex]}
//   {"set": [...]}, {"frozenset": [...]}                      {"numpy_array": [dtype, shape, sha256 of the row-major bytes]}
//   {"dict": [[k, v], ...]}, {"counter": [[k, v], ...]}       {"object": "module.Class"}
//   {"tensor": n}, {"storage": [n, class]}, {"global": [module, name]}
//
// The forms:
//   shown      exactly those tags: inspect --extra, expected.json. Sets are sorted as the fixtures' generator sorts them.
//   canonical  as shown, with what it leaves out: {"float_bits": "hex"} for a NaN that is not the usual one, "ordered_dict",
//              "default_dict", "attributes" of a mapping, objects as in `stored`. For fingerprints and comparisons.
//   stored     reads back to an equal Value: safetensors __metadata__, HDF5. As canonical, but sets keep their order and
//              {"torch.dtype": text}, {"torch.device": text}, {"torch.layout": ...}, {"torch.memory_format": ...}, {"torch.qscheme": ...}
//              {"numpy_array": [dtype, shape, "C" | "F", hex]}
//              {"tensor": n, "parameter": true, "requires_grad": true, "attributes": v}     what is not so is left out
//              {"object": ["reduce" | "newobj", callable, args, kwargs, [items], [[k, v], ...]]}, with state as a seventh
//
// Pure; thread-safe. Values nest at most 1000 deep (the pickle reader's limit).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lib/base/value.h"

namespace fsdpctl {

enum class JsonForm { shown, canonical, stored };

std::string value_to_json(const Value& value, JsonForm form);
void append_value_json(std::string& out, const Value& value, JsonForm form);

// The same text in pieces of some 64 KiB (a string, or the members of a set, in one), so that it need not be in memory.
void value_json_in_pieces(const Value& value, JsonForm form, const std::function<void(std::string_view piece)>& receive);
uint64_t value_json_size(const Value& value, JsonForm form);   // bytes

// Inverse of `stored`. Error(damaged), with the offset, on anything else. Tensor numbers are returned as written:
// the caller checks them.
Value value_from_json(std::string_view text, const std::string& file_name);

}  // namespace fsdpctl
