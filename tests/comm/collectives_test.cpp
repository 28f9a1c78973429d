// What each collective computes, on ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/base/cast.h"
#include "lib/comm/reduce.h"
#include "tests/comm/ranks.h"
#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

// Numbers whose sum depends on the order: exponents far apart. The same for every caller.
std::vector<float> numbers(int rank, size_t count) {
  std::vector<float> values(count);
  uint64_t state = 88172645463325252u + static_cast<uint64_t>(rank) * 7919;
  for (float& value : values) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    value = std::ldexp(static_cast<float>(state >> 40) - 8388608.0f, static_cast<int>(state % 24) - 30);
  }
  return values;
}

template <class T>
Elements in(DType dtype, const std::vector<T>& values) { return {dtype, values.data(), values.size()}; }
template <class T>
MutableElements out(DType dtype, std::vector<T>& values) { return {dtype, values.data(), values.size()}; }

std::vector<uint16_t> to_16(DType dtype, const std::vector<float>& values) {
  std::vector<uint16_t> result(values.size());
  cast(DType::float32, dtype, std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(result)));
  return result;
}
std::vector<float> from_16(DType dtype, const std::vector<uint16_t>& values) {
  std::vector<float> result(values.size());
  cast(dtype, DType::float32, std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(result)));
  return result;
}

// One after the other, by hand.
std::vector<float> sum_of(const std::vector<std::vector<float>>& all) {
  std::vector<float> sum = all[0];
  for (size_t r = 1; r < all.size(); ++r) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + all[r][i];
  }
  return sum;
}

void expect_all_well(const RankResults& results) {
  for (const auto& finding : results.findings) EXPECT_FALSE(finding) << Error(*finding).what();
}

class Collectives : public testing::TestWithParam<int> {
 protected:
  const int size = GetParam();
  const size_t ranks = static_cast<size_t>(size);
};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Range(1, 9), testing::PrintToStringParamName());

constexpr size_t kCounts[] = {0, 1, 7, 1024, 4099};

TEST_P(Collectives, AllGather) {
  expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
    for (const size_t count : kCounts) {
      std::vector<float> expected;
      for (int r = 0; r < size; ++r) {
        const auto part = numbers(r, count);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      std::vector<float> gathered(ranks * count);
      ranks_.all_gather(in(DType::float32, numbers(ranks_.rank(), count)), out(DType::float32, gathered), "unit");
      EXPECT_EQ(gathered, expected);
      // In place: the input is its own part of the output.
      std::vector<float> own(ranks * count);
      float* const mine = own.data() + static_cast<size_t>(ranks_.rank()) * count;
      const auto part = numbers(ranks_.rank(), count);
      if (count) std::memcpy(mine, part.data(), count * sizeof(float));
      ranks_.all_gather({DType::float32, mine, count}, out(DType::float32, own), "unit");
      EXPECT_EQ(own, expected);
    }
  }));
}

TEST_P(Collectives, ReduceScatterSumsInRankOrder) {
  expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
    for (const size_t count : kCounts) {
      std::vector<std::vector<float>> all;
      for (int r = 0; r < size; ++r) all.push_back(numbers(r, ranks * count));
      const std::vector<float> sums = sum_of(all);
      const auto mine = sums.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(ranks_.rank()) * count);
      std::vector<float> result(count);
      ranks_.reduce_scatter(in(DType::float32, all[static_cast<size_t>(ranks_.rank())]), out(DType::float32, result), "unit");
      EXPECT_EQ(result, std::vector<float>(mine, mine + static_cast<std::ptrdiff_t>(count)));
    }
  }));
}

TEST_P(Collectives, ReduceScatterOf16BitsSumsInFloat32) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
      const size_t count = 1500;
      std::vector<std::vector<float>> all;
      for (int r = 0; r < size; ++r) all.push_back(from_16(dtype, to_16(dtype, numbers(r, ranks * count))));
      const std::vector<float> sums = sum_of(all);
      const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(ranks_.rank()) * count);
      const std::vector<float> expected(begin, begin + static_cast<std::ptrdiff_t>(count));
      const auto mine = to_16(dtype, all[static_cast<size_t>(ranks_.rank())]);
      std::vector<float> wide(count);
      ranks_.reduce_scatter(in(dtype, mine), out(DType::float32, wide), "unit");
      EXPECT_EQ(wide, expected);
      std::vector<uint16_t> narrow(count);
      ranks_.reduce_scatter(in(dtype, mine), out(dtype, narrow), "unit");
      EXPECT_EQ(narrow, to_16(dtype, expected));
    }));
  }
}

TEST_P(Collectives, AllReduceIsTheSameSmallOrLarge) {
  expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{100}, size_t{20'003}, size_t{20'008}}) {
      std::vector<std::vector<float>> all;
      for (int r = 0; r < size; ++r) all.push_back(numbers(r, count));
      std::vector<float> data = all[static_cast<size_t>(ranks_.rank())];
      ranks_.all_reduce(out(DType::float32, data), Reduction::sum, "unit");
      EXPECT_EQ(data, sum_of(all));
    }
  }));
}

