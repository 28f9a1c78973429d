#include "formats/codec/big_integer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <vector>

namespace fsdpctl {
namespace {

using Limbs = std::vector<uint32_t>;   // magnitude, least significant first

constexpr uint32_t kBillion = 1'000'000'000;

void negate(std::span<uint8_t> bytes) {
  unsigned carry = 1;
  for (uint8_t& b : bytes) {
    carry += static_cast<uint8_t>(~b);
    b = static_cast<uint8_t>(carry);
    carry >>= 8;
  }
}

uint32_t divide_by_billion(Limbs& limbs) {
  uint64_t rest = 0;
  for (size_t i = limbs.size(); i-- > 0;) {
    rest = rest << 32 | limbs[i];
    limbs[i] = static_cast<uint32_t>(rest / kBillion);
    rest %= kBillion;
  }
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
  return static_cast<uint32_t>(rest);
}

std::string decimal_text(Limbs limbs, bool negative) {
  std::vector<uint32_t> groups;
  while (!limbs.empty()) groups.push_back(divide_by_billion(limbs));
  if (groups.empty()) return "0";
  std::string text = fmt::format("{}{}", negative ? "-" : "", groups.back());
  for (size_t i = groups.size() - 1; i-- > 0;) fmt::format_to(std::back_inserter(text), "{:09}", groups[i]);
  return text;
}

Limbs limbs_from_decimal(std::string_view digits) {
  Limbs limbs;
  while (!digits.empty()) {
    const size_t take = digits.size() % 9 == 0 ? 9 : digits.size() % 9;
    uint32_t group = 0;
    for (char c : digits.substr(0, take)) group = group * 10 + static_cast<uint32_t>(c - '0');
    digits.remove_prefix(take);
    uint64_t carry = group;
    for (uint32_t& limb : limbs) {
      carry += uint64_t{limb} * kBillion;
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
  }
  return limbs;
}

}  // namespace

Value integer_from_bytes(std::span<const uint8_t> little_endian) {
  const bool negative = !little_endian.empty() && little_endian.back() >> 7;
  while (!little_endian.empty() && little_endian.back() == (negative ? 0xFF : 0)) {
    if (little_endian.size() > 1 && (little_endian[little_endian.size() - 2] >> 7 != 0) != negative) break;
    if (little_endian.size() == 1 && negative) break;
    little_endian = little_endian.first(little_endian.size() - 1);
  }
  if (little_endian.size() <= 8) {
    uint64_t bits = negative ? ~uint64_t{0} : 0;
    for (size_t i = little_endian.size(); i-- > 0;) bits = bits << 8 | little_endian[i];
    return Value::integer(static_cast<int64_t>(bits));
  }
  std::vector<uint8_t> magnitude(little_endian.begin(), little_endian.end());
  if (negative) negate(magnitude);
  Limbs limbs((magnitude.size() + 3) / 4);
  for (size_t i = 0; i < magnitude.size(); ++i) limbs[i / 4] |= static_cast<uint32_t>(magnitude[i]) << (i % 4 * 8);
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
  return Value::big_integer(decimal_text(std::move(limbs), negative));
}

bool integer_from_decimal(std::string_view decimal, Value& value) {
  std::string_view digits = decimal;
  if (digits.starts_with('-') || digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return false;
  if (digits.size() > kBigIntegerLimit * 2) return false;
  const bool negative = decimal.front() == '-';
  int64_t small = 0;
  const std::string_view signed_digits = decimal.front() == '+' ? digits : decimal;
  const auto [stop, status] = std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), small);
  if (status == std::errc()) {
    value = Value::integer(small);
  } else {
    value = Value::big_integer(decimal_text(limbs_from_decimal(digits), negative));   // without leading zeros
  }
  return true;
}

std::string integer_to_bytes(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  const Limbs limbs = limbs_from_decimal(decimal.substr(negative ? 1 : 0));
  std::vector<uint8_t> bytes;
  for (uint32_t limb : limbs) {
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<uint8_t>(limb >> (8 * i)));
  }
  bytes.push_back(0);
  if (negative) negate(bytes);
  const uint8_t fill = negative ? 0xFF : 0;
  while (bytes.size() > 1 && bytes.back() == fill && bytes[bytes.size() - 2] >> 7 == fill >> 7) bytes.pop_back();
  return {bytes.begin(), bytes.end()};
}

}  // namespace fsdpctl
