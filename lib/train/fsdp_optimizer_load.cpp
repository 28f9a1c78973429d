// FSDPadaptOptimizer::load_state_dict(): every rank makes a plan without changing anything, ranks agree, then all carry
// theirs out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "kernels/restore.h"
#include "lib/base/finding.h"
#include "lib/comm/wire.h"
#include "lib/train/fsdp_optimizer.h"
#include "lib/train/saved_optimizer.h"

namespace fsdpctl::train {
namespace {

// By the name of the parameter that they hold elements of.
using PiecesByName = std::map<std::string, std::vector<const SavedParameter*>, std::less<>>;

// Elements [from, from + count) of a saved piece go to `to` in the shard.
struct Run {
  const SavedParameter* piece;
  uint64_t from, to, count;
};

uint64_t end_of(const SavedParameter& p) { return p.begin + p.master->count(); }

void check_shape(const SavedParameter& piece, const ShardInfo& info, bool has_meta) {
  const std::vector<int64_t>& saved = has_meta ? piece.global_shape : piece.master->shape;
  const std::vector<int64_t> ours = has_meta ? info.shape : local_shape(info);
  if (saved == ours) return;
  throw Error(Exit::refused, has_meta ? "a parameter of another shape" : "a shard of another shape, and the dict does not say of what")
      .key(info.fqn)
      .saw(fmt::format("[{}]", fmt::join(ours, ", ")), fmt::format("[{}]", fmt::join(saved, ", ")));
}

// The pieces, sorted by where they begin, that hold the shard's elements, each element once.
std::vector<Run> cover(const ShardInfo& info, std::vector<const SavedParameter*> pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
  std::vector<Run> runs;
  uint64_t at = info.begin;
  for (const SavedParameter* piece : pieces) {
    if (at >= info.end || piece->begin > at) break;
    const uint64_t end = std::min(end_of(*piece), info.end);
    if (end <= at) continue;
    runs.push_back({piece, at - piece->begin, at - info.begin, end - at});
    at = end;
  }
  if (at < info.end) {
    throw Error(Exit::refused, "saved optimizer state lacks elements that this rank holds")
        .key(info.fqn)
        .saw(fmt::format("[{}, {})", info.begin, info.end), fmt::format("nothing from {} on", at))
        .try_("give the state dicts of all ranks that wrote it");
  }
  return runs;
}

std::string list_of(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 20);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? text + fmt::format(" and {} more", names.size() - shown) : text;
}

kernels::FloatType float_type_of(const StateTensor& tensor) { return kernels::float_type(tensor.dtype); }

}  // namespace

// Everything that can fail has been done when this exists.
struct FSDPadaptOptimizer::SavedState {
  struct Target {
    size_t id = 0;
    uint64_t step = 0;
    std::vector<Run> runs;
    std::array<Block, 2> fresh;   // moments, for a parameter that has none
  };
  std::vector<SavedOptimizer> saved;
  std::vector<Target> targets;
  std::vector<ParamGroup> groups;
  std::optional<DynamicGradScaler> scaler;
  std::optional<uint64_t> taken;
  double max_norm = 0;
  LoadReport report;

  // What all ranks must have found, and how far each parameter is, as far as this rank's dicts can tell.
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  std::string summary() const {
    std::string text = fmt::format("{} {} {} {} {}\n", scaler->scale(), scaler->growth_step(), scaler->hysteresis_step(),
                                   taken.value_or(0), max_norm);
    for (const ParamGroup& g : groups) text += fmt::format("{} {} {}\n", g.options.lr, g.initial_lr, g.options.weight_decay);
    WireWriter out;
    out.text(text).number(targets.size());
    for (const Target& t : targets) out.number(t.id).number(t.runs.empty() || t.runs[0].count == 0 ? kUnknown : t.step);
    return out.take();
  }
};

