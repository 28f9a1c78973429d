#include "formats/codec/torch_object.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/codec/torch_view.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxDims = 64;                  // as in PyTorch
constexpr const char* kKeptAsIs = "tensor of a kind that is kept as it is, without looking inside";
constexpr uint64_t kMaxExpansion = 1 << 20;      // elements of a view per element of its storage

// What know() answers for functions and types that mean something here.
enum Known : uint32_t {
  kTensorV1 = 1, kTensorV2, kTensorV3, kRebuildParameter, kParameterWithState, kFromType,
  kInertTensor,          // rebuilds a tensor that is more than bytes, a shape and strides
  kTensorType, kParameterType,
};

struct Function {
  std::string_view module, name;
  Known known;
};
constexpr Function kFunctions[] = {
    {"torch._utils", "_rebuild_tensor_v2", kTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", kTensorV3},
    {"torch._utils", "_rebuild_tensor", kTensorV1},
    {"torch._utils", "_rebuild_parameter", kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", kParameterWithState},
    {"torch._tensor", "_rebuild_from_type_v2", kFromType},
    {"torch._tensor", "_rebuild_from_type", kFromType},
    {"torch._utils", "_rebuild_qtensor", kInertTensor},
    {"torch._utils", "_rebuild_sparse_tensor", kInertTensor},
    {"torch._utils", "_rebuild_sparse_csr_tensor", kInertTensor},
    {"torch._utils", "_rebuild_nested_tensor", kInertTensor},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", kInertTensor},
    {"torch._utils", "_rebuild_wrapper_subclass", kInertTensor},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", kInertTensor},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", kInertTensor},
    {"torch._utils", "_rebuild_xla_tensor", kInertTensor},
    {"torch", "Tensor", kTensorType},
    {"torch.tensor", "Tensor", kTensorType},      // releases before 1.9
    {"torch._tensor", "Tensor", kTensorType},
    {"torch.nn.parameter", "Parameter", kParameterType},
};

bool as_dims(const Value& value, std::vector<int64_t>& out) {
  if (!value.is(Kind::tuple) && !value.is(Kind::size) && !value.is(Kind::list)) return false;
  out.clear();
  for (const Value& v : value.items()) {
    if (!v.is(Kind::integer)) return false;
    out.push_back(v.as_integer());
  }
  return out.size() <= kMaxDims;
}

bool as_flag(const Value& value, bool& out) {
  if (value.is(Kind::boolean)) out = value.as_boolean();
  else if (value.is(Kind::integer)) out = value.as_integer() != 0;
  else return false;
  return true;
}

bool has_entries(const Value& v) { return v.is_mapping() && !v.entries().empty(); }

}  // namespace

TorchObjectHandler::TorchObjectHandler(Checkpoint& checkpoint, int rank, const std::string& name, FindingSink& sink)
    : checkpoint_(checkpoint), rank_(rank), name_(name), sink_(sink),
      first_tensor_(static_cast<TensorIndex>(checkpoint.tensors.size())),
      first_piece_(static_cast<PieceIndex>(checkpoint.pieces.size())) {
  static constexpr int64_t kZeros[kMaxDims] = {};
  zeros_ = checkpoint.arena->store(Dims(kZeros));
}

std::string TorchObjectHandler::global_name(const Value& v) {
  if (!v.is(Kind::global)) return "no class";
  return v.node<GlobalNode>().module + "." + v.node<GlobalNode>().name;
}

uint32_t TorchObjectHandler::know(std::string_view module, std::string_view name) {
  for (const Function& f : kFunctions) {
    if (f.name == name && f.module == module) return f.known;
  }
  static_assert(kParameterType < kFirstClass);
  const auto type = storage_class(module, name);
  if (!type) return 0;
  classes_.push_back({*type, checkpoint_.arena->store(std::string(module) + "." + std::string(name))});
  return kFirstClass + static_cast<uint32_t>(classes_.size() - 1);
}

Error TorchObjectHandler::wrong(std::string what, std::string_view function) const {
  return Error(Exit::damaged, std::move(what)).found_only(std::string(function));
}

void TorchObjectHandler::warn_once(std::string what, std::string found) {
  if (!warned_.insert(what + found).second) return;
  sink_.report(warning(std::move(what)).at(name_).found_only(std::move(found)));
}

// ---- tensors

