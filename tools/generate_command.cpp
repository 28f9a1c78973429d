#include <memory>

#include "lib/base/nearest_name.h"
#include "tools/command_line.h"
#include "tools/generate.h"

namespace fsdpctl {
namespace {

struct Options {
  std::string what;
};

Exit run_generate(const Options& options, const Context& context) {
  const CommandLine line = make_command_line(context.formats);
  if (options.what == "man") context.printer.raw_out(man_page(line));
  if (options.what == "bash") context.printer.raw_out(bash_completion(line));
  if (options.what == "zsh") context.printer.raw_out(zsh_completion(line));
  if (options.what == "fish") context.printer.raw_out(fish_completion(line));
  return Exit::ok;
}

void parse_what(const std::string& text, Options& options) {
  const std::vector<std::string> known = {"man", "bash", "zsh", "fish"};
  for (const std::string& name : known) {
    if (name == text) options.what = text;
  }
  if (!options.what.empty()) return;
  const std::string near = nearest_name(text, known);
  throw Error(Exit::usage, "bad value")
      .saw("man, bash, zsh or fish", "'" + text + "'")
      .try_(near.empty() ? "" : "fsdpctl generate " + near);
}

Run declare(CLI::App& app, const FormatList&) {
  auto options = std::make_shared<Options>();
  add_value(
      app, "WHAT", [options](const std::string& text) { parse_what(text, *options); }, "man|bash|zsh|fish",
      "man: the manual page; bash, zsh, fish: that shell's completion")
      ->required();
  return [options](const Context& context) { return run_generate(*options, context); };
}

}  // namespace

Command generate_command() {
  return {"generate",
          "print the manual page or a shell's completion script",
          "man|bash|zsh|fish",
          "Prints what an installation puts in place: the manual page, or a completion script. The output is the same "
          "at any time.",
          {{"fsdpctl generate man | man -l -", "read the manual without installing"},
           {"source <(fsdpctl generate bash)", "completion in this shell"}},
          {{0, "printed"}, {2, "used wrongly"}, {6, "could not be written"}},
          declare};
}

}  // namespace fsdpctl
