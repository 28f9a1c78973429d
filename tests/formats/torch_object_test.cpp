// What calls in torch pickles mean, on pickles made by hand: what no PyTorch writes, and what very old ones wrote.
#include "formats/codec/torch_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/codec/little_endian.h"
#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Pieces of protocol 2.
std::string text(const std::string& s) {
  std::string out = "X";
  put_u32(out, static_cast<uint32_t>(s.size()));
  return out + s;
}
std::string number(int64_t n) {
  if (n >= INT32_MIN && n <= INT32_MAX) {
    std::string out = "J";
    put_u32(out, static_cast<uint32_t>(static_cast<int32_t>(n)));
    return out;
  }
  std::string out = "\x8A\x08";
  put_u64(out, static_cast<uint64_t>(n));
  return out;
}
std::string global(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }
std::string tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const std::string& i : items) out += i;
  return out + "t";
}
std::string dims(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t n : values) items.push_back(number(n));
  return tuple(items);
}
std::string call(const std::string& callable, const std::vector<std::string>& args) { return callable + tuple(args) + "R"; }
const std::string kHooks = global("collections", "OrderedDict") + ")R", kNo = "\x89", kYes = "\x88", kNone = "N";

std::string storage(const std::string& type, const std::string& key, int64_t numel, const std::string& module = "torch") {
  return tuple({text("storage"), global(module, type), text(key), text("cpu"), number(numel)}) + "Q";
}
std::string v2(const std::string& storage_text, int64_t offset, const std::vector<int64_t>& size, const std::vector<int64_t>& stride,
               const std::string& requires_grad = kNo, const std::string& metadata = {}) {
  std::vector<std::string> args = {storage_text, number(offset), dims(size), dims(stride), requires_grad, kHooks};
  if (!metadata.empty()) args.push_back(metadata);
  return call(global("torch._utils", "_rebuild_tensor_v2"), args);
}
std::string v3(const std::string& storage_text, const std::vector<int64_t>& size, const std::vector<int64_t>& stride, const std::string& dtype) {
  return call(global("torch._utils", "_rebuild_tensor_v3"),
              {storage_text, number(0), dims(size), dims(stride), kNo, kHooks, global("torch", dtype)});
}
std::string list(const std::vector<std::string>& items) {
  std::string out = "](";
  for (const std::string& i : items) out += i;
  return out + "e";
}

struct Read {
  Checkpoint checkpoint;
  FindingSink sink;
  std::vector<TorchStorage> storages;
};

// Storage i is put at byte 1000 * i, with CRC 100 + i.
std::unique_ptr<Read> read(const std::string& body) {
  auto r = std::make_unique<Read>();
  const std::string stream = "\x80\x02" + body + ".", name = "x.pt";
  TorchObjectHandler handler(r->checkpoint, 3, name, r->sink);
  r->checkpoint.tree = read_pickle(byte_view(stream), handler, name, 0, r->sink).value;
  r->storages = handler.storages();
  std::vector<StoragePlace> places;
  for (size_t i = 0; i < r->storages.size(); ++i) {
    places.push_back({0, 1000 * i, Encoding::raw, false, true, static_cast<uint32_t>(100 + i)});
  }
  handler.place(places);
  return r;
}

void expect_refused(const std::string& body, Exit code, const std::string& what) {
  const Finding f = error_of([&] { read(body); });
  EXPECT_EQ(f.code, code) << f.what;
  EXPECT_THAT(f.what, HasSubstr(what));
  EXPECT_EQ(f.where.path, "x.pt");
}

TEST(TorchObject, OneViewIsOneTensorOtherViewsAreOthers) {
  const std::string s = storage("FloatStorage", "0", 12);
  const auto r = read(list({v2(s, 0, {3, 4}, {4, 1}), v2(s, 0, {3, 4}, {4, 1}), v2(s, 0, {4, 3}, {1, 4}), v2(s, 4, {4}, {1}),
                            v2(s, 4, {4}, {1}, kYes), v2(s, 0, {12}, {1}), v2(s, 0, {4, 3}, {1, 4})}));
  const Checkpoint& c = r->checkpoint;
  std::vector<TensorIndex> leaves;
  for (const Value& v : c.tree.items()) leaves.push_back(v.as_tensor().index);
  EXPECT_THAT(leaves, ElementsAre(0, 0, 1, 2, 2, 3, 1));
  EXPECT_TRUE(c.tree.items()[4].as_tensor().requires_grad);
  EXPECT_FALSE(c.tree.items()[3].as_tensor().requires_grad);
  ASSERT_EQ(c.pieces.size(), 4u);
  EXPECT_TRUE(c.pieces[0].strides.empty());
  EXPECT_THAT(c.pieces[1].strides, ElementsAre(1, 4));
  EXPECT_EQ(c.pieces[2].offset, 16u);
  EXPECT_EQ(c.pieces[2].length, 16u);
  EXPECT_EQ(c.pieces[0].rank, 3);
  EXPECT_TRUE(c.pieces[0].has_crc32);     // its bytes are the storage's
  EXPECT_TRUE(c.pieces[1].has_crc32);
  EXPECT_FALSE(c.pieces[2].has_crc32);
  EXPECT_EQ(c.pieces[3].crc32, 100u);
  EXPECT_TRUE(c.recorded_crcs.empty());
}

