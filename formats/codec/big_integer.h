// Integers beyond 64 bits between pickle's two's complement bytes and the decimal text of Value::big_integer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/value.h"

namespace fsdpctl {

// The longest that is read, in bytes: conversion takes quadratic time. Python itself refuses to print 4300 digits.
inline constexpr size_t kBigIntegerLimit = 8192;

// Kind::integer where it fits, else big_integer. Requires at most kBigIntegerLimit bytes.
Value integer_from_bytes(std::span<const uint8_t> little_endian);
// "-?[0-9]+", with no more digits than kBigIntegerLimit bytes hold; false otherwise.
bool integer_from_decimal(std::string_view decimal, Value& value);
// The shortest two's complement form, as LONG1 wants it. Requires "-?[0-9]+".
std::string integer_to_bytes(std::string_view decimal);

}  // namespace fsdpctl
