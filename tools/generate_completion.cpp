#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <sstream>

#include "tools/generate.h"

namespace fsdpctl {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// "-o --output" of every option.
std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

bool takes_value(const CLI::Option& option) {
  return !option.get_positional() && option.get_expected_min() > 0;
}

// What a positional argument completes to: its choices, or files.
std::vector<std::string> argument_choices(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() && !option_choices(*option).empty()) return option_choices(*option);
  }
  return {};
}

std::string names_pattern(const CLI::Option& option) {
  std::string pattern;
  for (const std::string& name : option.get_snames()) pattern += (pattern.empty() ? "-" : "|-") + name;
  for (const std::string& name : option.get_lnames()) pattern += (pattern.empty() ? "--" : "|--") + name;
  return pattern;
}

// For single quotes of zsh and fish.
std::string quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
  return text;
}

// In a zsh option specification brackets and colons mean something.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return quoted(out);
}

std::string zsh_action(const CLI::Option& option) {
  const std::vector<std::string> choices = option_choices(option);
  if (!choices.empty()) return fmt::format(":value:({})", joined(choices));
  return takes_path(option) ? ":path:_files" : ":" + zsh_text(option.get_type_name()) + ":";
}

std::string zsh_option(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  std::string text;
  for (const std::string& name : names) {
    text += fmt::format("        '({}){}{}[{}]{}' \\\n", joined(names), name,
                        takes_value(option) && name.size() > 2 ? "=" : "", zsh_text(option.get_description()),
                        takes_value(option) ? zsh_action(option) : "");
  }
  return text;
}

}  // namespace

std::vector<std::string> option_choices(const CLI::Option& option) {
  const std::string type = option.get_positional() && option.get_type_name().find('|') == std::string::npos
                               ? option.get_name()
                               : option.get_type_name();
  if (type.find('|') == std::string::npos || takes_path(option)) return {};
  std::vector<std::string> choices;
  std::istringstream words(type);
  for (std::string word; std::getline(words, word, '|');) choices.push_back(word);
  return choices;
}

bool takes_path(const CLI::Option& option) {
  const std::string type = option.get_positional() ? option.get_name() : option.get_type_name();
  for (const char* path : {"CKPT", "OUT", "FILE", "CKPT|LOCK", "A", "B", "CONFIG", "INPUT"}) {
    if (type == path) return true;
  }
  return false;
}

std::string bash_completion(const CommandLine& line) {
  std::string commands, flags, values, arguments;
  for (const CommandLine::Branch& branch : line.branches) {
    commands += (commands.empty() ? "" : " ") + branch.command->name;
    flags += fmt::format("        {}) flags='{}' ;;\n", branch.command->name, joined(flags_of(*branch.app)));
    const std::vector<std::string> choices = argument_choices(*branch.app);
    if (!choices.empty())
      arguments += fmt::format("        {}) words='{}' ;;\n", branch.command->name, joined(choices));
    for (const CLI::Option* option : branch.app->get_options()) {
      if (!takes_value(*option)) continue;
      const std::string at = fmt::format("        '{}':", branch.command->name);
      std::string names = names_pattern(*option), pattern;
      std::istringstream split(names);
      for (std::string name; std::getline(split, name, '|');) {
        pattern += fmt::format("{}{}:{}", pattern.empty() ? "" : "|", branch.command->name, name);
      }
      const std::vector<std::string> named = option_choices(*option);
      const std::string action = !named.empty()        ? fmt::format("words='{}'", joined(named))
                                 : takes_path(*option) ? "files=1"
                                                       : ":";
      values += fmt::format("        {}) {}; value=1 ;;\n", pattern, action);
    }
  }
  return fmt::format(
      "# bash completion for fsdpctl, made by: fsdpctl generate bash\n"
      "_fsdpctl() {{\n"
      "    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= i\n"
      "    local flags= words= files= value=\n"
      "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "        case \" {0} \" in *\" ${{COMP_WORDS[i]}} \"*) command=${{COMP_WORDS[i]}}; break ;; esac\n"
      "    done\n"
      "    if [ -z \"$command\" ]; then\n"
      "        COMPREPLY=($(compgen -W '{0} {1}' -- \"$word\"))\n"
      "        return\n"
      "    fi\n"
      "    case $command:$before in\n{4}    esac\n"
      "    if [ -z \"$value\" ] && [[ $word == -* ]]; then\n"
      "        case $command in\n{2}        esac\n"
      "        words=$flags\n"
      "    elif [ -z \"$value\" ]; then\n"
      "        case $command in\n{3}        *) files=1 ;;\n        esac\n"
      "    fi\n"
      "    if [ -n \"$words\" ]; then\n"
      "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "    elif [ -n \"$files\" ]; then\n"
      "        compopt -o filenames 2> /dev/null\n"
      "        COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "    else\n"
      "        COMPREPLY=()\n"
      "    fi\n"
      "}}\n"
      "complete -F _fsdpctl fsdpctl\n",
      commands, joined(flags_of(*line.root)), flags, arguments, values);
}

std::string zsh_completion(const CommandLine& line) {
  std::string commands, cases;
  for (const CommandLine::Branch& branch : line.branches) {
    commands += fmt::format("        '{}:{}'\n", branch.command->name, quoted(branch.command->summary));
    cases += fmt::format("    {})\n      _arguments -s \\\n", branch.command->name);
    for (const CLI::Option* option : branch.app->get_options()) {
      if (!option->get_positional()) cases += zsh_option(*option);
    }
    const std::vector<std::string> choices = argument_choices(*branch.app);
    cases += choices.empty() ? "        '*:path:_files'\n" : fmt::format("        '1:value:({})'\n", joined(choices));
    cases += "      ;;\n";
  }
  return "#compdef fsdpctl\n# zsh completion for fsdpctl, made by: fsdpctl generate zsh\n"
         "_fsdpctl() {\n"
         "  local -a commands\n"
         "  commands=(\n" +
         commands +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
         "  local command=$words[2]\n"
         "  shift words\n  (( CURRENT-- ))\n"
         "  case $command in\n" +
         cases + "  esac\n}\n_fsdpctl \"$@\"\n";
}

std::string fish_completion(const CommandLine& line) {
  std::string names;
  for (const CommandLine::Branch& branch : line.branches) names += (names.empty() ? "" : " ") + branch.command->name;
  std::string out = "# fish completion for fsdpctl, made by: fsdpctl generate fish\n";
  for (const CommandLine::Branch& branch : line.branches) {
    const std::string used =
        fmt::format("complete -c fsdpctl -n '__fish_seen_subcommand_from {}'", branch.command->name);
    out += fmt::format("complete -c fsdpctl -f -n 'not __fish_seen_subcommand_from {}' -a {} -d '{}'\n", names,
                       branch.command->name, quoted(branch.command->summary));
    const std::vector<std::string> choices = argument_choices(*branch.app);
    if (!choices.empty()) out += fmt::format("{} -f -a '{}'\n", used, joined(choices));
    for (const CLI::Option* option : branch.app->get_options()) {
      if (option->get_positional()) continue;
      out += used;
      for (const std::string& name : option->get_snames()) out += " -s " + name;
      for (const std::string& name : option->get_lnames()) out += " -l " + name;
      const std::vector<std::string> named = option_choices(*option);
      if (!named.empty()) {
        out += fmt::format(" -x -a '{}'", joined(named));
      } else if (takes_value(*option)) {
        out += takes_path(*option) ? " -r -F" : " -x";
      }
      out += fmt::format(" -d '{}'\n", quoted(option->get_description()));
    }
  }
  return out;
}

}  // namespace fsdpctl
