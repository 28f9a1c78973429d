// `.metadata`: the fold against the general pickle machine on every real file, and against pickles made for the purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "formats/codec/pickle_reader.h"
#include "formats/dcp_metadata.h"
#include "formats/dcp_metadata_writer.h"
#include "lib/base/box.h"
#include "tests/support/error_of.h"
#include "tests/support/python_metadata.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::string_literals;

std::string file_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

DcpMetadata fold(const std::string& pickle, FindingSink& sink) {
  const DcpRead read = [&](uint64_t at, std::span<std::byte> out) { std::memcpy(out.data(), pickle.data() + at, out.size()); };
  return read_dcp_metadata(read, pickle.size(), ".metadata", sink);
}
DcpMetadata fold(const std::string& pickle) {
  FindingSink sink;
  return fold(pickle, sink);
}

// ---- what it means, as text, from either side

// Entries in their order, then the items, sorted.
using Lines = std::vector<std::string>;

std::string path_of(const DcpMetadata& m, const DcpEntry& e) {
  std::string text;
  for (uint32_t i = 0; i < e.element_count; ++i) {
    const DcpPathElement& p = m.elements[e.first_element + i];
    text += p.is_key() ? " '" + std::string(p.key()) + "'" : " " + std::to_string(p.index);
  }
  return text;
}

Lines lines_of(const DcpMetadata& m) {
  Lines lines;
  for (const DcpEntry& e : m.entries) {
    std::string line = std::string(e.fqn) + ":" + path_of(m, e);
    if (e.is_bytes) {
      lines.push_back(line + " bytes");
      continue;
    }
    line += " " + std::string(dtype_name(e.dtype)) + dims_text(e.shape);
    for (uint32_t c = e.first_chunk; c < e.first_chunk + e.chunk_count; ++c) {
      line += " " + dims_text(m.chunks[c].box.offset) + dims_text(m.chunks[c].box.size);
    }
    lines.push_back(line);
  }
  const auto entries = static_cast<ptrdiff_t>(lines.size());
  for (uint32_t c = 0; c < m.chunks.size(); ++c) {
    const Piece& chunk = m.chunks[c];
    if (chunk.source == kNoDcpFile) continue;
    const DcpEntry& e = m.entries.at(chunk.tensor);
    lines.push_back(std::string(e.fqn) + dims_text(chunk.box.offset) + " #" + std::to_string(c - e.first_chunk) + " " + std::string(m.names[chunk.source]) +
                    " " + std::to_string(chunk.offset) + "+" + std::to_string(chunk.length));
  }
  for (const DcpStorage& s : m.storage) {
    std::string line = std::string(m.names[s.name]) + (s.has_box ? dims_text({s.box_offset, s.box_dims}) : "") + " #" + std::to_string(s.index) + " " +
                       std::string(m.names[s.file]) + " " + std::to_string(s.offset) + "+" + std::to_string(s.length);
    for (uint32_t t = 0; t < s.transform_count; ++t) line += " " + std::string(m.names[m.transforms[s.first_transform + t]]);
    lines.push_back(line);
  }
  std::sort(lines.begin() + entries, lines.end());
  return lines;
}

// Fields of an inert object.
const Value& field(const Value& object, std::string_view name) {
  static const Value none{};
  const Value& state = object.node<ObjectNode>().state;
  const Value* found = state.is(Kind::dict) ? state.find(name) : nullptr;
  return found ? *found : none;
}

std::string size_text(const Value& size) {
  std::vector<int64_t> dims;
  for (const Value& v : size.items()) dims.push_back(v.as_integer());
  return dims_text(dims);
}

