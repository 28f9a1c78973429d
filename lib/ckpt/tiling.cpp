#include "lib/ckpt/tiling.h"

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <utility>

namespace fsdpctl {
namespace {

// ---- Do the boxes tile the shape? Linear, for any number of dims and any cut.
//
// Give every coordinate x of every dim d a random weight w_d(x), and a box the measure prod_d (w_d(end) - w_d(begin)),
// modulo a prime. Measures add up: boxes that cover every element exactly once have together the measure of the whole.
// Conversely, the difference between the two sums is a polynomial in the weights that vanishes identically only if they
// do (its coefficients are the signed corners of what is covered too often or not at all), so other boxes pass
// with probability of at most dims / 2^61. The weights differ from process to process: nobody can aim at them.
class RandomMeasure {
 public:
  RandomMeasure() {
    std::random_device device;
    for (uint64_t& seed : seeds_) seed = uint64_t{device()} << 32 | device();
  }

  uint64_t box(const Box& box) const {
    uint64_t product = 1;
    for (size_t d = 0; d < box.size.size(); ++d) product = times(product, interval(d, box.offset[d], box.size[d]));
    return product;
  }

  uint64_t whole(Dims shape) const {
    uint64_t product = 1;
    for (size_t d = 0; d < shape.size(); ++d) product = times(product, interval(d, 0, shape[d]));
    return product;
  }

  static uint64_t plus(uint64_t a, uint64_t b) { return reduce(a + b); }

 private:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

  static uint64_t reduce(uint64_t a) { return a >= kPrime ? a - kPrime : a; }

  static uint64_t times(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{a} * b;
    return reduce((static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61));
  }

  uint64_t interval(size_t d, int64_t begin, int64_t size) const {
    return reduce(weight(d, begin + size) + kPrime - weight(d, begin));
  }

  // splitmix64
  uint64_t weight(size_t d, int64_t x) const {
    uint64_t z = seeds_[d % seeds_.size()] + static_cast<uint64_t>(x) * 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return reduce((z & kPrime) + (z >> 61));
  }

  std::array<uint64_t, 64> seeds_;   // one for each dim a tensor may have
};

// ---- What is wrong? Only for tensors that are known to be wrong; finds the first few holes and overlaps.
//
// A sweep along dim 0 cuts the tensor into slabs between which no box begins or ends; what crosses a slab is
// swept along dim 1, and so on. Work is bounded, since boxes may be made to cross many slabs.
class Diagnosis {
 public:
  Diagnosis(Dims shape, const std::vector<const Piece*>& boxes) : shape_(shape), slab_(shape.size()) {
    sweep(0, boxes);
  }

  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  const std::vector<Ranges>& holes() const { return holes_; }
  const std::set<std::pair<const Piece*, const Piece*>>& overlaps() const { return overlaps_; }

 private:
  static constexpr size_t kMaxFindings = 8;
  static constexpr uint64_t kMaxWork = 20'000'000;

  bool enough() const { return work_ > kMaxWork || holes_.size() + overlaps_.size() >= kMaxFindings; }

