// JSON as a stream of events: no document in memory, however large the text. For headers and indexes that a
// checkpoint brings along.
//
// The text is read in blocks; memory is one block and the longest string. Malformed JSON and events that the
// handler does not expect are Error(damaged) with file and byte offset. Numbers are non-negative integers up to
// 2^63 - 1: headers know no others. Nesting costs one bit per level. Thread-safe: no global state.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/checksum.h"   // Bytes

namespace fsdpctl {

// Fills `out` with the bytes at `offset` of a file.
using ReadAt = std::function<void(uint64_t offset, std::span<std::byte> out)>;

// Receives the events of one text. Every event that a handler does not override is refused.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void begin_object() { unexpected("an object"); }
  virtual void key(std::string& /*text*/) { unexpected("a key"); }       // may be moved from
  virtual void end_object() { unexpected("the end of an object"); }
  virtual void begin_array() { unexpected("an array"); }
  virtual void end_array() { unexpected("the end of an array"); }
  virtual void string(std::string& /*text*/) { unexpected("a string"); } // may be moved from
  virtual void number(uint64_t /*value*/) { unexpected("a number"); }
  virtual void other(std::string_view what) { unexpected(what); }        // null, true, false, -1, 0.5, 1e30

 protected:
  // Throws Error(damaged); read_json adds file and offset.
  [[noreturn]] static void unexpected(std::string_view found);
};

// Reads exactly [begin, end) of a file as one JSON text, white space around it allowed.
void read_json(const ReadAt& read, uint64_t begin, uint64_t end, const std::string& file_name, JsonEvents& events);
void read_json(std::string_view text, const std::string& file_name, JsonEvents& events);

// Appends valid UTF-8 with quotes, escaped as serde_json does.
void append_json_string(std::string_view utf8, std::string& out);

}  // namespace fsdpctl
