// Files of tokens to train on: text, a token for each byte, and files of token ids as tokenisers' scripts write them.
// Nothing is held in memory: tokens are read where they are asked for. Thread-safe to read.
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
  // differs, Error(damaged) where the file's length does not fit.
  static TokenFile open_tokens(const std::string& path, std::optional<DType> dtype);

  const std::string& path() const { return file_.path(); }
  uint64_t size() const { return size_; }                            // tokens
  DType dtype() const { return dtype_; }
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
