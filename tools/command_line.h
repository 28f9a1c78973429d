// The command line as a tree of CLI::App, with the commands that belong to its branches. Help, man page and completions
// walk it, so that they cannot disagree with what is parsed.
#pragma once

#include <CLI/App.hpp>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "tools/command.h"

namespace fsdpctl {

struct CommandLine {
  struct Branch {
    const Command* command;
    CLI::App* app;  // owned by `root`
    Run run;
  };
  std::unique_ptr<CLI::App> root;
  std::vector<Branch> branches;        // in the order of all_commands()
  std::unique_ptr<GlobalFlags> flags;  // bound to every branch

  // The branch that was parsed, null before parsing.
  const Branch* chosen() const;
};

CommandLine make_command_line(const FormatList& formats);

// Parses. Error(usage) with a corrected command line as hint where a name was mistyped. Throws CLI::CallForHelp and
// CLI::CallForVersion.
void parse_command_line(CommandLine& line, const std::vector<std::string>& arguments);

// Adds an option whose value goes through `parse` (which throws Error(usage)).
template <class Parse>
CLI::Option* add_value(CLI::App& app, const std::string& names, Parse parse, const std::string& type,
                       const std::string& description) {
  return app.add_option_function<std::string>(names, std::move(parse), description)->type_name(type);
}

// An option that may be given several times, each with one value.
CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                      const std::string& type, const std::string& description);

// The command line that is being run, with more arguments: something to paste.
std::string command_with(const Context& context, std::initializer_list<std::string> added);

// Where the hint is `fsdpctl inspect PATH` for one of our arguments (PATH lies in it or holds it): this command with PATH
// in its place.
Finding with_own_command(Finding finding, const Context& context);

}  // namespace fsdpctl
