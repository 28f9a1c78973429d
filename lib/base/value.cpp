#include "lib/base/value.h"

#include <fmt/format.h>

#include <bit>
#include <cassert>

namespace fsdpctl {
namespace {

template <class Node>
Node* make_text(Kind kind, std::string text) {
  auto* node = new Node(kind);
  node->text = std::move(text);
  return node;
}

}  // namespace

namespace {

bool is_leaf(Kind kind) {
  return !(kind >= Kind::list && kind <= Kind::default_dict) && kind != Kind::tensor && kind != Kind::object;
}

// Drops nodes without recursion, so that a deep tree (pickles may nest 10,000 levels) frees safely.
void release_tree(ValueNode* root) {
  std::vector<ValueNode*> doomed;
  auto steal = [&](Value& v) {
    ValueNode* child = v.mutable_base();
    if (child == nullptr || is_leaf(child->kind)) return;
    if (child->references.load(std::memory_order_acquire) == 1) {
      child->references.fetch_add(1, std::memory_order_relaxed);   // survives v's own release
      v = Value();
      doomed.push_back(child);
    }
  };
  for (ValueNode* node = root;;) {
    switch (node->kind) {
      case Kind::list: case Kind::tuple: case Kind::set: case Kind::frozenset: case Kind::size:
        for (Value& v : static_cast<SequenceNode*>(node)->items) steal(v);
        break;
      case Kind::dict: case Kind::ordered_dict: case Kind::counter: case Kind::default_dict: {
        auto* m = static_cast<MappingNode*>(node);
        for (Entry& e : m->entries) steal(e.key), steal(e.value);
        steal(m->attributes);
        break;
      }
      case Kind::tensor: steal(static_cast<TensorNode*>(node)->attributes); break;
      case Kind::object: {
        auto* o = static_cast<ObjectNode*>(node);
        steal(o->callable), steal(o->args), steal(o->kwargs), steal(o->state);
        for (Value& v : o->items) steal(v);
        for (Entry& e : o->entries) steal(e.key), steal(e.value);
        break;
      }
      default: break;
    }
    delete node;
    if (doomed.empty()) return;
    node = doomed.back();
    doomed.pop_back();
  }
}

}  // namespace

void Value::release(ValueNode* node) noexcept {
  if (is_leaf(node->kind)) {
    delete node;
  } else {
    release_tree(node);
  }
}

Value Value::adopt(ValueNode* node) {
  Value v;
  v.kind_ = node->kind;
  v.flags_ = kHasNode;
  v.node_ = node;
  return v;
}

Value Value::complex(double re, double im) {
  auto* node = new ComplexNode;
  node->re = re;
  node->im = im;
  return adopt(node);
}

Value Value::big_integer(std::string decimal) { return adopt(make_text<TextNode>(Kind::big_integer, std::move(decimal))); }
Value Value::string(std::string_view s) { return adopt(make_text<TextNode>(Kind::string, std::string(s))); }
Value Value::bytes(std::string_view s) { return adopt(make_text<TextNode>(Kind::bytes, std::string(s))); }
Value Value::bytearray(std::string_view s) { return adopt(make_text<TextNode>(Kind::bytearray, std::string(s))); }
Value Value::constant(Kind kind, std::string_view s) { return adopt(make_text<TextNode>(kind, std::string(s))); }

Value Value::sequence(Kind kind, std::vector<Value> items) {
  auto* node = new SequenceNode(kind);
  node->items = std::move(items);
  return adopt(node);
}

Value Value::mapping(Kind kind) { return adopt(new MappingNode(kind)); }

Value Value::mapping(Kind kind, std::vector<Entry> entries) {
  auto* node = new MappingNode(kind);
  node->entries = std::move(entries);
  return adopt(node);
}

Value Value::numpy_scalar(std::string dtype, std::string raw) {
  auto* node = new NumpyScalarNode;
  node->dtype = std::move(dtype);
  node->raw = std::move(raw);
  return adopt(node);
}

Value Value::tensor(TensorLeaf leaf) {
  Value v;
  v.kind_ = Kind::tensor;
  v.flags_ = static_cast<uint8_t>((leaf.parameter ? kParameter : 0) | (leaf.requires_grad ? kRequiresGrad : 0));
  v.integer_ = leaf.index;
  return v;
}

Value Value::tensor(TensorLeaf leaf, Value attributes) {
  if (attributes.is(Kind::none)) return tensor(leaf);
  auto* node = new TensorNode;
  node->leaf = leaf;
  node->attributes = std::move(attributes);
  return adopt(node);
}

Value Value::storage(TensorIndex index, std::string_view storage_class) {
  auto* node = new StorageNode;
  node->index = index;
  node->storage_class = storage_class;
  return adopt(node);
}

Value Value::global(std::string_view module, std::string_view name) {
  auto* node = new GlobalNode;
  node->module = module;
  node->name = name;
  return adopt(node);
}

std::pair<double, double> Value::as_complex() const {
  assert(is(Kind::complex));
  const auto& c = node<ComplexNode>();
  return {c.re, c.im};
}

const Value* Value::find(std::string_view key) const {
  for (const Entry& e : entries()) {
    if (e.key.is(Kind::string) && e.key.text() == key) return &e.value;
  }
  return nullptr;
}

TensorLeaf Value::as_tensor() const {
  assert(is(Kind::tensor));
  if (flags_ & kHasNode) return node<TensorNode>().leaf;
  return {static_cast<TensorIndex>(integer_), (flags_ & kParameter) != 0, (flags_ & kRequiresGrad) != 0};
}

std::string ObjectNode::class_name() const {
  const Value* named = &callable;
  // copyreg._reconstructor(cls, ...), copyreg.__newobj__(cls): the class is the first argument.
  if (named->is(Kind::global) && named->node<GlobalNode>().module == "copyreg" && args.is(Kind::tuple) && !args.items().empty()) {
    named = &args.items().front();
  }
  if (!named->is(Kind::global)) return "unknown";
  const auto& g = named->node<GlobalNode>();
  return g.module + "." + g.name;
}

Value Value::tensor_attributes() const {
  assert(is(Kind::tensor));
  return flags_ & kHasNode ? node<TensorNode>().attributes : Value();
}

namespace {

bool equal_entries(const std::vector<Entry>& a, const std::vector<Entry>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i].key, b[i].key) || !equal(a[i].value, b[i].value)) return false;
  }
  return true;
}

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i])) return false;
  }
  return true;
}

