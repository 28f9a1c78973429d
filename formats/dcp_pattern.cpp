#include "formats/dcp_pattern.h"

#include <cstring>

#include "formats/dcp_arguments.h"
#include "formats/dcp_meaning.h"
#include "lib/base/utf8.h"

namespace fsdpctl {

using namespace pickle;

namespace {

// Both may be read up to the next multiple of eight.
bool same_bytes(const char* a, const char* b, size_t n) {
  for (; n > 8; a += 8, b += 8, n -= 8) {
    if (load<uint64_t>(a) != load<uint64_t>(b)) return false;
  }
  return n == 0 || ((load<uint64_t>(a) ^ load<uint64_t>(b)) << (64 - 8 * n)) == 0;   // little-endian: the first n bytes
}

}  // namespace

const char* ObjectPattern::match(const char* p) {
  const char* fixed = fixed_.data();
  for (size_t h = 0; h < hole_count_; ++h) {
    const Hole hole = holes_[h];
    if (!same_bytes(p, fixed, hole.before)) return nullptr;
    p += hole.before;
    fixed += hole.before;
    if (hole.kind == Hole::number) {
      if (!take_integer(p, cells_[hole.cell])) return nullptr;
    } else if (hole.kind == Hole::fetched) {
      if (!take_fetch(p, found_[h].id)) return nullptr;
    } else {
      if (byte_at(p) != kShortBinUnicode) return nullptr;
      const std::string_view text(p + 2, byte_at(p + 1));
      if (!is_utf8(text, true)) return nullptr;
      found_[h].text = text;
      p += 2 + text.size();
    }
  }
  return same_bytes(p, fixed, last_) ? p + last_ : nullptr;
}

// ---- learning

// Walks over one object; each step says whether the pattern can still be one.
class PatternLearner {
 public:
  PatternLearner(const char* p, CellMemo& memo) : p_(p), stretch_(p), memo_(memo) {}

  bool object() {
    if (!fixed(kEmptyTuple) || !fixed(kNewObj)) return false;
    const bool dict = byte_at(p_) == kEmptyDict;
    if (dict && !fixed(kEmptyDict)) return false;
    if (byte_at(p_++) != kMark) return false;
    const uint8_t end = dict ? kSetItems : kTuple;
    for (bool key = dict; byte_at(p_) != end; key = dict && !key) {
      if (key ? !fetched_key() : !value()) return false;
    }
    pattern_.tuple_ = !dict;
    if (dict && pattern_.field_count_ % 2 != 0) return false;
    return fixed(end) && fixed(kBuild) && close_stretch(pattern_.last_) && close_memoized(pattern_.memoized_last_);
  }

  ObjectPattern pattern() const { return pattern_; }

 private:
  using Hole = ObjectPattern::Hole;
  using Late = ObjectPattern::Late;

  // An opcode without arguments, and its MEMOIZE.
  bool fixed(uint8_t opcode) {
    if (byte_at(p_) != opcode) return false;
    ++p_;
    return memoizes();
  }

  bool memoizes() {
    for (; byte_at(p_) == kMemoize; ++p_) {
      if (!memo_.counts() || memoized_ == 255) return false;
      ++memoized_;
      ++pattern_.memoized_;
    }
    return true;
  }

  bool close_stretch(uint8_t& length) {
    const auto n = static_cast<size_t>(p_ - stretch_);
    if (n > 255 || used_ + n > ObjectPattern::kMaxFixed) return false;
    std::memcpy(pattern_.fixed_.data() + used_, stretch_, n);
    used_ += n;
    length = static_cast<uint8_t>(n);
    return true;
  }

  bool close_memoized(uint8_t& memoized) {
    memoized = memoized_;
    memoized_ = 0;
    return true;
  }

  // A hole here whose value goes to `cell`; what follows it begins at `end`.
  bool hole(Hole::Kind kind, size_t cell, const char* end) {
    if (pattern_.hole_count_ == ObjectPattern::kMaxHoles) return false;
    Hole& h = pattern_.holes_[pattern_.hole_count_++];
    h.kind = kind;
    h.cell = static_cast<uint8_t>(cell);
    if (!close_stretch(h.before)) return false;
    p_ = stretch_ = end;
    return true;
  }

  // The same, of a text or what is fetched: as a field of its own.
  bool late_field(Hole::Kind kind, const char* end) {
    if (!has_room() || !hole(kind, pattern_.field_count_, end)) return false;
    if (!late(kind == Hole::text ? Late::text : Late::fetched)) return false;
    pattern_.late_[pattern_.late_count_ - 1].hole = static_cast<uint8_t>(pattern_.hole_count_ - 1);
    ++pattern_.field_count_;
    return true;
  }

