#include "lib/train/metrics_file.h"

#include <cmath>
#include <span>
#include <string_view>

namespace fsdpctl::train {
namespace {

constexpr uint64_t kLargest = uint64_t{1} << 30;

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// The lines of steps up to `step`.
std::string kept(const std::string& text, uint64_t step) {
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    const Json line = Json::parse(std::string_view(text).substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    const auto number = line.is_object() ? line.find("step") : line.end();
    if (line.is_object() && number != line.end() && number->is_number_unsigned() && number->get<uint64_t>() <= step) {
      lines.append(text, begin, end + 1 - begin);
    }
    begin = end + 1;
  }
  return lines;
}

}  // namespace

Json step_fields(const StepReport& report) {
  return {{"step", report.step},
          {"loss", finite(report.loss)},
          {"grad_norm", finite(report.grad_norm)},
          {"lr", report.lr},
          {"loss_scale", report.loss_scale},
          {"skipped", report.skipped},
          {"tokens", report.tokens},
          {"seconds", report.seconds},
          {"tokens_per_second", report.tokens_per_second},
          {"peak_memory", report.peak_memory},
          {"validation_loss", report.validation_loss ? finite(*report.validation_loss) : Json()}};
}

MetricsFile::MetricsFile(const std::string& path, uint64_t step) {
  const std::string before = stat_path(path).kind == FileKind::absent ? "" : kept(read_text(path, kLargest), step);
  file_ = FileHandle::open_or_create(path);
  file_.resize(0);
  file_.write(0, std::as_bytes(std::span(before)));
  size_ = before.size();
}

void MetricsFile::add(const StepReport& report) {
  const std::string line = step_fields(report).dump() + "\n";
  file_.write(size_, std::as_bytes(std::span(line)));
  size_ += line.size();
}

}  // namespace fsdpctl::train
