// Checksums: CRC-64/XZ (tensor and checkpoint fingerprints), CRC-32 (ZIP), SHA-256 (on request).
//
// A CRC is linear: crc(A+B) = shift(crc(A), |B|) xor crc(B), with the initial and final xor folded in.
// So runs of a tensor may be summed in any order, from any thread. Two forms exist here:
//   finished  what the rest of the world prints (`fastcrc.crc64.xz`; check value of "123456789" is
//             995dc9bbdf1939fa);
//   raw       no initial and no final xor: raw(A+B) = shift(raw(A), |B|) ^ raw(B), raw of zeros is 0.
//             A contribution of a run that has n bytes after it is shift(raw(run), n), and the xor of all
//             contributions is raw(whole); finish(raw, length) turns that into the finished form.
// Backed by ISA-L (`crc64_ecma_refl`, `crc32_gzip_refl`). Pure functions, thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace fsdpctl {

using Bytes = std::span<const std::byte>;

// ---- CRC-64/XZ
uint64_t crc64(Bytes bytes);                                    // finished
uint64_t crc64_raw(Bytes bytes, uint64_t previous = 0);         // goes on from `previous`, raw(A): gives raw(A+B)
uint64_t crc64_shift(uint64_t raw, uint64_t bytes_after);       // O(log n) multiplications
uint64_t crc64_finish(uint64_t raw, uint64_t length);

// A fixed distance, for many equal steps (strided rows): one multiplication each.
class Crc64Step {
 public:
  explicit Crc64Step(uint64_t bytes);
  uint64_t shift(uint64_t raw) const;

 private:
  uint64_t power_;
};

// ---- CRC-32 (zlib polynomial)
uint32_t crc32(Bytes bytes, uint32_t previous = 0);             // finished; chains like zlib's
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_length);  // finished forms

// ---- SHA-256, hex
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(Bytes bytes);
  std::string hex();   // ends it

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hex64(uint64_t value);   // 16 lower-case digits

}  // namespace fsdpctl
