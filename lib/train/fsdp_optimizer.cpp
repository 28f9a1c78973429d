#include "lib/train/fsdp_optimizer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/scalars.h"
#include "lib/base/checksum.h"
#include "lib/base/finding.h"
#include "lib/comm/wire.h"

namespace fsdpctl::train {

using kernels::ExactSum;
using kernels::FloatType;

namespace {

FloatType float_type(const at::Tensor& tensor, const char* what, const std::string& fqn) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return FloatType::float32;
    case at::kHalf: return FloatType::float16;
    case at::kBFloat16: return FloatType::bfloat16;
    default:
      throw Error(Exit::failed, "a tensor of the model is of no type that is trained")
          .key(fqn)
          .saw("float32, float16 or bfloat16", fmt::format("{} of {}", what, c10::toString(tensor.scalar_type())));
  }
}

// What ParameterShard promises of its tensors.
void check(const at::Tensor& tensor, const ShardInfo& info, const char* what) {
  if (tensor.defined() && tensor.is_contiguous() && static_cast<uint64_t>(tensor.numel()) == info.count()) return;
  throw Error(Exit::failed, "a tensor of the model is not as its shard says")
      .key(info.fqn)
      .saw(fmt::format("{} of {} elements, contiguous", what, info.count()),
           tensor.defined() ? fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")) : "none");
}

// Parameters of 16 bits decide; float16 before bfloat16, as it is the one that overflows.
DType parameter_dtype(std::span<ParameterShard* const> shards) {
  DType dtype = DType::float32;
  for (const ParameterShard* shard : shards) {
    const at::ScalarType type = shard->local().scalar_type();
    if (type == at::kHalf) return DType::float16;
    if (type == at::kBFloat16) dtype = DType::bfloat16;
  }
  return dtype;
}

double checked_max_norm(double max_norm) {
  if (max_norm >= 0 && std::isfinite(max_norm)) return max_norm;
  throw Error(Exit::usage, "impossible threshold for the gradient norm").key("max_norm").saw("0 or more", fmt::format("{}", max_norm));
}

}  // namespace

FSDPadaptOptimizer::FSDPadaptOptimizer(ShardedModel& model, Communicator& ranks, Device& device, const FSDPadaptOptions& options)
    : model_(model),
      ranks_(ranks),
      device_(device),
      kind_(options.optimizer.kind),
      groups_(make_param_groups(options.optimizer, model.shards())),
      state_(device),
      scaler_(options.scaler.value_or(default_scaler(parameter_dtype(model.shards())))),
      schedule_(options.schedule),
      max_norm_(checked_max_norm(options.max_norm)),
      loss_scale_(std::make_unique<at::Tensor>(at::full({1}, scaler_.scale(), at::kFloat))) {
  const std::span<ParameterShard* const> shards = model.shards();
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const size_t i : groups_[g].parameters) adopt(g, *shards[i]);
  }
  check_ranks(options);
}

FSDPadaptOptimizer::~FSDPadaptOptimizer() = default;

void FSDPadaptOptimizer::adopt(size_t group, ParameterShard& shard) {
  const ShardInfo& info = shard.info();
  const at::Tensor local = shard.local();
  check(local, info, "a local shard");
  const FloatType type = float_type(local, "a local shard", info.fqn);
  void* const memory = local.mutable_data_ptr();
  const bool alias = type == FloatType::float32;
  state_.add(info.count(), moment_count(kind_, groups_[group].options), alias ? static_cast<float*>(memory) : nullptr);
  parameters_.push_back({&shard, group, type, memory});
  if (alias) return;
  at::Tensor initial = shard.initial_master();
  if (!initial.defined()) initial = local;
  check(initial, info, "a first master");
  const kernels::CastEntry widen{initial.const_data_ptr(), state_.master(parameters_.size() - 1), info.count(),
                                 float_type(initial, "a first master", info.fqn), FloatType::float32};
  device_.kernels().cast({&widen, 1}, {});
  device_.kernels().synchronize();   // `initial` may go
}

// All ranks must hold the same parameters, in the same order, and treat them the same.
void FSDPadaptOptimizer::check_ranks(const FSDPadaptOptions& options) {
  std::string text = fmt::format("{} {}\n", optimizer_name(kind_), options.max_norm);
  for (const Parameter& parameter : parameters_) {
    const ShardInfo& info = parameter.shard->info();
    const GroupOptions& o = groups_[parameter.group].options;
    text += fmt::format("{} [{}] {} {} {} {} {} {} {} {}\n", info.fqn, fmt::join(info.shape, ","), parameter.group, o.lr,
                        o.weight_decay, o.beta1, o.beta2, o.eps, o.momentum, static_cast<int>(parameter.type));
  }
  const GradScalerOptions& s = scaler_.options();
  text += fmt::format("{} {} {} {} {} {} {}", s.initial_scale, s.growth_factor, s.backoff_factor, s.growth_interval,
                      s.min_scale, s.max_scale, s.hysteresis);
  const std::vector<std::string> all =
      ranks_.exchange(hex64(crc64(std::as_bytes(std::span(text)))), "the optimizer's parameters");
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    Finding finding = error(Exit::failed, "ranks disagree about the optimizer's parameters or options");
    finding.saw("rank 0's, " + all[0], all[rank]).where.rank = static_cast<int>(rank);
    throw Error(std::move(finding));
  }
}

