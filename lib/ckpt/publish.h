// Publish: a checkpoint appears under its final name whole and proven, or not at all.
//
// Everything goes to OUT.partial-<id>/data (lock and journal beside `data`), is synced, opened again by its own
// reader, tiled, read back and compared, then renamed; with `force` an existing OUT is exchanged in one step. A killed
// run leaves the old state or the new one, and a partial that the same call continues. A single file's manifest gets its
// name just before the file does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/format.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

struct PublishOptions {
  EngineOptions engine;
  bool force = false;                  // replace what is there; start a partial again instead of continuing it
  bool read_back = true;
  bool dry_run = false;
  std::optional<Share> worker;         // this process does a share only; the last of all workers publishes
  std::string arguments;               // text that identifies the operation: part of the partial's id
  std::vector<Change> changes;         // for the manifest
};

struct PublishResult {
  bool published = true;               // false: a dry run, or other workers are still to finish
  std::string path;
  std::string manifest;                // its path
  std::string partial;                 // where it grew, or still does: OUT.partial-<id>; empty after a dry run
  uint64_t files = 0;                  // manifest not counted
  uint64_t bytes = 0;
  uint64_t bytes_written = 0;          // by this process
  uint64_t bytes_resumed = 0;          // of all taken over from an earlier run, or from other workers
  uint64_t free_bytes = 0;             // on the output's file system, before
  uint64_t fingerprint = 0;            // of the output; 0 after a dry run
  uint64_t source_fingerprint = 0;     // of what was taken from the source, before casts
  bool read_back = false;
  std::vector<Change> changes;         // given ones; casts with the number of values that they changed
};

// Writes `checkpoint` (already selected, renamed, cast; pieces resolved) with `format` to `output`.
//
// As a worker it does its share of the jobs; the last one to finish publishes all. Workers share nothing but the file system, and a
// share that failed is done again by the same call. Then `force` replaces an existing output, but never starts a partial again.
//
// What an earlier run left is believed only where its bytes are still those that it wrote; the rest is written again (a warning).
//
// A dry run writes nothing and says what would be. Findings: partials that other commands left, and the own one after an Error that
// leaves it. Errors of can_carry are thrown; its warnings are for the caller to list, who asks it before long work. Errors, with nothing
// under `output` changed: usage (output exists without `force`, or lies in the input), refused (can_carry, check_writable), failed (I/O, no
// space, in use by another run, output differs from source, no exchange on this file system), interrupted. After all of these but
// `output differs` the same call goes on where it ended. Damage of the source (damaged), content that turns out to be refused or
// unsupported, and an output that was found to be wrong leave no partial: nothing could be done with it.
PublishResult publish(const Checkpoint& checkpoint, const Format& format, const Target& target,
                      const std::string& output, const PublishOptions& options, FindingSink& sink);

}  // namespace fsdpctl
