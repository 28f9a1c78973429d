#include "tools/command_line.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "lib/base/file.h"
#include "lib/base/nearest_name.h"
#include "lib/base/shell_quoted.h"
#include "tools/program.h"

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
  std::string hint = near.empty() ? "fsdpctl --help" : corrected(arguments, name, near);
  // Many type a path and nothing else first.
  if (near.empty() && stat_path(name).kind != FileKind::absent) hint = "fsdpctl inspect " + shell_quoted(name);
  throw Error(Exit::usage, "unknown command").found_only("'" + name + "'").try_(std::move(hint));
}

void require_command(const std::string& name, const std::vector<std::string>& arguments) {
  const std::vector<Command>& commands = all_commands();
  const bool known =
      std::any_of(commands.begin(), commands.end(), [&](const Command& command) { return command.name == name; });
  if (!known) refuse_unknown_command(name, arguments);
}

bool is_switch(const CLI::Option& option) {
  return !option.get_positional() && option.get_expected_min() == 0;
}

// A command's own option was given before the command's name.
[[noreturn]] void refuse_early(const CommandLine::Branch* branch, const CLI::App& app, const std::string& flag,
                               std::vector<std::string> arguments) {
  std::string hint = help_hint(branch);
  const auto early = std::find(arguments.begin(), arguments.end(), flag);
  const CLI::Option* option = app.get_option_no_throw(flag);
  if (early != arguments.end() && option != nullptr && is_switch(*option)) {
    arguments.erase(early);
    arguments.push_back(flag);
    hint = joined(arguments);
  }
  throw Error(Exit::usage, "option belongs behind its command").found_only("'" + flag + "'").try_(std::move(hint));
}

[[noreturn]] void refuse_extra(const CommandLine::Branch* branch, const CLI::App& app, const std::string& extra,
                               const std::vector<std::string>& arguments) {
  if (extra.size() < 2 || extra[0] != '-') {
    throw Error(Exit::usage, "one argument too many")
        .saw(branch ? branch->command->usage : "COMMAND", "'" + extra + "' as well")
        .try_(help_hint(branch));
  }
  const std::string flag = extra.substr(0, extra.find('=', 2));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  if (std::find(known.begin(), known.end(), flag) != known.end()) refuse_early(branch, app, flag, arguments);
  const std::string near = flag.rfind("--", 0) == 0 ? nearest_name(flag, known) : std::string();
  std::string hint = near.empty() ? help_hint(branch) : corrected(arguments, flag, near);
  if (flag == "--version") hint = "fsdpctl --version";
  throw Error(Exit::usage, "unknown option").found_only("'" + flag + "'").try_(std::move(hint));
}

// As a user types it: "CKPT", "-o OUT", "--world-size N".
std::string usage_text(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name();
  const std::string name = option.get_snames().empty() ? option.get_name() : "-" + option.get_snames()[0];
  return is_switch(option) ? name : name + " " + option.get_type_name();
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  }
  return text;
}

void refuse_missing(const std::vector<const CLI::Option*>& options, const std::string& hint) {
  std::vector<std::string> missing;
  for (const CLI::Option* option : options) {
    if (option->get_required() && option->count() == 0) missing.push_back(usage_text(*option));
  }
  if (missing.empty()) return;
  throw Error(Exit::usage, "argument missing").saw(listed(missing), "nothing").try_(hint);
}

void refuse_several_values(const CLI::Option& option, const std::string& hint) {
  if (is_switch(option)) return;  // -v -v means something, --json --json is harmless
  const CLI::results_t& values = option.results();
  if (values.size() <= static_cast<size_t>(std::max(1, option.get_items_expected_max()))) return;
  std::vector<std::string> quoted;
  for (const std::string& value : values) quoted.push_back("'" + value + "'");
  throw Error(Exit::usage, "option given more than once")
      .key(option.get_name())
      .saw("one value", listed(quoted))
      .try_(hint);
}

// A switch is "true" unless somebody wrote --switch=something.
void refuse_value_of_switch(const CLI::Option& option, const std::string& hint) {
  if (!is_switch(option)) return;
  for (const std::string& value : option.results()) {
    if (value == "true") continue;
    throw Error(Exit::usage, "option takes no value").key(option.get_name()).found_only("'" + value + "'").try_(hint);
  }
}

void refuse_bad_company(const CLI::Option& option, const std::string& hint) {
  if (option.count() == 0) return;
  for (const CLI::Option* other : option.get_excludes()) {
    if (other->count() == 0) continue;
    throw Error(Exit::usage, "options exclude each other")
        .found_only(option.get_name() + " and " + other->get_name())
        .try_(hint);
  }
  for (const CLI::Option* other : option.get_needs()) {
    if (other->count() > 0) continue;
    throw Error(Exit::usage, "option needs another one")
        .key(option.get_name())
        .saw(usage_text(*other), "nothing")
        .try_(hint);
  }
}

