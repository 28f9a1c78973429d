#include "lib/ckpt/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <iterator>

#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

constexpr size_t kRead = 1 << 20;

std::string sealed(std::string text) {
  const uint64_t crc = crc64(std::as_bytes(std::span(text)));
  fmt::format_to(std::back_inserter(text), " {:016x}\n", crc);
  return text;
}

// The line without its CRC-64 and LF; empty where they do not match.
std::string_view unsealed(std::string_view line) {
  constexpr size_t kSeal = 18;   // space, 16 digits, LF
  if (line.size() <= kSeal || line.back() != '\n') return {};
  const std::string_view text = line.substr(0, line.size() - kSeal);
  const std::string expected = " " + hex64(crc64(std::as_bytes(std::span(text)))) + "\n";
  return line.substr(text.size()) == expected ? text : std::string_view();
}

std::string header(uint64_t plan) { return sealed("fsdpctl-journal 1 " + hex64(plan)); }

// Words of a line, one after the other.
class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) {}

  std::string_view word() {
    const std::string_view found = rest_.substr(0, rest_.find(' '));
    rest_.remove_prefix(std::min(rest_.size(), found.size() + 1));
    return found;
  }
  template <class Number>
  void number(Number& value) {
    const std::string_view text = word();
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    good_ = good_ && code == std::errc() && end == text.data() + text.size();
  }
  // The count after this letter, of entries that take at least two bytes each.
  size_t section(std::string_view letter) {
    size_t n = 0;
    good_ = good_ && word() == letter;
    number(n);
    good_ = good_ && n <= rest_.size();
    return good_ ? n : 0;
  }
  bool ended() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

// Returns where the good lines end: 0 for the journal of another plan.
uint64_t read_lines(const FileHandle& file, uint64_t plan, const JournalVisitor& visit) {
  const std::string first = header(plan);
  std::string text;   // read but not yet understood
  uint64_t end = 0;
  JobRecord record;
  for (uint64_t offset = 0;;) {
    const size_t have = text.size();
    text.resize(have + kRead);
    const size_t n = file.read_some(offset, std::as_writable_bytes(std::span(text)).subspan(have));
    text.resize(have + n);
    offset += n;
    size_t begin = 0;
    bool good = n > 0;
    for (size_t lf = text.find('\n', have); good && lf != std::string::npos; lf = text.find('\n', begin)) {
      const std::string_view line(text.data() + begin, lf + 1 - begin);
      good = end > 0 ? parse_journal_line(line, record) && visit(record) : line == first;
      if (!good) break;
      end += line.size();
      begin = lf + 1;
    }
    if (!good) return end;
    text.erase(0, begin);
  }
}

// By the hundred thousand, so not by fmt.
void add_number(std::string& line, uint64_t number) {
  char digits[16];
  line.append(digits, std::to_chars(digits, digits + sizeof digits, number, 16).ptr);
}

void add_numbers(std::string& line, std::initializer_list<uint64_t> numbers) {
  for (const uint64_t number : numbers) {
    line += ' ';
    add_number(line, number);
  }
}

}  // namespace

bool same_output(const JobRecord& a, const JobRecord& b) {
  const auto same_tensor = [](const TensorPart& x, const TensorPart& y) { return x.tensor == y.tensor && x.bytes == y.bytes && x.crc64 == y.crc64; };
  const auto same_item = [](const ItemPart& x, const ItemPart& y) { return x.item == y.item && x.crc32 == y.crc32; };
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), same_tensor) &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same_item);
}

void read_journal(const std::string& path, uint64_t plan, const JournalVisitor& visit) {
  if (stat_path(path).kind == FileKind::file) read_lines(FileHandle::open_read(path), plan, visit);
}

std::string journal_line(const JobRecord& record) {
  std::string line;
  add_number(line, record.job);
  line += " t ";
  add_number(line, record.tensors.size());
  for (const TensorPart& t : record.tensors) {
    add_numbers(line, {t.tensor, t.bytes, t.source_crc64, t.crc64, t.casts.changed, t.casts.overflowed, t.casts.flushed});
  }
  line += " i ";
  add_number(line, record.items.size());
  for (const ItemPart& i : record.items) add_numbers(line, {i.item, i.crc32});
  line += " p ";
  add_number(line, record.ranges.size());
  for (const PieceRange& p : record.ranges) add_numbers(line, {p.piece, p.begin, p.length, p.crc32});
  return sealed(std::move(line));
}

bool parse_journal_line(std::string_view line, JobRecord& record) {
  Words words(unsealed(line));
  words.number(record.job);
  record.tensors.assign(words.section("t"), {});
  for (TensorPart& t : record.tensors) {
    words.number(t.tensor);
    for (uint64_t* value : {&t.bytes, &t.source_crc64, &t.crc64, &t.casts.changed, &t.casts.overflowed, &t.casts.flushed}) {
      words.number(*value);
    }
  }
  record.items.assign(words.section("i"), {});
  for (ItemPart& i : record.items) {
    words.number(i.item);
    words.number(i.crc32);
  }
  record.ranges.assign(words.section("p"), {});
  for (PieceRange& p : record.ranges) {
    words.number(p.piece);
    words.number(p.begin);
    words.number(p.length);
    words.number(p.crc32);
  }
  return words.ended();
}

Journal::Journal(const std::string& path, uint64_t plan, const JournalVisitor& visit) {
  const bool exists = stat_path(path).kind != FileKind::absent;
  file_ = exists ? FileHandle::open_write(path) : FileHandle::create(path);
  end_ = read_lines(file_, plan, visit);
  file_.resize(end_);
  if (end_ == 0) {
    const std::string first = header(plan);
    file_.write(0, std::as_bytes(std::span(first)));
    end_ = first.size();
  }
  file_.sync();   // before any file changes: what was cut off must not come back
}

void Journal::append(std::string_view line) {
  const std::lock_guard lock(mutex_);
  file_.write(end_, std::as_bytes(std::span(line)));
  end_ += line.size();
}

}  // namespace fsdpctl
