#include "lib/ckpt/diff_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/base/element.h"
#include "lib/ckpt/gather.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kBlockElements = 256 * 1024;

struct Tolerance {
  double rtol, atol;
  bool exact() const { return rtol == 0 && atol == 0; }
};

// Adds one pair of elements. Bit-equal elements never come here.
void add_pair(DType da, const std::byte* pa, DType db, const std::byte* pb, Tolerance tolerance, uint64_t index,
              uint64_t& first, Difference& out) {
  bool differs = true;
  if (is_numeric(da) && is_numeric(db)) {
    const auto [ar, ai] = element_parts(da, pa);
    const auto [br, bi] = element_parts(db, pb);
    const double abs = ai == 0 && bi == 0 ? std::fabs(ar - br) : std::hypot(ar - br, ai - bi);
    const double size = ai == 0 && bi == 0 ? std::fabs(br) : std::hypot(br, bi);
    const bool both_nan = (std::isnan(ar) || std::isnan(ai)) && (std::isnan(br) || std::isnan(bi));
    const bool same_value = ar == br && ai == bi;   // 0.0 and -0.0, equal infinities, one value in two dtypes
    if (std::isfinite(abs)) {
      out.max_abs = std::max(out.max_abs, abs);
      if (size > 0) out.max_rel = std::max(out.max_rel, abs / size);
    }
    // Bit equality is asked for within one dtype; across dtypes equal values are equal.
    if (tolerance.exact()) {
      differs = da == db || !(same_value || both_nan);
    } else {
      differs = !(same_value || both_nan || abs <= tolerance.atol + tolerance.rtol * size);
    }
  }
  if (!differs) return;
  if (out.different++ == 0) first = index;
}

std::vector<int64_t> unflatten(Dims shape, uint64_t index) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = static_cast<int64_t>(index % static_cast<uint64_t>(shape[d]));
    index /= static_cast<uint64_t>(shape[d]);
  }
  return at;
}

}  // namespace

void compare_values(const Checkpoint& a, TensorIndex ta, const Checkpoint& b, TensorIndex tb, const DiffOptions& options,
                    Difference& out) {
  const TensorInfo &ia = a.tensors[ta], &ib = b.tensors[tb];
  const uint64_t n = count(ia.shape);
  const size_t sa = item_size(ia.dtype), sb = item_size(ib.dtype);
  out.elements = n;
  Arena arena;
  const Box box = whole_box(arena, ia.shape);
  Gatherer ga(a, options.engine.max_memory / 4, options.engine.cancel);
  Gatherer gb(b, options.engine.max_memory / 4, options.engine.cancel);
  std::vector<std::byte> ba(std::min(n, kBlockElements) * sa), bb(std::min(n, kBlockElements) * sb);
  const Tolerance tolerance{options.rtol, options.atol};
  uint64_t first = 0;
  for (uint64_t done = 0; done < n; done += kBlockElements) {
    const uint64_t m = std::min(kBlockElements, n - done);
    const std::span<std::byte> ra = std::span(ba).first(m * sa), rb = std::span(bb).first(m * sb);
    ga.read(ta, box, done * sa, (done + m) * sa, ra);
    gb.read(tb, box, done * sb, (done + m) * sb, rb);
    if (ia.dtype == ib.dtype && std::memcmp(ra.data(), rb.data(), ra.size()) == 0) continue;
    for (uint64_t i = 0; i < m; ++i) {
      const std::byte *pa = ra.data() + i * sa, *pb = rb.data() + i * sb;
      if (ia.dtype == ib.dtype && std::memcmp(pa, pb, sa) == 0) continue;
      add_pair(ia.dtype, pa, ib.dtype, pb, tolerance, done + i, first, out);
    }
  }
  if (out.different > 0) out.first_index = unflatten(ia.shape, first);
}

}  // namespace fsdpctl