// `summaries`: every rank's.
void FSDPadaptOptimizer::check_same_step(const std::vector<std::string>& summaries) const {
  std::vector<uint64_t> steps(parameters_.size(), SavedState::kUnknown);
  std::string first;
  for (size_t rank = 0; rank < summaries.size(); ++rank) {
    WireReader in(summaries[rank]);
    const std::string text = in.text();
    if (rank == 0) first = text;
    bool same = text == first;
    for (uint64_t left = in.number(); left > 0; --left) {
      const uint64_t id = in.number(), step = in.number();
      if (step == SavedState::kUnknown || id >= steps.size()) continue;
      if (steps[id] == SavedState::kUnknown) steps[id] = step;
      same = same && steps[id] == step;
    }
    if (same) continue;
    Finding finding = error(Exit::refused, "ranks were given optimizer states of different steps");
    finding.where.rank = static_cast<int>(rank);
    throw Error(std::move(finding));
  }
}

LoadReport FSDPadaptOptimizer::load_state_dict(const StateDict& dict, const LoadOptions& options) {
  const StateDict* one = &dict;
  return load_state_dict(std::span(&one, 1), options);
}

LoadReport FSDPadaptOptimizer::load_state_dict(std::span<const StateDict* const> dicts, const LoadOptions& options) {
  SavedState state;
  std::optional<Finding> failure;
  try {
    plan_load(dicts, options, state);
  } catch (const Error& e) {
    failure = e.finding();
  } catch (const std::exception& e) {
    failure = error(Exit::failed, "optimizer state cannot be loaded").found_only(e.what());
  }
  ranks_.agree(failure, "loading the optimizer's state");
  check_same_step(ranks_.exchange(state.summary(), "the optimizer's state"));
  commit_load(state);
  return std::move(state.report);
}

void FSDPadaptOptimizer::plan_load(std::span<const StateDict* const> dicts, const LoadOptions& options, SavedState& state) {
  state_.require_loaded("load_state_dict()");
  if (dicts.empty()) throw Error(Exit::usage, "no optimizer state was given");
  for (const StateDict* dict : dicts) state.saved.push_back(read_saved_optimizer(*dict, kind_, options.names));
  if (dicts.size() > 1 && !std::all_of(state.saved.begin(), state.saved.end(), [](const auto& s) { return s.has_meta; })) {
    throw Error(Exit::refused, "optimizer state dicts of several ranks do not say which elements they hold");
  }
  PiecesByName pieces;
  for (SavedOptimizer& saved : state.saved) {
    for (SavedParameter& p : saved.parameters) pieces[p.name].push_back(&p);
  }
  for (size_t id = 0; id < parameters_.size(); ++id) {
    const auto found = pieces.find(parameter(id).fqn);
    if (found == pieces.end()) {
      state.report.missing.push_back(parameter(id).fqn);
      continue;
    }
    plan_parameter(id, found->second, state);
    pieces.erase(found);
  }
  for (const auto& [name, unused] : pieces) state.report.unexpected.push_back(name);
  if (options.strict && !(state.report.missing.empty() && state.report.unexpected.empty())) {
    const bool lacks = !state.report.missing.empty();
    throw Error(Exit::refused, lacks ? "saved optimizer state lacks parameters" : "saved optimizer state has parameters that the model lacks")
        .found_only(list_of(lacks ? state.report.missing : state.report.unexpected));
  }
  plan_options(options, state);
}

void FSDPadaptOptimizer::plan_parameter(size_t id, const std::vector<const SavedParameter*>& pieces, SavedState& state) {
  const ShardInfo& info = parameter(id);
  SavedState::Target target;
  target.id = id;
  const bool has_meta = state.saved[0].has_meta;
  // Of the pieces, one that holds elements says how far they are: the source keeps no state for empty shards.
  const auto holds = [](const SavedParameter* piece) { return piece->master->count() > 0; };
  const auto first = std::find_if(pieces.begin(), pieces.end(), holds);
  const SavedParameter& leading = first == pieces.end() ? *pieces[0] : **first;
  target.step = leading.step;
  for (const SavedParameter* piece : pieces) {
    check_shape(*piece, info, has_meta);
    if (holds(piece) && piece->step != target.step) {
      throw Error(Exit::damaged, "shards of a parameter are of different steps")
          .key(info.fqn)
          .saw(fmt::format("{}", target.step), fmt::format("{}", piece->step));
    }
  }
  target.runs = has_meta ? cover(info, pieces) : std::vector<Run>{{pieces[0], 0, 0, info.count()}};
  const int moments = state_.moments(id);
  if (target.step > 0 && static_cast<int>(leading.moments.size()) != moments) {
    throw Error(Exit::refused, "saved optimizer state has other moments than this optimizer")
        .key(info.fqn)
        .saw(fmt::format("{}", moments), fmt::format("{}", leading.moments.size()));
  }
  if (target.step > 0 && state_.step(id) == 0) target.fresh = state_.make_moments(id);
  state.targets.push_back(std::move(target));
}

