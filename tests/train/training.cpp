#include "tests/train/training.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "lib/comm/message_communicator.h"
#include "lib/comm/threads.h"
#include "lib/train/models/layers.h"
#include "lib/train/models/mlp.h"

namespace fsdpctl::train {
namespace {

at::Tensor usual_tokens(const Training& training, uint64_t step, uint64_t micro_batch) {
  at::Tensor tokens = at::empty({training.batch, training.length + 1}, at::kLong);
  auto* out = tokens.mutable_data_ptr<int64_t>();
  uint64_t state = derived_seed(training.seed, "tokens", step, micro_batch);
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    // Each token mostly follows from the one before, so that there is something to learn.
    state = derived_seed(state, "next");
    const bool fresh = i % (training.length + 1) == 0 || state % 4 == 0;
    out[i] = fresh ? static_cast<int64_t>(state / 4 % static_cast<uint64_t>(training.vocabulary)) : (out[i - 1] * 5 + 1) % training.vocabulary;
  }
  return tokens;
}

std::vector<float> floats(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kFloat).contiguous();
  const auto* data = values.const_data_ptr<float>();
  return {data, data + values.numel()};
}

class Collector {
 public:
  Collector(const Training& training, Trained& out) : out_(out) {
    out.losses.resize(static_cast<size_t>(training.steps));
    out.first_gradients.resize(static_cast<size_t>(training.replicas));
    out.parameters.resize(static_cast<size_t>(training.replicas));
  }

  void put(std::vector<FullTensors>& into, const ShardInfo& info, const at::Tensor& part) {
    const std::lock_guard lock(mutex_);
    std::vector<float>& whole = into[static_cast<size_t>(info.replica)][info.fqn];
    whole.resize(element_count(info.shape));
    const std::vector<float> values = floats(part);
    ASSERT_EQ(values.size(), info.count()) << info.fqn;
    std::copy(values.begin(), values.end(), whole.begin() + static_cast<std::ptrdiff_t>(info.begin));
  }

  void end(FsdpModel& model, int rank) {
    const std::lock_guard lock(mutex_);
    if (rank == 0) out_.memory = model.memory().accounts();
    out_.device_peak = std::max(out_.device_peak, model.memory().total(Place::device).peak);
    out_.early_releases += model.memory().early_releases();
  }

  std::vector<std::vector<double>> losses;   // [step][global micro-batch]
  std::mutex& mutex() { return mutex_; }

 private:
  Trained& out_;
  std::mutex mutex_;
};

void train_rank(const Training& training, const Mesh& mesh, int rank, Trained& out, Collector& collector) {
  DeviceOptions device_options;
  device_options.copy_delay = training.copy_delay;
  device_options.poison = true;
  const std::unique_ptr<Device> device = open_device("cpu", device_options);
  FsdpModel model(training.model(), mesh, training.options, *device);
  training.values ? model.set_values(training.values) : model.initialize(training.seed);

  std::vector<at::Tensor> masters;
  for (ParameterShard* shard : model.shards()) {
    const at::Tensor initial = training.optimize ? at::Tensor() : shard->initial_master();
    masters.push_back(initial.defined() ? initial : shard->local());
  }
  const int ranks = mesh.ranks(), total = ranks * training.micro_batches;
  for (int step = 0; step < training.steps; ++step) {
    for (int a = 0; a < training.micro_batches; ++a) {
      MicroBatch at_work{training.seed, static_cast<uint64_t>(step), static_cast<uint64_t>(a * ranks + rank), training.dropout};
      const at::Tensor tokens = training.tokens ? training.tokens(at_work.step, at_work.index)
                                                : usual_tokens(training, at_work.step, at_work.index);
      model.set_synchronises(training.synchronise_each || a + 1 == training.micro_batches);
      const at::Tensor logits = model.forward({tokens.narrow(1, 0, training.length)}, at_work)[0];
      const at::Tensor loss = cross_entropy(logits, tokens.narrow(1, 1, training.length));
      model.backward(loss);
      const std::lock_guard lock(collector.mutex());
      collector.losses[static_cast<size_t>(step)][at_work.index] = loss.item<double>();
    }
    model.average_gradients(static_cast<uint64_t>(total));
    if (training.after_step) training.after_step(model, rank, step);
    for (ParameterShard* shard : model.shards()) {
      const at::Tensor gradient = shard->gradient();
      if (step == 0 && gradient.defined()) collector.put(out.first_gradients, shard->info(), gradient);
    }
    if (training.optimize) {
      training.optimize(model, rank);
      continue;
    }
    for (size_t i = 0; i < masters.size(); ++i) {
      ParameterShard& shard = *model.shards()[i];
      const at::Tensor gradient = shard.gradient();
      if (gradient.defined()) masters[i].sub_(gradient * training.learning_rate);
      if (masters[i].scalar_type() != shard.local().scalar_type()) shard.local().copy_(masters[i]);
      shard.clear_gradient();
    }
  }
  for (size_t i = 0; i < masters.size(); ++i) collector.put(out.parameters, model.shards()[i]->info(), masters[i]);
  collector.end(model, rank);
}

}  // namespace

