#include "lib/comm/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

// The fixed part; what lies between ranks of one program needs no byte order.
struct Fixed {
  uint8_t collective, in, out, reduction;
  uint32_t root;
  uint64_t count, sequence, unit_hash, unit_size;
};
constexpr size_t kUnitSize = Header::kSize - sizeof(Fixed);

std::string_view collective_name(Collective collective) {
  constexpr std::string_view kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "exchange", "barrier"};
  return kNames[static_cast<size_t>(collective)];
}

std::string plural(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

void Header::set_unit(std::string_view name) {
  unit_hash = crc64(std::as_bytes(std::span(name)));
  unit = name.substr(0, kUnitSize);
}

Header Header::all_gather(Elements in, std::string_view unit) {
  Header header;
  header.collective = Collective::all_gather;
  header.in = header.out = in.dtype;
  header.count = in.count;
  header.set_unit(unit);
  return header;
}

Header Header::reduce_scatter(Elements in, MutableElements out, std::string_view unit) {
  Header header;
  header.collective = Collective::reduce_scatter;
  header.in = in.dtype;
  header.out = out.dtype;
  header.count = in.count;
  header.set_unit(unit);
  return header;
}

Header Header::all_reduce(MutableElements data, Reduction reduction, std::string_view unit) {
  Header header;
  header.collective = Collective::all_reduce;
  header.in = header.out = data.dtype;
  header.reduction = reduction;
  header.count = data.count;
  header.set_unit(unit);
  return header;
}

Header Header::broadcast(MutableElements data, int root, std::string_view unit) {
  Header header;
  header.collective = Collective::broadcast;
  header.in = header.out = data.dtype;
  header.root = static_cast<uint32_t>(root);
  header.count = data.count;
  header.set_unit(unit);
  return header;
}

Header Header::exchange(std::string_view bytes, std::string_view unit) {
  Header header;
  header.collective = Collective::exchange;
  header.count = bytes.size();
  header.set_unit(unit);
  return header;
}

Header Header::barrier(std::string_view unit) {
  Header header;
  header.set_unit(unit);
  return header;
}

Header::Bytes Header::encode() const {
  Fixed fixed{};
  fixed.collective = static_cast<uint8_t>(collective);
  fixed.in = static_cast<uint8_t>(in);
  fixed.out = static_cast<uint8_t>(out);
  fixed.reduction = static_cast<uint8_t>(reduction);
  fixed.root = root;
  fixed.count = count;
  fixed.sequence = sequence;
  fixed.unit_hash = unit_hash;
  fixed.unit_size = unit.size();
  Bytes bytes{};
  std::memcpy(bytes.data(), &fixed, sizeof fixed);
  std::memcpy(bytes.data() + sizeof fixed, unit.data(), unit.size());
  return bytes;
}

Header Header::decode(const Bytes& bytes) {
  Fixed fixed;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  Header header;
  header.collective = static_cast<Collective>(std::min<uint8_t>(fixed.collective, static_cast<uint8_t>(Collective::barrier)));
  header.in = static_cast<DType>(std::min<int>(fixed.in, kDTypeCount - 1));
  header.out = static_cast<DType>(std::min<int>(fixed.out, kDTypeCount - 1));
  header.reduction = static_cast<Reduction>(std::min<uint8_t>(fixed.reduction, static_cast<uint8_t>(Reduction::bit_or)));
  header.root = fixed.root;
  header.count = fixed.count;
  header.sequence = fixed.sequence;
  header.unit_hash = fixed.unit_hash;
  header.unit.assign(reinterpret_cast<const char*>(bytes.data()) + sizeof fixed,
                     static_cast<size_t>(std::min<uint64_t>(fixed.unit_size, kUnitSize)));
  return header;
}

bool Header::matches(const Header& other) const { return hash() == other.hash(); }

uint64_t Header::hash() const {
  Header same = *this;
  if (collective == Collective::exchange) same.count = 0;
  const Bytes bytes = same.encode();
  return crc64(bytes);
}

std::string Header::text() const {
  std::string text(collective_name(collective));
  switch (collective) {
    case Collective::all_gather:
    case Collective::broadcast: text += fmt::format(" of {} {}", count, dtype_name(in)); break;
    case Collective::reduce_scatter: text += fmt::format(" of {} {} into {}", count, dtype_name(in), dtype_name(out)); break;
    case Collective::all_reduce: text += fmt::format(" ({}) of {} {}", reduction_name(reduction), count, dtype_name(in)); break;
    case Collective::exchange:
    case Collective::barrier: break;
  }
  if (collective == Collective::broadcast) text += fmt::format(" from rank {}", root);
  return text + fmt::format(" in {} (operation {})", unit.empty() ? "no unit" : unit, sequence);
}

std::optional<Finding> disagreement(std::span<const Header> headers, std::span<const int> names) {
  std::vector<std::pair<const Header*, std::vector<int>>> groups;
  int differs = -1;
  for (size_t r = 0; r < headers.size(); ++r) {
    const int name = names.empty() ? static_cast<int>(r) : names[r];
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first->matches(headers[r]); });
    if (group == groups.end()) {
      if (!groups.empty() && differs < 0) differs = name;
      groups.push_back({&headers[r], {name}});
    } else {
      group->second.push_back(name);
    }
  }
  if (groups.size() < 2) return std::nullopt;
  Finding finding = error(Exit::failed, "ranks disagree about a collective operation");
  finding.where.rank = differs;
  finding.expected = fmt::format("{}: {}", plural(groups[0].second), groups[0].first->text());
  for (size_t g = 1; g < groups.size(); ++g) {
    finding.found += fmt::format("{}{}: {}", g == 1 ? "" : "; ", plural(groups[g].second), groups[g].first->text());
  }
  return finding;
}

}  // namespace fsdpctl
