// Inputs made to hurt: small files that claim much, share much, nest deep or name what is elsewhere. Whatever they are, every command ends
// soon, with little memory, one of the documented exit codes, and nothing published that was not proven.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>
#include <functional>
#include <set>

#include "formats/dcp_metadata_writer.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

std::string repeated(std::string_view text, size_t n) {
  std::string all;
  for (size_t i = 0; i < n; ++i) all += text;
  return all;
}

template <class Number>
std::string raw(Number n) {
  return {reinterpret_cast<const char*>(&n), sizeof n};
}

// ---- pickles

std::string text_op(std::string_view s) { return "X" + raw(static_cast<uint32_t>(s.size())) + std::string(s); }
std::string int_op(int32_t n) { return "J" + raw(n); }

// What torch.save wrote before 1.6: pickles one after the other, so that any pickle is a file of it.
std::string legacy(const std::string& object, const std::string& keys = "]", const std::string& data = "") {
  return "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02"s + object + ".\x80\x02"s + keys + "." + data;
}

// n containers, each of which holds the one before it twice: little to write, 2^n to walk.
std::string laughs(int n, const std::string& first, const std::function<std::string(const std::string& get)>& twice) {
  std::string pickle = "(" + first + "q\0"s;
  for (int k = 0; k < n; ++k) pickle += twice("h"s + static_cast<char>(k)) + "q" + static_cast<char>(k + 1);
  return pickle + "t";
}
std::string two_in_list(const std::string& get) { return "](" + get + get + "e"; }
std::string two_in_dict(const std::string& get) { return "}(" + text_op("a") + get + text_op("b") + get + "u"; }
std::string two_in_tuple(const std::string& get) { return get + get + "\x86"; }
std::string two_in_object(const std::string& get) { return "cmy.module\nClass\n)\x81" + two_in_dict(get) + "b"; }

std::string storage_op(int32_t elements) {
  return "(" + text_op("storage") + "ctorch\nFloatStorage\n" + text_op("0") + text_op("cpu") + int_op(elements) + "NtQ";
}
std::string tensor_op(int32_t storage, int32_t offset, const std::string& size, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage_op(storage) + int_op(offset) + "(" + size + "t(" + strides + "t\x89" + "}tR";
}
const std::string kOneStorage = "](" + text_op("0") + "e";
const std::string kFour = raw(int64_t{4}) + std::string(16, '\0');

// ---- safetensors

std::string safetensors(std::string header, const std::string& data = std::string(16, '\0')) { return raw(uint64_t{header.size()}) + header + data; }
const std::string kTensor = R"("w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})";

std::string shard_of(const std::string& offsets, const std::string& more = "") {
  return safetensors(R"({"__metadata__":{"format":"pt","DCP_SHARDING_INFO":")" + offsets + "\"" + more + "}," + kTensor + "}");
}

// ---- .metadata

struct Dcp {
  std::string metadata;
  DcpMetadataWriter writer;
  explicit Dcp(uint64_t names) : writer(names, metadata) {
    writer.begin();
    writer.begin_items();
  }
  void end_names() {
    writer.end_items();
    writer.end_state_dict();
  }
  void items(const std::function<void()>& make, const std::string& file = "__0_0.distcp") {
    writer.end_paths();
    writer.file(0, file);
    writer.begin_items();
    make();
    writer.end_items();
    writer.end();
  }
};

constexpr int64_t kZero[] = {0}, kLength[] = {4};

std::string one_tensor(const std::string& file, const std::vector<DcpPathStep>& path) {
  Dcp dcp(1);
  dcp.writer.tensor(0, "w", DType::float32, kLength);
  dcp.writer.chunk(kZero, kLength);
  dcp.writer.end_tensor();
  dcp.end_names();
  dcp.writer.begin_items();
  dcp.writer.path(0, path);
  dcp.writer.end_items();
  dcp.items([&] { dcp.writer.tensor_item(0, 0, kZero), dcp.writer.place(0, 0, 100); }, file);
  return dcp.metadata;
}

