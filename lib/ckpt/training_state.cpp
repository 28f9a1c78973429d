#include "lib/ckpt/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "lib/base/element.h"
#include "lib/base/value_json.h"

namespace fsdpctl {
namespace {

constexpr int kDeepest = 64;         // state dicts nest a few levels; deeper ones are `other`
constexpr size_t kLongestText = 60;  // of one value in a summary

std::string shortened(std::string text) {
  if (text.size() > kLongestText) text = text.substr(0, kLongestText) + "...";
  return text;
}

// A plain value for a summary; empty for one that has no short form.
std::string value_text(const Value* value) {
  if (value == nullptr || has_tensor(*value)) return {};
  switch (value->kind()) {
    case Kind::integer:
    case Kind::real:
    case Kind::boolean:
      return value_to_json(*value, JsonForm::shown);
    case Kind::string:
      return shortened(std::string(value->text()));
    case Kind::list: {
      std::string text;
      for (const Value& item : value->items()) text += (text.empty() ? "" : ", ") + value_text(&item);
      return shortened(text);
    }
    default:
      return {};
  }
}

void append(std::string& summary, const std::string& label, const Value* value) {
  const std::string text = value_text(value);
  if (!text.empty()) summary += (summary.empty() ? "" : ", ") + label + " " + text;
}

bool is_scaler(const Value& v) {
  return v.find("scale") && (v.find("growth_factor") || v.find("_growth_tracker"));
}

bool is_scheduler(const Value& v) {
  return v.find("last_epoch") &&
         (v.find("_step_count") || v.find("base_lrs") || v.find("_last_lr") || v.find("_schedulers"));
}

std::string scaler_summary(const Value& v) {
  std::string summary;
  append(summary, "scale", v.find("scale"));
  append(summary, "growth tracker", v.find("_growth_tracker"));
  append(summary, "of", v.find("growth_interval"));
  const size_t of = summary.find(", of ");
  if (of != std::string::npos) summary.erase(of, 1);
  return summary;
}

std::string scheduler_summary(const Value& v) {
  std::string summary;
  append(summary, "last_epoch", v.find("last_epoch"));
  append(summary, "lr", v.find("_last_lr"));
  return summary;
}

bool names_random_state(std::string_view path) {
  std::string name(path);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name.find("rng") != std::string::npos || name.find("random_state") != std::string::npos ||
         name.find("generator_state") != std::string::npos;
}

class Counter : public TreeVisitor {
 public:
  void leaf(std::string_view, const Value&) override { ++leaves; }
  uint64_t leaves = 0;
};

uint64_t leaves_below(const Value& value) {
  Counter counter;
  walk_tree(value, counter);
  return counter.leaves;
}

class Finder {
 public:
  explicit Finder(const Parts& parts) : parts_(parts) {}

  void visit(const Value& value, const std::string& path, int depth) {
    if (belongs_to_part(value)) return;
    const bool below_root = depth > 0;
    if (value.is_mapping() && is_scaler(value)) {
      add(StateKind::scaler, value, path, scaler_summary(value));
    } else if (value.is_mapping() && is_scheduler(value)) {
      add(StateKind::scheduler, value, path, scheduler_summary(value));
    } else if (below_root && names_random_state(path.substr(path.rfind('.') + 1))) {
      add(StateKind::rng, value, path, {});
    } else if (depth < kDeepest && value.is_mapping() && !value.entries().empty()) {
      for (const Entry& entry : value.entries()) visit(entry.value, child(path, key_text(entry.key)), depth + 1);
    } else if (depth < kDeepest && value.is(Kind::list) && has_mapping(value)) {
      for (size_t i = 0; i < value.items().size(); ++i)
        visit(value.items()[i], child(path, std::to_string(i)), depth + 1);
    } else if (value.is(Kind::integer) || value.is(Kind::real)) {
      add(StateKind::counter, value, path, value_text(&value));
    } else {
      add(StateKind::other, value, path, value_text(&value));
    }
  }