  void sweep(size_t d, const std::vector<const Piece*>& boxes) {
    if (enough()) return;
    if (d == shape_.size()) {
      if (boxes.empty()) holes_.push_back(slab_);
      for (size_t i = 1; i < boxes.size() && !enough(); ++i) overlaps_.insert(std::minmax(boxes[0], boxes[i]));
      return;
    }
    if (boxes.empty()) {   // one hole, however many dims are left
      for (size_t e = d; e < shape_.size(); ++e) slab_[e] = {0, shape_[e]};
      holes_.push_back(slab_);
      return;
    }
    std::vector<int64_t> cuts = {0, shape_[d]};
    for (const Piece* p : boxes) {
      cuts.push_back(p->box.offset[d]);
      cuts.push_back(p->box.offset[d] + p->box.size[d]);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<const Piece*> waiting = boxes;   // by where they begin, last first
    std::sort(waiting.begin(), waiting.end(), [d](const Piece* a, const Piece* b) {
      return a->box.offset[d] != b->box.offset[d] ? a->box.offset[d] > b->box.offset[d] : a > b;
    });
    std::vector<const Piece*> active;
    for (size_t i = 0; i + 1 < cuts.size() && !enough(); ++i) {
      std::erase_if(active, [&](const Piece* p) { return p->box.offset[d] + p->box.size[d] <= cuts[i]; });
      while (!waiting.empty() && waiting.back()->box.offset[d] == cuts[i]) {
        active.push_back(waiting.back());
        waiting.pop_back();
      }
      work_ += active.size() + 1;
      slab_[d] = {cuts[i], cuts[i + 1]};
      sweep(d + 1, active);
    }
  }

  Dims shape_;
  Ranges slab_;
  std::vector<Ranges> holes_;
  std::set<std::pair<const Piece*, const Piece*>> overlaps_;
  uint64_t work_ = 0;
};

std::string ranges_text(const Diagnosis::Ranges& ranges) {
  std::vector<int64_t> offset, size;
  for (const auto& [begin, end] : ranges) {
    offset.push_back(begin);
    size.push_back(end - begin);
  }
  return box_text({offset, size});
}

class Checker {
 public:
  Checker(const Checkpoint& checkpoint, FindingSink& sink) : checkpoint_(checkpoint), sink_(sink) {}

  void tensor(TensorIndex t) {
    const TensorInfo& info = checkpoint_.tensors[t];
    const std::span<const Piece> pieces = checkpoint_.pieces_of(t);
    if (pieces.size() == 1 && equal(pieces[0].box.size, info.shape) && contains(info.shape, pieces[0].box)) return;
    // Replicas have equal boxes and lie side by side.
    boxes_.clear();
    uint64_t sum = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && equal(pieces[i].box, pieces[i - 1].box)) continue;
      if (!contains(info.shape, pieces[i].box)) {
        report(t, error(Exit::damaged, "piece lies outside its tensor").found_only(box_text(pieces[i].box)), &pieces[i]);
      } else if (!is_empty(pieces[i].box)) {
        boxes_.push_back(&pieces[i]);
        sum = RandomMeasure::plus(sum, measure_.box(pieces[i].box));
      }
    }
    const bool empty = std::find(info.shape.begin(), info.shape.end(), 0) != info.shape.end();
    if (!empty && sum != measure_.whole(info.shape)) explain(t);
  }

 private:
  void explain(TensorIndex t) {
    const TensorInfo& info = checkpoint_.tensors[t];
    const Diagnosis diagnosis(info.shape, boxes_);
    for (const auto& hole : diagnosis.holes()) {
      report(t, error(Exit::damaged, "tensor has a hole").saw("a piece with " + ranges_text(hole), "none"));
    }
    for (const auto& [a, b] : diagnosis.overlaps()) {
      report(t, error(Exit::damaged, "pieces overlap").found_only(box_text(a->box) + " and " + box_text(b->box)), b);
    }
    if (diagnosis.holes().empty() && diagnosis.overlaps().empty()) {
      report(t, error(Exit::damaged, "pieces do not cover every element exactly once")
                    .found_only(std::to_string(boxes_.size()) + " boxes"));
    }
  }

  void report(TensorIndex t, Finding finding, const Piece* piece = nullptr) {
    finding.key(std::string(checkpoint_.tensors[t].key));
    if (piece != nullptr) {
      if (checkpoint_.source) finding.at(checkpoint_.source->file(piece->source).name);
      finding.where.rank = piece->rank;
    }
    sink_.report(std::move(finding));
  }

  const Checkpoint& checkpoint_;
  FindingSink& sink_;
  RandomMeasure measure_;
  std::vector<const Piece*> boxes_;
};

}  // namespace

void check_tiling(const Checkpoint& checkpoint, FindingSink& sink) {
  Checker checker(checkpoint, sink);
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) checker.tensor(t);
}

}  // namespace fsdpctl
