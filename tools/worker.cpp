#include "tools/worker.h"

#include <charconv>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kMostWorkers = 1 << 20;

Share share_of_rank(const Variables& variable) {
  const Launch launch = read_ranks(variable);
  if (launch.launcher == Launcher::none) {
    throw Error(Exit::usage, "no launcher has set rank and world size")
        .key("--worker auto")
        .saw("variables of torchrun, SLURM (srun) or Open MPI", "none of them")
        .try_("--worker I/N");
  }
  return {static_cast<uint64_t>(launch.rank), static_cast<uint64_t>(launch.world_size)};
}

}  // namespace

Share parse_worker(const std::string& text, const Variables& variable) {
  if (text == "auto") return share_of_rank(variable);
  Share share;
  const char* const end = text.data() + text.size();
  const auto [slash, index_code] = std::from_chars(text.data(), end, share.index);
  bool good = index_code == std::errc() && slash != end && *slash == '/';
  if (good) {
    const auto [rest, count_code] = std::from_chars(slash + 1, end, share.count);
    good = count_code == std::errc() && rest == end && share.index < share.count && share.count <= kMostWorkers;
  }
  if (good) return share;
  throw Error(Exit::usage, "bad value")
      .key("--worker")
      .saw("I/N with I from 0 to N-1, such as 0/4 to 3/4, or auto", "'" + text + "'");
}

}  // namespace fsdpctl
