// Writing torch.save files: our own reader, and real PyTorch, find in them what went in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "formats/codec/torch_archive.h"
#include "formats/torch.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/placement.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/process.h"
#include "tests/support/slow_reference.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Checkpoint open_torch(const std::string& path) {
  FindingSink sink;
  Checkpoint c = torch_format()->open(Source::open(path), sink);
  resolve_pieces(c, 1, sink);
  return c;
}

void write_torch(const Checkpoint& c, const std::string& path) {
  const TargetPlacement placement(1, std::vector<TargetPlacement::Row>(c.tensors.size()));
  Target target;
  target.placement = &placement;
  target.file_name = base_name(path);
  const FilePlan plan = torch_format()->lay_out(c, target);
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0]->path(), target.file_name);
  std::ofstream(path, std::ios::binary) << slow_write(c, *plan[0]);
}

std::vector<Finding> carried(const Checkpoint& c) {
  FindingSink sink;
  torch_format()->can_carry(c, Target{}, sink);
  return sink.all();
}

std::string carried_text(const Checkpoint& c) {
  std::string text;
  for (const Finding& f : carried(c)) {
    EXPECT_EQ(f.severity, Severity::warning);
    text += f.where.key + ": " + f.what + ": " + f.found + "\n";
  }
  return text;
}

// What a checkpoint says apart from where its bytes are: the tree with tensors by key, and the tensors' bytes.
class Content : public TreeVisitor {
 public:
  explicit Content(const Checkpoint& c) : checkpoint_(c) { walk_tree(c.tree, *this); }
  void leaf(std::string_view path, const Value& value) override {
    std::string& text = leaves[std::string(path)];
    if (!value.is(Kind::tensor)) {
      text = value_to_json(value, JsonForm::canonical);
      return;
    }
    const TensorLeaf leaf = value.as_tensor();
    const TensorInfo& info = checkpoint_.tensors[leaf.index];
    text = std::string(info.key) + (leaf.parameter ? " parameter" : "") + (leaf.requires_grad ? " grad " : " ") +
           std::string(dtype_name(info.dtype)) + dims_text(info.shape) + slow_read(checkpoint_, leaf.index) +
           value_to_json(value.tensor_attributes(), JsonForm::canonical);
  }
  std::map<std::string, std::string> leaves;

 private:
  const Checkpoint& checkpoint_;
};

std::vector<std::string> readable_files() {
  std::vector<std::string> paths;
  std::vector<std::string> roots = {test_data("2.13.0")};
  if (!shared_fixtures().empty()) {
    for (const char* version : {"/2.4.1", "/2.9.1", "/2.13.0"}) roots.push_back(shared_fixtures() + version);
  }
  for (const std::string& root : roots) {
    for (const char* folder : {"/plain", "/odd-torch"}) {
      if (!fs::exists(root + folder)) continue;
      for (const auto& entry : fs::directory_iterator(root + folder)) {
        const std::string name = entry.path().filename();
        if (name.ends_with(".pt") && name != "selfref.pt" && name != "whole_module.pt") paths.push_back(entry.path());
      }
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(TorchWrite, ReadsBackWhatItWrote) {
  const auto paths = readable_files();
  if (paths.empty()) GTEST_SKIP() << "no fixtures";
  TempDir out;
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    const Checkpoint source = open_torch(path);
    write_torch(source, out / "copy.v1.pt");
    const Checkpoint copy = open_torch(out / "copy.v1.pt");
    EXPECT_EQ(Content(copy).leaves, Content(source).leaves);
    ASSERT_EQ(copy.aliases.size(), source.aliases.size());
    for (size_t i = 0; i < copy.aliases.size(); ++i) {
      EXPECT_EQ(copy.aliases[i].key, source.aliases[i].key);
      EXPECT_EQ(copy.tensors[copy.aliases[i].tensor].key, source.tensors[source.aliases[i].tensor].key);
    }
    for (const Piece& p : copy.pieces) {
      EXPECT_TRUE(p.strides.empty());
      EXPECT_EQ(p.offset % 64, 0u);
      EXPECT_TRUE(p.has_crc32 || p.length == 0);
    }
    // The second copy is the first one, byte for byte.
    fs::create_directory(out / "again");
    write_torch(copy, out / "again/copy.v1.pt");
    std::ifstream a(out / "copy.v1.pt", std::ios::binary), b(out / "again/copy.v1.pt", std::ios::binary);
    EXPECT_TRUE(std::equal(std::istreambuf_iterator<char>(a), {}, std::istreambuf_iterator<char>(b), {}));
  }
}

class ZeroCrcs : public ItemCrcs {
 public:
  explicit ZeroCrcs(const TorchArchiveLayout& layout) : layout_(layout) {}
  uint32_t crc32(uint64_t item) const override {
    SegmentList list;
    layout_.segments(item, list);
    const std::string zeros(list.segments.at(1).length, '\0');
    return fsdpctl::crc32(std::as_bytes(std::span(zeros)));
  }

 private:
  const TorchArchiveLayout& layout_;
};

// The archive with zeros for tensors.
std::string render_zeros(const TorchArchiveLayout& layout) {
  std::string out;
  const ZeroCrcs crcs(layout);
  SegmentList list;
  for (uint64_t item = 0; item < layout.item_count(); ++item) {
    EXPECT_EQ(layout.item_offset(item), out.size());
    layout.segments(item, list);
    for (const Segment& s : list.segments) {
      EXPECT_EQ(s.offset, out.size());
      const size_t before = out.size();
      if (s.kind == Segment::Kind::tensor) out.append(s.length, '\0');
      else layout.render(item, s, s.kind == Segment::Kind::rendered_late ? &crcs : nullptr, out);
      EXPECT_EQ(out.size() - before, s.length) << "item " << item << " part " << s.part;
    }
  }
  EXPECT_EQ(out.size(), layout.size());
  return out;
}

// Bare tensors: the long way of writing (TorchArchiveLayout) and the short one (items) mean the same.
TEST(TorchWrite, BareTensorsAreItems) {
  for (const DType dtype : {DType::float32, DType::float8_e4m3fn, DType::boolean, DType::complex32}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {3}, {300, 2}, {0, 4}, {2, 3, 4, 5}, {70000}}) {
      MadeCheckpoint made;
      made.checkpoint.tree = made.tensor("t", shape, dtype);
      const std::string archive = render_zeros(TorchArchiveLayout(made.checkpoint, made.checkpoint.tree, "archive"));
      const TensorItemFrame frame = frame_tensor_item(dtype, shape);
      std::string item, zeros(frame.data, '\0');
      write_tensor_item_prefix(dtype, shape, item);
      item += zeros;
      write_tensor_item_suffix(dtype, shape, crc32(std::as_bytes(std::span(zeros))), item);
      const auto read = [](const std::string& bytes) {
        const Bytes all = std::as_bytes(std::span(bytes));
        return read_tensor_item(all, all, bytes.size(), [](uint64_t, std::span<std::byte>) { FAIL() << "not the fast way"; }, "x", 0);
      };
      const TensorItem a = read(archive), b = read(item);
      EXPECT_EQ(a.dtype, dtype);
      EXPECT_EQ(a.shape, shape);
      EXPECT_EQ(b.dtype, a.dtype);
      EXPECT_EQ(b.shape, a.shape);
      EXPECT_EQ(b.strides, a.strides);
      EXPECT_EQ(b.data_length, a.data_length);
      EXPECT_EQ(b.crc32, a.crc32);
      EXPECT_EQ(b.has_crc32, a.has_crc32);
    }
  }
}

