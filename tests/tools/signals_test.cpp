// Ctrl-C and SIGTERM in the middle of a conversion: the right exit code, nothing published, and the same command goes
// on.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

// A safetensors file of one float32 tensor, sparse: large to convert, cheap to make.
void make_large(const std::string& path, uint64_t bytes) {
  std::string header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(bytes / 4) + "],\"data_offsets\":[0," +
                       std::to_string(bytes) + "]}}";
  while (header.size() % 8 != 0) header += ' ';
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header;
  file.close();
  fs::resize_file(path, 8 + header.size() + bytes);
}

// Starts a conversion, sends the signal as soon as its partial output is there, and returns how it ended.
ProcessResult interrupted(const TempDir& work, const std::string& signal) {
  const std::string script = "'" FSDPCTL_BINARY
                             "' convert in.safetensors -o out.pt --to torch --threads 1 & pid=$!\n"
                             "until compgen -G 'out.pt.partial-*' > /dev/null; do kill -0 $pid || break; done\n"
                             "kill -" +
                             signal + " $pid; wait $pid";
  ProcessOptions options;
  options.directory = work.path();
  return run_process({"bash", "-c", script}, options);
}

TEST(Signals, NothingIsPublishedAndTheSameCommandGoesOn) {
  for (const auto& [signal, code] : std::vector<std::pair<std::string, int>>{{"INT", 130}, {"TERM", 143}}) {
    TempDir work;
    make_large(work / "in.safetensors", 1 << 29);
    const ProcessResult result = interrupted(work, signal);
    EXPECT_EQ(result.exit_code, code) << signal << result.out << result.err;
    EXPECT_FALSE(fs::exists(work / "out.pt"));
    EXPECT_EQ(run_fsdpctl({"verify", "--data", work / "in.safetensors"}).exit_code, 0);

    ProcessOptions there;
    there.directory = work.path();
    const ProcessResult again =
        run_fsdpctl({"convert", "in.safetensors", "-o", "out.pt", "--to", "torch", "--threads", "1"}, there);
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_TRUE(fs::exists(work / "out.pt"));
    for (const auto& entry : fs::directory_iterator(work.path())) {
      EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
    }
  }
}

}  // namespace
}  // namespace fsdpctl
