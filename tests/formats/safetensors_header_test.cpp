// The header codec, one test for each way in which a header can lie.
#include "formats/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lib/base/box.h"
#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

using testing::HasSubstr;

std::string with_length(const std::string& json, uint64_t length) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
  return file + json;
}

// A file of this header and `data_size` bytes of data.
std::string file_of(const std::string& json, size_t data_size) {
  return with_length(json, json.size()) + std::string(data_size, '\1');
}

struct Parsed {
  Arena arena;
  FindingSink sink{true};
  SafetensorsHeader header;
};

// Reads from exactly the bytes that are there: an access beyond them fails the test.
ReadAt bytes_of(const std::string& file) {
  return [&file](uint64_t offset, std::span<std::byte> out) {
    ASSERT_LE(offset, file.size());
    ASSERT_LE(out.size(), file.size() - offset);
    std::memcpy(out.data(), file.data() + offset, out.size());
  };
}

SafetensorsHeader parse(const std::string& file, Arena& arena, FindingSink& sink) {
  return read_safetensors_header(bytes_of(file), file.size(), "m.safetensors", arena, sink);
}

Finding refusal(const std::string& file) {
  return error_of([&] {
    Arena arena;
    FindingSink sink;
    parse(file, arena, sink);
  });
}

Finding refusal(const std::string& json, size_t data_size) { return refusal(file_of(json, data_size)); }

const std::string kGood = R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})";

TEST(SafetensorsHeader, ReadsNamesDtypesShapesAndOffsets) {
  const std::string file = file_of(kGood, 10);
  Arena arena;
  FindingSink sink;
  const SafetensorsHeader header = parse(file, arena, sink);
  EXPECT_EQ(header.data_offset, 8 + kGood.size());
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[0].dtype, DType::float32);
  EXPECT_EQ(dims_text(header.entries[0].shape), "[2, 1]");
  EXPECT_EQ(header.entries[1].dtype, DType::bfloat16);
  EXPECT_EQ(dims_text(header.entries[1].shape), "[]");
  EXPECT_EQ(header.entries[1].begin, 8u);
  EXPECT_EQ(header.entries[1].length, 2u);
  EXPECT_TRUE(header.metadata.empty());
}

TEST(SafetensorsHeader, ReadsMetadataInOrder) {
  const std::string file = file_of(R"({"__metadata__":{"z":"caf\u00e9 \ud83d\ude00","a":""}})", 0);
  Arena arena;
  FindingSink sink;
  const SafetensorsMetadata expected = {{"z", "caf\xC3\xA9 \xF0\x9F\x98\x80"}, {"a", ""}};
  EXPECT_EQ(parse(file, arena, sink).metadata, expected);
}

TEST(SafetensorsHeader, AcceptsWhatTheReferenceReaderAccepts) {
  const std::vector<std::string> headers = {"{}", "  \n\t{}", "{} \n ", R"({"__metadata__":null})", R"({"__metadata__":{}})"};
  for (const std::string& json : headers) {
    Arena arena;
    FindingSink sink;
    EXPECT_TRUE(parse(file_of(json, 0), arena, sink).entries.empty()) << json;
  }
}

TEST(SafetensorsHeader, UnknownFieldIsSkippedWithOneWarning) {
  const std::string file = file_of(R"({"a":{"dtype":"U8","x":{"y":[1,{"z":null}]},"shape":[1],"w":-0.5,"data_offsets":[0,1]},
                                       "b":{"dtype":"U8","x":"t","shape":[1],"data_offsets":[1,2]}})", 2);
  Arena arena;
  FindingSink sink;
  EXPECT_EQ(parse(file, arena, sink).entries.size(), 2u);
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].severity, Severity::warning);
  EXPECT_EQ(sink.all()[0].found, "x");
}

TEST(SafetensorsHeader, Float4CountsPairsOfValues) {
  const std::string file = file_of(R"({"a":{"dtype":"F4","shape":[2,12],"data_offsets":[0,12]}})", 12);
  Arena arena;
  FindingSink sink;
  const SafetensorsHeader header = parse(file, arena, sink);
  EXPECT_EQ(header.entries[0].dtype, DType::float4_e2m1fn_x2);
  EXPECT_EQ(dims_text(header.entries[0].shape), "[2, 6]");
}

TEST(SafetensorsHeader, EntriesMayBeInAnyOrder) {
  const std::string file = file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"e":{"dtype":"U8","shape":[0],"data_offsets":[3,3]},
                                       "b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 5);
  Arena arena;
  FindingSink sink;
  EXPECT_EQ(parse(file, arena, sink).entries[0].name, "a");
}

