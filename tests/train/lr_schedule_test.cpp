#include "lib/train/lr_schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/error_of.h"

namespace fsdpctl::train {
namespace {

std::vector<double> rates(const LrScheduleOptions& options, double base, int steps) {
  LrSchedule schedule(options);
  std::vector<double> all;
  for (int i = 0; i < steps; ++i, schedule.advance()) all.push_back(schedule.lr(base));
  return all;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-15) << i;
}

using Kind = LrScheduleOptions::Kind;

TEST(LrSchedule, Constant) {
  expect_near(rates({Kind::constant, 0, 0, 0}, 0.5, 3), {0.5, 0.5, 0.5});
  expect_near(rates({Kind::constant, 4, 0, 0}, 0.5, 6), {0.125, 0.25, 0.375, 0.5, 0.5, 0.5});
}

TEST(LrSchedule, Linear) {
  expect_near(rates({Kind::linear, 0, 4, 0.1}, 0.5, 6), {0.5, 0.4, 0.3, 0.2, 0.1, 0.1});
  expect_near(rates({Kind::linear, 2, 6, 0}, 1, 8), {0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0});
}

TEST(LrSchedule, Cosine) {
  const double root = 0.7071067811865476;
  expect_near(rates({Kind::cosine, 0, 4, 0.2}, 1, 6), {1, 0.6 + 0.4 * root, 0.6, 0.6 - 0.4 * root, 0.2, 0.2});
  expect_near(rates({Kind::cosine, 1, 3, 0}, 1, 5), {1, 1, 0.5, 0, 0});
}

TEST(LrSchedule, AGroupBelowMinLrKeepsItsOwn) { expect_near(rates({Kind::linear, 0, 2, 0.1}, 0.05, 3), {0.05, 0.05, 0.05}); }

TEST(LrSchedule, GoesOnWhereItWas) {
  LrSchedule all({Kind::cosine, 3, 20, 1e-5}), resumed({Kind::cosine, 3, 20, 1e-5});
  for (int i = 0; i < 11; ++i) all.advance();
  resumed.restore(11);
  EXPECT_EQ(resumed.lr(3e-4), all.lr(3e-4));
}

TEST(LrSchedule, ImpossibleOptionsAreNamed) {
  const auto key_of = [](const LrScheduleOptions& options) { return error_of([&] { LrSchedule schedule(options); }).where.key; };
  EXPECT_EQ(key_of({Kind::linear, 0, 0, 0}), "total_steps");
  EXPECT_EQ(key_of({Kind::cosine, 10, 10, 0}), "total_steps");
  EXPECT_EQ(key_of({Kind::cosine, 0, 10, -1}), "min_lr");
}

}  // namespace
}  // namespace fsdpctl::train