void FSDPadaptOptimizer::backward(const at::Tensor& loss, bool retain_graph) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(Exit::usage, "a loss must be one number")
        .saw("one element", loss.defined() ? fmt::format("shape [{}]", fmt::join(loss.sizes(), ", ")) : "no tensor");
  }
  model_.backward(loss.to(at::kFloat).reshape({1}).mul(scaler_.scale()), retain_graph);
}

// ---- step

struct FSDPadaptOptimizer::Gradients {
  struct Row {
    at::Tensor tensor;             // keeps it
    const void* data = nullptr;    // null: zeros
    FloatType type = FloatType::float32;
  };
  std::vector<Row> rows;   // by parameter id
};

bool FSDPadaptOptimizer::step() {
  Gradients gradients;
  const StepSummary all = agree_on_step(ranks_, summarise(gradients));
  stop_agreed_ = all.stop;
  const bool overflow = all.nonfinite != 0;
  const double scale = scaler_.scale();   // that of these gradients
  scaler_.update(overflow);
  set_loss_scale();
  if (overflow) {
    last_grad_norm_ = std::numeric_limits<double>::infinity();
    ++skipped_in_a_row_;
    zero_grad();
    return false;
  }
  const double norm = std::sqrt(kernels::value(all.squares));
  last_grad_norm_ = norm / scale;
  skipped_in_a_row_ = 0;
  update(gradients, all.has_gradient, kernels::gradient_factor(kernels::clip_divisor(norm, scale, max_norm_), scale));
  schedule_.advance();
  zero_grad();
  return true;
}

// What goes wrong here is told to the other ranks, which would wait otherwise.
StepSummary FSDPadaptOptimizer::summarise(Gradients& gradients) {
  StepSummary summary;
  summary.stop = stop_;
  try {
    state_.require_loaded("step()");
    read_gradients(gradients, summary);
  } catch (const Error& e) {
    summary.failure = e.finding();
  } catch (const std::exception& e) {
    summary.failure = error(Exit::failed, "gradients cannot be read").found_only(e.what());
  }
  return summary;
}

void FSDPadaptOptimizer::read_gradients(Gradients& gradients, StepSummary& summary) {
  enum : uint32_t { counted = 0, replica = 1 };
  std::vector<kernels::GradientEntry> table;
  const std::byte* end = nullptr;   // of the last row, if the next may go on there
  for (const Parameter& parameter : parameters_) {
    const ShardInfo& info = parameter.shard->info();
    summary.has_gradient.push_back(parameter.shard->has_gradient());
    Gradients::Row row;
    row.tensor = parameter.shard->gradient();
    if (row.tensor.defined()) {
      check(row.tensor, info, "a gradient");
      row.type = float_type(row.tensor, "a gradient", info.fqn);
      row.data = row.tensor.const_data_ptr();
    }
    gradients.rows.push_back(row);
    if (row.data == nullptr || info.count() == 0) continue;
    const uint32_t result = info.replica == 0 ? counted : replica;
    // The placement selects the path: neighbours in a unit's flat gradient are read as one, others each by itself.
    const bool flat = !DTENSOR_SUPPORTED || info.placement == ShardPlacement::flat;
    if (flat && row.data == end && table.back().type == row.type && table.back().result == result) {
      table.back().count += info.count();
    } else {
      table.push_back({row.data, nullptr, info.count(), row.type, result});
    }
    end = flat ? static_cast<const std::byte*>(row.data) + info.count() * kernels::float_size(row.type) : nullptr;
  }
  std::vector<kernels::GradientNorm> norms(2);
  device_.kernels().unscale_norm(table, 1, norms);
  summary.squares = norms[counted].squares;
  summary.nonfinite = norms[counted].nonfinite + norms[replica].nonfinite;
}

void FSDPadaptOptimizer::update(Gradients& gradients, const std::vector<bool>& has_gradient, float factor) {
  for (ParamGroup& group : groups_) group.options.lr = schedule_.lr(group.initial_lr);
  std::vector<size_t> ids;
  uint64_t most_zeros = 0;
  for (size_t id = 0; id < parameters_.size(); ++id) {
    if (!has_gradient[id]) continue;
    ids.push_back(id);
    state_.begin_step(id);
    if (gradients.rows[id].data == nullptr) most_zeros = std::max(most_zeros, state_.count(id));
  }
  const Block zeros = device_.allocate(Place::device, most_zeros * sizeof(float));
  device_.zero(zeros);
  for (const size_t id : ids) {
    if (gradients.rows[id].data == nullptr) gradients.rows[id].data = zeros.data();
  }
  kind_ == OptimizerKind::sgd ? update_sgd(gradients, ids, factor) : update_adam(gradients, ids, factor);
  device_.kernels().synchronize();   // gradients and zeros may go
}