Lines lines_of(const Value& metadata) {
  Lines lines;
  for (const Entry& e : field(metadata, "state_dict_metadata").entries()) {
    const Value& planner = field(metadata, "planner_data");
    const Value* path = planner.is(Kind::dict) ? planner.find(e.key.text()) : nullptr;
    std::string line = std::string(e.key.text()) + ":";
    if (path) {
      for (const Value& p : path->items()) line += p.is(Kind::string) ? " '" + std::string(p.text()) + "'" : " " + std::to_string(p.as_integer());
    }
    if (e.value.node<ObjectNode>().class_name().ends_with("BytesStorageMetadata")) {
      lines.push_back(line + " bytes");
      continue;
    }
    const std::string_view dtype = field(e.value, "properties").node<ObjectNode>().state.items()[0].text();
    line += " " + std::string(dtype.substr(6)) + size_text(field(e.value, "size"));
    for (const Value& c : field(e.value, "chunks").items()) line += " " + size_text(field(c, "offsets")) + size_text(field(c, "sizes"));
    lines.push_back(line);
  }
  const auto entries = static_cast<ptrdiff_t>(lines.size());
  for (const Entry& e : field(metadata, "storage_data").entries()) {
    const Value &offset = field(e.key, "offset"), &index = field(e.key, "index");
    std::string line = std::string(field(e.key, "fqn").text()) + (offset.is(Kind::none) ? "" : size_text(offset)) + " #" +
                       std::to_string(index.is(Kind::integer) ? index.as_integer() : -1) + " " + std::string(field(e.value, "relative_path").text()) + " " +
                       std::to_string(field(e.value, "offset").as_integer()) + "+" + std::to_string(field(e.value, "length").as_integer());
    if (const Value& t = field(e.value, "transform_descriptors"); t.is(Kind::list)) {
      for (const Value& name : t.items()) line += " " + std::string(name.text());
    }
    lines.push_back(line);
  }
  std::sort(lines.begin() + entries, lines.end());
  return lines;
}

std::vector<fs::path> real_files() {
  std::vector<fs::path> files;
  for (const std::string& root : {test_data(""), shared_fixtures()}) {
    if (root.empty()) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const std::string path = entry.path().string();
      if (path.ends_with(".metadata") && path.find("/damaged/") == std::string::npos) files.push_back(entry.path());
    }
  }
  return files;
}

TEST(DcpMetadata, MeansWhatTheGeneralMachineReads) {
  for (const fs::path& path : real_files()) {
    SCOPED_TRACE(path);
    const std::string pickle = file_text(path);
    FindingSink sink(false);
    PickleHandler plain;
    const Value general = read_pickle(std::as_bytes(std::span(pickle)), plain, "metadata", 0, sink).value;
    EXPECT_EQ(lines_of(fold(pickle, sink)), lines_of(general));
  }
}

// ---- pickles made for the purpose

