#include "lib/ckpt/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "lib/ckpt/writable.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

Value str(std::string_view s) { return Value::string(s); }
Value leaf(TensorIndex t) { return Value::tensor(TensorLeaf{t, false, false}); }
Value dict(std::vector<Entry> entries) { return Value::mapping(Kind::dict, std::move(entries)); }
Value list(std::vector<Value> items) { return Value::sequence(Kind::list, std::move(items)); }
Value tuple(std::vector<Value> items) { return Value::sequence(Kind::tuple, std::move(items)); }

Dims dims(Checkpoint& c, std::vector<int64_t> numbers) { return c.arena->store(Dims(numbers)); }

Piece raw_piece(Checkpoint& c, TensorIndex t, std::vector<int64_t> offset, std::vector<int64_t> size, int rank = 0) {
  Piece p;
  p.tensor = t;
  p.rank = rank;
  p.box = {dims(c, std::move(offset)), dims(c, std::move(size))};
  p.stored = c.tensors[t].dtype;
  return p;
}

// A checkpoint of tensors t0, t1 ... (float32) in one file of `bytes` bytes.
struct Catalog {
  TempDir dir;
  Checkpoint c;
  std::vector<Entry> entries;
  SourceIndex file;

  explicit Catalog(uint64_t bytes = 1000) {
    put_file(dir / "data", std::string(bytes, '\0'));
    c.source = Source::open(dir / "data");
    file = c.source->add("data");
  }
  TensorIndex add(std::vector<int64_t> shape, DType dtype = DType::float32) {
    const TensorIndex t = c.add_tensor(dtype, shape);
    entries.push_back({str("t" + std::to_string(t)), leaf(t)});
    return t;
  }
  std::vector<Finding> finish() {
    c.tree = dict(entries);
    FindingSink sink(false);
    c.finish(sink);
    return sink.all();
  }
};

class Paths : public TreeVisitor {
 public:
  void leaf(std::string_view path, const Value& value) override { seen.emplace_back(path, value.kind()); }
  std::vector<std::pair<std::string, Kind>> seen;
};

std::vector<std::pair<std::string, Kind>> paths_of(const Value& tree) {
  Paths paths;
  walk_tree(tree, paths);
  return paths.seen;
}

TEST(WalkTree, DescendsAsExpectedJsonDoes) {
  const Value counter = Value::mapping(Kind::counter, {{str("a"), Value::integer(1)}});
  const Value tree = dict({
      {str("flat.name"), leaf(0)},
      {str("nested"), dict({{Value::integer(0), leaf(1)}, {Value::boolean(true), Value::real(1)}})},
      {str("empty"), dict({})},
      {str("numbers"), list({Value::integer(1)})},
      {str("tensors"), tuple({Value::integer(1), leaf(2)})},
      {str("groups"), list({dict({{str("lr"), Value::real(1)}}), Value()})},
      {str("deep"), list({list({dict({{str("x"), Value()}})})})},
      {str("tuple of dict"), tuple({dict({{str("x"), Value()}})})},
      {str("list of tuple of dict"), list({tuple({dict({{str("x"), Value()}})})})},
      {str("tuple of dict of tensor"), tuple({dict({{str("x"), leaf(3)}})})},
      {str("counter"), counter},
      {str("list of counter"), list({counter})},
  });
  EXPECT_THAT(paths_of(tree),
              ElementsAre(Pair("flat.name", Kind::tensor), Pair("nested.0", Kind::tensor), Pair("nested.True", Kind::real),
                          Pair("empty", Kind::dict), Pair("numbers", Kind::list), Pair("tensors.0", Kind::integer),
                          Pair("tensors.1", Kind::tensor), Pair("groups.0.lr", Kind::real), Pair("groups.1", Kind::none),
                          Pair("deep.0.0.x", Kind::none), Pair("tuple of dict", Kind::tuple),
                          Pair("list of tuple of dict", Kind::list), Pair("tuple of dict of tensor.0.x", Kind::tensor),
                          Pair("counter", Kind::counter), Pair("list of counter.0", Kind::counter)));
  EXPECT_THAT(paths_of(leaf(0)), ElementsAre(Pair("", Kind::tensor)));
  EXPECT_THAT(paths_of(dict({{str(""), dict({{str("a"), Value()}})}})), ElementsAre(Pair("a", Kind::none)));
}

