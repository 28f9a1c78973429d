#include "lib/base/nearest_name.h"

#include <algorithm>

namespace fsdpctl {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({replace, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

// All flags begin alike, which makes none of them nearer.
std::string_view without_dashes(std::string_view name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

}  // namespace

std::string nearest_name(std::string_view typed, const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 64;  // bounds the table; no name of ours is longer
  if (typed.size() > kLongestName) return {};
  std::string best;
  typed = without_dashes(typed);
  size_t best_distance = typed.size() / 3 + 2;
  for (const std::string& name : known) {
    const std::string_view bare = without_dashes(name);
    const size_t distance = edit_distance(typed, bare);
    if (distance < best_distance && distance < bare.size()) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

}  // namespace fsdpctl
