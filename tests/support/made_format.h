// A tiny checkpoint format for tests of what surrounds formats: the tree and a table of tensors as JSON, then their bytes.
//
//   single file   8 bytes length (little-endian), JSON, the tensors one after another
//   directory     `index` (the JSON), `part-0.bin` and `part-1.bin` with every other tensor
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/format.h"

namespace fsdpctl {

struct MadeRow {
  TensorIndex tensor = kNoTensor;   // whose bytes are written
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  int64_t file = 0;
  uint64_t offset = 0;              // in the file; in a single file: after the JSON
};

class MadeFormat : public Format {
 public:
  explicit MadeFormat(bool single) : single_(single) {}

  // Called on what is about to be laid out, so that a test can make the writer lie.
  std::function<void(Value& tree, std::vector<MadeRow>& rows)> tamper;
  std::function<void(FindingSink& sink)> carries;

  std::string_view name() const override { return "made"; }
  std::optional<Match> recognize(Source& source) const override;
  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override;
  Capabilities capabilities() const override;
  void can_carry(const Checkpoint& checkpoint, const Target& target, FindingSink& sink) const override;
  FilePlan lay_out(const Checkpoint& checkpoint, const Target& target) const override;

 private:
  bool single_;
};

}  // namespace fsdpctl
