#include "tools/program.h"

#include <algorithm>
#include <new>
#include <string_view>

#include "formats/all_formats.h"
#include "tools/command_line.h"
#include "tools/help.h"
#include "tools/signals.h"

namespace fsdpctl {
namespace {

// Whether an error in the command line itself shall be JSON: before it is parsed, its words must do.
bool wants_json(const std::vector<std::string>& arguments, const Variables& variables) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  const std::string value = variables("FSDPCTL_JSON").value_or("");
  return std::find(arguments.begin(), end, "--json") != end || value == "1" || value == "true";
}

int run_parsed(const CommandLine& line, const FormatList& formats, Printer& printer,
               const std::vector<std::string>& arguments, TrainingProgram* training) {
  const Context context{printer, formats, arguments, training};
  try {
    const Exit code = line.chosen()->run(context);
    printer.flush();
    return static_cast<int>(code);
  } catch (const Error& error) {
    throw Error(with_own_command(error.finding(), context));
  }
}

int parse_and_run(const std::vector<std::string>& arguments, TextSink& out, TextSink& err, const Variables& variables,
                  Globals& globals, TrainingProgram* training) {
  const FormatList formats = all_formats();
  CommandLine line = make_command_line(formats);
  try {
    parse_command_line(line, arguments);
    globals = resolve_globals(*line.flags, variables);
  } catch (const CLI::CallForHelp&) {
    const CommandLine::Branch* branch = line.chosen();
    out.write(branch ? command_help(*branch) : program_help(line));
    out.flush();
    return 0;
  } catch (const CLI::CallForVersion& request) {
    out.write(std::string(request.what()) + "\n");
    out.flush();
    return 0;
  }
  Printer printer(out, err, globals);
  return run_parsed(line, formats, printer, arguments, training);
}

int report(const Error& error, TextSink& out, TextSink& err, const Globals& globals) {
  const bool interrupted = error.code() == Exit::interrupted || error.code() == Exit::terminated;
  try {
    Printer(out, err, globals).error(error);
  } catch (const Error&) {  // stderr is gone: the exit code has to say it alone
  }
  return static_cast<int>(interrupted ? interruption_code() : error.code());
}

}  // namespace

std::string_view version() {
  return FSDPCTL_VERSION;
}

int run_program(const std::vector<std::string>& arguments, TextSink& out, TextSink& err, const Variables& variables,
                TrainingProgram* training) {
  Globals globals;
  globals.json = wants_json(arguments, variables);
  try {
    return parse_and_run(arguments, out, err, variables, globals, training);
  } catch (const Error& error) {
    return report(error, out, err, globals);
  } catch (const std::bad_alloc&) {
    return report(Error(Exit::failed, "out of memory"), out, err, globals);
  } catch (const std::exception& failure) {  // a defect of ours, but never a crash
    return report(Error(Exit::failed, "internal error").found_only(failure.what()), out, err, globals);
  }
}

}  // namespace fsdpctl
