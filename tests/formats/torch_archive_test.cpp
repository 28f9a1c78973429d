// Reading torch.save files: what real PyTorch wrote, element by element, and what no reader may accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/torch_file.h"
#include "lib/ckpt/source.h"
#include "tests/support/error_of.h"
#include "tests/support/slow_reference.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Checkpoint open_file(const std::string& path, FindingSink& sink) {
  Checkpoint c;
  c.source = Source::open(path);
  c.tree = read_torch_file(c, c.source->add(base_name(path)), 0, sink, &c.format_detail);
  c.finish(sink);
  resolve_pieces(c, 1, sink);
  return c;
}

Checkpoint open_file(const std::string& path) {
  FindingSink sink;
  return open_file(path, sink);
}

std::string sha256(const std::string& bytes) {
  Sha256 sum;
  sum.update(std::as_bytes(std::span(bytes)));
  return sum.hex();
}

class TensorCollector : public TreeVisitor {
 public:
  explicit TensorCollector(const Checkpoint& c) : checkpoint_(c) {}
  void leaf(std::string_view path, const Value& value) override {
    if (!value.is(Kind::tensor)) {
      ++values;
      return;
    }
    const TensorIndex t = value.as_tensor().index;
    const TensorInfo& info = checkpoint_.tensors[t];
    tensors[std::string(path)] = {{"dtype", dtype_name(info.dtype)},
                                  {"shape", std::vector<int64_t>(info.shape.begin(), info.shape.end())},
                                  {"sha256", sha256(slow_read(checkpoint_, t))}};
  }
  std::map<std::string, nlohmann::json> tensors;
  size_t values = 0;

 private:
  const Checkpoint& checkpoint_;
};

// Files of one fixture, with what real PyTorch reads in them.
struct File {
  std::string path;
  nlohmann::json stored;
};
void PrintTo(const File& f, std::ostream* out) { *out << f.path; }

std::vector<File> files_of(const std::string& root) {
  std::vector<File> files;
  for (const char* folder : {"plain", "odd-torch", "dcp-from-torch-save"}) {
    const std::string directory = root + "/" + folder;
    if (!fs::exists(directory + "/expected.json")) continue;
    const nlohmann::json expected = nlohmann::json::parse(std::ifstream(directory + "/expected.json"));
    for (const auto& [name, stored] : expected.at("stored").items()) {
      if (name.ends_with(".pt") && !stored.contains("unloadable")) files.push_back({directory + "/" + name, stored});
    }
  }
  return files;
}

std::vector<File> all_files() {
  std::vector<File> files = files_of(test_data("2.13.0"));
  if (shared_fixtures().empty()) return files;
  for (const char* version : {"2.4.1", "2.9.1", "2.13.0"}) {
    for (File& f : files_of(shared_fixtures() + "/" + version)) files.push_back(std::move(f));
  }
  return files;
}

class TorchFile : public testing::TestWithParam<File> {};

TEST_P(TorchFile, HasTheTensorsThatPyTorchReads) {
  const Checkpoint c = open_file(GetParam().path);
  TensorCollector collector(c);
  walk_tree(c.tree, collector);
  const auto& expected = GetParam().stored.at("tensors");
  EXPECT_EQ(collector.tensors.size(), expected.size());
  for (const auto& [name, tensor] : expected.items()) EXPECT_EQ(collector.tensors[name], tensor) << name;
  EXPECT_EQ(collector.values, GetParam().stored.at("values").size());
}

