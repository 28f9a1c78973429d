#include "lib/ckpt/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A format for these tests: a file whose text begins with its name, or a directory with a file `index.<name>` that
// says "good", "warn", "bad", "unsafe" or names a file that must be there.
class FakeFormat : public Format {
 public:
  FakeFormat(std::string name, int strength) : name_(std::move(name)), strength_(strength) {}
  std::string_view name() const override { return name_; }
  Capabilities capabilities() const override { return {}; }
  bool is_part(std::string_view file) const override { return file == "index." + name_; }

  std::optional<Match> recognize(Source& source) const override {
    if (source.is_directory()) {
      return source.has("index." + name_) ? std::optional(Match{strength_, "directory with index." + name_}) : std::nullopt;
    }
    const SourceIndex file = source.add(source.entries()[0].name);
    return source.read_all(file, 1000).starts_with(name_) ? std::optional(Match{strength_, "text"}) : std::nullopt;
  }

  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override {
    Checkpoint c;
    c.format = name_;
    c.source = source;
    if (!source->is_directory()) return c;
    const std::string text = source->read_all(source->add("index." + name_), 1000);
    if (text == "bad") throw Error(Exit::damaged, "it is bad").at("index." + name_);
    if (text == "unsafe") throw Error(Exit::unsupported, "it is unsafe").at("index." + name_);
    if (text == "warn") sink.report(warning("it is odd"));
    if (text != "good" && text != "warn") source->add(text);
    return c;
  }

 private:
  std::string name_;
  int strength_;
};

class OpenCheckpoint : public testing::Test {
 protected:
  OpenCheckpoint() {
    formats.push_back(std::make_unique<FakeFormat>("weak", 10));
    formats.push_back(std::make_unique<FakeFormat>("strong", 90));
    formats.push_back(std::make_unique<FakeFormat>("we", 10));   // matches what "weak" matches, and comes later
  }

  void put(const std::string& name, const std::string& text) { put_file(dir / name, text); }

  Opened open(const std::string& name, OpenOptions options = {}) {
    return open_checkpoint(formats, name.empty() ? dir.path() : dir / name, sink, options);
  }

  TempDir dir;
  FormatList formats;
  FindingSink sink;
};

TEST_F(OpenCheckpoint, TheStrongestMatchWinsAndTheFirstOfEqualOnes) {
  put("d/index.weak", "good");
  put("d/index.strong", "good");
  put("file", "weak text");
  const Opened opened = open("d/");
  EXPECT_EQ(opened.format->name(), "strong");
  EXPECT_EQ(opened.match.reason, "directory with index.strong");
  EXPECT_EQ(opened.chosen, "");
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].what, "directory holds a checkpoint of another format too; it is not read");
  EXPECT_EQ(sink.all()[0].found, "weak: directory with index.weak");
  EXPECT_EQ(open("file").format->name(), "weak");
  EXPECT_EQ(find_format(formats, "strong"), formats[1].get());
  EXPECT_EQ(find_format(formats, "none"), nullptr);
}

TEST_F(OpenCheckpoint, APartOpensItsDirectory) {
  put("d/index.strong", "good");
  put("lonely", "strong");
  const Opened opened = open("d/index.strong");
  EXPECT_EQ(opened.checkpoint.source->path(), dir / "d");
  EXPECT_EQ(open("lonely").checkpoint.source->path(), dir / "lonely");
}

TEST_F(OpenCheckpoint, WhatNobodyKnowsIsUnsupportedAndObviousDamageIsSaid) {
  put("text", "hello");
  put("empty", "");
  put("lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  fs::create_directory(dir / "folder");
  for (const char* name : {"text", "folder", ""}) {
    const Finding f = error_of([&] { open(name); });
    EXPECT_EQ(f.code, Exit::unsupported) << name;
    EXPECT_EQ(f.what, "not recognised as a checkpoint");
  }
  EXPECT_EQ(error_of([&] { open("empty"); }).what, "file is empty");
  EXPECT_THAT(error_of([&] { open("lfs"); }).what, HasSubstr("Git LFS pointer"));
  EXPECT_EQ(error_of([&] { open("lfs"); }).code, Exit::damaged);
  EXPECT_EQ(error_of([&] { open("absent"); }).code, Exit::failed);
}

TEST_F(OpenCheckpoint, ARunDirectoryGivesItsNewestCompleteStep) {
  put("run/step-9/index.weak", "good");
  put("run/step-10/index.weak", "warn");
  put("run/step-0011/index.weak", "missing.bin");
  put("run/step-100/index.weak", "bad");
  fs::create_directory(dir / "run/step-1000");
  put("run/logs/x", "");
  put("run/.step-2000/index.weak", "good");
  put("run/step-3000.partial-4000/index.weak", "good");
  put("run/step-99999", "a file");
  const Opened opened = open("run");
  EXPECT_EQ(opened.chosen, "step-10");
  EXPECT_EQ(opened.format->name(), "weak");
  EXPECT_THAT(opened.passed_over, ElementsAre("step-1000: holds no checkpoint", "step-100: it is bad (index.weak)",
                                              "step-0011: file is missing (missing.bin)"));
  ASSERT_EQ(sink.all().size(), 4u);
  EXPECT_EQ(sink.all()[0].what, "it is odd");   // of the chosen one
  EXPECT_EQ(sink.all()[2].what, "newer step is not complete and was passed over");
  EXPECT_EQ(sink.all()[2].found, opened.passed_over[1]);
}

TEST_F(OpenCheckpoint, FilesNamedAsStepsBesideStepsAreNamed) {
  put("run/step-1/index.weak", "good");
  put("run/step-2.bin", "strong");
  put("run/step-3.txt", "a note");
  put("run/other.bin", "strong");
  EXPECT_EQ(open("run").chosen, "step-1");
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].severity, Severity::warning);
  EXPECT_EQ(sink.all()[0].found, "step-2.bin");
}

