#include "lib/base/value_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "lib/base/utf8.h"
#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

using testing::HasSubstr;

Value str(std::string_view s) { return Value::string(s); }
Value num(int64_t i) { return Value::integer(i); }
Value seq(Kind kind, std::vector<Value> items) { return Value::sequence(kind, std::move(items)); }

std::string shown(const Value& v) { return value_to_json(v, JsonForm::shown); }
std::string canonical(const Value& v) { return value_to_json(v, JsonForm::canonical); }
std::string stored(const Value& v) { return value_to_json(v, JsonForm::stored); }

Value numpy_array(std::string dtype, std::vector<int64_t> shape, bool fortran, std::string raw) {
  auto* node = new NumpyArrayNode;
  node->dtype = std::move(dtype);
  node->shape = std::move(shape);
  node->fortran = fortran;
  node->raw = std::move(raw);
  return Value::adopt(node);
}

Value thing() {
  auto* node = new ObjectNode;
  node->how = ObjectNode::How::reduce;
  node->callable = Value::global("mine", "Thing");
  node->args = seq(Kind::tuple, {num(1)});
  node->kwargs = Value::mapping(Kind::dict, {{str("k"), Value()}});
  node->state = Value::mapping(Kind::dict, {{str("w"), Value::tensor(TensorLeaf{3, true, true})}});
  node->has_state = true;
  node->items = {str("item")};
  node->entries = {{num(1), num(2)}};
  return Value::adopt(node);
}

// Expected texts: json.dumps(fxcontent.json_value(...), separators=(",", ":"), ensure_ascii=False) of the fixtures' generator.
TEST(ValueJson, ShowsPlainKindsAsTheFixturesDo) {
  EXPECT_EQ(shown(Value()), "null");
  EXPECT_EQ(shown(Value::boolean(true)), "true");
  EXPECT_EQ(shown(num(-5)), "-5");
  EXPECT_EQ(shown(num(9007199254740991)), "9007199254740991");
  EXPECT_EQ(shown(num(-9007199254740992)), R"({"int":"-9007199254740992"})");
  EXPECT_EQ(shown(num(std::numeric_limits<int64_t>::min())), R"({"int":"-9223372036854775808"})");
  EXPECT_EQ(shown(Value::big_integer("9223372036854775808")), R"({"int":"9223372036854775808"})");
  EXPECT_EQ(shown(Value::real(1)), "1.0");
  EXPECT_EQ(shown(Value::real(-0.0)), "-0.0");
  EXPECT_EQ(shown(Value::real(1e-5)), "1e-05");
  EXPECT_EQ(shown(Value::real(1e16)), "1e+16");
  EXPECT_EQ(shown(Value::real(0.1)), "0.1");
  EXPECT_EQ(shown(Value::real(std::numeric_limits<double>::quiet_NaN())), R"({"float":"nan"})");
  EXPECT_EQ(shown(Value::real(-std::numeric_limits<double>::infinity())), R"({"float":"-inf"})");
  EXPECT_EQ(shown(Value::complex(1.5, std::numeric_limits<double>::infinity())), R"({"complex":[1.5,{"float":"inf"}]})");
  EXPECT_EQ(shown(str("a\"\\\n\x01\xC3\xA9")), "\"a\\\"\\\\\\u000a\\u0001\xC3\xA9\"");
  EXPECT_EQ(shown(str("\xED\xA0\x80")), R"({"str_surrogatepass_hex":"eda080"})");
  EXPECT_EQ(shown(Value::bytes(std::string_view("\0\xff", 2))), R"({"bytes":"00ff"})");
  EXPECT_EQ(shown(Value::bytearray("abc")), R"({"bytearray":"616263"})");
}

