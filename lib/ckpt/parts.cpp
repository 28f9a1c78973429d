#include "lib/ckpt/parts.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "lib/ckpt/optimizer.h"

namespace fsdpctl {
namespace {

// Names under which people and frameworks keep the model, the likeliest first.
constexpr std::array<std::string_view, 8> kModelNames = {"model",       "module",        "state_dict", "model_state_dict",
                                                         "model_state", "model_weights", "network",    "net"};
constexpr int kDeepestModel = 3;   // elements of its path
constexpr size_t kNone = std::string_view::npos;

bool contains(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

// The generators' states as torch.get_rng_state() and torch.cuda.get_rng_state() give them (all sizes of their releases).
bool is_rng_state(std::string_view name, const TensorInfo& info) {
  if (info.dtype != DType::uint8 || info.shape.size() != 1) return false;
  const int64_t n = info.shape[0];
  if (n == 5056 || n == 5048) return true;
  return (n == 816 || n == 16 || n == 8) &&
         (contains(name, "rng") || contains(name, "seed") || contains(name, "random") || contains(name, "cuda"));
}

// What lies below a value: enough to tell a model from other state.
struct Content {
  size_t weights = 0;      // tensors with dims that are no RNG state
  size_t tensors = 0;      // all others
  size_t values = 0;       // leaves that are no tensors
};

class PartFinder {
 public:
  explicit PartFinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint), met_(checkpoint.tensors.size()) {}

  Parts run() {
    scan(checkpoint_.tree, 0);
    path_.clear();
    choose_model();
    fields_met_.resize(parts_.optimizers.size());
    parameters_met_.resize(parts_.optimizers.size());
    parts_.leaves.reserve(met_.size());
    walk(checkpoint_.tree, {});
    for (OptimizerInfo& o : parts_.optimizers) o.class_guess = guess_class(o);
    return std::move(parts_);
  }

 private:
  // Where fqn and field of a leaf lie in its path.
  struct Context {
    Part part = Part::extra;
    int32_t optimizer = -1;
    size_t fqn_begin = kNone, fqn_end = kNone, field_begin = kNone;
    std::string_view name;   // instead of the path's fqn
  };
  struct Candidate {
    const Value* value = nullptr;
    std::string path;
    int depth = 0;
    size_t rank = 0;
  };
  // Appends an element to path_ for as long as it lives.
  class Element {
   public:
    Element(PartFinder& finder, std::string_view text) : finder_(finder), size_(finder.path_.size()) {
      if (size_ > 0) finder.path_ += '.';
      begin_ = finder.path_.size();
      finder.path_ += text;
    }
    Element(PartFinder& finder, const Entry& e)
        : Element(finder, e.key.is(Kind::string) ? e.key.text() : std::string_view(key_text(e.key))) {}
    ~Element() { finder_.path_.resize(size_); }
    Element(const Element&) = delete;
    size_t begin() const { return begin_; }

   private:
    PartFinder& finder_;
    size_t size_, begin_ = 0;
  };

  // ---- first pass: where are the optimizers, and what could be the model?

  // True where an optimizer lies at or below `v`.
  bool scan(const Value& v, int depth) {
    if (v.is(Kind::list) || v.is(Kind::tuple)) {
      bool found = false;
      for (size_t i = 0; i < v.items().size(); ++i) {
        const Value& item = v.items()[i];
        if (!item.is_mapping() && !item.is_sequence()) continue;
        Element element(*this, std::to_string(i));
        found = scan(item, depth + 1) || found;
      }
      return found;
    }
    if (!v.is_mapping() || v.is(Kind::counter)) return false;
    if (const OptimizerStyle style = optimizer_style(v); style != OptimizerStyle::none) {
      add_optimizer(v, style);
      return true;
    }
    bool found = false;
    for (const Entry& e : v.entries()) {
      if (!e.value.is_mapping() && !e.value.is_sequence()) continue;
      Element element(*this, e);
      const bool below = scan(e.value, depth + 1);
      if (!below) consider(e, depth + 1);
      found = found || below;
    }
    return found;
  }

  void consider(const Entry& e, int depth) {
    const auto name = std::find(kModelNames.begin(), kModelNames.end(), key_of(e));
    if (name == kModelNames.end() || depth > kDeepestModel || !e.value.is_mapping() || !has_tensor(e.value)) return;
    const size_t rank = static_cast<size_t>(name - kModelNames.begin());
    if (best_.value != nullptr && std::pair(best_.depth, best_.rank) <= std::pair(depth, rank)) return;
    best_ = {&e.value, path_, depth, rank};
  }

  void choose_model() {
    const Value& root = checkpoint_.tree;
    if (best_.value == nullptr || best_.depth > 1) {
      if (has_weights_at_root(root)) best_ = {&root, "", 0, 0};
    }
    if (best_.value == nullptr) choose_by_content(root);
    parts_.model = best_.value;
    parts_.model_path = best_.path;
  }

  bool has_weights_at_root(const Value& root) const {
    Content content;
    if (root.is(Kind::tensor)) count(root, "", content);
    if (!root.is_mapping() || optimizers_.count(&root) != 0) return content.weights > 0;
    for (const Entry& e : root.entries()) {
      if (e.value.is(Kind::tensor)) count(e.value, key_text(e.key), content);
    }
    return content.weights > 0;
  }

  void choose_by_content(const Value& root) {
    if (!root.is_mapping() || optimizers_.count(&root) != 0) return;
    const Entry* only = nullptr;
    size_t pure = 0;
    bool all = true;
    for (const Entry& e : root.entries()) {
      if (optimizers_.count(&e.value) != 0) continue;
      Content content;
      count(e.value, key_text(e.key), content);
      all = all && content.values == 0;
      if (content.weights == 0 || content.values > 0 || !e.value.is_mapping()) continue;
      only = &e;
      ++pure;
    }
    if (pure == 1) best_ = {&only->value, key_text(only->key), 1, 0};
    else if (all && pure > 1) best_ = {&root, "", 0, 0}, whole_root_ = true;
  }

  void count(const Value& v, const std::string& name, Content& content) const {
    if (v.is(Kind::tensor)) {
      const TensorInfo& info = checkpoint_.tensors[v.as_tensor().index];
      if (!info.shape.empty() && !is_rng_state(name, info)) ++content.weights;
      else ++content.tensors;
    } else if (is_leaf(v)) {
      ++content.values;
    } else if (v.is_mapping()) {
      for (const Entry& e : v.entries()) count(e.value, key_text(e.key), content);
    } else {
      for (const Value& item : v.items()) count(item, name, content);
    }
  }

  void add_optimizer(const Value& v, OptimizerStyle style) {
    OptimizerInfo info;
    info.value = &v;
    info.path = path_;
    info.flattened = style == OptimizerStyle::flattened;
    names_.push_back(read_param_groups(info, *parts_.arena));
    optimizers_[&v] = static_cast<int32_t>(parts_.optimizers.size());
    parts_.optimizers.push_back(std::move(info));
  }

  // ---- second pass: the leaves

  void walk(const Value& v, Context context) {
    if (v.is_mapping() && context.part != Part::optimizer) {
      const auto found = optimizers_.find(&v);
      if (found != optimizers_.end()) return walk_optimizer(v, found->second);
    }
    if (&v == parts_.model && (!path_.empty() || whole_root_ || v.is(Kind::tensor))) {
      context.part = Part::model;
      context.fqn_begin = path_.empty() ? 0 : path_.size() + 1;
    }
    if (is_leaf(v)) return emit(v, context);
    if (v.is_mapping()) {
      const bool flat_root = &v == parts_.model && path_.empty() && !whole_root_;
      for (const Entry& e : v.entries()) {
        Element element(*this, e);
        walk(e.value, flat_root && belongs_to_flat_model(e) ? Context{Part::model, -1, 0, kNone, kNone, {}} : context);
      }
    } else {
      for (size_t i = 0; i < v.items().size(); ++i) {
        Element element(*this, std::to_string(i));
        walk(v.items()[i], context);
      }
    }
  }

  bool belongs_to_flat_model(const Entry& e) const {
    if (e.value.is(Kind::tensor)) return !is_rng_state(key_text(e.key), checkpoint_.tensors[e.value.as_tensor().index]);
    return key_of(e).ends_with("_extra_state") && optimizers_.count(&e.value) == 0;
  }

  void walk_optimizer(const Value& v, int32_t index) {
    Context context;
    context.part = Part::optimizer;
    context.optimizer = index;
    const bool flattened = parts_.optimizers[static_cast<size_t>(index)].flattened;
    for (const Entry& e : v.entries()) {
      Element element(*this, e);
      if (flattened) walk_flattened(e, context, element.begin());
      else if (key_of(e) == "state" && !is_leaf(e.value)) walk_states(e.value, context);
      else walk(e.value, context);
    }
  }

  // `begin`: where the key `state.<fqn>.<field>` starts in path_.
  void walk_flattened(const Entry& e, Context context, size_t begin) {
    if (const auto names = split_flattened(key_of(e), kFlatState)) {
      context.fqn_begin = begin + kFlatState.size();
      context.fqn_end = context.fqn_begin + names->fqn.size();
      context.field_begin = context.fqn_end + 1;
    }
    walk(e.value, context);
  }

  void walk_states(const Value& states, Context context) {
    const auto& names = names_[static_cast<size_t>(context.optimizer)];
    for (const Entry& e : states.entries()) {
      Element parameter(*this, e);
      context.fqn_begin = parameter.begin();
      context.fqn_end = path_.size();
      context.name = {};
      if (!names.empty()) {
        const auto name = names.find(std::string_view(path_).substr(parameter.begin()));
        if (name != names.end()) context.name = name->second;
      }
      if (is_leaf(e.value) || !e.value.is_mapping()) {
        walk(e.value, context);
        continue;
      }
      for (const Entry& f : e.value.entries()) {
        Element field(*this, f);
        Context below = context;
        below.field_begin = field.begin();
        walk(f.value, below);
      }
    }
  }

  void emit(const Value& v, const Context& context) {
    LeafInfo leaf;
    leaf.part = context.part;
    leaf.optimizer = context.optimizer;
    leaf.value = &v;
    if (v.is(Kind::tensor)) {
      leaf.tensor = v.as_tensor().index;
      leaf.alias = met_[leaf.tensor];
      met_[leaf.tensor] = true;
      // The catalog holds the same text.
      if (checkpoint_.tensors[leaf.tensor].key == path_) leaf.path = checkpoint_.tensors[leaf.tensor].key;
    }
    if (leaf.path.data() == nullptr) leaf.path = parts_.arena->store(path_);
    if (context.fqn_begin < leaf.path.size()) leaf.fqn = leaf.path.substr(context.fqn_begin, context.fqn_end - context.fqn_begin);
    if (!context.name.empty()) leaf.fqn = context.name;
    if (context.field_begin != kNone) leaf.field = leaf.path.substr(context.field_begin);
    if (context.field_begin != kNone) note_state(leaf);
    parts_.leaves.push_back(leaf);
  }

  void note_state(const LeafInfo& leaf) {
    OptimizerInfo& o = parts_.optimizers[static_cast<size_t>(leaf.optimizer)];
    const bool number = leaf.value->is(Kind::integer) || leaf.value->is(Kind::real) || leaf.value->is(Kind::boolean);
    if (number || leaf.tensor != kNoTensor) note_field(o, leaf.field);
    if (!o.parameters.empty() && o.parameters.back() == leaf.fqn) return;
    // Only the flattened style comes back to a parameter.
    if (!o.flattened || parameters_met_[static_cast<size_t>(leaf.optimizer)].insert(leaf.fqn).second) o.parameters.push_back(leaf.fqn);
  }

  // Optimizers have a handful of fields; a damaged file may have a million.
  void note_field(OptimizerInfo& o, std::string_view field) {
    constexpr size_t few = 16;
    if (o.fields.size() < few) {
      if (std::find(o.fields.begin(), o.fields.end(), field) == o.fields.end()) o.fields.push_back(field);
      return;
    }
    std::unordered_set<std::string_view>& met = fields_met_[static_cast<size_t>(&o - parts_.optimizers.data())];
    if (met.empty()) met.insert(o.fields.begin(), o.fields.end());
    if (met.insert(field).second) o.fields.push_back(field);
  }

  const Checkpoint& checkpoint_;
  Parts parts_;
  std::string path_;
  Candidate best_;
  bool whole_root_ = false;   // the model is everything below the root, not only what lies right at it
  std::vector<bool> met_;     // tensors
  std::unordered_map<const Value*, int32_t> optimizers_;
  std::vector<IdNames> names_;   // per optimizer
  std::vector<std::unordered_set<std::string_view>> fields_met_, parameters_met_;   // per optimizer
};

}  // namespace

std::string_view part_name(Part part) {
  constexpr std::array<std::string_view, 3> names = {"model", "optimizer", "extra"};
  return names[static_cast<size_t>(part)];
}

bool is_leaf(const Value& value) {
  if (value.is_mapping()) return value.is(Kind::counter) || value.entries().empty();
  if (!value.is(Kind::list) && !value.is(Kind::tuple)) return true;
  return !has_tensor(value) && !has_mapping(value);
}

Parts find_parts(const Checkpoint& checkpoint) { return PartFinder(checkpoint).run(); }

}  // namespace fsdpctl
