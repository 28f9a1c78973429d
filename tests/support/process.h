// Running programs from tests: fsdpctl itself, and the Python that has real PyTorch.
#pragma once

#include <string>
#include <vector>

namespace fsdpctl {

struct ProcessResult {
  int exit_code = -1;      // 128 + signal where one ended it
  std::string out, err;
  int signal = 0;          // that ended it, or 0
  double cpu_seconds = 0;  // user and system
  long peak_kib = 0;       // resident memory
};

struct ProcessOptions {
  std::vector<std::string> environment;    // "NAME=value", added to ours
  std::string directory;                   // working directory; empty: ours
  unsigned timeout_seconds = 300;          // SIGALRM ends it then
};

// Runs argv[0] (found through PATH) without standard input and waits for it.
ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options = {});

// The fsdpctl of this build; `arguments` without the program's name.
ProcessResult run_fsdpctl(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

// Sanitizers take time and memory of their own, so that limits on either mean nothing.
#ifdef FSDPCTL_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// The interpreter of the environment that scripts/setup.sh makes (or FSDPCTL_TORCH_PYTHON); empty when absent. Tests then say
// GTEST_SKIP() << kNoTorch.
std::string torch_python();
inline constexpr const char* kNoTorch = "real PyTorch is not installed: scripts/setup.sh torch";
// For tests that walk ../shared/fixtures.
inline constexpr const char* kNoSharedFixtures = "../shared/fixtures is not there";

}  // namespace fsdpctl
