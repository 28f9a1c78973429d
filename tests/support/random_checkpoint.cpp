#include "tests/support/random_checkpoint.h"

#include <limits>

namespace fsdpctl {
namespace {

constexpr DType kEverywhere[] = {DType::float64, DType::float32,       DType::float16,     DType::bfloat16,        DType::complex64,
                                 DType::int64,   DType::int32,         DType::int16,       DType::int8,            DType::uint64,
                                 DType::uint32,  DType::uint16,        DType::uint8,       DType::boolean,         DType::float8_e4m3fn,
                                 DType::float8_e5m2, DType::float8_e4m3fnuz, DType::float8_e5m2fnuz, DType::float8_e8m0fnu,
                                 DType::float4_e2m1fn_x2};
constexpr DType kNotInSafetensors[] = {DType::complex128, DType::complex32, DType::bits8,
                                       DType::bits16,     DType::bits1x8,   DType::bits2x4, DType::bits4x2};
constexpr int64_t kSizes[] = {0, 1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 64, 97, 128, 509};
constexpr uint64_t kMostElements = 3000;
constexpr const char* kKeys[] = {"a",  "weight", "0",    "7",   "a.b", "",    ".",    "..",  "x/y", "%41", "a b",  "\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87",
                                 "\"", "\n",     "name", "tab\t", "state", "lr", "_", "\xf0\x9f\x94\xa5"};

template <class T, size_t n>
T pick(Random& random, const T (&from)[n]) {
  return from[random() % n];
}

std::string below_path(const std::string& path, const std::string& element) { return path.empty() ? element : path + "." + element; }

}  // namespace

RandomCheckpoint::RandomCheckpoint(uint64_t seed, RandomCheckpointOptions options) : made_(seed, 3, TempDir::Place::memory), options_(options) {
  world_size_ = static_cast<int>(1 + below(17));
  constexpr Cut kStyles[] = {Cut::whole, Cut::dim, Cut::dim, Cut::flat, Cut::grid};
  style_ = pick(made_.random, kStyles);
  MadeEntries root = {{"model", model()}};
  if (!options.model_only) {
    if (!one_in(4)) root.emplace_back("optim", optimizer());
    for (const char* name : {"scheduler", "trainer", "rng"}) {
      if (one_in(2)) root.emplace_back(name, extra(name, 0));
    }
  }
  made_.write();
  Checkpoint& c = made_.checkpoint;
  c.format = "made";
  c.tree = dict(root);
  c.world_size = world_size_;
  for (size_t i = 0; i < made_.files.size(); ++i) c.data_files.push_back(file_name(i));
  c.metadata_file = file_name(0);
  FindingSink strict;
  c.finish(strict);
}

std::vector<int64_t> RandomCheckpoint::shape() {
  std::vector<int64_t> shape;
  uint64_t elements = 1;
  const uint64_t most = one_in(12) ? 10 * kMostElements : kMostElements;
  for (int64_t d = below(5); d > 0; --d) {
    int64_t size = pick(made_.random, kSizes);
    if (elements * static_cast<uint64_t>(size) > most) size = 1 + below(3);
    elements *= static_cast<uint64_t>(size);
    shape.push_back(size);
  }
  return shape;
}

DType RandomCheckpoint::dtype() {
  if (one_in(2)) return DType::float32;
  return !options_.safetensors_dtypes && one_in(4) ? pick(made_.random, kNotInSafetensors) : pick(made_.random, kEverywhere);
}

WrittenTensor RandomCheckpoint::tensor() {
  constexpr Order kOrders[] = {Order::row_major, Order::row_major, Order::row_major, Order::transposed, Order::padded};
  WrittenTensor made;
  made.dtype = dtype();
  made.shape = shape();
  made.order = pick(made_.random, kOrders);
  made.swap = one_in(8);
  made.crc32 = one_in(2);
  place(made);
  return made;
}

void RandomCheckpoint::place(WrittenTensor& tensor) {
  tensor.cut = tensor.shape.empty() || one_in(6) ? Cut::whole : style_;
  tensor.parts = tensor.cut == Cut::grid ? static_cast<int>(1 + below(4)) : world_size_;
  if (!tensor.shape.empty()) tensor.dim = one_in(2) ? 0 : static_cast<int>(below(static_cast<int64_t>(tensor.shape.size())));
  if (one_in(4)) tensor.replicas = static_cast<int>(2 + below(3));
}

Value RandomCheckpoint::add(WrittenTensor wanted) {
  // No safetensors shape counts two values in no dimension.
  if (wanted.dtype == DType::float4_e2m1fn_x2 && wanted.shape.empty()) wanted.dtype = DType::uint8;
  return Value::tensor({made_.add(wanted), false, false});
}

Value RandomCheckpoint::model() {
  constexpr const char* kModules[] = {"layers.0.attn", "layers.1.attn", "layers.10.mlp", "embed", "head", "norm", "b/l.o", ""};
  constexpr const char* kNames[] = {"weight", "bias", "scale", "0", "w%2F", "running_mean"};
  MadeEntries entries;
  for (int64_t n = 1 + below(9); n > 0; --n) {
    const std::string fqn = below_path(pick(made_.random, kModules), pick(made_.random, kNames));
    if (!fresh(below_path("model", fqn))) continue;
    if (!tensors_.empty() && one_in(6)) {
      entries.emplace_back(fqn, tensors_[made_.random() % tensors_.size()]);
      continue;
    }
    parameters_.push_back({fqn, tensor()});
    tensors_.push_back(add(parameters_.back().tensor));
    entries.emplace_back(fqn, tensors_.back());
  }
  return dict(entries);
}

Value RandomCheckpoint::optimizer() { return one_in(3) ? flattened_optimizer() : nested_optimizer(); }

// As the parameter is cut, or on its own; `step` is a number or a tensor.
Value RandomCheckpoint::field(const Parameter& parameter, const std::string& name) {
  if (name == "step") return one_in(2) ? Value::real(3) : add({.dtype = DType::float32, .shape = {}});
  WrittenTensor tensor = parameter.tensor;
  if (one_in(3)) tensor.dtype = dtype();
  return add(tensor);
}

MadeEntries RandomCheckpoint::hyperparameters() {
  return {{"lr", Value::real(1e-3)},
          {"betas", Value::sequence(Kind::tuple, {Value::real(0.9), Value::real(0.999)})},
          {"foreach", Value()},
          {"amsgrad", Value::boolean(one_in(2))},
          {"weight_decay", one_in(2) ? Value::integer(0) : Value::real(0.1)}};
}

Value RandomCheckpoint::nested_optimizer() {
  integer_keys_ = one_in(3);
  std::vector<Entry> state;
  std::vector<Value> params;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Value key = integer_keys_ ? Value::integer(static_cast<int64_t>(i)) : Value::string(parameters_[i].fqn);
    params.push_back(key);
    if (one_in(5)) continue;   // no state yet
    MadeEntries fields;
    for (const char* name : {"exp_avg", "exp_avg_sq", "step"}) {
      if (!one_in(6)) fields.emplace_back(name, field(parameters_[i], name));
    }
    state.push_back({key, dict(fields)});
  }
  MadeEntries group = {{"params", list(params)}};
  for (auto& entry : hyperparameters()) group.push_back(entry);
  return dict({{"state", Value::mapping(Kind::dict, std::move(state))}, {"param_groups", list({dict(group)})}});
}

