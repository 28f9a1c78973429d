#include "lib/train/state_dict.h"

#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

const Value& find(const Value& mapping, std::string_view key, const std::string& path) {
  const Value* value = mapping.is_mapping() ? mapping.find(key) : nullptr;
  if (value == nullptr) throw Error(Exit::damaged, "an optimizer state dict lacks a part").key(join(path, key));
  return *value;
}

const char* kind_text(Kind kind) {
  switch (kind) {
    case Kind::integer: return "an integer";
    case Kind::string: return "a text";
    case Kind::list: return "a list";
    default: return "another kind of value";
  }
}

[[noreturn]] void wrong_kind(std::string_view key, const std::string& path, const char* expected) {
  throw Error(Exit::damaged, "a part of an optimizer state dict is of the wrong kind").key(join(path, key)).saw(expected, "something else");
}

}  // namespace

uint64_t StateTensor::count() const {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

Value StateDict::add(StateTensor tensor) {
  TensorLeaf leaf;
  leaf.index = static_cast<TensorIndex>(tensors.size());
  tensors.push_back(std::move(tensor));
  return Value::tensor(leaf);
}

const Value& require(const Value& mapping, std::string_view key, Kind kind, const std::string& path) {
  const Value& value = find(mapping, key, path);
  if (!value.is(kind)) wrong_kind(key, path, kind_text(kind));
  return value;
}

const Value& require_mapping(const Value& mapping, std::string_view key, const std::string& path) {
  const Value& value = find(mapping, key, path);
  if (!value.is_mapping()) wrong_kind(key, path, "a mapping");
  return value;
}

double require_number(const Value& mapping, std::string_view key, const std::string& path) {
  const Value& value = find(mapping, key, path);
  if (value.is(Kind::integer)) return static_cast<double>(value.as_integer());
  if (!value.is(Kind::real)) wrong_kind(key, path, "a number");
  return value.as_real();
}

}  // namespace fsdpctl::train
