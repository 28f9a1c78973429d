#include "tests/source_emulation/lightrft.h"

#include <algorithm>
#include <cmath>

#include "kernels/number.h"

namespace fsdpctl::source {
namespace {

float to_bfloat16(float value) { return kernels::widen_bfloat16(kernels::narrow_bfloat16(value)); }

double squares_of(const std::vector<Parameter*>& group) {
  double squares = 0;
  for (const Parameter* p : group) {
    if (p->values->empty()) continue;
    if (!p->gradient) throw PythonError("AttributeError: 'NoneType' object has no attribute 'double'");
    for (const float g : *p->gradient) squares += static_cast<double>(g) * g;
  }
  return squares;
}

// `flag * (-1) + (not flag) * norm`: infinity times zero is NaN.
double with_sentinel(double norm) {
  const double flag = std::isfinite(norm) ? 0 : 1;
  return flag * -1 + (1 - flag) * norm;
}

}  // namespace

FSDPadaptOptimizer::FSDPadaptOptimizer(Groups groups, Sgd base) : groups_(std::move(groups)), base_(std::move(base)) {
  for (const auto& group : groups_) {
    masters_.emplace_back();
    momenta_.emplace_back();
    for (const Parameter* p : group) {
      masters_.back().push_back(p->fp32 ? p->values : numbers(*p->values));   // .float() of float32 is the tensor itself
      momenta_.back().emplace_back();
    }
  }
}

bool FSDPadaptOptimizer::step(std::span<FSDPadaptOptimizer* const> ranks, Noise* noise) {
  double all = 0;
  bool found_inf = false;
  for (size_t g = 0; g < ranks[0]->groups_.size(); ++g) {
    double squares = 0;   // all-reduced over the world, replicas too
    for (const FSDPadaptOptimizer* rank : ranks) squares += squares_of(rank->groups_[g]);
    const double norm = with_sentinel(std::sqrt(squares));
    if (noise != nullptr) ++noise->collectives, noise->printed += "norm " + std::to_string(norm) + "\n";
    found_inf = found_inf || norm == -1;
    all += norm * norm;
  }
  for (FSDPadaptOptimizer* rank : ranks) {
    rank->last_norm_ = std::sqrt(all);
    found_inf ? ++rank->hysteresis_step_ : ++rank->growth_step_;   // the scale itself stays 1
    if (!found_inf) rank->transfer_and_update(rank->last_norm_);
    for (const auto& group : rank->groups_) {
      for (Parameter* p : group) p->gradient = nullptr;
    }
  }
  return !found_inf;
}

void FSDPadaptOptimizer::transfer_and_update(double norm) {
  const double ratio = (norm / scale_ + 1e-6) / clip_;
  const double clip = clip_ <= 0 ? 1 : std::isnan(ratio) ? ratio : std::max(ratio, 1.0);
  const auto factor = static_cast<float>(1 / (clip * scale_));
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g].size(); ++i) {
      Parameter& p = *groups_[g][i];
      if (p.values->empty()) continue;
      std::vector<float>& master = *masters_[g][i];
      const Numbers gradient = p.fp32 ? p.gradient : numbers(*p.gradient);   // .to() of the same dtype is no copy
      const bool first = !momenta_[g][i];
      if (first) momenta_[g][i] = numbers(std::vector<float>(master.size()));
      for (size_t k = 0; k < master.size(); ++k) {
        float& scaled = (*gradient)[k];
        scaled *= factor;
        const auto decay = static_cast<float>(base_.weight_decay[g]);
        const float decayed = decay != 0 ? std::fma(decay, master[k], scaled) : scaled;
        float& momentum = (*momenta_[g][i])[k];
        momentum = first ? decayed : momentum * static_cast<float>(base_.momentum) + decayed;
        master[k] = std::fma(static_cast<float>(-base_.lr), momentum, master[k]);
      }
      if (p.fp32) continue;
      std::transform(master.begin(), master.end(), p.values->begin(), to_bfloat16);
    }
  }
}

