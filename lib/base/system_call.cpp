#include "lib/base/system_call.h"

#include <csignal>
#include <cstdlib>

#include <array>
#include <atomic>
#include <charconv>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "lib/base/file.h"
#include "lib/base/finding.h"
#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

FaultHook g_hook;
std::atomic<bool> g_hook_set{false};
std::once_flag g_environment_read;

constexpr int kKill = -1;   // in place of an errno: the process dies, as by kill -9

int fault_code(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, int>, 14> kNames = {{
      {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EACCES", EACCES}, {"EPERM", EPERM}, {"ENOENT", ENOENT}, {"EROFS", EROFS},
      {"EDQUOT", EDQUOT}, {"EMFILE", EMFILE}, {"EFBIG", EFBIG}, {"ESTALE", ESTALE}, {"EEXIST", EEXIST},
      {"EINVAL", EINVAL}, {"EOPNOTSUPP", EOPNOTSUPP}, {"KILL", kKill},
  }};
  for (const auto& [known, code] : kNames) {
    if (known == name) return code;
  }
  return 0;
}

// "write:3:ENOSPC": the third write fails.
class EnvironmentFault {
 public:
  static EnvironmentFault parse(std::string_view text) {
    const size_t first = text.find(':'), second = text.find(':', first + 1);
    EnvironmentFault fault;
    if (first != std::string_view::npos && second != std::string_view::npos) {
      fault.operation_ = text.substr(0, first);
      std::from_chars(text.data() + first + 1, text.data() + second, fault.nth_);
      fault.code_ = fault_code(text.substr(second + 1));
    }
    if (fault.nth_ == 0 || fault.code_ == 0) {
      throw Error(Exit::usage, "FSDPCTL_FAULT is not OPERATION:N:ERRNO").found_only(std::string(text));
    }
    return fault;
  }

  int operator()(std::string_view operation, const std::string&) {
    if (operation != operation_ || count_->fetch_add(1) + 1 != nth_) return 0;
    if (code_ == kKill) raise(SIGKILL);
    return code_;
  }

 private:
  std::string operation_;
  uint64_t nth_ = 0;
  int code_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> count_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace

void set_fault_hook(FaultHook hook) {
  std::call_once(g_environment_read, [] {});   // an explicit hook replaces the environment's
  g_hook = std::move(hook);
  g_hook_set.store(g_hook != nullptr, std::memory_order_release);
}

int injected_fault(std::string_view operation, const std::string& path) {
  std::call_once(g_environment_read, [] {
    const char* text = std::getenv("FSDPCTL_FAULT");
    if (text == nullptr || *text == '\0') return;
    g_hook = EnvironmentFault::parse(text);
    g_hook_set.store(true, std::memory_order_release);
  });
  return g_hook_set.load(std::memory_order_acquire) ? g_hook(operation, path) : 0;
}

void throw_system(std::string_view what, const std::string& path, int code) {
  Finding finding = error(Exit::failed, std::string(what));
  if (code == ENOSPC || code == EDQUOT) {
    finding.what = code == ENOSPC ? "no space left on device" : "disk quota exceeded";
    finding.try_("df -h " + shell_quoted(parent_path(path)));
  }
  finding.at(path).found_only(std::generic_category().message(code));
  throw Error(std::move(finding));
}

}  // namespace fsdpctl
