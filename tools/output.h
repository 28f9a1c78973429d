// What reshard and convert share: flags about the output, where it goes, writing it and saying what was done.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/publish.h"
#include "tools/command.h"

namespace fsdpctl {

struct OutputOptions {
  std::string path;  // OUT
  bool force = false;
  bool no_read_back = false;
  bool dry_run = false;
  bool follow_links = false;  // of the input
  bool keeps_format = false;  // the command has no --to
  std::optional<Share> worker;
};

// Whether OUT will be one file, by the format or by the ending of its name.
bool writes_one_file(const Format& format, const std::string& path);

void add_output_flags(CLI::App& app, OutputOptions& options);

// Checks OUT against the input and the format, before anything is read: Error(usage) where OUT is, holds or lies in the
// input, where its ending belongs to another format, where it exists without --force, or where it exists and is nothing
// that --force may replace; Error(failed) where its directory does not exist.
void check_output(const OutputOptions& options, const std::string& input, const Format& format, const Context& context);

// What a run shall write.
struct Job {
  std::string verb;  // "reshard", for the progress line
  const Checkpoint* checkpoint = nullptr;
  const Format* format = nullptr;
  int64_t world_size = 1;
  uint64_t max_shard_bytes = 0;  // 0: the default
  std::vector<Change> changes;   // what was done to the content so far
  std::string arguments;         // identifies the run, for resuming
};

// Runs, and where the input turns out damaged adds the command that lists all damage.
Exit with_verify_hint(const std::string& input, const std::function<Exit()>& run);

// Error(refused) with everything that the format cannot carry, else publishes and prints the result.
Exit write_output(Job job, const OutputOptions& options, const Context& context);

}  // namespace fsdpctl
