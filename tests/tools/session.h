// What tests of whole commands share: the binary, the sample that the repository ships, a directory to work in.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {

inline const std::string kSample = std::string(FSDPCTL_SOURCE_DIR) + "/samples/dcp-fsdp2-w4";

// Expects the exit code; everything that was printed is in the failure's message.
inline ProcessResult expect(int code, const std::vector<std::string>& arguments, const ProcessOptions& options = {}) {
  const ProcessResult result = run_fsdpctl(arguments, options);
  std::string line;
  for (const std::string& argument : arguments) line += " " + argument;
  EXPECT_EQ(result.exit_code, code) << "fsdpctl" << line << "\n" << result.out << result.err;
  return result;
}

inline nlohmann::json only(const std::string& text, const std::string& message_type) {
  std::vector<nlohmann::json> found;
  for (nlohmann::json& object : json_lines(text)) {
    if (object["message_type"] == message_type) found.push_back(std::move(object));
  }
  if (found.size() != 1) throw std::runtime_error(message_type + ": " + std::to_string(found.size()) + " of them");
  return found[0];
}

inline void flip_byte(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char old = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(old ^ 0x40));
}

class Session : public testing::Test {
 protected:
  TempDir work;
  std::string at(const std::string& name) const { return work / name; }
};

}  // namespace fsdpctl
