// train --dry-run: what a run would need.
#pragma once

#include "lib/train/config/train_config.h"
#include "tools/command.h"

namespace fsdpctl {

Exit print_forecast(const train::TrainConfig& config, int world_size, const Context& context);

}  // namespace fsdpctl