void on_mesh(int shards, int replicas, const std::function<void(const Mesh& mesh, int rank)>& body) {
  at::set_num_threads(1);
  CommunicatorOptions options;
  options.timeout = Milliseconds(60'000);
  options.grace = Milliseconds(50);
  // Rank replica * shards + shard, as PyTorch's two-dimensional mesh has it.
  std::vector<std::unique_ptr<ThreadRanks>> shard_groups, replicate_groups;
  for (int r = 0; r < replicas; ++r) shard_groups.push_back(std::make_unique<ThreadRanks>(shards));
  for (int s = 0; s < shards; ++s) replicate_groups.push_back(std::make_unique<ThreadRanks>(replicas));
  std::mutex mutex;
  std::optional<Error> first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shards * replicas; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRanks& mine = *shard_groups[static_cast<size_t>(rank / shards)];
      ThreadRanks& twins = *replicate_groups[static_cast<size_t>(rank % shards)];
      std::unique_ptr<Communicator> shard, replicate;
      if (shards > 1) shard = make_message_communicator(mine.transport(rank % shards), mine.shared_store(), options);
      if (replicas > 1) replicate = make_message_communicator(twins.transport(rank / shards), twins.shared_store(), options);
      try {
        body({shard.get(), replicate.get()}, rank);
      } catch (const Error& e) {
        const std::lock_guard lock(mutex);
        if (!first) first = e;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) throw Error(*first);
}

Trained train(const Training& training) {
  Trained out;
  Collector collector(training, out);
  const auto total = static_cast<size_t>(training.shards * training.replicas * training.micro_batches);
  collector.losses.assign(static_cast<size_t>(training.steps), std::vector<double>(total));
  on_mesh(training.shards, training.replicas,
          [&](const Mesh& mesh, int rank) { train_rank(training, mesh, rank, out, collector); });
  for (size_t step = 0; step < out.losses.size(); ++step) {
    double sum = 0;
    for (const double loss : collector.losses[step]) sum += loss;
    out.losses[step] = sum / static_cast<double>(total);
  }
  return out;
}

void expect_identical(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  const auto same = [](const char* what, const FullTensors& x, const FullTensors& y) {
    ASSERT_EQ(x.size(), y.size()) << what;
    for (const auto& [fqn, values] : x) {
      const auto found = y.find(fqn);
      ASSERT_NE(found, y.end()) << what << " of " << fqn;
      ASSERT_EQ(values.size(), found->second.size()) << what << " of " << fqn;
      EXPECT_EQ(std::memcmp(values.data(), found->second.data(), values.size() * sizeof(float)), 0) << what << " of " << fqn;
    }
  };
  ASSERT_FALSE(a.first_gradients[0].empty());
  for (const FullTensors& one : a.first_gradients) {
    for (const FullTensors& other : b.first_gradients) same("gradient", one, other);
  }
  for (const FullTensors& one : a.parameters) {
    for (const FullTensors& other : b.parameters) same("parameter", one, other);
  }
}

std::unique_ptr<Module> small_mlp() {
  MlpConfig config;
  config.vocab_size = 32;
  config.hidden_size = 12;
  config.intermediate_size = 20;
  config.num_hidden_layers = 3;
  config.dropout = 0.25;
  return make_mlp(config);
}

}  // namespace fsdpctl::train
