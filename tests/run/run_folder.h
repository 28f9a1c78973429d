// Small runs of the real programs, each in a directory of its own.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {

class RunFolder {
 public:
  RunFolder() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "the cat sat on mat " + std::to_string(i * 7 % 13) + ". ";
    put_file(dir / "text.txt", text);
    put_file(dir / "c.json", R"({
      // small enough for every test
      "model": {"config": {"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
                           "num_attention_heads": 2}},
      "data": {"files": ["text.txt"], "sequence_length": 16, "micro_batch_size": 2},
      "optimizer": {"lr": 1e-2},
      "training": {"steps": 6, "micro_batches": 4, "seed": 3, "threads": 1, "timeout": 60},
      "checkpoint": {"directory": "out", "interval": 2}
    })");
  }

  ProcessResult fsdpctl(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) const {
    ProcessOptions options;
    options.directory = dir.path();
    options.environment = environment;
    options.environment.emplace_back("FSDPCTL_PROGRESS=never");
    return run_fsdpctl(arguments, options);
  }
  // fsdpctl train c.json, with more.
  ProcessResult train(std::vector<std::string> more = {}, const std::vector<std::string>& environment = {}) const {
    more.insert(more.begin(), {"train", "c.json"});
    return fsdpctl(more, environment);
  }
  ProcessResult shell(const std::string& script) const {
    ProcessOptions options;
    options.directory = dir.path();
    return run_process({"bash", "-c", "fsdpctl='" FSDPCTL_BINARY "'\n" + script}, options);
  }

  std::string fingerprint(const std::string& checkpoint) const {
    for (const nlohmann::json& line : json_lines(fsdpctl({"inspect", "--json", "--fingerprint", checkpoint}).out)) {
      if (line["message_type"] == "checkpoint") return line["fingerprint"];
    }
    return "none";
  }
  // That of the model and the optimizer alone: `config` and numbers of ranks differ between runs that train the same.
  bool same_state(const std::string& a, const std::string& b) const {
    return fsdpctl({"diff", a, b, "--name", "model.*"}).exit_code == 0 && fsdpctl({"diff", a, b, "--name", "optimizer.state.*"}).exit_code == 0;
  }
  std::vector<nlohmann::json> metrics(const std::string& directory = "out") const {
    return json_lines(get_file(dir / (directory + "/metrics.jsonl")));
  }
  // The newest published checkpoint, which must be whole.
  std::string newest_whole() const {
    const ProcessResult verified = fsdpctl({"verify", "--data", "--json", "out"});
    if (verified.exit_code != 0) return "damaged: " + verified.err + verified.out;
    for (const nlohmann::json& line : json_lines(verified.out)) {
      if (line["message_type"] == "report") return line["chosen"];
    }
    return "none";
  }

  TempDir dir;
};

// How many error messages there are.
inline size_t errors_in(const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find("error: "); at != text.npos; at = text.find("error: ", at + 1)) ++count;
  return count;
}

}  // namespace fsdpctl
