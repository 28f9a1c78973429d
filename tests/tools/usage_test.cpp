// Every kind of wrong command line: exit code 2 (or the one that fits), one message in the error form, and nothing
// done.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

struct Wrong {
  std::vector<std::string> arguments;
  std::string what;      // first line of the message
  std::string mentions;  // somewhere in it
};

void PrintTo(const Wrong& wrong, std::ostream* out) {
  for (const std::string& argument : wrong.arguments) *out << argument << " ";
}

const std::vector<Wrong> kWrong = {
    {{}, "no command given", "fsdpctl --help"},
    {{"inspct", "x"}, "unknown command", "fsdpctl inspect x"},
    {{"frobnicate"}, "unknown command", "fsdpctl --help"},
    {{"help", "frobnicate"}, "unknown command", "fsdpctl --help"},
    {{"help", "inspct"}, "unknown command", "fsdpctl help inspect"},
    {{"inspect", "--version"}, "unknown option", "fsdpctl --version"},
    {{"--frobnicate"}, "unknown option", "--frobnicate"},
    {{"--frobnicate", "inspect", "x"}, "unknown option", "--frobnicate"},
    {{"inspect"}, "argument missing", "CKPT"},
    {{"inspect", "x", "--tensor"}, "unknown option", "fsdpctl inspect x --tensors"},
    {{"inspect", "x", "-z"}, "unknown option", "-z"},
    {{"inspect", "x", "--name"}, "value missing", "  where: --name\n  saw:   expected GLOB, found nothing\n"},
    {{"--threads"}, "value missing", "  where: --threads\n"},
    {{"--threads", "1", "--threads", "2", "inspect", "x"}, "option given more than once", "'1' and '2'"},
    {{"inspect", "x", "--json=maybe"}, "option takes no value", "'maybe'"},
    {{"--tensors", "inspect", "x"}, "option belongs behind its command", "try:   fsdpctl inspect x --tensors\n"},
    {{"--world-size", "2", "reshard", "x", "-o", "y"}, "option belongs behind its command", "fsdpctl reshard --help"},
    {{"inspect", "x", "-v=2"}, "unknown option", "'-=2'"},
    {{"inspect", "x", "--threads", "many"}, "bad value", "'many'"},
    {{"--threads", "0", "inspect", "x"}, "bad value", "'0'"},
    {{"inspect", "x", "--max-memory", "1MiB"}, "bad value", "16 MiB"},
    {{"inspect", "x", "--color", "red"}, "bad value", "auto, always or never"},
    {{"inspect", "x", "--progress", "no"}, "bad value", "auto, always or never"},
    {{"verify"}, "argument missing", "CKPT"},
    {{"verify", "x", "--against"}, "value missing", "expected CKPT|LOCK"},
    {{"verify", "a", "b", "--write-lock", "l"}, "a lock file is of one checkpoint", "--write-lock"},
    {{"diff"}, "argument missing", "expected A and B, found nothing"},
    {{"diff", "a"}, "argument missing", "B"},
    {{"diff", "a", "b", "c"}, "one argument too many", "expected A B, found 'c' as well"},
    {{"diff", "a", "b", "--rtol", "-1"}, "bad value", "not negative"},
    {{"diff", "a", "b", "--data", "--structure"}, "options exclude each other", "--structure"},
    {{"-vv", "diff", "a", "b", "--data", "--structure"}, "options exclude each other", "--data"},
    {{"reshard"}, "argument missing", "expected CKPT, --world-size N and -o OUT, found nothing"},
    {{"reshard", "x", "-o", "y"}, "argument missing", "--world-size"},
    {{"reshard", "x", "--world-size", "2"}, "argument missing", "expected -o OUT, found nothing"},
    {{"reshard", "x", "-o", "y", "--world_size", "2"}, "unknown option", "fsdpctl reshard x -o y --world-size 2"},
    {{"reshard", "x", "-o", "y", "--world-size", "0"}, "bad value", "--world-size"},
    {{"reshard", "x", "-o", "y", "--world-size", "two"}, "bad value", "'two'"},
    {{"reshard", "x", "-o", "y", "--world-size", "1000000000"}, "bad value", "to 131072"},
    {{"reshard", "x", "-o", "y", "--world-size", "2", "--world-size", "3"},
     "option given more than once",
     "expected one value, found '2' and '3'"},
    {{"reshard", "x", "-o", "y", "--output", "z", "--world-size", "2"}, "option given more than once", "'y' and 'z'"},
    {{"reshard", "x", "z", "-o", "y", "--world-size", "2"}, "one argument too many", "'z'"},
    {{"convert", "x", "-o", "y"}, "argument missing", "expected --to "},
    {{"convert", "x", "-o"}, "value missing", "  where: --output\n  saw:   expected OUT, found nothing\n"},
    {{"convert", "x", "-o", "y", "--to", "pickle"}, "unknown format", "'pickle'"},
    {{"convert", "x", "-o", "y", "--to", "safetensor"}, "unknown format", "try:   fsdpctl convert x -o y --to safetensors\n"},
    {{"convert", "x", "-o", "y", "--to", "pt"}, "unknown format", "try:   fsdpctl convert x -o y --to torch\n"},
    {{"convert", "x", "-o", "y", "--to=.BIN"}, "unknown format", "try:   fsdpctl convert x -o y --to=torch\n"},
    {{"convert", "x", "-o", "y", "--to", "h5"}, "unknown format", "try:   fsdpctl convert x -o y --to hdf5\n"},
    {{"convert", "x", "-o", "y", "--world-size", "3", "--to", "torch"}, "this format has no world size", "try:   fsdpctl convert x -o y --to torch\n"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--part", "weights"}, "bad value", "model, optimizer or all"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--dtype", "int8"}, "bad value", "floating"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--dtype", "half"}, "bad value", "try:   --dtype float16\n"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--dtype", "BF16"}, "bad value", "try:   --dtype bfloat16\n"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--dtype", "torch.float32"}, "bad value", "try:   --dtype float32\n"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--dtype", "fp32"}, "bad value", "try:   --dtype float32\n"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--dtype", "float8_e4m3"}, "bad value", "try:   --dtype float8_e4m3fn"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--rename", "abc"}, "bad value", "REGEX=REPL"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--rename", "=b"}, "bad value", "REGEX=REPL"},
    {{"convert", "x", "-o", "y", "--to", "torch", "--world-size", "2"},
     "this format has no world size",
     "--world-size"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--max-shard-size", "big"}, "bad value", "'big'"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--max-shard-size", "1GB"},
     "this format has no shard size",
     "--max-shard-size"},
    {{"convert", "x", "-o", "y.safetensors", "--to", "safetensors", "--max-shard-size", "4KB"},
     "one file has no shard size",
     "'y.safetensors'"},
    {{"convert", "x", "-o", "y.safetensors", "--to", "torch"},
     "output's name belongs to another format",
     "--to safetensors"},
    {{"convert", "x", "-o", "y.pt", "--to", "dcp"}, "output's name belongs to another format", "--to torch"},
    {{"convert", "x", "-o", "y.pt/", "--to", "torch"}, "output is one file, not a directory", "y.pt/"},
    {{"convert", "x", "-o", "", "--to", "torch"}, "argument is empty", "--output"},
    {{"convert", "x", "-o", "y", "--to", "dcp", "--rename", ""}, "argument is empty", "--rename"},
    {{"convert", "x", "-o", "y/.", "--to", "dcp"}, "output needs a name", "y/."},
    {{"inspect", ""}, "argument is empty", "CKPT"},
    {{"inspect", "x", "--name", ""}, "argument is empty", "--name"},
    {{"diff", "a", ""}, "argument is empty", "B"},
    {{"verify", "x", "--against", ""}, "argument is empty", "--against"},
    {{"verify", "x", "--junit", ""}, "argument is empty", "--junit"},
    {{"verify", "x", "--force"}, "option needs another one", "expected --write-lock or --write-manifest, found neither"},
    {{"verify", "x", "--junit", "r", "--write-lock", "r"}, "two outputs have the same name", "r"},
    {{"diff", "a", "b", "--structure", "--rtol", "1"}, "options exclude each other", "--rtol"},
    {{"--", "inspect", "x"}, "no command given", "fsdpctl --help"},
    {{"convert", "x", "-o", "..", "--to", "dcp"}, "output needs a name", "--output"},
    {{"generate"}, "argument missing", "WHAT"},
    {{"generate", "powershell"}, "bad value", "man, bash, zsh or fish"},
    {{"generate", "fsih"}, "bad value", "fsdpctl generate fish"},
};

