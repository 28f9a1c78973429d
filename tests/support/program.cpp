#include "tests/support/program.h"

#include <sstream>
#include <stdexcept>

#include "tools/program.h"

namespace fsdpctl {

ProgramResult run_in_process(const std::vector<std::string>& arguments,
                             const std::map<std::string, std::string>& variables) {
  StringSink out, err;
  const int code = run_program(arguments, out, err, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
  return {code, out.text(), err.text()};
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> objects;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    objects.push_back(nlohmann::json::parse(line));
    if (!objects.back().is_object()) throw std::runtime_error("not an object: " + line);
  }
  return objects;
}

}  // namespace fsdpctl
