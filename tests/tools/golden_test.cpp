// Help texts are golden files: a change of what users see is a change that a reviewer sees.
// FSDPCTL_UPDATE_GOLDEN=1 writes them anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tools/command.h"

namespace fsdpctl {
namespace {

void compare(const std::string& name, const std::string& text) {
  const std::string path = test_data("golden/" + name + ".txt");
  if (std::getenv("FSDPCTL_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  EXPECT_EQ(text, get_file(path)) << path;
}

TEST(Golden, HelpOfTheProgram) {
  compare("help", run_in_process({"--help"}).out);
}

TEST(Golden, HelpOfEachCommand) {
  for (const Command& command : all_commands())
    compare("help-" + command.name, run_in_process({command.name, "--help"}).out);
}

TEST(Golden, LinesFitATerminal) {
  for (const Command& command : all_commands()) {
    const std::string help = run_in_process({command.name, "--help"}).out;
    for (size_t begin = 0; begin < help.size();) {
      const size_t end = help.find('\n', begin);
      EXPECT_LE(end - begin, 110u) << help.substr(begin, end - begin);
      begin = end + 1;
    }
  }
}

}  // namespace
}  // namespace fsdpctl
