#include "tools/command_line.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "tools/program.h"
#include "tools/suggest.h"

namespace fsdpctl {
namespace {

std::string joined(const std::vector<std::string>& arguments) {
  std::string text = "fsdpctl";
  for (const std::string& argument : arguments) text += " " + shell_quoted(argument);
  return text;
}

// The command line with one argument corrected: something to paste.
std::string corrected(std::vector<std::string> arguments, const std::string& wrong, const std::string& right) {
  for (std::string& argument : arguments) {
    if (argument == wrong) {
      argument = right;
      break;
    }
    if (argument.rfind(wrong + "=", 0) == 0) {
      argument.replace(0, wrong.size(), right);
      break;
    }
  }
  return joined(arguments);
}

std::string help_hint(const CommandLine::Branch* branch) {
  return branch ? "fsdpctl " + branch->command->name + " --help" : "fsdpctl --help";
}

[[noreturn]] void refuse_unknown_command(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const Command& command : all_commands()) known.push_back(command.name);
  const std::string near = nearest_name(name, known);
  throw Error(Exit::usage, "unknown command")
      .found_only("'" + name + "'")
      .try_(near.empty() ? "fsdpctl --help" : corrected(arguments, name, near));
}

void require_command(const std::string& name, const std::vector<std::string>& arguments) {
  const std::vector<Command>& commands = all_commands();
  const bool known =
      std::any_of(commands.begin(), commands.end(), [&](const Command& command) { return command.name == name; });
  if (!known) refuse_unknown_command(name, arguments);
}

[[noreturn]] void refuse_extra(const CommandLine::Branch* branch, const CLI::App& app, const std::string& extra,
                               const std::vector<std::string>& arguments) {
  if (extra.size() < 2 || extra[0] != '-') {
    throw Error(Exit::usage, "one argument too many").found_only("'" + extra + "'").try_(help_hint(branch));
  }
  const std::string flag = extra.substr(0, extra.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string near = flag.rfind("--", 0) == 0 ? nearest_name(flag, known) : std::string();
  std::string hint = near.empty() ? help_hint(branch) : corrected(arguments, flag, near);
  if (flag == "--version") hint = "fsdpctl --version";
  throw Error(Exit::usage, "unknown option").found_only("'" + flag + "'").try_(std::move(hint));
}

// CLI11's words for what is wrong with the command line, as our Error.
[[noreturn]] void translate(const CLI::ParseError& failure, const CommandLine& line,
                            const std::vector<std::string>& arguments) {
  const CommandLine::Branch* branch = line.chosen();
  if (branch == nullptr) {
    const std::vector<std::string> rest = line.root->remaining();
    if (rest.empty()) throw Error(Exit::usage, "no command given").try_("fsdpctl --help");
    if (rest[0].size() < 2 || rest[0][0] != '-') refuse_unknown_command(rest[0], arguments);
    refuse_extra(nullptr, *line.root, rest[0], arguments);
  }
  // A mistyped option explains a missing one, so it is named first.
  const std::vector<std::string> rest = line.root->remaining(true);
  for (const std::string& extra : rest) {
    if (extra.size() > 1 && extra[0] == '-' && extra != "--") refuse_extra(branch, *branch->app, extra, arguments);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&failure) != nullptr) {
    std::string name = failure.what();
    const std::string tail = " is required";
    if (name.ends_with(tail)) name.resize(name.size() - tail.size());
    if (name == "A subcommand") throw Error(Exit::usage, "no command given").try_("fsdpctl --help");
    throw Error(Exit::usage, "argument missing").saw(name, "nothing").try_(help_hint(branch));
  }
  if (!rest.empty()) refuse_extra(branch, *branch->app, rest[0], arguments);
  throw Error(Exit::usage, "arguments do not fit").found_only(failure.what()).try_(help_hint(branch));
}

// No option and no argument means anything when it is empty; a script's unset variable does this.
void refuse_empty_values(const CommandLine::Branch& branch) {
  for (const CLI::Option* option : branch.app->get_options()) {
    const CLI::results_t& values = option->results();
    if (std::find(values.begin(), values.end(), std::string()) == values.end()) continue;
    throw Error(Exit::usage, "argument is empty").key(option->get_name()).try_(help_hint(&branch));
  }
}

}  // namespace

std::string shell_quoted(const std::string& argument) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./=:,+@%^").find(c) != std::string_view::npos;
  };
  if (!argument.empty() && std::all_of(argument.begin(), argument.end(), plain)) return argument;
  std::string quoted = "'";
  for (const char c : argument) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string command_with(const Context& context, const std::string& flag) {
  std::vector<std::string> arguments = context.arguments;
  arguments.insert(std::find(arguments.begin(), arguments.end(), "--"), flag);
  return joined(arguments);
}

CLI::Option* add_list(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                      const std::string& type, const std::string& description) {
  return app.add_option(names, target, description)->type_name(type)->allow_extra_args(false);
}

void add_global_flags(CLI::App& app, GlobalFlags& flags) {
  const std::string group = "Global options";
  app.set_help_flag("-h,--help", "show this help")->group(group);
  app.add_flag("--json", flags.json, "print JSON Lines (docs/json.md); errors too, on stderr")->group(group);
  app.add_flag("-q,--quiet", flags.quiet, "only the answer and errors: no warnings, notes or progress")->group(group);
  app.add_flag("-v,--verbose", flags.verbose, "more detail on stderr; -vv: still more")->group(group);
  add_value(
      app, "--progress", [&flags](const std::string& text) { flags.progress = parse_when("--progress", text); },
      "auto|always|never", "progress line on stderr; auto: only on a terminal")
      ->group(group);
  add_value(
      app, "--color", [&flags](const std::string& text) { flags.color = parse_when("--color", text); },
      "auto|always|never", "colour; auto: only on a terminal")
      ->group(group);
  add_value(
      app, "--max-memory", [&flags](const std::string& text) { flags.max_memory = parse_memory("--max-memory", text); },
      "SIZE", "memory for buffers, such as 512MiB; default 96 MiB")
      ->group(group);
  add_value(
      app, "--threads", [&flags](const std::string& text) { flags.threads = parse_threads("--threads", text); }, "N",
      "threads that move bytes; default: by the machine")
      ->group(group);
}

const CommandLine::Branch* CommandLine::chosen() const {
  for (const Branch& branch : branches) {
    if (branch.app->parsed()) return &branch;
  }
  return nullptr;
}

CommandLine make_command_line(const FormatList& formats) {
  CommandLine line;
  line.root =
      std::make_unique<CLI::App>("inspect, verify, diff, reshard and convert PyTorch FSDP checkpoints", "fsdpctl");
  line.flags = std::make_unique<GlobalFlags>();
  add_global_flags(*line.root, *line.flags);
  line.root->set_version_flag("--version", "fsdpctl " + std::string(version()))
      ->description("show the version")
      ->group("Global options");
  line.root->require_subcommand(1, 1);
  for (const Command& command : all_commands()) {
    CLI::App* app = line.root->add_subcommand(command.name, command.summary);
    Run run = command.declare(*app, formats);
    add_global_flags(*app, *line.flags);
    line.branches.push_back({&command, app, std::move(run)});
  }
  return line;
}

void parse_command_line(CommandLine& line, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  // "fsdpctl help reshard" is what many type first.
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    if (!words.empty() && words[0][0] != '-' && words[0] != "help") require_command(words[0], arguments);
    words.push_back("--help");
  }
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    line.root->parse(std::move(words));
    refuse_empty_values(*line.chosen());
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& failure) {
    translate(failure, line, arguments);
  }
}

}  // namespace fsdpctl