bool TorchObjectHandler::call(const PickleCall& call, Value& result) {
  if (call.newobj) return false;
  switch (call.id) {
    case kTensorV1: case kTensorV2: case kTensorV3: result = rebuild_tensor(call); return true;
    case kRebuildParameter: case kParameterWithState: return rebuild_parameter(call, result);
    case kFromType: return rebuild_from_type(call, result);
    case kInertTensor: warn_once(kKeptAsIs, global_name(call.callable)); return false;
    default: return false;
  }
}

Value TorchObjectHandler::rebuild_tensor(const PickleCall& call) {
  const bool v1 = call.id == kTensorV1, v3 = call.id == kTensorV3;
  const size_t fixed = v3 ? 7 : v1 ? 4 : 6;
  const auto args = call.args;
  const auto bad = [&] { return wrong("tensor is rebuilt from unknown arguments", global_name(call.callable)); };
  if (args.size() < fixed || args.size() > fixed + (v1 ? 0 : 1)) throw bad();
  if (!args[0].is(Kind::storage) || !args[1].is(Kind::integer) || args[1].as_integer() < 0) throw bad();
  if (!as_dims(args[2], size_) || !as_dims(args[3], stride_) || size_.size() != stride_.size()) throw bad();
  TensorLeaf leaf;
  if (!v1 && !as_flag(args[4], leaf.requires_grad)) throw bad();
  if (!v1 && args[5].is_mapping() && !args[5].entries().empty()) {
    warn_once("gradient hooks of a tensor are left out", global_name(call.callable));
  }
  View view;
  view.range = args[0].node<StorageNode>().index;
  view.dtype = storages_[ranges_[view.range].storage].dtype;
  view.offset = static_cast<uint64_t>(args[1].as_integer());
  view.size = size_;
  view.stride = stride_;
  if (v3) {
    if (!args[6].is(Kind::dtype)) throw bad();
    const std::string_view name = args[6].text();
    const auto dtype = dtype_from_name(name.substr(name.find('.') + 1));
    if (!dtype) throw Error(Exit::unsupported, "tensor has an unknown dtype").found_only(std::string(name));
    view.dtype = *dtype;
  }
  if (args.size() > fixed) read_metadata(args.back(), view);
  check_view(view);
  leaf.index = add_view(view);
  return Value::tensor(leaf);
}

void TorchObjectHandler::read_metadata(const Value& metadata, View& view) {
  if (metadata.is(Kind::none)) return;
  if (!metadata.is_mapping()) throw wrong("tensor has metadata of an unknown kind", "metadata");
  for (const Entry& e : metadata.entries()) {
    const std::string key = key_text(e.key);
    bool on = false;
    if ((key == "conj" || key == "neg") && as_flag(e.value, on)) (key == "conj" ? view.conj : view.neg) = on;
    else warn_once("metadata of a tensor is not understood and left out", key);
  }
}

// Bounds, before anything depends on them. Fills bytes; empties stride where it says nothing.
void TorchObjectHandler::check_view(View& view) {
  const Range& range = ranges_[view.range];
  const uint64_t item = item_size(view.dtype), elements = range.bytes / item;
  const auto text = [&] {
    return fmt::format("offset {}, size {}, stride {} in {} elements of {}", view.offset, dims_text(view.size),
                       dims_text(view.stride), elements, dtype_name(view.dtype));
  };
  const bool negative = std::any_of(view.size.begin(), view.size.end(), [](int64_t n) { return n < 0; }) ||
                        std::any_of(view.stride.begin(), view.stride.end(), [](int64_t n) { return n < 0; });
  if (negative) throw wrong("tensor has a negative size or stride", text());
  const auto count = checked_count(view.size);
  if (!count) throw Error(Exit::unsupported, "tensor claims an impossible size").found_only(text());
  const auto used = *count == 0 ? 0 : view_extent(view.size, view.stride);
  if (*count == 0) view.offset = 0;   // PyTorch does not look at it either
  if (!used || view.offset > elements || *used > elements - view.offset) {
    throw Error(Exit::damaged, "tensor lies outside its storage")
        .found_only(fmt::format("{}: {}", storages_[range.storage].key, text()));
  }
  if (*count > 0 && (*count - 1) / kMaxExpansion >= elements) {
    throw Error(Exit::unsupported, "view is unreasonably larger than its storage").found_only(text());
  }
  if (dtype_kind(view.dtype) == DTypeKind::quantized) throw wrong("quantized storage is rebuilt as a plain tensor", text());
  view.bytes = *used * item;
  if (is_row_major(view.size, view.stride) || *count == 0) view.stride = {};
}