TEST(WalkTree, SharedAndNestedListsCostNoMoreThanTheyHold) {
  Value shared = list({Value::integer(1)});
  for (int i = 0; i < 200; ++i) shared = list({shared, shared});   // 2^200 leaves if each were visited
  EXPECT_EQ(paths_of(shared).size(), 1u);
}

TEST(Checkpoint, FirstLeafNamesATensorAndLaterOnesAreAliases) {
  Checkpoint c;
  for (int i = 0; i < 3; ++i) c.add_tensor(DType::float32, {});
  auto* object = new ObjectNode;
  object->callable = Value::global("mine", "Thing");
  object->state = dict({{str("w"), leaf(2)}, {str("again"), leaf(0)}});
  c.tree = dict({{str("m"), dict({{str("a"), leaf(1)}, {str("b"), leaf(0)}, {str("c"), leaf(1)}})},
                 {str("objects"), list({Value::adopt(object)})},
                 {str("tied"), leaf(0)}});
  FindingSink sink;
  c.finish(sink);
  EXPECT_EQ(c.tensors[0].key, "m.b");
  EXPECT_EQ(c.tensors[1].key, "m.a");
  EXPECT_EQ(c.tensors[2].key, "objects.0.state.w");
  ASSERT_EQ(c.aliases.size(), 2u);
  EXPECT_EQ(c.aliases[0].key, "m.c");
  EXPECT_EQ(c.aliases[1].key, "tied");
  EXPECT_EQ(c.find("m.a"), 1u);
  EXPECT_EQ(c.find("tied"), 0u);
  EXPECT_FALSE(c.find("absent").has_value());
  EXPECT_THAT(sink.all(), IsEmpty());
}

TEST(Checkpoint, AmbiguousAndMissingNamesAreReported) {
  Checkpoint c;
  for (int i = 0; i < 4; ++i) c.add_tensor(DType::float32, {});
  c.tree = dict({{str("a.b"), leaf(0)}, {str("a"), dict({{str("b"), leaf(1)}})}, {str("c"), leaf(2)}});
  FindingSink sink(false);
  c.finish(sink);
  ASSERT_EQ(sink.all().size(), 2u);
  EXPECT_EQ(sink.all()[0].what, "tensor is not in the tree");
  EXPECT_EQ(sink.all()[0].severity, Severity::error);
  EXPECT_EQ(sink.all()[1].what, "two keys are the same text");
  EXPECT_EQ(sink.all()[1].where.key, "a.b");
  EXPECT_EQ(sink.all()[1].severity, Severity::warning);
  c.tree = dict({{str("x"), leaf(9)}});
  EXPECT_EQ(error_of([&] { c.finish(sink); }).where.key, "x");
}

Error refusal(const Value& tree, int tensors) {
  Checkpoint c;
  for (int i = 0; i < tensors; ++i) c.add_tensor(DType::float32, {});
  c.tree = tree;
  FindingSink sink;
  c.finish(sink);
  try {
    check_writable(c);
  } catch (const Error& e) {
    return e;
  }
  return Error(Exit::ok, "");
}

TEST(Checkpoint, EqualKeysAreToldApartAndNotWritten) {
  const auto mapping = [](std::vector<Entry> entries) { return Value::mapping(Kind::dict, std::move(entries)); };
  const Value zero = Value::integer(0);
  const struct {
    const char* name;
    Value tree;
    int tensors;
    const char *key, *found;
  } cases[] = {
      {"tensors", dict({{str("a.b"), leaf(0)}, {str("a"), dict({{str("b"), leaf(1)}})}}), 2, "a.b", "['a.b'] and ['a']['b']"},
      {"kinds of keys", dict({{str("s"), mapping({{zero, leaf(0)}, {str("0"), leaf(1)}})}}), 2, "s.0", "['s'][0] and ['s']['0']"},
      {"values", mapping({{zero, Value::real(1)}, {str("0"), Value::real(2)}}), 0, "0", "[0] and ['0']"},
      {"a tensor and a value", dict({{str("a"), list({leaf(0)})}, {str("a.0"), zero}}), 1, "a.0", "['a'][0] and ['a.0']"},
      {"one tensor twice", dict({{str("a.b"), leaf(0)}, {str("a"), dict({{str("b"), leaf(0)}})}}), 1, "a.b", "['a.b'] and ['a']['b']"},
  };
  for (const auto& each : cases) {
    const Error e = refusal(each.tree, each.tensors);
    EXPECT_EQ(e.code(), Exit::refused) << each.name;
    EXPECT_EQ(e.finding().where.key, each.key) << each.name;
    EXPECT_EQ(e.finding().found, each.found) << each.name;
  }
  EXPECT_EQ(refusal(dict({{str("a.b"), leaf(0)}, {str("a"), dict({{str("c"), leaf(0)}})}}), 1).code(), Exit::ok);
}