void FSDPadaptOptimizer::plan_options(const LoadOptions& options, SavedState& state) {
  const SavedOptimizer& saved = state.saved[0];
  if (saved.has_meta && saved.scaler != scaler_.options() && !options.other_scaler) {
    throw Error(Exit::refused, "the loss scaler is configured differently from the saved one")
        .found_only(fmt::format("{} (here, saved)", fmt::join(differences(scaler_.options(), saved.scaler), "; ")));
  }
  state.scaler = scaler_;
  state.scaler->restore(saved.scale, saved.growth_step, saved.hysteresis_step);
  state.groups = groups_;
  state.max_norm = max_norm_;
  if (saved.has_meta) state.taken = saved.steps_taken;
  if (!options.hyperparameters) return;
  if (saved.has_meta) state.max_norm = saved.max_norm;
  std::vector<const SavedGroup*> taken(groups_.size());
  for (const SavedState::Target& target : state.targets) {
    const SavedParameter& piece = *std::find_if(saved.parameters.begin(), saved.parameters.end(),
                                                [&](const SavedParameter& p) { return p.name == parameter(target.id).fqn; });
    const SavedGroup*& group = taken[parameters_[target.id].group];
    const SavedGroup* theirs = &saved.groups[piece.group];
    if (group == nullptr) group = theirs;
    if (group != theirs) {
      throw Error(Exit::refused, "parameters of one group are in several of the saved ones, whose options differ from each other")
          .key(piece.name)
          .try_("load without hyperparameters");
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (taken[g] == nullptr) continue;
    if (moment_count(kind_, taken[g]->options) != moment_count(kind_, groups_[g].options)) {
      throw Error(Exit::refused, "a saved param group needs other moments than this optimizer has")
          .saw(fmt::format("momentum {}", groups_[g].options.momentum), fmt::format("momentum {}", taken[g]->options.momentum));
    }
    state.groups[g].options = taken[g]->options;
    state.groups[g].initial_lr = taken[g]->initial_lr;
  }
}

void FSDPadaptOptimizer::commit_load(SavedState& state) {
  std::vector<kernels::RestoreEntry> table;
  std::vector<size_t> ids;
  for (SavedState::Target& target : state.targets) {
    ids.push_back(target.id);
    state_.set_step(target.id, target.step, std::move(target.fresh));
    for (const Run& run : target.runs) {
      const auto add = [&](const StateTensor& source, float* to) {
        const kernels::FloatType type = float_type_of(source);
        const uint64_t stride = 1;
        append_box(table, std::span(&run.count, 1),
                   {static_cast<const std::byte*>(source.data.get()) + run.from * kernels::float_size(type), type, std::span(&stride, 1)},
                   {to + run.to, kernels::FloatType::float32, std::span(&stride, 1)});
      };
      add(*run.piece->master, state_.master(target.id));
      for (size_t m = 0; m < run.piece->moments.size(); ++m) add(*run.piece->moments[m], state_.moment(target.id, static_cast<int>(m)));
    }
  }
  device_.kernels().restore(table, {});
  copy_masters_to_model(ids);
  scaler_ = *state.scaler;
  set_loss_scale();
  groups_ = std::move(state.groups);
  max_norm_ = state.max_norm;
  if (state.taken) schedule_.restore(*state.taken);
  skipped_in_a_row_ = 0;
}

}  // namespace fsdpctl::train
