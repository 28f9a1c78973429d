#include "lib/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "lib/base/shell_quoted.h"
#include "lib/train/models/layers.h"
#include "lib/train/run_folder.h"

namespace fsdpctl::train {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t peak_memory() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<uint64_t>(use.ru_maxrss) << 10;
}

// Whatever one rank finds wrong with the data, all end with.
void check_data(const TrainConfig& config, int64_t vocabulary, Communicator& world) {
  std::optional<Finding> wrong;
  if (world.rank() == 0) {
    try {
      check_tokens(config, vocabulary);
    } catch (const Error& e) {
      wrong = e.finding();
    }
  }
  world.agree(wrong, "data");
}

}  // namespace

void set_compute_threads(int threads) { at::set_num_threads(threads); }

Trainer::Trainer(TrainConfig config, const TrainerRanks& ranks, Device& device, const FormatList& formats, const TrainerOptions& options)
    : config_(std::move(config)),
      ranks_(ranks),
      formats_(formats),
      options_(options),
      model_([&] {
        const ModelConfig model = model_config_of(config_);
        check_data(config_, vocabulary_of(model), ranks_.world);
        return std::make_unique<FsdpModel>(make_model(model), ranks_.mesh, fsdp_options_of(config_, model), device);
      }()),
      optimizer_([&] {
        if (!options_.restores) set_first_values(*model_, config_, formats_);
        return std::make_unique<FSDPadaptOptimizer>(*model_, ranks_.world, device, optimizer_options_of(config_));
      }()),
      batches_(training_batches(config_)),
      validation_(config_.validation.interval > 0 ? std::optional(validation_batches(config_)) : std::nullopt),
      state_{*model_, *optimizer_, 0, 0, effective_config(config_).dump()} {}

Trainer::~Trainer() = default;

RestoreReport Trainer::restore(const std::string& path, const RestoreOptions& options) {
  FindingSink sink;
  Opened opened = open_checkpoint(formats_, path, sink);
  RestoreOptions all = options;
  all.fixed_config = keys_of(Resumed::refused);
  all.free_config = keys_of(Resumed::free);
  RestoreReport report = restore_training_state(opened.checkpoint, state_, ranks_.world, all);
  last_checkpoint_ = path;
  return report;
}

// ---- a step

// What ranks tell each other of a step: losses by micro-batch number, and the most memory of any rank.
struct Trainer::Exchanged {
  double mean = 0;
  uint64_t peak_memory = 0;
};

Trainer::Exchanged Trainer::exchange(const std::vector<double>& losses, uint64_t count, const char* unit) {
  std::vector<double> mine = losses;
  std::string bytes(sizeof(uint64_t) + mine.size() * sizeof(double), '\0');
  const uint64_t peak = peak_memory();
  std::memcpy(bytes.data(), &peak, sizeof peak);
  if (!mine.empty()) std::memcpy(bytes.data() + sizeof peak, mine.data(), mine.size() * sizeof(double));
  const std::vector<std::string> all = ranks_.world.exchange(bytes, unit);
  Exchanged result;
  for (uint64_t number = 0; number < count; ++number) {
    const std::string& of_rank = all[number % all.size()];
    double loss = 0;
    std::memcpy(&loss, of_rank.data() + sizeof peak + number / all.size() * sizeof loss, sizeof loss);
    result.mean += loss;
  }
  result.mean /= static_cast<double>(count);
  for (const std::string& of_rank : all) {
    uint64_t other = 0;
    std::memcpy(&other, of_rank.data(), sizeof other);
    result.peak_memory = std::max(result.peak_memory, other);
  }
  return result;
}

double Trainer::micro_batch(uint64_t index, bool last) {
  const int64_t length = config_.data.batches.sequence_length;
  const at::Tensor tokens = batches_.tokens(state_.samples, index);
  model_->set_synchronises(last || !config_.sharding.accumulate_locally);
  const at::Tensor logits = model_->forward({tokens.narrow(1, 0, length)}, {config_.training.seed, state_.step, index, true})[0];
  const at::Tensor loss = cross_entropy(logits, tokens.narrow(1, 1, length));
  optimizer_->backward(loss);
  return loss.item<double>();
}

StepReport Trainer::train_step() {
  const Clock::time_point begin = Clock::now();
  const auto ranks = static_cast<uint64_t>(ranks_.world.size()), total = config_.training.micro_batches;
  StepReport report;
  report.loss_scale = optimizer_->scaler().scale();
  std::vector<double> losses;
  for (uint64_t i = 0; i < total / ranks; ++i) {
    losses.push_back(micro_batch(i * ranks + static_cast<uint64_t>(ranks_.world.rank()), i + 1 == total / ranks));
  }
  model_->average_gradients(total);
  const int signal = options_.signal == nullptr ? 0 : options_.signal->load();
  if (signal != 0) optimizer_->request_stop(static_cast<uint8_t>(signal));
  report.skipped = !optimizer_->step();
  const uint64_t samples = total * static_cast<uint64_t>(config_.data.batches.micro_batch_size);
  const auto length = static_cast<uint64_t>(config_.data.batches.sequence_length);
  ++state_.step;
  state_.samples += samples;
  const Exchanged exchanged = exchange(losses, total, "losses");
  report.step = state_.step;
  report.loss = exchanged.mean;
  report.grad_norm = optimizer_->last_grad_norm();
  if (!optimizer_->param_groups().empty()) report.lr = optimizer_->param_groups()[0].options.lr;
  report.tokens = state_.samples * length;
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  report.tokens_per_second = static_cast<double>(samples * length) / std::max(report.seconds, 1e-9);
  report.peak_memory = exchanged.peak_memory;
  return report;
}

