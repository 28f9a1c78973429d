// train, and what of save needs a model: commands whose work is done by fsdpctl-train, a program of its own because it needs
// LibTorch. It takes the same command line; fsdpctl checks what needs no model and starts it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/train/config/train_config.h"
#include "tools/command.h"

namespace fsdpctl {

struct TrainOptions {
  std::string config;
  std::vector<std::string> assignments;
  std::string resume;  // "latest", a path, or empty
  std::optional<int> nproc;
  std::string device = "cpu";
  bool allow_partial = false, masters_from_model = false, other_loss_scale = false;
  bool print_config = false, dry_run = false;
};

// The first training state of a config.
struct SaveOptions {
  std::string config;
  std::vector<std::string> assignments;
  std::string output;
  const Format* format = nullptr;
};

class TrainingProgram {
 public:
  virtual ~TrainingProgram() = default;
  virtual Exit train(const TrainOptions& options, train::TrainConfig config, const Context& context) = 0;
  virtual Exit save(const SaveOptions& options, train::TrainConfig config, const Context& context) = 0;
};

}  // namespace fsdpctl
