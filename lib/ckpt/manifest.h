// Manifest: what fsdpctl knows of a save, beside the data. `fsdpctl.manifest.json` in a directory,
// `OUT.fsdpctl.json` beside a single file. No absolute path, host or user name. Deterministic text, one row per line:
//
//   {"fsdpctl_manifest": 1, "format": "dcp", "metadata_file": ".metadata", "metadata_crc64": "<16 hex digits>",
//    "fingerprint": "...", "source": {"format": "torch", "fingerprint": "..."}, "read_back": true,
//    "changes": [{"kind": "renamed", "key": "old", "detail": "new"}],
//    "tensors": [{"key": "model.w", "dtype": "float32", "shape": [2, 3], "crc64": "..."}]}
//
// `source` is there where fsdpctl made the checkpoint from another one, `metadata_file` in directories. metadata_crc64 ties the manifest
// to one save: the CRC-64/XZ of the metadata file; beyond 64 MiB of its first and last MiB and its size as 8 little-endian bytes.
// Where that file holds data, whose damage must not look like another save: of a line "key TAB dtype TAB shape" for each tensor,
// and its size. Names that are no UTF-8 stand in `key_hex`. Unknown members are skipped.
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
  std::optional<CastCounts> casts = {};   // of a cast, once it was done; not in the manifest, where detail says it
};

struct Manifest {
  int version = 1;
  std::string format;
  std::string metadata_file;           // relative; empty for a single file
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
// CRC differs) is reported as a warning, an unreadable one as `unreadable`, and ignored.
std::optional<Manifest> find_manifest(const Checkpoint& checkpoint, FindingSink& sink, Severity unreadable = Severity::warning);

// Whether a file is a manifest, of whatever checkpoint: a cut one is.
bool is_manifest(const std::string& path);

// A manifest file lies beside the checkpoint, whatever it holds.
bool has_manifest_file(const Checkpoint& checkpoint);

// As far as times of files tell, nothing of the checkpoint was written after its manifest, which is there.
bool is_untouched(const Checkpoint& checkpoint);

std::string manifest_path(const std::string& output, bool directory);

}  // namespace fsdpctl
