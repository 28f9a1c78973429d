#include "formats/hdf5_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "formats/annotations.h"
#include "formats/hdf5_content.h"
#include "formats/hdf5_scan.h"
#include "lib/base/temporary.h"
#include "lib/base/utf8.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/renumber.h"

namespace fsdpctl {
namespace {

// Datasets that only HDF5's library can read: into a spool file, all that are asked for at once.
class Hdf5Resolver : public ItemResolver {
 public:
  explicit Hdf5Resolver(std::string path) : path_(std::move(path)) {}

  // The number that a piece of Encoding::item has as its offset.
  uint64_t add(std::string dataset) {
    datasets_.push_back(std::move(dataset));
    return datasets_.size() - 1;
  }

  void resolve(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const override {
    if (pieces.empty()) return;
    const std::string& name = checkpoint.source->file(pieces.front()->source).name;
    std::vector<Hdf5Read> reads;
    uint64_t end = 0;
    for (const Piece* piece : pieces) {
      const uint64_t bytes = count(piece->box) * item_size(piece->stored);
      reads.push_back({datasets_.at(piece->offset), end, bytes, {}});
      end += (bytes + 63) / 64 * 64;
    }
    FileHandle spool = FileHandle::temporary(temporary_directory());
    spool.resize(end);
    read_hdf5_datasets(path_, name, spool, reads);
    const SourceIndex source = checkpoint.source->add_spool(std::move(spool), name + " (decoded)");
    for (size_t i = 0; i < reads.size(); ++i) {
      if (!reads[i].failure.empty()) {
        Finding finding = reads[i].failure.front();
        sink.report(finding.key(std::string(checkpoint.tensors[pieces[i]->tensor].key)));
        continue;
      }
      pieces[i]->encoding = Encoding::raw;
      pieces[i]->source = source;
      pieces[i]->offset = reads[i].spool_offset;
      pieces[i]->length = reads[i].length;
    }
  }

 private:
  std::string path_;                     // in the file system
  std::vector<std::string> datasets_;
};

// Nested dicts, built path by path.
class TreeBuilder {
 public:
  void add(const std::vector<std::string>& names, Value value) {
    Node* node = &root_;
    for (const std::string& name : names) {
      const auto known = node->index.find(name);
      if (known != node->index.end()) {
        node = node->children[known->second].second.get();
        continue;
      }
      node->index.emplace(name, node->children.size());
      node->children.emplace_back(name, std::make_unique<Node>());
      node = node->children.back().second.get();
    }
    node->value = std::move(value);
    node->is_leaf = true;
  }
  Value take() { return value_of(root_); }

 private:
  struct Node {
    std::vector<std::pair<std::string, std::unique_ptr<Node>>> children;
    std::unordered_map<std::string, size_t> index;
    Value value;
    bool is_leaf = false;
  };

  static Value value_of(Node& node) {
    if (node.is_leaf) return std::move(node.value);
    std::vector<Entry> entries;
    for (auto& child : node.children) entries.push_back({Value::string(child.first), value_of(*child.second)});
    return Value::mapping(Kind::dict, std::move(entries));
  }

  Node root_;
};

Value text_value(const std::string& text) { return is_utf8(text) ? Value::string(text) : Value::bytes(text); }

class Reader {
 public:
  Reader(std::shared_ptr<Source> source, FindingSink& sink) : sink_(sink) {
    checkpoint_.format = "hdf5";
    name_ = source->entries().front().name;
    path_ = source->path();
    file_ = source->add(name_);
    checkpoint_.source = std::move(source);
    zeros_ = checkpoint_.arena->store(Dims(std::array<int64_t, 64>{}));
    resolver_ = std::make_shared<Hdf5Resolver>(path_);
  }

  Checkpoint run() {
    Hdf5Scan scan = scan_hdf5(path_, name_);
    for (const Finding& remark : scan.remarks) sink_.report(remark);
    for (const Hdf5Object& object : scan.objects) {
      if (object.content == Hdf5Object::Content::tensor) add_tensor(object);
    }
    check_overlap();
    std::optional<Value> recorded = recorded_tree(scan);
    checkpoint_.tree = recorded ? *std::move(recorded) : tree_of_groups(scan);
    for (auto& [key, value] : scan.attributes) add_annotation(checkpoint_, key, std::move(value));
    checkpoint_.resolver = resolver_;
    checkpoint_.metadata_file = name_;
    checkpoint_.data_files = {name_};
    checkpoint_.finish(sink_);
    return std::move(checkpoint_);
  }

 private:
  void add_tensor(const Hdf5Object& object);
  void check_overlap();
  std::optional<Value> recorded_tree(const Hdf5Scan& scan);
  Value tree_of_groups(const Hdf5Scan& scan);