// ------------------------------------------------------------------------------------------------------------ lies

TEST(SafetensorsLies, FileShorterThanItsLengthField) {
  const Finding f = refusal("1234567");
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.saw_text(), "expected at least 8 bytes, found 7");
}

TEST(SafetensorsLies, HeaderLengthOf2To63) {
  const Finding f = refusal(with_length("{}", 1ull << 63));
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_THAT(f.found, HasSubstr("9223372036854775808"));
}

TEST(SafetensorsLies, HeaderLengthAboveTheLimit) {
  EXPECT_THAT(refusal(with_length("{}", 100'000'001)).expected, HasSubstr("100000000"));
}

TEST(SafetensorsLies, HeaderLongerThanTheFile) {
  const Finding f = refusal(with_length("{}", 3));
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.saw_text(), "expected at most 2 bytes, found 3");
}

TEST(SafetensorsLies, MalformedJson) {
  const std::vector<std::string> headers = {"", " ", "{", "{\"a\"}", "{} x", "[]", "3", "\"a\"", "null", "{\"a\":1}", "{\"a\":[]}",
                                            "{\"a\":null}", std::string("{}\0", 3), "\xEF\xBB\xBF{}", "{\"\xFF\":1}", "{\"\\ud800\":1}"};
  for (const std::string& json : headers) {
    const Finding f = refusal(json, 0);
    EXPECT_EQ(f.code, Exit::damaged) << json;
    EXPECT_EQ(f.where.path, "m.safetensors") << json;
  }
}

TEST(SafetensorsLies, DeepNesting) {
  const std::string deep = R"({"a":{"x":)" + std::string(1'000'000, '[');
  EXPECT_EQ(refusal(deep, 0).code, Exit::damaged);   // and the stack survives
}

TEST(SafetensorsLies, FieldsOfTheWrongKind) {
  const std::vector<std::string> fields = {
      R"("dtype":1,"shape":[1],"data_offsets":[0,4])",        R"("dtype":"F32","shape":1,"data_offsets":[0,4])",
      R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])",  R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])",
      R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])",  R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])",
      R"("dtype":"F32","shape":[1],"data_offsets":[0])",      R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])",
      R"("dtype":"F32","shape":[1],"data_offsets":{"0":4})",  R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])",
      R"("dtype":"F32","shape":[1])",                         R"("dtype":"F32","data_offsets":[0,4])",
      R"("shape":[1],"data_offsets":[0,4])",                  R"("dtype":null,"shape":[1],"data_offsets":[0,4])",
  };
  for (const std::string& field : fields) {
    const Finding f = refusal("{\"the.tensor\":{" + field + "}}", 4);
    EXPECT_EQ(f.code, Exit::damaged) << field;
    EXPECT_EQ(f.where.key, "the.tensor") << field;
  }
}

TEST(SafetensorsLies, MetadataThatIsNotText) {
  for (const char* value : {"1", "[]", "{}", "null", "true"}) {
    EXPECT_EQ(refusal("{\"__metadata__\":{\"a\":" + std::string(value) + "}}", 0).code, Exit::damaged) << value;
  }
  EXPECT_EQ(refusal(R"({"__metadata__":"text"})", 0).code, Exit::damaged);
}

TEST(SafetensorsLies, NameTwice) {
  const Finding f = refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16);
  EXPECT_EQ(f.code, Exit::unsupported);
  EXPECT_EQ(f.where.key, "a");
}

TEST(SafetensorsLies, FieldOrMetadataTwice) {
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1).code, Exit::unsupported);
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1).code, Exit::unsupported);
  EXPECT_EQ(refusal(R"({"__metadata__":{"a":"1","b":"2","a":"3"}})", 0).code, Exit::unsupported);
  EXPECT_EQ(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0).code, Exit::unsupported);
}

TEST(SafetensorsLies, UnknownDtypesByName) {
  const Finding f = refusal(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3);
  EXPECT_EQ(f.code, Exit::unsupported);
  EXPECT_EQ(f.found, "F6_E2M3");
  EXPECT_EQ(refusal(R"({"a":{"dtype":"Q4","shape":[4],"data_offsets":[0,3]}})", 3).code, Exit::unsupported);
}

TEST(SafetensorsLies, ShapeOverflow) {
  const Finding f = refusal(R"({"a":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4]}})", 4);
  EXPECT_EQ(f.what, "shape overflows");
  // 2^62 elements of 4 bytes: the count fits, the bits do not.
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0).what, "shape overflows");
}

