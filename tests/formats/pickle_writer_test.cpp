// The pickle writer: what it writes reads back equal, and Python itself agrees.
#include "formats/codec/pickle_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <span>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/pickle_reader.h"
#include "lib/base/value_json.h"
#include "tests/support/error_of.h"
#include "tests/support/pickles.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using namespace std::string_literals;

std::string written(const Value& value) {
  TensorEmitter none;
  return write_pickle(value, none);
}

Value read(const std::string& bytes) {
  StorageIds ids;
  return read_pickle_of({"x", bytes}, ids);
}

Value tuple(std::vector<Value> items) { return Value::sequence(Kind::tuple, std::move(items)); }
Value list(std::vector<Value> items) { return Value::sequence(Kind::list, std::move(items)); }

void expect_round_trip(const Value& value) {
  const std::string bytes = written(value);
  const Value back = read(bytes);
  EXPECT_TRUE(equal(back, value)) << value_to_json(value, JsonForm::canonical) << " became "
                                  << value_to_json(back, JsonForm::canonical);
}

TEST(PickleWriter, EveryKindComesBack) {
  for (int64_t n : {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65535}, int64_t{65536}, int64_t{-1}, int64_t{INT32_MAX},
                    int64_t{INT32_MIN}, int64_t{INT32_MAX} + 1, int64_t{INT32_MIN} - 1, INT64_MAX, INT64_MIN}) {
    expect_round_trip(Value::integer(n));
  }
  for (int shift = 0; shift < 63; ++shift) {
    for (int64_t near : {-1, 0, 1}) {
      expect_round_trip(Value::integer((int64_t{1} << shift) + near));
      expect_round_trip(Value::integer(-(int64_t{1} << shift) + near));
    }
  }
  for (const char* big : {"9223372036854775808", "-9223372036854775809", "18446744073709551616", "-170141183460469231731687303715884105728",
                          "170141183460469231731687303715884105727", "1000000000000000000000000000000000000000000"}) {
    expect_round_trip(Value::big_integer(big));
  }
  expect_round_trip(Value::big_integer("-1" + std::string(900, '0')));   // LONG4
  for (double d : {0.0, -0.0, 1.5, 1e-320, 1.7976931348623157e308}) expect_round_trip(Value::real(d));
  for (const char* s : {"", "a", "na\xc3\xafve \xf0\x9f\x98\x80", "\xed\xa0\x80"}) expect_round_trip(Value::string(s));
  expect_round_trip(Value::string("nul \0 inside"s));
  for (const auto& raw : {""s, "a"s, "\0\x7f\x80\xff"s}) {
    expect_round_trip(Value::bytes(raw));
    expect_round_trip(Value::bytearray(raw));
  }
  for (const Value& v : {Value(), Value::boolean(true), Value::boolean(false), Value::complex(1.5, -0.0)}) expect_round_trip(v);
  for (size_t n = 0; n < 6; ++n) expect_round_trip(tuple(std::vector<Value>(n, Value::integer(1))));
  for (Kind kind : {Kind::list, Kind::set, Kind::frozenset, Kind::size}) {
    expect_round_trip(Value::sequence(kind, {}));
    expect_round_trip(Value::sequence(kind, {Value::integer(3)}));
    expect_round_trip(Value::sequence(kind, {Value::integer(3), Value::integer(4)}));
  }
  for (Kind kind : {Kind::dict, Kind::ordered_dict, Kind::counter, Kind::default_dict}) {
    expect_round_trip(Value::mapping(kind));
    expect_round_trip(Value::mapping(kind, {{Value::string("k"), Value::integer(3)}}));
    expect_round_trip(Value::mapping(kind, {{Value::string("k"), Value::integer(3)}, {tuple({}), Value()}}));
  }
  Value with_factory = Value::mapping(Kind::default_dict);
  with_factory.mutable_node<MappingNode>().attributes = Value::global("builtins", "list");
  expect_round_trip(with_factory);
  Value module = Value::mapping(Kind::ordered_dict, {{Value::string("w"), Value::integer(3)}});
  module.mutable_node<MappingNode>().attributes =
      Value::mapping(Kind::dict, {{Value::string("_metadata"), Value::mapping(Kind::ordered_dict)}});
  expect_round_trip(module);
  expect_round_trip(Value::constant(Kind::dtype, "torch.float8_e4m3fn"));
  expect_round_trip(Value::constant(Kind::device, "cpu"));
  expect_round_trip(Value::constant(Kind::device, "cuda:12"));
  expect_round_trip(Value::constant(Kind::layout, "torch.sparse_coo"));
  expect_round_trip(Value::constant(Kind::memory_format, "torch.channels_last"));
  expect_round_trip(Value::constant(Kind::qscheme, "torch.per_tensor_affine"));
  expect_round_trip(Value::global("my.mod", "Outer.Inner"));
  expect_round_trip(Value::global("builtins", "str"));
}