std::string file_name(const testing::TestParamInfo<File>& info) {
  std::string name = fs::path(info.param.path).lexically_normal().string();
  name = std::to_string(info.index) + name.substr(name.rfind('/', name.rfind('/') - 1));
  std::replace_if(name.begin(), name.end(), [](unsigned char ch) { return !std::isalnum(ch); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Real, TorchFile, testing::ValuesIn(all_files()), file_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TorchFile);

TEST(TorchFiles, ArePresent) {
  if (all_files().empty()) GTEST_SKIP() << "no fixtures beside the repository or under tests/data";
}

// What each damaged file must end with when it is opened, and words of its message.
struct Damage {
  const char* folder;
  Exit code;
  const char* words;
};
void PrintTo(const Damage& d, std::ostream* out) { *out << d.folder; }

constexpr Damage kDamages[] = {
    {"legacy-bad-magic", Exit::damaged, "wrong magic number"},
    {"legacy-truncated", Exit::damaged, "cut short"},
    {"pickle-billion-laughs", Exit::unsupported, ""},
    {"pickle-deep-lists", Exit::unsupported, ""},
    {"pickle-huge-binunicode", Exit::damaged, "cut short"},
    {"pickle-huge-long4", Exit::damaged, "cut short"},
    {"pickle-no-stop", Exit::damaged, "cut short"},
    {"pickle-os-system", Exit::unsupported, "os.system"},
    {"pickle-posix-system-legacy", Exit::unsupported, "posix.system"},
    {"pickle-setitem-on-int", Exit::damaged, ""},
    {"pickle-storage-huge-numel", Exit::unsupported, "impossible size"},
    {"pickle-unknown-opcode", Exit::damaged, "opcode"},
    {"pickle-view-out-of-bounds", Exit::damaged, "outside its storage"},
    {"zip-bomb-deflate", Exit::damaged, "expected 16 bytes, found 40000000"},
    {"zip-duplicate-member", Exit::unsupported, "duplicate"},
    {"zip-encrypted-flag", Exit::unsupported, "encrypted"},
    {"zip-header-outside", Exit::damaged, "outside"},
    {"zip-member-traversal", Exit::unsupported, "leaves the archive"},
    {"zip-no-pickle", Exit::damaged, "no data.pkl"},
    {"zip-storage-short", Exit::damaged, "expected 16 bytes, found 8"},
    {"zip-truncated-1", Exit::damaged, "no end record"},
    {"zip-truncated-half", Exit::damaged, "no end record"},
    {"zip-two-prefixes", Exit::damaged, "one folder"},
    {"zip-empty", Exit::damaged, ""},
    {"lfs-pointer", Exit::damaged, ""},
};

class DamagedTorchFile : public testing::TestWithParam<Damage> {};

TEST_P(DamagedTorchFile, IsRefused) {
  if (shared_fixtures().empty()) GTEST_SKIP() << "no fixtures beside the repository";
  const Damage& d = GetParam();
  const std::string path = shared_fixtures() + "/damaged/" + d.folder + "/x.pt";
  try {
    open_file(path);
    FAIL() << "was read";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), d.code) << e.what();
    EXPECT_THAT(e.what(), HasSubstr(d.words));
    EXPECT_EQ(e.finding().where.path, "x.pt") << e.what();
  }
}
INSTANTIATE_TEST_SUITE_P(Shared, DamagedTorchFile, testing::ValuesIn(kDamages));

// Tensors that are more than bytes, a shape and strides, and classes of the user's own: kept, with a warning each.
TEST(TorchFiles, FlagWhatTheyKeepWithoutUnderstanding) {
  const std::string odd = test_data("2.13.0/odd-torch");
  if (!fs::exists(odd)) GTEST_SKIP() << "no odd-torch under tests/data";
  struct Kept {
    const char* file;
    std::string warning;
    size_t storages;
  };
  for (const Kept& kept : {Kept{"quantized.pt", "torch._utils._rebuild_qtensor", 1}, Kept{"sparse.pt", "_rebuild_sparse_tensor", 0},
                           Kept{"meta_device.pt", "_rebuild_meta_tensor_no_storage", 0},
                           Kept{"subclass.pt", "subclass fx_private_mod.Sub", 1}, Kept{"foreign.pt", "fx_private_mod", 0}}) {
    FindingSink sink;
    const Checkpoint c = open_file(odd + "/" + kept.file, sink);
    std::string warnings;
    for (const Finding& f : sink.all()) warnings += f.what + ": " + f.found + "\n";
    EXPECT_THAT(warnings, HasSubstr(kept.warning)) << kept.file;
    size_t storages = 0;
    for (const TensorInfo& t : c.tensors) storages += t.role == Role::storage;
    EXPECT_EQ(storages, kept.storages) << kept.file;
  }
  for (const char* file : {"selfref.pt", "whole_module.pt"}) {
    EXPECT_EQ(error_of([&] { open_file(odd + "/" + file); }).code, Exit::unsupported) << file;
  }
}

TEST(TorchFiles, UnusualOnesAreRead) {
  if (shared_fixtures().empty()) GTEST_SKIP() << "no fixtures beside the repository";
  const std::string damaged = shared_fixtures() + "/damaged/";
  const Checkpoint big = open_file(damaged + "zip-big-endian/x.pt");
  ASSERT_EQ(big.tensors.size(), 1u);
  const float expected[] = {0, 1, 2, 3};
  EXPECT_EQ(slow_read(big, 0), std::string(reinterpret_cast<const char*>(expected), sizeof expected));
  EXPECT_TRUE(big.pieces[0].swap);

  const Checkpoint plain = open_file(shared_fixtures() + "/2.13.0/plain/model_only.pt");
  const Checkpoint rezipped = open_file(damaged + "zip-rezipped/x.pt");
  ASSERT_EQ(rezipped.tensors.size(), plain.tensors.size());
  for (TensorIndex t = 0; t < plain.tensors.size(); ++t) {
    EXPECT_EQ(rezipped.tensors[t].key, plain.tensors[t].key);
    EXPECT_EQ(slow_read(rezipped, t), slow_read(plain, t));
    EXPECT_TRUE(rezipped.source->file(rezipped.pieces[t].source).spool);
    EXPECT_TRUE(rezipped.pieces[t].has_crc32);
  }
}

}  // namespace
}  // namespace fsdpctl
