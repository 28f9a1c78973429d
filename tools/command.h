// Command: one verb of fsdpctl, as the program, its help, its man page and its completions see it.
//
// Each lives in a file of its own, tools/<verb>_command.cpp: an options struct, a declaration of flags and a run
// function. To add one, imitate tools/reshard_command.cpp and add it to tools/command_list.cpp.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/finding.h"
#include "lib/ckpt/format.h"
#include "tools/printer.h"

namespace CLI {
class App;
}

namespace fsdpctl {

class TrainingProgram;

struct Context {
  Printer& printer;
  const FormatList& formats;
  std::vector<std::string> arguments = {};  // the whole command line, for hints and for fsdpctl-train
  TrainingProgram* training = nullptr;      // in fsdpctl-train (train_command.h)
};

// Runs with the options that were parsed into what declare() bound.
using Run = std::function<Exit(const Context&)>;

struct Example {
  std::string command;  // as typed: "fsdpctl inspect step-1200"
  std::string meaning;
};

struct Command {
  std::string name;     // "inspect"
  std::string summary;  // one line, lower case, no full stop
  std::string usage;    // what follows the name: "CKPT -o OUT --world-size N"
  std::string about;    // paragraphs, separated by empty lines
  std::vector<Example> examples;
  std::vector<std::pair<int, std::string>> exit_codes;
  // Adds the command's own flags and arguments.
  std::function<Run(CLI::App&, const FormatList&)> declare;
};

const std::vector<Command>& all_commands();

Command inspect_command();
Command verify_command();
Command diff_command();
Command reshard_command();
Command convert_command();
Command save_command();
Command train_command();
Command generate_command();

// Of two checkpoints' exit codes the one to end with: damage before all, else the higher.
Exit worse(Exit a, Exit b);

// Flags that every command takes, before or after its name.
void add_global_flags(CLI::App& app, GlobalFlags& flags);

}  // namespace fsdpctl
