#include "lib/ckpt/publish.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>

#include "lib/base/checksum.h"
#include "lib/ckpt/partial.h"
#include "lib/ckpt/prove.h"
#include "lib/ckpt/select.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/made_format.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A source with a tied, a cut, a 0-d and an empty tensor, and the place for outputs.
class Publish : public testing::TestWithParam<bool> {
 protected:
  Publish() : format(GetParam()), out(dir / "out") {
    make_directory(dir / "source");
    const Value w = m.shard("", {5, 4}, 2), n = m.tensor("", {}, DType::int64), e = m.tensor("", {0, 3}), c = m.tensor("", {3, 7});
    m.checkpoint.tree = dict({{"model", dict({{"w", w}, {"tied", w}, {"n", n}, {"e", e}, {"c", c}})}, {"step", Value::integer(7)}});
    m.store(dir / "source");
    options.arguments = "convert --to made";
    target.file_name = "out";
    target.directory = !GetParam();
  }
  ~Publish() override { set_fault_hook(nullptr); }

  PublishResult run() { return publish(m.checkpoint, format, target, out, options, sink); }
  Error fails() {
    try {
      run();
    } catch (const Error& e) {
      return e;
    }
    ADD_FAILURE() << "no error";
    return Error(Exit::ok, "no error");
  }
  // Everything below `path`: relative name -> content.
  static std::map<std::string, std::string> files(const std::string& path, const std::string& name = "") {
    std::map<std::string, std::string> out;
    const FileStat there = stat_path(path);
    if (there.kind == FileKind::file) out[name] = read_text(path, 1 << 20);
    if (there.kind != FileKind::directory) return out;
    for (const std::string& child : list_directory(path)) out.merge(files(join_path(path, child), name.empty() ? child : name + "/" + child));
    return out;
  }
  std::map<std::string, std::string> output() { return files(out); }
  std::vector<std::string> beside() {
    std::vector<std::string> names;
    for (const std::string& name : list_directory(dir.path())) {
      if (name != "source") names.push_back(name);
    }
    return names;
  }
  std::vector<std::string> complete() const {
    return GetParam() ? std::vector<std::string>{"out", "out.fsdpctl.json"} : std::vector<std::string>{"out"};
  }
  Checkpoint reopened() { return format.open(Source::open(out), sink); }

  TempDir dir;
  MadeCheckpoint m;
  MadeFormat format;
  Target target;
  PublishOptions options;
  FindingSink sink{/*strict=*/false};
  std::string out;
};
INSTANTIATE_TEST_SUITE_P(Layout, Publish, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& tested) { return tested.param ? "File" : "Directory"; });

TEST_P(Publish, AppearsWholeWithItsManifestAndNothingElse) {
  const PublishResult result = run();
  EXPECT_EQ(beside(), complete());
  EXPECT_TRUE(result.read_back);
  EXPECT_EQ(result.files, GetParam() ? 1u : 3u);
  EXPECT_GT(result.bytes, 0u);
  const Checkpoint again = reopened();
  const auto manifest = find_manifest(again, sink);
  ASSERT_TRUE(manifest.has_value());
  EXPECT_TRUE(sink.all().empty());
  EXPECT_EQ(manifest->fingerprint, result.fingerprint);
  EXPECT_EQ(manifest->source_format, "made");
  EXPECT_EQ(manifest->source_fingerprint, result.fingerprint);   // nothing was changed on the way
  ASSERT_EQ(manifest->tensors.size(), 4u);
  std::string bytes;
  for (uint64_t i = 0; i < 21; ++i) {
    for (int b = 0; b < 4; ++b) bytes += static_cast<char>(made_element(3, i) >> (8 * b) & 0xff);
  }
  EXPECT_EQ(manifest->tensors[3].key, "model.c");
  EXPECT_EQ(manifest->tensors[3].crc64, crc64(std::as_bytes(std::span(bytes))));
  EXPECT_THAT(read_text(result.manifest, 1 << 20), Not(HasSubstr(dir.path())));
}