TEST(ValueJson, ShowsContainersAndConstantsAsTheFixturesDo) {
  EXPECT_EQ(shown(seq(Kind::list, {num(1), seq(Kind::tuple, {str("x")})})), R"([1,{"tuple":["x"]}])");
  EXPECT_EQ(shown(seq(Kind::size, {num(1), num(int64_t{1} << 60)})), R"({"torch.Size":[1,1152921504606846976]})");
  EXPECT_EQ(shown(Value::mapping(Kind::dict)), R"({"dict":[]})");
  EXPECT_EQ(shown(Value::mapping(Kind::ordered_dict, {{num(0), str("v")}})), R"({"dict":[[0,"v"]]})");
  EXPECT_EQ(shown(Value::mapping(Kind::counter, {{str("h"), num(1)}})), R"({"counter":[["h",1]]})");
  EXPECT_EQ(shown(Value::constant(Kind::dtype, "torch.float32")), R"({"torch":"torch.float32"})");
  EXPECT_EQ(shown(Value::constant(Kind::device, "cuda:0")), R"({"torch":"cuda:0"})");
  EXPECT_EQ(shown(thing()), R"({"object":"mine.Thing"})");
  EXPECT_EQ(shown(Value::numpy_scalar("int64", std::string("\xf9\xff\xff\xff\xff\xff\xff\xff"))),
            R"({"numpy_scalar":["int64","f9ffffffffffffff"]})");
}

// Python: hashlib.sha256(np.arange(6, dtype="u1").reshape(2, 3).tobytes()), and of its Fortran copy (the same).
TEST(ValueJson, HashesArraysInRowMajorOrder) {
  const std::string expected =
      R"({"numpy_array":["uint8",[2,3],"17e88db187afd62c16e5debf3e6527cd006bc012bc90b51a810cd80c2d511f43"]})";
  EXPECT_EQ(shown(numpy_array("uint8", {2, 3}, false, std::string("\0\1\2\3\4\5", 6))), expected);
  EXPECT_EQ(shown(numpy_array("uint8", {2, 3}, true, std::string("\0\3\1\4\2\5", 6))), expected);
  EXPECT_EQ(canonical(numpy_array("uint8", {2, 3}, true, std::string("\0\3\1\4\2\5", 6))), expected);
}

