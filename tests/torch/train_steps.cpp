// Trains an MLP on tokens from a file, on ranks that are threads, and prints the loss of each step: for tests in which real PyTorch
// goes on with what this saved, and the other way round.
//
//   train_steps TOKENS RANKS flat|per_parameter STEPS FIRST [--from CHECKPOINT] [--to OUT]
//
// TOKENS: int64 [steps, 4, 2, 9]. FIRST: the step to begin with, where CHECKPOINT does not say how far it is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "formats/all_formats.h"
#include "lib/base/file.h"
#include "lib/train/models/mlp.h"
#include "tests/train/run_to_save.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kMicroBatches = 4, kBatch = 2, kLength = 9;

int run(const std::vector<std::string>& arguments) {
  const std::string text = read_text(arguments[0], 1 << 20);
  std::vector<int64_t> numbers(text.size() / sizeof(int64_t));
  std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(int64_t));
  std::string from, to;
  for (size_t i = 5; i + 1 < arguments.size(); i += 2) (arguments[i] == "--from" ? from : to) = arguments[i + 1];

  RunToSave made;
  made.model = [] {
    MlpConfig config;
    config.vocab_size = 32;
    config.hidden_size = 12;
    config.intermediate_size = 20;
    config.num_hidden_layers = 3;
    return make_mlp(config);
  };
  made.shards = std::stoi(arguments[1]);
  made.placement = arguments[2] == "flat" ? ShardPlacement::flat : ShardPlacement::per_parameter;
  made.tokens = [&](uint64_t step, uint64_t micro_batch) {
    const auto at = numbers.begin() + static_cast<std::ptrdiff_t>((step * kMicroBatches + micro_batch) * kBatch * kLength);
    return std::vector<int64_t>(at, at + kBatch * kLength);
  };
  made.optimizer.schedule = {};
  made.optimizer.max_norm = 1;
  const FormatList formats = all_formats();
  on_all_ranks(made, [&](RankOfRun& rank) {
    const bool first = rank.world.rank() == 0;
    if (!from.empty()) {
      FindingSink sink(/*strict=*/false);
      Opened opened = find_latest(formats, from, sink);
      RestoreOptions options;
      options.allow_partial = true;
      const RestoreReport report = restore_training_state(opened.checkpoint, *rank.state, rank.world, options);
      for (const std::string& name : report.started_anew) {
        if (name == "samples") rank.state->samples = std::stoull(arguments[4]) * kMicroBatches * kBatch;
        if (first) fmt::print("anew {}\n", name);
      }
      for (const ConfigChange& change : report.config_changes) {
        if (first) fmt::print("changed {} {} {}\n", change.key, change.saved, change.now);
      }
    }
    for (const double loss : rank.steps(std::stoi(arguments[3]))) {
      if (first) fmt::print("loss {:.17g}\n", loss);
    }
    if (to.empty()) return;
    SaverOptions options;
    options.format = find_format(formats, "dcp");
    TrainingSaver(*rank.state, rank.world, rank.store, options).save(to);
  });
  return testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace fsdpctl::train

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  return fsdpctl::train::run(std::vector<std::string>(argv + 1, argv + argc));
}
