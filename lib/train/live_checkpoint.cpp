#include "lib/train/live_checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "lib/comm/wire.h"
#include "lib/train/optimizer_values.h"
#include "lib/train/torch_types.h"

namespace fsdpctl::train {
namespace {

// The elements that a rank holds of a parameter.
struct Held {
  int rank = 0;
  uint64_t begin = 0, end = 0;
};

// What each rank holds of each of `shards`, where it holds anything and no rank before it does.
std::vector<std::vector<Held>> exchange_held(std::span<ParameterShard* const> shards, Communicator& world) {
  WireWriter mine;
  for (const ParameterShard* shard : shards) {
    const ShardInfo& info = shard->info();
    mine.number(info.replica == 0 ? info.begin : 0).number(info.replica == 0 ? info.end : 0);
  }
  std::vector<std::vector<Held>> held(shards.size());
  int rank = 0;
  for (const std::string& text : world.exchange(mine.take(), "what ranks hold of the model")) {
    WireReader in(text);
    for (std::vector<Held>& parameter : held) {
      const uint64_t begin = in.number(), end = in.number();
      if (begin < end) parameter.push_back({rank, begin, end});
    }
    ++rank;
  }
  return held;
}

constexpr std::array<const char*, 2> kAdamMoments = {"exp_avg", "exp_avg_sq"};

}  // namespace

struct LiveState::Described {
  ShardInfo info;
  std::vector<std::string> aliases;
  DType dtype = DType::float32;         // of the master, or of what there is in its place
  ParameterShard* shard = nullptr;
  std::optional<size_t> id;             // in the optimizer
  int moments = 0;
  std::vector<Held> held;
  size_t first_part = 0;                // the master; moments follow
};

StateValues values_of(const TrainingState& state) {
  FSDPadaptOptimizer& optimizer = state.optimizer;
  StateValues values{state.step, state.samples, state.config, {}, {}, optimizer.scaler(), optimizer.schedule(), optimizer.max_norm()};
  for (size_t id = 0; id < optimizer.parameter_count(); ++id) values.steps.push_back(optimizer.state().step(id));
  values.groups.assign(optimizer.param_groups().begin(), optimizer.param_groups().end());
  return values;
}

LiveState::LiveState(TrainingState& state, Communicator& world)
    : state_(state), rank_(world.rank()), ranks_(world.size()), shards_(state.model.mesh().shards()) {
  std::map<std::string, size_t, std::less<>> ids;
  for (size_t id = 0; id < state.optimizer.parameter_count(); ++id) ids.emplace(state.optimizer.parameter(id).fqn, id);
  std::map<std::string, std::vector<std::string>> aliases;
  for (NamedParameter& p : named_parameters(state.model.root())) aliases.emplace(p.fqn, std::move(p.aliases));
  std::vector<std::vector<Held>> held = exchange_held(state.model.shards(), world);
  for (size_t i = 0; i < held.size(); ++i) {
    Described p;
    p.shard = state.model.shards()[i];
    p.info = p.shard->info();
    p.aliases = aliases[p.info.fqn];
    if (const auto id = ids.find(p.info.fqn); id != ids.end()) p.id = id->second;
    if (p.id) p.moments = state.optimizer.state().moments(*p.id);
    else p.dtype = dtype_of(p.shard->local().scalar_type());
    p.held = std::move(held[i]);
    p.first_part = parts_.size();
    for (int moment = -1; moment < p.moments; ++moment) parts_.push_back({i, moment, p.info.count() * item_size(p.dtype)});
    parameters_.push_back(std::move(p));
  }
}

LiveState::~LiveState() = default;

const void* LiveState::memory(size_t part) const {
  const StatePart& wanted = parts_[part];
  const Described& p = parameters_[wanted.parameter];
  if (wanted.bytes == 0) return nullptr;
  if (!p.id) return p.shard->local().const_data_ptr();
  const OptimizerState& state = state_.optimizer.state();
  state.require_ready("a checkpoint of it");
  return wanted.moment < 0 ? state.master(*p.id) : state.moment(*p.id, wanted.moment);
}

// One catalog in the making.
class LiveState::Builder {
 public:
  Builder(const LiveState& live, const StateValues& values, std::span<const void* const> memory)
      : live_(live), values_(values), memory_(memory) {
    checkpoint_.format = "training";
    checkpoint_.source = Source::in_memory("state of the run");
    checkpoint_.world_size = live.shards_;
    for (int rank = 0; rank < live.ranks_; ++rank) {
      elsewhere_.push_back(checkpoint_.source->elsewhere(fmt::format("rank {}", rank), INT64_MAX));
    }
  }

