#include "tests/train/run_to_save.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "lib/comm/message_communicator.h"
#include "lib/train/initial_value.h"
#include "lib/train/models/layers.h"
#include "lib/train/models/mlp.h"
#include "lib/train/torch_types.h"

namespace fsdpctl::train {
namespace {

constexpr int64_t kBatch = 2, kLength = 8, kVocabulary = 32;

std::vector<int64_t> made_tokens(uint64_t step, uint64_t micro_batch) {
  std::vector<int64_t> tokens(kBatch * (kLength + 1));
  uint64_t state = derived_seed(7, "tokens", step, micro_batch);
  for (size_t i = 0; i < tokens.size(); ++i) {
    state = derived_seed(state, "next");
    const bool fresh = i % (kLength + 1) == 0 || state % 4 == 0;
    tokens[i] = fresh ? static_cast<int64_t>(state / 4 % kVocabulary) : (tokens[i - 1] * 5 + 1) % kVocabulary;
  }
  return tokens;
}

at::Tensor tensor_of_tokens(const std::vector<int64_t>& numbers) {
  at::Tensor tokens = at::empty({kBatch, kLength + 1}, at::kLong);
  std::memcpy(tokens.mutable_data_ptr(), numbers.data(), tokens.nbytes());
  return tokens;
}

std::unique_ptr<Module> usual_model(bool tied) {
  MlpConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 12;
  config.intermediate_size = 20;
  config.num_hidden_layers = 3;
  config.dropout = 0.1;
  config.tie_word_embeddings = tied;
  return make_mlp(config);
}

}  // namespace

RankOfRun::RankOfRun(const RunToSave& of, const Mesh& on, Communicator& all, std::shared_ptr<Store> shared)
    : run(of), mesh(on), world(all), store(std::move(shared)) {
  DeviceOptions device_options;
  device_options.poison = true;
  device = open_device("cpu", device_options);
  FsdpOptions options;
  options.placement = run.placement;
  options.offload_parameters = run.offload_parameters;
  options.root.precision = {run.compute, DType::float32, DType::float32};
  options.policy = wrap_kinds({"MlpLayer", "LlamaDecoderLayer"}, options.root);
  std::unique_ptr<Module> root = run.model ? run.model() : usual_model(run.tied);
  name_modules(*root);
  for (const NamedParameter& p : named_parameters(*root)) {
    if (p.fqn == run.frozen) p.slot->trainable = false;
  }
  model = std::make_unique<FsdpModel>(std::move(root), mesh, options, *device);
  model->initialize(run.seed);
  optimizer = std::make_unique<FSDPadaptOptimizer>(*model, world, *device, run.optimizer);
  state.emplace(TrainingState{*model, *optimizer, 0, 0, run.config});
}

RankOfRun::~RankOfRun() = default;

double RankOfRun::step() {
  const int ranks = world.size(), mine = run.micro_batches / ranks;
  std::vector<double> losses(static_cast<size_t>(run.micro_batches));
  for (int a = 0; a < mine; ++a) {
    const MicroBatch at_work{run.seed, state->step, static_cast<uint64_t>(a * ranks + world.rank()), true};
    const uint64_t used = state->samples / static_cast<uint64_t>(run.micro_batches * kBatch);
    const at::Tensor tokens = tensor_of_tokens(run.tokens ? run.tokens(used, at_work.index) : made_tokens(used, at_work.index));
    const at::Tensor logits = model->forward({tokens.narrow(1, 0, kLength)}, at_work)[0];
    const at::Tensor loss = cross_entropy(logits, tokens.narrow(1, 1, kLength));
    optimizer->backward(loss);
    losses[at_work.index] = loss.item<double>();
  }
  model->average_gradients(static_cast<uint64_t>(run.micro_batches));
  if (run.offload_moments) load_fsdp_optimizer(*optimizer).wait();
  optimizer->step();
  if (run.offload_moments) offload_fsdp_optimizer(*optimizer, {.masters = true}).wait();
  ++state->step;
  state->samples += static_cast<uint64_t>(run.micro_batches * kBatch);
  world.all_reduce({DType::float64, losses.data(), losses.size()}, Reduction::sum, "losses");
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum / static_cast<double>(losses.size());
}

std::vector<double> RankOfRun::steps(int n) {
  std::vector<double> losses;
  for (int i = 0; i < n; ++i) losses.push_back(step());
  return losses;
}

std::vector<std::optional<Finding>> on_ranks(const RunToSave& run, const std::function<void(RankOfRun&)>& body) {
  at::set_num_threads(1);
  CommunicatorOptions options;
  options.timeout = Milliseconds(60'000);
  options.grace = Milliseconds(50);
  const int ranks = run.shards * run.replicas;
  // Rank replica * shards + shard, as PyTorch's two-dimensional mesh has it.
  ThreadRanks all(ranks);
  std::vector<std::unique_ptr<ThreadRanks>> shard_groups, replicate_groups;
  for (int r = 0; r < run.replicas; ++r) shard_groups.push_back(std::make_unique<ThreadRanks>(run.shards));
  for (int s = 0; s < run.shards; ++s) replicate_groups.push_back(std::make_unique<ThreadRanks>(run.replicas));
  std::vector<std::optional<Finding>> findings(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRanks& mine = *shard_groups[static_cast<size_t>(rank / run.shards)];
      ThreadRanks& twins = *replicate_groups[static_cast<size_t>(rank % run.shards)];
      const auto world = make_message_communicator(all.transport(rank), all.shared_store(), options);
      std::unique_ptr<Communicator> shard, replicate;
      if (run.shards > 1) shard = make_message_communicator(mine.transport(rank % run.shards), mine.shared_store(), options);
      if (run.replicas > 1) replicate = make_message_communicator(twins.transport(rank / run.shards), twins.shared_store(), options);
      try {
        RankOfRun of_run(run, {shard.get(), replicate.get()}, *world, all.shared_store());
        body(of_run);
      } catch (const Error& e) {
        findings[static_cast<size_t>(rank)] = e.finding();
        for (Communicator* c : {world.get(), shard.get(), replicate.get()}) {
          if (c != nullptr) c->abort(e.finding());   // nobody waits for it
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return findings;
}

void on_all_ranks(const RunToSave& run, const std::function<void(RankOfRun&)>& body) {
  for (const auto& finding : on_ranks(run, body)) EXPECT_FALSE(finding) << Error(*finding).what();
}

void WholeState::add(RankOfRun& rank) {
  const std::lock_guard lock(mutex_);
  const auto put = [this](const std::string& name, const ShardInfo& info, const float* data) {
    std::vector<float>& whole = tensors[name];
    whole.resize(element_count(info.shape));
    if (info.count() > 0) std::memcpy(whole.data() + info.begin, data, info.count() * sizeof(float));
  };
  std::map<std::string, size_t> ids;
  OptimizerState& state = rank.optimizer->state();
  for (size_t id = 0; id < rank.optimizer->parameter_count(); ++id) {
    const ShardInfo& info = rank.optimizer->parameter(id);
    ids.emplace(info.fqn, id);
    put(info.fqn, info, state.master(id));
    // SGD does not count its steps.
    const uint64_t step = rank.optimizer->kind() == OptimizerKind::sgd ? std::min<uint64_t>(state.step(id), 1) : state.step(id);
    tensors[info.fqn + ".step"] = {static_cast<float>(step)};
    for (int m = 0; m < state.moments(id) && state.step(id) > 0; ++m) put(info.fqn + "." + std::to_string(m), info, state.moment(id, m));
  }
  for (ParameterShard* shard : rank.model->shards()) {
    const at::Tensor values = shard->local().to(at::kFloat);
    put(shard->info().fqn + " as computed with", shard->info(), values.const_data_ptr<float>());
  }
}

}  // namespace fsdpctl::train
