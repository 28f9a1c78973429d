#include "formats/codec/pickle_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "formats/codec/pickle_opcodes.h"
#include "lib/base/finding.h"

namespace fsdpctl {

using namespace pickle;

void FetchedMemo::grow(size_t words) { words_.resize(std::max(words, words_.size() * 2)); }

void FetchedMemo::number() {
  uint32_t slots = 0;
  for (size_t i = 0; i < words_.size(); ++i) {
    words_[i].before = slots;
    const auto highest = static_cast<uint32_t>(std::bit_width(words_[i].bits));
    if (i < kLow / 64) {
      if (highest != 0) slots_ = i * 64 + highest;
      if (i == kLow / 64 - 1) slots = kLow;
    } else {
      slots += count_bits(words_[i].bits);
      slots_ = slots;
    }
  }
}

uint64_t FetchedMemo::next(uint64_t id) const {
  for (uint64_t i = id / 64; i < words_.size(); ++i) {
    const uint64_t bits = i == id / 64 ? words_[i].bits >> (id % 64) << (id % 64) : words_[i].bits;
    if (bits != 0) return i * 64 + static_cast<uint64_t>(std::countr_zero(bits));
  }
  return kNone;
}

namespace {

// What follows an opcode. One byte for each: in the low half the length of opcode and argument, in the high half notes; or 0 in the low
// half and one of these in the high half.
enum Shape : uint8_t {
  kUnknown = 0x00, kText1 = 0x10, kText4 = 0x20, kText8 = 0x30, kLine = 0x40, kTwoLines = 0x50, kGet1 = 0x60,
  kGet4 = 0x70, kGetLine = 0x80, kPutLine = 0x90, kEnd = 0xA0, kRefused = 0xB0,
};
constexpr uint8_t kLength = 0x0F, kPuts = 0x10, kMemoizes = 0x20;

constexpr std::array<uint8_t, 256> opcode_forms() {
  std::array<uint8_t, 256> forms{};
  for (uint8_t op : {kMark, kPop, kPopMark, kDup, kNone, kBinPersId, kReduce, kAppend, kBuild, kDict, kEmptyDict,
                     kAppends, kList, kEmptyList, kObj, kSetItem, kTuple, kEmptyTuple, kSetItems, kNewObj, kTuple1,
                     kTuple2, kTuple3, kNewTrue, kNewFalse, kEmptySet, kAddItems, kFrozenSet, kNewObjEx, kStackGlobal}) {
    forms[op] = 1;
  }
  forms[kMemoize] = 1 | kMemoizes;
  for (uint8_t op : {kBinInt1, kProto}) forms[op] = 2;
  forms[kBinPut] = 2 | kPuts;
  forms[kBinInt2] = 3;
  forms[kBinInt] = 5;
  forms[kLongBinPut] = 5 | kPuts;
  for (uint8_t op : {kBinFloat, kFrame}) forms[op] = 9;
  for (uint8_t op : {kShortBinString, kShortBinUnicode, kShortBinBytes, kLong1}) forms[op] = kText1;
  for (uint8_t op : {kBinString, kBinUnicode, kBinBytes, kLong4}) forms[op] = kText4;
  for (uint8_t op : {kBinUnicode8, kBinBytes8, kByteArray8}) forms[op] = kText8;
  for (uint8_t op : {kFloat, kInt, kLong, kPersId, kString, kUnicode}) forms[op] = kLine;
  for (uint8_t op : {kGlobal, kInst}) forms[op] = kTwoLines;
  forms[kBinGet] = kGet1;
  forms[kLongBinGet] = kGet4;
  forms[kGet] = kGetLine;
  forms[kPut] = kPutLine;
  for (uint8_t op : {kExt1, kExt2, kExt4, kNextBuffer, kReadonlyBuffer}) forms[op] = kRefused;
  forms[kStop] = kEnd;
  return forms;
}

constexpr std::array<uint8_t, 256> kForms = opcode_forms();

class Scanner {
 public:
  Scanner(Bytes stream, const std::string& name, uint64_t base)
      : begin_(reinterpret_cast<const uint8_t*>(stream.data())), end_(begin_ + stream.size()), name_(name), base_(base), size_(stream.size()) {}
  // `read` must outlive it.
  Scanner(const PickleRead& read, uint64_t size, const std::string& name)
      : name_(name), size_(size), read_(&read), buffer_(std::min(size, kBlock)) {
    begin_ = end_ = buffer_.data();
  }

