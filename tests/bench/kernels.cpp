// Times the kernels on made-up training state.
//
//   fsdpctl_kernel_bench [--device cpu|cuda] [--threads N] [--elements N] [--tensors N] [--gradient TYPE] [--runs N]
//   fsdpctl_kernel_bench ... --serve      for each operation named on a line of stdin, runs it once and prints the seconds
//
// Operations: norm (found-inf and sum of squares, nothing written), unscale (norm, and FP32 gradients written), adamw (with the
// parameter's copy), chain (norm, clip and adamw), cast (master to parameter), copy (within the device's memory), offload and load
// (one moment to pinned memory, and back), both (at the same time).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/scalars.h"
#include "lib/base/finding.h"

namespace fsdpctl::kernels {
namespace {

struct Options {
  std::string device = "cpu";
  int threads = 0;
  size_t elements = size_t{32} << 20, tensors = 100;
  FloatType gradient = FloatType::bfloat16;
  int runs = 11;
  bool serve = false;
};

// Splits `elements` into tensors of uneven sizes, the same as in kernels.py.
std::vector<size_t> sizes_of(const Options& o) {
  std::vector<size_t> sizes;
  size_t left = o.elements;
  for (size_t i = 0; i + 1 < o.tensors; ++i) {
    const size_t even = o.elements / o.tensors;
    sizes.push_back(std::min(left, even / 2 + even * i / o.tensors));
    left -= sizes.back();
  }
  sizes.push_back(left);
  return sizes;
}

class Bench {
 public:
  Bench(Kernels& kernels, const Options& o) : kernels_(kernels), gradient_(o.gradient) {
    uint32_t seed = 1;
    for (const size_t n : sizes_of(o)) {
      State s{};
      s.count = n;
      s.gradient = filled(n, gradient_, seed++, 8.0f);
      s.master = static_cast<float*>(filled(n, FloatType::float32, seed++, 1.0f));
      s.moment1 = static_cast<float*>(filled(n, FloatType::float32, 0, 0));
      s.moment2 = static_cast<float*>(filled(n, FloatType::float32, 0, 0));
      s.unscaled = static_cast<float*>(filled(n, FloatType::float32, 0, 0));
      s.parameter = filled(n, FloatType::bfloat16, 0, 0);
      states_.push_back(s);
      elements_ += n;
    }
    host_ = static_cast<float*>(kernels_.allocate_host(elements_ * sizeof(float) * 2 + 1));
    float *out = host_, *in = host_ + elements_;
    for (const State& s : states_) {
      offload_.push_back({s.moment1, out, s.count * sizeof(float)});
      load_.push_back({in, s.unscaled, s.count * sizeof(float)});
      out += s.count;
      in += s.count;
      norm_.push_back({s.gradient, nullptr, s.count, gradient_, 0});
      unscale_.push_back({s.gradient, s.unscaled, s.count, gradient_, 0});
      adam_.push_back({s.gradient, s.master, s.moment1, s.moment2, s.parameter, s.count, gradient_, FloatType::bfloat16, 0, 0});
      cast_.push_back({s.master, s.parameter, s.count, FloatType::float32, FloatType::bfloat16});
      copy_.push_back({s.moment1, s.unscaled, s.count, FloatType::float32, FloatType::float32});
    }
  }

  ~Bench() { kernels_.release_host(host_); }
  Bench(const Bench&) = delete;

  // Bytes per element that the operation must move.
  double bytes(const std::string& operation) const {
    const double g = float_size(gradient_);
    const std::map<std::string, double> all = {{"norm", g},          {"unscale", g + 4}, {"adamw", g + 26},
                                               {"chain", 2 * g + 26}, {"cast", 6},        {"copy", 8},
                                               {"offload", 4},        {"load", 4},        {"both", 8}};
    return all.at(operation);
  }
  double elements() const { return static_cast<double>(elements_); }

