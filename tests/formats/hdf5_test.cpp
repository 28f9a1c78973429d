// The format hdf5: what h5py reads of ours, what we read of h5py's, and what must not happen.
#include "formats/hdf5.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/annotations.h"
#include "formats/hdf5_names.h"
#include "formats/isolated.h"
#include "formats/safetensors.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/renumber.h"
#include "tests/support/error_of.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/process.h"
#include "tests/support/slow_reference.h"
#include "tests/support/slow_tensors.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Checkpoint open_with(const Format& format, const std::string& path, FindingSink& sink) {
  Checkpoint c = format.open(Source::open(path), sink);
  resolve_pieces(c, 1, sink);
  return c;
}
Checkpoint open_path(const std::string& path, FindingSink& sink) { return open_with(*hdf5_format(), path, sink); }
Checkpoint open_path(const std::string& path) {
  FindingSink sink;
  return open_path(path, sink);
}
Checkpoint open_safetensors(const std::string& path) {
  FindingSink sink;
  return open_with(*safetensors_format(), path, sink);
}

void write(const Checkpoint& checkpoint, const std::string& path) {
  const TargetPlacement placement(1, std::vector<TargetPlacement::Row>(checkpoint.tensors.size()));
  Target target;
  target.placement = &placement;
  target.file_name = fs::path(path).filename().string();
  FindingSink sink;
  const auto format = hdf5_format();
  format->can_carry(checkpoint, target, sink);
  const FilePlan plan = format->lay_out(checkpoint, target);
  ASSERT_EQ(plan.size(), 1u);
  std::ofstream(path, std::ios::binary) << slow_write(checkpoint, *plan[0]);
}

ProcessResult python(const std::string& code, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {torch_python(), "-c", "import sys, json, h5py, numpy as np\n" + code};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_process(argv);
}

// A tree over the tensors of a real file: model, optimizer, RNG, tied names, awkward names, all dtypes.
class Hdf5 : public testing::Test {
 protected:
  Hdf5() : checkpoint_(open_safetensors(test_data("2.13.0/hf-safetensors/dtypes/all.safetensors"))) {}

  Value t(std::string_view key) const { return Value::tensor({*open_.find(key), false, false}); }

  void set_tree(Value tree) {
    checkpoint_.tree = std::move(tree);
    FindingSink sink;
    checkpoint_.finish(sink);
  }

  Value rest(const std::vector<std::string>& without) const {
    MadeEntries entries;
    for (TensorIndex i = 0; i < open_.tensors.size(); ++i) {
      const std::string key(open_.tensors[i].key);
      if (std::find(without.begin(), without.end(), key) == without.end()) entries.emplace_back(key, Value::tensor({i, false, false}));
    }
    return dict(entries);
  }

  void set_training_tree() {
    const Value state = dict({{"w", dict({{"step", t("scalar")}, {"exp_avg", t("float32")}})}, {"bfloat16", dict({{"step", Value::integer(5)}, {"exp_avg", t("float64")}})}});
    const Value group = dict({{"lr", Value::real(1e-3)}, {"betas", Value::sequence(Kind::tuple, {Value::real(0.9), Value::real(0.999)})}, {"params", names({"w", "bfloat16"})}});
    Value model = rest({"scalar", "float32", "float64", "uint8"});
    model.mutable_entries().push_back({Value::string("tied"), t("bfloat16")});
    set_tree(dict({{"model", model}, {"optim", dict({{"state", state}, {"param_groups", list({group})}})}, {"rng", t("uint8")}, {"epoch", Value::integer(3)},
                   {"sched", dict({{"last_lr", list({Value::real(0.5)})}})}}));
  }

  Checkpoint round_trip() {
    write(checkpoint_, path_);
    FindingSink sink;
    Checkpoint back = open_path(path_, sink);
    EXPECT_TRUE(sink.all().empty());
    EXPECT_EQ(slow_tensors(back), slow_tensors(checkpoint_));
    std::vector<TensorIndex> number;
    for (const TensorInfo& info : checkpoint_.tensors) number.push_back(back.find(info.key).value_or(0));
    EXPECT_TRUE(equal(renumbered(checkpoint_.tree, number), back.tree)) << value_to_json(back.tree, JsonForm::stored);
    return back;
  }

  TempDir dir_;
  std::string path_ = dir_ / "out.h5";
  Checkpoint checkpoint_;
  const Checkpoint open_ = checkpoint_;   // as it was opened
};