TEST(TorchObject, CrcsThatNoPieceCoversAreKept) {
  const auto r = read(list({v2(storage("FloatStorage", "0", 1), 0, {1}, {1}), v2(storage("FloatStorage", "1", 12), 1, {2}, {1})}));
  ASSERT_EQ(r->checkpoint.recorded_crcs.size(), 1u);
  const RecordedCrc& crc = r->checkpoint.recorded_crcs[0];
  EXPECT_EQ(crc.offset, 1000u);
  EXPECT_EQ(crc.length, 48u);
  EXPECT_EQ(crc.crc32, 101u);
}

TEST(TorchObject, KeysAreOpaque) {
  const auto r = read(list({v2(storage("FloatStorage", "94445093017904", 1), 0, {1}, {1}), v2(storage("FloatStorage", "0", 1), 0, {1}, {1}),
                            v2(storage("FloatStorage", "2", 1), 0, {1}, {1}), v2(storage("FloatStorage", "02", 1), 0, {1}, {1}),
                            v2(storage("FloatStorage", "a/b", 1), 0, {1}, {1}), v2(storage("FloatStorage", "0", 1), 0, {1}, {1}),
                            v2(storage("FloatStorage", "2", 1), 0, {1}, {1}), v2(storage("FloatStorage", "a/b", 1), 0, {1}, {1})}));
  std::vector<std::string> keys;
  for (const TorchStorage& s : r->storages) keys.emplace_back(s.key);
  EXPECT_THAT(keys, ElementsAre("94445093017904", "0", "2", "02", "a/b"));
  EXPECT_EQ(r->checkpoint.tensors.size(), 5u);
}

TEST(TorchObject, DimensionsOfSizeOneNeedNoStride) {
  const auto r = read(list({v2(storage("FloatStorage", "0", 3), 0, {3, 1}, {1, 77}), v2(storage("FloatStorage", "1", 3), 0, {1, 3}, {99, 1}),
                            v2(storage("FloatStorage", "2", 3), 0, {}, {})}));
  for (const Piece& p : r->checkpoint.pieces) EXPECT_TRUE(p.strides.empty());
}

TEST(TorchObject, ConjugatedAndNegated) {
  const std::string metadata = "}(" + text("conj") + kYes + text("neg") + kNo + "u";
  const std::string s = storage("ComplexFloatStorage", "0", 2);
  const auto r = read(list({v2(s, 0, {2}, {1}, kNo, metadata), v2(s, 0, {2}, {1})}));
  ASSERT_EQ(r->checkpoint.tensors.size(), 2u);
  EXPECT_TRUE(r->checkpoint.pieces[0].conj);
  EXPECT_FALSE(r->checkpoint.pieces[0].neg);
  EXPECT_FALSE(r->checkpoint.pieces[1].conj);
  const auto odd = read(v2(s, 0, {2}, {1}, kNo, "}" + text("other") + kYes + "s"));
  ASSERT_EQ(odd->sink.all().size(), 1u);
  EXPECT_EQ(odd->sink.all()[0].found, "other");
}

TEST(TorchObject, NewerDtypesAreInUntypedStorages) {
  const auto r = read(list({v3(storage("UntypedStorage", "0", 6, "torch.storage"), {3}, {1}, "uint16"),
                            v3(storage("_UntypedStorage", "1", 3, "torch.storage"), {3}, {1}, "float8_e5m2"),
                            v2(storage("UntypedStorage", "2", 3, "torch.storage"), 0, {3}, {1})}));
  EXPECT_EQ(r->checkpoint.tensors[0].dtype, DType::uint16);
  EXPECT_EQ(r->checkpoint.tensors[1].dtype, DType::float8_e5m2);
  EXPECT_EQ(r->checkpoint.tensors[2].dtype, DType::uint8);
  expect_refused(v3(storage("UntypedStorage", "0", 5, "torch.storage"), {3}, {1}, "uint16"), Exit::damaged, "outside its storage");
  expect_refused(v3(storage("UntypedStorage", "0", 5, "torch.storage"), {3}, {1}, "uint3"), Exit::unsupported, "unknown dtype");
}

