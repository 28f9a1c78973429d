#include "lib/comm/local_launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "lib/comm/launch.h"
#include "lib/comm/tcp_store.h"

extern char** environ;

namespace fsdpctl {
namespace {

constexpr int kMostLocalRanks = 4096;

// Signals that this process waits for instead of being interrupted by them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;

  const sigset_t& before() const { return before_; }
  // The next signal, or 0 after `time`.
  int next(Milliseconds time) const {
    const timespec wait{time.count() / 1000, time.count() % 1000 * 1'000'000};
    return std::max(0, sigtimedwait(&set_, nullptr, &wait));
  }

 private:
  sigset_t set_, before_;
};

std::string random_id() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = static_cast<uint64_t>(getpid());
  return fmt::format("{:016x}", bits);
}

// ---- starting

// Our environment with some variables replaced, in the form that exec takes.
class Environment {
 public:
  explicit Environment(std::vector<std::string> changes) : texts_(std::move(changes)) {
    const size_t changed = texts_.size();
    for (char** variable = environ; *variable; ++variable) {
      const std::string_view text = *variable;
      const std::string_view name = text.substr(0, text.find('=') + 1);
      const auto replaced = [&](const std::string& change) { return std::string_view(change).starts_with(name); };
      if (std::none_of(texts_.begin(), texts_.begin() + static_cast<std::ptrdiff_t>(changed), replaced)) {
        texts_.emplace_back(text);
      }
    }
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char* const* data() const { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

std::vector<std::string> variables_of(const LocalLaunch& launch, int rank, uint16_t port, const std::string& run_id) {
  std::vector<std::string> all = launch.environment;
  for (const std::string& variable :
       {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank), fmt::format("WORLD_SIZE={}", launch.nproc),
        fmt::format("LOCAL_WORLD_SIZE={}", launch.nproc), std::string("MASTER_ADDR=127.0.0.1"),
        fmt::format("MASTER_PORT={}", port), fmt::format("{}=1", kStoreIsServed), fmt::format("{}={}", kRunId, run_id)}) {
    all.push_back(variable);
  }
  return all;
}

// In the child, between fork and exec: only calls that are safe in a process that had threads.
[[noreturn]] void become_rank(char* const* argv, char* const* environment, const sigset_t& signals, pid_t parent, int report) {
  setpgid(0, 0);                        // a Ctrl-C of the terminal comes to the launcher alone, which passes it on
  prctl(PR_SET_PDEATHSIG, SIGKILL);     // nobody is left behind if the launcher is killed
  if (getppid() != parent) _exit(static_cast<int>(Exit::failed));
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  execve(argv[0], argv, environment);
  const int code = errno;
  if (write(report, &code, sizeof code) < 0) _exit(127);
  _exit(127);
}

// The child's process id. Throws where it cannot become the program.
pid_t start_rank(const std::vector<std::string>& arguments, const Environment& environment, const sigset_t& signals, int rank) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int report[2];
  const auto refuse = [&](int code) {
    Finding finding = error(Exit::failed, "a rank cannot be started");
    finding.at(arguments[0]).found_only(std::strerror(code));
    finding.where.rank = rank;
    throw Error(std::move(finding));
  };
  if (pipe2(report, O_CLOEXEC) != 0) refuse(errno);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become_rank(argv.data(), environment.data(), signals, parent, report[1]);
  const int fork_code = errno;
  close(report[1]);
  int code = 0;
  ssize_t got = 0;
  if (child > 0) {
    while ((got = read(report[0], &code, sizeof code)) < 0 && errno == EINTR) {
    }
  }
  close(report[0]);
  if (child < 0) refuse(fork_code);
  if (got == sizeof code) {
    waitpid(child, nullptr, 0);
    refuse(code);
  }
  return child;
}

// ---- watching

// The ranks that run. Those still there when it is destroyed are killed and reaped.
class Children {
 public:
  ~Children() {
    signal(SIGKILL);
    while (!running_.empty()) reap(true);
  }
  void add(int rank, pid_t pid) { running_.push_back({rank, pid}); }
  bool any() const { return !running_.empty(); }
  void signal(int number) const {
    for (const auto& [rank, pid] : running_) kill(pid, number);
  }

