#include "lib/train/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

// llm.c's dev/data/data_common.py.
struct KnownHeader {
  uint32_t magic, version;
  DType dtype;
};
constexpr KnownHeader kHeaders[] = {{20240520, 1, DType::uint16}, {20240801, 7, DType::uint32}};
constexpr uint64_t kHeaderBytes = 1024;
constexpr uint64_t kChunk = 1 << 20;          // tokens checked at a time
constexpr uint64_t kEnoughToTell = 64;        // tokens before anything is guessed from them

template <class T>
void widen(std::span<const std::byte> bytes, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = token;
  }
}

void check_header(const KnownHeader& known, uint32_t version, uint32_t count, std::optional<DType> dtype, uint64_t bytes,
                  const std::string& path) {
  if (version != known.version) {
    throw Error(Exit::unsupported, "token file's header is of an unknown version")
        .at(path)
        .saw(std::to_string(known.version), std::to_string(version));
  }
  if (dtype && *dtype != known.dtype) {
    throw Error(Exit::usage, "token file is of another dtype")
        .at(path)
        .saw(std::string(dtype_name(*dtype)), fmt::format("{} in its header", dtype_name(known.dtype)));
  }
  const uint64_t wanted = kHeaderBytes + count * uint64_t{item_size(known.dtype)};
  if (bytes != wanted) {
    throw Error(Exit::damaged, bytes < wanted ? "token file is cut short" : "token file is longer than its header says")
        .at(path)
        .saw(fmt::format("{} bytes", wanted), std::to_string(bytes));
  }
}

}  // namespace

TokenFile TokenFile::open_text(const std::string& path) {
  FileHandle file = FileHandle::open_read(path);
  const uint64_t size = file.size();
  return {std::move(file), DType::uint8, 0, size};
}

TokenFile TokenFile::open_tokens(const std::string& path, std::optional<DType> dtype) {
  if (dtype && *dtype != DType::uint16 && *dtype != DType::uint32) {
    throw Error(Exit::usage, "token ids of this dtype are not supported").at(path).saw("uint16 or uint32", std::string(dtype_name(*dtype)));
  }
  FileHandle file = FileHandle::open_read(path);
  const uint64_t bytes = file.size();
  std::array<uint32_t, 3> header{};
  if (bytes >= sizeof header) file.read(0, std::as_writable_bytes(std::span(header)));
  for (const KnownHeader& known : kHeaders) {
    if (header[0] != known.magic) continue;
    check_header(known, header[1], header[2], dtype, bytes, path);
    return {std::move(file), known.dtype, kHeaderBytes, header[2]};
  }
  if (!dtype) {
    throw Error(Exit::usage, "token file has no header that says how wide its ids are")
        .at(path)
        .try_("\"dtype\": \"uint16\" (or uint32) beside its path");
  }
  if (bytes % item_size(*dtype) != 0) {
    throw Error(Exit::damaged, "token file ends within an id").at(path).saw("a multiple of " + std::to_string(item_size(*dtype)) + " bytes", std::to_string(bytes));
  }
  return {std::move(file), *dtype, 0, bytes / item_size(*dtype)};
}

void TokenFile::read(uint64_t begin, std::span<int64_t> out) const {
  std::vector<std::byte> bytes(out.size() * item_size(dtype_));
  file_.read(begin_ + begin * item_size(dtype_), bytes);
  switch (dtype_) {
    case DType::uint8: widen<uint8_t>(bytes, out); break;
    case DType::uint16: widen<uint16_t>(bytes, out); break;
    default: widen<uint32_t>(bytes, out); break;
  }
}

void TokenFile::check(int64_t vocabulary) const {
  std::vector<int64_t> tokens;
  bool odd_zeros = dtype_ == DType::uint16 && size_ >= kEnoughToTell, any_even = false;
  for (uint64_t begin = 0; begin < size_; begin += tokens.size()) {
    tokens.resize(std::min(kChunk, size_ - begin));
    read(begin, tokens);
    for (uint64_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= vocabulary) {
        throw Error(Exit::usage, "token id is not in the vocabulary")
            .at(path())
            .offset(begin_ + (begin + i) * item_size(dtype_))
            .saw(fmt::format("below {}", vocabulary), std::to_string(tokens[i]))
            .try_(fmt::format("the tokeniser's vocabulary as vocab_size, and the dtype that the ids were written in (read here as {})",
                              dtype_name(dtype_)));
      }
      if ((begin + i) % 2 == 1) odd_zeros &= tokens[i] == 0;
      else any_even |= tokens[i] != 0;
    }
  }
  if (odd_zeros && any_even) {
    throw Error(Exit::usage, "every second token id is zero")
        .at(path())
        .saw("uint16", "what looks like uint32")
        .try_("\"dtype\": \"uint32\"");
  }
}

}  // namespace fsdpctl::train
