// A checkpoint that the ranks of a run write together, published whole and proven, or not at all.
//
// Each rank writes the elements that it holds (Piece::rank; of replicas the lowest rank) to where they belong in the files,
// whichever format has them lie where, and reads them back through the output's own reader. The first rank makes the files, adds up
// the sums, writes the manifest and gives the output its name.
#pragma once

#include <string>

#include "lib/ckpt/coordinator.h"
#include "lib/ckpt/publish.h"

namespace fsdpctl {

// All ranks call this with the same arguments and checkpoints of one catalog; only bytes of a rank's own pieces are read. Of
// `options`, `worker` and `dry_run` must not be set; nothing is continued. On every rank the same Error or none: as publish(), or
// what the coordinator throws; whatever was written is removed then.
// In the result, bytes_written is the rank's; fingerprints and manifest are known to the first rank.
PublishResult publish_as_rank(const Checkpoint& checkpoint, const Format& format, const Target& target, const std::string& output,
                              const PublishOptions& options, Coordinator& ranks, FindingSink& sink);

}  // namespace fsdpctl