TEST(Checkpoint, ManyEqualKeysAreCounted) {
  std::vector<Entry> entries;
  for (int i = 0; i < 20; ++i) {
    entries.push_back({Value::integer(i), Value::real(0)});
    entries.push_back({str(std::to_string(i).c_str()), Value::real(1)});
  }
  Checkpoint c;
  c.tree = Value::mapping(Kind::dict, std::move(entries));
  FindingSink sink;
  c.finish(sink);
  ASSERT_EQ(sink.all().size(), 17u);
  EXPECT_EQ(sink.all().back().found, "4 more");
}

TEST(Checkpoint, OneRanksPartIsNotWritten) {
  Checkpoint c;
  check_writable(c);
  EXPECT_FALSE(is_rank_part(c));
  mark_rank_part(c, "rank 0 of 2");
  EXPECT_TRUE(is_rank_part(c));
  EXPECT_EQ(error_of([&] { check_writable(c); }).found, "rank 0 of 2");
}

TEST(Checkpoint, PiecesAreSortedByTensorBoxAndRank) {
  std::mt19937_64 random(1);
  Catalog k(100'000);
  for (int i = 0; i < 20; ++i) k.add({6, 4});
  std::vector<Piece> pieces;
  for (TensorIndex t = 0; t < 20; ++t) {
    if (t == 7) continue;   // one without pieces
    for (int64_t row = 0; row < 6; row += 2) {
      for (int64_t column = 0; column < 4; column += 2) {
        for (int rank = 0; rank < 3; ++rank) pieces.push_back(raw_piece(k.c, t, {row, column}, {2, 2}, rank));
      }
    }
  }
  std::vector<Piece> shuffled = pieces;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  for (const Piece& p : shuffled) k.c.add_piece(p);
  EXPECT_THAT(k.finish(), IsEmpty());
  size_t i = 0;
  for (TensorIndex t = 0; t < 20; ++t) {
    EXPECT_EQ(k.c.pieces_of(t).size(), t == 7 ? 0u : 18u);
    for (const Piece& p : k.c.pieces_of(t)) {
      EXPECT_EQ(p.tensor, t);
      EXPECT_TRUE(equal(p.box, pieces[i].box)) << i;
      EXPECT_EQ(p.rank, pieces[i].rank);
      ++i;
    }
  }
}

TEST(Checkpoint, ImpossibleShapesAreDamageAndHarmless) {
  const std::vector<std::vector<int64_t>> shapes = {
      {int64_t{1} << 40, int64_t{1} << 40}, {int64_t{1} << 62}, {-1}, {0, -1}, {0, int64_t{1} << 40, int64_t{1} << 40},
      std::vector<int64_t>(65, 1)};
  for (const auto& shape : shapes) {
    Catalog k;
    const TensorIndex t = k.add(shape, DType::float64);
    k.c.add_piece(raw_piece(k.c, t, std::vector<int64_t>(shape.size(), 0), shape));
    const auto findings = k.finish();
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].what, "shape of tensor is impossible");
    EXPECT_EQ(findings[0].code, Exit::damaged);
    EXPECT_EQ(findings[0].where.key, "t0");
    EXPECT_EQ(k.c.logical_bytes(), 0u);
    EXPECT_THAT(k.c.pieces, IsEmpty());
  }
  Catalog k;
  k.add(std::vector<int64_t>(64, 1));
  EXPECT_THAT(k.finish(), IsEmpty());
}