TEST_F(Hdf5, EveryDtypeAndTheTreeComeBack) {
  round_trip();
  set_training_tree();
  const Checkpoint back = round_trip();
  EXPECT_EQ(back.aliases.size(), 1u);
}

TEST_F(Hdf5, TreesThatAreNoMappingComeBack) {
  MadeCheckpoint made;
  for (const Value& tree : {Value(), Value::integer(5), list({Value::string("x")})}) {
    made.checkpoint.tree = tree;
    write(made.checkpoint, path_);
    FindingSink sink;
    EXPECT_TRUE(equal(open_path(path_, sink).tree, tree)) << value_to_json(tree, JsonForm::stored);
    EXPECT_TRUE(sink.all().empty());
  }
}

TEST_F(Hdf5, WritingTwiceGivesTheSameBytes) {
  set_training_tree();
  write(checkpoint_, dir_ / "a.h5");
  write(checkpoint_, dir_ / "b.h5");
  EXPECT_EQ(get_file(dir_ / "a.h5"), get_file(dir_ / "b.h5"));
  write(open_path(dir_ / "a.h5"), dir_ / "c.h5");
  EXPECT_EQ(get_file(dir_ / "a.h5"), get_file(dir_ / "c.h5"));
}

TEST_F(Hdf5, AwkwardNamesComeBack) {
  const std::vector<std::string> awkward = {"a/b", ".", "..", "", "a%2Fb", "%", "\xED\xA0\x80", std::string("nul\0", 4), "caf\xC3\xA9", "/", "a.b"};
  MadeEntries entries;
  for (size_t i = 0; i < awkward.size(); ++i) entries.emplace_back(awkward[i], Value::tensor({static_cast<TensorIndex>(i), false, false}));
  for (size_t i = awkward.size(); i < open_.tensors.size(); ++i) entries.emplace_back(fmt::format("t{}", i), Value::tensor({static_cast<TensorIndex>(i), false, false}));
  entries.emplace_back("tied", entries[0].second);
  set_tree(dict({{"model", dict(entries)}}));
  round_trip();
  std::vector<std::string> links;
  for (const std::string& name : awkward) {
    links.push_back(hdf5_link_name(name));
    EXPECT_EQ(links.back().find('/'), std::string::npos);
    EXPECT_FALSE(links.back().empty());
  }
  std::sort(links.begin(), links.end());
  EXPECT_EQ(std::adjacent_find(links.begin(), links.end()), links.end());
  EXPECT_EQ(hdf5_link_name("layers.0.weight"), "layers.0.weight");
}

TEST_F(Hdf5, H5pyReadsEveryDtype) {
  if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
  write(checkpoint_, path_);
  const ProcessResult r = python(R"(
import torch
from safetensors.torch import load_file
real = load_file(sys.argv[2])
wide = {"bfloat16": "float32", "float8_e5m2": "float16"}
with h5py.File(sys.argv[1]) as f:
    assert set(f["model"]) == set(real), (set(f["model"]), set(real))
    for name, t in real.items():
        d = f["model"][name]
        if "torch_dtype" in d.attrs:
            assert d.attrs["torch_dtype"] in (str(t.dtype)[6:], str(t.dtype)[6:].encode()), name
            assert d.dtype == np.uint8 and np.array_equal(d[()], t.view(torch.uint8).numpy()), name
        elif str(t.dtype)[6:] in wide:
            as_wide = getattr(torch, wide[str(t.dtype)[6:]])
            assert np.array_equal(d[()].astype(np.float32), t.to(as_wide).float().numpy(), equal_nan=True), (name, d.dtype, d[()], t)
        else:
            assert d.dtype == t.numpy().dtype and np.array_equal(d[()], t.numpy(), equal_nan=t.dtype.is_floating_point), (name, d.dtype)
    print(sorted({str(f["model"][n].dtype) for n in real}))
)", {path_, test_data("2.13.0/hf-safetensors/dtypes/all.safetensors")});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
}

TEST_F(Hdf5, H5pyFindsModelOptimizerAndTexts) {
  if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
  set_training_tree();
  write(checkpoint_, path_);
  const ProcessResult r = python(R"(
with h5py.File(sys.argv[1]) as f:
    assert list(f) == ["model", "optimizer", "extra", "fsdpctl"], list(f)
    assert set(f["optimizer"]) == {"exp_avg", "step"}
    assert f["optimizer/exp_avg/w"].dtype == np.float32
    assert json.loads(f["optimizer/step/bfloat16"][()]) == 5
    assert f["model/tied"] == f["model/bfloat16"]
    assert f["extra/rng"].dtype == np.uint8
    assert json.loads(f["extra/epoch"][()]) == 3
    assert json.loads(f["extra/sched"][()]) == {"last_lr": [0.5]}, f["extra/sched"][()]
    assert json.loads(f["extra/optim.param_groups"][()])[0]["params"] == ["w", "bfloat16"]
)", {path_});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
}

