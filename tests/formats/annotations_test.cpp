// Texts beside the tree (`__metadata__` of safetensors): carried where the target can, listed by name where it cannot.
#include "formats/annotations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/all_formats.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/slow_reference.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using Texts = std::vector<Annotation>;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

class Annotations : public testing::Test {
 protected:
  Annotations() {
    made_.checkpoint.tree = dict({{"a.weight", made_.tensor("a.weight", {2, 3})}, {"b.weight", made_.tensor("b.weight", {4})}});
    made_.store(dir_.path());
    made_.checkpoint.format = "safetensors";
  }

  // Names of the annotations that the format says it loses.
  std::vector<std::string> lost(const std::string& format) {
    FindingSink sink(false);
    find_format(formats_, format)->can_carry(made_.checkpoint, target(), sink);
    std::vector<std::string> names;
    for (const Finding& f : sink.all()) {
      EXPECT_EQ(f.severity, Severity::warning) << f.what;
      EXPECT_THAT(f.where.key, testing::StartsWith("__metadata__.")) << f.what;
      names.push_back(f.where.key.substr(13));
    }
    return names;
  }

  // What a reader finds in the format's output.
  Texts written(const std::string& format, const std::string& name) {
    const Format& writer = *find_format(formats_, format);
    Target to = target();
    to.file_name = name;
    const bool file = !writer.capabilities().endings.empty();
    slow_write(made_.checkpoint, writer.lay_out(made_.checkpoint, to), file ? dir_.path() : dir_ / name);
    FindingSink sink;
    const Checkpoint back = open_checkpoint(formats_, dir_ / name, sink).checkpoint;
    EXPECT_THAT(sink.all(), IsEmpty());
    EXPECT_EQ(back.aliases.size(), 0u);
    return annotations(back);
  }

  void set(const Texts& texts) {
    made_.checkpoint.facts.clear();
    for (const Annotation& a : texts) add_annotation(made_.checkpoint, a.first, a.second);
  }

  Target target() const {
    Target target;
    target.placement = &placement_;
    return target;
  }

  const FormatList formats_ = all_formats();
  TempDir dir_;
  MadeCheckpoint made_;
  const TargetPlacement placement_{2, std::vector<TargetPlacement::Row>(2)};
};

TEST_F(Annotations, GoWhereAFormatHasAPlaceForThem) {
  const Texts texts = {{"note", "caf\xC3\xA9"}, {"empty", ""}, {"a/b.c", "{\"x\": 1}"}};
  Texts with_tag = {{"format", "tf"}};
  with_tag.insert(with_tag.end(), texts.begin(), texts.end());
  set(with_tag);
  EXPECT_THAT(lost("safetensors"), IsEmpty());
  EXPECT_THAT(lost("hf-dcp"), IsEmpty());
  EXPECT_THAT(lost("hdf5"), IsEmpty());
  EXPECT_EQ(written("safetensors", "x.safetensors"), with_tag);
  EXPECT_EQ(written("hf-dcp", "x"), with_tag);
  EXPECT_THAT(written("hdf5", "x.h5"), UnorderedElementsAreArray(texts));   // `format` is about safetensors files
}

TEST_F(Annotations, AreListedWhereTheyAreLost) {
  set({{"format", "pt"}, {"note", "hello"}, {"author", ""}});
  EXPECT_THAT(lost("torch"), ElementsAre("note", "author"));
  EXPECT_THAT(lost("dcp"), ElementsAre("note", "author"));
}

// Names with a meaning of their own in safetensors, which HDF5 knows nothing of.
TEST_F(Annotations, ThatWouldReadAsSomethingElseAreListed) {
  made_.checkpoint.format = "hdf5";
  set({{"format", "MATLAB 7.3"}, {"fsdpctl.tree", "{}"}, {"DCP_VERSION", "1.0"}, {"tied", "a.weight"},
                                  {"latin", "\xE9"}, {"note", "hello"}});
  const std::vector<std::string> expected = {"format", "fsdpctl.tree", "DCP_VERSION", "tied", "latin"};
  EXPECT_EQ(lost("safetensors"), expected);
  EXPECT_EQ(written("safetensors", "x.safetensors"), (Texts{{"format", "pt"}, {"note", "hello"}}));
  EXPECT_THAT(lost("torch"), testing::SizeIs(6));
}

TEST_F(Annotations, ThatHdf5CannotHoldAreListed) {
  set({{"", "no name"}, {"long", std::string(70'000, 'x')}, {std::string(300, 'n'), "name"},
                                  {"zero", std::string("a\0b", 3)}, {"large", std::string(60'000, 'y')}});
  EXPECT_THAT(lost("hdf5"), ElementsAre("", "long", std::string(300, 'n'), "zero"));
  EXPECT_EQ(written("hdf5", "x.h5"), (Texts{{"large", std::string(60'000, 'y')}}));
  Texts many;
  for (int i = 0; i < 1'002; ++i) many.emplace_back("n" + std::to_string(i), "x");
  set(many);
  EXPECT_THAT(lost("hdf5"), ElementsAre("n1000", "n1001"));
  EXPECT_EQ(written("hdf5", "many.h5").size(), 1'000u);
}

}  // namespace
}  // namespace fsdpctl