TEST(Checkpoint, BoxesMustLieInTheirTensor) {
  struct Case { std::vector<int64_t> offset, size; bool good; };
  constexpr int64_t kBig = std::numeric_limits<int64_t>::max();
  for (const Case& c : {Case{{0, 0}, {4, 3}, true}, Case{{4, 0}, {0, 3}, true}, Case{{1, 0}, {4, 3}, false},
                        Case{{5, 0}, {0, 3}, false}, Case{{-1, 0}, {1, 3}, false}, Case{{0, 0}, {1, -1}, false},
                        Case{{1, kBig}, {kBig, kBig}, false}, Case{{0}, {4}, false}, Case{{0, 0, 0}, {4, 3, 1}, false},
                        Case{{0}, {4, 3}, false}}) {
    Catalog k;
    const TensorIndex t = k.add({4, 3});
    k.c.add_piece(raw_piece(k.c, t, c.offset, c.size, 5));
    const auto findings = k.finish();
    EXPECT_EQ(findings.empty(), c.good) << dims_text(c.offset) << dims_text(c.size);
    EXPECT_EQ(k.c.pieces.size(), c.good ? 1u : 0u);
    if (c.good || findings.empty()) continue;
    EXPECT_EQ(findings[0].what, "piece lies outside its tensor");
    EXPECT_EQ(findings[0].where.text(), "data, t0, rank 5");
    EXPECT_EQ(findings[0].expected, "a box inside [4, 3]");
  }
}

TEST(Checkpoint, RawBytesMustLieInTheirFile) {
  struct Case { uint64_t offset, length; std::vector<int64_t> strides; std::string what; };
  constexpr int64_t kBig = std::numeric_limits<int64_t>::max();
  const std::string beyond = "piece lies beyond the end of its file";
  for (const Case& c : {
           Case{952, 0, {}, ""},               // 4 * 3 floats are 48 bytes
           Case{953, 0, {}, beyond},
           Case{~uint64_t{0} - 10, 0, {}, beyond},
           Case{952, 49, {}, beyond},
           Case{952, ~uint64_t{0}, {}, beyond},
           Case{0, 47, {}, "storage is shorter than the view of it"},
           Case{952, 0, {1, 4}, ""},           // transposed
           Case{960, 0, {2, 1}, ""},           // overlapping rows: (3 * 2 + 2 + 1) * 4 = 36 bytes
           Case{968, 0, {2, 1}, beyond},
           Case{996, 0, {0, 0}, ""},           // one element shown twelve times
           Case{0, 0, {100, 1}, beyond},
           Case{0, 0, {kBig, 1}, "strides of piece make no sense"},
           Case{0, 0, {kBig / 3, kBig / 2}, "strides of piece make no sense"},
           Case{0, 0, {-1, 1}, "strides of piece make no sense"},
           Case{0, 0, {1}, "strides of piece make no sense"},
       }) {
    Catalog k(1000);
    const TensorIndex t = k.add({4, 3});
    Piece p = raw_piece(k.c, t, {0, 0}, {4, 3});
    p.offset = c.offset;
    p.length = c.length;
    p.strides = dims(k.c, c.strides);
    k.c.add_piece(p);
    const auto findings = k.finish();
    EXPECT_EQ(findings.empty() ? "" : findings[0].what, c.what) << c.offset << " " << dims_text(c.strides);
    EXPECT_EQ(k.c.pieces.size(), c.what.empty() ? 1u : 0u);
  }
}

TEST(Checkpoint, LengthsAreFilledInAndEmptyPiecesNeedNoBytes) {
  Catalog k(10);
  const TensorIndex a = k.add({2}), b = k.add({0, 3});
  k.c.add_piece(raw_piece(k.c, a, {0}, {2}));
  Piece empty = raw_piece(k.c, b, {0, 0}, {0, 3});
  empty.offset = 5000;
  k.c.add_piece(empty);
  EXPECT_THAT(k.finish(), IsEmpty());
  EXPECT_EQ(k.c.pieces_of(a)[0].length, 8u);
  EXPECT_EQ(k.c.pieces_of(b)[0].length, 0u);
}