TEST_F(Hdf5, ToolsOfHdf5ReadIt) {
  if (run_process({"h5dump", "--version"}).exit_code != 0) GTEST_SKIP() << "h5dump is not installed (hdf5-tools)";
  set_training_tree();
  write(checkpoint_, path_);
  const ProcessResult dump = run_process({"h5dump", "-d", "/model/int64", path_});
  EXPECT_EQ(dump.exit_code, 0) << dump.err;
  EXPECT_THAT(dump.out, testing::HasSubstr("H5T_STD_I64LE"));
  EXPECT_EQ(run_process({"h5dump", path_}).exit_code, 0);
  const ProcessResult listing = run_process({"h5ls", "-r", path_});
  EXPECT_EQ(listing.exit_code, 0) << listing.err;
  EXPECT_THAT(listing.out, testing::HasSubstr("/optimizer/exp_avg/w"));
}

TEST_F(Hdf5, BigTensorsAreNotWrittenTwice) {   // the skeleton is sparse, whatever the size
  MadeCheckpoint made;
  made.checkpoint.tree = dict({{"w", made.tensor("w", {1ll << 40})}});
  const TargetPlacement placement(1, std::vector<TargetPlacement::Row>(1));
  Target target;
  target.placement = &placement;
  target.file_name = "big.h5";
  const FilePlan plan = hdf5_format()->lay_out(made.checkpoint, target);
  EXPECT_GT(plan[0]->size(), 4ull << 40);
  EXPECT_LT(plan[0]->item_count(), 10u);
}

TEST_F(Hdf5, WhatItCannotHoldIsRefused) {
  MadeCheckpoint made;
  made.checkpoint.tree = dict({{"model", dict({{"a.b", made.tensor("model.a.b", {1})}, {"a", dict({{"b", made.tensor("model.a.b", {1})}})},
                                              {"deep", made.tensor("deep", std::vector<int64_t>(33, 1))}})}});
  made.tensor("storage", {4}, DType::uint8);
  made.checkpoint.tensors.back().role = Role::storage;
  FindingSink sink(false);
  hdf5_format()->can_carry(made.checkpoint, Target{}, sink);
  std::vector<std::string> keys;
  for (const Finding& f : sink.all()) {
    EXPECT_EQ(f.code, Exit::refused);
    keys.push_back(f.where.key);
  }
  EXPECT_THAT(keys, testing::UnorderedElementsAre("model.a.b", "deep", "storage"));
}

// ---------------------------------------------------------------------------------------------------- other people's

class ForeignHdf5 : public testing::Test {
 protected:
  // Runs Python that fills the open file `f`.
  void make(const std::string& code) {
    if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
    std::string indented;
    for (const char c : "\n" + code) {
      indented += c;
      if (c == '\n') indented += "    ";
    }
    const ProcessResult r = python("with h5py.File(sys.argv[1], 'w', **eval(sys.argv[2])) as f:" + indented + "\n    pass", {path_, options_});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }

  std::string value_text(const Checkpoint& c) { return value_to_json(c.tree, JsonForm::stored); }

  TempDir dir_;
  std::string path_ = dir_ / "foreign.h5", options_ = "{}";
};

TEST_F(ForeignHdf5, GroupsAreDictsAndStringsAreValues) {
  make(R"(
f['net/layer1/w'] = np.arange(6, dtype='f4').reshape(2, 3)
f['net/layer1/b'] = np.float64(2.5)
f['title'] = 'caf\u00e9'
f['fixed'] = np.bytes_(b'abc')
f['list'] = ['x', 'yy']
f.create_group('empty')
f['null'] = h5py.Empty('f4')
f.attrs['note'] = 'hello'
)");
  if (IsSkipped()) return;
  FindingSink sink;
  const Checkpoint c = open_path(path_, sink);
  EXPECT_TRUE(sink.all().empty());
  EXPECT_EQ(c.tensors.size(), 2u);
  EXPECT_EQ(c.tensors[*c.find("net.layer1.w")].dtype, DType::float32);
  EXPECT_EQ(c.tree.find("title")->text(), "caf\xC3\xA9");
  EXPECT_EQ(c.tree.find("fixed")->text(), "abc");
  EXPECT_EQ(c.tree.find("list")->items().size(), 2u);
  EXPECT_TRUE(c.tree.find("null")->is(Kind::none));
  EXPECT_TRUE(c.tree.find("empty")->entries().empty());
  EXPECT_THAT(annotations(c), testing::Contains(std::pair<std::string, std::string>("note", "hello")));
}