  LiveCheckpoint build() {
    const auto steps = std::make_shared<std::vector<float>>();
    for (const uint64_t step : values_.steps) steps->push_back(static_cast<float>(step));
    std::vector<Entry> model, aliases, states;
    for (const Described& p : live_.parameters_) {
      const Value leaf = tensor(p, -1);
      append(model, p.info.fqn, leaf);
      for (const std::string& alias : p.aliases) append(aliases, alias, leaf);
      if (p.id && values_.steps[*p.id] > 0) add_state(states, p, (*steps)[*p.id]);
    }
    for (Entry& alias : aliases) model.push_back(std::move(alias));
    const auto mapping = [](std::vector<Entry> entries) { return Value::mapping(Kind::dict, std::move(entries)); };
    checkpoint_.tree = dict_value({{"model", mapping(std::move(model))},
                                   {"optimizer", dict_value({{"state", mapping(std::move(states))}, {"param_groups", groups()}})},
                                   {"scheduler", schedule_value(values_.schedule, values_.groups)},
                                   {"scaler", scaler()},
                                   {"step", count_value(values_.step)},
                                   {"samples", count_value(values_.samples)},
                                   {"config", Value::string(values_.config)}});
    FindingSink strict;
    checkpoint_.finish(strict);
    return {std::move(checkpoint_), steps};
  }

 private:
  static void append(std::vector<Entry>& entries, std::string_view key, Value value) {
    entries.push_back({Value::string(key), std::move(value)});
  }

  Value tensor(const Described& p, int moment) {
    const TensorIndex t = checkpoint_.add_tensor(p.dtype, p.info.shape);
    const size_t part = p.first_part + static_cast<size_t>(moment + 1);
    for (const Held& held : p.held) {
      const bool mine = held.rank == live_.rank_;
      const uint64_t item = item_size(p.dtype);
      SourceIndex source = elsewhere_[static_cast<size_t>(held.rank)];
      if (mine) {
        const std::span bytes(static_cast<const std::byte*>(memory_[part]), live_.parts_[part].bytes);
        source = checkpoint_.source->lend(fmt::format("part {}", part), bytes);
      }
      uint64_t offset = 0;
      for (const Box& box : flat_range_boxes(*checkpoint_.arena, checkpoint_.tensors[t].shape, held.begin, held.end)) {
        add_piece(t, held.rank, box, source, offset, p.dtype);
        offset += count(box) * item;
      }
    }
    return Value::tensor({t});
  }

  void add_piece(TensorIndex t, int rank, const Box& box, SourceIndex source, uint64_t offset, DType dtype) {
    Piece piece;
    piece.tensor = t;
    piece.rank = rank;
    piece.box = box;
    piece.source = source;
    piece.stored = dtype;
    piece.offset = offset;
    piece.length = count(box) * item_size(dtype);
    checkpoint_.add_piece(piece);
  }

  void add_state(std::vector<Entry>& states, const Described& p, const float& step) {
    std::vector<Entry> fields;
    if (live_.state_.optimizer.kind() == OptimizerKind::sgd) {
      if (p.moments > 0) append(fields, "momentum_buffer", tensor(p, 0));
    } else {
      const TensorIndex t = checkpoint_.add_tensor(DType::float32, {});
      const bool mine = live_.rank_ == 0;
      const SourceIndex source =
          mine ? checkpoint_.source->lend(fmt::format("step of {}", p.info.fqn), std::as_bytes(std::span(&step, 1))) : elsewhere_[0];
      add_piece(t, 0, {}, source, 0, DType::float32);
      append(fields, "step", Value::tensor({t}));
      for (size_t m = 0; m < kAdamMoments.size(); ++m) append(fields, kAdamMoments[m], tensor(p, static_cast<int>(m)));
    }
    if (!fields.empty()) append(states, p.info.fqn, Value::mapping(Kind::dict, std::move(fields)));
  }

  Value groups() const {
    std::map<size_t, std::string_view> names;   // by id
    for (const Described& p : live_.parameters_) {
      if (p.id) names.emplace(*p.id, p.info.fqn);
    }
    std::vector<Value> groups;
    size_t id = 0;
    for (const ParamGroup& group : values_.groups) {
      std::vector<Value> params;
      for (size_t i = 0; i < group.parameters.size(); ++i) params.push_back(Value::string(names.at(id++)));
      groups.push_back(group_value(live_.state_.optimizer.kind(), group, std::move(params)));
    }
    return list_value(std::move(groups));
  }

  Value scaler() const {
    std::vector<Entry> entries;
    append(entries, "scale", Value::real(values_.scaler.scale()));
    append(entries, "_growth_tracker", count_value(values_.scaler.growth_step()));
    append(entries, "_hysteresis_tracker", count_value(values_.scaler.hysteresis_step()));
    const Value options = scaler_value(values_.scaler.options());
    entries.insert(entries.end(), options.entries().begin(), options.entries().end());
    append(entries, "max_norm", Value::real(values_.max_norm));
    return Value::mapping(Kind::dict, std::move(entries));
  }

  const LiveState& live_;
  const StateValues& values_;
  const std::span<const void* const> memory_;
  Checkpoint checkpoint_;
  std::vector<SourceIndex> elsewhere_;   // by rank
};

LiveCheckpoint LiveState::checkpoint(const StateValues& values, std::span<const void* const> memory) const {
  return Builder(*this, values, memory).build();
}

}  // namespace fsdpctl::train