// A checkpoint of one tensor in one chunk, or what `patch` makes of it.
std::string one_tensor(const std::function<void(DcpMetadataWriter&, std::string&)>& storage = nullptr) {
  std::string out;
  DcpMetadataWriter writer(1, out);
  const int64_t zero[] = {0}, four[] = {4};
  writer.begin();
  writer.begin_items();
  writer.tensor(0, "w", DType::float32, four);
  writer.chunk(zero, four);
  writer.end_tensor();
  writer.end_items();
  writer.end_state_dict();
  writer.begin_items();
  const DcpPathStep path[] = {{"w", -1}};
  writer.path(0, path);
  writer.end_items();
  writer.end_paths();
  writer.file(0, "__0_0.distcp");
  if (storage) {
    storage(writer, out);
  } else {
    writer.begin_items();
    writer.tensor_item(0, 0, zero);
    writer.place(0, 0, 1577);
    writer.end_items();
  }
  writer.end();
  return out;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

TEST(DcpMetadata, WriterAndReaderAgree) {
  std::string out;
  DcpMetadataWriter writer(400, out);
  writer.begin();
  writer.begin_items();
  const std::vector<int64_t> shape = {70000, 2, 3, 4, 5}, offset = {65536, 0, 0, 0, 0}, size = {4464, 2, 3, 4, 5};
  writer.tensor(0, "layers.0.\xC3\xA4", DType::bfloat16, shape);
  writer.chunk(offset, size);
  writer.end_tensor();
  for (uint64_t n = 1; n < 400; ++n) writer.bytes(n, "v" + std::to_string(n));
  writer.end_items();
  writer.end_state_dict();
  writer.begin_items();
  const DcpPathStep path[] = {{"layers", -1}, {{}, 0}, {"", -1}, {{}, 70000}};
  writer.path(0, path);
  writer.end_items();
  writer.end_paths();
  writer.file(300, "__300_0.distcp");
  writer.begin_items();
  writer.tensor_item(0, 300, offset);
  writer.place(300, 0xFFFFFFFFFF, 0x80000000);
  for (uint64_t n = 1; n < 400; ++n) writer.byte_item(n), writer.place(300, n, 1);
  writer.end_items();
  writer.end();

  const DcpMetadata m = fold(out);
  const Lines lines = lines_of(m);
  ASSERT_EQ(lines.size(), 800u);
  EXPECT_EQ(lines[0], "layers.0.\xC3\xA4: 'layers' 0 '' 70000 bfloat16[70000, 2, 3, 4, 5] [65536, 0, 0, 0, 0][4464, 2, 3, 4, 5]");
  EXPECT_EQ(lines[1], "v1: bytes");
  EXPECT_EQ(lines[400], "layers.0.\xC3\xA4[65536, 0, 0, 0, 0] #300 __300_0.distcp 1099511627775+2147483648");
  EXPECT_EQ(lines[401], "v1 #-1 __300_0.distcp 1+1");
  EXPECT_EQ(m.protocol, 2);
  EXPECT_TRUE(m.old_homes);
  EXPECT_EQ(m.property_fields, 5u);
  EXPECT_TRUE(m.has_planner_data);
}

// Objects that look alike are taken at once; here they keep changing: dims, widths of numbers, names as texts and fetched, long names.
TEST(DcpMetadata, ReadsObjectsThatLookDifferentInTurn) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  constexpr uint64_t kTensors = 600;
  std::string out;
  DcpMetadataWriter writer(kTensors, out);
  Lines expected, items;
  std::vector<std::vector<int64_t>> offsets;
  writer.begin();
  writer.begin_items();
  for (uint64_t n = 0; n < kTensors; ++n) {
    std::vector<int64_t> shape, offset, size;
    for (int64_t d = below(6); d > 0; --d) {
      offset.push_back(below(uint64_t{1} << (1 + below(12))));
      size.push_back(1 + below(uint64_t{1} << (1 + below(11))));
      shape.push_back(offset.back() + size.back());
    }
    const std::string name = std::string(static_cast<size_t>(below(n % 50 == 0 ? 400 : 20)), 'n') + "." + std::to_string(n);
    const DType dtype = n % 3 == 0 ? DType::bfloat16 : DType::float32;
    writer.tensor(n, name, dtype, shape);
    writer.chunk(offset, size);
    writer.end_tensor();
    expected.push_back(name + ": " + std::string(dtype_name(dtype)) + dims_text(shape) + " " + dims_text(offset) + dims_text(size));
    items.push_back(name + dims_text(offset));
    offsets.push_back(offset);
  }
  writer.end_items();
  writer.end_state_dict();
  writer.end_paths();
  writer.file(0, "__0_0.distcp");
  writer.file(7, "__7_0.distcp");
  writer.begin_items();
  for (uint64_t n = kTensors; n-- > 0;) {
    const uint64_t file = n % 2 * 7, at = random() >> (10 + below(50)), length = random() >> (10 + below(50));
    writer.tensor_item(n, file, offsets[n]);
    writer.place(file, at, length);
    expected.push_back(items[n] + " #" + std::to_string(file) + " __" + std::to_string(file) + "_0.distcp " + std::to_string(at) + "+" + std::to_string(length));
  }
  writer.end_items();
  writer.end();
  std::sort(expected.begin() + kTensors, expected.end());
  EXPECT_EQ(lines_of(fold(out)), expected);
}