TEST(Checkpoint, ViewsThatRepeatTheirStorageTooOftenAreUnsafe) {
  for (const auto& [elements, good] : {std::pair{int64_t{1} << 20, true}, std::pair{int64_t{1} << 21, false}}) {
    Catalog k(8);
    const TensorIndex t = k.add({elements}, DType::uint8);
    Piece p = raw_piece(k.c, t, {0}, {elements});
    p.strides = dims(k.c, {0});
    k.c.add_piece(p);
    const auto findings = k.finish();
    EXPECT_EQ(findings.empty(), good);
    if (!good) {
      EXPECT_EQ(findings.at(0).code, Exit::unsupported);
    }
  }
}

TEST(Checkpoint, BytesCountEachTensorOnce) {
  Catalog k;
  k.add({2, 3});
  k.add({5}, DType::bfloat16);
  k.entries.push_back({str("tied"), leaf(0)});
  EXPECT_THAT(k.finish(), IsEmpty());
  EXPECT_EQ(k.c.bytes_of(0), 24u);
  EXPECT_EQ(k.c.logical_bytes(), 34u);
}

// Items are a byte each; the piece with rank 13 is broken, rank 99 claims bytes that are not there.
class FakeResolver : public ItemResolver {
 public:
  void resolve(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const override {
    uint64_t last = 0;
    for (Piece* p : pieces) {
      EXPECT_EQ(p->source, pieces.front()->source);
      EXPECT_LE(last, p->offset);
      last = p->offset;
      if (p->rank == 13) {
        sink.report(error(Exit::damaged, "broken item").key(std::string(checkpoint.tensors[p->tensor].key)));
        continue;
      }
      p->encoding = Encoding::raw;
      p->length = 1;
      if (p->rank == 99) p->offset = 1'000'000;
    }
  }
};

Catalog& fill_with_items(Catalog& k, const std::map<int, int>& special) {
  std::mt19937_64 random(2);
  std::vector<Piece> pieces;
  for (int i = 0; i < 5000; ++i) {
    Piece p = raw_piece(k.c, k.add({1}, DType::uint8), {0}, {1}, special.contains(i) ? special.at(i) : 0);
    p.encoding = Encoding::item;
    p.offset = static_cast<uint64_t>(i);
    p.length = 20;
    pieces.push_back(p);
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  for (const Piece& p : pieces) k.c.add_piece(p);
  k.c.resolver = std::make_shared<FakeResolver>();
  EXPECT_THAT(k.finish(), IsEmpty());
  return k;
}

TEST(ResolvePieces, MakesItemsRawAndKeepsFindingsInOrder) {
  for (int threads : {1, 4}) {
    Catalog k(10'000);
    fill_with_items(k, {{4000, 13}, {17, 13}, {3000, 99}});
    FindingSink sink(false);
    resolve_pieces(k.c, threads, sink);
    ASSERT_EQ(sink.all().size(), 3u);
    EXPECT_EQ(sink.all()[0].where.key, "t17");
    EXPECT_EQ(sink.all()[1].where.key, "t3000");
    EXPECT_EQ(sink.all()[1].what, "piece lies beyond the end of its file");
    EXPECT_EQ(sink.all()[2].where.key, "t4000");
    size_t encoded = 0;
    for (const Piece& p : k.c.pieces) encoded += p.encoding == Encoding::item;
    EXPECT_EQ(encoded, 3u);
  }
}

TEST(ResolvePieces, StrictThrowsTheFirstErrorWhateverTheThreads) {
  for (int threads : {1, 4}) {
    Catalog k(10'000);
    fill_with_items(k, {{4000, 13}, {1500, 13}});
    FindingSink sink;
    EXPECT_EQ(error_of([&] { resolve_pieces(k.c, threads, sink); }).where.key, "t1500");
  }
}

TEST(ResolvePieces, ItemsBeyondTheirFileAreFoundBeforeAnyIsRead) {
  Catalog k(10);
  Piece p = raw_piece(k.c, k.add({1}), {0}, {1});
  p.encoding = Encoding::item;
  p.offset = 5;
  p.length = 6;
  k.c.add_piece(p);
  const auto findings = k.finish();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].where.text(), "data, t0, bytes [5, 11), rank 0");
  EXPECT_EQ(findings[0].saw_text(), "expected at least 11 bytes, found 10");
}

}  // namespace
}  // namespace fsdpctl