  // The field that comes next.
  bool late(Late::Kind kind) {
    if (pattern_.late_count_ == pattern_.late_.size()) return false;
    Late& late = pattern_.late_[pattern_.late_count_++];
    late.kind = kind;
    late.cell = static_cast<uint8_t>(pattern_.field_count_);
    return close_memoized(late.memoized);
  }

  // The MEMOIZE of the last late one.
  bool keep() {
    if (!memo_.counts()) return false;
    ++p_;
    pattern_.late_[pattern_.late_count_ - 1].kept = true;
    if (pattern_.memoized_ < 64) pattern_.kept_ |= uint64_t{1} << pattern_.memoized_;
    ++pattern_.memoized_;
    return true;
  }

  bool number(size_t cell) {
    Cell value;
    const char* end = p_;
    return take_integer(end, value) && hole(Hole::number, cell, end);
  }

  bool has_room() const { return pattern_.field_count_ < ObjectPattern::kMaxFields; }
  bool field(Cell constant) {
    if (!has_room()) return false;
    pattern_.cells_[pattern_.field_count_++] = constant;
    return true;
  }

  bool fetched_key() {
    uint32_t id = 0;
    if (!take_fetch(p_, id)) return false;
    const Cell key = memo_.get(id);
    return key.is(Cell::string) && field(key);
  }

  bool value() {
    switch (byte_at(p_)) {
      case kBinGet: case kLongBinGet: return fetched();
      case kShortBinUnicode: return text();
      case kNone: return fixed(kNone) && field(Cell(Cell::none));
      case kNewTrue: return fixed(kNewTrue) && field(Cell(Cell::boolean, 0, 1));
      case kNewFalse: return fixed(kNewFalse) && field(Cell(Cell::boolean));
      default: return has_room() && number(pattern_.field_count_++) && memoizes();
    }
  }

  // Strings differ, and are what names are fetched as, and sizes where they are shared; everything else is the same in each object.
  bool fetched() {
    const char* end = p_;
    uint32_t id = 0;
    take_fetch(end, id);
    const Cell c = memo_.get(id);
    if (c.is(Cell::string) || c.is(Cell::size)) return late_field(Hole::fetched, end);
    p_ = end;
    if (c.is(Cell::global) && c.n() == CellMeaning::kSizeClass) return size();
    return field(c);
  }

  bool text() {
    constexpr int kMostTexts = 2;                // each may reach 257 bytes far
    if (texts_++ == kMostTexts || !late_field(Hole::text, p_ + 2 + byte_at(p_ + 1))) return false;
    return byte_at(p_) != kMemoize || (keep() && byte_at(p_) != kMemoize);
  }

  // torch.Size, called with a tuple of numbers.
  bool size() {
    const size_t first = sizes_;
    const bool marked = byte_at(p_) == kMark;    // more than three
    if (marked) ++p_;
    while (byte_at(p_) != kEmptyTuple && byte_at(p_) != kTuple && (byte_at(p_) < kTuple1 || byte_at(p_) > kTuple3)) {
      if (!number(sizes_)) return false;
      ++sizes_;
    }
    const size_t dims = sizes_ - first;
    const int made = marked ? kTuple : dims == 0 ? kEmptyTuple : kTuple1 + static_cast<int>(dims) - 1;
    if (!marked && dims > 3) return false;
    if (!fixed(static_cast<uint8_t>(made)) || !fixed(kTuple1) || byte_at(p_) != kReduce) return false;
    ++p_;
    if (memo_.is_exact() && byte_at(p_) == kMemoize && (!late(Late::size) || !keep())) return false;
    return memoizes() && field(Cell(Cell::size, static_cast<uint32_t>(dims), CellStore::kLent + static_cast<uint32_t>(first)));
  }

  const char* p_;
  const char* stretch_;                          // where the present run of fixed bytes begins
  CellMemo& memo_;
  ObjectPattern pattern_;
  size_t used_ = 0;                              // of the fixed bytes
  uint8_t memoized_ = 0;                         // MEMOIZEs since the last late hole
  size_t sizes_ = ObjectPattern::kFirstSize;     // cells, up to here
  int texts_ = 0;
};

std::optional<ObjectPattern> ObjectPattern::learn(const char* p, CellMemo& memo) {
  PatternLearner learner(p, memo);
  if (!learner.object()) return std::nullopt;
  return learner.pattern();
}

}  // namespace fsdpctl
