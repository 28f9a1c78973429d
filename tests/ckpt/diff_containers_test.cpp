#include "lib/ckpt/diff_containers.h"

#include <gtest/gtest.h>

namespace fsdpctl {
namespace {

Value text(std::string_view s) { return Value::string(s); }
Value number(int64_t n) { return Value::integer(n); }
Value numbers(Kind kind) { return Value::sequence(kind, {number(1), number(2)}); }

TEST(DiffContainers, ContentIsWhatThePathsName) {
  const Value list = numbers(Kind::list), tuple = numbers(Kind::tuple);
  EXPECT_TRUE(same_content(list, tuple));
  EXPECT_TRUE(same_content(numbers(Kind::size), tuple));
  EXPECT_FALSE(same_content(list, Value::sequence(Kind::list, {number(2), number(1)})));
  EXPECT_FALSE(same_content(list, Value::sequence(Kind::list, {number(1)})));
  EXPECT_FALSE(same_content(list, numbers(Kind::set)));

  const Value dict = Value::mapping(Kind::dict, {{text("a"), list}, {text("0"), number(3)}});
  const Value counter = Value::mapping(Kind::counter, {{number(0), number(3)}, {text("a"), tuple}});   // another order, too
  EXPECT_TRUE(same_content(dict, counter));
  EXPECT_FALSE(same_content(dict, Value::mapping(Kind::dict, {{text("a"), list}})));
  EXPECT_FALSE(same_content(dict, Value::mapping(Kind::dict, {{text("a"), list}, {text("1"), number(3)}})));
  EXPECT_FALSE(same_content(dict, Value::mapping(Kind::dict, {{text("a"), list}, {text("0"), number(4)}})));
  EXPECT_FALSE(same_content(Value::mapping(Kind::dict), Value::sequence(Kind::list, {})));
  EXPECT_FALSE(same_content(number(1), Value::real(1)));
}

TEST(DiffContainers, ClassesAndKindsOfKeysAreListedByPath) {
  const Value a = Value::mapping(Kind::dict, {{text("state"), Value::mapping(Kind::ordered_dict, {{number(0), numbers(Kind::tuple)}})},
                                              {text("only in a"), numbers(Kind::list)},
                                              {text("same"), numbers(Kind::list)}});
  const Value b = Value::mapping(Kind::dict, {{text("same"), numbers(Kind::list)},
                                              {text("state"), Value::mapping(Kind::dict, {{text("0"), numbers(Kind::list)}})}});
  const std::vector<ContainerChange> changes = compare_containers(a, b);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].key, "state");
  EXPECT_EQ(changes[0].a, "OrderedDict, some keys no strings");
  EXPECT_EQ(changes[0].b, "dict");
  EXPECT_EQ(changes[1].key, "state.0");
  EXPECT_EQ(changes[1].a, "tuple");
  EXPECT_EQ(changes[1].b, "list");
  EXPECT_TRUE(compare_containers(a, a).empty());
}

}  // namespace
}  // namespace fsdpctl