bool equal_nodes(const Value& a, const Value& b) {
  switch (a.kind()) {
    case Kind::complex: {
      const auto x = a.as_complex(), y = b.as_complex();
      return std::bit_cast<uint64_t>(x.first) == std::bit_cast<uint64_t>(y.first) &&
             std::bit_cast<uint64_t>(x.second) == std::bit_cast<uint64_t>(y.second);
    }
    case Kind::list: case Kind::tuple: case Kind::set: case Kind::frozenset: case Kind::size:
      return equal_items(a.items(), b.items());
    case Kind::dict: case Kind::ordered_dict: case Kind::counter: case Kind::default_dict:
      return equal_entries(a.entries(), b.entries()) &&
             equal(a.node<MappingNode>().attributes, b.node<MappingNode>().attributes);
    case Kind::numpy_scalar: {
      const auto &x = a.node<NumpyScalarNode>(), &y = b.node<NumpyScalarNode>();
      return x.dtype == y.dtype && x.raw == y.raw;
    }
    case Kind::numpy_array: {
      const auto &x = a.node<NumpyArrayNode>(), &y = b.node<NumpyArrayNode>();
      return x.dtype == y.dtype && x.shape == y.shape && x.fortran == y.fortran && x.raw == y.raw;
    }
    case Kind::storage: {
      const auto &x = a.node<StorageNode>(), &y = b.node<StorageNode>();
      return x.index == y.index && x.storage_class == y.storage_class;
    }
    case Kind::global: {
      const auto &x = a.node<GlobalNode>(), &y = b.node<GlobalNode>();
      return x.module == y.module && x.name == y.name;
    }
    case Kind::object: {
      const auto &x = a.node<ObjectNode>(), &y = b.node<ObjectNode>();
      return x.how == y.how && x.has_state == y.has_state && equal(x.callable, y.callable) && equal(x.args, y.args) &&
             equal(x.kwargs, y.kwargs) && equal(x.state, y.state) && equal_items(x.items, y.items) &&
             equal_entries(x.entries, y.entries);
    }
    default:
      return a.text() == b.text();
  }
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::none: return true;
    case Kind::boolean: return a.as_boolean() == b.as_boolean();
    case Kind::integer: return a.as_integer() == b.as_integer();
    case Kind::real: return std::bit_cast<uint64_t>(a.as_real()) == std::bit_cast<uint64_t>(b.as_real());
    case Kind::token: return a.token_type() == b.token_type() && a.token_index() == b.token_index();
    case Kind::tensor: {
      const TensorLeaf x = a.as_tensor(), y = b.as_tensor();
      return x.index == y.index && x.parameter == y.parameter && x.requires_grad == y.requires_grad &&
             equal(a.tensor_attributes(), b.tensor_attributes());
    }
    default: return a.identity() == b.identity() || equal_nodes(a, b);
  }
}

bool has_tensor(const Value& value) {
  if (value.is(Kind::tensor) || value.is(Kind::storage)) return true;
  if (value.is_mapping()) {
    for (const Entry& e : value.entries()) {
      if (has_tensor(e.value)) return true;
    }
  } else if (value.is_sequence()) {
    for (const Value& v : value.items()) {
      if (has_tensor(v)) return true;
    }
  }
  return false;
}

bool has_mapping(const Value& value) {
  if (value.is_mapping()) return true;
  if (!value.is(Kind::list)) return false;
  for (const Value& v : value.items()) {
    if (has_mapping(v)) return true;
  }
  return false;
}

}  // namespace fsdpctl
