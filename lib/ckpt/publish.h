// Publish: a checkpoint appears under its final name whole and proven, or not at all.
//
// Everything goes to OUT.partial-<id>/data (lock and journal beside `data`), is synced, opened again by its own
// reader, tiled, read back and compared, then renamed; with `force` an existing OUT is exchanged in one step. A killed
// run leaves the old state or the new one, and a partial that the same arguments continue.
#pragma once

#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/format.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

struct PublishOptions {
  EngineOptions engine;
  bool force = false;
  bool read_back = true;
  bool dry_run = false;
  std::string arguments;               // text that identifies the operation: part of <id>
  std::vector<Change> changes;         // for the manifest
};

struct PublishResult {
  std::string path;
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t bytes_resumed = 0;
  uint64_t fingerprint = 0;
  uint64_t source_fingerprint = 0;
  bool read_back = false;
  std::vector<Change> changes;         // given ones and the casts that happened
};

// Writes `checkpoint` (already selected, renamed, cast) with `format` to `output`.
PublishResult publish(const Checkpoint& checkpoint, const Format& format, const Target& target,
                      const std::string& output, const PublishOptions& options, FindingSink& sink);

}  // namespace fsdpctl
