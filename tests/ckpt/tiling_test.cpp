#include "lib/ckpt/tiling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

namespace fsdpctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Cut {
  std::vector<int64_t> offset, size;
  int rank = 0;
};

// The findings about one tensor with these pieces.
std::vector<Finding> findings_of(const std::vector<int64_t>& shape, const std::vector<Cut>& cuts) {
  Checkpoint c;
  const TensorIndex t = c.add_tensor(DType::float32, shape);
  c.tree = Value::mapping(Kind::dict, {{Value::string("w"), Value::tensor(TensorLeaf{t, false, false})}});
  for (const Cut& cut : cuts) {
    Piece p;
    p.tensor = t;
    p.rank = cut.rank;
    p.box = {c.arena->store(Dims(cut.offset)), c.arena->store(Dims(cut.size))};
    c.add_piece(p);
  }
  FindingSink sink(false);
  c.finish(sink);
  EXPECT_THAT(sink.all(), IsEmpty());
  check_tiling(c, sink);
  return sink.all();
}

std::vector<std::string> texts_of(const std::vector<Finding>& findings) {
  std::vector<std::string> texts;
  for (const Finding& f : findings) {
    EXPECT_EQ(f.code, Exit::damaged);
    EXPECT_EQ(f.where.key, "w");
    texts.push_back(f.what + ": " + f.saw_text());
  }
  return texts;
}

TEST(Tiling, AcceptsEveryCutThatCoversEachElementOnce) {
  EXPECT_THAT(findings_of({}, {{{}, {}}}), IsEmpty());
  EXPECT_THAT(findings_of({}, {{{}, {}, 0}, {{}, {}, 1}}), IsEmpty());                            // replicas
  EXPECT_THAT(findings_of({0, 3}, {}), IsEmpty());                                               // nothing to hold
  EXPECT_THAT(findings_of({0, 3}, {{{0, 0}, {0, 3}}}), IsEmpty());
  EXPECT_THAT(findings_of({5}, {{{0}, {3}}, {{3}, {2}}}), IsEmpty());
  EXPECT_THAT(findings_of({5}, {{{0}, {3}}, {{3}, {2}}, {{5}, {0}}, {{5}, {0}, 1}}), IsEmpty());  // empty pieces
  EXPECT_THAT(findings_of({4, 6}, {{{0, 0}, {4, 2}}, {{0, 2}, {4, 4}}}), IsEmpty());
  EXPECT_THAT(findings_of({4, 4}, {{{0, 0}, {2, 2}, 0}, {{0, 2}, {2, 2}, 1}, {{2, 0}, {2, 2}, 2}, {{2, 2}, {2, 2}, 3},
                                   {{0, 0}, {2, 2}, 4}, {{2, 2}, {2, 2}, 5}}), IsEmpty());
  // A pinwheel: no straight cut through it.
  EXPECT_THAT(findings_of({3, 3}, {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}}),
              IsEmpty());
}

TEST(Tiling, NamesHolesAndOverlapsWithTheirBoxes) {
  EXPECT_THAT(texts_of(findings_of({}, {})), ElementsAre("tensor has a hole: expected a piece with [], found none"));
  EXPECT_THAT(texts_of(findings_of({5, 2}, {})),
              ElementsAre("tensor has a hole: expected a piece with [0, 5) x [0, 2), found none"));
  EXPECT_THAT(texts_of(findings_of({5, 2}, {{{0, 0}, {3, 2}}})),
              ElementsAre("tensor has a hole: expected a piece with [3, 5) x [0, 2), found none"));
  EXPECT_THAT(texts_of(findings_of({4, 4}, {{{0, 0}, {4, 1}}, {{0, 2}, {4, 2}}})),
              ElementsAre("tensor has a hole: expected a piece with [0, 4) x [1, 2), found none"));
  EXPECT_THAT(texts_of(findings_of({4}, {{{0}, {3}}, {{2}, {2}}})), ElementsAre("pieces overlap: found [0, 3) and [2, 4)"));
  // As much too often as not at all: a sum of sizes would not see it.
  EXPECT_THAT(texts_of(findings_of({6}, {{{0}, {2}}, {{1}, {2}}, {{4}, {2}}})),
              ElementsAre("tensor has a hole: expected a piece with [3, 4), found none",
                          "pieces overlap: found [0, 2) and [1, 3)"));
  EXPECT_THAT(texts_of(findings_of({}, {{{}, {}}})), IsEmpty());
}