TEST_P(Publish, TheSameInputGivesTheSameBytesWhateverTheThreads) {
  options.engine.threads = 1;
  run();
  const auto first = output();
  const std::string manifest = read_text(manifest_path(out, !GetParam()), 1 << 20);
  remove_tree(out);
  remove_tree(manifest_path(out, false));
  options.engine.threads = 4;
  run();
  EXPECT_EQ(output(), first);
  EXPECT_EQ(read_text(manifest_path(out, !GetParam()), 1 << 20), manifest);
}

TEST_P(Publish, ExistingOutputIsRefusedThenReplacedByForce) {
  if (GetParam()) write_new_file(out, "old");
  else make_directory(out), write_new_file(out + "/old", "old");
  const auto old = output();
  EXPECT_EQ(fails().code(), Exit::usage);
  EXPECT_EQ(output(), old);
  EXPECT_EQ(beside(), std::vector<std::string>{"out"});
  options.force = true;
  run();
  EXPECT_EQ(beside(), complete());
  EXPECT_EQ(reopened().tensors.size(), 4u);
  EXPECT_EQ(output().count("old"), 0u);
}

TEST_P(Publish, DryRunWritesNothing) {
  options.dry_run = true;
  const PublishResult result = run();
  EXPECT_GT(result.bytes, 0u);
  EXPECT_GT(result.free_bytes, 0u);
  EXPECT_THAT(beside(), IsEmpty());
}

TEST_P(Publish, NeverIntoOrOverTheInput) {
  out = dir / "source";
  options.force = true;
  EXPECT_EQ(fails().code(), Exit::usage);
  out = dir / "source/inside";
  EXPECT_EQ(fails().code(), Exit::usage);
  out = dir.path();
  EXPECT_EQ(fails().code(), Exit::usage);
  EXPECT_EQ(list_directory(dir / "source"), std::vector<std::string>{"made.bin"});
  out = dir / "nowhere/out";
  EXPECT_EQ(fails().code(), Exit::failed);
}

TEST_P(Publish, CastsAreCountedAndBothFingerprintsKept) {
  std::vector<Change> changes;
  Selection selection;
  selection.cast = DType::bfloat16;
  const Checkpoint cast = select(m.checkpoint, selection, changes);
  options.changes = changes;
  const PublishResult result = publish(cast, format, target, out, options, sink);
  EXPECT_NE(result.fingerprint, result.source_fingerprint);
  ASSERT_EQ(result.changes.size(), 3u);
  EXPECT_THAT(result.changes[0].detail, HasSubstr("float32 -> bfloat16, 20 values changed, 0 overflowed"));
  remove_tree(out);
  remove_tree(manifest_path(out, false));
  options.changes.clear();
  EXPECT_EQ(run().fingerprint, result.source_fingerprint);
}

TEST_P(Publish, WhatTheFormatCannotCarryIsRefusedOrListed) {
  format.carries = [](FindingSink& s) { s.report(error(Exit::refused, "cannot carry").key("step")); };
  EXPECT_EQ(fails().code(), Exit::refused);
  EXPECT_THAT(beside(), IsEmpty());

  // A loss that can_carry listed is no difference, an unlisted one is. The caller has listed it, so it is not reported again.
  format.tamper = [](Value& tree, std::vector<MadeRow>&) { tree = dict({{"model", *tree.find("model")}}); };
  format.carries = nullptr;
  EXPECT_TRUE(is_disproof(fails()));
  format.carries = [](FindingSink& s) { s.report(warning("left out").key("step")); };
  run();
  EXPECT_THAT(sink.all(), IsEmpty());
  EXPECT_EQ(beside(), complete());
}

// What a format says of a mapping excuses none of the values in it.
TEST_P(Publish, AWarningAboutAMappingDoesNotHideItsValues) {
  const Value model = *m.checkpoint.tree.find("model");
  m.checkpoint.tree = dict({{"model", model}, {"step", Value::integer(7)}, {"of", dict({{"1", Value::integer(2)}})}});
  format.carries = [](FindingSink& s) { s.report(warning("keys become strings").key("of")); };
  format.tamper = [&](Value& tree, std::vector<MadeRow>&) {
    tree = dict({{"model", *tree.find("model")}, {"step", Value::integer(7)}, {"of", dict({{"1", Value::integer(3)}})}});
  };
  EXPECT_TRUE(is_disproof(fails()));
  format.tamper = nullptr;
  run();
}