  PickleScan run() {
    PickleScan scan;
    const uint8_t* p = more(begin_);
    if (end_ - p >= 2 && *p == kProto) scan.protocol = p[1];
    uint8_t notes = 0;
    uint8_t form = kUnknown;
    while (p < end_) {
      p = plain_opcodes(p, form, notes, scan);
      if (form == kEnd) break;
      if (p < end_ && (end_ - p >= kFarthest || is_last())) {
        if (const uint8_t* behind = skip_argument(form, p, scan.fetched); behind != nullptr) {
          if (form == kPutLine) notes |= kPuts;
          p = behind;
          if (p < end_) continue;
        }
      }
      p = more(p);
    }
    if (form != kEnd) throw error(Exit::damaged, kPickleCutShort);
    // MEMOIZE numbers its entries by how many there are; with explicit numbers beside it readers could disagree.
    if ((notes & (kPuts | kMemoizes)) == (kPuts | kMemoizes)) {
      throw error(Exit::unsupported, "pickle mixes two ways to number its memo");
    }
    scan.consumed = passed_ + static_cast<uint64_t>(at_ + 1 - begin_);
    scan.fetched.number();
    return scan;
  }

 private:
  static constexpr uint64_t kBlock = uint64_t{1} << 18;
  static constexpr ptrdiff_t kFarthest = 16;      // opcodes whose arguments have a fixed length end within that
  static constexpr size_t kLongestLine = size_t{1} << 20;

  // From p to the end, or to an opcode that needs a closer look; `form` is the last one's.
  const uint8_t* plain_opcodes(const uint8_t* p, uint8_t& last_form, uint8_t& all_notes, PickleScan& scan) {
    const uint8_t* const end = end_;
    const uint8_t* at = p;
    uint64_t opcodes = 0;
    uint8_t form = kUnknown, notes = all_notes;
    while (p < end) {
      at = p;
      form = kForms[*p];
      ++opcodes;
      if (const unsigned length = form & kLength; length != 0) {
        notes |= form;
        p += length;
      } else if (form == kGet1 && end - p >= 2) {
        add(p[1], scan.fetched);
        p += 2;
      } else if (form == kGet4 && end - p >= 5) {
        uint32_t id;
        std::memcpy(&id, p + 1, 4);
        add(id, scan.fetched);
        p += 5;
      } else {
        break;
      }
    }
    at_ = at;
    scan.opcodes += opcodes;
    last_form = form;
    all_notes = notes;
    return p;
  }

  Error error(Exit code, const char* what) const {
    return Error(code, what).at(name_).offset(base_ + passed_ + static_cast<uint64_t>(at_ - begin_));
  }

  // ---- bytes

  uint64_t left(const uint8_t* p) const { return size_ - passed_ - static_cast<uint64_t>(p - begin_); }
  bool is_last() const { return left(end_) == 0; }

  // Where p is after more bytes were read, if there are more; what lies before it is gone then.
  const uint8_t* more(const uint8_t* p) {
    const uint64_t over = std::exchange(beyond_, 0) + static_cast<uint64_t>(p > end_ ? p - end_ : 0);
    if (read_ == nullptr || is_last() || over > left(end_)) return p;
    const auto kept = static_cast<size_t>(p < end_ ? end_ - p : 0);
    if (kept == buffer_.size()) {
      if (kept >= kLongestLine) throw error(Exit::unsupported, "pickle holds a line of more than a megabyte");
      grow(p, kept);
    } else if (kept > 0) {
      std::memmove(buffer_.data(), p, kept);
    }
    passed_ = size_ - left(end_) + over - kept;
    begin_ = buffer_.data();
    const uint64_t count = std::min<uint64_t>(buffer_.size() - kept, size_ - passed_ - kept);
    (*read_)(passed_ + kept, std::as_writable_bytes(std::span(buffer_).subspan(kept, count)));
    end_ = begin_ + kept + count;
    at_ = begin_;
    return begin_;
  }