TEST(TorchObject, RefusesViewsThatCannotBe) {
  const std::string s = storage("FloatStorage", "0", 12);
  expect_refused(v2(s, 12, {1}, {1}), Exit::damaged, "outside its storage");
  expect_refused(v2(s, 0, {13}, {1}), Exit::damaged, "outside its storage");
  expect_refused(v2(s, 0, {3, 4}, {5, 1}), Exit::damaged, "outside its storage");
  expect_refused(v2(s, 0, {2}, {INT64_MAX}), Exit::damaged, "outside its storage");
  expect_refused(v2(s, INT64_MAX, {2}, {INT64_MAX}), Exit::damaged, "outside its storage");
  expect_refused(v2(s, 0, {3, 3, 3}, {INT64_MAX, INT64_MAX, INT64_MAX}), Exit::damaged, "outside its storage");
  expect_refused(v2(s, -1, {1}, {1}), Exit::damaged, "unknown arguments");
  expect_refused(v2(s, 0, {-1}, {1}), Exit::damaged, "negative");
  expect_refused(v2(s, 3, {2}, {-1}), Exit::damaged, "negative");
  expect_refused(v2(s, 0, {1 << 30, 1 << 30, 1 << 30}, {0, 0, 0}), Exit::unsupported, "impossible size");
  expect_refused(v2(s, 0, {1 << 25}, {0}), Exit::unsupported, "larger than its storage");
  expect_refused(v2(s, 0, {2, 2}, {1}), Exit::damaged, "unknown arguments");
  expect_refused(v2(s, 0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)), Exit::damaged, "unknown arguments");
  expect_refused(v2(storage("QInt8Storage", "0", 4), 0, {4}, {1}), Exit::damaged, "quantized");
  EXPECT_NO_THROW(read(v2(s, 0, {12 << 20}, {0})));   // 2^20 times the elements of `s`
  expect_refused(v2(s, 0, {(12 << 20) + 1}, {0}), Exit::unsupported, "larger than its storage");
  EXPECT_NO_THROW(read(v2(s, 99, {0, 5}, {5, 1})));   // PyTorch does not look at the offset of nothing
}

TEST(TorchObject, RefusesStoragesThatCannotBe) {
  expect_refused(v2(storage("FloatStorage", "0", int64_t{1} << 62), 0, {1}, {1}), Exit::unsupported, "impossible size");
  expect_refused(v2(storage("FloatStorage", "0", -1), 0, {1}, {1}), Exit::damaged, "no size");
  expect_refused(v2(storage("StringStorage", "0", 1), 0, {1}, {1}), Exit::unsupported, "unknown class");
  expect_refused(list({v2(storage("FloatStorage", "0", 4), 0, {1}, {1}), v2(storage("IntStorage", "0", 4), 0, {1}, {1})}), Exit::damaged, "two types");
  expect_refused(list({v2(storage("FloatStorage", "0", 4), 0, {1}, {1}), v2(storage("FloatStorage", "0", 5), 0, {1}, {1})}), Exit::damaged, "two types");
  expect_refused(text("storage") + "Q", Exit::damaged, "unknown way");
  expect_refused(tuple({text("storage"), number(1)}) + "Q", Exit::damaged, "unknown way");
  expect_refused(v2(number(7), 0, {1}, {1}), Exit::damaged, "unknown arguments");
}