  // The model's own container, where it is the root, may hold other things beside tensors.
  void visit_root(const Value& root) {
    if (parts_.model != &root) {
      visit(root, {}, 0);
      return;
    }
    if (!root.is_mapping()) return;  // a bare tensor is all model
    for (const Entry& entry : root.entries()) {
      const std::string path = key_text(entry.key);
      if (!entry.value.is(Kind::tensor) || names_random_state(path)) visit(entry.value, path, 1);
    }
  }

  std::vector<StateEntry> found;

 private:
  static std::string child(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  bool belongs_to_part(const Value& value) const {
    if (&value == parts_.model) return true;
    return std::any_of(parts_.optimizers.begin(), parts_.optimizers.end(),
                       [&](const OptimizerInfo& optimizer) { return &value == optimizer.value; });
  }

  void add(StateKind kind, const Value& value, const std::string& path, std::string summary) {
    found.push_back({kind, path, std::move(summary), leaves_below(value)});
  }

  const Parts& parts_;
};

// Makes the pieces of a few tensors raw, where resolving all would read the whole checkpoint's items.
void resolve_some(Checkpoint& checkpoint, const std::vector<TensorIndex>& tensors) {
  if (!checkpoint.resolver) return;
  std::vector<Piece*> pieces;
  for (const TensorIndex t : tensors) {
    const TensorInfo& info = checkpoint.tensors[t];
    for (uint32_t i = 0; i < info.piece_count; ++i) {
      Piece& piece = checkpoint.pieces[info.first_piece + i];
      if (piece.encoding == Encoding::item) pieces.push_back(&piece);
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece* a, const Piece* b) {
    return a->source != b->source ? a->source < b->source : a->offset < b->offset;
  });
  FindingSink sink;
  for (auto begin = pieces.begin(); begin != pieces.end();) {
    const auto end = std::find_if(begin, pieces.end(), [&](const Piece* p) { return p->source != (*begin)->source; });
    checkpoint.resolver->resolve(checkpoint, {begin, end}, sink);
    begin = end;
  }
}

double read_scalar(const Checkpoint& checkpoint, TensorIndex t, const EngineOptions& options) {
  std::vector<std::byte> bytes;
  read_tensor(checkpoint, t, options, [&](uint64_t, std::span<const std::byte> block) {
    bytes.insert(bytes.end(), block.begin(), block.end());
  });
  return element_value(checkpoint.tensors[t].dtype, bytes.data());
}

}  // namespace

std::vector<StateEntry> find_training_state(const Checkpoint& checkpoint, const Parts& parts) {
  Finder finder(parts);
  finder.visit_root(checkpoint.tree);
  return std::move(finder.found);
}

std::optional<StepRange> optimizer_steps(Checkpoint& checkpoint, const Parts& parts, int optimizer, uint64_t most,
                                         const EngineOptions& options) {
  StepRange range;
  std::vector<TensorIndex> tensors;
  std::vector<double> steps;
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.optimizer != optimizer || leaf.field != "step") continue;
    ++range.total;
    if (leaf.value->is(Kind::integer)) steps.push_back(static_cast<double>(leaf.value->as_integer()));
    if (leaf.value->is(Kind::real)) steps.push_back(leaf.value->as_real());
    if (leaf.tensor == kNoTensor || tensors.size() >= most) continue;
    const TensorInfo& info = checkpoint.tensors[leaf.tensor];
    if (is_numeric(info.dtype) && count(info.shape) == 1) tensors.push_back(leaf.tensor);
  }
  resolve_some(checkpoint, tensors);
  for (const TensorIndex t : tensors) steps.push_back(read_scalar(checkpoint, t, options));
  if (steps.empty()) return std::nullopt;
  range.read = steps.size();
  range.lowest = *std::min_element(steps.begin(), steps.end());
  range.highest = *std::max_element(steps.begin(), steps.end());
  return range;
}

}  // namespace fsdpctl
