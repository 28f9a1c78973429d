// Any bytes as an archive, and as a single-tensor item: refused, or every piece lies inside them, and both ways of
// reading an item agree.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "formats/codec/torch_archive_reader.h"

namespace fsdpctl {
namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

class Input {
 public:
  explicit Input(Bytes bytes) : bytes_(bytes) {
    read_ = [this](uint64_t offset, std::span<std::byte> out) {
      if (offset > bytes_.size() || out.size() > bytes_.size() - offset) fail("read outside the archive");
      if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
    };
  }

  void read_archive() const {
    Checkpoint checkpoint;
    FindingSink sink;
    try {
      checkpoint.tree = read_torch_archive(checkpoint, {read_, bytes_.size(), name_, 0, 0}, 0, sink);
      checkpoint.finish(sink);
    } catch (const Error&) {
      return;
    }
    for (const Piece& p : checkpoint.pieces) {
      if (p.offset > bytes_.size() || p.length > bytes_.size() - p.offset) fail("piece outside the archive");
      if (p.encoding == Encoding::raw && p.length < count(p.box) && p.strides.empty()) fail("piece shorter than its box");
    }
  }

  std::optional<TensorItem> read_item(bool ends) const {
    const Bytes nothing;
    try {
      return read_tensor_item(ends ? bytes_ : nothing, ends ? bytes_ : nothing, bytes_.size(), read_, name_, 0);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

 private:
  Bytes bytes_;
  ZipRead read_;
  std::string name_ = "fuzz";
};

bool same(const TensorItem& a, const TensorItem& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides && a.data_offset == b.data_offset &&
         a.data_length == b.data_length && a.swap == b.swap && a.conj == b.conj && a.neg == b.neg &&
         a.has_crc32 == b.has_crc32 && a.crc32 == b.crc32;
}

}  // namespace
}  // namespace fsdpctl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdpctl;
  const Input input(std::as_bytes(std::span(data, size)));
  input.read_archive();
  const auto fast = input.read_item(true), slow = input.read_item(false);
  if (fast.has_value() != slow.has_value()) fail("one way of reading an item refuses what the other takes");
  if (fast && !same(*fast, *slow)) fail("two ways of reading an item differ");
  return 0;
}
