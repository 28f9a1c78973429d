#include "tools/start_training.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/base/file.h"
#include "lib/comm/launch.h"
#include "lib/comm/local_launch.h"
#include "tools/environment.h"
#include "tools/program.h"

extern char** environ;

namespace fsdpctl {
namespace {

constexpr const char* kProgram = "fsdpctl-train";
constexpr const char* kHowToGet = "scripts/setup.sh libtorch && make build";

bool can_run(const std::string& path) {
  return stat_path(path).kind == FileKind::file && ::access(path.c_str(), X_OK) == 0;
}

std::string find_program() {
  const std::string beside = join_path(parent_path(real_path("/proc/self/exe")), kProgram);
  if (can_run(beside)) return beside;
  const std::string path = process_variable("PATH").value_or("");
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string there = join_path(path.substr(begin, end - begin), kProgram);
    if (end > begin && can_run(there)) return there;
    begin = end + 1;
  }
  throw Error(Exit::unsupported, "training is not installed: fsdpctl-train is missing")
      .saw(beside + ", or in PATH", "nothing")
      .try_(kHowToGet);
}

struct Answer {
  int status = -1;
  std::string text;  // of both streams
};

// What a program says when asked for its version.
Answer ask_version(const std::string& program) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(Exit::failed, "cannot make a pipe").found_only(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::string name = program, flag = "--version";
  char* const argv[] = {name.data(), flag.data(), nullptr};
  pid_t child = 0;
  const int failure = posix_spawn(&child, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  Answer answer;
  char block[4096];
  for (ssize_t got = 0; failure == 0 && (got = ::read(ends[0], block, sizeof block)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0 && answer.text.size() < sizeof block) answer.text.append(block, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  if (failure != 0) return {-1, std::strerror(failure)};
  while (waitpid(child, &answer.status, 0) < 0 && errno == EINTR) {
  }
  while (answer.text.ends_with('\n')) answer.text.pop_back();
  return answer;
}

void check_version(const std::string& program) {
  const Answer answer = ask_version(program);
  if (answer.status != 0) {
    throw Error(Exit::unsupported, "fsdpctl-train does not start").at(program).found_only(answer.text).try_(kHowToGet);
  }
  if (answer.text != training_version()) {
    throw Error(Exit::unsupported, "fsdpctl-train is of another version")
        .at(program)
        .saw(training_version(), answer.text)
        .try_(kHowToGet);
  }
}

}  // namespace

std::string training_version() {
  return std::string(kProgram) + " " + std::string(version());
}

int parse_nproc(const std::string& name, const std::string& text) {
  return static_cast<int>(parse_count(name, text, 1, 4096));
}

int ranks_to_be(std::optional<int> nproc) {
  const Launch launch = read_ranks();
  if (nproc && launch.launcher != Launcher::none && !process_variable(kStoreIsServed)) {
    throw Error(Exit::usage, "ranks are started already")
        .key("--nproc")
        .saw("nothing where torchrun, SLURM or Open MPI start the ranks", std::to_string(*nproc));
  }
  return nproc.value_or(launch.world_size);
}

Exit start_training(std::optional<int> nproc, const Context& context) {
  const std::string program = find_program();
  check_version(program);
  std::vector<std::string> argv = context.arguments;
  argv.insert(argv.begin(), program);
  context.printer.flush();
  if (nproc && *nproc > 1) {
    const LocalOutcome outcome = launch_local({.nproc = *nproc, .argv = argv, .environment = {}});
    if (outcome.finding) throw Error(*outcome.finding);
    return outcome.code;
  }
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  throw Error(Exit::unsupported, "fsdpctl-train does not start").at(program).found_only(std::strerror(errno)).try_(kHowToGet);
}

}  // namespace fsdpctl
