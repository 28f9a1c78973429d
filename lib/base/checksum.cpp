#include "lib/base/checksum.h"

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <isa-l/crc64.h>
#include <openssl/evp.h>

#include <iterator>
#include <new>

#include "lib/base/crc_polynomial.h"

namespace fsdpctl {
namespace {

const unsigned char* data(Bytes bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

}  // namespace

// ISA-L inverts its argument and its result.
uint64_t crc64(Bytes bytes) { return crc64_ecma_refl(0, data(bytes), bytes.size()); }
uint64_t crc64_raw(Bytes bytes, uint64_t previous) { return ~crc64_ecma_refl(~previous, data(bytes), bytes.size()); }

uint64_t crc64_shift(uint64_t raw, uint64_t bytes_after) {
  return bytes_after == 0 || raw == 0 ? raw : crc64_multiply(raw, crc64_power(bytes_after));
}

uint64_t crc64_finish(uint64_t raw, uint64_t length) { return ~(raw ^ crc64_shift(~uint64_t{0}, length)); }

Crc64Step::Crc64Step(uint64_t bytes) : power_(crc64_power(bytes)) {}
uint64_t Crc64Step::shift(uint64_t raw) const { return crc64_multiply(raw, power_); }

uint32_t crc32(Bytes bytes, uint32_t previous) { return crc32_gzip_refl(previous, data(bytes), bytes.size()); }

// The initial and final inversions cancel out, as in zlib.
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_length) {
  return crc32_multiply(first, crc32_power(second_length)) ^ second;
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) {
    throw std::bad_alloc();   // SHA-256 is in every provider; nothing but memory can be missing
  }
}

Sha256::~Sha256() = default;

void Sha256::update(Bytes bytes) { EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()); }

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest{};
  EVP_DigestFinal_ex(state_->context, digest.data(), nullptr);
  std::string text;
  text.reserve(2 * digest.size());
  for (unsigned char byte : digest) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

std::string hex64(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace fsdpctl