  struct Ended {
    int rank = -1, status = 0;
  };
  // A rank that has ended; rank -1 where none has. What the rank itself started and left behind ends with it.
  Ended reap(bool wait = false) {
    for (auto child = running_.begin(); child != running_.end(); ++child) {
      siginfo_t info{};
      const int got = waitid(P_PID, static_cast<id_t>(child->second), &info, WEXITED | WNOWAIT | (wait ? 0 : WNOHANG));
      if ((got == 0 && info.si_pid == 0) || (got != 0 && errno == EINTR)) continue;
      kill(-child->second, SIGKILL);   // before it is reaped, so that the number is still its group's
      int status = 0;
      while (waitpid(child->second, &status, 0) < 0 && errno == EINTR) {
      }
      const Ended ended{child->first, status};
      running_.erase(child);
      return ended;
    }
    return {};
  }

 private:
  std::vector<std::pair<int, pid_t>> running_;
};

Finding describe(const Children::Ended& ended) {
  Finding finding = error(Exit::failed, "a rank failed");
  finding.where.rank = ended.rank;
  if (WIFSIGNALED(ended.status)) {
    const int number = WTERMSIG(ended.status);
    finding.found_only(fmt::format("ended by signal {} ({})", number, strsignal(number)));
  } else {
    const int code = WEXITSTATUS(ended.status);
    finding.code = static_cast<Exit>(code);
    finding.found_only(fmt::format("exit code {}", code));
  }
  return finding;
}

bool is_answer_to(int signal, int status) {
  return (WIFEXITED(status) && WEXITSTATUS(status) == 128 + signal) || (WIFSIGNALED(status) && WTERMSIG(status) == signal);
}

// Of several that failed within a moment, the one that the ranks themselves wrote down as the first.
const Children::Ended& first_of(const std::vector<Children::Ended>& failed, const std::optional<Finding>& written) {
  if (written) {
    for (const Children::Ended& one : failed) {
      if (one.rank == written->where.rank) return one;
    }
  }
  return failed.front();
}

LocalOutcome watch(const LocalLaunch& launch, Children& children, StoreServer& server, const BlockedSignals& signals) {
  std::vector<Children::Ended> failed;
  Deadline kill_at = Deadline::max();
  bool killed = false;
  int passed_on = 0;
  LocalOutcome outcome;
  while (children.any()) {
    const int signal = signals.next(Milliseconds(failed.empty() ? 1000 : 50));
    if (signal == SIGTERM || signal == SIGINT) children.signal(passed_on = signal);
    for (Children::Ended ended = children.reap(); ended.rank >= 0; ended = children.reap()) {
      if (ended.status == 0 || killed) continue;
      if (passed_on != 0 && is_answer_to(passed_on, ended.status)) {   // the others may still be saving
        outcome.code = static_cast<Exit>(128 + passed_on);
        continue;
      }
      if (failed.empty()) kill_at = after(launch.grace);
      failed.push_back(ended);
      server.fail(describe(ended));   // also for those that never came as far as the store
    }
    // Whom the others have given up may hang for ever.
    if (failed.empty() && kill_at == Deadline::max() && server.failure()) kill_at = after(launch.grace);
    if (children.any() && left_until(kill_at).count() == 0 && !std::exchange(killed, true)) children.signal(SIGKILL);
  }
  if (failed.empty() && !killed) return outcome;
  const std::optional<Finding> written = server.failure();
  if (failed.empty()) return {Exit::failed, written};
  const Children::Ended& first = first_of(failed, written);
  // What the ranks wrote down says more than an exit code; and of one that hung until we killed it, only they know.
  const bool says_more = written && (written->where.rank != first.rank || WIFEXITED(first.status));
  const Finding own = describe(first);
  return {says_more && written->where.rank != first.rank ? written->code : own.code, says_more ? *written : own};
}

}  // namespace

LocalOutcome launch_local(const LocalLaunch& launch) {
  if (launch.nproc < 1 || launch.nproc > kMostLocalRanks) {
    throw Error(Exit::usage, "impossible number of ranks")
        .key("--nproc")
        .saw(fmt::format("1 to {}", kMostLocalRanks), std::to_string(launch.nproc));
  }
  const BlockedSignals signals;
  const std::string run_id = random_id();
  StoreServer server("127.0.0.1", 0, launch.nproc, run_id);
  Children children;
  for (int rank = 0; rank < launch.nproc; ++rank) {
    const Environment environment(variables_of(launch, rank, server.port(), run_id));
    children.add(rank, start_rank(launch.argv, environment, signals.before(), rank));
  }
  return watch(launch, children, server, signals);
}

}  // namespace fsdpctl
