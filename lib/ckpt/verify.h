// Verify: is this checkpoint whole? All findings, not the first. "Not recorded" is never "ok".
//
// Structure always: metadata, sizes, tiling, every item's header and pickle, fields that share bytes, stale files,
// the manifest's keys. With `data` every byte: manifest CRC-64s, recorded CRC-32s, replicas equal, and on request NaN and Inf
// counts. An unreadable checkpoint is a report with one finding, not an exception; only Error(interrupted) is thrown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/format.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

// The exit code of an operation that found these; ok where none is an error. What could not be read outranks damage, which may be
// nothing but its consequence; damage outranks the rest.
Exit exit_code(const std::vector<Finding>& findings);

struct VerifyOptions {
  bool data = false;             // read every byte
  bool count_nonfinite = false;  // NaN and Inf per tensor; needs data
  bool replace_manifest = false; // write_manifest only
  EngineOptions engine;
  OpenOptions open;
};

struct NonFinite {
  std::string key;
  uint64_t nan = 0, inf = 0;
};

struct VerifyReport {
  std::string path;
  std::string format;                     // empty when it could not be opened
  std::string chosen;                     // step directory that was taken
  std::vector<Finding> findings;          // errors first, then warnings, then notes
  uint64_t tensors = 0, pieces = 0, files = 0;
  uint64_t bytes_read = 0;                // logical bytes, replicas included; 0 without data
  bool has_manifest = false;
  uint64_t manifest_matches = 0;          // tensors whose CRC-64 equals the manifest's
  uint64_t crc32_checked = 0;             // CRC-32s that the files record and that matched
  uint64_t crc32_absent = 0;              // pieces whose file records none
  uint64_t replicas_checked = 0;
  uint64_t fingerprint = 0;               // with data and no errors
  std::vector<NonFinite> nonfinite;       // tensors that have any

  Exit exit_code() const;                 // of the findings
  bool has_errors() const { return exit_code() != Exit::ok; }
};

VerifyReport verify(const FormatList& formats, const std::string& path, const VerifyOptions& options);

// Seals a foreign checkpoint: verifies all data and adds a manifest beside it, the one exception to "an input is
// never changed". nullopt, and nothing is written, where `report` (always filled) has errors. Error(usage), before data is read, if
// there is a manifest file already, of whatever content, and it is not to be replaced.
std::optional<Manifest> write_manifest(const FormatList& formats, const std::string& path, const VerifyOptions& options,
                                       VerifyReport& report);

}  // namespace fsdpctl