TEST(PickleWriter, NumpyComesBack) {
  for (const char* dtype : {"float64", ">f8", "int64", "uint64", "complex64"}) {
    expect_round_trip(Value::numpy_scalar(dtype, "12345678"));
  }
  expect_round_trip(Value::numpy_scalar("bool", "\1"));
  expect_round_trip(Value::numpy_scalar("float128", "0123456789abcdef"));
  expect_round_trip(Value::numpy_scalar("|S3", "abc"));
  expect_round_trip(Value::numpy_scalar("<U1", "a\0\0\0"s));
  expect_round_trip(Value::numpy_scalar(">U1", "\0\0\0a"s));
  auto* node = new NumpyArrayNode;
  const Value array = Value::adopt(node);
  node->dtype = "int16";
  node->shape = {2, 3};
  node->fortran = true;
  node->raw = "0123456789ab";
  expect_round_trip(array);
  expect_round_trip(list({array, array}));
}

TEST(PickleWriter, ObjectsComeBack) {
  const auto object = [](ObjectNode::How how, Value callable, Value args) {
    auto* node = new ObjectNode;
    node->how = how;
    node->callable = std::move(callable);
    node->args = std::move(args);
    return Value::adopt(node);
  };
  const Value type = Value::global("my.mod", "Thing");
  expect_round_trip(object(ObjectNode::How::newobj, type, tuple({})));
  expect_round_trip(object(ObjectNode::How::reduce, type, tuple({Value::integer(1)})));
  Value full = object(ObjectNode::How::newobj, type, tuple({Value::integer(1), Value::integer(2), Value(), Value()}));
  auto& node = full.mutable_node<ObjectNode>();
  node.kwargs = Value::mapping(Kind::dict, {{Value::string("k"), Value::integer(3)}});
  node.items = {Value::integer(1), Value::integer(2)};
  node.entries = {{Value::string("e"), Value()}};
  node.state = Value();
  node.has_state = true;
  expect_round_trip(full);
  expect_round_trip(object(ObjectNode::How::reduce, object(ObjectNode::How::newobj, type, tuple({})), tuple({})));
}

TEST(PickleWriter, LongContainersGoInBatches) {
  for (size_t n : {size_t{999}, size_t{1000}, size_t{1001}, size_t{2500}}) {
    std::vector<Value> items;
    std::vector<Entry> entries;
    for (size_t i = 0; i < n; ++i) {
      items.push_back(Value::integer(static_cast<int64_t>(i)));
      entries.push_back({items.back(), Value()});
    }
    expect_round_trip(list(items));
    expect_round_trip(tuple(items));
    expect_round_trip(Value::mapping(Kind::dict, entries));
  }
  const std::string bytes = written(list(std::vector<Value>(2001, Value())));
  EXPECT_EQ(bytes, "\x80\x02](" + std::string(1000, 'N') + "e(" + std::string(1000, 'N') + "eNa.");
}