class WrongUsage : public testing::TestWithParam<Wrong> {};

TEST_P(WrongUsage, IsRefusedWithOneMessageAndNothingIsDone) {
  TempDir scratch;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  const ProgramResult text = run_in_process(GetParam().arguments);
  std::vector<std::string> with_json = GetParam().arguments;
  with_json.insert(with_json.begin(), "--json");
  const ProgramResult machine = run_in_process(with_json);
  std::filesystem::current_path(before);

  EXPECT_EQ(text.exit_code, 2);
  EXPECT_EQ(text.out, "");
  EXPECT_EQ(text.err.substr(0, text.err.find('\n')), "fsdpctl: error: " + GetParam().what);
  EXPECT_NE(text.err.find(GetParam().mentions), std::string::npos) << text.err;
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));

  EXPECT_EQ(machine.exit_code, 2);
  EXPECT_EQ(machine.out, "");
  const auto objects = json_lines(machine.err);
  ASSERT_EQ(objects.size(), 1u);
  EXPECT_EQ(objects[0]["message_type"], "error");
  EXPECT_EQ(objects[0]["what"], GetParam().what);
}

INSTANTIATE_TEST_SUITE_P(Table, WrongUsage, testing::ValuesIn(kWrong));

TEST(Usage, ABadVariableIsAUsageError) {
  const ProgramResult result = run_in_process({"inspect", "x"}, {{"FSDPCTL_THREADS", "lots"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("FSDPCTL_THREADS"), std::string::npos);
}

TEST(Usage, JsonByVariableReachesErrorsOfTheCommandLine) {
  for (const char* yes : {"1", "true"}) {
    const ProgramResult result = run_in_process({"inspct"}, {{"FSDPCTL_JSON", yes}});
    EXPECT_EQ(json_lines(result.err).at(0)["code"], 2);
  }
}

TEST(Usage, AMissingCheckpointIsNotAUsageError) {
  TempDir scratch;
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"inspect", scratch / "none"},
                                             {"verify", scratch / "none"},
                                             {"diff", scratch / "none", scratch / "none"},
                                             {"reshard", scratch / "none", "-o", scratch / "out", "--world-size", "2"},
                                             {"convert", scratch / "none", "-o", scratch / "out", "--to", "dcp"}}) {
    const ProgramResult result = run_in_process(arguments);
    EXPECT_EQ(result.exit_code, 6) << arguments[0] << result.out << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "fsdpctl: error: no such file or directory\n  where: " + (scratch / "none") + "\n");
    EXPECT_FALSE(std::filesystem::exists(scratch / "out"));
  }
}

