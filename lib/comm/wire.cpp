#include "lib/comm/wire.h"

namespace fsdpctl {

WireWriter& WireWriter::number(uint64_t value) {
  for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  return *this;
}

WireWriter& WireWriter::text(std::string_view value) {
  number(value.size());
  bytes_ += value;
  return *this;
}

WireWriter& WireWriter::finding(const Finding& value) {
  number(static_cast<uint64_t>(value.severity)).number(static_cast<uint64_t>(value.code)).text(value.what);
  text(value.where.path).text(value.where.key).number(static_cast<uint64_t>(value.where.rank));
  number(value.where.range.has_value());
  if (value.where.range) number(value.where.range->first).number(value.where.range->second);
  number(value.where.offset.has_value());
  if (value.where.offset) number(*value.where.offset);
  return text(value.expected).text(value.found).text(value.hint);
}

std::string_view WireReader::take(uint64_t size) {
  if (size > rest_.size()) throw Error(Exit::failed, "message between ranks is cut short");
  const std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

uint64_t WireReader::number() {
  uint64_t value = 0;
  const std::string_view bytes = take(8);
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[static_cast<size_t>(i)]);
  return value;
}

std::string WireReader::text() { return std::string(take(number())); }

Finding WireReader::finding() {
  Finding value;
  value.severity = static_cast<Severity>(number());
  value.code = static_cast<Exit>(number());
  value.what = text();
  value.where.path = text();
  value.where.key = text();
  value.where.rank = static_cast<int>(number());
  if (number() != 0) {
    const uint64_t begin = number();
    value.where.range = {begin, number()};
  }
  if (number() != 0) value.where.offset = number();
  value.expected = text();
  value.found = text();
  value.hint = text();
  return value;
}

}  // namespace fsdpctl
