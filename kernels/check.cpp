#include "kernels/check.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string_view>

#include "kernels/kernels.h"
#include "lib/base/finding.h"

namespace fsdpctl::kernels {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 40;

// Reports about one row of one operation's table.
class Row {
 public:
  Row(std::string_view operation, size_t index) : operation_(operation), index_(index) {}

  void require(bool holds, std::string_view what) const {
    if (!holds) {
      throw Error(Exit::failed, "kernel table has an impossible row")
          .at(fmt::format("{}, row {}", operation_, index_)).found_only(std::string(what));
    }
  }
  void type(FloatType type) const { require(type <= FloatType::bfloat16, "an unknown element type"); }
  void count(uint64_t count) const { require(count <= kMostElements, "too many elements"); }
  void pointer(const void* pointer, uint32_t alignment) const {
    require(pointer != nullptr, "a null pointer");
    require(std::bit_cast<uintptr_t>(pointer) % alignment == 0, "a misaligned pointer");
  }
  void index(size_t index, size_t size) const { require(index < size, "an index beyond its array"); }

 private:
  std::string_view operation_;
  size_t index_;
};

void same_size(std::string_view operation, size_t rows, size_t counts) {
  Row(operation, rows).require(counts == 0 || counts == rows, "counts for another number of rows");
}

uint64_t elements(const RestoreEntry& entry, const Row& row) {
  uint64_t count = 1;
  for (const uint64_t size : entry.size) {
    row.require(count == 0 || size <= kMostElements / count, "too many elements");
    count *= size;
  }
  return count;
}

template <class Entry>
void check_update(const Entry& entry, const Row& row) {
  row.type(entry.gradient_type);
  row.pointer(entry.gradient, float_size(entry.gradient_type));
  row.pointer(entry.master, 4);
  if (entry.parameter != nullptr) {
    row.type(entry.parameter_type);
    row.pointer(entry.parameter, float_size(entry.parameter_type));
  }
}

}  // namespace

void check(std::span<const CastEntry> table, std::span<const CastCounts> counts) {
  same_size("cast", table.size(), counts.size());
  for (size_t i = 0; i < table.size(); ++i) {
    const CastEntry& entry = table[i];
    const Row row("cast", i);
    row.count(entry.count);
    if (entry.count == 0) continue;
    row.type(entry.source_type);
    row.type(entry.target_type);
    row.pointer(entry.source, float_size(entry.source_type));
    row.pointer(entry.target, float_size(entry.target_type));
  }
}

void check(std::span<const RestoreEntry> table, std::span<const CastCounts> counts) {
  same_size("restore", table.size(), counts.size());
  for (size_t i = 0; i < table.size(); ++i) {
    const RestoreEntry& entry = table[i];
    const Row row("restore", i);
    if (elements(entry, row) == 0) continue;
    row.type(entry.source_type);
    row.type(entry.target_type);
    row.pointer(entry.source, 1);
    row.pointer(entry.target, float_size(entry.target_type));
  }
}

void check(std::span<const GradientEntry> table, std::span<const GradientNorm> results) {
  uint64_t total = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const GradientEntry& entry = table[i];
    const Row row("unscale_norm", i);
    row.count(entry.count);
    row.count(total += entry.count);
    if (entry.count == 0) continue;
    row.type(entry.type);
    row.pointer(entry.gradient, float_size(entry.type));
    if (entry.unscaled != nullptr) row.pointer(entry.unscaled, 4);
    row.index(entry.result, results.size());
  }
}

void check(std::span<const AdamEntry> table, std::span<const AdamScalars> scalars) {
  for (size_t i = 0; i < table.size(); ++i) {
    const AdamEntry& entry = table[i];
    const Row row("adam", i);
    row.count(entry.count);
    if (entry.count == 0) continue;
    check_update(entry, row);
    row.pointer(entry.moment1, 4);
    row.pointer(entry.moment2, 4);
    row.index(entry.scalars, scalars.size());
  }
}

void check(std::span<const SgdEntry> table, std::span<const SgdScalars> scalars) {
  for (size_t i = 0; i < table.size(); ++i) {
    const SgdEntry& entry = table[i];
    const Row row("sgd", i);
    row.count(entry.count);
    if (entry.count == 0) continue;
    check_update(entry, row);
    row.index(entry.scalars, scalars.size());
    if (scalars[entry.scalars].momentum != 0.0f) row.pointer(entry.momentum, 4);
  }
}

void check(std::span<const CopyEntry> table) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].bytes == 0) continue;
    const Row row("copy", i);
    row.pointer(table[i].source, 1);
    row.pointer(table[i].target, 1);
  }
}

}  // namespace fsdpctl::kernels