// Every rank calls forward equally often, for each gathers parameters from all; what comes twice is left out of the mean.
double Trainer::validate() {
  const at::NoGradGuard no_grad;
  const int64_t length = config_.data.batches.sequence_length;
  const uint64_t there = validation_->samples_per_epoch() / static_cast<uint64_t>(config_.data.batches.micro_batch_size);
  const uint64_t count = std::clamp<uint64_t>(config_.validation.batches, 1, std::max<uint64_t>(there, 1));
  const auto ranks = static_cast<uint64_t>(ranks_.world.size()), rank = static_cast<uint64_t>(ranks_.world.rank());
  std::vector<double> losses;
  for (uint64_t i = 0; i * ranks < count; ++i) {
    const at::Tensor tokens = validation_->tokens(0, std::min(i * ranks + rank, count - 1));
    const at::Tensor logits = model_->forward({tokens.narrow(1, 0, length)})[0];
    losses.push_back(cross_entropy(logits, tokens.narrow(1, 1, length)).item<double>());
  }
  return exchange(losses, count, "validation losses").mean;
}

// ---- a run

void Trainer::after_step(const StepReport& report, TrainingObserver& observer) {
  if (first_rank()) {
    observer.on_step(report);
    if (report.skipped) {
      observer.on_warning(warning("step skipped: some gradient is not finite")
                              .key(fmt::format("step {}", report.step))
                              .found_only(fmt::format("loss {}, loss scale {}, now {}", report.loss, report.loss_scale,
                                                      optimizer_->scaler().scale())));
    }
  }
  const uint64_t most = config_.training.max_consecutive_skips;
  if (most == 0 || optimizer_->skipped_in_a_row() < most) return;
  if (saver_) {
    if (const auto saved = saver_->wait()) report_save(*saved, observer);
  }
  Error error = Error(Exit::failed, "too many steps skipped in a row")
                    .key(fmt::format("step {}", report.step))
                    .found_only(fmt::format("{} steps without a finite gradient; the last good checkpoint is {}", most,
                                            last_checkpoint_.empty() ? "none" : last_checkpoint_));
  if (last_checkpoint_.empty()) throw error;
  throw std::move(error).try_(fmt::format("fsdpctl train {} --resume {}", shell_quoted(config_.path), shell_quoted(last_checkpoint_)));
}

TrainingSaver& Trainer::saver() {
  if (!saver_) {
    SaverOptions options;
    options.format = options_.format;
    options.background = config_.checkpoint.background;
    options.keep = config_.checkpoint.keep;
    options.threads = options_.threads;
    options.max_memory = options_.max_memory;
    options.patience = std::min(options.patience, Milliseconds(static_cast<int64_t>(config_.training.timeout * 1000)));
    saver_ = std::make_unique<TrainingSaver>(state_, ranks_.world, ranks_.store, options);
  }
  return *saver_;
}

SaveReport Trainer::save(const std::string& path) { return saver().save(path); }

void Trainer::report_save(const SaveReport& report, TrainingObserver& observer) {
  last_checkpoint_ = report.path;
  if (first_rank()) observer.on_saved(report);
}

// The last one is waited for.
void Trainer::save_step(TrainingObserver& observer, bool last) {
  const std::string path = step_path(config_.checkpoint.directory, state_.step);
  if (!config_.checkpoint.background || last) {
    if (const auto before = saver().wait()) report_save(*before, observer);
    return report_save(saver().save(path), observer);
  }
  if (const auto before = saver().start(path)) report_save(*before, observer);
}

TrainingOutcome Trainer::run(TrainingObserver& observer) {
  const bool saves = !config_.checkpoint.directory.empty();
  if (saves) saver();   // takes its memory now
  int signal = 0;
  while (state_.step < config_.training.steps && signal == 0) {
    StepReport report = train_step();
    if (validation_ && is_due(config_.validation.interval)) report.validation_loss = validate();
    after_step(report, observer);
    const bool last = state_.step == config_.training.steps;
    signal = last ? 0 : optimizer_->stop_agreed();
    if (saves && (last || signal != 0 || is_due(config_.checkpoint.interval))) save_step(observer, last || signal != 0);
  }
  return {state_.step, signal, last_checkpoint_};
}

}  // namespace fsdpctl::train