TEST(Tiling, OverlapsNameTheRankOfTheLaterPiece) {
  const auto findings = findings_of({4}, {{{0}, {3}, 7}, {{2}, {2}, 9}});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].where.rank, 9);
}

// Random cuts, some of them damaged, against counting every element.
TEST(Tiling, AgreesWithCountingElements) {
  std::mt19937_64 random(5);
  int good = 0, bad = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> shape(random() % 4);
    for (int64_t& n : shape) n = static_cast<int64_t>(random() % 5 + 1);
    // Cut boxes in two, at random places.
    std::vector<Cut> cuts = {{std::vector<int64_t>(shape.size(), 0), shape}};
    for (uint64_t n = random() % 8; n > 0 && !shape.empty(); --n) {
      Cut& cut = cuts[random() % cuts.size()];
      const size_t d = random() % shape.size();
      const int64_t at = static_cast<int64_t>(random() % static_cast<uint64_t>(cut.size[d] + 1));
      Cut rest = cut;
      rest.offset[d] += at;
      rest.size[d] -= at;
      cut.size[d] = at;
      cuts.push_back(rest);
    }
    if (random() % 2 && !shape.empty()) {   // damage one
      Cut& cut = cuts[random() % cuts.size()];
      const size_t d = random() % shape.size();
      switch (random() % 3) {
        case 0: if (cut.offset[d] > 0) --cut.offset[d]; break;
        case 1: if (cut.size[d] > 0) --cut.size[d]; break;
        default: if (cut.offset[d] + cut.size[d] < shape[d]) ++cut.size[d];
      }
    }
    // Count. Equal boxes are replicas.
    std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return std::tie(a.offset, a.size) < std::tie(b.offset, b.size); });
    std::vector<int> times(count(shape));
    for (size_t i = 0; i < cuts.size(); ++i) {
      if (i > 0 && cuts[i].offset == cuts[i - 1].offset && cuts[i].size == cuts[i - 1].size) continue;
      for (uint64_t e = 0; e < times.size(); ++e) {
        uint64_t rest = e;
        bool inside = true;
        for (size_t d = shape.size(); d-- > 0;) {
          const auto x = static_cast<int64_t>(rest % static_cast<uint64_t>(shape[d]));
          rest /= static_cast<uint64_t>(shape[d]);
          inside &= cuts[i].offset[d] <= x && x < cuts[i].offset[d] + cuts[i].size[d];
        }
        times[e] += inside;
      }
    }
    const bool hole = std::find(times.begin(), times.end(), 0) != times.end();
    const bool overlap = std::any_of(times.begin(), times.end(), [](int n) { return n > 1; });
    std::string all;
    for (const std::string& text : texts_of(findings_of(shape, cuts))) all += text + "\n";
    EXPECT_EQ(all.find("has a hole") != std::string::npos, hole) << all;
    EXPECT_EQ(all.find("pieces overlap") != std::string::npos, overlap) << all;
    (hole || overlap ? bad : good)++;
  }
  EXPECT_GT(good, 500);
  EXPECT_GT(bad, 200);
}

TEST(Tiling, ManyPiecesOfOneTensorAreCheckedAndDiagnosed) {
  std::vector<Cut> grid;
  for (int64_t i = 0; i < 128; ++i) {
    for (int64_t j = 0; j < 128; ++j) grid.push_back({{i * 8, j * 3}, {8, 3}});
  }
  EXPECT_THAT(findings_of({1024, 384}, grid), IsEmpty());
  grid.erase(grid.begin() + 128 * 64 + 5);
  EXPECT_THAT(texts_of(findings_of({1024, 384}, grid)),
              ElementsAre("tensor has a hole: expected a piece with [512, 520) x [15, 18), found none"));
  // Bars across each other: every pair overlaps; only some are named, and quickly.
  std::vector<Cut> bars;
  for (int64_t i = 0; i < 4000; ++i) {
    bars.push_back({{i, 0}, {1, 4000}});
    bars.push_back({{0, i}, {4000, 1}});
  }
  const auto findings = findings_of({4000, 4000}, bars);
  EXPECT_GE(findings.size(), 1u);
  EXPECT_LE(findings.size(), 8u);
}

}  // namespace
}  // namespace fsdpctl
