// OutputFile: one file that is being written, past the page cache where that is possible.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <string>

#include "lib/base/file.h"

namespace fsdpctl {

// Whether O_DIRECT works where the output lies; found out by the first write. Shared by all threads.
enum class DirectMode : int { refused, untried, works };

class OutputFile {
 public:
  static constexpr uint64_t kAlignment = 4096;   // of offsets, sizes and memory

  // The file exists and has its size. Not thread-safe; several OutputFiles of one file may be used side by side.
  OutputFile(const std::string& path, std::atomic<DirectMode>& mode);

  void write(uint64_t offset, std::span<const std::byte> bytes);
  void write_buffered(uint64_t offset, std::span<const std::byte> bytes) { buffered_.write(offset, bytes); }
  void read(uint64_t offset, std::span<std::byte> bytes) const { buffered_.read(offset, bytes); }
  void sync() { buffered_.sync(); }
  void close();

 private:
  bool write_direct(uint64_t offset, std::span<const std::byte> bytes);

  FileHandle buffered_;
  std::optional<FileHandle> direct_;
  std::atomic<DirectMode>& mode_;
};

}  // namespace fsdpctl
