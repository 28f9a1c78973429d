#include "lib/comm/blame.h"

#include <optional>
#include <set>

#include "lib/comm/wire.h"

namespace fsdpctl {
namespace {

std::string key_of(int rank) { return "late/" + std::to_string(rank); }

std::optional<Claim> claim_of(Store& store, int rank) {
  std::string bytes;
  try {
    bytes = store.get(key_of(rank), Milliseconds(0));
  } catch (const Error&) {   // it waits for nobody
    return std::nullopt;
  }
  WireReader read(bytes);
  Claim claim;
  claim.group = read.text();
  claim.step = read.number();
  claim.finding = read.finding();
  return claim;
}

}  // namespace

Finding settle_blame(Store& store, int rank, const Claim& mine, Milliseconds time) {
  store.set(key_of(rank), WireWriter().text(mine.group).number(mine.step).finding(mine.finding).take());
  if (const std::optional<Finding> settled = store.failure(time)) return *settled;
  Claim best = mine;
  std::set<int> seen{rank};
  while (const std::optional<Claim> next = claim_of(store, best.finding.where.rank)) {
    const bool earlier = next->group == best.group && next->step < best.step;
    const bool elsewhere = next->group != best.group && seen.insert(best.finding.where.rank).second;
    if (!earlier && !elsewhere) break;
    best = *next;
  }
  return store.fail(best.finding);
}

}  // namespace fsdpctl