// What options were given that do not fit, in our words: CLI11's are for programmers.
void refuse_misused_options(const std::vector<const CLI::Option*>& options, const CLI::ParseError& failure,
                            const std::string& hint) {
  const std::string text = failure.what();
  for (const CLI::Option* option : options) {
    refuse_several_values(*option, hint);
    // Only CLI11's text says which option stands at the end of the line without its value.
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&failure) != nullptr && text.starts_with(option->get_name() + ":")) {
      throw Error(Exit::usage, "value missing")
          .key(option->get_name())
          .saw(option->get_type_name(), "nothing")
          .try_(hint);
    }
    if (dynamic_cast<const CLI::ConversionError*>(&failure) != nullptr) refuse_value_of_switch(*option, hint);
    refuse_bad_company(*option, hint);
  }
}

// What CLI11 found wrong with the command line, as our Error.
[[noreturn]] void translate(const CLI::ParseError& failure, const CommandLine& line,
                            const std::vector<std::string>& arguments) {
  const CommandLine::Branch* branch = line.chosen();
  const std::vector<std::string> rest = line.root->remaining(true);
  const CLI::App& root = *line.root;
  std::vector<const CLI::Option*> options = root.get_options();
  // A mistyped name explains what is missing, so it is said first.
  if (branch == nullptr) {
    refuse_misused_options(options, failure, help_hint(nullptr));
    if (rest.empty()) throw Error(Exit::usage, "no command given").try_("fsdpctl --help");
    if (rest[0].size() < 2 || rest[0][0] != '-') refuse_unknown_command(rest[0], arguments);
    refuse_extra(nullptr, root, rest[0], arguments);
  }
  for (const std::string& extra : rest) {
    if (extra.size() > 1 && extra[0] == '-' && extra != "--") refuse_extra(branch, *branch->app, extra, arguments);
  }
  const CLI::App& app = *branch->app;
  const std::vector<const CLI::Option*> own = app.get_options();
  options.insert(options.end(), own.begin(), own.end());
  const std::string hint = help_hint(branch);
  if (dynamic_cast<const CLI::RequiredError*>(&failure) != nullptr) {
    refuse_missing(options, hint);
    throw Error(Exit::usage, "no command given").try_("fsdpctl --help");
  }
  refuse_misused_options(options, failure, hint);
  if (!rest.empty()) refuse_extra(branch, app, rest[0], arguments);
  throw Error(Exit::usage, "arguments do not fit").try_(hint);
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

std::string command_with(const Context& context, std::initializer_list<std::string> added) {
  std::vector<std::string> arguments = context.arguments;
  arguments.insert(std::find(arguments.begin(), arguments.end(), "--"), added);
  return joined(arguments);
}

Finding with_own_command(Finding finding, const Context& context) {
  constexpr std::string_view kInspect = "fsdpctl inspect ";
  if (!finding.hint.starts_with(kInspect)) return finding;
  const std::string path = shell_unquoted(finding.hint.substr(kInspect.size()));
  std::vector<std::string> arguments = context.arguments;
  for (std::string& argument : arguments) {
    std::string whole = argument;
    while (whole.size() > 1 && whole.ends_with('/')) whole.pop_back();
    if (path != whole && !path.starts_with(whole + "/") && path != parent_path(whole)) continue;
    if (stat_path(whole).kind == FileKind::absent) continue;
    argument = path;
    finding.hint = joined(arguments);
    break;
  }
  return finding;
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
  line.root = std::make_unique<CLI::App>(
      "inspect, verify, diff, reshard and convert PyTorch FSDP checkpoints; train models", "fsdpctl");
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

namespace {

// Where the hint is `--flag VALUE` for the flag that the finding is about: the command line with that value.
Finding with_right_value(Finding finding, std::vector<std::string> arguments) {
  const std::string& flag = finding.where.key;
  if (flag.empty() || !finding.hint.starts_with(flag + " ")) return finding;
  const std::string value = finding.hint.substr(flag.size() + 1);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool apart = arguments[i] == flag && i + 1 < arguments.size();
    if (!apart && !arguments[i].starts_with(flag + "=")) continue;
    if (apart) arguments[i + 1] = value;
    else arguments[i] = flag + "=" + value;
    finding.hint = joined(arguments);
    break;
  }
  return finding;
}

}  // namespace

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
  } catch (const Error& error) {
    throw Error(with_right_value(error.finding(), arguments));
  }
}

}  // namespace fsdpctl