TEST_F(ForeignHdf5, EveryStorageReadsEqual) {
  make(R"(
x = np.random.default_rng(1).integers(-9, 9, (37, 53)).astype('<i4')
f['plain'] = x
f['big'] = x.astype('>i4')
f.create_dataset('chunked', data=x, chunks=(8, 10))
f.create_dataset('gzip', data=x, chunks=(8, 10), compression='gzip', shuffle=True, fletcher32=True)
f.create_dataset('gzip_big', data=x.astype('>i4'), chunks=(37, 1), compression='gzip')
p = h5py.h5p.create(h5py.h5p.DATASET_CREATE); p.set_layout(h5py.h5d.COMPACT)
h5py.h5d.create(f.id, b'compact', h5py.h5t.STD_I32LE, h5py.h5s.create_simple((37, 53)), p).write(h5py.h5s.ALL, h5py.h5s.ALL, x)
)");
  if (IsSkipped()) return;
  const Checkpoint c = open_path(path_);
  ASSERT_EQ(c.tensors.size(), 6u);
  for (TensorIndex t = 1; t < c.tensors.size(); ++t) {
    EXPECT_EQ(c.tensors[t].dtype, DType::int32);
    EXPECT_EQ(slow_read(c, t), slow_read(c, 0)) << c.tensors[t].key;
  }
}

TEST_F(ForeignHdf5, UnwrittenPartsAreTheFillValue) {
  make(R"(
f.create_dataset('never', (5,), 'i4', fillvalue=7)
d = f.create_dataset('partly', (4, 4), 'i2', chunks=(2, 2), fillvalue=-1)
d[0, 0] = 5
f.create_dataset('zero', (0, 3), 'f4')
)");
  if (IsSkipped()) return;
  const Checkpoint c = open_path(path_);
  const std::string never = slow_read(c, *c.find("never")), partly = slow_read(c, *c.find("partly"));
  EXPECT_EQ(never, std::string("\7\0\0\0\7\0\0\0\7\0\0\0\7\0\0\0\7\0\0\0", 20));
  EXPECT_EQ(partly.substr(0, 2), std::string("\5\0", 2));
  EXPECT_EQ(partly.substr(2), std::string(30, '\xFF'));
  EXPECT_EQ(slow_read(c, *c.find("zero")), "");
}

TEST_F(ForeignHdf5, LargeBlocksAreCutRight) {
  make("f.create_dataset('x', data=np.arange(3 * 700 * 3000, dtype='i4').reshape(3, 700, 3000), chunks=(1, 300, 700), compression='gzip', compression_opts=1)\n"
       "f['y'] = f['x'][()]");
  if (IsSkipped()) return;
  const Checkpoint c = open_path(path_);
  const Piece &x = c.pieces_of(0)[0], &y = c.pieces_of(1)[0];
  std::string a(x.length, '\0'), b(y.length, '\0');
  c.source->read(x.source, x.offset, std::as_writable_bytes(std::span(a)));
  c.source->read(y.source, y.offset, std::as_writable_bytes(std::span(b)));
  EXPECT_EQ(a.size(), 4u * 3 * 700 * 3000);
  EXPECT_TRUE(a == b);
}

TEST_F(ForeignHdf5, UserBlockIsSkipped) {
  options_ = "{'userblock_size': 1024}";
  make("f['x'] = np.arange(5, dtype='i8')");
  if (IsSkipped()) return;
  EXPECT_EQ(hdf5_format()->recognize(*Source::open(path_))->strength, 100);
  const Checkpoint c = open_path(path_);
  EXPECT_EQ(slow_read(c, 0).substr(8, 8), std::string("\1\0\0\0\0\0\0\0", 8));
}

TEST_F(ForeignHdf5, LinksAreNotFollowed) {
  std::ofstream(dir_ / "other.h5") << "secret";
  make(R"(
f['x'] = np.arange(3)
f['soft'] = h5py.SoftLink('/x')
f['out'] = h5py.ExternalLink('other.h5', '/x')
f['group/again'] = f['x']
f['group/loop'] = f['group']
f['group'].attrs['n'] = 3
)");
  if (IsSkipped()) return;
  FindingSink sink;
  const Checkpoint c = open_path(path_, sink);
  EXPECT_EQ(c.tensors.size(), 1u);
  EXPECT_EQ(c.aliases.size(), 1u);
  std::vector<std::string> whats;
  for (const Finding& f : sink.all()) {
    EXPECT_EQ(f.severity, Severity::warning);
    whats.push_back(f.what);
  }
  EXPECT_THAT(whats, testing::UnorderedElementsAre("soft link is not followed", "link to another file is not followed", "group has a second name that is not read",
                                                   "HDF5 attributes are not read"));
}