// Names are looked up many at once; the second one comes in another batch than the first.
TEST(DcpMetadata, RefusesANameThatIsListedTwice) {
  std::string out;
  DcpMetadataWriter writer(5000, out);
  writer.begin();
  for (uint64_t n = 0; n < 5000; ++n) {
    if (n % 1000 == 0) writer.begin_items();
    writer.bytes(n, "v" + std::to_string(n % 4999));
    if (n % 1000 == 999) writer.end_items();
  }
  const Finding f = error_of([&] { fold(out); });
  EXPECT_THAT(f.what, HasSubstr("listed twice"));
  EXPECT_EQ(f.found, "v0");
}

std::string string_op(std::string_view text) { return "X"s + static_cast<char>(text.size()) + "\0\0\0"s + std::string(text); }

constexpr std::string_view kOldHome = "torch.distributed._shard.sharded_tensor.metadata";

TEST(DcpMetadata, AcceptsWhatOtherReleasesWrite) {
  const std::string plain = one_tensor();
  const Lines expected = lines_of(fold(plain));
  // torch 2.15: strides as a sixth field.
  const DcpMetadata newest = fold(replaced(plain, "\x89tb", "\x89K\x01\x85tb"));
  EXPECT_EQ(lines_of(newest), expected);
  EXPECT_EQ(newest.property_fields, 6u);
  // Enum members by name, as some builds of Python 3.11 write them.
  const std::string member = "c" + std::string(kOldHome) + "\nMEM_FORMAT_ENCODING\n";
  EXPECT_EQ(lines_of(fold(replaced(plain, member + "K\0\x85R"s, "c__builtin__\ngetattr\n" + member + string_op("TORCH_CONTIGUOUS_FORMAT") + "\x86R"))),
            expected);
  // A module home that nobody has seen, and fields that nobody knows.
  const std::string home = replaced(plain, "torch.distributed.checkpoint.metadata\nMetadata\n", "torch.distributed.elsewhere\nMetadata\n");
  const DcpMetadata other = fold(replaced(home, string_op("planner_data"), string_op("news") + "]" + string_op("planner_data")));
  EXPECT_EQ(lines_of(other), expected);
  EXPECT_THAT(other.unknown_fields, ElementsAre("news"));
  EXPECT_EQ(other.home, "torch.distributed.elsewhere");
  // An OrderedDict of entries; a list where PyTorch has a tuple or Size.
  EXPECT_EQ(lines_of(fold(replaced(plain, string_op("state_dict_metadata") + "}", string_op("state_dict_metadata") + "ccollections\nOrderedDict\n)R"))), expected);
  // No planner_data.
  const DcpMetadata flat = fold(replaced(plain, string_op("planner_data") + "}(", string_op("planner_data") + "N" + string_op("other") + "}("));
  EXPECT_FALSE(flat.has_planner_data);
  EXPECT_EQ(flat.entries[0].element_count, 0u);
}

// Objects that a pickle refers to twice need the second way through.
TEST(DcpMetadata, KeepsWhatIsSharedWhereSomethingIs) {
  const std::string plain = one_tensor();
  const Lines expected = lines_of(fold(plain));
  // The chunk's size is the tensor's own: BINPUT 250 after it is made, BINGET 250 instead of the second.
  const std::string four = "K\x04\x85\x85R";
  const size_t first = plain.find(four), second = plain.find(four, first + 1);
  ASSERT_NE(second, std::string::npos);
  std::string shared = plain;
  shared.replace(second - 2, four.size() + 2, "h\xFA");   // with the reference to torch.Size before it
  shared.insert(first + four.size(), "q\xFA");
  EXPECT_EQ(lines_of(fold(shared)), expected);
}

