#include "tools/help.h"

#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <sstream>

namespace fsdpctl {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kNames = 30;  // column where descriptions begin
constexpr std::string_view kGlobalGroup = "Global options";

std::string names_of(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name() + (option.get_expected_max() > 1 ? "..." : "");
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames()) names += (names.empty() ? "--" : ", --") + name;
  if (option.get_expected_min() > 0) names += " " + option.get_type_name();
  return names;
}

std::string section(const std::string& title, const std::vector<OptionText>& lines) {
  if (lines.empty()) return {};
  std::string text = "\n" + title + ":\n";
  for (const OptionText& line : lines) {
    const std::string names = "  " + line.names;
    std::string description = wrapped(line.description, kNames, kWidth);
    if (names.size() + 1 < kNames) {
      description.replace(0, names.size(), names);
      text += description;
    } else {
      text += names + "\n" + description;
    }
  }
  return text;
}

}  // namespace

std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string result, line;
  const auto end_line = [&] {
    result += std::string(line.empty() ? 0 : indent, ' ') + line + "\n";
    line.clear();
  };
  std::istringstream paragraphs(text);
  std::string paragraph;
  while (std::getline(paragraphs, paragraph)) {
    std::istringstream words(paragraph);
    std::string word;
    while (words >> word) {
      if (!line.empty() && indent + line.size() + 1 + word.size() > width) end_line();
      line += (line.empty() ? "" : " ") + word;
    }
    end_line();
  }
  return result;
}

std::vector<OptionText> argument_texts(const CLI::App& app) {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) texts.push_back({names_of(*option), option->get_description()});
  }
  return texts;
}

std::vector<OptionText> option_texts(const CLI::App& app, bool global) {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() || (option->get_group() == kGlobalGroup) != global) continue;
    texts.push_back({names_of(*option), option->get_description()});
  }
  return texts;
}

std::string program_help(const CommandLine& line) {
  std::vector<OptionText> commands;
  for (const CommandLine::Branch& branch : line.branches) {
    commands.push_back({branch.command->name, branch.command->summary});
  }
  return "usage: fsdpctl COMMAND [ARGUMENTS] [OPTIONS]\n\n" +
         wrapped(
             "Inspect, verify, diff, reshard and convert PyTorch FSDP checkpoints. Needs no Python, no PyTorch and no "
             "GPU, "
             "and never executes what a checkpoint contains.",
             0, kWidth) +
         section("commands", commands) + section("global options", option_texts(*line.root, true)) +
         "\nenvironment:\n"
         "  FSDPCTL_JSON, FSDPCTL_PROGRESS, FSDPCTL_COLOR, FSDPCTL_MAX_MEMORY, FSDPCTL_THREADS\n"
         "                              defaults for the flags of these names\n"
         "  NO_COLOR                    no colour\n"
         "\nexit codes:\n"
         "  0   done; same; compatible\n"
         "  1   different; incompatible\n"
         "  2   used wrongly: flags, output exists\n"
         "  3   damaged or incomplete checkpoint\n"
         "  4   refused: ambiguous, does not fit, or would lose something; the message names the flag that decides\n"
         "  5   not recognised, not supported, or unsafe content\n"
         "  6   could not finish: not found, input or output error, no space, memory limit\n"
         "  130, 143   interrupted; nothing was published\n"
         "\nfsdpctl COMMAND --help shows a command's arguments and examples.\n";
}

std::string command_help(const CommandLine::Branch& branch) {
  const Command& command = *branch.command;
  std::string text = fmt::format("usage: fsdpctl {} {} [OPTIONS]\n\n", command.name, command.usage);
  text += wrapped(command.about, 0, kWidth);
  text += section("arguments", argument_texts(*branch.app));
  text += section("options", option_texts(*branch.app, false));
  text += section("global options", option_texts(*branch.app, true));
  if (!command.examples.empty()) text += "\nexamples:\n";
  for (const Example& example : command.examples) {
    text += fmt::format("  {}\n{}", example.command, wrapped(example.meaning, 6, kWidth));
  }
  text += "\nexit codes:\n";
  for (const auto& code : command.exit_codes) text += fmt::format("  {:<4}{}\n", code.first, code.second);
  return text;
}

}  // namespace fsdpctl
