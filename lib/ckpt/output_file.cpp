#include "lib/ckpt/output_file.h"

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kSmallFile = 1 << 20;   // not worth waiting for the disk

bool is_aligned(uint64_t offset, const std::byte* memory) {
  return (offset | reinterpret_cast<uintptr_t>(memory)) % OutputFile::kAlignment == 0;
}

}  // namespace

OutputFile::OutputFile(const std::string& path, std::atomic<DirectMode>& mode)
    : buffered_(FileHandle::open_write(path)), mode_(mode) {
  if (mode_ != DirectMode::refused && buffered_.size() >= kSmallFile) direct_ = FileHandle::open_direct(path, true);
}

void OutputFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  if (direct_ && mode_ != DirectMode::refused && is_aligned(offset, bytes.data())) {
    const size_t whole = bytes.size() / kAlignment * kAlignment;
    if (write_direct(offset, bytes.first(whole))) {
      offset += whole;
      bytes = bytes.subspan(whole);
    }
  }
  buffered_.write(offset, bytes);
}

// File systems that accept O_DIRECT may still refuse the first write; then, and only then, is a failure not the end.
bool OutputFile::write_direct(uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  try {
    direct_->write(offset, bytes);
    mode_ = DirectMode::works;
    return true;
  } catch (const Error&) {
    DirectMode untried = DirectMode::untried;
    if (!mode_.compare_exchange_strong(untried, DirectMode::refused) && untried != DirectMode::refused) throw;
    return false;
  }
}

void OutputFile::close() {
  if (direct_) direct_->close();
  direct_.reset();
  buffered_.close();
}

}  // namespace fsdpctl
