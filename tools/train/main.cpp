// fsdpctl-train: fsdpctl's commands with LibTorch at hand. fsdpctl starts it; its command line is the same.
#include <unistd.h>

#include <string_view>

#include "tools/program.h"
#include "tools/signals.h"
#include "tools/start_training.h"
#include "tools/train/rank_program.h"

int main(int count, char** values) {
  fsdpctl::install_signal_handlers();
  fsdpctl::DescriptorSink out(STDOUT_FILENO), err(STDERR_FILENO);
  if (count == 2 && std::string_view(values[1]) == "--version") {
    out.write(fsdpctl::training_version() + "\n");
    out.flush();
    return 0;
  }
  fsdpctl::RankProgram training;
  return fsdpctl::run_program({values + (count > 0 ? 1 : 0), values + count}, out, err, fsdpctl::process_variable, &training);
}