TEST(PickleWriter, SharesWhatCanChangeAndNothingElse) {
  const Value shared = list({Value::integer(1)});
  const Value tree = list({shared, shared, tuple({shared}), Value::string("ab"), Value::string("ab")});
  EXPECT_EQ(written(tree), "\x80\x02](]q\x00K\x01\x61h\x00h\x00\x85X\x02\0\0\0abX\x02\0\0\0ab\x65."s);
  const Value back = read(written(tree));
  EXPECT_EQ(back.items()[0].identity(), back.items()[1].identity());
  EXPECT_EQ(back.items()[0].identity(), back.items()[2].items()[0].identity());
  // A second holder outside the tree does not matter.
  const Value copy = shared;
  EXPECT_EQ(written(list({shared})), "\x80\x02]]K\x01\x61\x61."s);
}

TEST(PickleWriter, RepeatedNamesAreFetched) {
  const auto state = [] { return Value::mapping(Kind::dict, {{Value::string("exp_avg"), Value::integer(0)}}); };
  EXPECT_EQ(written(tuple({state(), state(), Value::string("alone")})),
            "\x80\x02}X\x07\0\0\0exp_avgq\x00K\x00s}h\x00K\x00sX\x05\0\0\0alone\x87."s);
}

TEST(PickleWriter, ManyMemoEntriesUseLongNumbers) {
  std::vector<Value> items;
  for (int i = 0; i < 600; ++i) {
    const Value shared = list({});
    items.insert(items.end(), {shared, shared});
  }
  expect_round_trip(list(items));
}

TEST(PickleWriter, RefusesWhatItCannotHold) {
  EXPECT_EQ(error_of([] { written(Value::tensor({0, false, false})); }).code, Exit::refused);
  EXPECT_EQ(error_of([] { written(Value::storage(0, "torch.FloatStorage")); }).code, Exit::refused);
  EXPECT_EQ(error_of([] { written(Value::token(1, 2)); }).code, Exit::refused);
  EXPECT_EQ(error_of([] { written(Value::global("a\nb", "c")); }).code, Exit::refused);
  Value deep;
  for (int i = 0; i < 5000; ++i) deep = list({deep});
  EXPECT_EQ(error_of([&] { written(deep); }).code, Exit::unsupported);
}

std::vector<NamedPickle> all_pickles() {
  std::vector<NamedPickle> pickles = protocol_pickles();
  for (NamedPickle& p : archive_pickles()) {
    if (p.name != "selfref.pt" && p.name != "whole_module.pt") pickles.push_back(std::move(p));
  }
  for (NamedPickle& p : metadata_pickles()) pickles.push_back(std::move(p));
  return pickles;
}

TEST(PickleWriter, RealPicklesComeBack) {
  for (const NamedPickle& pickle : all_pickles()) {
    StorageIds ids;
    const Value value = read_pickle_of(pickle, ids);
    const std::string bytes = write_pickle(value, ids);
    EXPECT_EQ(bytes, write_pickle(value, ids)) << pickle.name;
    StorageIds again;
    const Value back = read_pickle_of({pickle.name, bytes}, again);
    EXPECT_EQ(value_to_json(back, JsonForm::canonical), value_to_json(value, JsonForm::canonical)) << pickle.name;
  }
}

TEST(PickleWriter, PythonReadsTheSame) {
  TempDir directory;
  std::vector<std::string> command = {"python3", std::string(FSDPCTL_SOURCE_DIR) + "/tests/formats/pickle_compare.py"};
  size_t number = 0;
  for (const NamedPickle& pickle : all_pickles()) {
    StorageIds ids;
    const Value value = read_pickle_of(pickle, ids);
    for (const std::string& bytes : {pickle.bytes, write_pickle(value, ids)}) {
      const std::string path = directory / (std::to_string(number++) + "-" + pickle.name);
      std::ofstream(path, std::ios::binary) << bytes;
      command.push_back(path);
    }
  }
  const ProcessResult result = run_process(command);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

}  // namespace
}  // namespace fsdpctl
