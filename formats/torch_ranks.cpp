#include "formats/torch_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <unordered_set>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

std::optional<int64_t> number(std::string_view digits) {
  int64_t value = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (status != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

// The class of the first shard in a tree.
class ShardFinder {
 public:
  bool find(const Value& v) {
    if (v.is(Kind::global)) return is_shard(v.node<GlobalNode>());
    const bool holds = v.is_sequence() || v.is_mapping() || v.is(Kind::object);
    if (!holds || !seen_.insert(v.identity()).second) return false;
    if (v.is_sequence()) return any(v.items());
    if (v.is_mapping()) return any(v.entries());
    const auto& object = v.node<ObjectNode>();
    return find(object.callable) || find(object.args) || find(object.kwargs) || find(object.state) || any(object.items) || any(object.entries);
  }
  const std::string& name() const { return name_; }

 private:
  bool any(const std::vector<Value>& items) {
    return std::any_of(items.begin(), items.end(), [this](const Value& item) { return find(item); });
  }
  bool any(const std::vector<Entry>& entries) {
    return std::any_of(entries.begin(), entries.end(), [this](const Entry& e) { return find(e.value); });
  }
  // Shard is a placement of DTensors, and a shard of a ShardedTensor; replicated DTensors have none.
  bool is_shard(const GlobalNode& global) {
    if (!global.module.starts_with("torch.distributed.")) return false;
    if (global.name != "Shard" && global.name != "_StridedShard" && global.name != "ShardedTensor") return false;
    name_ = global.module + "." + global.name;
    return true;
  }

  std::unordered_set<const void*> seen_;
  std::string name_;
};

// pytorch_model_fsdp_rank0.bin, pytorch_model_fsdp_1_rank0.bin: FSDP1's local state dicts, as accelerate writes them.
std::optional<int64_t> accelerate_rank(std::string_view name) {
  constexpr std::string_view kBegin = "pytorch_model_fsdp", kRank = "_rank", kEnding = ".bin";
  const size_t at = name.rfind(kRank);
  if (!name.starts_with(kBegin) || !name.ends_with(kEnding) || at == std::string_view::npos || at < kBegin.size()) return std::nullopt;
  const std::string_view model = name.substr(kBegin.size(), at - kBegin.size());
  if (!model.empty() && (model[0] != '_' || !number(model.substr(1)))) return std::nullopt;
  name.remove_suffix(kEnding.size());
  return number(name.substr(at + kRank.size()));
}

}  // namespace

std::optional<std::string> why_rank_part(std::string_view name, const Value& tree) {
  if (const auto file = rank_file(name)) {
    if (file->world_size == 1) return std::nullopt;
    return fmt::format("rank {} of {}, by the file's name", file->rank, file->world_size);
  }
  if (const auto rank = accelerate_rank(name)) return fmt::format("rank {} of a local FSDP state dict, by the file's name", *rank);
  if (is_deepspeed_file(name)) return "a file of DeepSpeed, by its name";
  ShardFinder finder;
  if (finder.find(tree)) return "shards in it: " + finder.name();
  return std::nullopt;
}

std::optional<RankFile> rank_file(std::string_view name) {
  constexpr std::string_view kWorld = "_world_size_", kRank = "_rank_", kEnding = ".pt";
  if (!name.ends_with(kEnding)) return std::nullopt;
  name.remove_suffix(kEnding.size());
  const size_t world_at = name.rfind(kWorld), rank_at = name.rfind(kRank);
  if (world_at == std::string_view::npos || rank_at == std::string_view::npos) return std::nullopt;
  const size_t world_digits = world_at + kWorld.size();
  if (rank_at < world_digits) return std::nullopt;
  const auto world_size = number(name.substr(world_digits, rank_at - world_digits));
  const auto rank = number(name.substr(rank_at + kRank.size()));
  if (!world_size || !rank || *rank >= *world_size) return std::nullopt;
  return RankFile{std::string(name.substr(0, world_at)), *world_size, *rank};
}

std::vector<std::string> find_rank_files(const Source& source) {
  std::vector<std::string> names;
  for (const DirectoryEntry& e : source.entries()) {
    if (e.kind == FileKind::file && rank_file(e.name)) names.push_back(e.name);
  }
  return names;
}

bool is_deepspeed_file(std::string_view name) {
  return name.find("mp_rank_") != std::string_view::npos && (name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt"));
}

std::vector<std::string> find_deepspeed_files(const Source& source) {
  std::vector<std::string> names;
  for (const DirectoryEntry& e : source.entries()) {
    if (e.kind == FileKind::file && is_deepspeed_file(e.name)) names.push_back(e.name);
  }
  return names;
}

void refuse_deepspeed_files(const std::vector<std::string>& names) {
  throw Error(Exit::unsupported, "checkpoints of DeepSpeed are not supported").at(names.front())
      .found_only(fmt::format("{} {} of single ranks; zero_to_fp32.py, which DeepSpeed puts beside the steps, writes whole weights, "
                              "which can be opened",
                              names.size(), names.size() == 1 ? "file" : "files"));
}

void refuse_rank_files(const std::vector<std::string>& names) {
  std::map<std::string, std::set<int64_t>> ranks;   // by group
  const int64_t world_size = rank_file(names.front())->world_size;
  for (const std::string& name : names) {
    const RankFile file = *rank_file(name);
    if (file.world_size != world_size) {
      throw Error(Exit::damaged, "per-rank files of two world sizes in one directory").at(name)
          .saw(fmt::format("world size {}", world_size), fmt::format("{}", file.world_size));
    }
    ranks[file.group].insert(file.rank);
  }
  for (const auto& [group, present] : ranks) {
    if (static_cast<int64_t>(present.size()) == world_size) continue;
    int64_t missing = 0;
    while (present.contains(missing)) ++missing;
    throw Error(Exit::damaged, "per-rank file is missing")
        .at(fmt::format("{}_world_size_{}_rank_{}.pt", group, world_size, missing))
        .saw(fmt::format("{} files", world_size), fmt::format("{}", present.size()));
  }
  throw Error(Exit::unsupported, "checkpoints of per-rank torch.save files are not supported").at(names.front())
      .found_only(fmt::format("{} files of world size {}; what the program that wrote them loads and saves with "
                              "torch.distributed.checkpoint.save can be opened",
                              names.size(), world_size));
}

}  // namespace fsdpctl
