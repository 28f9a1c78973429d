// How the optimizers that ours replaces behave, defects included: LightRFT's FSDPadaptOptimizer (opendilab/LightRFT
// 49e62cb) and, where it says so, its ancestor in InternEvo. Told again in plain C++, as far as tests need it; that it is
// faithful is checked against the traces of the real one.
//
// All ranks live in one process: a step is taken by all of them together. Python's exceptions are PythonError.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdpctl::source {

struct PythonError : std::runtime_error {
  using std::runtime_error::runtime_error;   // "AttributeError: ..."
};

using Numbers = std::shared_ptr<std::vector<float>>;
inline Numbers numbers(std::vector<float> values) { return std::make_shared<std::vector<float>>(std::move(values)); }

struct Parameter {
  Numbers values;        // bfloat16 numbers, or float32 ones
  bool fp32 = false;
  Numbers gradient;      // null: None
};
using Groups = std::vector<std::vector<Parameter*>>;

struct StateDict {
  std::map<std::string, double> grad_scaler;
  std::vector<std::vector<Numbers>> flat_fp32_weights;   // the live ones
};

// What a step did besides its work.
struct Noise {
  size_t collectives = 0;
  std::string printed;
};

struct Sgd {
  double lr = 0.1, momentum = 0;
  std::vector<double> weight_decay;   // of each group
};

class FSDPadaptOptimizer {
 public:
  FSDPadaptOptimizer(Groups groups, Sgd base);

  static bool step(std::span<FSDPadaptOptimizer* const> ranks, Noise* noise = nullptr);
  bool step() {
    FSDPadaptOptimizer* self = this;
    return step(std::span(&self, 1));
  }
  void clip_grad_norm(const Groups& model, double max_norm);
  StateDict state_dict() const;
  void load_state_dict(const StateDict& states);

  double loss_scale() const { return scale_; }
  double last_norm() const { return last_norm_; }   // of all groups, scaled
  const std::vector<std::vector<Numbers>>& masters() const { return masters_; }

 private:
  void transfer_and_update(double norm);

  Groups groups_;
  Sgd base_;
  std::vector<std::vector<Numbers>> masters_, momenta_;
  double scale_ = 1, clip_ = 1, last_norm_ = 0;
  int growth_step_ = 0, hysteresis_step_ = 0;
};

// The strategy around it: parameters of the optimizer that was made last, whichever is stepped.
class Strategy {
 public:
  FSDPadaptOptimizer create_optimizer(const Groups& groups, const Sgd& base);
  void optimizer_step(FSDPadaptOptimizer& optimizer, double max_norm);
  const std::vector<double>& norms() const { return norms_; }   // of each group, when it clipped last

 private:
  Groups grouped_params_;
  std::vector<double> norms_;
};

// A plain torch optimizer, and its offload.
struct PlainOptimizer {
  std::set<std::string> parameters, has_state;
  std::set<std::string> on_host;                 // names of state entries that were moved
  bool copy_pending = false;
};
void offload_fsdp_optimizer(PlainOptimizer& optimizer);
void offload_fsdp_optimizer(FSDPadaptOptimizer& optimizer);
int load_fsdp_optimizer(PlainOptimizer& optimizer, int device_id, int rank);   // the device that it goes to

int get_current_device(int rank);

// InternEvo's step for ranks that hold `numel` elements of a group each, with this norm and threshold: how many
// collectives each rank came to.
std::vector<int> internevo_step(const std::vector<size_t>& numel, double norm, double clip);
// InternEvo's saving and loading.
void internevo_save_optimizer(const std::string& kind);
void internevo_load_shard(const std::set<std::string>& saved, const std::set<std::string>& model, bool strict);

}  // namespace fsdpctl::source
