#include "tools/overview.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lib/base/box.h"
#include "lib/ckpt/placement.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kMostSteps = 64;  // scalars read to say what step it is

void count_tensor(const Checkpoint& checkpoint, TensorIndex t, PartTotal& total) {
  const TensorInfo& info = checkpoint.tensors[t];
  const uint64_t bytes = checkpoint.bytes_of(t);
  ++total.tensors;
  total.elements += count(info.shape);
  total.bytes += bytes;
  auto row = std::find_if(total.dtypes.begin(), total.dtypes.end(),
                          [&](const DTypeTotal& d) { return d.dtype == info.dtype; });
  if (row == total.dtypes.end()) row = total.dtypes.insert(row, {info.dtype, 0, 0});
  ++row->tensors;
  row->bytes += bytes;
}

void count_placements(const Checkpoint& checkpoint, Overview& overview) {
  // Few distinct placements, many tensors: the text is made once for each.
  std::map<std::tuple<StoredPlacement::Kind, int, uint64_t>, uint64_t> counts;
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    if (checkpoint.tensors[t].role != Role::tensor) continue;
    const StoredPlacement placement = stored_placement(checkpoint, t);
    ++counts[{placement.kind, placement.dim, placement.cut_dims}];
  }
  std::map<std::string, uint64_t> texts;
  for (const auto& [placement, tensors] : counts) {
    const auto& [kind, dim, cut_dims] = placement;
    texts[placement_text({.kind = kind, .dim = dim, .cut_dims = cut_dims})] += tensors;
  }
  overview.placements.assign(texts.begin(), texts.end());
  std::stable_sort(overview.placements.begin(), overview.placements.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
}

std::optional<StepRange> readable_steps(Checkpoint& checkpoint, const Parts& parts, int optimizer,
                                        const EngineOptions& options, FindingSink& sink) {
  try {
    return optimizer_steps(checkpoint, parts, optimizer, kMostSteps, options);
  } catch (const Error& e) {
    sink.report(e.finding());
    return std::nullopt;
  }
}

}  // namespace

Overview make_overview(Opened& opened, const Parts& parts, const EngineOptions& options, FindingSink& sink) {
  Checkpoint& checkpoint = opened.checkpoint;
  Overview overview;
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.tensor == kNoTensor) continue;
    if (leaf.alias) {
      ++overview.aliases;
    } else {
      count_tensor(checkpoint, leaf.tensor, overview.parts[static_cast<int>(leaf.part)]);
    }
  }
  for (PartTotal& total : overview.parts) {
    std::stable_sort(total.dtypes.begin(), total.dtypes.end(),
                     [](const DTypeTotal& a, const DTypeTotal& b) { return a.bytes > b.bytes; });
  }
  count_placements(checkpoint, overview);
  for (size_t i = 0; i < parts.optimizers.size(); ++i) {
    overview.optimizers.push_back(
        {&parts.optimizers[i], readable_steps(checkpoint, parts, static_cast<int>(i), options, sink)});
  }
  overview.state = find_training_state(checkpoint, parts);
  overview.manifest = find_manifest(checkpoint, sink);
  for (const std::string& name : checkpoint.data_files) {
    overview.file_bytes += checkpoint.source->file(checkpoint.source->add(name)).size;
  }
  return overview;
}

}  // namespace fsdpctl
