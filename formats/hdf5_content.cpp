#include "formats/hdf5_content.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <unordered_map>

#include "formats/annotations.h"
#include "formats/codec/json_events.h"
#include "formats/special_tensors.h"
#include "lib/base/checksum.h"
#include "lib/base/utf8.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/renumber.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kMaxJson = 128 << 20;    // bytes of all values, which are in memory together
constexpr size_t kMaxRank = 32;             // H5S_MAX_RANK
constexpr size_t kMaxLinkName = 60'000;     // of the 64 KiB that a message of an object header may have

bool by_link_path(const Hdf5Path& a, const Hdf5Path& b) { return hdf5_link_path(a) < hdf5_link_path(b); }

// JSON as people expect it: dicts with texts as keys are objects. Everything else is tagged as elsewhere.
void append_plain_json(const Value& v, std::string& out) {
  const bool object = v.is_mapping() && std::all_of(v.entries().begin(), v.entries().end(), [](const Entry& e) {
                        return e.key.is(Kind::string) && is_utf8(e.key.text());
                      });
  if (!object && !v.is(Kind::list)) return append_value_json(out, v, JsonForm::shown);
  out += object ? '{' : '[';
  const size_t start = out.size();
  auto separate = [&] {
    if (out.size() > start) out += ", ";
  };
  if (object) {
    for (const Entry& e : v.entries()) {
      separate();
      append_json_string(e.key.text(), out);
      out += ": ";
      append_plain_json(e.value, out);
    }
  } else {
    for (const Value& item : v.items()) {
      separate();
      append_plain_json(item, out);
    }
  }
  out += object ? '}' : ']';
}

std::string plain_json(const Value& v) {
  std::string text;
  append_plain_json(v, text);
  return text;
}

// Collects the largest subtrees that hold no tensors, as texts under /extra.
class TextCollector {
 public:
  TextCollector(const Parts& parts, std::vector<Hdf5Text>& texts) : parts_(parts), texts_(texts) {}

  void root(const Value& tree) {
    if (tree.is_mapping() && is_optimizer(tree) == nullptr) children(tree, {});
    else value(tree, {});
  }

 private:
  const OptimizerInfo* is_optimizer(const Value& v) const {
    for (const OptimizerInfo& o : parts_.optimizers) {
      if (o.value != nullptr && o.value->identity() == v.identity()) return &o;
    }
    return nullptr;
  }

  void value(const Value& v, const std::string& path) {
    if (parts_.model != nullptr && v.identity() != nullptr && v.identity() == parts_.model->identity() && has_tensor(v)) return;
    if (const OptimizerInfo* o = v.is_mapping() ? is_optimizer(v) : nullptr) return optimizer(v, *o, path);
    if (!has_tensor(v)) return text(path, v);
    if (v.is_mapping()) children(v, path);
  }

  void children(const Value& mapping, const std::string& path) {
    for (const Entry& e : mapping.entries()) value(e.value, joined(path, key_text(e.key)));
  }

  // Its state has datasets of its own; groups of the flattened style are gathered in one text.
  void optimizer(const Value& v, const OptimizerInfo& info, const std::string& path) {
    std::vector<Entry> groups;
    for (const Entry& e : v.entries()) {
      const std::string key = key_text(e.key);
      if (info.flattened && key.starts_with("param_groups.")) groups.push_back(e);
      else if (key == "param_groups") text(joined(path, key), e.value);
    }
    if (!groups.empty()) text(joined(path, "param_groups"), Value::mapping(Kind::dict, std::move(groups)));
  }

  void text(const std::string& path, const Value& v) {
    texts_.push_back({{{"extra", path}}, plain_json(v)});
  }

  static std::string joined(const std::string& path, const std::string& element) { return path.empty() ? element : path + "." + element; }

  const Parts& parts_;
  std::vector<Hdf5Text>& texts_;
};

void add_tensors(const Checkpoint& checkpoint, const Parts& parts, Hdf5Content& content) {
  std::vector<uint32_t> row(checkpoint.tensors.size(), UINT32_MAX);
  auto add = [&](TensorIndex t, Hdf5Path path) {
    if (row[t] == UINT32_MAX) {
      row[t] = static_cast<uint32_t>(content.tensors.size());
      content.tensors.push_back({t, {}});
    }
    content.tensors[row[t]].paths.push_back(std::move(path));
  };
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.tensor != kNoTensor) add(leaf.tensor, hdf5_path(parts, leaf));
    else if (leaf.part == Part::optimizer && !leaf.field.empty()) {   // a step that is a number, not a tensor
      content.texts.push_back({hdf5_path(parts, leaf), plain_json(*leaf.value)});
    }
  }
  // Tensors inside inert objects are no leaves; their key names them.
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    if (row[t] == UINT32_MAX) add(t, {{"extra", std::string(checkpoint.tensors[t].key)}});
  }
  for (Hdf5Tensor& tensor : content.tensors) std::sort(tensor.paths.begin(), tensor.paths.end(), by_link_path);
}

