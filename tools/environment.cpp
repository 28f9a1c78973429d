#include "tools/environment.h"

#include <charconv>
#include <cmath>

#include "lib/base/finding.h"
#include "lib/ckpt/placement.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& text, std::string expected) {
  throw Error(Exit::usage, "bad value").key(name).saw(std::move(expected), "'" + text + "'");
}

bool parse_switch(const std::string& name, const std::string& text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false" || text.empty()) return false;
  refuse(name, text, "1 or 0");
}

}  // namespace

int64_t parse_count(const std::string& name, const std::string& text, int64_t lowest, int64_t highest) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < lowest || value > highest) {
    refuse(name, text, "a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  }
  return value;
}

When parse_when(const std::string& name, const std::string& text) {
  if (text == "auto") return When::automatic;
  if (text == "always") return When::always;
  if (text == "never") return When::never;
  refuse(name, text, "auto, always or never");
}

uint64_t parse_memory(const std::string& name, const std::string& text) {
  const std::optional<uint64_t> bytes = parse_size(text);
  if (!bytes || *bytes < (16u << 20)) refuse(name, text, "a size of at least 16 MiB, such as 96MiB or 1.5GiB");
  return *bytes;
}

int parse_threads(const std::string& name, const std::string& text) {
  return static_cast<int>(parse_count(name, text, 1, 1024));
}

int64_t parse_world_size(const std::string& name, const std::string& text) {
  return parse_count(name, text, 1, kMaxWorldSize);
}

double parse_tolerance(const std::string& name, const std::string& text) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0) {
    refuse(name, text, "a number such as 1e-5, not negative");
  }
  return value;
}

Globals resolve_globals(const GlobalFlags& flags, const Variables& variables) {
  const auto variable = [&](const char* name) {
    std::optional<std::string> value = variables(name);
    if (value && value->empty()) value.reset();
    return value;
  };
  Globals globals;
  globals.quiet = flags.quiet;
  globals.verbose = flags.verbose;
  globals.dumb_terminal = variable("TERM") == "dumb";
  if (variable("NO_COLOR")) globals.color = When::never;

  // Variables are checked even where a flag overrules them: a typing error should not wait for its day.
  if (const auto text = variable("FSDPCTL_JSON")) globals.json = parse_switch("FSDPCTL_JSON", *text);
  if (const auto text = variable("FSDPCTL_PROGRESS")) globals.progress = parse_when("FSDPCTL_PROGRESS", *text);
  if (const auto text = variable("FSDPCTL_COLOR")) globals.color = parse_when("FSDPCTL_COLOR", *text);
  if (const auto text = variable("FSDPCTL_MAX_MEMORY")) globals.max_memory = parse_memory("FSDPCTL_MAX_MEMORY", *text);
  if (const auto text = variable("FSDPCTL_THREADS")) globals.threads = parse_threads("FSDPCTL_THREADS", *text);

  if (flags.json) globals.json = true;
  if (flags.progress) globals.progress = *flags.progress;
  if (flags.color) globals.color = *flags.color;
  if (flags.max_memory) globals.max_memory = *flags.max_memory;
  if (flags.threads) globals.threads = *flags.threads;
  return globals;
}

}  // namespace fsdpctl
