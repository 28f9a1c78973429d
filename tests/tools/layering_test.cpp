// The layering check can fail: each kind of forbidden include is found in a tree that has one.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

ProcessResult check(const std::string& file, const std::string& include) {
  TempDir tree;
  const std::filesystem::path path = tree / file;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << "#pragma once\n#include <string>\n#include " << include << "\n";
  return run_process({"python3", std::string(FSDPCTL_SOURCE_DIR) + "/tests/layering.py", tree.path()});
}

TEST(Layering, FindsIncludesInTheWrongDirection) {
  for (const auto& [file, include] :
       std::vector<std::pair<std::string, std::string>>{{"lib/base/box.h", "\"lib/ckpt/format.h\""},
                                                        {"lib/ckpt/verify.cpp", "\"formats/all_formats.h\""},
                                                        {"lib/ckpt/verify.cpp", "\"tools/printer.h\""},
                                                        {"formats/dcp.cpp", "\"tools/printer.h\""},
                                                        {"formats/codec/zip.cpp", "\"tests/support/temp_dir.h\""},
                                                        {"tools/main.cpp", "\"tests/support/temp_dir.h\""},
                                                        {"tools/main.cpp", "\"printer.h\""},
                                                        {"lib/ckpt/verify.cpp", "<CLI/App.hpp>"},
                                                        {"formats/dcp.cpp", "<hdf5.h>"},
                                                        {"lib/base/box.cpp", "<torch/torch.h>"},
                                                        {"formats/dcp.cpp", "<gtest/gtest.h>"}}) {
    const ProcessResult result = check(file, include);
    EXPECT_EQ(result.exit_code, 1) << file << " may include " << include << "\n" << result.out << result.err;
    EXPECT_NE(result.out.find(file), std::string::npos);
  }
}

TEST(Layering, AllowsTheOthers) {
  for (const auto& [file, include] :
       std::vector<std::pair<std::string, std::string>>{{"lib/ckpt/verify.cpp", "\"lib/base/box.h\""},
                                                        {"formats/codec/zip.cpp", "\"lib/base/box.h\""},
                                                        {"formats/hdf5_write.cpp", "<hdf5.h>"},
                                                        {"tools/main.cpp", "\"formats/all_formats.h\""},
                                                        {"tests/base/box_test.cpp", "<gtest/gtest.h>"}}) {
    EXPECT_EQ(check(file, include).exit_code, 0) << file << " " << include;
  }
}

}  // namespace
}  // namespace fsdpctl
