#include "lib/ckpt/step_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpctl {
namespace {

using testing::ElementsAre;

std::vector<std::string> numbers(const std::string& name) {
  const auto step = parse_step_name(name);
  return step ? step->numbers : std::vector<std::string>{"no step"};
}

std::string series(const std::string& name) {
  const auto step = parse_step_name(name);
  return step ? step->series : "no step";
}

TEST(StepName, NamesThatFrameworksUse) {
  EXPECT_THAT(numbers("checkpoint-100"), ElementsAre("100"));            // Transformers
  EXPECT_THAT(numbers("checkpoint_7"), ElementsAre("7"));                // Accelerate
  EXPECT_THAT(numbers("step-0100"), ElementsAre("100"));                 // torchtitan
  EXPECT_THAT(numbers("step_100"), ElementsAre("100"));
  EXPECT_THAT(numbers("step1000"), ElementsAre("1000"));                 // OLMo-core
  EXPECT_THAT(numbers("global_step_20"), ElementsAre("20"));             // verl, ByteCheckpoint
  EXPECT_THAT(numbers("global_step3"), ElementsAre("3"));                // DeepSpeed, LightRFT
  EXPECT_THAT(numbers("best_global_step3"), ElementsAre("3"));           // OpenRLHF
  EXPECT_THAT(numbers("iter_0000100"), ElementsAre("100"));              // Megatron
  EXPECT_THAT(numbers("epoch_3"), ElementsAre("3"));                     // torchtune
  EXPECT_THAT(numbers("dist_epoch_3"), ElementsAre("3"));
  EXPECT_THAT(numbers("epoch_1_step_20"), ElementsAre("1", "20"));       // NeMo Automodel
  EXPECT_THAT(numbers("ep0-ba2"), ElementsAre("0", "2"));                // Composer
  EXPECT_THAT(numbers("epoch=3-step=100.ckpt"), ElementsAre("3", "100"));   // Lightning
  EXPECT_THAT(numbers("epoch=3-step=100-v1.ckpt"), ElementsAre("3", "100", "1"));
  EXPECT_THAT(numbers("0000000100"), ElementsAre("100"));                // lingua
  EXPECT_THAT(numbers("llama-7b-Step-00"), ElementsAre("0"));
}

TEST(StepName, NumbersThatCountSomethingElse) {
  for (const char* name : {"full_rank0", "optimizer_0", "pytorch_model_fsdp_0", "shard-00001", "model-7b", "w4", "version_0",
                           "mp_rank_00", "run2", "step", "step-", "", "-1", "v1", "footstep9", "step-100-merged",
                           "epoch=02-val_loss=0.32.ckpt", "step-10-rank-3", ".ckpt"}) {
    EXPECT_EQ(series(name), "no step") << name;
  }
}

TEST(StepName, OneSeriesIsOneWayOfNaming) {
  EXPECT_EQ(series("checkpoint-9"), series("checkpoint-10"));
  EXPECT_EQ(series("epoch=3-step=100.ckpt"), "epoch=#-step=#.ckpt");
  EXPECT_EQ(series("epoch=3-step=100.ckpt"), series("epoch=4-step=90-v2.ckpt"));
  EXPECT_EQ(series("llama-7b-step-1"), "llama-7b-step-#");
  EXPECT_NE(series("llama-7b-step-1"), series("llama-8b-step-1"));
  EXPECT_NE(series("step-1"), series("step_1"));
}

TEST(StepName, TheFirstDifferentNumberDecides) {
  const auto before = [](const char* a, const char* b) {
    return earlier(*parse_step_name(a), *parse_step_name(b)) && !earlier(*parse_step_name(b), *parse_step_name(a));
  };
  EXPECT_TRUE(before("step-9", "step-10"));
  EXPECT_TRUE(before("step-0011", "step-100"));
  EXPECT_TRUE(before("epoch=3-step=900.ckpt", "epoch=10-step=1.ckpt"));
  EXPECT_TRUE(before("epoch=3-step=9.ckpt", "epoch=3-step=10.ckpt"));
  EXPECT_TRUE(before("epoch=3-step=9.ckpt", "epoch=3-step=9-v1.ckpt"));
  EXPECT_TRUE(before("99999999999999999999998", "99999999999999999999999"));
  EXPECT_FALSE(before("step-007", "step-7"));
}

}  // namespace
}  // namespace fsdpctl