// A list of a thousand chunks that every tensor has.
std::string shared_chunks() {
  constexpr int64_t kThousand[] = {1000}, kOne[] = {1};
  Dcp dcp(3000);
  dcp.writer.tensor(0, "t0", DType::float32, kThousand);
  for (int64_t i = 0; i < 1000; ++i) dcp.writer.chunk(std::span(&i, 1), kOne);
  const size_t list_end = dcp.metadata.size() + 1;
  dcp.writer.end_tensor();
  dcp.metadata.insert(list_end, "r\xF0\xFF\x01\0"s);
  for (uint64_t n = 1; n < 3000; ++n) {
    const size_t begin = dcp.metadata.size();
    dcp.writer.tensor(n, fmt::format("t{}", n), DType::float32, kThousand);
    dcp.writer.end_tensor();
    const size_t at = dcp.metadata.find("](e", begin);
    EXPECT_NE(at, std::string::npos);
    dcp.metadata.replace(at, 3, "j\xF0\xFF\x01\0"s);
  }
  dcp.end_names();
  dcp.items([&] { dcp.writer.tensor_item(0, 0, kZero), dcp.writer.place(0, 0, 100); });
  return dcp.metadata;
}

// Names that all say that the same bytes are theirs.
std::string shared_values(uint64_t names) {
  Dcp dcp(names);
  for (uint64_t n = 0; n < names; ++n) dcp.writer.bytes(n, fmt::format("v{}", n));
  dcp.end_names();
  dcp.items([&] {
    for (uint64_t n = 0; n < names; ++n) dcp.writer.byte_item(n), dcp.writer.place(0, 0, 3'000'000);
  });
  return dcp.metadata;
}

// ---- the cases

struct Hostile {
  std::string name;
  std::map<std::string, std::string> files;    // one called "" is the checkpoint itself
  std::set<int> codes;                         // of verify
  std::string says;                            // in what verify prints
};

std::vector<Hostile> pickles() {
  std::vector<Hostile> all;
  const auto add = [&](const std::string& name, const std::string& pickle, std::set<int> codes, const std::string& says = "") {
    all.push_back({"pickle_" + name, {{"", legacy(pickle)}}, std::move(codes), says});
  };
  using Twice = std::string (*)(const std::string&);
  for (const auto& [name, twice] : std::vector<std::pair<std::string, Twice>>{
           {"list", two_in_list}, {"dict", two_in_dict}, {"tuple", two_in_tuple}, {"object", two_in_object}}) {
    for (const int n : {22, 60}) add(fmt::format("laughs_{}_{}", name, n), laughs(n, "}", twice), {3, 5});
  }
  add("deep_lists", repeated("]", 100000) + repeated("a", 99999), {5}, "nested too deep");
  add("deep_tuples", ")" + repeated("\x85", 100000), {5}, "nested too deep");
  add("marks", repeated("(", 1000000), {3, 5});
  add("memo", "Nr\xff\xff\xff\xff"s, {0});   // a number like any other
  add("long_integer", "\x8b" + raw(int32_t{1000000}) + std::string(1000000, '\x7f'), {5}, "too long");
  add("negative_length", "\x8b" + raw(int32_t{-5}), {3});
  add("digits", "I" + std::string(1000000, '9') + "\n", {3});
  add("string_of_2_62", "\x8d" + raw(uint64_t{1} << 62), {3, 5});
  add("same_key", "}(" + repeated(text_op("a") + "N", 100000) + "u", {3}, "twice");
  add("list_as_key", "}(]Nu", {3, 5});
  add("cycle", "]q\0h\0a"s, {3, 5});
  add("call", "cos\nsystem\n(" + text_op("touch PWNED") + "tR", {5}, "os.system");
  add("instance", "(" + text_op("touch PWNED") + "ios\nsystem\n", {5}, "os.system");
  add("numpy_path", "\x8c\x05numpy\x8c\tos.system\x93(" + text_op("touch PWNED") + "tR", {5});
  const std::string four = int_op(4), one = int_op(1), far = int_op(1 << 30);
  const auto tensor = [&](const std::string& name, const std::string& pickle, std::set<int> codes) {
    all.push_back({"tensor_" + name, {{"", legacy("}" + text_op("w") + pickle + "s", kOneStorage, kFour)}}, std::move(codes), ""});
  };
  tensor("well", tensor_op(4, 0, four, one), {0});
  tensor("negative_offset", tensor_op(4, -1, four, one), {3, 5});
  tensor("negative_size", tensor_op(4, 0, int_op(-4), one), {3, 5});
  tensor("negative_stride", tensor_op(4, 3, four, int_op(-1)), {3, 5});
  tensor("beyond", tensor_op(4, 1, four, one), {3});
  tensor("far_strides", tensor_op(4, 0, far + far, far + far), {3, 5});
  tensor("expanded_beyond_reason", tensor_op(4, 0, far + int_op(64), int_op(0) + int_op(0)), {3, 5});
  tensor("dims", tensor_op(4, 0, repeated(one, 5000), repeated(one, 5000)), {3, 5});
  tensor("storage_that_is_larger", tensor_op(1 << 30, 0, four, one), {3});
  return all;
}

