// verify: is this checkpoint whole, and are its bytes the ones that were saved?
#pragma once

#include <string>
#include <vector>

#include "lib/ckpt/verify.h"
#include "tools/command.h"

namespace fsdpctl {

struct VerifyCommandOptions {
  std::vector<std::string> paths;
  bool data = false, count_nonfinite = false;
  bool write_manifest = false;
  std::string against;     // a checkpoint or a lock file
  std::string write_lock;  // file to write
  std::string junit;       // file to write
  bool force = false;      // replace an existing lock file
  bool follow_links = false;
};

// Verifies each path, goes on after one that fails, and returns the worst exit code.
Exit run_verify(const VerifyCommandOptions& options, const Context& context);

void print_report(const VerifyReport& report, bool data, bool sealed, Printer& printer);  // verify_report.cpp

}  // namespace fsdpctl
