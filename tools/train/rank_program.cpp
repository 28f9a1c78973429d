#include "tools/train/rank_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "lib/base/file.h"
#include "lib/base/parallel.h"
#include "lib/base/shell_quoted.h"
#include "lib/comm/gloo_ranks.h"
#include "lib/train/run_folder.h"
#include "lib/train/trainer.h"
#include "tools/command_line.h"
#include "tools/format_option.h"
#include "tools/signals.h"
#include "tools/start_training.h"
#include "tools/train/dry_run.h"
#include "tools/train/training_printer.h"

namespace fsdpctl {
namespace {

using train::TrainConfig;

// Does on the first rank what only one may do, and gives its result to all; its failure ends all.
std::string on_first(Communicator& world, const char* unit, const std::function<std::string()>& body) {
  std::string result;
  std::optional<Finding> wrong;
  if (world.rank() == 0) {
    try {
      result = body();
    } catch (const Error& e) {
      wrong = e.finding();
    }
  }
  world.agree(wrong, unit);
  return world.exchange(result, unit)[0];
}

GlooRanksOptions ranks_options(const TrainConfig& config) {
  GlooRanksOptions options;
  options.communicator.timeout = Milliseconds(static_cast<int64_t>(config.training.timeout * 1000));
  options.connect = std::min(options.connect, options.communicator.timeout);
  return options;
}

// The device of this rank. Here LibTorch computes on the CPU alone.
std::unique_ptr<train::Device> open_device_of(const std::string& kind, const Launch& launch, int threads) {
  const train::DeviceName name = train::device_of_rank(kind, launch.local_rank);
  train::DeviceOptions options;
  options.threads = threads;
  std::unique_ptr<train::Device> device = train::open_device(name.text(), options);
  if (name.cuda) {
    throw Error(Exit::unsupported, "models train on the CPU alone in this build").key("--device").saw("cpu", name.text());
  }
  return device;
}

// A rank of a run, and what it shares with the others.
class Rank {
 public:
  Rank(GlooRanks& ranks, const Launch& launch, TrainConfig config, const std::string& device, const Context& context)
      : ranks_(ranks), launch_(launch), config_(std::move(config)), context_(context) {
    const int share = std::max(1, thread_count(0) / std::max(1, launch.local_world_size));
    threads_ = config_.training.threads > 0 ? config_.training.threads : share;
    train::set_compute_threads(threads_);
    device_ = open_device_of(device, launch, threads_);
    make_mesh();
  }

  Exit train(const TrainOptions& options);
  Exit save(const SaveOptions& options);

 private:
  void make_mesh();
  std::unique_ptr<train::Trainer> make_trainer(bool restores);
  std::string checkpoint_to_resume(const std::string& resume);
  void print_resumed(const train::RestoreReport& report, const std::string& path);
  void check_folder(uint64_t step, bool resumed);
  Exit ended(const train::TrainingOutcome& outcome, const TrainOptions& options);
  bool first() const { return world().rank() == 0; }
  Communicator& world() const { return ranks_.world(); }

