#include "formats/hdf5_names.h"

#include <fmt/format.h>

#include <iterator>

#include "lib/base/utf8.h"

namespace fsdpctl {

std::string hdf5_link_name(std::string_view name) {
  const bool dots = name == "." || name == "..";
  const bool broken = !is_utf8(name);
  const bool plain = !name.empty() && !dots && !broken && name.find_first_of(std::string_view("/%\0", 3)) == std::string_view::npos;
  if (plain) return std::string(name);
  if (name.empty()) return "%";
  std::string link;
  for (const char c : name) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '/' || c == '%' || c == '\0' || (dots && c == '.') || (broken && byte >= 0x80)) {
      fmt::format_to(std::back_inserter(link), "%{:02X}", byte);
    } else {
      link += c;
    }
  }
  return link;
}

std::string hdf5_link_path(const Hdf5Path& path) {
  std::string text;
  for (const std::string& element : path.elements) {
    if (!text.empty()) text += '/';
    text += hdf5_link_name(element);
  }
  return text;
}

Hdf5Path hdf5_path(const Parts& parts, const LeafInfo& leaf) {
  Hdf5Path path;
  if (leaf.part == Part::model) {
    path.elements = {"model", std::string(leaf.fqn)};
  } else if (leaf.part == Part::optimizer && !leaf.field.empty() && leaf.optimizer >= 0) {
    path.elements = {"optimizer"};
    if (parts.optimizers.size() > 1) path.elements.push_back(parts.optimizers[static_cast<size_t>(leaf.optimizer)].path);
    path.elements.emplace_back(leaf.field);
    path.elements.emplace_back(leaf.fqn);
  } else {
    path.elements = {"extra", std::string(leaf.path)};
  }
  return path;
}

}  // namespace fsdpctl
