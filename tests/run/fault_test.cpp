// What goes wrong with a run ends it on every rank, soon, with one message and the right exit code; the newest published
// checkpoint is whole.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "tests/run/run_folder.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void expect_one_error(const ProcessResult& result, int code, const std::string& what) {
  EXPECT_EQ(result.exit_code, code) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: " + what));
  EXPECT_EQ(errors_in(result.err), 1u) << result.err;
}

TEST(TrainFault, BadInput) {
  const RunFolder run;
  put_file(run.dir / "short.txt", "too short");
  put_file(run.dir / "ids.bin", std::string(100, 'a'));
  struct Case {
    std::vector<std::string> set;
    int code;
    std::string what, mentions;
  };
  const std::vector<Case> cases = {
      {{"data.files=[\"none.txt\"]"}, 6, "", "none.txt"},
      {{"data.files=[\"short.txt\"]"}, 2, "the data is shorter than one sequence", "short.txt"},
      {{"data.files=[\"ids.bin\"]", "data.kind=tokens"}, 2, "", "ids.bin"},
      {{"data.files=[\"ids.bin\"]", "data.kind=tokens", "data.dtype=uint16"}, 2, "token id is not in the vocabulary", "24929"},
      {{"sharding.shards=4"}, 2, "the config is for another number of ranks", "4 ranks"},
      {{"training.micro_batches=3"}, 2, "the config is for another number of ranks", "training.micro_batches"},
      {{"model.config.model_type=gpt"}, 5, "model config asks for what is not supported", "model_type"},
      {{"model.config.hidden_size=0"}, 2, "model config has a wrong value", "hidden_size"},
      {{"model.weights=none.safetensors"}, 6, "", "none.safetensors"},
      {{"optimizer.groups=[{\"match\": \"nothing.*\"}]"}, 2, "a rule for a param group matches no parameter", "nothing.*"},
      {{"checkpoint.directory=none/out"}, 6, "", "none/out"},
      {{"checkpoint.format=tar"}, 2, "unknown format", "checkpoint.format"},
      {{"optimizer.lr=fast"}, 2, "wrong value in the config", "optimizer.lr"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.set[0]);
    std::vector<std::string> arguments = {"--nproc", "2"};
    for (const std::string& assignment : c.set) arguments.insert(arguments.end(), {"--set", assignment});
    const ProcessResult result = run.train(arguments);
    expect_one_error(result, c.code, c.what);
    EXPECT_THAT(result.err, HasSubstr(c.mentions));
    EXPECT_THAT(result.out, testing::Not(HasSubstr("step ")));
  }
  expect_one_error(run.train({"--device", "cuda"}), 5, "");
  expect_one_error(run.train({"--device", "tpu"}), 2, "unknown device");
  expect_one_error(run.train({"--nproc", "0"}), 2, "bad value");
  expect_one_error(run.fsdpctl({"train", "none.json"}), 6, "");
}

TEST(TrainFault, ACheckpointOfAnotherModelIsRefusedWithNames) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--set", "training.steps=2", "--set", "schedule.total_steps=6"}).exit_code, 0);
  const ProcessResult wider = run.train({"--nproc", "2", "--resume", "latest", "--set", "model.config.intermediate_size=32"});
  EXPECT_EQ(wider.exit_code, 4);
  EXPECT_EQ(errors_in(wider.err), 1u) << wider.err;
  EXPECT_THAT(wider.err, HasSubstr("model.config"));
  ASSERT_EQ(run.fsdpctl({"convert", "out/step-2", "-o", "m.safetensors", "--to", "safetensors", "--part", "model"}).exit_code, 0);
  const ProcessResult weights = run.train({"--set", "model.weights=m.safetensors", "--set", "model.config.intermediate_size=32", "--set",
                                           "checkpoint.directory=other"});
  expect_one_error(weights, 4, "the checkpoint is of another model");
  EXPECT_THAT(weights.err, HasSubstr("mlp.down_proj.weight"));
  expect_one_error(run.train({"--resume", "m.safetensors", "--set", "checkpoint.directory=other"}), 4, "checkpoint lacks state of the run");
  expect_one_error(run.train({"--resume", "latest", "--set", "data.seed=5"}), 4, "configuration is not the one of the checkpoint");
}

TEST(TrainFault, AnEarlierRunIsNotOverwritten) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--set", "training.steps=4", "--set", "schedule.total_steps=6"}).exit_code, 0);
  const ProcessResult again = run.train({"--nproc", "2"});
  expect_one_error(again, 2, "the directory has checkpoints of another run");
  EXPECT_THAT(again.err, HasSubstr("--resume latest"));
  expect_one_error(run.train({"--nproc", "2", "--resume", "out/step-2"}), 2, "later checkpoints are in the way");
  EXPECT_EQ(run.metrics().size(), 4u);
}

TEST(TrainFault, TwoRunsInOneDirectory) {
  const RunFolder run;
  const std::string script =
      "\"$fsdpctl\" train c.json --nproc 2 --set training.steps=100000 --set checkpoint.interval=0 > log & pid=$!\n"
      "until grep -q 'step ' log; do kill -0 $pid || exit 1; sleep 0.01; done\n"
      "\"$fsdpctl\" train c.json --nproc 2; echo \"second $?\"; kill -9 $pid";
  const ProcessResult result = run.shell(script);
  EXPECT_THAT(result.out, HasSubstr("second 6"));
  EXPECT_THAT(result.err, HasSubstr("another run is at work in this directory"));
}

TEST(TrainFault, ARankThatDies) {
  // Its n-th message: while it connects, loads, trains, saves.
  for (const char* message : {"0", "3", "20", "80", "200", "400"}) {
    SCOPED_TRACE(message);
    const RunFolder run;
    const ProcessResult result = run.train({"--nproc", "2", "--set", "training.steps=50"}, {std::string("FSDPCTL_COMM_FAULT=1:") + message + ":kill"});
    EXPECT_EQ(result.exit_code, 6) << result.err;
    EXPECT_EQ(errors_in(result.err), 1u) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 1"));
    if (fs::exists(run.dir / "out/step-2")) {
      EXPECT_THAT(run.newest_whole(), HasSubstr("step-"));
    }
  }
}

TEST(TrainFault, ARankThatHangs) {
  const RunFolder run;
  const ProcessResult result = run.train({"--nproc", "2", "--set", "training.timeout=2"}, {"FSDPCTL_COMM_FAULT=1:60:stop"});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_EQ(errors_in(result.err), 1u) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1"));
}

TEST(TrainFault, NoSpaceDuringASave) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--nproc", "2", "--set", "training.steps=2", "--set", "schedule.total_steps=6"}).exit_code, 0);
  const ProcessResult result = run.train({"--nproc", "2", "--resume", "latest"}, {"FSDPCTL_FAULT=write:9:ENOSPC"});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_EQ(errors_in(result.err), 1u) << result.err;
  EXPECT_EQ(run.newest_whole(), "step-2");
}

TEST(TrainFault, APortInUse) {
  const RunFolder run;
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const ProcessResult result = run.train({}, {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                              "MASTER_PORT=" + std::to_string(ntohs(address.sin_port))});
  ::close(listener);
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_EQ(errors_in(result.err), 1u) << result.err;
  EXPECT_THAT(result.err, HasSubstr(std::to_string(ntohs(address.sin_port))));
}

}  // namespace
}  // namespace fsdpctl
