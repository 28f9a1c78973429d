#include "formats/torch_ranks.h"

#include <gtest/gtest.h>

#include <fstream>

#include "formats/torch.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

TEST(TorchRanks, ParsesNames) {
  const auto file = rank_file("model_world_size_2_rank_1.pt");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->group, "model");
  EXPECT_EQ(file->world_size, 2);
  EXPECT_EQ(file->rank, 1);
  EXPECT_EQ(rank_file("a_world_size_1_b_world_size_16_rank_15.pt")->group, "a_world_size_1_b");
  for (const char* name : {"model.pt", "model_world_size_2_rank_2.pt", "model_world_size_2_rank_.pt", "model_rank_0_world_size_2.pt",
                           "model_world_size_2_rank_1.bin", "model_world_size_-2_rank_-3.pt", "m_world_size_99999999999999999999_rank_1.pt",
                           "_world_size__rank_.pt", "model_world_size_rank_1.pt"}) {
    EXPECT_FALSE(rank_file(name)) << name;
  }
}

Finding open_directory_of(const std::vector<std::string>& names) {
  TempDir dir;
  for (const std::string& name : names) std::ofstream(dir / name) << "x";
  auto source = Source::open(dir.path());
  EXPECT_TRUE(torch_format()->recognize(*source));
  return error_of([&] {
    FindingSink sink;
    torch_format()->open(source, sink);
  });
}

TEST(TorchRanks, SaysWhatIsWrongWithADirectory) {
  const Finding whole = open_directory_of({"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"});
  EXPECT_EQ(whole.code, Exit::unsupported);
  EXPECT_NE(whole.found.find("torch.distributed.checkpoint"), std::string::npos);
  const Finding missing = open_directory_of({"model_world_size_3_rank_0.pt", "model_world_size_3_rank_2.pt"});
  EXPECT_EQ(missing.code, Exit::damaged);
  EXPECT_EQ(missing.where.path, "model_world_size_3_rank_1.pt");
  const Finding mixed = open_directory_of({"model_world_size_1_rank_0.pt", "model_world_size_2_rank_0.pt"});
  EXPECT_EQ(mixed.code, Exit::damaged);
  EXPECT_EQ(mixed.expected, "world size 1");
}

Value instance_of(std::string_view module, std::string_view name) {
  auto* object = new ObjectNode;
  object->callable = Value::global(module, name);
  return Value::adopt(object);
}

TEST(TorchRanks, APartIsKnownByItsName) {
  const Value tree = Value::mapping(Kind::dict);
  EXPECT_EQ(why_rank_part("model_world_size_2_rank_1.pt", tree), "rank 1 of 2, by the file's name");
  for (const char* name : {"pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_1_rank12.bin", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}) {
    EXPECT_TRUE(why_rank_part(name, tree)) << name;
  }
  // rank 0 writes whole checkpoints, too.
  for (const char* name : {"model_world_size_1_rank_0.pt", "ep0-ba1-rank0.pt", "model_rank0.pt", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_rank.bin",
                           "pytorch_model_fsdp_x_rank0.bin", "my_pytorch_model_fsdp_rank0.bin"}) {
    EXPECT_FALSE(why_rank_part(name, tree)) << name;
  }
}

TEST(TorchRanks, APartIsKnownByItsShards) {
  const auto holding = [](Value value) { return Value::sequence(Kind::list, {Value::mapping(Kind::dict, {{Value::string("w"), std::move(value)}})}); };
  EXPECT_TRUE(why_rank_part("x.pt", holding(instance_of("torch.distributed.tensor.placement_types", "Shard"))));
  EXPECT_TRUE(why_rank_part("x.pt", holding(instance_of("torch.distributed._shard.sharded_tensor.api", "ShardedTensor"))));
  EXPECT_FALSE(why_rank_part("x.pt", holding(instance_of("torch.distributed.tensor.placement_types", "Replicate"))));
  EXPECT_FALSE(why_rank_part("x.pt", holding(instance_of("mine", "Shard"))));
  EXPECT_FALSE(why_rank_part("model_world_size_1_rank_0.pt", holding(instance_of("torch.distributed.tensor.placement_types", "Shard"))));
}

TEST(TorchRanks, NamesDeepSpeed) {
  for (const char* name : {"mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"}) {
    EXPECT_TRUE(is_deepspeed_file(name)) << name;
    const Finding refused = open_directory_of({name, "zero_pp_rank_2_mp_rank_00_optim_states.pt"});
    EXPECT_EQ(refused.code, Exit::unsupported);
    EXPECT_NE(refused.what.find("DeepSpeed"), std::string::npos);
    EXPECT_NE(refused.found.find("zero_to_fp32.py"), std::string::npos);
  }
  for (const char* name : {"model_states.pt", "mp_rank_00.pt", "rank_0_optim_states.pt"}) EXPECT_FALSE(is_deepspeed_file(name)) << name;
}

}  // namespace
}  // namespace fsdpctl