TEST_F(ForeignHdf5, WhatPyTorchDoesNotHaveIsUnsupportedByName) {
  make("f['ok'] = np.arange(3)\nf['rec'] = np.zeros(3, dtype=[('a', 'i4'), ('b', 'f4')])");
  if (IsSkipped()) return;
  const Finding f = error_of([&] { open_path(path_); });
  EXPECT_EQ(f.code, Exit::unsupported);
  EXPECT_EQ(f.where.key, "rec");
  FindingSink sink(false);
  EXPECT_EQ(open_path(path_, sink).tensors.size(), 1u);
}

TEST_F(ForeignHdf5, OtherFilesAndPluginsAreRefused) {
  make("f.create_dataset('x', (4,), 'i4', external=[('raw.bin', 0, 16)])");
  if (IsSkipped()) return;
  EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::unsupported);
  make("f.create_dataset('x', (4096,), 'i4', chunks=(64,), compression='lzf')\nf['x'][:] = 1");
  EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::unsupported);
  make("v = h5py.VirtualLayout((4,), 'i4')\nv[:] = h5py.VirtualSource('other.h5', 'x', (4,))\nf.create_virtual_dataset('v', v)");
  EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::unsupported);
}

TEST_F(ForeignHdf5, ClaimsFarBeyondWhatIsStoredAreRefused) {
  make("f.create_dataset('x', (1 << 40,), 'f4', chunks=(1 << 20,))");
  if (IsSkipped()) return;
  EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::unsupported);
}

TEST_F(ForeignHdf5, EveryTruncationAndFlippedByteIsSurvived) {
  make("f['net/w'] = np.arange(6, dtype='f4')\nf.create_dataset('z', data=np.arange(100), chunks=(10,), compression='gzip')\nf['s'] = 'text'");
  if (IsSkipped()) return;
  const std::string good = get_file(path_);
  auto survive = [&](const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    FindingSink sink(false);
    try {
      const Checkpoint c = open_path(path_, sink);
      for (TensorIndex t = 0; t < c.tensors.size(); ++t) {
        for (const Piece& piece : c.pieces_of(t)) {
          if (piece.encoding == Encoding::raw && c.bytes_of(t) < 1 << 20) slow_read(c, t);
        }
      }
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == Exit::damaged || e.code() == Exit::unsupported) << e.what();
    }
  };
  for (size_t cut = 8; cut < good.size(); cut += 97) survive(good.substr(0, cut));
  for (size_t at = 8; at < good.size(); at += 41) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
    survive(bytes);
  }
}

// -------------------------------------------------------------------------------------------------------- isolation

TEST(Isolated, ACrashIsDamage) {
  const Finding f = error_of([] { run_isolated("f", [](const Send&) { std::abort(); }, [](std::string_view) {}); });
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.path, "f");
  EXPECT_THAT(f.found, testing::HasSubstr("signal 6"));
}

TEST(Isolated, MemoryIsLimited) {
  const Finding f = error_of([] {
    IsolationLimits limits;
    limits.memory = 64ull << 20;
    run_isolated("f", [](const Send& send) { send(std::string(1ull << 30, 'x').substr(0, 1)); }, [](std::string_view) {}, limits);
  });
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_THAT(f.what, testing::HasSubstr("memory"));
}

TEST(Isolated, ErrorsAndBytesArrive) {
  std::string got;
  run_isolated("f", [](const Send& send) { send("ab"), send(std::string(3'000'000, 'c')); }, [&](std::string_view bytes) { got += bytes; });
  EXPECT_EQ(got, "ab" + std::string(3'000'000, 'c'));
  const Finding f = error_of([] { run_isolated("f", [](const Send&) { throw Error(Exit::unsupported, "what").key("k").saw("a", "b"); }, [](std::string_view) {}); });
  EXPECT_EQ(f.code, Exit::unsupported);
  EXPECT_EQ(f.where.text(), "f, k");
  EXPECT_EQ(f.saw_text(), "expected a, found b");
}

}  // namespace
}  // namespace fsdpctl
