// Per-rank files of torch.save, named NAME_world_size_W_rank_R.pt: recognised, so that a part is not taken for the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/value.h"
#include "lib/ckpt/source.h"

namespace fsdpctl {

struct RankFile {
  std::string group;           // "model"
  int64_t world_size = 0;
  int64_t rank = 0;
};
std::optional<RankFile> rank_file(std::string_view name);

// Why a file is one rank's part: by its name, where a framework gives only parts such a name ("rank 0 of 2"; accelerate's
// pytorch_model_fsdp_rank0.bin, DeepSpeed's), or by the shards of ShardedTensors and DTensors in it. nullopt: it is whole, as far as can
// be told. `rank0` alone says nothing: many programs name so what rank 0 wrote for all.
std::optional<std::string> why_rank_part(std::string_view name, const Value& tree);

// A directory's files of that kind; empty when it has none.
std::vector<std::string> find_rank_files(const Source& source);

// DeepSpeed's files of one rank: zero_pp_rank_0_mp_rank_00_optim_states.pt, mp_rank_00_model_states.pt.
bool is_deepspeed_file(std::string_view name);
std::vector<std::string> find_deepspeed_files(const Source& source);

// Why they cannot be read: Error(damaged) where ranks are missing or two saves are mixed, else Error(unsupported).
[[noreturn]] void refuse_rank_files(const std::vector<std::string>& names);
[[noreturn]] void refuse_deepspeed_files(const std::vector<std::string>& names);

}  // namespace fsdpctl
