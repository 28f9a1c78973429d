// Any checkpoint survives any chain of formats and world sizes. Random checkpoints go through random conversions; after each, what the
// output holds is read element by element and compared with what the first one held.
//
//   FSDPCTL_SEEDS=1000-2000 build/tests/property_tests     other cases than those of the suite
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "formats/all_formats.h"
#include "lib/base/file.h"
#include "lib/ckpt/diff.h"
#include "lib/ckpt/publish.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/slow_content.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

struct Hop {
  std::string format;
  int64_t world_size = 1;
  bool directory = false;             // safetensors
  uint64_t max_shard_bytes = 5'000'000'000;
};

std::string hop_text(const Hop& hop) {
  return fmt::format("{} world size {}{}", hop.format, hop.world_size, hop.directory ? fmt::format(", shards of {}", hop.max_shard_bytes) : "");
}

std::map<std::string, std::string> files_below(const std::string& path) {
  if (stat_path(path).kind == FileKind::file) return {{"", read_text(path, 1 << 30)}};
  std::map<std::string, std::string> files;
  for (const std::string& name : list_directory(path)) files[name] = read_text(join_path(path, name), 1 << 30);
  return files;
}

bool whole(const TensorInfo& info, const Box& box) { return equal(info.shape, box.size); }

// As torch.chunk cuts dimension `dim`, each rank its part; at most one empty piece stands for all empty ones.
bool chunked(const Checkpoint& c, TensorIndex t, size_t dim) {
  const TensorInfo& info = c.tensors[t];
  std::set<int64_t> ranks;
  for (const Piece& piece : c.pieces_of(t)) {
    if (is_empty(piece.box) && count(info.shape) != 0) continue;
    for (size_t d = 0; d < info.shape.size(); ++d) {
      const auto [offset, size] = d == dim ? chunk_extent(info.shape[d], c.world_size, piece.rank) : std::pair(int64_t{0}, info.shape[d]);
      if (piece.box.offset[d] != offset || piece.box.size[d] != size) return false;
    }
    ranks.insert(piece.rank);
  }
  int64_t expected = 0;
  for (int64_t r = 0; r < c.world_size; ++r) expected += chunk_extent(info.shape[dim], c.world_size, r).second > 0;
  return static_cast<int64_t>(ranks.size()) == expected;
}

