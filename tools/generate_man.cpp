#include <fmt/format.h>

#include <sstream>

#include "tools/generate.h"
#include "tools/help.h"
#include "tools/program.h"

namespace fsdpctl {
namespace {

// Text for roff: backslashes, hyphens that must stay ASCII, and lines that would begin as a request.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
      out += c;
    }
  }
  return out;
}

std::string paragraphs(const std::string& text) {
  std::string out, paragraph;
  std::istringstream lines(text);
  while (std::getline(lines, paragraph)) {
    if (!paragraph.empty()) out += ".PP\n" + roff(paragraph) + "\n";
  }
  return out;
}

std::string tagged(const std::vector<OptionText>& texts) {
  std::string out;
  for (const OptionText& text : texts)
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(text.names), roff(text.description));
  return out;
}

std::string command_section(const CommandLine::Branch& branch) {
  const Command& command = *branch.command;
  std::string out = fmt::format(".SS \"fsdpctl {} {}\"\n", roff(command.name), roff(command.usage));
  out += paragraphs(command.about);
  out += tagged(argument_texts(*branch.app));
  out += tagged(option_texts(*branch.app, false));
  for (const Example& example : command.examples) {
    out += fmt::format(".PP\n{}:\n.PP\n.nf\n.RS 4\n{}\n.RE\n.fi\n", roff(example.meaning), roff(example.command));
  }
  out += ".PP\nExit codes:\n";
  for (const auto& code : command.exit_codes)
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", code.first, roff(code.second));
  return out;
}

}  // namespace

std::string man_page(const CommandLine& line) {
  std::string out = fmt::format(
      ".TH FSDPCTL 1 \"2026-01-01\" \"fsdpctl {}\" \"User Commands\"\n"
      ".SH NAME\nfsdpctl \\- inspect, verify, diff, reshard and convert PyTorch FSDP checkpoints; train models\n"
      ".SH SYNOPSIS\n.B fsdpctl\n\\fICOMMAND\\fR [\\fIARGUMENTS\\fR] [\\fIOPTIONS\\fR]\n"
      ".SH DESCRIPTION\n",
      version());
  out += paragraphs(
      "Handles checkpoints of PyTorch training without Python, PyTorch or a GPU, and without executing what a "
      "checkpoint contains. "
      "Formats: torch.save files, Distributed Checkpoint directories, safetensors, the Hugging Face storage of "
      "Distributed Checkpoint, and HDF5.\n"
      "The answer goes to standard output, warnings, errors and progress to standard error. With --json both are JSON "
      "Lines.");
  out += ".SH COMMANDS\n";
  for (const CommandLine::Branch& branch : line.branches) out += command_section(branch);
  out += ".SH GLOBAL OPTIONS\nEvery command takes these, before or after its name.\n" +
         tagged(option_texts(*line.root, true));
  out += ".SH ENVIRONMENT\n" +
         tagged({{"FSDPCTL_JSON", "1: as --json."},
                 {"FSDPCTL_PROGRESS, FSDPCTL_COLOR", "auto, always or never, as --progress and --color."},
                 {"FSDPCTL_MAX_MEMORY, FSDPCTL_THREADS", "As --max-memory and --threads."},
                 {"NO_COLOR", "Not empty: no colour, unless FSDPCTL_COLOR or --color says otherwise."},
                 {"TERM", "dumb: no colour and no progress line, unless they are asked for."}});
  out +=
      ".SH FILES\n" +
      tagged({{"fsdpctl.manifest.json",
               "In every directory that fsdpctl writes: names, dtypes, shapes and checksums of the tensors, where they "
               "came from and what was changed. Beside a single file it is OUT.fsdpctl.json."},
              {"OUT.partial-ID", "An unfinished output. The same command continues it; --force discards it."}});
  return out;
}

}  // namespace fsdpctl