TEST_P(Publish, AWriterThatLiesIsFoundOut) {
  using Tamper = std::function<void(Value&, std::vector<MadeRow>&)>;
  const auto with_step = [](Value& tree, Value step) { tree = dict({{"model", *tree.find("model")}, {"step", std::move(step)}}); };
  const std::pair<const char*, Tamper> lies[] = {
      {"value", [&](Value& tree, std::vector<MadeRow>&) { with_step(tree, Value::integer(8)); }},
      {"type", [&](Value& tree, std::vector<MadeRow>&) { with_step(tree, Value::real(7)); }},
      {"dtype", [](Value&, std::vector<MadeRow>& rows) { rows[3].dtype = DType::int32; }},
      {"shape", [](Value&, std::vector<MadeRow>& rows) { rows[3].shape = {7, 3}; }},
      {"offset", [](Value&, std::vector<MadeRow>& rows) { rows[3].offset -= 1; }},
      {"bytes of another tensor", [](Value&, std::vector<MadeRow>& rows) { rows[1].tensor = 0; }},
      {"beyond the file", [](Value&, std::vector<MadeRow>& rows) { rows[3].offset += 1000; }},
      {"name", [&](Value& tree, std::vector<MadeRow>&) {
         tree = dict({{"model", dict({{"w2", *tree.find("model")->find("w")}, {"n", *tree.find("model")->find("n")},
                                      {"e", *tree.find("model")->find("e")}, {"c", *tree.find("model")->find("c")}})},
                      {"step", Value::integer(7)}});
       }},
  };
  for (const auto& lie : lies) {
    format.tamper = lie.second;
    const Error e = fails();
    EXPECT_EQ(e.code(), Exit::failed) << lie.first;
    // The engine itself sees a plan that writes one tensor twice.
    EXPECT_TRUE(is_disproof(e) || e.finding().what == "plan does not write every element exactly once") << lie.first << ": " << e.what();
    EXPECT_THAT(output(), IsEmpty());
  }
  // Nothing of the lies is continued from.
  format.tamper = nullptr;
  EXPECT_EQ(run().bytes_resumed, 0u);
}

TEST_P(Publish, WithoutReadBackTheManifestSaysSo) {
  options.read_back = false;
  format.tamper = [](Value&, std::vector<MadeRow>& rows) { rows[3].offset -= 1; };   // wrong bytes, right structure
  EXPECT_FALSE(run().read_back);
  EXPECT_THAT(read_text(manifest_path(out, !GetParam()), 1 << 20), HasSubstr("\"read_back\": false"));
}

TEST_P(Publish, AnotherRunAtWorkIsSaid) {
  FilePlan plan = format.lay_out(m.checkpoint, target);
  PartialDirectory held = PartialDirectory::open(out, partial_id(m.checkpoint, plan, options.arguments));
  const Error e = fails();
  EXPECT_EQ(e.code(), Exit::failed);
  EXPECT_EQ(e.finding().what, "output is being written by another run");
  held.remove();
  run();
}

TEST_P(Publish, AChangedSourceOrCommandStartsAgainAndOtherPartialsAreLeftAlone) {
  FilePlan plan = format.lay_out(m.checkpoint, target);
  const std::string id = partial_id(m.checkpoint, plan, options.arguments);
  EXPECT_NE(partial_id(m.checkpoint, plan, "other"), id);
  make_directory(out + ".partial-0000000000000000");
  run();
  EXPECT_THAT(beside(), Contains("out.partial-0000000000000000"));
  EXPECT_EQ(sink.all().back().severity, Severity::note);

  FileHandle file = FileHandle::open_write(dir / "source/made.bin");
  file.resize(file.size() + 1);
  m.checkpoint.source = Source::open(dir / "source");
  m.checkpoint.source->add("made.bin");
  EXPECT_NE(partial_id(m.checkpoint, plan, options.arguments), id);
}

TEST_P(Publish, InterruptionLeavesAPartialThatIsContinued) {
  std::atomic<bool> cancel{true};
  options.engine.cancel = &cancel;
  EXPECT_EQ(fails().code(), Exit::interrupted);
  EXPECT_THAT(output(), IsEmpty());
  cancel = false;
  run();
  EXPECT_EQ(beside(), complete());
}

