#include "tools/train/training_printer.h"

#include <fmt/format.h>

#include "lib/base/file.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

std::string metrics_path(const train::TrainConfig& config) {
  if (!config.logging.metrics.empty()) return config.logging.metrics;
  return config.checkpoint.directory.empty() ? "" : join_path(config.checkpoint.directory, "metrics.jsonl");
}

}  // namespace

TrainingPrinter::TrainingPrinter(Printer& printer, const train::TrainConfig& config, uint64_t first_step)
    : printer_(printer),
      steps_(config.training.steps),
      interval_(config.logging.interval),
      width_(static_cast<int>(std::to_string(config.training.steps).size())),
      progress_(printer, "train", Progress::Unit::steps) {
  const std::string path = metrics_path(config);
  if (!path.empty()) metrics_.emplace(path, first_step);
  progress_.start_at(first_step);
}

void TrainingPrinter::on_step(const train::StepReport& report) {
  if (metrics_) metrics_->add(report);
  const bool shown = report.step % interval_ == 0 || report.step == steps_ || report.validation_loss || report.skipped;
  if (shown) {
    progress_.erase();
    std::string line = fmt::format("step {:{}}  loss {:.4f}  grad_norm {:.3f}  lr {:.3g}  scale {:g}  {:.0f} tokens/s  {}", report.step,
                                   width_, report.loss, report.grad_norm, report.lr, report.loss_scale, report.tokens_per_second,
                                   size_text(report.peak_memory));
    if (report.validation_loss) line += fmt::format("  validation {:.4f}", *report.validation_loss);
    if (report.skipped) line += "  skipped";
    printer_.text(line);
    printer_.record("step", train::step_fields(report));
    printer_.flush();
  }
  progress_.update(report.step, steps_);
}

void TrainingPrinter::on_saved(const train::SaveReport& report) {
  progress_.erase();
  printer_.remarks(report.warnings);
  std::string line = fmt::format("saved {}  {} in {:.1f} s", visible(report.path), size_text(report.bytes), report.seconds);
  if (report.background) line += fmt::format(", training stood still for {:.3f} s", report.copying + report.waited);
  if (report.waited >= 0.001) line += fmt::format(" ({:.3f} s for the save before)", report.waited);
  printer_.text(line);
  for (const std::string& path : report.removed) printer_.text(fmt::format("removed {}", visible(path)));
  printer_.record("save", {{"path", report.path},
                           {"step", report.step},
                           {"background", report.background},
                           {"bytes", report.bytes},
                           {"seconds", report.seconds},
                           {"waited", report.waited},
                           {"copying", report.copying},
                           {"removed", report.removed}});
  printer_.flush();
}

void TrainingPrinter::on_warning(const Finding& finding) {
  progress_.erase();
  printer_.remark(finding);
}

}  // namespace fsdpctl
