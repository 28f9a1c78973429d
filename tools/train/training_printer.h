// What a run of training says, on its first rank: to people, as JSON, and to metrics.jsonl.
#pragma once

#include <optional>
#include <string>

#include "lib/train/config/train_config.h"
#include "lib/train/metrics_file.h"
#include "lib/train/trainer.h"
#include "tools/printer.h"

namespace fsdpctl {

class TrainingPrinter final : public train::TrainingObserver {
 public:
  TrainingPrinter(Printer& printer, const train::TrainConfig& config, uint64_t first_step);

  void on_step(const train::StepReport& report) override;
  void on_saved(const train::SaveReport& report) override;
  void on_warning(const Finding& finding) override;

 private:
  Printer& printer_;
  const uint64_t steps_, interval_;
  const int width_;  // of a step's number
  std::optional<train::MetricsFile> metrics_;
  Progress progress_;
};

}  // namespace fsdpctl