void add_tree(const Checkpoint& checkpoint, Hdf5Content& content) {
  std::vector<std::pair<std::string, TensorIndex>> order;
  order.reserve(content.tensors.size());
  for (const Hdf5Tensor& tensor : content.tensors) order.emplace_back(hdf5_link_path(tensor.paths.front()), tensor.tensor);
  std::sort(order.begin(), order.end());
  std::vector<TensorIndex> number(checkpoint.tensors.size(), kNoTensor);
  std::vector<std::string> paths;
  for (size_t n = 0; n < order.size(); ++n) {
    number[order[n].second] = static_cast<TensorIndex>(n);
    paths.push_back(std::move(order[n].first));
  }
  const std::string own(kHdf5Own);
  content.texts.push_back({{{own, std::string(kHdf5Paths)}}, hdf5_paths_crc(paths)});
  content.texts.push_back({{{own, std::string(kHdf5Tree)}}, value_to_json(renumbered(checkpoint.tree, number), JsonForm::stored)});
}

// Attributes of the root are small and end at the first zero.
bool fits_attribute(const Annotation& annotation) {
  const auto& [name, text] = annotation;
  return !name.empty() && name.size() < kHdf5MaxAttributeName && text.size() <= kMaxLinkName && name.find('\0') == std::string::npos &&
         text.find('\0') == std::string::npos;
}

// Sorts annotations into those that become attributes and those that are lost.
std::vector<Annotation> choose_attributes(const Checkpoint& checkpoint, std::vector<Annotation>* lost) {
  std::vector<Annotation> attributes;
  for (const Annotation& annotation : annotations(checkpoint)) {
    if (is_format_tag(checkpoint, annotation.first)) continue;
    if (attributes.size() < kHdf5MaxAttributes && fits_attribute(annotation)) attributes.push_back(annotation);
    else if (lost != nullptr) lost->push_back(annotation);
  }
  return attributes;
}

}  // namespace

namespace {

void check_json_size(const Checkpoint& checkpoint) {
  const uint64_t size = value_json_size(checkpoint.tree, JsonForm::stored);
  if (size <= kMaxJson) return;
  throw Error(Exit::refused, "values are too long for HDF5, where they are JSON")
      .saw(fmt::format("at most {} bytes of JSON", kMaxJson), fmt::format("{}", size)).try_("--part model");
}

}  // namespace

Hdf5Content hdf5_content(const Checkpoint& checkpoint) {
  check_json_size(checkpoint);                // before anything is made of them
  Hdf5Content content;
  const Parts parts = find_parts(checkpoint);
  add_tensors(checkpoint, parts, content);
  TextCollector(parts, content.texts).root(checkpoint.tree);
  add_tree(checkpoint, content);
  content.attributes = choose_attributes(checkpoint, nullptr);
  return content;
}

void check_hdf5_content(const Checkpoint& checkpoint, const Hdf5Content& content, FindingSink& sink) {
  std::unordered_map<std::string, std::string> taken;   // link path to whose it is
  auto take = [&](const Hdf5Path& path, const std::string& whose) {
    const auto known = taken.emplace(hdf5_link_path(path), whose);
    if (!known.second) sink.report(error(Exit::refused, "two values would have one HDF5 path").key(whose).found_only(known.first->first));
    for (const std::string& element : path.elements) {
      if (hdf5_link_name(element).size() <= kMaxLinkName) continue;
      sink.report(error(Exit::refused, "name is too long for HDF5").key(whose.substr(0, 200)));
    }
  };
  const bool special = refuse_special_tensors(checkpoint, sink);   // says all of their storages too
  for (const Hdf5Tensor& tensor : content.tensors) {
    const TensorInfo& info = checkpoint.tensors[tensor.tensor];
    const std::string key(info.key);
    if (info.role == Role::storage && !special) sink.report(error(Exit::refused, "bytes of an inert object cannot be a dataset").key(key));
    if (info.shape.size() > kMaxRank) {
      sink.report(error(Exit::refused, "tensor has more dimensions than HDF5 allows").key(key).saw("at most 32", std::to_string(info.shape.size())));
    }
    for (const Hdf5Path& path : tensor.paths) take(path, key);
  }
  for (const Hdf5Text& text : content.texts) take(text.path, text.path.elements.back());
  std::vector<Annotation> lost;
  choose_attributes(checkpoint, &lost);
  for (const Annotation& annotation : lost) report_lost_annotation(annotation, sink);
}

std::string hdf5_paths_crc(const std::vector<std::string>& sorted_paths) {
  std::string text;
  for (const std::string& path : sorted_paths) {
    text += path;
    text += '\n';
  }
  return hex64(crc64(std::as_bytes(std::span(text))));
}

}  // namespace fsdpctl