Value RandomCheckpoint::flattened_optimizer() {
  MadeEntries entries;
  for (const Parameter& parameter : parameters_) {
    for (const char* name : {"exp_avg", "step"}) {
      const std::string key = "state." + parameter.fqn + "." + name;
      if (fresh("optim." + key)) entries.emplace_back(key, field(parameter, name));
    }
    for (auto& entry : hyperparameters()) {
      const std::string key = "param_groups." + parameter.fqn + "." + entry.first;
      if (fresh("optim." + key)) entries.emplace_back(key, entry.second);
    }
  }
  return dict(entries);
}

Value RandomCheckpoint::leaf() {
  switch (below(14)) {
    case 0: return {};
    case 1: return Value::boolean(one_in(2));
    case 2: return Value::integer(below(1000) - 500);
    case 3: return Value::integer(one_in(2) ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max());
    case 4: return Value::big_integer("-340282366920938463463374607431768211456");
    case 5: return Value::real(pick(made_.random, {0.1, -0.0, 1e300, 5e-324, std::numeric_limits<double>::infinity()}));
    case 6: return Value::complex(1, -2.5);
    case 7: return Value::string(pick(made_.random, kKeys));
    case 8: return Value::bytes(std::string_view("\0\xff\n", static_cast<size_t>(1 + below(3))));
    case 9: return Value::sequence(Kind::tuple, {Value::integer(1), Value::string("two")});
    case 10: return list({Value::integer(1), list({}), Value::real(2)});
    case 11: return Value::constant(Kind::dtype, "torch.bfloat16");
    case 12: return Value::sequence(Kind::size, {Value::integer(3), Value::integer(4)});
    default: return Value::sequence(Kind::set, {Value::integer(1), Value::integer(2)});
  }
}

Value RandomCheckpoint::extra(const std::string& path, int depth, bool whole) {
  const int64_t kind = depth == 0 ? 0 : below(depth < 4 ? 6 : 2) + (depth < 4 ? 0 : 4);
  if (kind == 3) return !whole && one_in(4) && !tensors_.empty() ? tensors_.front() : add(tensor());
  if (kind > 3) return leaf();
  if (kind == 2) {
    std::vector<Value> items;
    const bool tuple = one_in(3);
    for (int64_t i = 0, n = below(4); i < n; ++i) items.push_back(extra(below_path(path, std::to_string(i)), depth + 1, whole || tuple));
    return Value::sequence(tuple ? Kind::tuple : Kind::list, std::move(items));
  }
  MadeEntries entries;
  for (int64_t n = below(5); n > 0; --n) {
    const std::string key = pick(made_.random, kKeys), at = below_path(path, key);
    if (fresh(at)) entries.emplace_back(key, extra(at, depth + 1, whole));
  }
  return dict(entries);
}

}  // namespace fsdpctl
