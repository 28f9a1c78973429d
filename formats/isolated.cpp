#include "formats/isolated.h"

#include <fmt/format.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

// Frames on the pipe: a byte that says what, 4 bytes of length, the bytes.
enum class Frame : char { data = 'd', error = 'e', done = 'z' };
constexpr size_t kFrameHeader = 5;
constexpr uint32_t kMaxFrame = 1 << 20;

void write_all(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(1);   // the parent is gone
    bytes += n;
    size -= static_cast<size_t>(n);
  }
}

void send_frame(int fd, Frame kind, std::string_view bytes) {
  std::array<char, kFrameHeader> header{static_cast<char>(kind)};
  const auto size = static_cast<uint32_t>(bytes.size());
  std::memcpy(header.data() + 1, &size, sizeof size);
  write_all(fd, header.data(), header.size());
  write_all(fd, bytes.data(), bytes.size());
}

void send_data(int fd, std::string_view bytes) {
  for (; !bytes.empty(); bytes.remove_prefix(std::min<size_t>(bytes.size(), kMaxFrame))) {
    send_frame(fd, Frame::data, bytes.substr(0, kMaxFrame));
  }
}

std::string finding_text(const Finding& f) {
  const nlohmann::json text = {{"code", static_cast<int>(f.code)}, {"what", f.what}, {"path", f.where.path}, {"key", f.where.key},
                               {"expected", f.expected}, {"found", f.found}, {"hint", f.hint}};
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, kMaxFrame);
}

Finding finding_of(std::string_view text, const std::string& file_name) {
  Finding f = error(Exit::damaged, "file cannot be read by its library");
  f.at(file_name);
  const nlohmann::json fields = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object()) return f;
  f.code = static_cast<Exit>(fields.value("code", static_cast<int>(Exit::damaged)));
  f.what = fields.value("what", f.what);
  f.at(fields.value("path", file_name)).key(fields.value("key", "")).saw(fields.value("expected", ""), fields.value("found", ""));
  f.try_(fields.value("hint", ""));
  if (f.where.path.empty()) f.at(file_name);
  return f;
}

// Memory that counts against RLIMIT_DATA, in bytes.
uint64_t data_bytes() {
  unsigned long pages = 0;
  if (std::FILE* statm = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(statm, "%*u %*u %*u %*u %*u %lu", &pages) != 1) pages = 0;
    std::fclose(statm);
  }
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void limit(__rlimit_resource resource, uint64_t value) {
  struct rlimit now = {};
  if (::getrlimit(resource, &now) != 0 || now.rlim_cur <= value) return;
  now.rlim_cur = value;
  ::setrlimit(resource, &now);
}

[[noreturn]] void child(int fd, const std::function<void(const Send&)>& work, const IsolationLimits& limits) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGPIPE}) ::signal(signal, SIG_DFL);
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_IGN);   // the parent decides
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, limits.cpu_seconds);
  limit(RLIMIT_DATA, data_bytes() + limits.memory);
  try {
    work([fd](std::string_view bytes) { send_data(fd, bytes); });
    send_frame(fd, Frame::done, {});
  } catch (const Error& e) {
    send_frame(fd, Frame::error, finding_text(e.finding()));
  } catch (const std::bad_alloc&) {
    send_frame(fd, Frame::error, finding_text(error(Exit::damaged, "file asks for more memory than it can need")));
  } catch (...) {
    ::_exit(1);
  }
  ::_exit(0);   // no destructor and no buffer of the parent's runs twice
}

// The parent's end of a child: reads its frames, and leaves no zombie behind.
class Child {
 public:
  Child(pid_t pid, int fd) : pid_(pid), fd_(fd) {}
  ~Child() {
    ::close(fd_);
    if (pid_ > 0) {   // an exception is on its way: nobody waits for the rest
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

  // False at the end of the pipe.
  bool read(char* bytes, size_t size) {
    while (size > 0) {
      const ssize_t n = ::read(fd_, bytes, size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes += n;
      size -= static_cast<size_t>(n);
    }
    return true;
  }

  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_;
  int fd_;
};

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return fmt::format("it ended with signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("it ended with code {}", WEXITSTATUS(status));
}

}  // namespace

void run_isolated(const std::string& file_name, const std::function<void(const Send& send)>& work,
                  const std::function<void(std::string_view bytes)>& receive, const IsolationLimits& limits) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error(Exit::failed, "cannot make a pipe").found_only(std::strerror(errno));
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int reason = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw Error(Exit::failed, "cannot start a process").found_only(std::strerror(reason));
  }
  if (pid == 0) {
    ::close(ends[0]);
    child(ends[1], work, limits);
  }
  ::close(ends[1]);
  Child running(pid, ends[0]);
  std::string bytes;
  while (true) {
    std::array<char, kFrameHeader> header{};
    uint32_t size = 0;
    const bool whole = running.read(header.data(), header.size());
    std::memcpy(&size, header.data() + 1, sizeof size);
    bytes.resize(whole && size <= kMaxFrame ? size : 0);
    if (!whole || size > kMaxFrame || !running.read(bytes.data(), bytes.size())) {
      throw Error(Exit::damaged, "file makes its library crash").at(file_name).found_only(end_text(running.wait()));
    }
    switch (static_cast<Frame>(header[0])) {
      case Frame::data: receive(bytes); break;
      case Frame::error: running.wait(); throw Error(finding_of(bytes, file_name));
      case Frame::done: running.wait(); return;
      default: throw Error(Exit::damaged, "file makes its library crash").at(file_name);
    }
  }
}

}  // namespace fsdpctl
