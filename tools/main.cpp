#include <fcntl.h>
#include <unistd.h>

#include "tools/program.h"
#include "tools/signals.h"

// A file that is opened while 0, 1 or 2 are closed would get that number, and our text would be written into it. What
// stands in for stdout cannot be written to, so that a closed stdout is still an error.
static void occupy_standard_descriptors() {
  while (true) {
    const int fd = ::open("/dev/null", O_RDONLY);
    if (fd < 0 || fd > STDERR_FILENO) {
      if (fd >= 0) ::close(fd);
      return;
    }
  }
}

int main(int count, char** values) {
  occupy_standard_descriptors();
  fsdpctl::install_signal_handlers();
  fsdpctl::DescriptorSink out(STDOUT_FILENO), err(STDERR_FILENO);
  return fsdpctl::run_program({values + (count > 0 ? 1 : 0), values + count}, out, err,
                              fsdpctl::process_variable);
}