TEST(ValueJson, SortsSetsAsThePythonGeneratorDoes) {
  const Value mixed = seq(Kind::set, {str("b"), num(10), num(9), Value(), Value::real(2.5), str("a'"), Value::boolean(true),
                                      seq(Kind::tuple, {str("y"), num(1)}), seq(Kind::tuple, {str("x"), Value()}),
                                      Value::bytes("z"), seq(Kind::frozenset, {num(2), num(1)})});
  EXPECT_EQ(shown(mixed),
            R"({"set":[null,true,{"bytes":"7a"},{"frozenset":[1,2]},{"tuple":["x",null]},{"tuple":["y",1]},2.5,10,9,"a'","b"]})");
}

TEST(ValueJson, SetsInSetsCostNoMoreThanTheirDepth) {
  Value nested = seq(Kind::frozenset, {num(1), num(2)});
  for (int i = 0; i < 300; ++i) nested = seq(Kind::frozenset, {nested, num(i)});
  EXPECT_GT(shown(nested).size(), 300u);
}

TEST(ValueJson, CanonicalCarriesWhatShownLeavesOut) {
  const double odd_nan = std::bit_cast<double>(uint64_t{0x7ff8000000000001});
  EXPECT_EQ(shown(Value::real(odd_nan)), R"({"float":"nan"})");
  EXPECT_EQ(canonical(Value::real(odd_nan)), R"({"float_bits":"7ff8000000000001"})");
  Value ordered = Value::mapping(Kind::ordered_dict);
  ordered.mutable_node<MappingNode>().attributes = Value::mapping(Kind::dict, {{str("_metadata"), num(1)}});
  EXPECT_EQ(canonical(ordered), R"({"ordered_dict":[],"attributes":{"dict":[["_metadata",1]]}})");
  EXPECT_EQ(canonical(thing()),
            R"({"object":["reduce",{"global":["mine","Thing"]},{"tuple":[1]},{"dict":[["k",null]]},["item"],[[1,2]],)"
            R"({"dict":[["w",{"tensor":3,"parameter":true,"requires_grad":true}]]}]})");
  EXPECT_EQ(canonical(seq(Kind::set, {num(2), num(1)})), R"({"set":[1,2]})");
  EXPECT_EQ(stored(seq(Kind::set, {num(2), num(1)})), R"({"set":[2,1]})");
}

// A random value of every kind.
class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  Value make(int depth) {
    switch (random_() % (depth > 0 ? 25 : 15)) {
      case 0: return Value();
      case 1: return Value::boolean(random_() & 1);
      case 2: return num(static_cast<int64_t>(random_()) >> (random_() % 64));
      case 3: return Value::big_integer("-123456789012345678901234567890");
      case 4: return Value::real(std::bit_cast<double>(random_()));
      case 5: return Value::complex(std::bit_cast<double>(random_()), 0.5);
      case 6: return str(text());
      case 7: return Value::bytes(raw());
      case 8: return Value::bytearray(raw());
      case 9: return Value::constant(static_cast<Kind>(static_cast<int>(Kind::dtype) + static_cast<int>(random_() % 5)), "torch.x");
      case 10: return Value::numpy_scalar("float64", raw());
      case 11: return numpy_array("<U3", {2, 3}, random_() & 1, std::string(6 * 12, 'u'));
      case 12: return Value::tensor(TensorLeaf{static_cast<TensorIndex>(random_() % 1000), (random_() & 1) != 0, (random_() & 1) != 0});
      case 13: return Value::storage(7, "torch.QInt8Storage");
      case 14: return Value::global("module", text());
      case 15: case 16: return seq(Kind::list, items(depth));
      case 17: return seq(Kind::tuple, items(depth));
      case 18: return seq(random_() & 1 ? Kind::set : Kind::frozenset, items(depth));
      case 19: return seq(Kind::size, {num(1), num(int64_t{1} << 60)});
      case 20: return Value::tensor(TensorLeaf{1, true, false}, Value::mapping(Kind::dict, entries(depth)));
      case 21: return object(depth);
      default: return mapping(depth);
    }
  }

 private:
  std::string raw() {
    std::string bytes(random_() % 5, '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    return bytes;
  }
  std::string text() {
    constexpr std::string_view kTexts[] = {"", "plain", "quote\"back\\slash", "\n\t\x01", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xED\xA0\x80"};
    return std::string(kTexts[random_() % std::size(kTexts)]);
  }
  std::vector<Value> items(int depth) {
    std::vector<Value> list;
    for (uint64_t n = random_() % 4; n > 0; --n) list.push_back(make(depth - 1));
    return list;
  }
  std::vector<Entry> entries(int depth) {
    std::vector<Entry> list;
    for (uint64_t n = random_() % 4; n > 0; --n) list.push_back({seq(Kind::tuple, {num(static_cast<int64_t>(list.size())), make(0)}), make(depth - 1)});   // keys differ
    return list;
  }
  Value mapping(int depth) {
    constexpr Kind kKinds[] = {Kind::dict, Kind::ordered_dict, Kind::counter, Kind::default_dict};
    Value v = Value::mapping(kKinds[random_() % std::size(kKinds)], entries(depth));
    if (random_() & 1) v.mutable_node<MappingNode>().attributes = make(depth - 1);
    return v;
  }
  Value object(int depth) {
    auto* node = new ObjectNode;
    Value v = Value::adopt(node);
    node->how = random_() & 1 ? ObjectNode::How::reduce : ObjectNode::How::newobj;
    node->callable = make(depth - 1);
    node->args = seq(Kind::tuple, items(depth));
    if (random_() & 1) node->kwargs = mapping(depth - 1);
    node->has_state = random_() & 1;
    if (node->has_state) node->state = make(depth - 1);
    node->items = items(depth);
    node->entries = entries(depth);
    return v;
  }
  std::mt19937_64 random_;
};

TEST(ValueJson, StoredReadsBackToAnEqualValue) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Value v = Maker(seed).make(4);
    const std::string text = stored(v);
    const Value back = value_from_json(text, "f");
    ASSERT_TRUE(equal(v, back)) << seed << "\n" << text << "\n" << stored(back);
  }
}

TEST(ValueJson, DeepValuesReadBackUpToThePicklesLimit) {
  const auto nested = [](int depth) {
    Value v;
    for (int i = 0; i < depth; ++i) v = Value::mapping(Kind::dict, {{num(1), v}});
    return v;
  };
  EXPECT_TRUE(equal(value_from_json(stored(nested(1000)), "f"), nested(1000)));
  EXPECT_EQ(error_of([&] { value_from_json(stored(nested(1001)), "f"); }).found, "values are nested too deeply");
  EXPECT_EQ(error_of([&] { value_from_json(std::string(1'000'000, '['), "f"); }).found, "values are nested too deeply");
}

