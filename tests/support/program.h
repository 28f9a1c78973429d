// Running the program without a process: arguments in, text and exit code out.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdpctl {

struct ProgramResult {
  int exit_code = -1;
  std::string out, err;
};

ProgramResult run_in_process(const std::vector<std::string>& arguments,
                             const std::map<std::string, std::string>& variables = {});

// JSON Lines as objects; throws where a line is no JSON object.
std::vector<nlohmann::json> json_lines(const std::string& text);

}  // namespace fsdpctl
