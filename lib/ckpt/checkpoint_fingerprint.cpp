// checkpoint_fingerprint() of engine.h: one number for everything that a checkpoint holds.
#include <algorithm>
#include <string>

#include "lib/base/checksum.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/engine.h"

namespace fsdpctl {
namespace {

// The lines, one behind the other in one text: no string for each.
class Lines final : public TreeVisitor {
 public:
  Lines(const Checkpoint& checkpoint, const std::vector<TensorSum>& sums)
      : checkpoint_(checkpoint), sums_(sums), shown_(checkpoint.tensors.size()) {}

  void leaf(std::string_view path, const Value& value) override {
    if (value.is(Kind::tensor)) return add_tensor(path, value.as_tensor().index);
    uint64_t raw = ~uint64_t{0};
    value_json_in_pieces(value, JsonForm::canonical, [&raw](std::string_view piece) { raw = crc64_raw(std::as_bytes(std::span(piece)), raw); });
    add(path, "json", "", ~raw);
  }

  // Tensors and storages inside inert objects are no leaves.
  void add_hidden() {
    for (TensorIndex t = 0; t < checkpoint_.tensors.size(); ++t) {
      if (!shown_[t]) add_tensor(checkpoint_.tensors[t].key, t);
    }
  }

  uint64_t sorted_crc64() {
    const auto line = [this](size_t i) { return std::string_view(text_).substr(starts_[i], length(i)); };
    std::vector<size_t> order(starts_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return line(a) < line(b); });
    uint64_t raw = ~uint64_t{0};   // CRC-64/XZ begins and ends inverted
    for (size_t i : order) raw = crc64_raw(std::as_bytes(std::span(line(i))), raw);
    return ~raw;
  }

 private:
  static std::string dims_json(Dims dims) {
    std::string text = "[";
    for (size_t d = 0; d < dims.size(); ++d) text.append(d == 0 ? "" : ",").append(std::to_string(dims[d]));
    return text + "]";
  }

  void add_tensor(std::string_view path, TensorIndex t) {
    const TensorInfo& info = checkpoint_.tensors[t];
    const std::string_view type = info.role == Role::storage ? "storage" : dtype_name(info.dtype);
    add(path, type, dims_json(info.shape), sums_[t].crc64);
    shown_[t] = true;
  }

  void add(std::string_view key, std::string_view type, std::string_view shape, uint64_t crc) {
    starts_.push_back(text_.size());
    for (const std::string_view field : {key, type, shape}) text_.append(field).append("\t");
    text_.append(hex64(crc)).append("\n");
  }

  size_t length(size_t i) const { return (i + 1 < starts_.size() ? starts_[i + 1] : text_.size()) - starts_[i]; }

  const Checkpoint& checkpoint_;
  const std::vector<TensorSum>& sums_;
  std::vector<bool> shown_;
  std::string text_;
  std::vector<size_t> starts_;
};

}  // namespace

uint64_t checkpoint_fingerprint(const Checkpoint& checkpoint, const std::vector<TensorSum>& sums) {
  Lines lines(checkpoint, sums);
  walk_tree(checkpoint.tree, lines);
  lines.add_hidden();
  return lines.sorted_crc64();
}

}  // namespace fsdpctl
