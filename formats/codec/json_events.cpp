#include "formats/codec/json_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kBlock = 256 * 1024;

// The text, one block at a time.
class BlockReader {
 public:
  BlockReader(const ReadAt& read, uint64_t begin, uint64_t end)
      : read_(read), position_(begin), end_(end), block_(std::min(kBlock, end - begin)) {
    refill();
  }

  bool at_end() const { return next_ == filled_; }
  char current() const { return block_[next_]; }
  void advance() {
    if (++next_ == filled_) refill();
  }
  uint64_t offset() const { return position_ - (filled_ - next_); }

 private:
  void refill() {
    filled_ = std::min<uint64_t>(block_.size(), end_ - position_);
    next_ = 0;
    if (filled_ == 0) return;
    read_(position_, std::as_writable_bytes(std::span(block_).first(filled_)));
    position_ += filled_;
  }

  const ReadAt& read_;
  uint64_t position_;   // in the file, after the block
  uint64_t end_;
  std::vector<char> block_;
  uint64_t next_ = 0, filled_ = 0;
};

// What nlohmann reads from. Copies share the reader; the end is an iterator without one.
class TextIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  explicit TextIterator(BlockReader* reader) : reader_(reader) {}
  char operator*() const {
    if (reader_->current() != '\0') return reader_->current();
    throw Error(Exit::damaged, "malformed JSON").found_only("a zero byte");   // nlohmann would take it for the end
  }
  TextIterator& operator++() {
    reader_->advance();
    return *this;
  }
  bool operator==(const TextIterator&) const { return reader_->at_end(); }   // only ever compared with the end
  bool operator!=(const TextIterator& end) const { return !(*this == end); }

 private:
  BlockReader* reader_;
};

// Translates nlohmann's events to ours.
struct Translator {
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  JsonEvents& events;

  bool null() { events.other("null"); return true; }
  bool boolean(bool v) { events.other(v ? "true" : "false"); return true; }
  bool number_integer(number_integer_t v) { events.other(fmt::format("{}", v)); return true; }
  bool number_unsigned(number_unsigned_t v) {
    if (v > INT64_MAX) events.other(fmt::format("{}", v));
    else events.number(v);
    return true;
  }
  bool number_float(number_float_t, const string_t& text) { events.other(text.substr(0, 40)); return true; }
  bool string(string_t& v) { events.string(v); return true; }
  bool binary(binary_t&) { return false; }   // not in JSON
  bool start_object(std::size_t) { events.begin_object(); return true; }
  bool key(string_t& v) { events.key(v); return true; }
  bool end_object() { events.end_object(); return true; }
  bool start_array(std::size_t) { events.begin_array(); return true; }
  bool end_array() { events.end_array(); return true; }
  bool parse_error(std::size_t, const std::string& token, const nlohmann::json::exception&) {
    throw Error(Exit::damaged, "malformed JSON").found_only(token.substr(0, 40));
  }
};

}  // namespace

void JsonEvents::unexpected(std::string_view found) {
  throw Error(Exit::damaged, "unexpected JSON value").found_only(std::string(found.substr(0, 40)));
}

void read_json(const ReadAt& read, uint64_t begin, uint64_t end, const std::string& file_name, JsonEvents& events) {
  BlockReader reader(read, begin, end);
  try {
    // nlohmann skips a byte order mark, which no other reader of these files does.
    if (!reader.at_end() && reader.current() == '\xEF') throw Error(Exit::damaged, "malformed JSON").found_only("a byte order mark");
    Translator translator{events};
    nlohmann::json::sax_parse(TextIterator(&reader), TextIterator(nullptr), &translator);
  } catch (Error& e) {
    Finding finding = e.finding();
    if (finding.where.path.empty()) finding.where.path = file_name;
    if (!finding.where.offset && !finding.where.range) finding.where.offset = reader.offset();
    throw Error(std::move(finding));
  }
}

void read_json(std::string_view text, const std::string& file_name, JsonEvents& events) {
  read_json([&](uint64_t offset, std::span<std::byte> out) { std::memcpy(out.data(), text.data() + offset, out.size()); },
            0, text.size(), file_name, events);
}

void append_json_string(std::string_view utf8, std::string& out) {
  out += '"';
  size_t plain = 0;   // start of the run that needs no escape
  for (size_t i = 0; i < utf8.size(); ++i) {
    const char c = utf8[i];
    if (static_cast<uint8_t>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out.append(utf8, plain, i - plain);
    plain = i + 1;
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default: fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint8_t>(c)); break;
    }
  }
  out.append(utf8, plain);
  out += '"';
}

}  // namespace fsdpctl
