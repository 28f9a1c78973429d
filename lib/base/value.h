// Values: the tree of a checkpoint, as Python built it, without Python.
//
// A Value is 16 bytes and cheap to copy: small kinds are inline, the rest share an immutable-by-
// convention, reference-counted node (counts are atomic: values may be copied and dropped from any
// thread, a node must not be changed once it is shared). Containers keep their order. Cycles must not
// be built. Tensors are leaves that name a row of the catalog; their bytes are never in the tree.
//
// What has no meaning here (a class of the user's own, a quantised tensor) is an Object: how Python
// would rebuild it, never executed, written back unchanged where the target is a pickle too.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdpctl {

using TensorIndex = uint32_t;
inline constexpr TensorIndex kNoTensor = 0xFFFFFFFF;

enum class Kind : uint8_t {
  none, boolean, integer, big_integer, real, complex, string, bytes, bytearray,
  list, tuple, set, frozenset, size,                   // sequences; size is torch.Size
  dict, ordered_dict, counter, default_dict,           // mappings
  dtype, device, layout, memory_format, qscheme,       // torch constants; text() is "torch.float32", "cuda:0"
  numpy_scalar, numpy_array,
  tensor,                                              // a leaf: row of the catalog
  storage,                                             // a bare storage inside an inert object: ditto
  global,                                              // a class or function by name, not called
  object,                                              // an inert object
  token,                                               // only while reading: what a handler folded away (pickle_reader.h)
};

class Value;
struct Entry;                                          // key and value of a mapping

// A tensor as a leaf: what Python knows of it besides its bytes.
struct TensorLeaf {
  TensorIndex index = kNoTensor;
  bool parameter = false;         // torch.nn.Parameter
  bool requires_grad = false;
};

struct ValueNode {
  explicit ValueNode(Kind k) : kind(k) {}
  virtual ~ValueNode() = default;
  std::atomic<uint32_t> references{1};
  const Kind kind;
  // A reader's notes: the node lies in another value and may not change any more; levels of nodes below it.
  bool closed = false;
  uint16_t height = 0;
};

class Value {
 public:
  Value() = default;                                   // none
  Value(const Value& other);
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept;
  ~Value();

  static Value boolean(bool v);
  static Value integer(int64_t v);
  static Value big_integer(std::string decimal);       // beyond 64 bits: "-?[0-9]+"
  static Value real(double v);
  static Value complex(double re, double im);
  static Value string(std::string_view utf8);          // may hold surrogates as 3-byte sequences
  static Value bytes(std::string_view raw);
  static Value bytearray(std::string_view raw);
  static Value sequence(Kind kind, std::vector<Value> items);          // list, tuple, set, frozenset, size
  static Value mapping(Kind kind);                                     // dict, ordered_dict, counter
  static Value mapping(Kind kind, std::vector<Entry> entries);
  static Value constant(Kind kind, std::string_view text);             // dtype, device, layout, ...
  static Value numpy_scalar(std::string dtype, std::string raw);
  static Value tensor(TensorLeaf leaf);
  static Value tensor(TensorLeaf leaf, Value attributes);   // with Python attributes (a dict), kept torch to torch
  static Value storage(TensorIndex index, std::string_view storage_class);  // "torch.QInt8Storage"
  static Value global(std::string_view module, std::string_view name);
  static Value token(uint32_t type, uint32_t index);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const { return kind_ >= Kind::list && kind_ <= Kind::size; }
  bool is_mapping() const { return kind_ >= Kind::dict && kind_ <= Kind::default_dict; }
  bool is_constant() const { return kind_ >= Kind::dtype && kind_ <= Kind::qscheme; }

  // Accessors; each requires the kind that it names (checked by assert).
  bool as_boolean() const;
  int64_t as_integer() const;
  double as_real() const;
  std::pair<double, double> as_complex() const;
  std::string_view text() const;                       // string, big_integer, bytes, bytearray, constants
  const std::vector<Value>& items() const;             // sequences
  const std::vector<Entry>& entries() const;           // mappings
  const Value* find(std::string_view key) const;       // mappings: by string key, linear; null if absent
  TensorLeaf as_tensor() const;
  Value tensor_attributes() const;                     // tensors: dict or none
  uint32_t token_type() const;
  uint32_t token_index() const;
  template <class Node> const Node& node() const { return static_cast<const Node&>(*node_); }