void FSDPadaptOptimizer::update_adam(const Gradients& gradients, std::span<const size_t> ids, float factor) {
  std::vector<kernels::AdamScalars> scalars;
  std::map<std::pair<size_t, uint64_t>, uint32_t> scalars_of;   // group and step
  std::vector<kernels::AdamEntry> table;
  for (const size_t id : ids) {
    const Parameter& p = parameters_[id];
    const uint64_t step = state_.step(id);
    const auto [found, is_new] = scalars_of.try_emplace({p.group, step}, static_cast<uint32_t>(scalars.size()));
    if (is_new) {
      const GroupOptions& o = groups_[p.group].options;
      const kernels::AdamOptions options{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay};
      scalars.push_back(kind_ == OptimizerKind::adamw ? kernels::adamw_scalars(options, step, factor)
                                                      : kernels::adam_scalars(options, step, factor));
    }
    const Gradients::Row& gradient = gradients.rows[id];
    table.push_back({gradient.data, state_.master(id), state_.moment(id, 0), state_.moment(id, 1),
                     state_.aliased(id) ? nullptr : p.local, state_.count(id), gradient.type, p.type, found->second, 0});
  }
  device_.kernels().adam(table, scalars);
}

void FSDPadaptOptimizer::update_sgd(const Gradients& gradients, std::span<const size_t> ids, float factor) {
  std::vector<kernels::SgdScalars> scalars;
  std::map<std::pair<size_t, bool>, uint32_t> scalars_of;   // group, and whether it is the first step
  std::vector<kernels::SgdEntry> table;
  for (const size_t id : ids) {
    const Parameter& p = parameters_[id];
    const bool first = state_.step(id) == 1;
    const auto [found, is_new] = scalars_of.try_emplace({p.group, first}, static_cast<uint32_t>(scalars.size()));
    if (is_new) {
      const GroupOptions& o = groups_[p.group].options;
      scalars.push_back(kernels::sgd_scalars({o.lr, o.momentum, o.weight_decay}, first, factor));
    }
    const Gradients::Row& gradient = gradients.rows[id];
    table.push_back({gradient.data, state_.master(id), state_.moment(id, 0), state_.aliased(id) ? nullptr : p.local,
                     state_.count(id), gradient.type, p.type, found->second, 0});
  }
  device_.kernels().sgd(table, scalars);
}

void FSDPadaptOptimizer::zero_grad() {
  for (ParameterShard* shard : model_.shards()) shard->clear_gradient();
}

void FSDPadaptOptimizer::clip_grad_norm(const ShardedModel& model, double max_norm) {
  if (&model != &model_) throw Error(Exit::usage, "gradients of another model than the optimizer's");
  max_norm_ = checked_max_norm(max_norm);
}

void FSDPadaptOptimizer::set_loss_scale() { *static_cast<float*>(loss_scale_->mutable_data_ptr()) = scaler_.scale(); }

// ---- masters and the model's parameters

void FSDPadaptOptimizer::refresh_masters_from_model() {
  state_.require_loaded("refresh_masters_from_model()");
  std::vector<kernels::CastEntry> table;
  for (size_t id = 0; id < parameters_.size(); ++id) {
    if (state_.aliased(id)) continue;
    table.push_back({parameters_[id].local, state_.master(id), state_.count(id), parameters_[id].type, FloatType::float32});
  }
  device_.kernels().cast(table, {});
  device_.kernels().synchronize();
}

void FSDPadaptOptimizer::copy_masters_to_model(std::span<const size_t> ids) {
  std::vector<kernels::CastEntry> table;
  for (const size_t id : ids) {
    if (state_.aliased(id)) continue;
    table.push_back({state_.master(id), parameters_[id].local, state_.count(id), FloatType::float32, parameters_[id].type});
  }
  device_.kernels().cast(table, {});
  device_.kernels().synchronize();
}

// ---- offload

StateMove offload_fsdp_optimizer(FSDPadaptOptimizer& optimizer, const OffloadOptions& options) {
  return optimizer.state().offload(options.masters);
}

StateMove load_fsdp_optimizer(FSDPadaptOptimizer& optimizer, std::string_view device) {
  if (!device.empty()) {
    const std::string wanted = parse_device(device).text();
    if (wanted != optimizer.device().name()) {
      open_device(wanted);   // says so where there is none
      throw Error(Exit::usage, "optimizer state cannot be loaded to a device where its parameters are not")
          .saw(optimizer.device().name(), wanted);
    }
  }
  return optimizer.state().load();
}

}  // namespace fsdpctl::train