TEST(TorchWrite, NamesTheArchiveAsPyTorchDoes) {
  EXPECT_EQ(torch_archive_prefix("ckpt.step10.pt"), "ckpt.step10");
  EXPECT_EQ(torch_archive_prefix("a/b/c.pt"), "c");
  EXPECT_EQ(torch_archive_prefix("a\\c.pt"), "c");
  EXPECT_EQ(torch_archive_prefix("model"), "model");
  EXPECT_EQ(torch_archive_prefix(".pt"), "archive");
  EXPECT_EQ(torch_archive_prefix("mod\xC3\xA8le.pt"), "archive");
}

// Slices of a big front and a big directory fit together.
TEST(TorchWrite, ManyTensors) {
  MadeCheckpoint made;
  std::vector<Entry> entries;
  for (int i = 0; i < 20000; ++i) {
    const std::string key = "layers." + std::to_string(i) + ".a_long_name_to_make_the_pickle_longer_than_one_slice.weight";
    entries.push_back({Value::string(key), made.tensor(key, {i % 3})});
  }
  made.checkpoint.tree = Value::mapping(Kind::dict, std::move(entries));
  const TorchArchiveLayout layout(made.checkpoint, made.checkpoint.tree, "x");
  EXPECT_EQ(layout.item_count(), 20002u);
  render_zeros(layout);
  SegmentList segments;
  layout.segments(0, segments);
  EXPECT_GT(segments.segments.size(), 1u);
}

TEST(TorchWrite, ListsWhatNeedsFullTrust) {
  const std::string odd = test_data("2.13.0/odd-torch/");
  if (!fs::exists(odd)) GTEST_SKIP() << "no odd-torch under tests/data";
  const std::string text = carried_text(open_torch(odd + "containers.pt"));
  EXPECT_THAT(text, HasSubstr("frozenset: "));
  EXPECT_THAT(text, HasSubstr("empty.5: torch.load needs weights_only=False for this value: empty bytes"));
  EXPECT_THAT(text, HasSubstr("range: "));
  EXPECT_THAT(text, HasSubstr("slice: "));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(carried_text(open_torch(odd + "params.pt")), "");
  EXPECT_EQ(carried_text(open_torch(odd + "quantized.pt")), "");
  EXPECT_EQ(carried_text(open_torch(odd + "sparse.pt")), "");
  EXPECT_THAT(carried_text(open_torch(odd + "foreign.pt")), HasSubstr("fx_private_mod.Thing"));
}