  // For builders, before the value is shared.
  std::vector<Value>& mutable_items();
  std::vector<Entry>& mutable_entries();
  template <class Node> Node& mutable_node() { return static_cast<Node&>(*node_); }
  ValueNode* mutable_base() { return inline_kind() ? nullptr : node_; }

  // The same value without a count: only while `owner` lives. A copy of it counts; moving it does not.
  static Value borrow(const Value& owner);
  void keep();                                         // makes a borrowed value an ordinary one
  ValueNode* take_if_unique();                         // the node, count 1, if nothing else refers to it; else null

  // The node's address, the same for each copy: finds shared and cyclic structure. Null when inline.
  const void* identity() const { return inline_kind() ? nullptr : node_; }

  // Takes over a node that was just made with `new` (count 1).
  static Value adopt(ValueNode* node);

 private:
  static constexpr uint8_t kHasNode = 1, kBorrowed = 2, kParameter = 4, kRequiresGrad = 8;
  bool inline_kind() const { return (flags_ & kHasNode) == 0; }
  static void release(ValueNode* node) noexcept;       // the last reference is gone
  void keep_node();
  Kind kind_ = Kind::none;
  uint8_t flags_ = 0;                                  // tensors also: parameter, requires_grad
  union {
    int64_t integer_ = 0;
    double real_;
    ValueNode* node_;
  };
};

inline void Value::keep_node() {
  if (inline_kind()) return;
  node_->references.fetch_add(1, std::memory_order_relaxed);
  flags_ &= static_cast<uint8_t>(~kBorrowed);
}

inline void Value::keep() {
  if (flags_ & kBorrowed) keep_node();
}

inline Value::Value(const Value& other) : kind_(other.kind_), flags_(other.flags_), integer_(other.integer_) {
  keep_node();
}

inline Value::Value(Value&& other) noexcept : kind_(other.kind_), flags_(other.flags_), integer_(other.integer_) {
  other.kind_ = Kind::none;
  other.flags_ = 0;
}

inline Value::~Value() {
  if ((flags_ & (kHasNode | kBorrowed)) == kHasNode && node_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) release(node_);
}

inline ValueNode* Value::take_if_unique() {
  if ((flags_ & (kHasNode | kBorrowed)) != kHasNode || node_->references.load(std::memory_order_acquire) != 1) return nullptr;
  kind_ = Kind::none;
  flags_ = 0;
  return node_;
}

inline Value& Value::operator=(Value&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(flags_, other.flags_);
  std::swap(integer_, other.integer_);
  return *this;
}

inline Value Value::borrow(const Value& owner) {
  static_assert(kBorrowed == kHasNode << 1);
  Value v;
  v.kind_ = owner.kind_;
  v.flags_ = static_cast<uint8_t>(owner.flags_ | (owner.flags_ & kHasNode) << 1);
  v.integer_ = owner.integer_;
  return v;
}

inline Value& Value::operator=(const Value& other) { return *this = Value(other); }

struct Entry {
  Value key;
  Value value;
};