  double seconds(const std::string& operation) {
    kernels_.synchronize();
    const auto start = std::chrono::steady_clock::now();
    run(operation);
    kernels_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  struct State {
    const void* gradient;
    float *master, *moment1, *moment2, *unscaled;
    void* parameter;
    size_t count;
  };

  // Uniform in (-scale, scale); zeros for scale 0. Made in the host's memory and copied.
  void* filled(size_t n, FloatType type, uint32_t seed, float scale) {
    std::vector<float> values(n);
    for (float& x : values) {
      seed = seed * 1664525u + 1013904223u;
      x = scale * (static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f);
    }
    void* wide = kernels_.allocate(n * sizeof(float) + 1);
    const CopyEntry copy{values.data(), wide, n * sizeof(float)};
    kernels_.wait(kernels_.copy({&copy, 1}, Direction::to_device));
    if (type == FloatType::float32) return wide;
    void* narrow = kernels_.allocate(n * float_size(type) + 1);
    const CastEntry cast{wide, narrow, n, FloatType::float32, type};
    kernels_.cast({&cast, 1}, {});
    kernels_.synchronize();
    kernels_.release(wide);
    return narrow;
  }

  void run(const std::string& operation) {
    if (operation == "norm") return void(norm(norm_));
    if (operation == "unscale") return void(norm(unscale_));
    if (operation == "adamw") return adamw(1);
    if (operation == "chain") return adamw(gradient_factor(clip_divisor(norm(norm_), kScale, 1), kScale));
    if (operation == "cast") return kernels_.cast(cast_, {});
    if (operation == "copy") return kernels_.cast(copy_, {});
    if (operation == "offload" || operation == "both") kernels_.copy(offload_, Direction::to_host);
    if (operation == "load" || operation == "both") kernels_.copy(load_, Direction::to_device);
    if (operation == "offload" || operation == "load" || operation == "both") return;   // seconds() waits
    throw Error(Exit::usage, "unknown operation").found_only(operation);
  }
  double norm(const std::vector<GradientEntry>& table) {
    GradientNorm result{};
    kernels_.unscale_norm(table, gradient_factor(1, kScale), {&result, 1});
    return std::sqrt(value(result.squares));
  }
  void adamw(float factor) {
    const AdamScalars scalars = adamw_scalars({1e-4, 0.9, 0.95, 1e-8, 0.1}, ++step_, factor);
    kernels_.adam(adam_, {&scalars, 1});
  }

  static constexpr double kScale = 1024;
  Kernels& kernels_;
  FloatType gradient_;
  std::vector<State> states_;
  std::vector<GradientEntry> norm_, unscale_;
  std::vector<AdamEntry> adam_;
  std::vector<CastEntry> cast_, copy_;
  std::vector<CopyEntry> offload_, load_;
  float* host_ = nullptr;
  size_t elements_ = 0;
  uint64_t step_ = 0;
};

void report(Bench& bench, int runs) {
  double copy_rate = 0;
  for (const char* operation : {"copy", "norm", "unscale", "adamw", "chain", "cast", "offload", "load", "both"}) {
    std::vector<double> times;
    bench.seconds(operation);   // warm-up
    for (int i = 0; i < runs; ++i) times.push_back(bench.seconds(operation));
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    const double rate = bench.bytes(operation) * bench.elements() / median;
    if (copy_rate == 0) copy_rate = rate;
    fmt::print("{:<8}{:10.3f} ms {:9.1f} GB/s   {:5.2f} of a copy\n", operation, median * 1e3, rate / 1e9, rate / copy_rate);
  }
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--serve") {
      o.serve = true;
      continue;
    }
    if (i + 1 == argc) throw Error(Exit::usage, "a flag without a value").found_only(flag);
    const std::string value = argv[++i];
    if (flag == "--device") o.device = value;
    else if (flag == "--threads") o.threads = std::stoi(value);
    else if (flag == "--elements") o.elements = std::stoull(value);
    else if (flag == "--tensors") o.tensors = std::stoull(value);
    else if (flag == "--runs") o.runs = std::stoi(value);
    else if (flag == "--gradient") o.gradient = float_type(dtype_from_name(value).value_or(DType::boolean));
    else throw Error(Exit::usage, "unknown flag").found_only(flag);
  }
  return o;
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  const std::unique_ptr<Kernels> kernels = o.device == "cpu" ? cpu_kernels(o.threads) : cuda_kernels(0);
  Bench bench(*kernels, o);
  if (!o.serve) {
    fmt::print("{}: {} elements in {} tensors\n", kernels->name(), o.elements, o.tensors);
    report(bench, o.runs);
    return 0;
  }
  fmt::print("ready\n");
  std::fflush(stdout);
  for (std::string operation; std::getline(std::cin, operation);) {
    fmt::print("{}\n", bench.seconds(operation));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace fsdpctl::kernels

int main(int argc, char** argv) {
  try {
    return fsdpctl::kernels::run(argc, argv);
  } catch (const fsdpctl::Error& error) {
    fmt::print(stderr, "fsdpctl_kernel_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
