#include "tools/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

Variables table(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Environment, DefaultsHoldWhereNothingIsSaid) {
  const Globals globals = resolve_globals({}, table({}));
  EXPECT_FALSE(globals.json);
  EXPECT_EQ(globals.color, When::automatic);
  EXPECT_EQ(globals.max_memory, 96u << 20);
  EXPECT_EQ(globals.threads, 0);
}

TEST(Environment, FlagBeatsVariable) {
  const Variables variables = table(
      {{"FSDPCTL_PROGRESS", "never"}, {"FSDPCTL_MAX_MEMORY", "1GiB"}, {"FSDPCTL_THREADS", "3"}, {"FSDPCTL_JSON", "1"}});
  Globals globals = resolve_globals({}, variables);
  EXPECT_TRUE(globals.json);
  EXPECT_EQ(globals.progress, When::never);
  EXPECT_EQ(globals.max_memory, 1u << 30);
  EXPECT_EQ(globals.threads, 3);
  GlobalFlags flags;
  flags.progress = When::always;
  flags.threads = 5;
  globals = resolve_globals(flags, variables);
  EXPECT_EQ(globals.progress, When::always);
  EXPECT_EQ(globals.threads, 5);
}

TEST(Environment, NoColorYieldsOnlyToWhatIsMoreSpecific) {
  EXPECT_EQ(resolve_globals({}, table({{"NO_COLOR", "1"}})).color, When::never);
  EXPECT_EQ(resolve_globals({}, table({{"NO_COLOR", ""}})).color, When::automatic);
  EXPECT_EQ(resolve_globals({}, table({{"NO_COLOR", "1"}, {"FSDPCTL_COLOR", "always"}})).color, When::always);
  EXPECT_TRUE(resolve_globals({}, table({{"TERM", "dumb"}})).dumb_terminal);
}

TEST(Environment, BadValuesAreUsageErrorsThatNameTheVariable) {
  const std::map<std::string, std::string> bad = {{"FSDPCTL_JSON", "yes"},
                                                  {"FSDPCTL_PROGRESS", "sometimes"},
                                                  {"FSDPCTL_COLOR", "red"},
                                                  {"FSDPCTL_MAX_MEMORY", "much"},
                                                  {"FSDPCTL_THREADS", "0"}};
  for (const auto& [name, value] : bad) {
    try {
      GlobalFlags flags;  // a flag does not hide a bad variable
      flags.json = true;
      flags.threads = 1;
      resolve_globals(flags, table({{name, value}}));
      ADD_FAILURE() << name << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      EXPECT_EQ(e.finding().where.key, name);
      EXPECT_EQ(e.finding().found, "'" + value + "'");
    }
  }
}

TEST(Environment, NumbersAreCheckedWhole) {
  EXPECT_EQ(parse_world_size("--world-size", "12"), 12);
  for (const char* text : {"0", "-1", "3x", " 3", "3.0", "1e3", "", "1000001", "99999999999999999999"}) {
    EXPECT_THROW(parse_world_size("--world-size", text), Error) << text;
  }
  EXPECT_EQ(parse_tolerance("--rtol", "1e-5"), 1e-5);
  for (const char* text : {"-1", "nan", "inf", "", "1e-5x"})
    EXPECT_THROW(parse_tolerance("--rtol", text), Error) << text;
  for (const char* text : {"1MiB", "0", "x"}) EXPECT_THROW(parse_memory("--max-memory", text), Error) << text;
}

}  // namespace
}  // namespace fsdpctl