TEST(Usage, AMissingOutputDirectoryIsNamedWithTheCommandThatMakesIt) {
  TempDir scratch;
  const ProgramResult result =
      run_in_process({"convert", scratch.path(), "-o", scratch / "no/such/out", "--to", "dcp"});
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_NE(result.err.find("mkdir -p " + (scratch / "no/such")), std::string::npos) << result.err;
}

TEST(Usage, AFileInThePlaceOfTheOutputsDirectoryIsSaid) {
  TempDir scratch;
  put_file(scratch / "file", "text");
  const ProgramResult result = run_in_process({"convert", scratch.path(), "-o", scratch / "file/out", "--to", "dcp"});
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_EQ(result.err, "fsdpctl: error: output's directory is no directory\n  where: " + (scratch / "file") + "\n");
}

TEST(Usage, OutputAndInputStayApart) {
  TempDir scratch;
  std::filesystem::create_directory(scratch / "in");
  std::filesystem::create_directory_symlink(scratch / "in", scratch / "link");
  const auto refused = [&](const std::string& input, const std::string& output) {
    const ProgramResult result = run_in_process({"convert", input, "-o", output, "--to", "dcp", "--force"});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err.substr(0, result.err.find('\n'));
  };
  EXPECT_EQ(refused(scratch / "in", scratch / "in"), "fsdpctl: error: output is the input");
  EXPECT_EQ(refused(scratch / "in", scratch / "link"), "fsdpctl: error: output is the input");
  EXPECT_EQ(refused(scratch / "in", scratch / "link/out"), "fsdpctl: error: output lies inside the input");
  EXPECT_EQ(refused(scratch / "in", scratch.path()), "fsdpctl: error: input lies inside the output");
}

TEST(Usage, HelpIsReachedInEveryWay) {
  const std::string help = run_in_process({"reshard", "--help"}).out;
  EXPECT_NE(help.find("usage: fsdpctl reshard"), std::string::npos);
  EXPECT_EQ(run_in_process({"reshard", "-h"}).out, help);
  EXPECT_EQ(run_in_process({"help", "reshard"}).out, help);
  EXPECT_EQ(run_in_process({"reshard", "--help"}).exit_code, 0);
  EXPECT_EQ(run_in_process({"help"}).out, run_in_process({"--help"}).out);
}

TEST(Usage, VersionIsOneLine) {
  const ProgramResult result = run_in_process({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.rfind("fsdpctl ", 0), 0u);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1);
}

}  // namespace
}  // namespace fsdpctl
