#include "tools/size_text.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace fsdpctl {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1.0},
                                                                         {"b", 1.0},
                                                                         {"kib", 1024.0},
                                                                         {"mib", 1048576.0},
                                                                         {"gib", 1073741824.0},
                                                                         {"tib", 1099511627776.0},
                                                                         {"kb", 1e3},
                                                                         {"mb", 1e6},
                                                                         {"gb", 1e9},
                                                                         {"tb", 1e12}}};

}  // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (failure != std::errc()) return std::nullopt;
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  for (const auto& known : kUnits) {
    if (known.first != unit) continue;
    const double bytes = number * known.second;
    if (!(bytes >= 1) || bytes >= 9007199254740992.0) return std::nullopt;  // 2^53: exact as a double up to here
    return static_cast<uint64_t>(std::llround(bytes));
  }
  return std::nullopt;
}

std::string size_text(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  for (const char* unit : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    value /= 1024;
    // The next unit begins where rounding would print "1024.0".
    if (value < 1023.95) return fmt::format("{:.1f} {}", value, unit);
  }
  return fmt::format("{:.1f} EiB", value / 1024);
}

std::string count_text(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string count_text(uint64_t count, std::string_view one, std::string_view many) {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count_text(count), one) : fmt::format("{} {}", count_text(count), many);
}

}  // namespace fsdpctl