TEST(TorchWrite, ListsViewsThatBecomeCopies) {
  const std::string odd = test_data("2.13.0/odd-torch/");
  if (!fs::exists(odd)) GTEST_SKIP() << "no odd-torch under tests/data";
  const std::string text = carried_text(open_torch(odd + "views.pt"));
  for (const char* name : {"base", "slice", "strided", "matrix", "transposed"}) {
    EXPECT_THAT(text, HasSubstr(std::string(name) + ": tensor shares bytes"));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
}

// ---- real PyTorch

constexpr const char* kCompare = R"(
import sys, types, torch
class Foreign(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        def restore(s, st): s.state = st
        if name == "Sub": cls = type(name, (torch.Tensor,), {"__module__": self.__name__})
        elif name == "Point": cls = type(name, (tuple,), {"__module__": self.__name__, "__new__": lambda c, *a: tuple.__new__(c, a)})
        else: cls = type(name, (), {"__module__": self.__name__, "__init__": lambda s, *a, **k: setattr(s, "args", (a, k)), "__setstate__": restore})
        setattr(self, name, cls); return cls
sys.modules["fx_private_mod"] = Foreign("fx_private_mod")
from torch.utils.serialization import config
config.load.calculate_storage_offsets = True   # asserts that computed offsets are the real ones (TORCH_SERIALIZATION_DEBUG)

def load(path, **kw):
    try: return torch.load(path, weights_only=True, **kw), True
    except Exception: return torch.load(path, weights_only=False, **kw), False

def plain(t): return t.detach().resolve_conj().resolve_neg()

def same(a, b, at):
    assert type(a) is type(b), (at, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.layout == b.layout and a.device == b.device, at
        assert a.requires_grad == b.requires_grad and type(a) is type(b), at
        same({k: v for k, v in a.__dict__.items()}, b.__dict__, at + ".__dict__")
        if a.device.type == "meta": return
        if a.layout is torch.sparse_coo: return same((a._indices(), a._values()), (b._indices(), b._values()), at)
        if a.layout is torch.sparse_csr: return same((a.crow_indices(), a.col_indices(), a.values()), (b.crow_indices(), b.col_indices(), b.values()), at)
        if a.is_quantized:
            assert a.qscheme() == b.qscheme() and a.q_scale() == b.q_scale() and a.q_zero_point() == b.q_zero_point(), at
            a, b = a.int_repr(), b.int_repr()
        a, b = plain(a).contiguous().reshape(-1), plain(b).contiguous().reshape(-1)
        if a.numel():
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), at
    elif isinstance(a, dict):
        assert list(map(repr, a)) == list(map(repr, b)), at
        for (k, x), (_, y) in zip(a.items(), b.items()): same(x, y, at + "." + str(k))
        if hasattr(a, "_metadata"): same(a._metadata, b._metadata, at + "._metadata")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b)): same(x, y, at + "." + str(i))
    elif hasattr(a, "__dict__") and not isinstance(a, type):
        same(a.__dict__, b.__dict__, at)
    else:
        assert repr(a) == repr(b), (at, repr(a)[:200], repr(b)[:200])

for line in sys.stdin.read().splitlines() if len(sys.argv) < 2 else open(sys.argv[1]).read().splitlines():
    source, copy, listed = line.split("\t")
    config.load.calculate_storage_offsets = False
    a, trusted = load(source, map_location="cpu")
    config.load.calculate_storage_offsets = True
    b, only = load(copy)
    same(a, b, "")
    assert only == (listed == "0"), (copy, "weights_only", only, "warnings", listed)
    if not source.endswith("quantized.pt"):
        c = torch.load(copy, weights_only=only, mmap=True)
        same(a, c, "mmap")
print("same")
)";

TEST(TorchWrite, RealPyTorchReadsTheSame) {
  const std::string python = torch_python();
  if (python.empty()) GTEST_SKIP() << kNoTorch;
  const auto paths = readable_files();
  if (paths.empty()) GTEST_SKIP() << "no fixtures";
  TempDir out;
  std::ofstream list(out / "list.txt");
  for (size_t i = 0; i < paths.size(); ++i) {
    const Checkpoint source = open_torch(paths[i]);
    const std::string copy = out / (std::to_string(i) + ".copy.pt");
    write_torch(source, copy);
    size_t untrusted = 0;
    for (const Finding& f : carried(source)) untrusted += f.what.find("weights_only") != std::string::npos;
    list << paths[i] << '\t' << copy << '\t' << untrusted << '\n';
  }
  list.close();
  ProcessOptions options;
  options.environment = {"TORCH_SERIALIZATION_DEBUG=1"};
  const ProcessResult r = run_process({python, "-W", "ignore", "-c", kCompare, out / "list.txt"}, options);
  EXPECT_EQ(r.out, "same\n") << r.err;
  EXPECT_EQ(r.exit_code, 0);
}

}  // namespace
}  // namespace fsdpctl
