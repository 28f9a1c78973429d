#include <unistd.h>

#include <cstdlib>

#include "tools/program.h"
#include "tools/signals.h"

int main(int count, char** values) {
  fsdpctl::install_signal_handlers();
  fsdpctl::DescriptorSink out(STDOUT_FILENO), err(STDERR_FILENO);
  return fsdpctl::run_program({values + (count > 0 ? 1 : 0), values + count}, out, err,
                              [](const char* name) { return std::getenv(name); });
}
