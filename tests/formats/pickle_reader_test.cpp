// The pickle machine: what each opcode gives, what real pickles hold, and what no reader may accept.
#include "formats/codec/pickle_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/value_json.h"
#include "tests/support/error_of.h"
#include "tests/support/pickles.h"

namespace fsdpctl {
namespace {

using namespace std::string_literals;

Value read(const std::string& stream, const PickleLimits& limits = {}) {
  PickleHandler plain;
  FindingSink sink;
  return read_pickle(std::as_bytes(std::span(stream)), plain, "x.pkl", 0, sink, limits).value;
}

std::string shown(const std::string& stream) { return value_to_json(read(stream), JsonForm::shown); }

Finding refusal(const std::string& stream, const PickleLimits& limits = {}) {
  Finding finding = error_of([&] { read(stream, limits); });
  EXPECT_EQ(finding.where.path, "x.pkl");
  EXPECT_TRUE(finding.where.offset.has_value()) << finding.what;
  return finding;
}

Exit code_of(const std::string& stream, const PickleLimits& limits = {}) { return refusal(stream, limits).code; }

// ---- values

TEST(PickleReader, EveryProtocolGivesTheSameValue) {
  const auto pickles = protocol_pickles();
  ASSERT_EQ(pickles.size(), 6u);
  StorageIds ids;
  const Value first = read_pickle_of(pickles[0], ids);
  for (size_t i = 0; i < pickles.size(); ++i) {
    FindingSink sink;
    const PickleResult r = read_pickle(std::as_bytes(std::span(pickles[i].bytes)), ids, "x.pkl", 0, sink);
    EXPECT_EQ(value_to_json(r.value, JsonForm::stored), value_to_json(first, JsonForm::stored)) << pickles[i].name;
    EXPECT_TRUE(equal(r.value, first)) << pickles[i].name;
    EXPECT_EQ(r.protocol, i < 2 ? 0 : static_cast<int>(i));   // protocols 0 and 1 do not say
    EXPECT_EQ(r.consumed, pickles[i].bytes.size());
    EXPECT_TRUE(sink.all().empty()) << pickles[i].name << ": " << sink.all().front().what;
    const auto& alias = r.value.find("alias")->items();
    EXPECT_EQ(alias[0].identity(), alias[1].identity()) << pickles[i].name;
  }
}

struct Row {
  const char* name;
  std::string stream;
  std::string json;
};

class PickleValues : public testing::TestWithParam<Row> {};

TEST_P(PickleValues, AreRead) { EXPECT_EQ(shown(GetParam().stream), GetParam().json); }

INSTANTIATE_TEST_SUITE_P(
    Opcodes, PickleValues,
    testing::Values(
        Row{"Int1", "\x80\x02K\xff."s, "255"}, Row{"Int2", "M\xff\xff."s, "65535"},
        Row{"Int4", "J\xfe\xff\xff\xff."s, "-2"}, Row{"Long1Empty", "\x8a\x00."s, "0"},
        Row{"Long1", "\x8a\x01\x80."s, "-128"}, Row{"Long1Padded", "\x8a\x09\x05\0\0\0\0\0\0\0\0."s, "5"},
        Row{"Long4", "\x8b\x02\0\0\0\0\xff."s, "-256"}, Row{"IntLine", "I-12\n."s, "-12"},
        Row{"LongLine", "L7L\n."s, "7"}, Row{"BoolLine", "(I00\nI01\nl."s, "[false,true]"},
        Row{"FloatLine", "F1.5\n."s, "1.5"}, Row{"FloatNan", "Fnan\n."s, R"({"float":"nan"})"},
        Row{"StringLine", "S'a\\'\\n\\x41\\101'\n."s, R"("a'\u000aAA")"}, Row{"StringPython2", "U\x02\xc3\xbc."s, "\"\xc3\xbc\""},
        Row{"BytesPython2", "U\x02\xff\x00."s, R"({"bytes":"ff00"})"}, Row{"UnicodeLine", "Va\\u0041\\\\u0041\n."s, R"("aA\\\\u0041")"},
        Row{"Unicode8", "\x8d\x01\0\0\0\0\0\0\0z."s, "\"z\""}, Row{"Bytes4", "B\x01\0\0\0\x07."s, R"({"bytes":"07"})"},
        Row{"Bytes8", "\x8e\x01\0\0\0\0\0\0\0\x07."s, R"({"bytes":"07"})"},
        Row{"EmptyList", "]."s, "[]"}, Row{"DictLine", "(I1\nI2\nd."s, R"({"dict":[[1,2]]})"},
        Row{"Dup", "]2\x86."s, R"({"tuple":[[],[]]})"}, Row{"Pop", "K\x01K\x02\x30."s, "1"},
        Row{"PopMark", "K\x01(K\x02K\x03\x31."s, "1"}, Row{"PopOfMark", "(0K\x01."s, "1"},
        Row{"PutGet", "]p5\n0g5\n."s, "[]"}, Row{"FreshDictInMemo", "}q\x00K\x01K\x02s0h\x00."s, R"({"dict":[[1,2]]})"},
        Row{"EmptySetShared", "\x8f\x94(K\x01\x90."s, R"({"set":[1]})"},
        Row{"TupleOfEmpties", "(]}\x8ft."s, R"({"tuple":[[],{"dict":[]},{"set":[]}]})"},
        Row{"Size", "ctorch\nSize\n(K\x02K\x03K\x04K\x05t\x85R."s, R"({"torch.Size":[2,3,4,5]})"},
        Row{"SizeOfEmpty", "ctorch\nSize\n)\x85R."s, R"({"torch.Size":[]})"},
        Row{"SizeFromMemo", "ctorch\nSize\nK\x02\x85q\x00\x85Rh\x00\x86."s, R"({"tuple":[{"torch.Size":[2]},{"tuple":[2]}]})"},
        Row{"Dtype", "ctorch\nbfloat16\n."s, R"({"torch":"torch.bfloat16"})"},
        Row{"Device", "ctorch\ndevice\nX\x04\0\0\0cudaK\x01\x86R."s, R"({"torch":"cuda:1"})"},
        Row{"Layout", "ctorch.serialization\n_get_layout\nX\x0d\0\0\0torch.strided\x85R."s, R"({"torch":"torch.strided"})"},
        Row{"MemoryFormat", "\x8c\x0ctorch._utils\x8c\x13torch.channels_last\x93."s, R"({"torch":"torch.channels_last"})"},
        Row{"Inst", "(i__main__\nThing\n."s, R"({"object":"__main__.Thing"})"},
        Row{"Obj", "(c__main__\nThing\nK\x01o."s, R"({"object":"__main__.Thing"})"},
        Row{"NestedClass", "c__builtin__\ngetattr\nc__main__\nOuter\nX\x05\0\0\0Inner\x86R)R."s, R"({"object":"__main__.Outer.Inner"})"},
        Row{"NewobjByName", "ccopy_reg\n__newobj__\nc__main__\nThing\n\x85R."s, R"({"object":"__main__.Thing"})"},
        Row{"Reconstructor", "ccopy_reg\n_reconstructor\nc__main__\nThing\nc__builtin__\nobject\nN\x87R."s, R"({"object":"__main__.Thing"})"}),
    [](const auto& row) { return row.param.name; });

TEST(PickleReader, ObjectsKeepHowTheyAreRebuilt) {
  PickleHandler plain;
  FindingSink sink;
  const std::string stream = "\x80\x02\x63my.mod\nThing\nK\x01\x85\x81(K\x02K\x03\x65(K\x04K\x05u}K\x06K\x07sb."s;
  const Value v = read_pickle(std::as_bytes(std::span(stream)), plain, "x.pkl", 100, sink).value;
  ASSERT_TRUE(v.is(Kind::object));
  const auto& object = v.node<ObjectNode>();
  EXPECT_EQ(object.class_name(), "my.mod.Thing");
  EXPECT_EQ(object.how, ObjectNode::How::newobj);
  EXPECT_EQ(object.args.items().size(), 1u);
  EXPECT_EQ(object.items.size(), 2u);
  EXPECT_EQ(object.entries.size(), 1u);
  EXPECT_TRUE(object.has_state);
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].severity, Severity::warning);
  EXPECT_EQ(sink.all()[0].found, "my.mod.Thing");
  EXPECT_EQ(sink.all()[0].where.offset, 102u);
}

TEST(PickleReader, WarnsOncePerClass) {
  PickleHandler plain;
  FindingSink sink;
  const std::string stream = "\x80\x02(cm\nA\n)\x81\x63m\nA\n)\x81\x63m\nB\n)\x81t."s;
  read_pickle(std::as_bytes(std::span(stream)), plain, "x.pkl", 0, sink);
  EXPECT_EQ(sink.all().size(), 2u);
}

TEST(PickleReader, StopsAtStop) {
  PickleHandler plain;
  FindingSink sink;
  const std::string stream = "\x80\x02K\x01.K\x02."s;
  EXPECT_EQ(read_pickle(std::as_bytes(std::span(stream)), plain, "x", 0, sink).consumed, 5u);
}

// ---- refusals

struct Bad {
  const char* name;
  std::string stream;
  Exit code;
  std::string what;
};

class PickleRefusals : public testing::TestWithParam<Bad> {};

TEST_P(PickleRefusals, HaveCodeWordsAndOffset) {
  const Finding finding = refusal(GetParam().stream);
  EXPECT_EQ(finding.code, GetParam().code) << finding.what;
  EXPECT_EQ(finding.what, GetParam().what);
}

constexpr Exit kDamaged = Exit::damaged, kUnsafe = Exit::unsupported;

INSTANTIATE_TEST_SUITE_P(
    Streams, PickleRefusals,
    testing::Values(
        Bad{"Empty", "", kDamaged, "pickle cut short"}, Bad{"NoStop", "K\x01"s, kDamaged, "pickle cut short"},
        Bad{"UnknownOpcode", "\xff."s, kDamaged, "unknown pickle opcode"},
        Bad{"Underflow", "\x85."s, kDamaged, "pickle stack underflow"},
        Bad{"UnderflowBelowMark", "K\x01(\x85."s, kDamaged, "pickle stack underflow"},
        Bad{"NoMark", "K\x01t."s, kDamaged, "pickle stack underflow"},
        Bad{"AppendsToMark", "(K\x01\x65."s, kDamaged, "pickle stack underflow"},
        Bad{"NothingToReturn", "."s, kDamaged, "pickle stack underflow"},
        Bad{"LeftOver", "K\x01K\x02."s, kDamaged, "pickle ends with values left over"},
        Bad{"OpenMark", "K\x01(."s, kDamaged, "pickle stack underflow"},
        Bad{"SetItemOnInt", "K\x01K\x02K\x03s."s, kDamaged, "items in pickle for something that is no dict"},
        Bad{"AppendToDict", "}K\x02\x61."s, kDamaged, "items in pickle for something that is no list"},
        Bad{"OddItems", "}(K\x02u."s, kDamaged, "key without a value in pickle"},
        Bad{"StateOfList", "]}b."s, kDamaged, "state in pickle for something that takes none"},
        Bad{"CallOfInt", "K\x01)R."s, kDamaged, "call in pickle of something that cannot be called"},
        Bad{"ArgumentsNoTuple", "c__main__\nT\n]R."s, kDamaged, "arguments in pickle are not a tuple"},
        Bad{"NeverStored", "h\x01."s, kDamaged, "pickle fetches a memo entry that it never stored"},
        Bad{"StoredLater", "h\x00q\x00\x30K\x01."s, kDamaged, "pickle fetches a memo entry that it never stored"},
        Bad{"MemoBeyondStream", "j\xff\xff\xff\xff."s, kDamaged, "pickle fetches a memo entry that it never stored"},
        Bad{"MixedMemo", "]\x94q\x01."s, kUnsafe, "pickle mixes two ways to number its memo"},
        Bad{"NotUtf8", "X\x02\0\0\0\xff\xff."s, kDamaged, "string in pickle is not UTF-8"},
        Bad{"Overlong", "X\x02\0\0\0\xc0\x80."s, kDamaged, "string in pickle is not UTF-8"},
        Bad{"BadInt", "I12x\n."s, kDamaged, "integer in pickle is not one"},
        Bad{"BadString", "S'abc\n."s, kDamaged, "string in pickle is not quoted as Python does"},
        Bad{"HugeString", "X\xff\xff\xff\xff."s, kDamaged, "pickle cut short"},
        Bad{"HugeLong", "\x8b\xff\xff\xff\x7f."s, kDamaged, "pickle cut short"},
        Bad{"NegativeLong", "\x8b\xff\xff\xff\xff."s, kDamaged, "negative length in pickle"},
        Bad{"LongLong", "\x8b\x00\x00\x01\x00"s + std::string(65536, 'x') + ".", kUnsafe, "integer in pickle too long"},
        Bad{"Protocol6", "\x80\x06K\x01."s, kUnsafe, "pickle protocol not supported"},
        Bad{"Extension", "\x82\x01."s, kUnsafe, "pickle opcode not supported"},
        Bad{"OutOfBand", "\x97."s, kUnsafe, "pickle opcode not supported"},
        Bad{"Persistent", "K\x01Q."s, kUnsafe, "pickle refers to objects outside it"},
        Bad{"TwiceInDict", "}(X\x01\0\0\0aK\x01X\x01\0\0\0aK\x02u."s, kDamaged, "key twice in one dict of a pickle"},
        Bad{"UnhashableKey", "}]K\x01s."s, kDamaged, "key in pickle that cannot be one"},
        Bad{"OsSystem", "cos\nsystem\nX\x04\0\0\0true\x85R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"OsSystemNamed", "cos\nsystem\n."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"Eval", "c__builtin__\neval\nX\x01\0\0\0\x31\x85R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"Commands", "ccommands\ngetoutput\nX\x01\0\0\0\x31\x85R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"Instance", "(S'x'\nios\nsystem\n."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"NewobjOfTorch", "ctorch.nn.modules.linear\nLinear\n)\x81."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"TorchDotted", "\x8c\x05torch\x8c\x17serialization.os.system\x93X\x01\0\0\0\x31\x85R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"TorchDottedNamed", "ctorch\nfloat.ils\n."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"TorchHub", "ctorch.hub\nload\nX\x01\0\0\0\x31\x85R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"NumpyLoad", "cnumpy\nload\nX\x01\0\0\0\x31\x85R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"GetattrOfTorch", "c__builtin__\ngetattr\nctorch\nhub\nX\x04\0\0\0load\x86R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"GetattrOfValue", "c__builtin__\ngetattr\nX\x01\0\0\0aX\x05\0\0\0lower\x86R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"TypeMakesClasses", "c__builtin__\ntype\nX\x01\0\0\0A)}\x87R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"ReconstructUnsafe", "ccopy_reg\n_reconstructor\nctorch.nn\nLinear\nc__builtin__\nobject\nN\x87R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"NewobjByNameUnsafe", "ccopy_reg\n__newobj__\nctorch.nn\nLinear\n\x85R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"ClassState", "c__main__\nT\n}b."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"DataIsNotCallable", "cdatetime\ndate\nK\x01\x85R)R."s, kUnsafe, "unsafe callable in pickle"},
        Bad{"BytesOfNumber", "c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R."s, kUnsafe, "call in pickle with arguments that Python does not write"},
        Bad{"OtherCodec", "c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0rot13\x86R."s, kUnsafe, "call in pickle with arguments that Python does not write"},
        Bad{"NewDictWithArguments", "ccollections\nOrderedDict\n]\x85\x81."s, kUnsafe, "call in pickle with arguments that Python does not write"},
        Bad{"BuiltTwice", "c__main__\nT\n)\x81}b}b."s, kUnsafe, "object in pickle is built twice"},
        Bad{"SelfInList", "]q\x00h\x00\x61."s, kUnsafe, "value in pickle contains itself"},
        Bad{"SelfInDict", "}q\x00(K\x01h\x00u."s, kUnsafe, "value in pickle contains itself"},
        Bad{"SelfThroughTuple", "]q\x00(h\x00tq\x01\x61."s, kUnsafe, "value in pickle contains itself"},
        Bad{"SelfInState", "c__main__\nT\n)\x81q\x00}K\x01h\x00sb."s, kUnsafe, "value in pickle contains itself"},
        Bad{"SelfInAttributes", "ccollections\nOrderedDict\n)Rq\x00}K\x01h\x00sb."s, kUnsafe, "value in pickle contains itself"},
        Bad{"EachInOther", "]q\x00]q\x01h\x00\x61\x30h\x00h\x01\x61."s, kUnsafe, "value in pickle contains itself"}),
    [](const auto& row) { return row.param.name; });

