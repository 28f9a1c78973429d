#include "lib/comm/communicator.h"

#include <fmt/format.h>

#include <utility>

#include "lib/comm/wire.h"

namespace fsdpctl {
namespace {

void require(bool condition, const char* what, std::string expected, std::string found) {
  if (!condition) throw Error(Exit::usage, what).saw(std::move(expected), std::move(found));
}

std::string text(DType dtype, uint64_t count) { return fmt::format("{} {}", count, dtype_name(dtype)); }

}  // namespace

std::string_view reduction_name(Reduction reduction) {
  constexpr std::string_view kNames[] = {"sum", "max", "min", "bit_or"};
  return kNames[static_cast<size_t>(reduction)];
}

bool can_reduce(DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::float32:
    case DType::float64:
    case DType::bfloat16:
    case DType::float16: return reduction != Reduction::bit_or;
    case DType::int64:
    case DType::int32:
    case DType::uint64:
    case DType::uint8: return true;
    default: return false;
  }
}

void check_all_gather(Elements in, MutableElements out, int size) {
  require(in.dtype == out.dtype && out.count / static_cast<uint64_t>(size) == in.count &&
              out.count % static_cast<uint64_t>(size) == 0,
          "all_gather cannot put its input into its output",
          fmt::format("{} times {}", size, text(in.dtype, in.count)), text(out.dtype, out.count));
}

void check_reduce_scatter(Elements in, MutableElements out, int size) {
  const bool known = in.dtype == DType::float32 || in.dtype == DType::bfloat16 || in.dtype == DType::float16;
  require(known, "reduce_scatter does not sum this dtype", "float32, bfloat16 or float16", std::string(dtype_name(in.dtype)));
  require((out.dtype == in.dtype || out.dtype == DType::float32) && in.count / static_cast<uint64_t>(size) == out.count &&
              in.count % static_cast<uint64_t>(size) == 0,
          "reduce_scatter cannot put its input into its output",
          fmt::format("{} times {}", size, text(out.dtype, out.count)), text(in.dtype, in.count));
}

void check_all_reduce(MutableElements data, Reduction reduction) {
  require(can_reduce(data.dtype, reduction), "all_reduce does not know this combination", "a number of a known kind",
          fmt::format("{} of {}", reduction_name(reduction), dtype_name(data.dtype)));
}

void check_broadcast(int root, int size) {
  require(root >= 0 && root < size, "broadcast comes from a rank that does not exist", fmt::format("0 to {}", size - 1),
          std::to_string(root));
}

void Communicator::agree(const std::optional<Finding>& mine, std::string_view unit) {
  const std::vector<std::string> all = exchange(mine ? WireWriter().finding(*mine).take() : std::string(), unit);
  for (int r = 0; r < size(); ++r) {
    const std::string& bytes = all[static_cast<size_t>(r)];
    if (bytes.empty()) continue;
    Finding finding = WireReader(bytes).finding();
    finding.where.rank = r;
    throw Error(std::move(finding));
  }
}

}  // namespace fsdpctl
