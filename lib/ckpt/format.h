// Format: one way in which checkpoints lie on disk. Imitate formats/safetensors.cpp.
//
// The interface is this small because everything else (I/O of tensor data, threads, checksums, progress,
// resuming, proof) exists once, in the engine: a format reads metadata into a Checkpoint and lays a
// Checkpoint out as files. Implementations are stateless and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/layout.h"
#include "lib/ckpt/placement.h"

namespace fsdpctl {

struct Match {
  int strength = 0;          // 0..100; the strongest format wins. 100: only this one can be meant
  std::string reason;        // "directory with .metadata", shown by inspect
};

// What a format can carry, in general terms; details are can_carry's.
struct Capabilities {
  bool writes = false;
  bool world_size = false;   // a world size means something: reshard can keep this format
  bool single_file = false;  // output is one file
  bool shard_size = false;   // Target::max_shard_bytes means something
  bool ties = true;          // can say that two names are one tensor; else the caller unties first (lib/ckpt/untie.h)
  // Endings of a single output file's name, with the dot. A name that ends so never is a directory of this format.
  std::vector<std::string_view> endings = {};
};

// What the output shall be.
struct Target {
  const TargetPlacement* placement = nullptr;   // never null
  std::string file_name;            // base name of OUT; single-file formats write exactly this file
  bool directory = false;           // safetensors: a directory rather than a single file
  uint64_t max_shard_bytes = 5'000'000'000;     // safetensors directories
};

class Format {
 public:
  virtual ~Format() = default;
  virtual std::string_view name() const = 0;                       // what --to takes: "dcp"
  // From content, not from names' endings; must be cheap (reads at most some KiB). nullopt: not this format.
  virtual std::optional<Match> recognize(Source& source) const = 0;
  // Is a file of this name a part of one of this format's directories, to be opened by its directory (".metadata",
  // "model.safetensors.index.json")? From the name alone. Default: no.
  virtual bool is_part(std::string_view file_name) const;
  // Opens the checkpoint in `directory`, which this format recognises, that the file `part` (see is_part) belongs to. nullopt: to
  // none, and it is opened by itself. Default: open(directory).
  virtual std::optional<Checkpoint> open_whole(std::shared_ptr<Source> directory, const std::string& part, FindingSink& sink) const;
  // Reads metadata only. Fatal problems throw Error; those that leave the rest readable go to `sink`.
  virtual Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const = 0;
  virtual Capabilities capabilities() const = 0;
  // Every tensor or value that this format could not carry, as findings (code refused or warning) naming
  // key and reason; the caller refuses on errors and lists warnings. Default: nothing.
  virtual void can_carry(const Checkpoint& checkpoint, const Target& target, FindingSink& sink) const;
  // Files to write, paths relative to the output directory. The plan may refer to the checkpoint,
  // which must outlive it. Default: Error(unsupported), a read-only format.
  virtual FilePlan lay_out(const Checkpoint& checkpoint, const Target& target) const;
};

// The list is made in formats/all_formats.cpp and handed down; lib never includes formats.
using FormatList = std::vector<std::unique_ptr<Format>>;

struct Opened {
  Checkpoint checkpoint;
  const Format* format = nullptr;
  Match match;
  std::string chosen;        // for a run directory: the step directory that was taken, relative ("step-100"); else empty
  std::vector<std::string> passed_over;    // newer steps that are incomplete, with the reason
};

struct OpenOptions {
  bool follow_links = false;
};

// Opens any path: a checkpoint, one of its parts (see Format::is_part), or a run directory (newest complete step; Error(refused)
// where that is ambiguous). The strongest match wins, of equal ones the first in the list. Error(unsupported) when no
// format recognises it, Error(damaged) for an empty file or a Git LFS pointer.
Opened open_checkpoint(const FormatList& formats, const std::string& path, FindingSink& sink, OpenOptions options = {});

const Format* find_format(const FormatList& formats, std::string_view name);   // null if unknown

}  // namespace fsdpctl