TEST(PickleReader, UnsafeNamesTheCallableAndItsOffset) {
  const Finding finding = refusal("\x80\x02K\x01\x30\x63posix\nsystem\nX\x01\0\0\0a\x85R."s);
  EXPECT_EQ(finding.found, "posix.system");
  EXPECT_EQ(finding.where.offset, 5u);
}

// ---- limits

TEST(PickleReader, NestingIsLimited) {
  PickleLimits limits;
  limits.depth = 10;
  const auto lists = [](size_t n) { return std::string(n, ']') + std::string(n - 1, 'a') + "."; };
  EXPECT_EQ(read(lists(10), limits).items().size(), 1u);
  EXPECT_EQ(code_of(lists(12), limits), Exit::unsupported);
  EXPECT_EQ(code_of(lists(1'000'000)), Exit::unsupported);
  EXPECT_EQ(code_of(")" + std::string(1'000'000, '\x85') + "."), Exit::unsupported);
  EXPECT_EQ(code_of(std::string(1'000'000, '(') + "K\x01."s), Exit::unsupported);
  // Calls of what a call gave, and dicts in dicts' attributes.
  std::string calls = "c__main__\nT\n", attributes;
  for (int i = 0; i < 100'000; ++i) calls += ")R";
  EXPECT_EQ(code_of(calls + "."), Exit::unsupported);
  for (int i = 0; i < 100'000; ++i) attributes += "ccollections\nOrderedDict\n)R}K\x01"s;
  attributes += "N";
  for (int i = 0; i < 100'000; ++i) attributes += "sb";
  EXPECT_EQ(code_of(attributes + "."), Exit::unsupported);
}

TEST(PickleReader, SharingIsCountedEachTime) {
  std::string laughs = "\x80\x02]K\x01\x61q\x00"s;
  for (int i = 0; i < 40; ++i) {
    laughs += "0](h"s + static_cast<char>(i) + "h" + static_cast<char>(i) + "eq" + static_cast<char>(i + 1);
  }
  EXPECT_EQ(refusal(laughs + ".").what, "pickle grows too large when shared values are written out");
}

// A list that holds one string, or what `made` leaves on the stack, many times: from the memo.
std::string repeated(const std::string& made, int times) {
  std::string stream = "\x80\x02](" + made + "q\x00"s;
  for (int i = 1; i < times; ++i) stream += "h\x00"s;
  return stream + "e.";
}

std::string long_text(char opcode, uint32_t length) {
  return opcode + std::string(reinterpret_cast<const char*>(&length), 4) + std::string(length, 'x');
}

TEST(PickleReader, SharedTextIsCountedEachTimeAndStaysShared) {
  for (const char opcode : {'X', 'B'}) {
    const Value list = read(repeated(long_text(opcode, 1 << 20), 40));
    EXPECT_EQ(list.items()[0].identity(), list.items()[39].identity());
    const Finding f = refusal(repeated(long_text(opcode, 1 << 20), 100));
    EXPECT_EQ(f.what, "pickle grows too large when shared values are written out");
    EXPECT_TRUE(f.expected.ends_with(" bytes")) << f.expected;
  }
}

TEST(PickleReader, NamesCountForEachValueBelowThem) {
  const auto named = [](int values) {
    std::string stream = "}" + long_text('X', 1 << 20) + "](";
    for (int i = 0; i < values; ++i) stream += "K\x01"s;
    return stream + "es.";
  };
  EXPECT_EQ(read(named(40)).entries()[0].value.items().size(), 40u);
  EXPECT_EQ(refusal(named(100)).what, "pickle grows too large when shared values are written out");
}

TEST(PickleReader, StreamsOfACheckpointShareOneBudget) {
  SharingBudget sharing;
  PickleLimits limits;
  limits.sharing = &sharing;
  const std::string stream = repeated(long_text('X', 1 << 20), 40);
  read(stream, limits);
  EXPECT_LT(sharing.text, uint64_t{40} << 20);
  EXPECT_EQ(code_of(stream, limits), Exit::unsupported);
  EXPECT_EQ(read(repeated("K\x01", 3), limits).items().size(), 3u);   // what shares nothing needs no budget
}

TEST(PickleReader, OpcodesAreLimited) {
  PickleLimits limits;
  limits.opcodes = 5;
  EXPECT_EQ(read("(K\x01K\x02t."s, limits).items().size(), 2u);
  EXPECT_EQ(code_of("(K\x01K\x02K\x03t."s, limits), Exit::unsupported);
}

TEST(PickleReader, ObjectsAsKeysAreTheirOwn) {
  const std::string thing = "c__main__\nT\n)\x81";
  EXPECT_EQ(read("}(" + thing + "N" + thing + "Nu.").entries().size(), 2u);
}

TEST(PickleReader, KeysThatCollideOnPurposeCostNoQuadraticTime) {
  // The hash of an integer is a product; its inverse makes integers whose hashes end in 48 zeros.
  uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - 0x9E3779B97F4A7C15 * inverse;
  std::string stream = "}(";
  for (uint64_t k = 0; k < 1100; ++k) {
    const uint64_t key = (inverse * (k << 48)) ^ static_cast<uint64_t>(Kind::integer);
    stream += "\x8a\x08" + std::string(reinterpret_cast<const char*>(&key), 8) + "N";
  }
  EXPECT_EQ(refusal(stream + "u.").what, "keys in pickle collide");
}

// ---- handlers

class Folding : public PickleHandler {
 public:
  uint32_t know(std::string_view module, std::string_view name) override {
    ++asked;
    return module == "my" && name == "Row" ? 7 : 0;
  }
  bool call(const PickleCall& c, Value& result) override {
    EXPECT_EQ(c.id, 7u);
    EXPECT_EQ(id_of(c.callable), 7u);
    result = Value::token(7, rows++);
    return true;
  }
  bool build_fields(Value& object, std::span<const Value> fields) override {
    if (!object.is(Kind::token)) return false;
    for (size_t i = 0; i < fields.size(); i += 2) kept.push_back(fields[i + 1]);
    return true;
  }
  bool build(Value& object, const Value& state) override {
    if (!object.is(Kind::token)) return false;
    kept.push_back(state);
    return true;
  }
  uint32_t rows = 0;
  int asked = 0;
  std::vector<Value> kept;
};

TEST(PickleReader, HandlersFoldObjectsIntoTokens) {
  // Fields at once, fields of a dict that the memo holds, a state that is no dict; sizes are used again behind the scene.
  const std::string stream =
      "\x80\x02("
      "cmy\nRow\nq\x01)\x81}(X\x01\0\0\0aq\x02\x63torch\nSize\nq\x03K\x05\x85\x85Rub"
      "h\x01)\x81}(h\x02h\x03K\x06\x85\x85Rub"
      "h\x01)\x81}q\x04(h\x02h\x03K\x07\x85\x85Rub"
      "h\x01)\x81K\x08\x85\x62"
      "h\x04t."s;
  Folding handler;
  FindingSink sink;
  const Value v = read_pickle(std::as_bytes(std::span(stream)), handler, "x", 0, sink).value;
  EXPECT_EQ(handler.rows, 4u);
  EXPECT_EQ(handler.asked, 2);
  ASSERT_EQ(v.items().size(), 5u);
  EXPECT_TRUE(v.items()[1].is(Kind::token));
  EXPECT_EQ(v.items()[1].token_index(), 1u);
  ASSERT_EQ(handler.kept.size(), 4u);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(handler.kept[static_cast<size_t>(i)].items()[0].as_integer(), 5 + i);
  EXPECT_TRUE(sink.all().empty());
}

TEST(PickleReader, ErrorsOfHandlersGetFileAndOffset) {
  class Throwing : public PickleHandler {
    Value persistent(const Value&) override { throw Error(Exit::refused, "no"); }
  } handler;
  FindingSink sink;
  const std::string stream = "K\x01Q."s;
  const Finding finding =
      error_of([&] { read_pickle(std::as_bytes(std::span(stream)), handler, "dir/x.pt", 1000, sink); });
  EXPECT_EQ(finding.where.path, "dir/x.pt");
  EXPECT_EQ(finding.where.offset, 1002u);
  EXPECT_EQ(finding.code, Exit::refused);
}

// ---- real pickles

TEST(PickleReader, RealArchives) {
  size_t objects = 0;
  for (const NamedPickle& pickle : archive_pickles()) {
    StorageIds ids;
    if (pickle.name == "selfref.pt" || pickle.name == "whole_module.pt") {
      EXPECT_EQ(error_of([&] { read_pickle_of(pickle, ids); }).code, Exit::unsupported) << pickle.name;
      continue;
    }
    EXPECT_NO_THROW(read_pickle_of(pickle, ids)) << pickle.name;
    ++objects;
  }
  EXPECT_GE(objects, 10u);
}

TEST(PickleReader, RealMetadata) {
  size_t count = 0;
  for (const NamedPickle& pickle : metadata_pickles()) {
    StorageIds ids;
    EXPECT_EQ(read_pickle_of(pickle, ids).node<ObjectNode>().class_name(), "torch.distributed.checkpoint.metadata.Metadata");
    ++count;
  }
  EXPECT_GE(count, 5u);
}

void expect_damaged_or_same(const NamedPickle& pickle) {
  StorageIds ids;
  try {
    read_pickle_of(pickle, ids);
  } catch (const Error& e) {
    EXPECT_TRUE(e.code() == Exit::damaged || e.code() == Exit::unsupported) << e.what();
    EXPECT_TRUE(e.finding().where.offset.has_value()) << e.what();
  }
}

TEST(PickleReader, EveryTruncationIsDamage) {
  std::vector<NamedPickle> pickles = protocol_pickles();
  for (const NamedPickle& p : archive_pickles()) {
    if (p.bytes.size() < 4000) pickles.push_back(p);
  }
  for (const NamedPickle& p : metadata_pickles()) {
    if (p.bytes.size() < 6000) pickles.push_back(p);
  }
  EXPECT_GE(pickles.size(), 15u);
  for (const NamedPickle& pickle : pickles) {
    for (size_t length = 0; length < pickle.bytes.size(); ++length) {
      const NamedPickle part{pickle.name, pickle.bytes.substr(0, length)};
      StorageIds ids;
      EXPECT_EQ(error_of([&] { read_pickle_of(part, ids); }).code, Exit::damaged) << pickle.name << " cut at " << length;
    }
  }
}

TEST(PickleReader, FlippedBytesDoNoHarm) {
  std::mt19937 random(1);
  std::vector<NamedPickle> pickles = protocol_pickles();
  for (NamedPickle& p : archive_pickles()) pickles.push_back(std::move(p));
  for (NamedPickle& p : metadata_pickles()) pickles.push_back(std::move(p));
  for (const NamedPickle& pickle : pickles) {
    const size_t rounds = pickle.bytes.size() < 4000 ? 300 : 30;
    for (size_t i = 0; i < rounds; ++i) {
      NamedPickle bad = pickle;
      for (auto k = 1 + random() % 3; k > 0; --k) {
        bad.bytes[random() % bad.bytes.size()] ^= static_cast<char>(1 << random() % 8);
      }
      expect_damaged_or_same(bad);
    }
  }
}

}  // namespace
}  // namespace fsdpctl
