// What LightRFT really did (tests/data/lightrft): trace.json, and the arrays of trace.safetensors by name.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fsdpctl::train {

class Trace {
 public:
  explicit Trace(int world_size);

  const nlohmann::json& runs() const { return scalars_["runs"]; }
  const nlohmann::json& scaler_sequences() const { return scalars_["scaler_sequences"]; }

  // Empty where there is none: an empty shard's state was not written.
  template <class T>
  std::vector<T> array(const std::string& name) const {
    const std::string_view raw = bytes_of(name);
    std::vector<T> values(raw.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }

 private:
  std::string_view bytes_of(const std::string& name) const;
  nlohmann::json scalars_, arrays_;
  std::string file_;
  size_t data_ = 0;
};

// A number as Python's float.hex() wrote it, or "nan", "inf".
double number(const nlohmann::json& hex);

}  // namespace fsdpctl::train
