// --max-memory is a promise: the whole process stays below it and a small allowance for the program and the catalog, whatever the size
// of the checkpoint, its format, and how its tensors are cut. Measured on the real program, on sparse sources in memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/process.h"
#include "tests/support/python_metadata.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

constexpr long kMaxMemoryKib = 24 << 10;
constexpr long kProgramKib = 20 << 10;          // code, libraries, stacks, the catalog of a few tensors

// A safetensors file whose data is a hole.
void put_sparse(const std::string& path, std::string header, uint64_t bytes) {
  while (header.size() % 8 != 0) header += ' ';
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), 8);
  put_file(path, text + header);
  fs::resize_file(path, 8 + header.size() + bytes);
}

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers keep memory of their own";
  }

  static constexpr int64_t kColumns = 4096;

  std::string rows(int64_t count) {
    const std::string path = dir / fmt::format("rows-{}.safetensors", count);
    const int64_t bytes = count * kColumns * 4;
    put_sparse(path, fmt::format(R"({{"w":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}})", count, kColumns, bytes),
               static_cast<uint64_t>(bytes));
    return path;
  }

  // Eight ranks, each with some columns: every row of the whole is eight short runs.
  std::string columns(int64_t count) {
    const std::string path = dir / fmt::format("columns-{}", count);
    const int64_t each = kColumns / 8, bytes = count * each * 4;
    for (int64_t rank = 0; rank < 8; ++rank) {
      put_sparse(fmt::format("{}/shard-{:05}-model-00001-of-00001.safetensors", path, rank + 1),
                 fmt::format(R"({{"__metadata__":{{"format":"pt","DCP_VERSION":"1.0","DCP_SHARDING_INFO":"{{\"w\":{{\"saved_offsets\":[0,{}]}}}}"}},)"
                             R"("w":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}})",
                             rank * each, count, each, bytes),
                 static_cast<uint64_t>(bytes));
    }
    return path;
  }

  std::string many(int64_t tensors) {
    const std::string path = dir / fmt::format("many-{}.safetensors", tensors);
    std::string header = "{";
    for (int64_t t = 0; t < tensors; ++t) {
      header += fmt::format(R"({}"layers.{}.weight":{{"dtype":"F32","shape":[16,16],"data_offsets":[{},{}]}})", t == 0 ? "" : ",", t, t * 1024,
                            t * 1024 + 1024);
    }
    put_sparse(path, header + "}", static_cast<uint64_t>(tensors) * 1024);
    return path;
  }

  // Metadata as Python writes it of many ranks; the files are holes, which no plan looks into.
  std::string plan(const PythonMetadata& what) {
    const std::string path = dir / fmt::format("plan-{}", ++outputs_);
    put_file(path + "/.metadata", python_metadata(what));
    for (int64_t r = 0; r < what.ranks; ++r) {
      const std::string file = fmt::format("{}/__{}_0.distcp", path, r);
      put_file(file, "");
      fs::resize_file(file, static_cast<uint64_t>(what.tensors) * what.item_bytes);
    }
    return path;
  }

  // Runs with --max-memory and four threads; the peak in KiB.
  long peak(std::vector<std::string> arguments, int exit_code = 0) {
    std::string line;
    for (const std::string& argument : arguments) line += " " + argument;
    arguments.insert(arguments.end(), {"--max-memory", fmt::format("{}KiB", kMaxMemoryKib), "--threads", "4"});
    const ProcessResult result = run_fsdpctl(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << line << "\n" << result.err;
    if (std::getenv("FSDPCTL_SHOW_MEMORY") != nullptr) fmt::print("{} KiB{}\n", result.peak_kib, line);
    return result.peak_kib;
  }

  std::string output() { return dir / fmt::format("out-{}", ++outputs_); }

  // The peak stays below a third of the tensor's 128 MiB, so nothing that grows with it may be kept.
  void expect_bounded(long peak_kib) const { EXPECT_LT(peak_kib, kMaxMemoryKib + kProgramKib); }
  static constexpr int64_t kRows = 8192;

  TempDir dir{TempDir::Place::memory};

 private:
  int outputs_ = 0;
};

TEST_F(Memory, RowsIntoEveryFormat) {
  for (const std::vector<std::string>& to : std::vector<std::vector<std::string>>{{"dcp", "--world-size", "5"}, {"torch"}, {"hdf5"},
                                                                                  {"safetensors", "--max-shard-size", "100MB"},
                                                                                  {"hf-dcp", "--world-size", "3"}}) {
    SCOPED_TRACE(to[0]);
    std::vector<std::string> arguments = {"convert", rows(kRows), "-o", output(), "--to"};
    arguments.insert(arguments.end(), to.begin(), to.end());
    expect_bounded(peak(arguments));
  }
}

TEST_F(Memory, ColumnsGatheredAndCutAgain) {
  expect_bounded(peak({"convert", columns(kRows), "-o", output(), "--to", "torch"}));
  expect_bounded(peak({"reshard", columns(kRows), "-o", output(), "--world-size", "3"}));
  expect_bounded(peak({"convert", columns(kRows), "-o", output(), "--to", "hdf5", "--dtype", "bfloat16"}));
}

TEST_F(Memory, ReadingIsBoundedToo) {
  expect_bounded(peak({"verify", "--data", columns(kRows)}));
  expect_bounded(peak({"inspect", "--fingerprint", "--sha256", columns(kRows)}));
  expect_bounded(peak({"diff", "--data", rows(kRows), columns(kRows)}));
  const std::string other = dir / "other.safetensors";
  fs::copy_file(rows(kRows), other);
  std::fstream(other, std::ios::in | std::ios::out | std::ios::binary).seekp(1 << 20) << "different";
  expect_bounded(peak({"diff", columns(kRows), other}, 1));
}

TEST_F(Memory, TensorsAndPiecesCostWhatTheyMay) {
  const int64_t tensors = 20000, ranks = 8;
  const long catalog = (tensors * 256 + tensors * ranks * 128) / 1024;
  const std::string cut = output();
  // While converting: the source, the output, and the output as it is opened again.
  EXPECT_LT(peak({"convert", many(tensors), "-o", cut, "--to", "dcp", "--world-size", std::to_string(ranks)}), kMaxMemoryKib + kProgramKib + 3 * catalog);
  EXPECT_LT(peak({"inspect", cut}), kProgramKib + catalog);
  EXPECT_LT(peak({"reshard", cut, "-o", output(), "--world-size", "3"}), kMaxMemoryKib + kProgramKib + 3 * catalog);
}

TEST_F(Memory, PiecesCostWhatTheyMayHoweverTheyWerePickled) {
  PythonMetadata what;
  what.tensors = 250;
  what.ranks = 1000;
  const long catalog = (what.tensors * 256 + what.tensors * what.ranks * 128) / 1024;
  for (const auto& [protocol, shared] : std::vector<std::pair<int, bool>>{{4, false}, {4, true}, {5, true}, {3, false}, {2, true}}) {
    SCOPED_TRACE(testing::Message() << "protocol " << protocol << (shared ? ", sizes shared" : ""));
    what.protocol = protocol;
    what.shared_sizes = what.shared_properties = what.shared_chunk_sizes = shared;
    const std::string source = plan(what);
    // While they are read, what is shared and the pickle's memo come on top.
    EXPECT_LT(peak({"inspect", source}), kProgramKib + 2 * catalog);
    EXPECT_LT(peak({"reshard", source, "-o", output(), "--world-size", "768", "--dry-run"}), kProgramKib + 2 * catalog);
    fs::remove_all(source);
  }
}

}  // namespace
}  // namespace fsdpctl
