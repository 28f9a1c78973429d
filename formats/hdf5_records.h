// Records on the pipe between the process that runs HDF5's library and the one that uses what it found. The reader
// believes nothing: a crashed or captured child can only make it throw.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "lib/base/finding.h"

namespace fsdpctl {

class RecordWriter {
 public:
  void number(uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  // The record with its length in front; the writer is empty again.
  std::string take() {
    const uint64_t size = bytes_.size();
    std::string record(reinterpret_cast<const char*>(&size), sizeof size);
    record += bytes_;
    bytes_.clear();
    return record;
  }

 private:
  std::string bytes_;
};

class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : bytes_(bytes) {}
  uint64_t number() {
    uint64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  // A number below `end`.
  uint64_t number(uint64_t end) {
    const uint64_t value = number();
    if (value >= end) broken();
    return value;
  }
  std::string text() { return std::string(take(number())); }
  bool at_end() const { return bytes_.empty(); }

 private:
  [[noreturn]] static void broken() { throw Error(Exit::damaged, "HDF5 library gave senseless answers"); }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size()) broken();
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::string_view bytes_;
};

// Cuts a stream into records.
class RecordStream {
 public:
  static constexpr uint64_t kMaxRecord = 1ull << 30;
  // Calls visit(RecordReader) for each record that is whole now.
  template <class Visit>
  void add(std::string_view bytes, const Visit& visit) {
    pending_ += bytes;
    size_t done = 0;
    uint64_t size = 0;
    while (pending_.size() - done >= sizeof size) {
      std::memcpy(&size, pending_.data() + done, sizeof size);
      if (size > kMaxRecord) throw Error(Exit::damaged, "HDF5 library gave senseless answers");
      if (pending_.size() - done - sizeof size < size) break;
      visit(RecordReader(std::string_view(pending_).substr(done + sizeof size, size)));
      done += sizeof size + size;
    }
    pending_.erase(0, done);
  }

 private:
  std::string pending_;
};

}  // namespace fsdpctl
