// How LightRFT's strategy saves and loads its checkpoints, defects included (opendilab/LightRFT 49e62cb): which files are written,
// removed and taken, not what is in them. All ranks of a run are one call.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace fsdpctl::source {

// What a trainer hands to save_ckpt; PPO's, GRM's and SRM's name the model alone.
struct SaveParts {
  bool optimizer = false, scheduler = false;
};

struct SavedFiles {
  std::map<std::string, int> writers;   // of each path in the checkpoint: how many ranks wrote it
};

// Saves to save_dir/global_step<step>, where at most `max_num` directories stay. Writing ends, with an OSError, after
// `room` files.
SavedFiles save_ckpt(const std::string& save_dir, int step, int ranks, const SaveParts& parts, size_t max_num, size_t room);

struct Loaded {
  std::string path;                     // relative to save_dir
  std::set<std::string> state;          // "model", "optimizer", "scheduler"
  std::vector<std::string> warnings;    // all that is said of what is missing
};
Loaded load_ckpt(const std::string& save_dir);

}  // namespace fsdpctl::source
