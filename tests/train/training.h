// Training a model on several ranks that are threads, and everything that came of it, as whole tensors.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/train/fsdp_model.h"

namespace fsdpctl::train {

using FullTensors = std::map<std::string, std::vector<float>>;   // by FQN

struct Training {
  std::function<std::unique_ptr<Module>()> model;
  FsdpOptions options;
  int shards = 1;
  int replicas = 1;
  int micro_batches = 1;          // of each rank, in a step
  bool synchronise_each = true;   // or only the last
  int steps = 3;
  float learning_rate = 0.1f;
  uint64_t seed = 1;
  bool dropout = false;           // MicroBatch::training
  int64_t batch = 2, length = 8, vocabulary = 32;
  std::chrono::microseconds copy_delay{};
  // Instead of the usual values, and of the usual tokens [batch, length + 1] of a micro-batch.
  ParameterValues values;
  std::function<at::Tensor(uint64_t step, uint64_t micro_batch)> tokens;
  // Instead of SGD: takes a step and clears gradients.
  std::function<void(FsdpModel& model, int rank)> optimize;
  // Called on every rank after each step, before gradients are cleared.
  std::function<void(FsdpModel& model, int rank, int step)> after_step;
};

struct Trained {
  std::vector<double> losses;                 // the mean of each step's micro-batches
  std::vector<FullTensors> first_gradients;   // of each replica, after the first step
  std::vector<FullTensors> parameters;        // of each replica, at the end: FP32 masters, or what optimize() left
  std::vector<MemoryAccount> memory;          // of rank 0, at the end
  uint64_t device_peak = 0;                   // the most of any rank
  uint64_t early_releases = 0;
};

// SGD, w -= lr * g. Fails the test if a rank ends with an Error.
Trained train(const Training& training);

// Runs a body on each rank of a mesh; the first Error is thrown again.
void on_mesh(int shards, int replicas, const std::function<void(const Mesh& mesh, int rank)>& body);

// Expects the same bits everywhere.
void expect_identical(const Trained& a, const Trained& b);

std::unique_ptr<Module> small_mlp();

}  // namespace fsdpctl::train
