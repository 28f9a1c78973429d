#include "formats/codec/pickle_scan.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>

#include "formats/codec/pickle_opcodes.h"
#include "lib/base/finding.h"

namespace fsdpctl {

using namespace pickle;

void FetchedMemo::add(uint64_t id) {
  if (id / 64 >= words_.size()) words_.resize(id / 64 + 1);
  words_[id / 64].bits |= uint64_t{1} << (id % 64);
}

void FetchedMemo::number() {
  for (Word& word : words_) {
    word.before = slots_;
    slots_ += static_cast<uint32_t>(std::popcount(word.bits));
  }
}

namespace {

// What follows an opcode: a number of bytes, or one of these.
enum Argument : uint8_t { kText1 = 100, kText4, kText8, kLine, kTwoLines, kGets, kEnd, kRefused, kUnknown };

constexpr std::array<uint8_t, 256> argument_table() {
  std::array<uint8_t, 256> table{};
  for (uint8_t& entry : table) entry = kUnknown;
  for (uint8_t op : {kMark, kPop, kPopMark, kDup, kNone, kBinPersId, kReduce, kAppend, kBuild, kDict, kEmptyDict,
                     kAppends, kList, kEmptyList, kObj, kSetItem, kTuple, kEmptyTuple, kSetItems, kNewObj, kTuple1,
                     kTuple2, kTuple3, kNewTrue, kNewFalse, kEmptySet, kAddItems, kFrozenSet, kNewObjEx, kStackGlobal,
                     kMemoize}) {
    table[op] = 0;
  }
  for (uint8_t op : {kBinInt1, kBinPut, kProto}) table[op] = 1;
  table[kBinInt2] = 2;
  for (uint8_t op : {kBinInt, kLongBinPut}) table[op] = 4;
  for (uint8_t op : {kBinFloat, kFrame}) table[op] = 8;
  for (uint8_t op : {kShortBinString, kShortBinUnicode, kShortBinBytes, kLong1}) table[op] = kText1;
  for (uint8_t op : {kBinString, kBinUnicode, kBinBytes, kLong4}) table[op] = kText4;
  for (uint8_t op : {kBinUnicode8, kBinBytes8, kByteArray8}) table[op] = kText8;
  for (uint8_t op : {kFloat, kInt, kLong, kPersId, kString, kUnicode, kPut}) table[op] = kLine;
  for (uint8_t op : {kGlobal, kInst}) table[op] = kTwoLines;
  for (uint8_t op : {kGet, kBinGet, kLongBinGet}) table[op] = kGets;
  for (uint8_t op : {kExt1, kExt2, kExt4, kNextBuffer, kReadonlyBuffer}) table[op] = kRefused;
  table[kStop] = kEnd;
  return table;
}

constexpr std::array<uint8_t, 256> kArguments = argument_table();

class Scanner {
 public:
  Scanner(Bytes stream, const std::string& name, uint64_t base)
      : begin_(reinterpret_cast<const uint8_t*>(stream.data())), end_(begin_ + stream.size()), name_(name), base_(base) {}

  PickleScan run() {
    PickleScan scan;
    const uint8_t* p = begin_;
    bool puts = false, memoizes = false;
    if (end_ - p >= 2 && *p == kProto) scan.protocol = p[1];
    for (;;) {
      at_ = p;
      if (p == end_) throw error(Exit::damaged, kPickleCutShort);
      const uint8_t op = *p++;
      ++scan.opcodes;
      const uint8_t argument = kArguments[op];
      if (argument <= 8) {
        memoizes |= op == kMemoize;
        puts |= op == kBinPut || op == kLongBinPut;
        p = skip(p, argument);
        continue;
      }
      if (argument == kEnd) break;
      puts |= op == kPut;
      p = argument == kGets ? fetch(op, p, scan.fetched) : skip_argument(op, argument, p);
    }
    // MEMOIZE numbers its entries by how many there are; with explicit numbers beside it readers could disagree.
    if (puts && memoizes) throw error(Exit::unsupported, "pickle mixes two ways to number its memo");
    scan.consumed = static_cast<size_t>(at_ + 1 - begin_);
    scan.fetched.number();
    return scan;
  }

 private:
  Error error(Exit code, const char* what) const {
    return Error(code, what).at(name_).offset(base_ + static_cast<uint64_t>(at_ - begin_));
  }

  const uint8_t* skip(const uint8_t* p, uint64_t count) const {
    const auto left = static_cast<uint64_t>(end_ - p);
    if (count <= left) return p + count;
    throw error(Exit::damaged, kPickleCutShort).saw(fmt::format("{} bytes", count), fmt::format("{} bytes", left));
  }

  uint64_t number(const uint8_t*& p, unsigned bytes) const {
    const uint8_t* start = p;
    p = skip(p, bytes);
    uint64_t value = 0;
    std::memcpy(&value, start, bytes);
    return value;
  }

  const uint8_t* line(const uint8_t* p) const {
    const void* newline = std::memchr(p, '\n', static_cast<size_t>(end_ - p));
    if (newline == nullptr) throw error(Exit::damaged, kPickleCutShort).saw("a line", "end of stream");
    return static_cast<const uint8_t*>(newline) + 1;
  }

  const uint8_t* skip_argument(uint8_t op, uint8_t argument, const uint8_t* p) const {
    switch (argument) {
      case kText1: { const uint64_t n = number(p, 1); return skip(p, n); }
      case kText4: {
        const uint64_t n = number(p, 4);
        if ((op == kLong4 || op == kBinString) && n >> 31) throw error(Exit::damaged, "negative length in pickle");
        return skip(p, n);
      }
      case kText8: { const uint64_t n = number(p, 8); return skip(p, n); }
      case kLine: return line(p);
      case kTwoLines: return line(line(p));
      case kRefused: throw error(Exit::unsupported, "pickle opcode not supported").found_only(fmt::format("0x{:02x}", op));
      default: throw error(Exit::damaged, "unknown pickle opcode").found_only(fmt::format("0x{:02x}", op));
    }
  }

  const uint8_t* fetch(uint8_t op, const uint8_t* p, FetchedMemo& fetched) const {
    uint64_t id = 0;
    if (op == kGet) {
      const uint8_t* next = line(p);
      const char* text = reinterpret_cast<const char*>(p);
      const char* text_end = reinterpret_cast<const char*>(next) - 1;
      if (text_end > text && text_end[-1] == '\r') --text_end;
      const auto [stop, status] = std::from_chars(text, text_end, id);
      if (status != std::errc() || stop != text_end) throw error(Exit::damaged, "memo number in pickle is not a number");
      p = next;
    } else {
      id = number(p, op == kBinGet ? 1 : 4);
    }
    // Each entry took a byte at least, so this bounds the memo by the stream.
    if (id >= static_cast<uint64_t>(end_ - begin_)) throw error(Exit::damaged, "pickle fetches a memo entry that it never stored");
    fetched.add(id);
    return p;
  }

  const uint8_t* begin_;
  const uint8_t* end_;
  const uint8_t* at_ = nullptr;
  const std::string& name_;
  uint64_t base_;
};

}  // namespace

PickleScan scan_pickle(Bytes stream, const std::string& name, uint64_t base) { return Scanner(stream, name, base).run(); }

}  // namespace fsdpctl
