// The directory of a run: checkpoints step-N, and the lock that keeps other runs out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lib/base/file.h"

namespace fsdpctl::train {

class RunFolder {
 public:
  // Makes the directory (not its parents) and takes the lock for as long as the object lives. Error(failed) where another run has it.
  explicit RunFolder(std::string path);

  const std::string& path() const { return path_; }
  // The highest N of its step-N, complete or not.
  std::optional<uint64_t> newest_step() const;

 private:
  std::string path_;
  std::optional<FileLock> lock_;
};

// "DIRECTORY/step-100", and the step of such a name; nothing for others.
std::string step_path(const std::string& directory, uint64_t step);
std::optional<uint64_t> step_of(const std::string& name);

}  // namespace fsdpctl::train