TEST(SafetensorsLies, ShapeMismatch) {
  const std::string what = "size of a tensor does not match its shape";
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})", 16).what, what);
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[12,0]}})", 12).what, what);   // backwards
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1).what, what);      // 12 bits
}

TEST(SafetensorsLies, Float4ThatSplitsAByteBetweenRows) {
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}})", 3).code, Exit::unsupported);
}

TEST(SafetensorsLies, Overlap) {
  const Finding f = refusal(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})", 24);
  EXPECT_EQ(f.what, "tensors overlap");
  EXPECT_EQ(f.where.key, "b");
  EXPECT_EQ(f.where.range->second - f.where.range->first, 8u);
}

TEST(SafetensorsLies, Hole) {
  const char* what = "bytes that belong to no tensor";
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3).what, what);
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2).what, what);   // not from 0
}

TEST(SafetensorsLies, DataShorterThanItsTensors) {
  const Finding f = refusal(R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}})", 16);
  EXPECT_EQ(f.what, "tensor lies beyond the end of the file");
  EXPECT_EQ(f.saw_text(), "expected 32 bytes of data, found 16");
}

TEST(SafetensorsLies, TrailingBytes) {
  const Finding f = refusal(kGood, 17);
  EXPECT_EQ(f.what, "trailing bytes after the last tensor");
  EXPECT_EQ(f.saw_text(), "expected 10 bytes of data, found 17");
}

TEST(SafetensorsLies, TooManyDimensions) {
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  EXPECT_EQ(refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[" + shape + "],\"data_offsets\":[0,1]}}", 1).code, Exit::unsupported);
}

// verify goes on: each lie is told once, and the rest stays readable.
TEST(SafetensorsLies, AllAreReportedAndTheRestIsRead) {
  const std::string file = file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[9],"data_offsets":[4,8]},
      "c":{"dtype":"F99","shape":[1],"data_offsets":[8,12]},"d":{"dtype":"U8","shape":[4],"data_offsets":[12,16]},
      "e":{"dtype":"U8","shape":[4],"data_offsets":[16,20]}})", 16);
  Arena arena;
  FindingSink sink(false);
  const SafetensorsHeader header = parse(file, arena, sink);
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.entries[0].name, "a");
  EXPECT_EQ(header.entries[1].name, "d");
  std::vector<std::string> keys;
  for (const Finding& f : sink.all()) keys.push_back(f.where.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"b", "c", "e"}));
}

// --------------------------------------------------------------------------------------------------------- writing

TEST(SafetensorsHeader, WhatIsWrittenReadsBack) {
  const std::vector<int64_t> none, shape{2, 6}, empty{0, 3};
  const std::vector<SafetensorsEntry> entries = {{"plain", DType::int64, none, 0, 8},
                                                 {"quo\"te\\\n\x01 \xC3\xA9", DType::float4_e2m1fn_x2, shape, 8, 12},
                                                 {"", DType::complex64, empty, 8, 0}};
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"json", "{\"a\": \"\\u0000\"}"}};
  std::string file = "unrelated ";
  write_safetensors_header(metadata, entries, file);
  file.erase(0, 10);
  EXPECT_EQ(file.size() % 64, 0u);
  file += std::string(20, '\0');
  Arena arena;
  FindingSink sink;
  const SafetensorsHeader header = parse(file, arena, sink);
  EXPECT_EQ(header.metadata, metadata);
  ASSERT_EQ(header.entries.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(header.entries[i].name, entries[i].name);
    EXPECT_EQ(header.entries[i].dtype, entries[i].dtype);
    EXPECT_TRUE(equal(header.entries[i].shape, entries[i].shape));
    EXPECT_EQ(header.entries[i].begin, entries[i].begin);
    EXPECT_EQ(header.entries[i].length, entries[i].length);
  }
}

TEST(SafetensorsHeader, EveryDtypeThatItCanHoldIsOrderedByAlignment) {
  uint32_t last = 1;
  std::vector<DType> by_order(20);
  int held = 0;
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const int order = safetensors_dtype_order(dtype);
    EXPECT_EQ(order < 0, safetensors_dtype(dtype).empty());
    if (order < 0) continue;
    by_order[static_cast<size_t>(order)] = dtype;
    ++held;
  }
  EXPECT_EQ(held, 20);
  for (const DType dtype : by_order) {
    EXPECT_GE(item_size(dtype), last);
    last = item_size(dtype);
  }
  EXPECT_EQ(safetensors_dtype(DType::complex128), "");
  EXPECT_EQ(safetensors_dtype(DType::float8_e4m3fn), "F8_E4M3");
}

}  // namespace
}  // namespace fsdpctl
