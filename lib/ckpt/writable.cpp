#include "lib/ckpt/writable.h"

#include <utility>

namespace fsdpctl {
namespace {

constexpr std::string_view kRankPart = "one rank's part";   // a fact's name

}  // namespace

void mark_rank_part(Checkpoint& checkpoint, std::string why) { checkpoint.facts.emplace_back(kRankPart, std::move(why)); }

void check_keys_differ(const Checkpoint& checkpoint) {
  if (checkpoint.equal_keys.empty()) return;
  const EqualKeys& equal = checkpoint.equal_keys.front();
  throw Error(Exit::refused, "two keys are the same text, so what has this name is ambiguous")
      .key(equal.key)
      .found_only(equal.first + " and " + equal.second)
      .try_("load it with PyTorch, give one of the two another key, and save it again");
}

void check_writable(const Checkpoint& checkpoint) {
  for (const auto& fact : checkpoint.facts) {
    if (fact.first != kRankPart) continue;
    throw Error(Exit::refused, "file holds one rank's part of a checkpoint, not the whole")
        .at(checkpoint.metadata_file)
        .found_only(fact.second)
        .try_("load all parts with the program and the ranks that wrote them, save with torch.distributed.checkpoint.save, and open that");
  }
  check_keys_differ(checkpoint);
}

}  // namespace fsdpctl