TEST_F(OpenCheckpoint, StepsAreNumberedInAnyStyleAndMayHoldTheCheckpointOneLevelBelow) {
  for (const char* style : {"step-", "checkpoint-", "global_step", "step_", "epoch_", ""}) {
    const std::string run = std::string("run") + style;
    put(run + "/" + style + "2/ckpt/index.weak", "good");
    put(run + "/" + style + "1/ckpt/index.weak", "good");
    EXPECT_EQ(open(run).chosen, style + std::string("2/ckpt"));
  }
  put("long/99999999999999999999998/index.weak", "good");
  put("long/99999999999999999999999/index.weak", "good");
  EXPECT_EQ(open("long").chosen, "99999999999999999999999");
}

TEST_F(OpenCheckpoint, AmbiguousRunsAreRefusedWithTheChoices) {
  put("two/step-10/model_0/index.weak", "good");
  put("two/step-10/optimizer_0/index.weak", "good");
  Finding f = error_of([&] { open("two"); });
  EXPECT_EQ(f.code, Exit::refused);
  EXPECT_EQ(f.found, "step-10/model_0, step-10/optimizer_0");
  EXPECT_EQ(f.hint, "fsdpctl inspect " + dir / "two/step-10/model_0");
  put("kinds/step-10/index.weak", "good");
  put("kinds/epoch-1/index.weak", "good");
  f = error_of([&] { open("kinds"); });
  EXPECT_EQ(f.code, Exit::refused);
  EXPECT_EQ(f.found, "epoch-1 and step-10");
}

TEST_F(OpenCheckpoint, CheckpointsThatAreNoStepsAreNamedAndNoneIsChosen) {
  put("set/full_rank0/index.strong", "good");
  put("set/full_rank1/index.strong", "good");
  put("set/notes/x", "");
  put("set/single.pt", "strong");
  put("set/maybe.zip", "weak");   // not surely one
  put("set/expected.json", "{}");
  fs::create_directory_symlink("..", dir / "set/up");
  const Finding f = error_of([&] { open("set"); });
  EXPECT_EQ(f.code, Exit::refused);
  EXPECT_EQ(f.what, "directory holds checkpoints and is none itself");
  EXPECT_EQ(f.found, "full_rank0, full_rank1, single.pt");
  EXPECT_EQ(f.hint, "fsdpctl inspect " + dir / "set/full_rank0");
  // Beside steps they do not matter.
  put("set/step-5/index.weak", "good");
  EXPECT_EQ(open("set").chosen, "step-5");
  for (int i = 10; i < 30; ++i) put("many/rank" + std::to_string(i) + "/index.weak", "good");
  EXPECT_THAT(error_of([&] { open("many"); }).found, testing::EndsWith("rank17 and 12 more"));
}

TEST_F(OpenCheckpoint, OnlyDamageIsPassedOver) {
  put("run/step-1/index.weak", "good");
  put("run/step-2/index.weak", "unsafe");
  const Finding f = error_of([&] { open("run"); });
  EXPECT_EQ(f.code, Exit::unsupported);
  EXPECT_EQ(f.where.path, "step-2/index.weak");
  put("broken/step-1/index.weak", "bad");
  const Finding g = error_of([&] { open("broken"); });
  EXPECT_EQ(g.code, Exit::damaged);
  EXPECT_EQ(g.what, "no step of this run is complete");
  EXPECT_EQ(g.found, "step-1: it is bad (index.weak)");
}

TEST_F(OpenCheckpoint, StepsThatAreLinksOutNeedFollowLinks) {
  put("run/step-1/index.weak", "good");
  put("else/index.weak", "good");
  fs::create_directory_symlink("../else", dir / "run/step-2");
  EXPECT_EQ(error_of([&] { open("run"); }).code, Exit::unsupported);
  EXPECT_EQ(open("run", {.follow_links = true}).chosen, "step-2");
}

}  // namespace
}  // namespace fsdpctl
