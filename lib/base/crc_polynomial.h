// Arithmetic of CRCs: products of polynomials over GF(2) modulo the polynomials of CRC-64/XZ and CRC-32.
//
// Polynomials are in the CRCs' own bit order (reflected): the highest bit is the coefficient of x^0. So the
// one is the highest bit, and appending n zero bytes to a message multiplies its raw CRC by x^(8n).
// Each product exists twice: with PCLMUL where the processor has it, and a plain twin. Pure; thread-safe.
#pragma once

#include <cstdint>

namespace fsdpctl {

uint64_t crc64_multiply(uint64_t a, uint64_t b);
uint64_t crc64_multiply_plain(uint64_t a, uint64_t b);
uint64_t crc64_power(uint64_t bytes);     // x^(8 * bytes); one multiplication per 4 bits of `bytes`

uint32_t crc32_multiply(uint32_t a, uint32_t b);
uint32_t crc32_multiply_plain(uint32_t a, uint32_t b);
uint32_t crc32_power(uint64_t bytes);

}  // namespace fsdpctl