TEST(ValueJson, WhatIsNoStoredValueIsDamage) {
  for (const char* text : {
           "", "{", "[1", "1 2", "nul", "{}", R"({"what":1})", R"({"int":1})", R"({"int":""})", R"({"int":"-"})", R"({"int":"1x"})",
           R"({"float":"1"})", R"({"float_bits":"12"})", R"({"complex":[1,2]})", R"({"complex":[1.0]})", R"({"bytes":"0"})",
           R"({"bytes":"0g"})", R"({"bytes":"AB"})", R"({"tuple":1})", R"({"torch.Size":["a"]})", R"({"dict":[[1]]})",
           R"({"dict":[1]})", R"({"tuple":[],"dict":[]})", R"({"tuple":[],"tuple":[]})", R"({"dict":[],"parameter":true})",
           R"({"tensor":-1})", R"({"tensor":4294967295})", R"({"tensor":1,"parameter":false})", R"({"tensor":1,"attributes":1})",
           R"({"storage":[1]})", R"({"global":["a"]})", R"({"global":["a",1]})", R"({"object":["newobj",1,2,3,[],[]]})",
           R"({"object":["call",null,{"tuple":[]},null,[],[]]})", R"({"object":"x"})", R"({"torch":"torch.float32"})",
           R"({"str_surrogatepass_hex":"ff"})", R"({"numpy_array":["u1",[2],"C","00"],"x":1})", R"({"numpy_array":["u1",[3],"C","0000"]})",
           R"({"numpy_array":["u1",[-1],"C",""]})", R"({"numpy_array":["u1",[4611686018427387904,4611686018427387904],"C",""]})",
           R"({"numpy_array":["u1",[0],"C","00"]})", R"({"numpy_array":["u1",[],"X",""]})", "99999999999999999999", "\"\\ud800\"", "\"\xff\"", "1e999"}) {
    const Finding f = error_of([&] { value_from_json(text, "file"); });
    EXPECT_EQ(f.code, Exit::damaged) << text;
    EXPECT_EQ(f.where.path, "file") << text;
  }
  EXPECT_EQ(error_of([&] { value_from_json("[1,}", "f"); }).where.offset, 4u);
}

TEST(ValueJson, KeysAreThereOnce) {
  for (const char* text : {R"({"dict":[["a",1],["b",2],["a",3]]})", R"({"ordered_dict":[[1,1],[1,2]]})",
                           R"({"dict":[[{"tuple":[1,"x"]},1],[{"tuple":[1,"x"]},2]]})", R"({"dict":[["k",{"dict":[["a",1],["a",1]]}]]})"}) {
    EXPECT_EQ(error_of([&] { value_from_json(text, "file"); }).code, Exit::damaged) << text;
  }
  EXPECT_EQ(value_from_json(R"({"dict":[["1",1],[1,2],[{"bytes":"31"},3]]})", "file").entries().size(), 3u);
}

TEST(ValueJson, PiecesAreTheWholeText) {
  const Value big = Value::bytes(std::string(300'000, 'b')), text = str(std::string(100'000, 's'));
  const Value value = seq(Kind::list, {big, text, num(1), seq(Kind::set, {str("b"), str("a")}), seq(Kind::tuple, {big, thing()})});
  for (const JsonForm form : {JsonForm::shown, JsonForm::canonical, JsonForm::stored}) {
    std::string whole;
    size_t pieces = 0, longest = 0;
    value_json_in_pieces(value, form, [&](std::string_view piece) {
      whole += piece;
      longest = std::max(longest, piece.size());
      ++pieces;
    });
    EXPECT_EQ(whole, value_to_json(value, form));
    EXPECT_EQ(whole.size(), value_json_size(value, form));
    EXPECT_GT(pieces, 6u);
    EXPECT_LT(longest, 400'000u);
  }
}

TEST(Utf8, AcceptsWhatPythonAccepts) {
  EXPECT_TRUE(is_utf8("plain text that is longer than a word of eight"));
  EXPECT_TRUE(is_utf8("\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"));
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2 ", "\xE0\x80\x80", "\xE2\x82", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80",
                          "\xF5\x80\x80\x80", "\xFF", "12345678\xFF"}) {
    EXPECT_FALSE(is_utf8(bad, true)) << bad;
  }
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));
  EXPECT_TRUE(is_utf8("\xED\xA0\x80", true));
}

}  // namespace
}  // namespace fsdpctl
