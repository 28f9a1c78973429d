#include "tests/support/python_metadata.h"

#include <fmt/format.h>

#include <initializer_list>
#include <map>
#include <string_view>
#include <vector>

#include "formats/codec/little_endian.h"

namespace fsdpctl {
namespace {

using namespace std::string_literals;

class Pickler {
 public:
  explicit Pickler(int protocol) : protocol_(protocol) {
    out_ = "\x80"s + static_cast<char>(protocol);
    if (protocol >= 4) out_ += '\x95', put_u64(out_, 1 << 16);   // frames mean nothing to readers
  }

  std::string end() { return std::move(out_ += '.'); }
  void op(char opcode) { out_ += opcode; }

  uint64_t memoize() {
    if (protocol_ >= 4) out_ += '\x94';
    else numbered('q', 'r', memos_);
    return memos_++;
  }
  void fetch(uint64_t id) { numbered('h', 'j', id); }

  uint64_t text(std::string_view s) {
    if (protocol_ >= 4) out_ += '\x8c', out_ += static_cast<char>(s.size());
    else out_ += 'X', put_u32(out_, static_cast<uint32_t>(s.size()));
    out_ += s;
    return memoize();
  }
  // A string that is one object wherever it is used.
  void interned(const std::string& s) {
    if (const auto known = texts_.find(s); known != texts_.end()) return fetch(known->second);
    texts_.emplace(s, text(s));
  }

  void integer(int64_t n) {
    if (n < 256) out_ += 'K', out_ += static_cast<char>(n);
    else if (n < 65536) out_ += 'M', put_u16(out_, static_cast<uint16_t>(n));
    else if (n <= INT32_MAX) out_ += 'J', put_u32(out_, static_cast<uint32_t>(n));
    else out_ += "\x8a\x08", put_u64(out_, static_cast<uint64_t>(n));
  }

  void global(const std::string& module, const std::string& name) {
    const std::string full = module + "." + name;
    if (const auto known = texts_.find(full); known != texts_.end()) return fetch(known->second);
    if (protocol_ >= 4) {
      interned(module);
      text(name);
      op('\x93');
    } else {
      out_ += "c" + module + "\n" + name + "\n";
    }
    texts_.emplace(full, memoize());
  }

  uint64_t size(std::initializer_list<int64_t> dims) {
    global("torch", "Size");
    for (int64_t n : dims) integer(n);
    for (const char opcode : {'\x86', '\x85', 'R'}) op(opcode), last_ = memoize();
    return last_;
  }

  // An object without arguments; its state follows.
  uint64_t object(const std::string& module, const std::string& name) {
    global(module, name);
    op(')');
    op('\x81');
    return memoize();
  }
  void begin_dict() { op('}'), memoize(), op('('); }

 private:
  void numbered(char small, char big, uint64_t id) {
    if (id < 256) out_ += small, out_ += static_cast<char>(id);
    else out_ += big, put_u32(out_, static_cast<uint32_t>(id));
  }

  std::string out_;
  int protocol_;
  uint64_t memos_ = 0, last_ = 0;
  std::map<std::string, uint64_t> texts_;
};

class Writer {
 public:
  explicit Writer(const PythonMetadata& what) : w_(what), p_(what.protocol) {}

  std::string write() {
    p_.object(kModule, "Metadata");
    p_.begin_dict();
    p_.interned("state_dict_metadata");
    items(w_.tensors, [this](int64_t t) { tensor(t); });
    p_.interned("planner_data");
    items(w_.tensors, [this](int64_t t) { path(t); });
    p_.interned("storage_data");
    items(w_.tensors * w_.ranks, [this](int64_t i) { item(i / w_.ranks, i % w_.ranks); });
    p_.interned("version");
    p_.text("1.0.0");
    p_.op('u');
    p_.op('b');
    return p_.end();
  }

 private:
  inline static const std::string kModule = "torch.distributed.checkpoint.metadata";

  // A dict, in batches as Python writes them.
  template <class Item>
  void items(int64_t count, const Item& item) {
    p_.op('}');
    p_.memoize();
    for (int64_t i = 0; i < count; ++i) {
      if (i % 1000 == 0) p_.op('(');
      item(i);
      if (i % 1000 == 999 || i + 1 == count) p_.op('u');
    }
  }

  static std::string name(int64_t t) { return fmt::format("model.layers.{}.weight", t); }

  void field(const std::string& name) { p_.interned(name); }

  void properties() {
    if (w_.shared_properties && properties_ != kNone) return p_.fetch(properties_);
    properties_ = p_.object(kModule, "TensorProperties");
    p_.op('(');
    p_.global("torch", "float32");
    p_.global("torch.serialization", "_get_layout");
    p_.text("torch.strided");
    p_.op('\x85'), p_.memoize(), p_.op('R'), p_.memoize();
    p_.op('\x89');
    p_.global(kModule, "_MEM_FORMAT_ENCODING");
    p_.integer(0);
    p_.op('\x85'), p_.memoize(), p_.op('R'), p_.memoize();
    p_.op('\x89');
    p_.op('t'), p_.memoize(), p_.op('b');
  }

  void tensor(int64_t t) {
    p_.interned(name(t));
    p_.object(kModule, "TensorStorageMetadata");
    p_.begin_dict();
    field("properties"), properties();
    field("size"), p_.size({w_.rows * w_.ranks, w_.columns});
    field("chunks");
    p_.op(']'), p_.memoize();
    uint64_t size = kNone;
    for (int64_t r = 0; r < w_.ranks; ++r) {
      if (r % 1000 == 0) p_.op('(');
      p_.object(kModule, "ChunkStorageMetadata");
      p_.begin_dict();
      field("offsets");
      const uint64_t offset = p_.size({w_.rows * r, 0});
      if (w_.shared_sizes) offsets_.push_back(offset);
      field("sizes");
      if (!w_.shared_chunk_sizes || size == kNone) size = p_.size({w_.rows, w_.columns});
      else p_.fetch(size);
      p_.op('u'), p_.op('b');
      if (r % 1000 == 999 || r + 1 == w_.ranks) p_.op('e');
    }
    p_.op('u'), p_.op('b');
  }

  void path(int64_t t) {
    p_.interned(name(t));
    p_.interned("model");
    p_.text(fmt::format("layers.{}.weight", t));
    p_.op('\x86'), p_.memoize();
  }

  void item(int64_t t, int64_t r) {
    p_.object(kModule, "MetadataIndex");
    p_.begin_dict();
    field("fqn"), p_.interned(name(t));
    field("offset");
    if (w_.shared_sizes) p_.fetch(offsets_[static_cast<size_t>(t * w_.ranks + r)]);
    else p_.size({w_.rows * r, 0});
    field("index"), p_.integer(r);
    p_.op('u'), p_.op('b');
    p_.object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    p_.begin_dict();
    field("relative_path"), p_.text(fmt::format("__{}_0.distcp", r));
    field("offset"), p_.integer(t * static_cast<int64_t>(w_.item_bytes));
    field("length"), p_.integer(static_cast<int64_t>(w_.item_bytes));
    field("transform_descriptors"), p_.op('N');
    p_.op('u'), p_.op('b');
  }

  static constexpr uint64_t kNone = UINT64_MAX;
  const PythonMetadata& w_;
  Pickler p_;
  uint64_t properties_ = kNone;
  std::vector<uint64_t> offsets_;
};

}  // namespace

std::string python_metadata(const PythonMetadata& what) { return Writer(what).write(); }

}  // namespace fsdpctl
