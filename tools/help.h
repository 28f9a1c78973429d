// Help texts, made from the command line's tree.
#pragma once

#include <string>
#include <vector>

#include "tools/command_line.h"

namespace fsdpctl {

std::string program_help(const CommandLine& line);
std::string command_help(const CommandLine::Branch& branch);

// One line of help about an option or argument, for whoever lists them (help, man page).
struct OptionText {
  std::string names;  // "-o, --output OUT"; for an argument "CKPT..."
  std::string description;
};
std::vector<OptionText> argument_texts(const CLI::App& app);
std::vector<OptionText> option_texts(const CLI::App& app, bool global);  // the command's own, or the global ones

// `text` broken into lines of at most `width`, each begun with `indent` spaces. Paragraphs stay apart.
std::string wrapped(const std::string& text, size_t indent, size_t width);

}  // namespace fsdpctl
