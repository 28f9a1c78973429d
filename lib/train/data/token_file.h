// Files of tokens to train on: text, a token for each byte, and files of token ids as tokenisers' scripts write them.
// Thread-safe to read.
//
// Nothing is held in memory: the tokens asked for are read from the system's page cache at their place, one call for each
// window, whatever the file's size. That is what a memory map would give, but for one thing: a file that another program cuts
// short, or a disk that fails, is an Error(failed) that names the file, and not a signal that ends the process.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lib/base/dtype.h"
#include "lib/base/file.h"

namespace fsdpctl::train {

class TokenFile {
 public:
  // A byte is a token of the same number.
  static TokenFile open_text(const std::string& path);

  // Ids as uint16 or uint32, little-endian. Recognises the header of llm.c (github.com/karpathy/llm.c: 256 numbers of 32 bits),
  // which says how many follow and how wide they are; without one, `dtype` must. Error(usage) where it is missing or
  // differs, Error(damaged) where the file's length does not fit, Error(unsupported) for another version of the header.
  static TokenFile open_tokens(const std::string& path, std::optional<DType> dtype);

  const std::string& path() const { return file_.path(); }
  uint64_t size() const { return size_; }                            // tokens
  DType dtype() const { return dtype_; }
  // Tokens [begin, begin + out.size()), which must be in the file. Error(failed) where they are not there any more.
  void read(uint64_t begin, std::span<int64_t> out) const;

  // Reads all of it. Error(usage), with the place, for an id that is not below `vocabulary`, and where the ids look like those of
  // a wider dtype.
  void check(int64_t vocabulary) const;

 private:
  TokenFile(FileHandle file, DType dtype, uint64_t begin, uint64_t size)
      : file_(std::move(file)), dtype_(dtype), begin_(begin), size_(size) {}

  FileHandle file_;
  DType dtype_;
  uint64_t begin_;     // bytes before the first token
  uint64_t size_;
};

}  // namespace fsdpctl::train
