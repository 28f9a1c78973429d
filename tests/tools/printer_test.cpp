#include "tools/printer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

namespace fsdpctl {
namespace {

Finding mismatch() {
  return error(Exit::damaged, "tensor checksum mismatch")
      .at("__0_0.distcp")
      .key("model.w")
      .range(64, 128)
      .saw("crc64 01", "crc64 02")
      .try_("fsdpctl verify --data step-1");
}

struct Fixture {
  explicit Fixture(Globals globals = {}, bool terminal = false)
      : out(terminal), err(terminal), printer(out, err, globals) {}
  StringSink out, err;
  Printer printer;
};

Globals json() {
  Globals globals;
  globals.json = true;
  return globals;
}

size_t lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST(Printer, ErrorHasFourParts) {
  Fixture f;
  f.printer.error(Error(mismatch()));
  EXPECT_EQ(f.err.text(),
            "fsdpctl: error: tensor checksum mismatch\n"
            "  where: __0_0.distcp, model.w, bytes [64, 128)\n"
            "  saw:   expected crc64 01, found crc64 02\n"
            "  try:   fsdpctl verify --data step-1\n");
  EXPECT_EQ(f.out.text(), "");
}

TEST(Printer, UnknownPartsAreLeftOut) {
  Fixture f;
  f.printer.error(Error(Exit::usage, "no command given"));
  EXPECT_EQ(f.err.text(), "fsdpctl: error: no command given\n");
}

TEST(Printer, ErrorIsJsonOnStderrWithItsCode) {
  Fixture f(json());
  f.printer.error(Error(mismatch()));
  const auto object = nlohmann::json::parse(f.err.text());
  EXPECT_EQ(object["message_type"], "error");
  EXPECT_EQ(object["code"], 3);
  EXPECT_EQ(object["what"], "tensor checksum mismatch");
  EXPECT_EQ(object["where"]["range"], nlohmann::json({64, 128}));
  EXPECT_EQ(object["expected"], "crc64 01");
  EXPECT_EQ(object["hint"], "fsdpctl verify --data step-1");
}

TEST(Printer, TextShowsTwentyFindingsAndJsonAll) {
  const std::vector<Finding> many(25, mismatch());
  Fixture text;
  text.printer.findings(many, "step-1");
  EXPECT_NE(text.out.text().find("... and 5 more"), std::string::npos);
  EXPECT_EQ(lines(text.out.text()), 20 * 4 + 1u);
  Fixture machine(json());
  machine.printer.findings(many, "step-1");
  EXPECT_EQ(lines(machine.out.text()), 25u);
  std::istringstream stream(machine.out.text());
  for (std::string line; std::getline(stream, line);) EXPECT_EQ(nlohmann::json::parse(line)["checkpoint"], "step-1");
}

TEST(Printer, QuietDropsWarningsButNotErrors) {
  Globals globals;
  globals.quiet = true;
  Fixture f(globals);
  f.printer.remark(warning("stale file"));
  EXPECT_EQ(f.err.text(), "");
  f.printer.error(Error(mismatch()));
  EXPECT_NE(f.err.text(), "");
}

TEST(Printer, EachModePrintsOnlyItsOwn) {
  Fixture text;
  text.printer.text("for people");
  text.printer.record("summary", {{"schema_version", 1}});
  EXPECT_EQ(text.out.text(), "for people\n");
  Fixture machine(json());
  machine.printer.text("for people");
  machine.printer.record("summary", {{"schema_version", 1}});
  EXPECT_EQ(machine.out.text(), "{\"message_type\":\"summary\",\"schema_version\":1}\n");
}

TEST(Printer, ColourOnlyOnTerminalsUnlessAsked) {
  Globals globals;
  EXPECT_EQ(Fixture(globals, false).printer.paint(Style::good, "x"), "x");
  EXPECT_EQ(Fixture(globals, true).printer.paint(Style::good, "x"), "\x1b[32mx\x1b[0m");
  globals.dumb_terminal = true;
  EXPECT_EQ(Fixture(globals, true).printer.paint(Style::good, "x"), "x");
  globals.color = When::always;
  EXPECT_EQ(Fixture(globals, false).printer.paint(Style::good, "x"), "\x1b[32mx\x1b[0m");
  globals.color = When::never;
  EXPECT_EQ(Fixture(globals, true).printer.paint(Style::good, "x"), "x");
}

TEST(Printer, NamesCannotSpeakToTheTerminal) {
  EXPECT_EQ(visible("a\x1b[2Jb\nfsdpctl: ok"), "a\\x1b[2Jb\\x0afsdpctl: ok");
  EXPECT_EQ(visible("\xc2\x9b"), "\\x9b");           // the one-character form of ESC [
  EXPECT_EQ(visible("caf\xc3\xa9"), "caf\xc3\xa9");  // other UTF-8 stays
  Fixture f;
  Finding hostile = mismatch();
  hostile.where.key = "w\n  try:   rm -rf ~";
  f.printer.error(Error(hostile));
  EXPECT_EQ(lines(f.err.text()), 4u);
}

TEST(Printer, AFindingFitsOnAScreenWhateverNamesAFileHas) {
  Fixture f;
  Finding hostile = mismatch();
  hostile.where.key.clear();
  for (int i = 0; i < 100'000; ++i) hostile.where.key += "\xc3\xa9";   // cut between characters
  f.printer.error(Error(hostile));
  EXPECT_LT(f.err.text().size(), 2000u);
  EXPECT_NE(f.err.text().find(" bytes ... \xc3\xa9"), std::string::npos) << f.err.text();
  EXPECT_NE(f.err.text().find("\xc3\xa9 ... "), std::string::npos);
}

TEST(Printer, LongValuesAreClippedBetweenCharacters) {
  EXPECT_EQ(clipped(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(clipped(std::string(1500, 'x')), std::string(120, 'x') + " ... 1,380 bytes more");
  const std::string e = "\xc3\xa9";  // two bytes, of which the second would be number 120
  EXPECT_EQ(clipped(std::string(119, 'x') + e + "y"), std::string(119, 'x') + " ... 3 bytes more");
  EXPECT_EQ(shown_key(""), "(root)");
}

TEST(Printer, JsonIsValidWhateverTheBytesAre) {
  Fixture f(json());
  f.printer.record("tensor", {{"key", "\xff\xfe\xed\xa0\x80 \x01\""}});
  EXPECT_TRUE(nlohmann::json::accept(f.out.text()));
}

TEST(Progress, IsDrawnAndErasedOnATerminal) {
  Fixture f({}, true);
  {
    Progress progress(f.printer, "reshard");
    progress.update(50, 100);
    EXPECT_EQ(f.err.text().rfind("\r\x1b[Kreshard  50%  50 B / 100 B", 0), 0u) << f.err.text();
  }
  EXPECT_TRUE(f.err.text().ends_with("\r\x1b[K"));
  EXPECT_EQ(f.out.text(), "");
}

TEST(Progress, IsSilentElsewhere) {
  Globals globals;
  for (int variant = 0; variant < 3; ++variant) {
    globals = {};
    if (variant == 1) globals.progress = When::never;
    if (variant == 2) globals.quiet = true;
    Fixture f(globals, variant > 0);
    Progress progress(f.printer, "reshard");
    progress.update(50, 100);
    progress.update(100, 100);
    EXPECT_EQ(f.err.text(), "") << variant;
  }
}

TEST(Progress, AlwaysMeansLinesWithoutATerminal) {
  Globals globals;
  globals.progress = When::always;
  Fixture f(globals);
  Progress(f.printer, "reshard").update(100, 100);
  EXPECT_EQ(f.err.text().rfind("reshard  100%  100 B / 100 B", 0), 0u) << f.err.text();
  globals.json = true;
  Fixture machine(globals);
  Progress(machine.printer, "reshard").update(100, 100);
  EXPECT_EQ(nlohmann::json::parse(machine.err.text())["message_type"], "status");
}

TEST(DescriptorSink, ABrokenPipeIsNoError) {
  signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  DescriptorSink sink(ends[1]);
  sink.write("nobody reads this\n");
  EXPECT_NO_THROW(sink.flush());
  EXPECT_TRUE(sink.closed());
  EXPECT_NO_THROW(sink.write(std::string(1 << 20, 'x')));
  close(ends[1]);
}

TEST(DescriptorSink, OtherFailuresAreErrors) {
  DescriptorSink sink(-1);
  sink.write("x");
  try {
    sink.flush();
    ADD_FAILURE() << "writing to a closed descriptor succeeded";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::failed);
  }
}

}  // namespace
}  // namespace fsdpctl
