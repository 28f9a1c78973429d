// Quantised, sparse and other special tensors: kept from torch to torch, refused by name everywhere else.
#include "formats/special_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/all_formats.h"
#include "tests/support/made_checkpoint.h"

namespace fsdpctl {
namespace {

Value rebuilt(const std::string& module, const std::string& function, std::vector<Value> arguments) {
  auto* node = new ObjectNode;
  node->how = ObjectNode::How::reduce;
  node->callable = Value::global(module, function);
  node->args = Value::sequence(Kind::tuple, std::move(arguments));
  return Value::adopt(node);
}

std::vector<std::string> refused(const Checkpoint& checkpoint, const Format& format) {
  const TargetPlacement placement(1, std::vector<TargetPlacement::Row>(checkpoint.tensors.size()));
  Target target;
  target.placement = &placement;
  FindingSink sink(false);
  format.can_carry(checkpoint, target, sink);
  std::vector<std::string> keys;
  for (const Finding& f : sink.all()) {
    if (f.severity == Severity::error) keys.push_back(f.where.key);
  }
  return keys;
}

TEST(SpecialTensors, OnlyTorchHoldsThem) {
  MadeCheckpoint made;
  const Value w = made.tensor("w", {2}), inner = made.tensor("", {3});
  const Value storage = Value::storage(made.tensor("", {4}, DType::uint8).as_tensor().index, "torch.QInt8Storage");
  made.checkpoint.tensors.back().role = Role::storage;
  made.checkpoint.tree = dict({{"w", w},
                               {"sparse", rebuilt("torch._utils", "_rebuild_sparse_tensor", {inner})},      // its parts are plain tensors
                               {"quantised", rebuilt("torch._utils", "_rebuild_qtensor", {storage})},
                               {"meta", rebuilt("torch._utils", "_rebuild_meta_tensor_no_storage", {Value::integer(3)})},
                               {"deep", Value::sequence(Kind::tuple, {Value::integer(1), rebuilt("my.code", "Box", {rebuilt("torch._tensor", "_rebuild_from_type_v2", {})})})},
                               {"object", rebuilt("my.code", "Config", {Value::integer(1)})}});
  FindingSink sink;
  made.checkpoint.finish(sink);
  const FormatList formats = all_formats();
  EXPECT_THAT(refused(made.checkpoint, *find_format(formats, "torch")), testing::IsEmpty());
  for (const char* format : {"safetensors", "dcp", "hdf5"}) {
    EXPECT_THAT(refused(made.checkpoint, *find_format(formats, format)), testing::UnorderedElementsAre("sparse", "quantised", "meta", "deep")) << format;
  }
}

}  // namespace
}  // namespace fsdpctl
