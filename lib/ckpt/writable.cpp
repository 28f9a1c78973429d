#include "lib/ckpt/writable.h"

#include <utility>

#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kRankPart = "part";   // a fact's name

const std::string* why_part(const Checkpoint& checkpoint) {
  for (const auto& fact : checkpoint.facts) {
    if (fact.first == kRankPart) return &fact.second;
  }
  return nullptr;
}

}  // namespace

void mark_rank_part(Checkpoint& checkpoint, std::string why) { checkpoint.facts.emplace_back(kRankPart, std::move(why)); }

bool is_rank_part(const Checkpoint& checkpoint) { return why_part(checkpoint) != nullptr; }

void check_keys_differ(const Checkpoint& checkpoint) {
  if (checkpoint.equal_keys.empty()) return;
  const EqualKeys& equal = checkpoint.equal_keys.front();
  throw Error(Exit::refused, "two keys are the same text, so what has this name is ambiguous")
      .key(equal.key)
      .found_only(equal.first + " and " + equal.second)
      .try_("fsdpctl convert with --drop " + shell_quoted(equal.key) + " leaves both out; or load it with PyTorch, give one another key, and save it again");
}

void check_writable(const Checkpoint& checkpoint) {
  if (const std::string* why = why_part(checkpoint)) {
    throw Error(Exit::refused, "file holds one rank's part of a checkpoint, not the whole")
        .at(checkpoint.metadata_file)
        .found_only(*why)
        .try_("load all parts with the program and the ranks that wrote them, save with torch.distributed.checkpoint.save, and open that");
  }
  check_keys_differ(checkpoint);
}

}  // namespace fsdpctl