std::vector<Hostile> named_tensors() {
  std::vector<Hostile> all;
  const auto add = [&](const std::string& name, const std::string& header, std::set<int> codes, const std::string& data = std::string(16, '\0')) {
    all.push_back({"safetensors_" + name, {{"", safetensors(header, data)}}, std::move(codes), ""});
  };
  std::string many, names;
  for (int i = 0; i < 30000; ++i) many += fmt::format(R"("k{}":"v",)", i), names += fmt::format(R"("k{}":"w",)", i);
  many.pop_back();
  names.pop_back();
  add("well", "{" + kTensor + "}", {0});
  add("many_entries", R"({"__metadata__":{)" + many + "}," + kTensor + "}", {0});
  add("many_aliases", R"({"__metadata__":{)" + names + "}," + kTensor + "}", {0});
  add("deep", R"({"w":{"dtype":"F32","shape":)" + repeated("[", 1000000), {3});
  add("deep_objects", repeated(R"({"a":)", 300000), {3});
  add("dims", R"({"w":{"dtype":"F32","shape":[)" + repeated("1,", 100000) + R"(4],"data_offsets":[0,16]}})", {3, 5});
  add("overflow", R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}})", {3});
  add("escaped_twin", "{" + kTensor + R"(,"\u0077":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", {3, 5});
  add("exponent", R"({"w":{"dtype":"F32","shape":[4e0],"data_offsets":[0,16]}})", {3});
  add("deep_tree", R"({"__metadata__":{"fsdpctl.names":"0000000000000000","fsdpctl.tree":")" + repeated("[", 200000) + "\"}," + kTensor + "}", {0, 3});
  const auto index = [&](const std::string& name, const std::string& shard, std::set<int> codes) {
    all.push_back({"index_" + name,
                   {{"model.safetensors.index.json", R"({"weight_map":{"w":")" + shard + "\"}}"}, {"m.safetensors", safetensors("{" + kTensor + "}")}},
                   std::move(codes), ""});
  };
  index("well", "m.safetensors", {0});
  index("elsewhere", "../x/m.safetensors", {3, 5});
  index("absolute", "/etc/passwd", {3, 5});
  index("itself", "model.safetensors.index.json", {3, 5});
  index("directory", ".", {3, 5});
  index("long_name", std::string(5000, 'x'), {3});
  const auto shard = [&](const std::string& name, const std::string& file, const std::string& content, std::set<int> codes) {
    all.push_back({"shard_" + name, {{file, content}}, std::move(codes), ""});
  };
  const std::string first = "shard-00001-model-00001-of-00001.safetensors";
  const auto at = [](const std::string& offset) { return R"({\"w\":{\"saved_offsets\":[)" + offset + "]}}"; };
  shard("well", first, shard_of(at("0")), {0});
  shard("far", first, shard_of(at("4611686018427387904")), {3, 5});
  shard("overflow", first, shard_of(at("9223372036854775804")), {3, 5});
  shard("negative", first, shard_of(at("-1")), {3});
  shard("nested", first, shard_of(repeated("[", 200000)), {3});
  shard("of_many_ranks", first, shard_of(at("0"), R"(,"fsdpctl.world_size":"131072")"), {3});
  shard("rank_beyond_reason", "shard-4294967297-model-00001-of-00001.safetensors", shard_of(at("0")), {0, 3, 4, 5});
  return all;
}