// Whatever is shared, and however Python wrote it, it means the same.
TEST(DcpMetadata, SharedObjectsMeanTheSameInEveryProtocol) {
  PythonMetadata plain;
  plain.tensors = 7;
  plain.ranks = 5;
  const Lines expected = lines_of(fold(python_metadata(plain)));
  ASSERT_EQ(expected.size(), 7u + 35u);
  EXPECT_THAT(expected[3], HasSubstr("[4, 0][2, 256] [6, 0][2, 256]"));
  for (int protocol = 2; protocol <= 5; ++protocol) {
    for (int shared = 0; shared < 8; ++shared) {
      SCOPED_TRACE(testing::Message() << "protocol " << protocol << ", shared " << shared);
      PythonMetadata what = plain;
      what.protocol = protocol;
      what.shared_sizes = (shared & 1) != 0;
      what.shared_properties = (shared & 2) != 0;
      what.shared_chunk_sizes = (shared & 4) != 0;
      EXPECT_EQ(lines_of(fold(python_metadata(what))), expected);
    }
  }
}

// An object that is fetched at the end makes the reader keep what is fetched, and no more.
TEST(DcpMetadata, RealFilesMeanTheSameWhereSomethingIsShared) {
  size_t tried = 0;
  for (const fs::path& path : real_files()) {
    std::string pickle = file_text(path);
    if (pickle[1] < 4 || pickle.find("\x81\x94}\x94(") > 200) continue;
    SCOPED_TRACE(path);
    FindingSink sink(false), again(false);
    const Lines expected = lines_of(fold(pickle, sink));
    pickle.insert(pickle.size() - 1, "h\3" "0");   // the Metadata itself: BINGET 3, POP
    EXPECT_EQ(lines_of(fold(pickle, again)), expected);
    ++tried;
  }
  EXPECT_GT(tried, 0u);
}

struct Bad {
  std::string name, what, by, message;
  Exit code = Exit::damaged;
};

TEST(DcpMetadata, RefusesWhatIsNone) {
  const std::string plain = one_tensor();
  std::string many_ones;
  for (int i = 0; i < 65; ++i) many_ones += "K\x01";
  const std::vector<Bad> cases = {
      {"no list of tensors", string_op("state_dict_metadata"), string_op("state_dict_metaDATA"), "no state_dict_metadata"},
      {"no list of items", string_op("storage_data"), string_op("storage_DATA"), "no storage_data"},
      {"another class", "metadata\nMetadata\n", "metadata\nStorageMeta\n", "not the metadata"},
      {"dtype that is none", "ctorch\nfloat32\n", "ctorch\nSize\n", "no dtype"},
      {"dtype of the future", "ctorch\nfloat32\n", "ctorch\nint7\n", "unknown dtype", Exit::unsupported},
      {"unsafe function", "ctorch\nfloat32\n", "cposix\nsystem\n", "unsafe callable", Exit::unsupported},
      {"unsafe call", "ctorch\nfloat32\n", "ctorch\nload\n)R", "unsafe callable", Exit::unsupported},
      {"class that takes arguments", "ctorch\nfloat32\n", "h\x03K\x01\x85R", "size is not a tuple"},
      {"offset that is a string", string_op("relative_path"), string_op("relative_PATH"), "no relative_path"},
      {"unknown opcode", "ctorch\nfloat32\n", "\xFF", "unknown pickle opcode"},
      {"memo that was never put", "ctorch\nfloat32\n", "h\xF0", "never stored"},
      {"persistent id", "ctorch\nfloat32\n", "K\x01Q", "outside it", Exit::unsupported},
      {"extension", "ctorch\nfloat32\n", "\x82\x01", "extension", Exit::unsupported},
      {"huge string", "ctorch\nfloat32\n", "X\xFF\xFF\xFF\x7F", "cut short"},
      {"huge memo number", "ctorch\nfloat32\n", "N" "r\xFF\xFF\xFF\x7F", "beyond reason", Exit::unsupported},
      {"size of what is no number", "K\x04\x85\x85R", "N\x85\x85R", "not a tuple of integers"},
      {"too many dims", "K\x04\x85\x85R", "(" + many_ones + "t\x85R", "no size"},
      {"stack underflow", "ctorch\nfloat32\n", std::string(200, '0'), "underflow"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.name);
    const Finding f = error_of([&] { fold(replaced(plain, bad.what, bad.by)); });
    EXPECT_THAT(f.what, HasSubstr(bad.message));
    EXPECT_EQ(f.code, bad.code);
    EXPECT_EQ(f.where.path, ".metadata");
    EXPECT_TRUE(f.where.offset.has_value());
  }
}