TEST(TorchObject, ParametersAndAttributes) {
  const std::string t = v2(storage("FloatStorage", "0", 2), 0, {2}, {1});
  const std::string state = "}" + text("tag") + text("kept") + "s";
  const std::string type_v2 = global("torch._tensor", "_rebuild_from_type_v2"), rebuild_v2 = global("torch._utils", "_rebuild_tensor_v2");
  const std::string arguments = tuple({storage("FloatStorage", "0", 2), number(0), dims({2}), dims({1}), kNo, kHooks});
  const auto r = read(list({call(global("torch._utils", "_rebuild_parameter"), {t, kYes, kHooks}),
                            call(global("torch._utils", "_rebuild_parameter_with_state"), {t, kNo, kHooks, state}),
                            call(type_v2, {rebuild_v2, global("torch", "Tensor"), arguments, state}),
                            call(type_v2, {rebuild_v2, global("torch", "Tensor"), arguments, "}"}),
                            call(type_v2, {rebuild_v2, global("torch.nn.parameter", "Parameter"), arguments, kNone})}));
  const auto& items = r->checkpoint.tree.items();
  EXPECT_EQ(r->checkpoint.tensors.size(), 1u);
  EXPECT_TRUE(items[0].as_tensor().parameter && items[0].as_tensor().requires_grad);
  EXPECT_TRUE(items[1].as_tensor().parameter && !items[1].as_tensor().requires_grad);
  EXPECT_EQ(items[1].tensor_attributes().find("tag")->text(), "kept");
  EXPECT_FALSE(items[2].as_tensor().parameter);
  EXPECT_EQ(items[2].tensor_attributes().find("tag")->text(), "kept");
  EXPECT_TRUE(items[3].tensor_attributes().is(Kind::none));
  EXPECT_TRUE(items[4].as_tensor().parameter);
  EXPECT_TRUE(r->sink.all().empty());
}

// Storages that something else than a tensor holds are rows of their own; those of tensors are not.
TEST(TorchObject, BareStorages) {
  const std::string q = storage("QInt8Storage", "0", 4), f = storage("FloatStorage", "1", 3);
  const std::string params = tuple({global("torch", "per_tensor_affine"), "G" + std::string(8, '\0'), number(0)});
  const std::string quantized = call(global("torch._utils", "_rebuild_qtensor"), {q, number(0), dims({4}), dims({1}), params, kNo, kHooks});
  const auto r = read(list({quantized, quantized, v2(f, 0, {3}, {1}), f}));
  const Checkpoint& c = r->checkpoint;
  ASSERT_EQ(c.tensors.size(), 3u);
  EXPECT_EQ(c.tensors[0].role, Role::tensor);
  EXPECT_EQ(c.tensors[1].role, Role::storage);
  EXPECT_THAT(c.tensors[1].shape, ElementsAre(4));
  EXPECT_EQ(c.tensors[2].role, Role::storage);
  EXPECT_THAT(c.tensors[2].shape, ElementsAre(12));
  EXPECT_EQ(c.pieces[1].offset, 0u);
  EXPECT_EQ(c.pieces[2].offset, 1000u);
  const auto& items = c.tree.items();
  EXPECT_EQ(items[3].node<StorageNode>().index, 2u);
  EXPECT_EQ(items[3].node<StorageNode>().storage_class, "torch.FloatStorage");
  const Value& inside = items[0].node<ObjectNode>().args.items()[0];
  EXPECT_EQ(inside.node<StorageNode>().index, 1u);
  EXPECT_EQ(inside.node<StorageNode>().storage_class, "torch.QInt8Storage");
  EXPECT_EQ(r->sink.all().size(), 1u);   // once per kind
}

// Legacy streams of very old releases: views of storages, classes with their source code.
TEST(TorchObject, LegacyViewsOfStorages) {
  const auto view = [](const std::string& key, int64_t offset, int64_t size) {
    return tuple({text("storage"), global("torch", "FloatStorage"), text("root"), text("cpu"), number(12),
                  tuple({text(key), number(offset), number(size)})}) + "Q";
  };
  const std::string whole = tuple({text("storage"), global("torch", "FloatStorage"), text("root"), text("cpu"), number(12), kNone}) + "Q";
  const auto r = read(list({v2(whole, 0, {12}, {1}), v2(view("a", 4, 8), 1, {2}, {1}), v2(view("a", 4, 8), 1, {2}, {1}), v2(view("b", 0, 4), 0, {4}, {1})}));
  const Checkpoint& c = r->checkpoint;
  EXPECT_EQ(r->storages.size(), 1u);
  ASSERT_EQ(c.pieces.size(), 3u);
  EXPECT_EQ(c.pieces[1].offset, 20u);
  EXPECT_EQ(c.pieces[1].length, 8u);
  EXPECT_EQ(c.pieces[2].offset, 0u);
  expect_refused(v2(view("a", 4, 9), 0, {1}, {1}), Exit::damaged, "outside of it");
  expect_refused(v2(view("a", -1, 2), 0, {1}, {1}), Exit::damaged, "outside of it");
  expect_refused(v2(view("a", 4, 2), 0, {3}, {1}), Exit::damaged, "outside its storage");
  expect_refused(list({v2(view("a", 0, 2), 0, {1}, {1}), v2(view("a", 1, 2), 0, {1}, {1})}), Exit::damaged, "two extents");
}

}  // namespace
}  // namespace fsdpctl
