// What ranks do when one of them fails: all end in time, and all say who it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "tests/comm/ranks.h"
#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

// One of each collective. Sizes make the large all_reduce take its two steps.
const std::vector<std::pair<std::string, std::function<void(Communicator&)>>>& all_collectives() {
  static const std::vector<std::pair<std::string, std::function<void(Communicator&)>>> all = {
      {"all_gather",
       [](Communicator& ranks) {
         std::vector<float> in(3), out(3 * static_cast<size_t>(ranks.size()));
         ranks.all_gather({DType::float32, in.data(), 3}, {DType::float32, out.data(), out.size()}, "u");
       }},
      {"reduce_scatter",
       [](Communicator& ranks) {
         std::vector<float> out(3), in(3 * static_cast<size_t>(ranks.size()));
         ranks.reduce_scatter({DType::float32, in.data(), in.size()}, {DType::float32, out.data(), 3}, "u");
       }},
      {"all_reduce",
       [](Communicator& ranks) {
         std::vector<float> data(20'000);
         ranks.all_reduce({DType::float32, data.data(), data.size()}, Reduction::sum, "u");
       }},
      {"broadcast",
       [](Communicator& ranks) {
         std::vector<float> data(3);
         ranks.broadcast({DType::float32, data.data(), 3}, 1, "u");
       }},
      {"exchange", [](Communicator& ranks) { ranks.exchange("some bytes", "u"); }},
      {"barrier", [](Communicator& ranks) { ranks.barrier("u"); }},
      {"agree", [](Communicator& ranks) { ranks.agree(error(Exit::usage, "all are wrong"), "u"); }},
  };
  return all;
}

Fault death_at(uint64_t message, const std::function<void()>& then) {
  Fault fault;
  fault.at = message;
  fault.death = [then] {
    then();
    throw Error(Exit::failed, "I die");
  };
  return fault;
}

// Each collective, each rank, each message of it: the rank dies in the middle of it.
TEST(Faults, ARankThatDiesAnywhereIsNamedByAll) {
  CommunicatorOptions options = quick();
  options.grace = Milliseconds(2);   // nobody else will write it down
  for (const auto& each : all_collectives()) {
    const std::string& name = each.first;
    const auto& collective = each.second;
    for (int dies = 0; dies < 3; ++dies) {
      for (uint64_t message = 0;; ++message) {
        bool through = false, reached = false;   // of the thread that dies
        const Fault fault = death_at(message, [&] { reached = !through; });
        const RankResults results = run_ranks(3, [&](Communicator& ranks) {
          collective(ranks);
          if (ranks.rank() == dies) through = true;
          ranks.barrier("after");   // whom the death did not concern learns of it here
        }, options, dies, fault);
        if (!reached) break;
        for (int r = 0; r < 3; ++r) {
          const auto& finding = results.findings[static_cast<size_t>(r)];
          ASSERT_TRUE(finding) << name << " rank " << r;
          if (r != dies && finding->what != "all are wrong") {
            EXPECT_EQ(finding->where.rank, dies) << name << " message " << message << ": " << Error(*finding).what();
            EXPECT_EQ(finding->code, Exit::failed);
          }
        }
      }
    }
  }
}

// A message that gets lost, or a rank that hangs before it: the others wait as long as they may, and name it.
TEST(Faults, ARankThatHangsInAnyCollectiveIsNamedByAll) {
  CommunicatorOptions options = quick();
  options.timeout = Milliseconds(300);
  options.grace = Milliseconds(300);
  int hangs = 0;
  for (const auto& each : all_collectives()) {
    if (each.first == "agree") continue;    // it is an exchange
    for (const bool lost : {true, false}) {
      std::atomic<int> ended = 0;
      Fault fault;
      fault.kind = lost ? Fault::drop : Fault::die;
      fault.death = [&] {     // hangs until the others have ended, however slow the machine
        const Deadline deadline = after(Milliseconds(20'000));
        while (ended < 2 && left_until(deadline).count() > 0) std::this_thread::sleep_for(Milliseconds(2));
        throw Error(Exit::failed, "hung long enough");
      };
      hangs = (hangs + 1) % 3;
      const RankResults results = run_ranks(3, [&](Communicator& ranks) {
        try {
          each.second(ranks);
          ranks.barrier("after");
        } catch (const Error&) {
          ++ended;
          throw;
        }
      }, options, hangs, fault);
      for (int r = 0; r < 3; ++r) {
        const auto& finding = results.findings[static_cast<size_t>(r)];
        ASSERT_TRUE(finding) << each.first;
        if (r == hangs && !lost) continue;
        EXPECT_EQ(finding->where.rank, hangs) << each.first << ": " << Error(*finding).what();
        EXPECT_EQ(finding->what, "a rank does not answer");
      }
    }
  }
}

TEST(Faults, ADelayIsNoFailure) {
  Fault fault;
  fault.kind = Fault::delay;
  fault.time = Milliseconds(30);
  fault.at = 1;
  const RankResults results = run_ranks(3, [](Communicator& ranks) { ranks.barrier("u"); }, quick(), 1, fault);
  for (const auto& finding : results.findings) EXPECT_FALSE(finding);
}

TEST(Faults, ARankThatDoesNotComeIsNamedWithTheOperation) {
  CommunicatorOptions options = quick();
  options.timeout = Milliseconds(200);
  const RankResults results = run_ranks(3, [](Communicator& ranks) {
    if (ranks.rank() == 2) {
      std::this_thread::sleep_for(Milliseconds(600));   // hangs elsewhere
    } else {
      ranks.barrier("layers.3");
    }
  }, options);
  const Finding& finding = *results.findings[0];
  EXPECT_EQ(finding.where.rank, 2);
  EXPECT_EQ(finding.expected, "barrier in layers.3 (operation 0) within 0.2 s");
  EXPECT_EQ(finding.code, Exit::failed);
  EXPECT_EQ(results.findings[1]->where.rank, 2);
}

TEST(Faults, AbortEndsWhatAllWaitFor) {
  const auto begin = steady_clock::now();
  const RankResults results = run_ranks(4, [](Communicator& ranks) {
    if (ranks.rank() == 2) {
      std::this_thread::sleep_for(Milliseconds(20));
      ranks.abort(error(Exit::damaged, "token file is cut short").at("data.bin"));
    }
    ranks.barrier("u");
  });
  EXPECT_LT(steady_clock::now() - begin, Milliseconds(5000));
  for (const auto& finding : results.findings) {
    ASSERT_TRUE(finding);
    EXPECT_EQ(Error(*finding).what(), std::string("token file is cut short (data.bin, rank 2)"));
    EXPECT_EQ(finding->code, Exit::damaged);
  }
}

TEST(Faults, AfterAFailureEveryCallThrowsItAgain) {
  run_ranks(2, [](Communicator& ranks) {
    std::vector<float> in(3), out(6);
    const auto gather = ranks.start_all_gather({DType::float32, in.data(), 3}, {DType::float32, out.data(), 6}, "u");
    if (ranks.rank() == 0) ranks.abort(error(Exit::failed, "enough"));
    EXPECT_EQ(error_of([&] { ranks.barrier("u"); }).what, "enough");
    EXPECT_EQ(error_of([&] { ranks.barrier("u"); }).what, "enough");
    EXPECT_EQ(error_of([&] { gather->wait(); }).what, "enough");
  });
}

TEST(Faults, AnOperationThatIsGivenUpFailsAll) {
  const RankResults results = run_ranks(2, [](Communicator& ranks) {
    std::vector<float> in(3), out(6);
    auto gather = ranks.start_all_gather({DType::float32, in.data(), 3}, {DType::float32, out.data(), 6}, "u");
    if (ranks.rank() == 1) gather.reset(); else gather->wait();
    ranks.barrier("u");
  });
  for (const auto& finding : results.findings) {
    ASSERT_TRUE(finding);
    EXPECT_EQ(finding->what, "a collective operation was given up");
    EXPECT_EQ(finding->where.rank, 1);
  }
}

// ---- disagreement

// Rank 2 of 4 calls `other`, the rest `usual`; what all of them then say.
Finding disagreement_of(const std::function<void(Communicator&)>& usual, const std::function<void(Communicator&)>& other) {
  const auto begin = steady_clock::now();
  const RankResults results = run_ranks(4, [&](Communicator& ranks) { (ranks.rank() == 2 ? other : usual)(ranks); });
  EXPECT_LT(steady_clock::now() - begin, Milliseconds(5000));
  for (const auto& finding : results.findings) {
    EXPECT_TRUE(finding);
    if (finding) {
      EXPECT_EQ(Error(*finding).what(), std::string(Error(*results.findings[0]).what()));
    }
  }
  EXPECT_EQ(results.findings[0]->what, "ranks disagree about a collective operation");
  EXPECT_EQ(results.findings[0]->where.rank, 2);
  return *results.findings[0];
}

std::function<void(Communicator&)> gather(uint64_t count, DType dtype, std::string unit) {
  return [=](Communicator& ranks) {
    std::vector<float> in(count), out(count * 4);
    ranks.all_gather({dtype, in.data(), count}, {dtype, out.data(), count * 4}, unit);
  };
}

TEST(Faults, DisagreementSaysWhoWantedWhat) {
  const auto usual = gather(3, DType::float32, "layers.3");
  Finding finding = disagreement_of(usual, gather(5, DType::float32, "layers.3"));
  EXPECT_EQ(finding.expected, "ranks 0, 1, 3: all_gather of 3 float32 in layers.3 (operation 0)");
  EXPECT_EQ(finding.found, "rank 2: all_gather of 5 float32 in layers.3 (operation 0)");
  EXPECT_EQ(finding.code, Exit::failed);
  finding = disagreement_of(usual, gather(3, DType::int32, "layers.3"));
  EXPECT_THAT(finding.found, HasSubstr("3 int32"));
  finding = disagreement_of(usual, gather(3, DType::float32, "layers.4"));
  EXPECT_THAT(finding.found, HasSubstr("layers.4"));
  finding = disagreement_of(usual, [](Communicator& ranks) { ranks.barrier("layers.3"); });
  EXPECT_THAT(finding.found, HasSubstr("rank 2: barrier in layers.3"));
  const std::string long_name(300, 'x');
  disagreement_of(gather(3, DType::float32, long_name + "1"), gather(3, DType::float32, long_name + "2"));
  const auto cast_to = [](int root) {
    return [root](Communicator& ranks) {
      float value = 0;
      ranks.broadcast({DType::float32, &value, 1}, root, "u");
    };
  };
  EXPECT_THAT(disagreement_of(cast_to(0), cast_to(1)).found, HasSubstr("from rank 1"));
  const auto reduce = [](Reduction reduction, size_t count) {
    return [=](Communicator& ranks) {
      std::vector<float> data(count);
      ranks.all_reduce({DType::float32, data.data(), count}, reduction, "u");
    };
  };
  EXPECT_THAT(disagreement_of(reduce(Reduction::sum, 9), reduce(Reduction::max, 9)).found, HasSubstr("all_reduce (max)"));
  disagreement_of(reduce(Reduction::sum, 9), reduce(Reduction::sum, 40'000));
}

TEST(Faults, AnEmptyUnitIsCompared) {
  disagreement_of(gather(0, DType::float32, "u"), gather(1, DType::float32, "u"));
}

// ---- faults from outside

TEST(Faults, AreReadFromText) {
  EXPECT_FALSE(parse_fault("1:7:kill", 0));
  EXPECT_EQ(parse_fault("1:7:kill", 1)->at, 7u);
  EXPECT_EQ(parse_fault("1:7:drop", 1)->kind, Fault::drop);
  EXPECT_EQ(parse_fault("1:7:delay=250", 1)->time, Milliseconds(250));
  for (const char* wrong : {"", "1", "1:2", "1:2:", "1:2:explode", "x:2:kill", "1:x:kill", "1:2:delay=", "1:2:kill:3"}) {
    EXPECT_EQ(error_of([&] { parse_fault(wrong, 0); }).code, Exit::usage) << wrong;
  }
}

}  // namespace
}  // namespace fsdpctl