TensorIndex TorchObjectHandler::add_view(const View& view) {
  Range& range = ranges_[view.range];
  const bool shared = range.first != kNoTensor;
  uint64_t hash = 0;
  if (shared) {
    if (same_view(range.first, view)) return range.first;
    hash = view_hash(view);
    const auto [begin, end] = later_views_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      if (same_view(it->second, view)) return it->second;
    }
  }
  const TensorIndex index = checkpoint_.add_tensor(view.dtype, view.size);
  if (shared) later_views_.emplace(hash, index);
  else range.first = index;

  Piece piece;
  piece.tensor = index;
  piece.rank = rank_;
  piece.box.size = checkpoint_.tensors[index].shape;
  piece.box.offset = zeros_.first(view.size.size());
  piece.stored = view.dtype;
  piece.conj = view.conj;
  piece.neg = view.neg;
  piece.offset = range.begin + view.offset * item_size(view.dtype);
  piece.length = view.bytes;
  piece.strides = view.stride.empty() ? Dims() : checkpoint_.arena->store(view.stride);
  checkpoint_.add_piece(piece);
  piece_range_.push_back(view.range);
  return index;
}

bool TorchObjectHandler::same_view(TensorIndex tensor, const View& view) const {
  const TensorInfo& info = checkpoint_.tensors[tensor];
  const size_t nth = tensor - first_tensor_;
  const Piece& piece = checkpoint_.pieces[first_piece_ + nth];
  return piece_range_[nth] == view.range && info.dtype == view.dtype && equal(info.shape, view.size) &&
         piece.offset == ranges_[view.range].begin + view.offset * item_size(view.dtype) &&
         equal(piece.strides, view.stride) && piece.conj == view.conj && piece.neg == view.neg;
}

uint64_t TorchObjectHandler::view_hash(const View& view) const {
  uint64_t hash = view.range;
  const auto mix = [&hash](uint64_t v) { hash = (hash ^ v) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29; };
  mix(static_cast<uint64_t>(view.dtype));
  mix(view.offset);
  for (int64_t n : view.size) mix(static_cast<uint64_t>(n));
  for (int64_t n : view.stride) mix(static_cast<uint64_t>(n));
  return hash;
}

bool TorchObjectHandler::rebuild_parameter(const PickleCall& call, Value& result) {
  const auto args = call.args;
  const bool with_state = call.id == kParameterWithState;
  bool requires_grad = false;
  if (args.size() != (with_state ? 4u : 3u) || !as_flag(args[1], requires_grad)) {
    throw wrong("parameter is rebuilt from unknown arguments", global_name(call.callable));
  }
  if (!args[0].is(Kind::tensor)) return false;   // of a kind that is kept as it is
  TensorLeaf leaf = args[0].as_tensor();
  leaf.parameter = true;
  leaf.requires_grad = requires_grad;
  const Value state = with_state ? args[3] : args[0].tensor_attributes();
  if (!state.is(Kind::none) && !state.is_mapping()) {
    warn_once(kKeptAsIs, "parameter with slots");
    return false;
  }
  result = Value::tensor(leaf, has_entries(state) ? state : Value());
  return true;
}

// (function, type, its arguments, state): a subclass, or a plain tensor with attributes.
bool TorchObjectHandler::rebuild_from_type(const PickleCall& call, Value& result) {
  const auto args = call.args;
  if (args.size() != 4 || !args[0].is(Kind::global) || !args[2].is(Kind::tuple)) {
    throw wrong("tensor is rebuilt from unknown arguments", global_name(call.callable));
  }
  const uint32_t type = id_of(args[1]);
  const Value& state = args[3];
  if ((type != kTensorType && type != kParameterType) || (!state.is(Kind::none) && !state.is_mapping())) {
    warn_once(kKeptAsIs, "subclass " + global_name(args[1]));
    return false;
  }
  Value inner;
  if (!this->call({id_of(args[0]), args[0], args[2].items(), call.kwargs, false}, inner) || !inner.is(Kind::tensor)) return false;
  TensorLeaf leaf = inner.as_tensor();
  leaf.parameter = leaf.parameter || type == kParameterType;
  result = Value::tensor(leaf, has_entries(state) ? state : inner.tensor_attributes());
  return true;
}

}  // namespace fsdpctl
