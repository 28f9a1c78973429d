#include "lib/train/checkpoint_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/finding.h"
#include "lib/ckpt/gather.h"
#include "lib/ckpt/parts.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kReadMemory = 4 << 20;
constexpr size_t kListed = 10;   // differences in a message

// Differences of names and shapes, for one message.
class Differences {
 public:
  void add(std::string line) { lines_.push_back(std::move(line)); }
  void throw_if_any() const {
    if (lines_.empty()) return;
    std::string text;
    for (size_t i = 0; i < lines_.size() && i < kListed; ++i) text += (i == 0 ? "" : "; ") + lines_[i];
    if (lines_.size() > kListed) text += fmt::format("; and {} more", lines_.size() - kListed);
    throw Error(Exit::refused, "the checkpoint is of another model").found_only(text);
  }

 private:
  std::vector<std::string> lines_;
};

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

// Tensors of the model part, by FQN.
std::map<std::string, TensorIndex> model_tensors(const Checkpoint& checkpoint) {
  std::map<std::string, TensorIndex> tensors;
  const Parts parts = find_parts(checkpoint);
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.part == Part::model && leaf.tensor != kNoTensor) tensors.emplace(leaf.fqn, leaf.tensor);
  }
  return tensors;
}

std::set<std::string> buffer_names(Module& model) {
  std::set<std::string> names;
  for_each_module(model, [&](Module& module) {
    for (const auto& [name, buffer] : module.buffers()) names.insert(join_fqn(module.fqn(), name));
  });
  return names;
}

// 64-bit values would be rounded on the way.
bool can_widen(DType dtype) {
  return dtype == DType::float32 || (dtype_kind(dtype) == DTypeKind::floating && item_size(dtype) < 4 && can_cast(dtype, DType::float32));
}

class Reader {
 public:
  explicit Reader(const Checkpoint& checkpoint) : checkpoint_(checkpoint), gatherer_(checkpoint, kReadMemory, nullptr) {}

  // Further tensors of a parameter are those of its other names.
  void add(const std::string& fqn, const std::string& name, TensorIndex tensor) { tensors_[fqn].push_back({name, tensor}); }

  void read(const NamedParameter& parameter, uint64_t begin, std::span<float> out) {
    const std::vector<Named>& tensors = tensors_.at(parameter.fqn);
    read(tensors[0].tensor, begin, out);
    for (size_t i = 1; i < tensors.size(); ++i) {
      other_.resize(out.size());
      read(tensors[i].tensor, begin, other_);
      if (std::memcmp(other_.data(), out.data(), out.size_bytes()) == 0) continue;
      throw Error(Exit::refused, "parameters that are one in the model differ in the checkpoint")
          .key(tensors[0].name)
          .found_only(tensors[i].name + " with other values")
          .try_("\"tie_word_embeddings\": false in the model's config");
    }
  }

 private:
  struct Named {
    std::string name;
    TensorIndex tensor;
  };

  void read(TensorIndex tensor, uint64_t begin, std::span<float> out) {
    const TensorInfo& info = checkpoint_.tensors[tensor];
    const std::vector<int64_t> zeros(info.shape.size());
    const Box whole{Dims(zeros), info.shape};
    const uint64_t item = item_size(info.dtype);
    bytes_.resize(out.size() * item);
    gatherer_.read(tensor, whole, begin * item, (begin + out.size()) * item, bytes_);
    if (info.dtype == DType::float32) {
      std::copy(bytes_.begin(), bytes_.end(), std::as_writable_bytes(out).begin());
    } else {
      cast(info.dtype, DType::float32, bytes_, std::as_writable_bytes(out));
    }
  }

  const Checkpoint& checkpoint_;
  Gatherer gatherer_;
  std::map<std::string, std::vector<Named>> tensors_;
  std::vector<std::byte> bytes_;
  std::vector<float> other_;
};

}  // namespace

ParameterValues checkpoint_weights(const Checkpoint& checkpoint, Module& model, bool extra_allowed) {
  name_modules(model);
  std::map<std::string, TensorIndex> tensors = model_tensors(checkpoint);
  const auto reader = std::make_shared<Reader>(checkpoint);
  Differences differences;
  for (const NamedParameter& parameter : named_parameters(model)) {
    std::vector<std::string> names = parameter.aliases;
    names.insert(names.begin(), parameter.fqn);
    bool found = false;
    for (const std::string& name : names) {
      const auto tensor = tensors.find(name);
      if (tensor == tensors.end()) continue;
      const TensorInfo& info = checkpoint.tensors[tensor->second];
      const std::vector<int64_t> shape(info.shape.begin(), info.shape.end());
      if (shape != parameter.slot->shape) {
        differences.add(fmt::format("{} has shape {}, not {}", name, shape_text(shape), shape_text(parameter.slot->shape)));
      } else if (!can_widen(info.dtype)) {
        differences.add(fmt::format("{} is of dtype {}", name, dtype_name(info.dtype)));
      } else {
        reader->add(parameter.fqn, name, tensor->second);
      }
      found = true;
      tensors.erase(tensor);
    }
    if (!found) differences.add(parameter.fqn + " is missing");
  }
  if (!extra_allowed) {
    const std::set<std::string> buffers = buffer_names(model);
    for (const auto& [name, tensor] : tensors) {
      if (!buffers.contains(name)) differences.add(name + " is not in the model");
    }
  }
  differences.throw_if_any();
  return [reader](const NamedParameter& parameter, uint64_t begin, std::span<float> out) { reader->read(parameter, begin, out); };
}

}  // namespace fsdpctl::train
