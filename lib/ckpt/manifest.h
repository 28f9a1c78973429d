// Manifest: what fsdpctl knows of a save, beside the data. `fsdpctl.manifest.json` in a directory,
// `OUT.fsdpctl.json` beside a single file. Holds keys, dtypes, shapes, CRC-64s, the checkpoint fingerprint, where it came
// from and what was changed on the way; no absolute path, host or user name. Deterministic text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/engine.h"

namespace fsdpctl {

struct ManifestTensor {
  std::string key;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t crc64 = 0;
};

// One thing that was done to the content: {"cast", "model.w", "float32 -> bfloat16, 12 values changed"}.
struct Change {
  std::string kind;          // cast, renamed, dropped, filled, copied, key (integer keys became strings) ...
  std::string key;
  std::string detail;
};

struct Manifest {
  int version = 1;
  std::string format;
  std::string metadata_file;           // relative; its CRC-64 ties the manifest to this save
  uint64_t metadata_crc64 = 0;
  uint64_t fingerprint = 0;
  std::string source_format;           // empty: sealed in place by verify --write-manifest
  uint64_t source_fingerprint = 0;
  bool read_back = false;
  std::vector<ManifestTensor> tensors;
  std::vector<Change> changes;
};

// The manifest of a checkpoint as it is on disk: names, dtypes, shapes and sums; source and changes are left empty.
Manifest describe(const Checkpoint& checkpoint, const std::vector<TensorSum>& sums);

std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(std::string_view text, const std::string& file_name);   // Error(damaged)

// The manifest that belongs to this checkpoint, nullopt when there is none. One of another save (its metadata
// CRC differs) or an unreadable one is reported as a warning and ignored.
std::optional<Manifest> find_manifest(const Checkpoint& checkpoint, FindingSink& sink);
std::string manifest_path(const std::string& output, bool directory);

}  // namespace fsdpctl
