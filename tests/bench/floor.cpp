// The floor under `verify --data`: threads that pread every byte of a directory's files and, with `crc`, compute the
// checksums that verify computes (CRC-64 and CRC-32), nothing else. Prints seconds.
//
//     fsdpctl_floor read|crc DIRECTORY THREADS
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/base/file.h"

int main(int argc, char** argv) {
  using namespace fsdpctl;
  if (argc != 4) return 2;
  const bool crc = std::strcmp(argv[1], "crc") == 0;
  constexpr uint64_t kBlock = 1 << 20;
  struct Range {
    const FileHandle* file;
    uint64_t offset, length;
  };
  std::vector<std::unique_ptr<FileHandle>> files;
  std::vector<Range> ranges;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
    if (!entry.is_regular_file()) continue;
    files.push_back(std::make_unique<FileHandle>(FileHandle::open_read(entry.path().string())));
    const uint64_t size = files.back()->size();
    for (uint64_t at = 0; at < size; at += kBlock) ranges.push_back({files.back().get(), at, std::min(kBlock, size - at)});
  }
  const auto start = std::chrono::steady_clock::now();
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> sink{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < std::atoi(argv[3]); ++t) {
    threads.emplace_back([&] {
      std::vector<std::byte> block(kBlock);
      for (size_t i; (i = next.fetch_add(1)) < ranges.size();) {
        const auto bytes = std::span(block).first(ranges[i].length);
        ranges[i].file->read(ranges[i].offset, bytes);
        if (crc) sink ^= crc64_raw(bytes) ^ crc32(bytes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return sink.load() == 1 ? 1 : 0;   // keeps the sums alive
}
