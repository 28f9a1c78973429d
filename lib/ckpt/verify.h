// Verify: is this checkpoint whole? All findings, not the first. "Not recorded" is never "ok".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/format.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

struct VerifyOptions {
  bool data = false;            // read every byte
  bool count_nonfinite = false; // NaN and Inf per tensor
  EngineOptions engine;
  OpenOptions open;
};

struct NonFinite {
  std::string key;
  uint64_t nan = 0, inf = 0;
};

struct VerifyReport {
  std::string path;
  std::string format;
  std::vector<Finding> findings;         // errors, warnings, notes, in order of the files
  uint64_t tensors = 0, pieces = 0, files = 0;
  uint64_t bytes_read = 0;
  bool opened = false;                   // metadata could be read
  bool has_manifest = false;
  uint64_t manifest_matches = 0;         // tensors whose CRC-64 equals the manifest's
  uint64_t crc32_checked = 0;             // CRC-32s that the files record and that matched
  uint64_t crc32_absent = 0;              // pieces whose file records none
  std::vector<NonFinite> nonfinite;
  Exit exit_code() const;                // worst error's code; ok when there are only warnings
};

VerifyReport verify(const FormatList& formats, const std::string& path, const VerifyOptions& options);

// Seals a foreign checkpoint: reads all data and adds a manifest beside it. Error(usage) if there is one already.
Manifest write_manifest(const FormatList& formats, const std::string& path, const VerifyOptions& options);

}  // namespace fsdpctl