  FindingSink& sink_;
  Checkpoint checkpoint_;
  std::string name_, path_;
  SourceIndex file_ = 0;
  Dims zeros_;
  std::shared_ptr<Hdf5Resolver> resolver_;
  std::unordered_map<uint64_t, TensorIndex> by_address_;
  std::vector<std::string> paths_;         // by tensor: the first in byte order
};

// Hard links to one dataset are names of one tensor.
void Reader::add_tensor(const Hdf5Object& object) {
  const auto known = by_address_.try_emplace(object.address, static_cast<TensorIndex>(checkpoint_.tensors.size()));
  if (!known.second) {
    std::string& path = paths_[known.first->second];
    path = std::min(path, object.path);
    return;
  }
  const auto elements = object.shape.size() <= zeros_.size() ? checked_count(object.shape) : std::nullopt;
  uint64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, item_size(object.dtype), &bytes)) {
    throw Error(Exit::damaged, "shape overflows").at(name_).key(object.path).found_only(dims_text(object.shape));
  }
  Piece piece;
  piece.tensor = checkpoint_.add_tensor(object.dtype, object.shape);
  paths_.push_back(object.path);
  const Dims shape = checkpoint_.tensors[piece.tensor].shape;
  piece.box = {zeros_.first(shape.size()), shape};
  piece.source = file_;
  piece.stored = object.dtype;
  piece.swap = object.swap;
  if (object.storage == Hdf5Object::Storage::library) {
    piece.encoding = Encoding::item;
    piece.offset = resolver_->add(object.path);
  } else {
    piece.offset = object.offset;
    piece.length = bytes;
  }
  checkpoint_.add_piece(piece);
}

// No sound file has two datasets in the same bytes.
void Reader::check_overlap() {
  std::vector<const Piece*> order;
  for (const Piece& piece : checkpoint_.pieces) {
    if (piece.encoding == Encoding::raw && piece.length > 0) order.push_back(&piece);
  }
  std::sort(order.begin(), order.end(), [](const Piece* a, const Piece* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Piece &a = *order[i - 1], &b = *order[i];
    if (b.offset - a.offset >= a.length) continue;
    sink_.report(error(Exit::damaged, "two HDF5 datasets share bytes").at(name_).key(paths_[b.tensor])
                     .range(b.offset, std::min(a.offset + a.length, b.offset + b.length))
                     .saw("bytes of its own", "bytes of " + paths_[a.tensor]));
  }
}

// The tree that fsdpctl wrote, where it is there and still speaks of these datasets.
std::optional<Value> Reader::recorded_tree(const Hdf5Scan& scan) {
  std::string tree, crc;
  for (const Hdf5Object& object : scan.objects) {
    if (object.content != Hdf5Object::Content::text || object.texts.size() != 1) continue;
    if (object.path == std::string(kHdf5Own) + "/" + std::string(kHdf5Tree)) tree = object.texts[0];
    if (object.path == std::string(kHdf5Own) + "/" + std::string(kHdf5Paths)) crc = object.texts[0];
  }
  if (tree.empty()) return std::nullopt;
  std::vector<TensorIndex> order(paths_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TensorIndex>(i);
  std::sort(order.begin(), order.end(), [&](TensorIndex a, TensorIndex b) { return paths_[a] < paths_[b]; });
  std::vector<std::string> sorted;
  for (const TensorIndex t : order) sorted.push_back(paths_[t]);
  if (crc != hdf5_paths_crc(sorted)) {
    sink_.report(warning("recorded tree belongs to other tensors and is ignored").at(name_));
    return std::nullopt;
  }
  checkpoint_.format_detail = "written by fsdpctl";
  return renumbered(value_from_json(tree, name_), order);
}

// Groups as dicts; what has no meaning here is named.
Value Reader::tree_of_groups(const Hdf5Scan& scan) {
  TreeBuilder builder;
  for (const Hdf5Object& object : scan.objects) {
    switch (object.content) {
      case Hdf5Object::Content::tensor: builder.add(object.names, Value::tensor({by_address_.at(object.address), false, false})); break;
      case Hdf5Object::Content::text: builder.add(object.names, text_value(object.texts.at(0))); break;
      case Hdf5Object::Content::texts: {
        std::vector<Value> items;
        for (const std::string& text : object.texts) items.push_back(text_value(text));
        builder.add(object.names, Value::sequence(Kind::list, std::move(items)));
        break;
      }
      case Hdf5Object::Content::nothing: builder.add(object.names, Value()); break;
      case Hdf5Object::Content::empty_group: builder.add(object.names, Value::mapping(Kind::dict)); break;
      case Hdf5Object::Content::unsupported:
        sink_.report(error(Exit::unsupported, "HDF5 dataset holds what PyTorch has no dtype for").at(name_).key(object.path)
                         .found_only(object.texts.empty() ? "" : object.texts[0]));
        break;
    }
  }
  return builder.take();
}

}  // namespace

Checkpoint read_hdf5(std::shared_ptr<Source> source, FindingSink& sink) { return Reader(std::move(source), sink).run(); }

}  // namespace fsdpctl
