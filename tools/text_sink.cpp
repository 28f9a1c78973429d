#include "tools/text_sink.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lib/base/finding.h"

namespace fsdpctl {

namespace {
constexpr size_t kBuffer = 64 << 10;
}

DescriptorSink::DescriptorSink(int fd) : fd_(fd), terminal_(isatty(fd) == 1) {}

DescriptorSink::~DescriptorSink() {
  try {
    flush();
  } catch (const Error&) {
  }
}

void DescriptorSink::write(std::string_view text) {
  if (closed_) return;
  buffer_ += text;
  if (terminal_ || buffer_.size() >= kBuffer) flush();
}

void DescriptorSink::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty() && !closed_) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EPIPE) {
      closed_ = true;
    } else if (errno != EINTR) {
      const int failure = errno;
      buffer_.clear();
      closed_ = true;
      throw Error(Exit::failed, "output could not be written")
          .at(fd_ == STDERR_FILENO ? "standard error" : "standard output")
          .found_only(std::strerror(failure));
    }
  }
  buffer_.clear();
}

}  // namespace fsdpctl
