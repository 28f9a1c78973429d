#include "lib/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace fsdpctl {

bool is_utf8(std::string_view text, bool allow_surrogates) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = p + text.size();
  while (p < end) {
    uint64_t eight = 0;
    if (end - p >= 8 && (std::memcpy(&eight, p, 8), (eight & 0x8080808080808080) == 0)) {
      p += 8;
      if (end - p < 8 && text.size() >= 16 && (std::memcpy(&eight, end - 8, 8), (eight & 0x8080808080808080) == 0)) return true;
      continue;
    }
    if (*p < 0x80) {
      ++p;
      continue;
    }
    const int more = *p >= 0xF0 ? 3 : *p >= 0xE0 ? 2 : 1;
    if (*p < 0xC2 || *p > 0xF4 || end - p <= more) return false;
    uint32_t code = *p & (0x3Fu >> more);
    for (int i = 1; i <= more; ++i) {
      if ((p[i] & 0xC0) != 0x80) return false;
      code = code << 6 | (p[i] & 0x3Fu);
    }
    if (more == 2 && code < 0x800) return false;
    if (more == 3 && (code < 0x10000 || code > 0x10FFFF)) return false;
    if (!allow_surrogates && code >= 0xD800 && code <= 0xDFFF) return false;
    p += more + 1;
  }
  return true;
}

}  // namespace fsdpctl
