// Element types of HDF5 datasets, and identifiers of the HDF5 library that close themselves.
//
// Only formats/hdf5*.cpp include the library's header; its hid_t is an int64_t. The library is not thread-safe: lock
// hdf5_mutex() around every use of it in this process.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/dtype.h"

namespace fsdpctl {

std::mutex& hdf5_mutex();

// Owns an identifier; `close` is the library's function for its kind. Negative identifiers own nothing.
class Hdf5Id {
 public:
  using Close = int (*)(int64_t);
  Hdf5Id() = default;
  Hdf5Id(int64_t id, Close close) : id_(id), close_(close) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Id() {
    if (id_ >= 0) close_(id_);
  }
  explicit operator bool() const { return id_ >= 0; }
  int64_t get() const { return id_; }

 private:
  int64_t id_ = -1;
  Close close_ = nullptr;
};

// The type of a dataset that holds a tensor of this dtype, little-endian.
Hdf5Id hdf5_type(DType dtype);
// The type does not say what the dtype is: the dataset gets the attribute `torch_dtype`.
bool hdf5_needs_attribute(DType dtype);
inline constexpr const char* kTorchDtype = "torch_dtype";

struct Hdf5Element {
  enum class Kind : uint8_t { number, string, unsupported };
  Kind kind = Kind::unsupported;
  DType dtype = DType::uint8;
  bool swap = false;             // big-endian
  bool variable = false;         // strings of variable length
  std::string text;              // unsupported: what it is
};
// What a type means in PyTorch's terms, without the attribute.
Hdf5Element hdf5_element(int64_t type);
// With the attribute: `dtype` of the same size where the element is an unsigned integer; false where they do not fit.
bool apply_torch_dtype(std::string_view name, Hdf5Element& element);

}  // namespace fsdpctl