std::vector<Hostile> distributed() {
  std::vector<Hostile> all;
  const std::string item(3'000'000, 'x');
  const auto add = [&](const std::string& name, const std::string& metadata, std::set<int> codes, const std::string& says,
                       const std::string& file = "__0_0.distcp") {
    all.push_back({"dcp_" + name, {{".metadata", metadata}, {file, item}}, std::move(codes), says});
  };
  const std::vector<DcpPathStep> plain = {{"w", -1}};
  add("shared_chunks", shared_chunks(), {3}, "share chunks");
  add("shared_values", shared_values(3000), {3}, "overlap");
  add("gap", one_tensor("__0_0.distcp", {{"w", -1}, {{}, 900'000}}), {3}, "gaps");
  add("gaps_in_gaps", one_tensor("__0_0.distcp", std::vector<DcpPathStep>(500, {{}, 1000})), {3}, "");
  add("deep_path", one_tensor("__0_0.distcp", std::vector<DcpPathStep>(100'000, {"a", -1})), {3}, "");
  add("elsewhere", one_tensor("../outside", plain), {3, 5}, "");
  add("absolute", one_tensor("/etc/passwd", plain), {3, 5}, "");
  add("long_file_name", one_tensor(std::string(100'000, 'x'), plain), {3}, "missing");
  add("rank_beyond_reason", one_tensor("__2147483647_0.distcp", plain), {3}, "", "__2147483647_0.distcp");
  add("deep", "\x80\x02" + repeated("]", 1'000'000) + ".", {3, 5}, "");
  add("zeros", std::string(5'000'000, '\0'), {3}, "");
  return all;
}

std::vector<Hostile> all_cases() {
  std::vector<Hostile> all = pickles();
  for (auto& some : {named_tensors(), distributed()}) all.insert(all.end(), some.begin(), some.end());
  return all;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const Hostile& h : all_cases()) names.push_back(h.name);
  return names;
}

class HostileInput : public testing::TestWithParam<std::string> {};

// Writes a case and keeps none: a child's peak counts what this process has when it forks.
Hostile written(const std::string& name, const TempDir& dir) {
  Hostile wanted;
  for (Hostile& h : all_cases()) {
    if (h.name == name) wanted = std::move(h);
  }
  for (const auto& file : wanted.files) put_file(file.first.empty() ? dir / "in" : dir / "in/" + file.first, file.second);
  wanted.files.clear();
  return wanted;
}

TEST_P(HostileInput, EndsSoonWithLittleMemory) {
  TempDir dir{TempDir::Place::memory};
  const Hostile h = written(GetParam(), dir);
  malloc_trim(0);
  ProcessOptions options;
  options.directory = dir.path();
  options.timeout_seconds = 60;   // a hang
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{{"verify", "--data", "in"},
                                                                                       {"inspect", "--tensors", "--extra", "in"},
                                                                                       {"diff", "--data", "in", "in"},
                                                                                       {"convert", "in", "-o", "out.pt", "--to", "torch"},
                                                                                       {"convert", "in", "-o", "out", "--to", "dcp"}}) {
    const ProcessResult r = run_fsdpctl(command, options);
    SCOPED_TRACE(command[0] + "\n" + r.out.substr(0, 2000) + r.err.substr(0, 2000));
    EXPECT_EQ(r.signal, 0);
    if (!kSanitized) {
      EXPECT_LT(r.peak_kib, 64 * 1024);
      EXPECT_LT(r.cpu_seconds, 2.0);
    }
    EXPECT_FALSE(fs::exists(dir / "PWNED"));
    EXPECT_LT(r.err.size(), 20'000u);
    if (command[0] == "verify") {
      EXPECT_TRUE(h.codes.count(r.exit_code)) << "ended with " << r.exit_code;
      EXPECT_NE((r.out + r.err).find(h.says), std::string::npos) << h.says;
    } else {
      EXPECT_TRUE(r.exit_code == 0 || r.exit_code == 3 || r.exit_code == 4 || r.exit_code == 5) << r.exit_code;
    }
    EXPECT_FALSE(r.exit_code != 0 && (fs::exists(dir / "out") || fs::exists(dir / "out.pt")));
    fs::remove_all(dir / "out");
    fs::remove_all(dir / "out.pt");
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileInput, testing::ValuesIn(all_names()), [](const testing::TestParamInfo<std::string>& i) { return i.param; });

}  // namespace
}  // namespace fsdpctl