struct TextNode : ValueNode { using ValueNode::ValueNode; std::string text; };
struct ComplexNode : ValueNode { ComplexNode() : ValueNode(Kind::complex) {} double re = 0, im = 0; };
struct SequenceNode : ValueNode { using ValueNode::ValueNode; std::vector<Value> items; };
struct MappingNode : ValueNode {
  using ValueNode::ValueNode;
  std::vector<Entry> entries;
  Value attributes;               // ordered_dict: its __dict__ (`_metadata`); default_dict: its factory; else none
};
struct TensorNode : ValueNode { TensorNode() : ValueNode(Kind::tensor) {} TensorLeaf leaf; Value attributes; };
struct GlobalNode : ValueNode {
  GlobalNode() : ValueNode(Kind::global) {}
  std::string module, name;
  uint32_t handler_id = 0;        // while reading: what PickleHandler::know said
  uint32_t reader_id = 0;         // while reading: the reader's own number for it
};
struct StorageNode : ValueNode { StorageNode() : ValueNode(Kind::storage) {} TensorIndex index = kNoTensor; std::string storage_class; };
struct NumpyScalarNode : ValueNode { NumpyScalarNode() : ValueNode(Kind::numpy_scalar) {} std::string dtype, raw; };  // dtype as str(): "float64"
struct NumpyArrayNode : ValueNode {
  NumpyArrayNode() : ValueNode(Kind::numpy_array) {}
  std::string dtype;              // as numpy prints it: "float64", ">f4", "<U3"
  std::vector<int64_t> shape;
  bool fortran = false;
  std::string raw;                // little-endian unless dtype says '>'
};
// How Python would rebuild it: callable(*args, **kwargs), or NEWOBJ; then state, items, entries.
struct ObjectNode : ValueNode {
  enum class How : uint8_t { reduce, newobj };
  ObjectNode() : ValueNode(Kind::object) {}
  How how = How::newobj;
  Value callable;                 // global, or what it was called on
  Value args;                     // tuple
  Value kwargs;                   // dict or none
  Value state;                    // BUILD; none if absent
  bool has_state = false;
  std::vector<Value> items;       // APPENDS
  std::vector<Entry> entries;     // SETITEMS
  std::string class_name() const; // "module.Name", best known
};

inline Value Value::boolean(bool b) {
  Value v;
  v.kind_ = Kind::boolean;
  v.integer_ = b;
  return v;
}

inline Value Value::integer(int64_t i) {
  Value v;
  v.kind_ = Kind::integer;
  v.integer_ = i;
  return v;
}

inline Value Value::real(double d) {
  Value v;
  v.kind_ = Kind::real;
  v.real_ = d;
  return v;
}

inline Value Value::token(uint32_t type, uint32_t index) {
  Value v;
  v.kind_ = Kind::token;
  v.integer_ = static_cast<int64_t>(static_cast<uint64_t>(type) << 32 | index);
  return v;
}

inline bool Value::as_boolean() const { assert(is(Kind::boolean)); return integer_ != 0; }
inline int64_t Value::as_integer() const { assert(is(Kind::integer)); return integer_; }
inline double Value::as_real() const { assert(is(Kind::real)); return real_; }

inline uint32_t Value::token_type() const {
  assert(is(Kind::token));
  return static_cast<uint32_t>(static_cast<uint64_t>(integer_) >> 32);
}

inline uint32_t Value::token_index() const {
  assert(is(Kind::token));
  return static_cast<uint32_t>(static_cast<uint64_t>(integer_));
}

inline std::string_view Value::text() const {
  assert(is_constant() || kind_ == Kind::big_integer || (kind_ >= Kind::string && kind_ <= Kind::bytearray));
  return node<TextNode>().text;
}

inline const std::vector<Value>& Value::items() const { assert(is_sequence()); return node<SequenceNode>().items; }
inline const std::vector<Entry>& Value::entries() const { assert(is_mapping()); return node<MappingNode>().entries; }
inline std::vector<Value>& Value::mutable_items() { assert(is_sequence()); return mutable_node<SequenceNode>().items; }
inline std::vector<Entry>& Value::mutable_entries() { assert(is_mapping()); return mutable_node<MappingNode>().entries; }

// Deep equality; tensors compare by index, reals by bit pattern.
bool equal(const Value& a, const Value& b);

// Python's str() of a mapping key, as DCP and oracle.py use it: strings as they are, 0 -> "0", True -> "True".
std::string key_text(const Value& key);

// True where some leaf below is a tensor or a storage.
bool has_tensor(const Value& value);
// A dict, or a list that holds one: what DCP and expected.json descend into besides tensors.
bool has_mapping(const Value& value);

}  // namespace fsdpctl
