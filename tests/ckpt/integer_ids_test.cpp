#include "lib/ckpt/integer_ids.h"

#include <gtest/gtest.h>

#include "tests/support/made_checkpoint.h"

namespace fsdpctl {
namespace {

Value ints(std::vector<int64_t> numbers) {
  std::vector<Value> items;
  for (const int64_t n : numbers) items.push_back(Value::integer(n));
  return list(std::move(items));
}

Value optimizer(std::vector<Entry> state, Value params) {
  return dict({{"state", Value::mapping(Kind::dict, std::move(state))}, {"param_groups", list({dict({{"lr", Value::real(1)}, {"params", std::move(params)}})})}});
}

Entry entry(Value key, double value = 1) { return {std::move(key), dict({{"step", Value::real(value)}})}; }

struct Result {
  std::vector<Change> changes;
  std::string kinds;   // of the state's keys
};

Result convert(const Value& optim) {
  MadeCheckpoint made;
  made.checkpoint.tree = dict({{"step", Value::integer(3)}, {"optim", list({optim})}});
  FindingSink sink;
  made.checkpoint.finish(sink);
  Result result;
  const Checkpoint out = with_integer_ids(made.checkpoint, result.changes);
  EXPECT_EQ(out.tree.find("step")->as_integer(), 3);
  const Value* state = out.tree.find("optim")->items()[0].find("state");
  for (const Entry& e : state->entries()) {
    result.kinds += e.key.is(Kind::integer) ? 'i' : 's';
    EXPECT_TRUE(e.value.is_mapping());
  }
  // The source is not touched.
  EXPECT_EQ(made.checkpoint.tree.find("optim")->items()[0].identity(), optim.identity());
  return result;
}

TEST(IntegerIds, ComeBackAsParamsNamesThem) {
  const Result result = convert(optimizer({entry(Value::string("0")), entry(Value::string("11")), entry(Value::integer(2))}, ints({0, 2, 11, 5})));
  EXPECT_EQ(result.kinds, "iii");
  ASSERT_EQ(result.changes.size(), 1u);
  EXPECT_EQ(result.changes[0].kind, "key");
  EXPECT_EQ(result.changes[0].key, "optim.0.state");
}

TEST(IntegerIds, StayWhereParamsDoNotNameThemAll) {
  const struct {
    const char* name;
    Value optim;
    const char* kinds;
  } cases[] = {
      {"an unknown id", optimizer({entry(Value::string("0")), entry(Value::string("7"))}, ints({0, 1})), "ss"},
      {"another form of a number", optimizer({entry(Value::string("00"))}, ints({0})), "s"},
      {"names", optimizer({entry(Value::string("0"))}, names({"0"})), "s"},
      {"both kinds of one id", optimizer({entry(Value::string("0")), entry(Value::integer(0))}, ints({0})), "si"},
      {"integers already", optimizer({entry(Value::integer(0))}, ints({0})), "i"},
      {"no state", optimizer({}, ints({0})), ""},
  };
  for (const auto& each : cases) {
    const Result result = convert(each.optim);
    EXPECT_EQ(result.kinds, each.kinds) << each.name;
    EXPECT_TRUE(result.changes.empty()) << each.name;
  }
}

}  // namespace
}  // namespace fsdpctl
