// A JUnit report of verify, one test case for each checkpoint, for CI systems that show such files.
#pragma once

#include <string>
#include <vector>

#include "lib/ckpt/verify.h"

namespace fsdpctl {

std::string junit_text(const std::vector<VerifyReport>& reports);

}  // namespace fsdpctl