// A disk may lose what it was given, and the journal still calls it written.
TEST_P(Publish, ChangedBytesOfAPartialAreWrittenAgainAndNotBlamedOnTheSource) {
  for (const bool read_back : {true, false}) {
    SCOPED_TRACE(read_back);
    options.read_back = read_back;
    // All is written and in the journal; the manifest, which comes last, is not.
    set_fault_hook([](std::string_view operation, const std::string& path) {
      return operation == "open" && path.find("manifest") != std::string::npos ? EIO : 0;
    });
    EXPECT_EQ(fails().code(), Exit::failed);
    set_fault_hook(nullptr);
    const Finding left = sink.all().back();
    EXPECT_THAT(left.what, HasSubstr("unfinished output is kept"));
    const std::string partial = dir / left.where.path, file = partial + (GetParam() ? "/data/out" : "/data/part-1.bin");
    EXPECT_EQ(left.hint, "rm -r " + partial);
    FileHandle::open_write(file).write(5, std::as_bytes(std::span("damage", 6)));
    const PublishResult result = run();
    EXPECT_GT(result.bytes_written, 0u);
    EXPECT_THAT(sink.all().back().what, HasSubstr("had changed since it was written"));
    const auto manifest = find_manifest(reopened(), sink);
    const std::vector<TensorSum> sums = fingerprint(reopened(), {}, {}), source = fingerprint(m.checkpoint, {}, {});
    for (size_t t = 0; t < sums.size(); ++t) EXPECT_EQ(sums[t].crc64, source[t].crc64);
    remove_tree(out);
    remove_tree(manifest_path(out, false));
  }
}

TEST_P(Publish, WhatCannotBeContinuedIsNotLeftBehind) {
  format.tamper = [](Value&, std::vector<MadeRow>& rows) { rows[3].shape = {7, 3}; };
  EXPECT_TRUE(is_disproof(fails()));
  EXPECT_THAT(beside(), IsEmpty());
  EXPECT_THAT(sink.all(), IsEmpty());
}

// A partial is where others can write, too.
TEST_P(Publish, NothingIsWrittenThroughALinkInThePartial) {
  const std::string partial = PartialDirectory::path_for(out, partial_id(m.checkpoint, format.lay_out(m.checkpoint, target), options.arguments));
  const std::string victim = dir / "victim", file = partial + (GetParam() ? "/data/out" : "/data/part-0.bin");
  write_new_file(victim, "precious");
  for (const bool hard : {false, true}) {
    SCOPED_TRACE(hard);
    make_directories(partial + "/data");
    write_new_file(partial + "/journal", "");
    if (hard) std::filesystem::create_hard_link(victim, file);
    else std::filesystem::create_symlink(victim, file);
    run();
    EXPECT_EQ(read_text(victim, 100), "precious");
    remove_tree(out);
    remove_tree(manifest_path(out, false));
  }
  std::filesystem::create_directory_symlink(dir.path(), partial);
  EXPECT_EQ(fails().code(), Exit::failed);
}

// Beside a single file lies its manifest; what else has that name is not ours.
TEST_P(Publish, AForeignFileInTheManifestsPlaceIsRefused) {
  if (!GetParam()) return;
  for (const char* foreign : {"", "{\n", "{\"x\": 1}"}) {
    remove_tree(manifest_path(out, false));
    write_new_file(manifest_path(out, false), foreign);
    EXPECT_EQ(fails().code(), Exit::usage) << foreign;
    EXPECT_EQ(read_text(manifest_path(out, false), 100), foreign);
  }
  options.force = true;
  run();
}

TEST_P(Publish, WhatWasReplacedIsNeverTakenForFinishedWork) {
  run();
  const auto good = output();
  if (GetParam()) FileHandle::open_write(out).write(0, std::as_bytes(std::span("old", 3)));
  else FileHandle::open_write(out + "/part-1.bin").write(0, std::as_bytes(std::span("old", 3)));
  options.force = true;
  bool named = false;
  set_fault_hook([&](std::string_view operation, const std::string&) {
    named = named || operation == "rename";
    return operation == "remove" && named ? EIO : 0;
  });
  run();   // from then on nothing can be removed, as after kill -9: the old output stays in the partial
  set_fault_hook(nullptr);
  EXPECT_EQ(sink.all().back().what, "partial output could not be removed");
  EXPECT_EQ(output(), good);

  remove_tree(out);
  remove_tree(manifest_path(out, false));
  options.force = false;
  options.read_back = false;
  EXPECT_EQ(run().bytes_resumed, 0u);
  EXPECT_EQ(reopened().tensors.size(), 4u);
  options.read_back = true;
  auto again = output();
  again.erase("fsdpctl.manifest.json");   // it records that nothing was read back
  auto before = good;
  before.erase("fsdpctl.manifest.json");
  EXPECT_EQ(again, before);
}

