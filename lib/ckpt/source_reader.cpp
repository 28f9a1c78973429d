#include "lib/ckpt/source_reader.h"

#include <algorithm>

namespace fsdpctl {
namespace {

constexpr uint64_t kFirstRead = 16 << 10;
constexpr uint64_t kLargestWindow = 256 << 10;
constexpr uint64_t kMostWindows = 64;

}  // namespace

SourceReader::SourceReader(const Source& source, uint64_t memory) : source_(source) {
  // As many windows as files may be read side by side, but none too small to be of use.
  const uint64_t files = std::clamp<uint64_t>(source.file_count(), 1, kMostWindows);
  capacity_ = std::clamp(memory / files, SourceReader::kSmall, kLargestWindow);
  windows_.resize(std::clamp<uint64_t>(memory / capacity_, 1, std::max<uint64_t>(files, 4)));
}

void SourceReader::read(SourceIndex file, uint64_t offset, std::span<std::byte> out) {
  source_.read(file, offset, out);
  bytes_read_ += out.size();
}

const std::byte* SourceReader::view(SourceIndex file, uint64_t offset, uint64_t length) {
  const auto holds = [&](const Window& w) { return w.file == file && w.begin <= offset && offset + length <= w.end; };
  if (!holds(windows_[latest_])) {
    const auto found = std::find_if(windows_.begin(), windows_.end(), holds);
    latest_ = static_cast<size_t>(found - windows_.begin());
  }
  if (latest_ == windows_.size()) {
    Window& w = window_for(file, offset);
    latest_ = static_cast<size_t>(&w - windows_.data());
    const uint64_t size = source_.file(file).size;
    const uint64_t wanted = std::max(length, w.ahead);
    const uint64_t bytes = offset < size ? std::max(length, std::min(wanted, size - offset)) : length;
    w.begin = w.end = 0;   // holds nothing if the read fails
    read(file, offset, {w.memory, bytes});
    w.file = file;
    w.begin = offset;
    w.end = offset + bytes;
  }
  Window& w = windows_[latest_];
  w.used = ++clock_;
  return w.memory + (offset - w.begin);
}

SourceReader::Window& SourceReader::window_for(SourceIndex file, uint64_t offset) {
  if (!memory_) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(windows_.size() * capacity_);
    for (size_t i = 0; i < windows_.size(); ++i) windows_[i].memory = memory_.get() + i * capacity_;
  }
  for (Window& w : windows_) {
    if (w.file == file && w.begin <= offset && offset < w.end + w.ahead) {
      w.ahead = std::min(2 * w.ahead, capacity_);
      return w;
    }
  }
  Window& oldest = *std::min_element(windows_.begin(), windows_.end(),
                                     [](const Window& a, const Window& b) { return a.used < b.used; });
  oldest.ahead = std::min(kFirstRead, capacity_);
  return oldest;
}

}  // namespace fsdpctl
