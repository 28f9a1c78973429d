// A JUnit report of verify, one test case for each checkpoint, for CI systems that show such files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/verify.h"

namespace fsdpctl {

std::string junit_text(const std::vector<VerifyReport>& reports);
bool looks_like_junit(std::string_view text);  // begins as junit_text does

}  // namespace fsdpctl
