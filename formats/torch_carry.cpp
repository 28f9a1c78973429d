#include "formats/torch_carry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/ckpt/piece_order.h"

namespace fsdpctl {
namespace {

constexpr size_t kLong1Digits = 613;   // decimal digits that surely fit LONG1's 255 bytes; LONG4 is refused

// Objects whose functions are on PyTorch's list; their arguments are looked at one by one.
bool is_loadable_object(const ObjectNode& object) {
  if (object.how != ObjectNode::How::reduce || object.has_state || !object.callable.is(Kind::global)) return false;
  const auto& g = object.callable.node<GlobalNode>();
  constexpr std::array<std::string_view, 6> names = {"_rebuild_qtensor", "_rebuild_sparse_tensor", "_rebuild_nested_tensor",
      "_rebuild_meta_tensor_no_storage", "_rebuild_wrapper_subclass", "_rebuild_device_tensor_from_cpu_tensor"};
  return g.module == "torch._utils" && std::find(names.begin(), names.end(), g.name) != names.end();
}

// Why torch.load(weights_only=True) refuses this value itself; empty: it does not.
std::string refusal(const Value& value) {
  switch (value.kind()) {
    case Kind::frozenset: return "a frozenset";
    case Kind::bytes: return value.text().empty() ? "empty bytes" : "";
    case Kind::big_integer: return value.text().size() > kLong1Digits ? "an integer of more than 255 bytes" : "";
    case Kind::default_dict: return "a defaultdict";
    case Kind::memory_format: return "a memory format";
    case Kind::numpy_scalar: return "a numpy scalar";
    case Kind::numpy_array: return "a numpy array";
    case Kind::global: return "a class or function: " + value.node<GlobalNode>().module + "." + value.node<GlobalNode>().name;
    case Kind::object: {
      const auto& object = value.node<ObjectNode>();
      return is_loadable_object(object) ? "" : "an object of " + object.class_name();
    }
    default: return "";
  }
}

class Refusals {
 public:
  // One finding for all values of a kind.
  void report(FindingSink& sink) const {
    for (const auto& [why, first, values] : kinds_) {
      const std::string all = values == 1 ? why : fmt::format("{}; the first of {} such values", why, values);
      sink.report(warning("torch.load needs weights_only=False for this value").key(first).found_only(all));
    }
  }

  void visit(const Value& value) {
    if (value.is(Kind::string)) return;   // most of a big tree
    if (value.identity() != nullptr && !seen_.insert(value.identity()).second) return;
    if (std::string why = refusal(value); !why.empty()) {
      add(std::move(why));
      if (!value.is(Kind::frozenset) && !value.is(Kind::default_dict)) return;   // said of the whole
    }
    if (value.is_sequence()) {
      for (size_t i = 0; i < value.items().size(); ++i) below(std::to_string(i), value.items()[i]);
    } else if (value.is_mapping()) {
      for (const Entry& e : value.entries()) {
        below(key_text(e.key), e.key);
        below(key_text(e.key), e.value);
      }
      if (!value.is(Kind::default_dict)) visit(value.node<MappingNode>().attributes);
    } else if (value.is(Kind::tensor)) {
      visit(value.tensor_attributes());
    } else if (value.is(Kind::object)) {
      visit(value.node<ObjectNode>().args);
    }
  }

 private:
  void below(std::string_view element, const Value& value) {
    const size_t length = path_.size();
    if (!path_.empty()) path_ += '.';
    path_ += element;
    visit(value);
    path_.resize(length);
  }

  void add(std::string why) {
    const auto [found, is_new] = number_of_.try_emplace(why, kinds_.size());
    if (is_new) kinds_.push_back({std::move(why), path_, 0});
    ++kinds_[found->second].values;
  }

  struct SameReason {
    std::string why, first;   // the path of the first such value
    uint64_t values = 0;
  };
  std::vector<SameReason> kinds_;   // in the order of the tree
  std::unordered_map<std::string, size_t> number_of_;
  std::string path_;
  std::unordered_set<const void*> seen_;
};

}  // namespace

void report_unloadable_values(const Checkpoint& checkpoint, FindingSink& sink) {
  Refusals refusals;
  refusals.visit(checkpoint.tree);
  refusals.report(sink);
}

void report_copied_views(const Checkpoint& checkpoint, FindingSink& sink) {
  std::vector<const Piece*> pieces;
  for (const Piece& p : checkpoint.pieces) {
    if (p.encoding == Encoding::raw && p.length > 0) pieces.push_back(&p);
  }
  sort_by_place(pieces);
  std::vector<bool> copied(checkpoint.tensors.size());
  const Piece* reaches = nullptr;   // of those so far, the one that ends last
  for (const Piece* p : pieces) {
    const bool overlaps = reaches && reaches->source == p->source && p->offset < reaches->offset + reaches->length;
    if (overlaps && reaches->tensor != p->tensor) copied[reaches->tensor] = copied[p->tensor] = true;
    if (!overlaps || reaches->offset + reaches->length < p->offset + p->length) reaches = p;
  }
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    if (!copied[t]) continue;
    sink.report(warning("tensor shares bytes with other tensors and becomes a copy").key(std::string(checkpoint.tensors[t].key)));
  }
}

}  // namespace fsdpctl
