#include "tests/support/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>

#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

void redirect(const char* path, int flags, int to) {
  const int fd = open(path, flags, 0600);
  if (fd < 0 || dup2(fd, to) < 0) _exit(127);
}

double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; }

}  // namespace

ProcessResult run_process(const std::vector<std::string>& argv, const ProcessOptions& options) {
  TempDir capture;
  const std::string out = capture / "out", err = capture / "err";
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);

  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(out.c_str(), O_WRONLY | O_CREAT, STDOUT_FILENO);
    redirect(err.c_str(), O_WRONLY | O_CREAT, STDERR_FILENO);
    for (const std::string& variable : options.environment) putenv(const_cast<char*>(variable.c_str()));
    if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(127);
    alarm(options.timeout_seconds);   // survives exec
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  if (wait4(child, &status, 0, &usage) < 0) throw std::runtime_error("wait4 failed");
  ProcessResult result;
  result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  result.exit_code = result.signal ? 128 + result.signal : WEXITSTATUS(status);
  result.out = get_file(out);
  result.err = get_file(err);
  result.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  result.peak_kib = usage.ru_maxrss;
  return result;
}

ProcessResult run_fsdpctl(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  std::vector<std::string> argv = {FSDPCTL_BINARY};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_process(argv, options);
}

std::string torch_python() {
  std::string path;
  if (const char* chosen = std::getenv("FSDPCTL_TORCH_PYTHON")) {
    path = chosen;
  } else {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const std::string base = cache && *cache ? cache : std::string(home ? home : "") + "/.cache";
    path = base + "/fsdpctl/" FSDPCTL_TORCH_ENVIRONMENT "/bin/python";
  }
  return std::filesystem::exists(path) ? path : std::string();
}

}  // namespace fsdpctl