void FSDPadaptOptimizer::clip_grad_norm(const Groups&, double) {}   // both arguments are ignored

StateDict FSDPadaptOptimizer::state_dict() const {
  return {{{"_scale", scale_}, {"_growth_step", growth_step_}, {"_hysteresis_step", hysteresis_step_}}, masters_};
}

void FSDPadaptOptimizer::load_state_dict(const StateDict& states) {
  scale_ = states.grad_scaler.at("_scale");
  growth_step_ = static_cast<int>(states.grad_scaler.at("_growth_step"));
  hysteresis_step_ = static_cast<int>(states.grad_scaler.at("_hysteresis_step"));
  if (states.flat_fp32_weights.size() != masters_.size()) throw PythonError("AssertionError");
  for (size_t g = 0; g < masters_.size(); ++g) {
    for (size_t i = 0; i < masters_[g].size(); ++i) {
      const std::vector<float>& saved = *states.flat_fp32_weights[g][i];
      std::vector<float>& mine = *masters_[g][i];
      if (saved.size() == 1) std::fill(mine.begin(), mine.end(), saved[0]);   // copy_ broadcasts
      else if (saved.size() != mine.size()) throw PythonError("RuntimeError: The size of tensor a must match the size of tensor b");
      else mine = saved;
      const Parameter& p = *groups_[g][i];
      std::transform(mine.begin(), mine.end(), p.values->begin(), [&](float v) { return p.fp32 ? v : to_bfloat16(v); });
    }
  }
}

FSDPadaptOptimizer Strategy::create_optimizer(const Groups& groups, const Sgd& base) {
  grouped_params_ = groups;
  return FSDPadaptOptimizer(groups, base);
}

void Strategy::optimizer_step(FSDPadaptOptimizer& optimizer, double max_norm) {
  norms_.clear();
  for (const auto& group : grouped_params_) {
    norms_.push_back(std::sqrt(squares_of(group)));
    const auto factor = static_cast<float>(std::min(max_norm / (norms_.back() + 1e-6), 1.0));
    for (const Parameter* p : group) {
      for (float& g : *p->gradient) g *= factor;
    }
  }
  optimizer.step();
}

void offload_fsdp_optimizer(PlainOptimizer& optimizer) {
  if (optimizer.has_state.empty()) return;
  for (const std::string& name : optimizer.parameters) {
    optimizer.has_state.insert(name);   // a defaultdict
    for (const char* entry : {".step", ".exp_avg", ".exp_avg_sq"}) optimizer.on_host.insert(name + entry);
  }
  optimizer.copy_pending = true;   // non_blocking, and nobody synchronises
}

void offload_fsdp_optimizer(FSDPadaptOptimizer&) {
  throw PythonError("AttributeError: 'FSDPadaptOptimizer' object has no attribute 'state'");
}

int load_fsdp_optimizer(PlainOptimizer& optimizer, int, int rank) {
  optimizer.on_host.clear();
  return get_current_device(rank);   // the argument is ignored
}

int get_current_device(int rank) { return rank % 8; }

std::vector<int> internevo_step(const std::vector<size_t>& numel, double norm, double clip) {
  std::vector<int> collectives;
  for (const size_t here : numel) collectives.push_back(here == 0 ? 0 : 3);   // an empty group returns before them
  if (std::isnan(norm)) throw PythonError("TypeError: '>' not supported between instances of 'complex' and 'float'");
  if (clip <= 0) throw PythonError("IndexError: list index out of range");
  return collectives;
}

void internevo_save_optimizer(const std::string& kind) {
  if (kind != "HybridZeroOptimizer") throw PythonError("UnboundLocalError: local variable 'fp' referenced before assignment");
}

void internevo_load_shard(const std::set<std::string>& saved, const std::set<std::string>& model, bool) {
  // The keyword arguments as a dict stand where `strict` is expected: always true.
  if (saved != model) throw PythonError("RuntimeError: Error(s) in loading state_dict");
}

}  // namespace fsdpctl::source