TEST(DcpMetadata, RefusesImpossibleShapes) {
  const int64_t big[] = {int64_t{1} << 40, int64_t{1} << 40}, zero[] = {0, 0};
  std::string out;
  DcpMetadataWriter writer(1, out);
  writer.begin();
  writer.begin_items();
  writer.tensor(0, "w", DType::float32, big);
  writer.chunk(zero, big);
  writer.end_tensor();
  writer.end_items();
  const Finding f = error_of([&] { fold(out); });
  EXPECT_THAT(f.what, HasSubstr("impossible shape"));
  EXPECT_EQ(f.found, "[1099511627776, 1099511627776]");
}

// Cut anywhere, it is refused; with any byte changed it is read or refused, and nothing else happens.
TEST(DcpMetadata, SurvivesEveryCutAndEveryByte) {
  std::vector<std::string> pickles = {one_tensor(), file_text(test_data("2.13.0/dcp-mini-w2/ckpt/.metadata"))};
  for (const std::string& pickle : pickles) {
    ASSERT_GT(pickle.size(), 500u);
    for (size_t n = 0; n < pickle.size(); ++n) {
      EXPECT_THROW(fold(pickle.substr(0, n)), Error) << n;
      for (int change : {1, 0x80, 0x7F, 0xFF}) {
        std::string changed = pickle;
        changed[n] = static_cast<char>(changed[n] ^ change);
        FindingSink sink(false);
        try {
          lines_of(fold(changed, sink));
        } catch (const Error&) {
        }
      }
    }
  }
}

TEST(DcpMetadata, IsOneFileThatFollowsItsWindow) {
  // Many names: the file is read in many steps, and strings lie across their borders.
  constexpr uint64_t kNames = 20000;
  std::string out;
  DcpMetadataWriter writer(kNames, out);
  auto name = [](uint64_t n) { return std::string(n % 300, 'x') + std::to_string(n); };
  writer.begin();
  writer.begin_items();
  for (uint64_t n = 0; n < kNames; ++n) writer.bytes(n, name(n));
  writer.end_items();
  writer.end_state_dict();
  writer.end_paths();
  writer.file(0, "__0_0.distcp");
  writer.begin_items();
  for (uint64_t n = kNames; n-- > 0;) writer.byte_item(n), writer.place(0, n, 1);
  writer.end_items();
  writer.end();
  uint64_t largest = 0, next = 0;
  const DcpRead read = [&](uint64_t at, std::span<std::byte> bytes) {
    EXPECT_EQ(at, next);   // front to back, nothing twice
    next = at + bytes.size();
    largest = std::max<uint64_t>(largest, bytes.size());
    std::memcpy(bytes.data(), out.data() + at, bytes.size());
  };
  FindingSink sink;
  const DcpMetadata m = read_dcp_metadata(read, out.size(), ".metadata", sink);
  ASSERT_EQ(m.entries.size(), kNames);
  for (uint64_t n = 0; n < kNames; ++n) {
    ASSERT_EQ(m.entries[n].fqn, name(n));
    ASSERT_EQ(m.names[m.storage[n].name], name(kNames - 1 - n));
    ASSERT_EQ(m.storage[n].entry, kNames - 1 - n);
  }
  EXPECT_GT(out.size(), 10 * largest);
}

}  // namespace
}  // namespace fsdpctl