// Ctrl-C before each operation on the disk in turn: the old state or all of the new one, and the same call then finishes the work.
TEST_P(Publish, InterruptedAtAnyMomentOldOrNewAndTheNextRunSucceeds) {
  run();
  const auto good = output();
  for (const bool force : {false, true}) {
    int interruptions = 0;
    bool reached = true;
    for (int n = 1; reached; ++n) {
      remove_tree(out);
      remove_tree(manifest_path(out, false));
      if (force && GetParam()) write_new_file(out, "old");
      if (force && !GetParam()) make_directory(out), write_new_file(out + "/old", "old");
      const auto old = output();
      std::atomic<bool> cancel{false};
      std::atomic<int> calls{0};
      options.force = force;
      options.engine.cancel = &cancel;
      set_fault_hook([&](std::string_view, const std::string&) {
        if (++calls == n) cancel = true;
        return 0;
      });
      Exit code = Exit::ok;
      try {
        run();
      } catch (const Error& e) {
        code = e.code();
      }
      set_fault_hook(nullptr);
      reached = calls >= n;
      const std::string where = fmt::format("operation {} of {}", n, force ? "force" : "new");
      EXPECT_TRUE(code == Exit::ok || code == Exit::interrupted) << where << ", exit " << static_cast<int>(code);
      EXPECT_EQ(output(), code == Exit::ok ? good : old) << where;
      interruptions += code == Exit::interrupted;
      if (code == Exit::interrupted) {
        cancel = false;
        EXPECT_NO_THROW(run()) << where;
        EXPECT_EQ(output(), good) << where;
      }
      EXPECT_EQ(beside(), complete()) << where;
      ASSERT_LT(n, 2000) << where;
    }
    EXPECT_GT(interruptions, 10);
  }
}

// Every operation on the disk fails once, at each of its places: nothing may be seen of the output unless all of it is there, and the next
// run must succeed.
TEST_P(Publish, AfterAnyFailureOldOrNewAndTheNextRunSucceeds) {
  run();
  const auto good = output();
  remove_tree(out);
  remove_tree(manifest_path(out, false));
  for (const bool force : {false, true}) {
    for (const std::string_view operation : {"open", "read", "write", "sync", "resize", "rename", "mkdir", "remove", "list", "lock"}) {
      int failed = 1;
      for (int n = 1; failed > 0; ++n) {
        remove_tree(out);
        remove_tree(manifest_path(out, false));
        std::map<std::string, std::string> old;
        if (force) {
          if (GetParam()) write_new_file(out, "old");
          else make_directory(out), write_new_file(out + "/old", "old");
          old = output();
        }
        options.force = force;
        std::atomic<int> calls{0};
        failed = 0;
        set_fault_hook([&](std::string_view called, const std::string&) {
          if (called != operation || ++calls != n) return 0;
          failed = 1;
          return ENOSPC;
        });
        Exit code = Exit::ok;
        try {
          run();
        } catch (const Error& e) {
          code = e.code();
        }
        set_fault_hook(nullptr);
        const std::string where = fmt::format("{} {} of {}", operation, n, force ? "force" : "new");
        const auto now = output();
        if (code == Exit::ok || now == good) EXPECT_EQ(now, good) << where;
        else EXPECT_EQ(now, old) << where << ", exit " << static_cast<int>(code);
        // The next run: continues, or finds the complete output in its way.
        options.force = force || now == good;
        EXPECT_NO_THROW(run()) << where;
        EXPECT_EQ(output(), good) << where;
        EXPECT_EQ(beside(), complete()) << where;
        ASSERT_LT(n, 500) << where;
      }
    }
  }
}

}  // namespace
}  // namespace fsdpctl