  void grow(const uint8_t* p, size_t kept) {
    std::vector<uint8_t> bigger(2 * buffer_.size());
    std::memcpy(bigger.data(), p, kept);
    buffer_ = std::move(bigger);
  }

  const uint8_t* skip(const uint8_t* p, uint64_t count) {
    const auto here = static_cast<uint64_t>(end_ - p);
    if (count <= here) return p + count;
    if (count > left(p)) throw error(Exit::damaged, kPickleCutShort).saw(fmt::format("{} bytes", count), fmt::format("{} bytes", left(p)));
    beyond_ = count - here;
    return end_;
  }

  uint64_t number(const uint8_t*& p, unsigned bytes) {
    const uint8_t* start = p;
    p = skip(p, bytes);
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; ++i) value |= uint64_t{start[i]} << (8 * i);
    return value;
  }

  // Null: it ends behind the bytes at hand.
  const uint8_t* line(const uint8_t* p) const {
    const void* newline = p < end_ ? std::memchr(p, '\n', static_cast<size_t>(end_ - p)) : nullptr;
    if (newline != nullptr) return static_cast<const uint8_t*>(newline) + 1;
    if (is_last()) throw error(Exit::damaged, kPickleCutShort).saw("a line", "end of stream");
    return nullptr;
  }

  // ---- opcodes

  // Behind the argument of the opcode at `opcode`; null where more bytes are needed to tell.
  const uint8_t* skip_argument(uint8_t form, const uint8_t* opcode, FetchedMemo& fetched) {
    const uint8_t* p = opcode + 1;
    switch (form) {
      case kText1: { const uint64_t n = number(p, 1); return skip(p, n); }
      case kText4: {
        const uint64_t n = number(p, 4);
        if ((*opcode == kLong4 || *opcode == kBinString) && n >> 31) throw error(Exit::damaged, "negative length in pickle");
        return skip(p, n);
      }
      case kText8: { const uint64_t n = number(p, 8); return skip(p, n); }
      case kLine: case kPutLine: case kTwoLines: case kGetLine: {
        const uint8_t* end = line(p);
        if (form == kTwoLines && end != nullptr) end = line(end);
        if (end == nullptr) return nullptr;
        if (form == kGetLine) add(decimal(p, end), fetched);
        return end;
      }
      case kGet1: case kGet4: return skip(p, form == kGet1 ? 1 : 4);   // not there
      case kRefused: throw error(Exit::unsupported, "pickle opcode not supported").found_only(fmt::format("0x{:02x}", *opcode));
      default: throw error(Exit::damaged, "unknown pickle opcode").found_only(fmt::format("0x{:02x}", *opcode));
    }
  }

  // Each entry took a byte at least, so this bounds the memo by the stream.
  void add(uint64_t id, FetchedMemo& fetched) const {
    if (id >= size_) throw error(Exit::damaged, "pickle fetches a memo entry that it never stored");
    fetched.add(id);
  }

  uint64_t decimal(const uint8_t* p, const uint8_t* line_end) const {
    const char* text = reinterpret_cast<const char*>(p);
    const char* end = reinterpret_cast<const char*>(line_end) - 1;
    uint64_t value = 0;
    const auto [stop, status] = std::from_chars(text, end, value);
    if (status != std::errc() || stop != end) throw error(Exit::damaged, "memo number in pickle is not a number");
    return value;
  }

  const uint8_t* begin_ = nullptr;                // bytes at hand
  const uint8_t* end_ = nullptr;
  const uint8_t* at_ = nullptr;                   // the opcode in hand
  const std::string& name_;
  uint64_t base_ = 0;                             // of the stream, for messages
  uint64_t size_;
  uint64_t passed_ = 0;                           // bytes before those at hand
  uint64_t beyond_ = 0;                           // behind them, to be skipped
  const PickleRead* read_ = nullptr;              // null: all are at hand
  std::vector<uint8_t> buffer_;
};

}  // namespace

PickleScan scan_pickle(Bytes stream, const std::string& name, uint64_t base) { return Scanner(stream, name, base).run(); }

PickleScan scan_pickle(const PickleRead& read, uint64_t size, const std::string& name) { return Scanner(read, size, name).run(); }

}  // namespace fsdpctl