TEST_P(Collectives, AllReduceOfEveryKind) {
  expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
    const int rank = ranks_.rank();
    const double n = size;
    std::vector<double> doubles = {1.0 + rank, std::ldexp(1.0, 60)};
    ranks_.all_reduce(out(DType::float64, doubles), Reduction::sum, "norm");
    EXPECT_EQ(doubles, (std::vector<double>{n * (n + 1) / 2, n * std::ldexp(1.0, 60)}));
    std::vector<float> floats = {static_cast<float>(rank), rank == size - 1 ? std::nanf("") : 1.0f};
    ranks_.all_reduce(out(DType::float32, floats), Reduction::max, "u");
    EXPECT_EQ(floats[0], static_cast<float>(size - 1));
    EXPECT_TRUE(std::isnan(floats[1]));
    std::vector<float> least = {static_cast<float>(rank), rank == 0 ? std::nanf("") : 1.0f};
    ranks_.all_reduce(out(DType::float32, least), Reduction::min, "u");
    EXPECT_EQ(least[0], 0.0f);
    EXPECT_TRUE(std::isnan(least[1]));
    std::vector<int64_t> integers = {rank, -rank};
    ranks_.all_reduce(out(DType::int64, integers), Reduction::min, "u");
    EXPECT_EQ(integers, (std::vector<int64_t>{0, 1 - size}));
    std::vector<uint8_t> bits = {static_cast<uint8_t>(1 << rank)};
    ranks_.all_reduce(out(DType::uint8, bits), Reduction::bit_or, "u");
    EXPECT_EQ(bits[0], (1 << size) - 1);
    std::vector<uint16_t> halves(40'000, to_16(DType::bfloat16, {1.0f})[0]);
    ranks_.all_reduce(out(DType::bfloat16, halves), Reduction::sum, "u");
    EXPECT_EQ(halves, std::vector<uint16_t>(40'000, to_16(DType::bfloat16, {static_cast<float>(size)})[0]));
  }));
}

TEST_P(Collectives, BroadcastExchangeBarrierAgree) {
  expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
    for (int root = 0; root < size; ++root) {
      std::vector<float> data = numbers(ranks_.rank(), 33);
      ranks_.broadcast(out(DType::float32, data), root, "unit");
      EXPECT_EQ(data, numbers(root, 33));
    }
    const auto text = [](int r) { return std::string(static_cast<size_t>(r) * 1000, static_cast<char>('a' + r)); };
    const std::vector<std::string> all = ranks_.exchange(text(ranks_.rank()), "names");
    for (int r = 0; r < size; ++r) EXPECT_EQ(all[static_cast<size_t>(r)], text(r));
    ranks_.barrier("here");
    ranks_.agree(std::nullopt, "load");
    ranks_.close();
  }));
}

TEST_P(Collectives, AgreeThrowsTheLowestRanksErrorEverywhereAndGoesOn) {
  expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
    std::optional<Finding> mine;
    if (ranks_.rank() >= size / 2) mine = error(Exit::damaged, "short file").at("part-" + std::to_string(ranks_.rank()));
    const Finding finding = error_of([&] { ranks_.agree(mine, "load"); });
    EXPECT_EQ(finding.what, "short file");
    EXPECT_EQ(finding.where.rank, size / 2);
    EXPECT_EQ(finding.where.path, "part-" + std::to_string(size / 2));
    EXPECT_EQ(finding.code, Exit::damaged);
    ranks_.barrier("still usable");
  }));
}

TEST_P(Collectives, StartedOperationsMayOverlap) {
  expect_all_well(run_ranks(size, [&](Communicator& ranks_) {
    const size_t count = 500;
    const auto mine = numbers(ranks_.rank(), count), grads = numbers(ranks_.rank() + 100, ranks * count);
    std::vector<std::vector<float>> gathered(3, std::vector<float>(ranks * count));
    std::vector<float> reduced(count);
    std::vector<std::unique_ptr<Pending>> pending;
    for (auto& one : gathered) pending.push_back(ranks_.start_all_gather(in(DType::float32, mine), out(DType::float32, one), "u"));
    pending.push_back(ranks_.start_reduce_scatter(in(DType::float32, grads), out(DType::float32, reduced), "u"));
    ranks_.barrier("meanwhile");
    for (auto one = pending.rbegin(); one != pending.rend(); ++one) (*one)->wait();   // in any order
    for (const auto& one : gathered) {
      EXPECT_EQ(std::memcmp(one.data() + static_cast<size_t>(ranks_.rank()) * count, mine.data(), count * 4), 0);
    }
    EXPECT_EQ(gathered[0], gathered[2]);
  }));
}

TEST(Communicator, RefusesImpossibleArguments) {
  run_ranks(2, [](Communicator& ranks) {
    std::vector<float> two(2), three(3);
    std::vector<int64_t> integers(2);
    const auto code = [](const Finding& finding) { return finding.code; };
    EXPECT_EQ(code(error_of([&] { ranks.all_gather(in(DType::float32, two), out(DType::float32, three), "u"); })), Exit::usage);
    EXPECT_EQ(code(error_of([&] { ranks.reduce_scatter(in(DType::int64, integers), out(DType::int64, integers), "u"); })),
              Exit::usage);
    EXPECT_EQ(code(error_of([&] { ranks.reduce_scatter(in(DType::float32, three), out(DType::float32, two), "u"); })),
              Exit::usage);
    EXPECT_EQ(code(error_of([&] { ranks.all_reduce(out(DType::float32, two), Reduction::bit_or, "u"); })), Exit::usage);
    EXPECT_EQ(code(error_of([&] { ranks.broadcast(out(DType::float32, two), 2, "u"); })), Exit::usage);
    ranks.barrier("nothing was sent");
  });
}

}  // namespace
}  // namespace fsdpctl