  GlooRanks& ranks_;
  const Launch launch_;
  TrainConfig config_;
  const Context& context_;
  int threads_ = 1;
  std::unique_ptr<train::Device> device_;
  std::unique_ptr<Communicator> shard_, replicate_;
  train::Mesh mesh_;
  std::optional<train::RunFolder> folder_;   // of the first rank
};

// Rank replica * shards + shard, as PyTorch's two-dimensional mesh has it.
void Rank::make_mesh() {
  const int shards = config_.sharding.shards, replicas = config_.sharding.replicas, rank = launch_.rank;
  const auto group = [&](const std::string& name, int count, int begin, int stride) {
    std::vector<int> members;
    for (int i = 0; i < count; ++i) members.push_back(begin + i * stride);
    return ranks_.group(name, members);
  };
  if (shards > 1 && replicas > 1) {
    shard_ = group(fmt::format("replica {}", rank / shards), shards, rank / shards * shards, 1);
    replicate_ = group(fmt::format("shard {}", rank % shards), replicas, rank % shards, shards);
    mesh_ = {shard_.get(), replicate_.get()};
  } else {
    mesh_ = {shards > 1 ? &world() : nullptr, replicas > 1 ? &world() : nullptr};
  }
}

std::unique_ptr<train::Trainer> Rank::make_trainer(bool restores) {
  const Globals& globals = context_.printer.globals();
  train::TrainerOptions options;
  options.format = find_format(context_.formats, config_.checkpoint.format);
  options.threads = globals.threads > 0 ? globals.threads : threads_;
  options.max_memory = globals.max_memory;
  options.signal = &CancelScope::signal();
  options.restores = restores;
  const train::TrainerRanks ranks{world(), mesh_, ranks_.store()};
  return std::make_unique<train::Trainer>(config_, ranks, *device_, context_.formats, options);
}

// ---- resuming

std::string Rank::checkpoint_to_resume(const std::string& resume) {
  return on_first(world(), "the checkpoint to resume", [&] {
    const std::string where = resume == "latest" ? config_.checkpoint.directory : resume;
    if (where.empty()) {
      throw Error(Exit::usage, "latest is in checkpoint.directory, which is not set").at(config_.path).key("checkpoint.directory");
    }
    FindingSink sink;
    const Opened opened = train::find_latest(context_.formats, where, sink);
    context_.printer.remarks(sink.all());
    const std::string path = opened.chosen.empty() ? where : join_path(where, opened.chosen);
    if (!opened.chosen.empty()) context_.printer.remark(note("newest complete checkpoint taken").at(where).found_only(opened.chosen));
    return path;
  });
}

void Rank::print_resumed(const train::RestoreReport& report, const std::string& path) {
  Printer& printer = context_.printer;
  for (const train::ConfigChange& change : report.config_changes) {
    printer.remark(note("config changed since the checkpoint").key(change.key).saw(change.saved, change.now));
  }
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    std::string text;
    for (size_t i = 0; i < names.size() && i < 10; ++i) text += (i == 0 ? "" : ", ") + names[i];
    if (names.size() > 10) text += fmt::format(" and {} more", names.size() - 10);
    printer.remark(warning(what).at(path).found_only(text));
  };
  list("not in the checkpoint, begun anew", report.started_anew);
  list("in the checkpoint, but not used by this run", report.not_used);
  list("masters are widened 16-bit weights", report.widened);
  for (const std::string& sentence : report.assumed) printer.remark(note("the checkpoint does not say all").at(path).found_only(sentence));
  printer.text(fmt::format("resumed {} at step {}", visible(path), report.step));
  printer.record("resume", {{"path", path},
                            {"format", report.format},
                            {"step", report.step},
                            {"samples", report.samples},
                            {"optimizer", report.optimizer},
                            {"started_anew", report.started_anew},
                            {"not_used", report.not_used},
                            {"widened", report.widened},
                            {"assumed", report.assumed}});
  printer.flush();
}

// ---- training

// Nothing of an earlier run may be in the way of a later save.
void Rank::check_folder(uint64_t step, bool resumed) {
  if (config_.checkpoint.directory.empty()) return;
  on_first(world(), "checkpoint.directory", [&] {
    const std::optional<uint64_t> newest = folder_->newest_step();
    if (!newest || (resumed && *newest <= step)) return std::string();
    Error error = Error(Exit::usage, resumed ? "later checkpoints are in the way" : "the directory has checkpoints of another run")
                      .at(config_.checkpoint.directory)
                      .found_only(fmt::format("step-{}", *newest));
    if (resumed) throw std::move(error).try_("--set checkpoint.directory=" + shell_quoted(config_.checkpoint.directory + "-2"));
    throw std::move(error).try_(command_with(context_, {"--resume", "latest"}));
  });
}

Exit Rank::train(const TrainOptions& options) {
  const CancelScope scope;   // signals are answered at the end of a step
  const bool resumes = !options.resume.empty();
  if (!config_.checkpoint.directory.empty()) {
    on_first(world(), "checkpoint.directory", [&] {
      folder_.emplace(config_.checkpoint.directory);
      return std::string();
    });
    if (!resumes) check_folder(0, false);
  }
  const std::string path = resumes ? checkpoint_to_resume(options.resume) : "";
  const std::unique_ptr<train::Trainer> trainer = make_trainer(resumes);
  if (resumes) {
    train::RestoreOptions restore;
    restore.allow_partial = options.allow_partial;
    restore.masters_from_model = options.masters_from_model;
    restore.other_scaler = options.other_loss_scale;
    const train::RestoreReport report = trainer->restore(path, restore);
    if (first()) print_resumed(report, path);
    check_folder(report.step, true);
  }
  std::optional<TrainingPrinter> observer;
  on_first(world(), "metrics", [&] {
    observer.emplace(context_.printer, config_, trainer->step());
    return std::string();
  });
  struct Silent final : train::TrainingObserver {
    void on_step(const train::StepReport&) override {}
    void on_saved(const train::SaveReport&) override {}
    void on_warning(const Finding&) override {}
  } silent;
  train::TrainingObserver& chosen = observer ? static_cast<train::TrainingObserver&>(*observer) : silent;
  const train::TrainingOutcome outcome = trainer->run(chosen);
  observer.reset();
  return ended(outcome, options);
}

Exit Rank::ended(const train::TrainingOutcome& outcome, const TrainOptions& options) {
  Printer& printer = context_.printer;
  if (first()) {
    const std::string saved = outcome.last_checkpoint.empty() ? "nothing was saved" : visible(outcome.last_checkpoint);
    if (outcome.signal == 0) {
      printer.text(fmt::format("trained to step {}: {}", outcome.step, saved));
    } else {
      Finding stopped = note("stopped by a signal").key(fmt::format("step {}", outcome.step)).found_only(fmt::format("signal {}; {}", outcome.signal, saved));
      if (!config_.checkpoint.directory.empty() && options.resume.empty()) stopped.try_(command_with(context_, {"--resume", "latest"}));
      printer.remark(stopped);
    }
    printer.record("summary", {{"schema_version", 1},
                               {"step", outcome.step},
                               {"steps", config_.training.steps},
                               {"signal", outcome.signal},
                               {"checkpoint", outcome.last_checkpoint},
                               {"world_size", world().size()}});
  }
  return outcome.signal == 0 ? Exit::ok : static_cast<Exit>(128 + outcome.signal);
}

Exit Rank::save(const SaveOptions& options) {
  config_.checkpoint.background = false;
  config_.checkpoint.keep = 0;
  config_.checkpoint.format = options.format->name();
  const std::unique_ptr<train::Trainer> trainer = make_trainer(false);
  const train::SaveReport report = trainer->save(options.output);
  if (first()) {
    Printer& printer = context_.printer;
    printer.remarks(report.warnings);
    printer.text(fmt::format("{}: {}: {} of {}, {}", printer.paint(Style::strong, visible(report.path)), printer.paint(Style::good, "written"),
                             options.format->name(), world().size() == 1 ? "1 rank" : fmt::format("{} ranks", world().size()),
                             fmt::format("{} bytes, step 0", report.bytes)));
    printer.record("summary", {{"schema_version", 1},
                               {"output", report.path},
                               {"format", options.format->name()},
                               {"world_size", world().size()},
                               {"bytes", report.bytes}});
  }
  return Exit::ok;
}

// ---- failing together

// One rank says what went wrong with the run.
bool speaks(const GlooRanks& ranks, const Launch& launch) {
  if (launch.store_is_served) return false;   // the launcher does
  try {
    return ranks.store() == nullptr || ranks.store()->add("failure was said", 1) == 1;
  } catch (const Error&) {   // the store went with the first rank
    return launch.rank <= 1;
  }
}

Exit as_rank(const TrainConfig& config, const Launch& launch, const std::function<Exit(GlooRanks&)>& body) {
  GlooRanks ranks(launch, ranks_options(config));
  std::optional<Error> failure;
  try {
    const Exit code = body(ranks);
    ranks.close();
    return code;
  } catch (const Error& e) {
    failure = e;
  } catch (const std::bad_alloc&) {
    failure = Error(Exit::failed, "out of memory");
  } catch (const std::exception& e) {
    failure = Error(Exit::failed, "internal error").found_only(e.what());
  }
  ranks.world().abort(failure->finding());
  if (!speaks(ranks, launch)) return failure->code();
  throw Error(*failure);
}

}  // namespace

Exit RankProgram::train(const TrainOptions& options, TrainConfig config, const Context& context) {
  if (options.dry_run) {
    const int ranks = ranks_to_be(options.nproc);
    fit_to_world(config, ranks);
    return print_forecast(config, ranks, context);
  }
  const Launch launch = read_launch();
  fit_to_world(config, launch.world_size);
  return as_rank(config, launch, [&](GlooRanks& ranks) { return Rank(ranks, launch, config, options.device, context).train(options); });
}

Exit RankProgram::save(const SaveOptions& options, TrainConfig config, const Context& context) {
  const Launch launch = read_launch();
  fit_to_world(config, launch.world_size);
  return as_rank(config, launch, [&](GlooRanks& ranks) { return Rank(ranks, launch, config, "cpu", context).save(options); });
}

}  // namespace fsdpctl
