// Any bytes as a .safetensors file and as its index: read or refused. What was read without a finding is written again as the same.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "formats/safetensors_header.h"
#include "formats/safetensors_index.h"
#include "formats/sharding_info.h"
#include "lib/base/box.h"

using namespace fsdpctl;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

ReadAt reader(std::string_view bytes) {
  return [bytes](uint64_t at, std::span<std::byte> out) {
    require(at <= bytes.size() && out.size() <= bytes.size() - at);
    std::memcpy(out.data(), bytes.data() + at, out.size());
  };
}

bool same(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && equal(a.shape, b.shape) && a.begin == b.begin && a.length == b.length;
}

// Whatever an entry says must be inside the file.
void check(const SafetensorsHeader& header, uint64_t size) {
  require(header.data_offset <= size);
  for (const SafetensorsEntry& e : header.entries) {
    require(e.length <= size - header.data_offset && e.begin <= size - header.data_offset - e.length);
    require(item_size(e.dtype) * static_cast<uint64_t>(*checked_count(e.shape)) == e.length);
  }
}

void check_writing(const SafetensorsHeader& header, uint64_t data_size) {
  std::string again;
  write_safetensors_header(header.metadata, header.entries, again);
  again.append(data_size, '\0');
  Arena arena;
  FindingSink strict;
  const SafetensorsHeader back = read_safetensors_header(reader(again), again.size(), "again", arena, strict);
  require(strict.all().empty() && back.metadata == header.metadata && back.entries.size() == header.entries.size());
  for (size_t i = 0; i < back.entries.size(); ++i) require(same(back.entries[i], header.entries[i]));
}

void read_file(std::string_view bytes) {
  Arena arena;
  FindingSink sink(false);
  const SafetensorsHeader header = read_safetensors_header(reader(bytes), bytes.size(), "x.safetensors", arena, sink);
  check(header, bytes.size());
  if (sink.all().empty()) check_writing(header, bytes.size() - header.data_offset);
  read_sharding_info(header, "x.safetensors", arena);
}

void read_index(std::string_view bytes) {
  Arena arena;
  const SafetensorsIndex index = read_safetensors_index(reader(bytes), bytes.size(), "index.json", arena);
  for (const IndexedTensor& t : index.tensors) require(t.file < index.files.size());
  std::string again;
  write_safetensors_index(index, again);
  const SafetensorsIndex back = read_safetensors_index(reader(again), again.size(), "again", arena);
  // An index that says no size gets one.
  require(back.files == index.files && back.total_size == index.total_size.value_or(0) && back.metadata == index.metadata &&
          back.tensors.size() == index.tensors.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const auto& read : {read_file, read_index}) {
    try {
      read(bytes);
    } catch (const Error&) {
    }
  }
  return 0;
}