class RoundTrip : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    const uint64_t seed = GetParam();
    options.model_only = seed % 3 == 0;
    options.safetensors_dtypes = options.model_only || seed % 3 == 1;
  }

  Hop random_hop(Random& random) const {
    std::vector<std::string> formats = {"dcp", "dcp", "torch", "hdf5"};
    if (options.safetensors_dtypes) formats.push_back("safetensors");
    if (options.model_only) formats.insert(formats.end(), {"hf-dcp", "hf-dcp"});
    Hop hop;
    hop.format = formats[random() % formats.size()];
    if (find_format(all, hop.format)->capabilities().world_size) hop.world_size = static_cast<int64_t>(1 + random() % 17);
    if (hop.format == "safetensors" && random() % 2 == 0) {
      hop.directory = true;
      hop.max_shard_bytes = 1 + random() % 20000;
    }
    return hop;
  }

  std::string publish_to(const Checkpoint& checkpoint, const Hop& hop, const std::string& name, int threads, uint64_t memory) {
    const Format& format = *find_format(all, hop.format);
    const TargetPlacement placement = place(checkpoint, hop.world_size);
    const std::string file = hop.format == "safetensors" && !hop.directory ? "out.safetensors" : "out";
    make_directory(dir / name);
    Target target;
    target.placement = &placement;
    target.file_name = file;
    target.directory = hop.directory || !(format.capabilities().single_file || !format.capabilities().endings.empty());
    target.max_shard_bytes = hop.max_shard_bytes;
    PublishOptions published;
    published.engine.threads = threads;
    published.engine.max_memory = memory;
    published.read_back = false;    // this test reads for itself
    published.arguments = name;
    FindingSink sink(/*strict=*/false);
    const std::string path = join_path(dir / name, file);
    result = publish(checkpoint, format, target, path, published, sink);
    EXPECT_FALSE(sink.has_errors());
    return path;
  }

  Checkpoint reopen(const std::string& path, const Hop& hop) {
    FindingSink strict;
    Opened opened = open_checkpoint(all, path, strict);
    EXPECT_EQ(opened.format->name(), hop.format);
    for (const Finding& finding : strict.all()) ADD_FAILURE() << Error(finding).what();
    resolve_pieces(opened.checkpoint, 2, strict);
    return std::move(opened.checkpoint);
  }

  static void expect_placed(const Checkpoint& before, const Checkpoint& after, int64_t world_size) {
    EXPECT_EQ(after.world_size, world_size);
    for (TensorIndex t = 0; t < after.tensors.size(); ++t) {
      const TensorInfo& info = after.tensors[t];
      const auto source = before.find(info.key);
      ASSERT_TRUE(source.has_value()) << info.key;
      const StoredPlacement was = stored_placement(before, *source);
      const bool one_copy = after.pieces_of(t).size() == 1 && whole(info, after.pieces_of(t)[0].box);
      const bool cut = info.key.starts_with("model.") || info.key.starts_with("optim.");   // other state is one copy
      if (cut && was.kind == StoredPlacement::Kind::shard && world_size > 1) {
        EXPECT_TRUE(chunked(after, t, static_cast<size_t>(was.dim))) << info.key << ": was cut along dimension " << was.dim;
      } else {
        EXPECT_TRUE(one_copy || (!info.shape.empty() && chunked(after, t, 0))) << info.key << ": neither one copy nor Shard(0)";
      }
    }
  }

  static void expect_same(const Checkpoint& a, const Checkpoint& b) {
    FindingSink strict;
    const DiffReport report = diff(a, b, {}, strict);
    for (const Difference& d : report.differences) ADD_FAILURE() << difference_name(d.kind) << " " << d.key << ": " << d.a << " | " << d.b;
  }

  FormatList all = all_formats();
  RandomCheckpointOptions options;
  TempDir dir{TempDir::Place::memory};
  PublishResult result;
};

TEST_P(RoundTrip, KeepsEveryElementAndValue) {
  RandomCheckpoint made(GetParam(), options);
  const SlowContent expected = slow_content(made.checkpoint());
  Checkpoint now = made.checkpoint();
  bool trees = true;
  std::string chain = fmt::format("seed {}", GetParam());
  for (int i = 0; i < 4; ++i) {
    const Hop hop = random_hop(made.random());
    chain += " -> " + hop_text(hop);
    SCOPED_TRACE(chain);
    const std::string path = publish_to(now, hop, fmt::format("hop{}", i), 1, 96 << 20);
    Checkpoint next = reopen(path, hop);
    trees = trees && !(hop.format == "dcp" && made.integer_keys());   // they become strings there
    ASSERT_EQ(compare_content(expected, slow_content(next), trees), "");
    if (find_format(all, hop.format)->capabilities().world_size) expect_placed(now, next, hop.world_size);
    if (trees) {
      EXPECT_EQ(result.fingerprint, result.source_fingerprint);
    }
    expect_same(made.checkpoint(), next);

    const std::string again = publish_to(now, hop, fmt::format("hop{}", i) + "-again", 3, 1);
    EXPECT_EQ(files_below(path), files_below(again)) << "other bytes with other threads and memory";
    now = std::move(next);
    if (HasFailure()) return;
  }
}

// The suite's cases, or those of FSDPCTL_SEEDS.
std::vector<uint64_t> seeds() {
  uint64_t first = 1, last = 90;
  if (const char* chosen = std::getenv("FSDPCTL_SEEDS")) {
    char* end = nullptr;
    first = last = std::strtoull(chosen, &end, 10);
    if (*end == '-') last = std::strtoull(end + 1, nullptr, 10);
  }
  std::vector<uint64_t> seeds;
  for (uint64_t seed = first; seed <= last; ++seed) seeds.push_back(seed);
  return seeds;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RoundTrip, testing::ValuesIn(seeds()), [](const testing::TestParamInfo<uint64_t>& seed) {
  return std::to_string(seed.param);
});

}  // namespace
}  // namespace fsdpctl
