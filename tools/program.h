// The whole program as a function, so that tests need no process.
#pragma once

#include <string>
#include <vector>

#include "tools/environment.h"
#include "tools/text_sink.h"

namespace fsdpctl {

class TrainingProgram;

// `arguments` without the program's name. Returns the exit code; throws nothing. `training`: what fsdpctl-train has beyond
// fsdpctl (train_command.h).
int run_program(const std::vector<std::string>& arguments, TextSink& out, TextSink& err, const Variables& variables,
                TrainingProgram* training = nullptr);

std::string_view version();  // "0.1.0"

}  // namespace fsdpctl
