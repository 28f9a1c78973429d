// What flags and environment variables say together: flag beats environment, environment beats default.
//
// Every variable that fsdpctl reads:
//
//     FSDPCTL_JSON         1: as --json, 0: not
//     FSDPCTL_PROGRESS     auto, always or never, as --progress
//     FSDPCTL_COLOR        auto, always or never, as --color
//     NO_COLOR             set and not empty: no colour, unless FSDPCTL_COLOR or --color says otherwise
//     TERM                 dumb: no colour and no progress line, unless they are asked for
//     FSDPCTL_MAX_MEMORY   a size, as --max-memory
//     FSDPCTL_THREADS      a number, as --threads
//
// (TMPDIR and, for fault tests only, FSDPCTL_FAULT are read in lib/base; the launchers' variables, for --worker auto, in
// lib/comm/launch.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lib/base/variables.h"

namespace fsdpctl {

enum class When : uint8_t { automatic, always, never };

// What the command line said; absent: nothing.
struct GlobalFlags {
  bool json = false;
  bool quiet = false;
  int verbose = 0;
  std::optional<When> progress, color;
  std::optional<uint64_t> max_memory;  // bytes
  std::optional<int> threads;
};

// What holds.
struct Globals {
  bool json = false;
  bool quiet = false;
  int verbose = 0;
  When progress = When::automatic, color = When::automatic;
  bool dumb_terminal = false;
  uint64_t max_memory = 96ull << 20;  // bytes
  int threads = 0;                    // 0: chosen from the machine
};

// Error(usage) for a variable with a value that its flag would not take.
Globals resolve_globals(const GlobalFlags& flags, const Variables& variables);

// Values of the flags; Error(usage) naming `name`.
When parse_when(const std::string& name, const std::string& text);
uint64_t parse_memory(const std::string& name, const std::string& text);     // at least 16 MiB
int parse_threads(const std::string& name, const std::string& text);         // 1 to 1024
int64_t parse_count(const std::string& name, const std::string& text, int64_t lowest, int64_t highest);
int64_t parse_world_size(const std::string& name, const std::string& text);  // 1 to kMaxWorldSize
double parse_tolerance(const std::string& name, const std::string& text);    // finite, not negative

}  // namespace fsdpctl
