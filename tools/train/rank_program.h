// fsdpctl-train's work as one of the ranks: connect, agree, train, and end with the others whatever happens.
#pragma once

#include "tools/train_command.h"

namespace fsdpctl {

class RankProgram final : public TrainingProgram {
 public:
  Exit train(const TrainOptions& options, train::TrainConfig config, const Context& context) override;
  Exit save(const SaveOptions& options, train::TrainConfig config, const Context& context) override;
};

}  // namespace fsdpctl
