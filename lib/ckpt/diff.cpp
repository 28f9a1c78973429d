#include "lib/ckpt/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "lib/base/value_json.h"
#include "lib/ckpt/diff_containers.h"
#include "lib/ckpt/diff_values.h"
#include "lib/ckpt/manifest.h"
#include "lib/ckpt/parts.h"
#include "lib/ckpt/select.h"

namespace fsdpctl {
namespace {

using LeafMap = std::unordered_map<std::string, const LeafInfo*>;

// What a leaf is, without the names that its format or framework gives the parts ("optim", "optimizer", none).
std::string identity(const Parts& parts, const LeafInfo& leaf) {
  if (!leaf.fqn.empty()) return fmt::format("{}\t{}\t{}", static_cast<int>(leaf.part), leaf.fqn, leaf.field);
  std::string_view path = leaf.path;
  if (leaf.part == Part::optimizer) {
    for (size_t i = 0; i < parts.optimizers.size(); ++i) {
      const std::string& prefix = parts.optimizers[i].path;
      if (!prefix.empty() && path.size() > prefix.size() && path.starts_with(prefix) && path[prefix.size()] == '.') {
        return fmt::format("1\t{}\t{}", i, path.substr(prefix.size() + 1));
      }
    }
    return fmt::format("1\t0\t{}", path);
  }
  return fmt::format("2\t\t{}", path);
}

LeafMap index(const Parts& parts) {
  LeafMap map;
  for (const LeafInfo& leaf : parts.leaves) {
    // Two leaves of one identity (two optimizers with the same names): fall back to the path.
    if (!map.emplace(identity(parts, leaf), &leaf).second) map.emplace("path\t" + std::string(leaf.path), &leaf);
  }
  return map;
}

std::string tensor_text(const Checkpoint& c, const LeafInfo& leaf) {
  if (leaf.tensor == kNoTensor) return value_to_json(*leaf.value, JsonForm::shown);
  const TensorInfo& info = c.tensors[leaf.tensor];
  return fmt::format("{} {}", dtype_name(info.dtype), dims_text(info.shape));
}

bool same_recorded_fingerprint(const Checkpoint& a, const Checkpoint& b, FindingSink& sink) {
  if (!is_untouched(a) || !is_untouched(b)) return false;   // what was written since, the manifests do not know
  const std::optional<Manifest> ma = find_manifest(a, sink);
  if (!ma) return false;
  const std::optional<Manifest> mb = find_manifest(b, sink);
  return mb && ma->fingerprint == mb->fingerprint;
}

class Comparison {
 public:
  Comparison(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options), parts_a_(find_parts(a)), parts_b_(find_parts(b)) {}

  DiffReport run() {
    expand_counters(parts_a_, parts_b_);
    expand_counters(parts_b_, parts_a_);
    const LeafMap in_b = index(parts_b_);
    const LeafMap in_a = index(parts_a_);
    for (const LeafInfo& leaf : parts_a_.leaves) {
      if (!wanted(leaf)) continue;
      const LeafInfo* other = partner(parts_a_, leaf, in_b);
      if (other == nullptr) {
        add(Difference::Kind::missing, leaf).a = tensor_text(a_, leaf);
      } else {
        compare_structure(leaf, *other);
      }
    }
    for (const LeafInfo& leaf : parts_b_.leaves) {
      if (!wanted(leaf) || partner(parts_b_, leaf, in_a) != nullptr) continue;
      add(Difference::Kind::added, leaf).b = tensor_text(b_, leaf);
    }
    if (!options_.structure_only) {
      compare_bytes();
      report_.containers = compare_containers(a_.tree, b_.tree);
      std::erase_if(report_.containers, [&](const ContainerChange& c) { return !wanted(c.key); });
    }
    return std::move(report_);
  }

 private:
  struct Pair {
    const LeafInfo *a, *b;
    size_t at;               // where its difference belongs, so that the report keeps A's order
    bool dtype_differs;
  };

  bool wanted(std::string_view path) const { return options_.name_glob.empty() || glob_match(options_.name_glob, path); }
  bool wanted(const LeafInfo& leaf) const { return wanted(leaf.path); }

  // A Counter is a leaf; the dict that a format made of it is not. Its entries are compared then.
  static void expand_counters(Parts& parts, const Parts& other) {
    const auto is_counter = [](const LeafInfo& leaf) { return leaf.value->is(Kind::counter) && !leaf.value->entries().empty(); };
    if (std::none_of(parts.leaves.begin(), parts.leaves.end(), is_counter)) return;
    const LeafMap others = index(other);
    std::vector<LeafInfo> leaves;
    for (const LeafInfo& leaf : parts.leaves) {
      if (!is_counter(leaf) || partner(parts, leaf, others) != nullptr) {
        leaves.push_back(leaf);
        continue;
      }
      for (const Entry& entry : leaf.value->entries()) {
        const auto child = [&](std::string_view name) { return parts.arena->store(fmt::format("{}.{}", name, key_text(entry.key))); };
        LeafInfo below = leaf;
        below.value = &entry.value;
        below.path = child(leaf.path);
        if (!leaf.field.empty()) below.field = child(leaf.field);
        else if (!leaf.fqn.empty()) below.fqn = child(leaf.fqn);
        leaves.push_back(below);
      }
    }
    parts.leaves = std::move(leaves);
  }

  static const LeafInfo* partner(const Parts& parts, const LeafInfo& leaf, const LeafMap& map) {
    const auto by_path = map.find("path\t" + std::string(leaf.path));
    if (by_path != map.end()) return by_path->second;
    const auto hit = map.find(identity(parts, leaf));
    return hit == map.end() ? nullptr : hit->second;
  }

  Difference& add(Difference::Kind kind, const LeafInfo& leaf) {
    Difference d;
    d.kind = kind;
    d.key = leaf.path;
    return report_.differences.emplace_back(std::move(d));
  }

  void compare_structure(const LeafInfo& la, const LeafInfo& lb) {
    const bool ta = la.tensor != kNoTensor, tb = lb.tensor != kNoTensor;
    if (!ta && !tb) {
      ++report_.compared_values;
      if (options_.structure_only || same_content(*la.value, *lb.value)) return;
      Difference& d = add(Difference::Kind::value, la);
      d.a = value_to_json(*la.value, JsonForm::shown);
      d.b = value_to_json(*lb.value, JsonForm::shown);
      return;
    }
    auto both = [&](Difference::Kind kind) {
      Difference& d = add(kind, la);
      d.a = tensor_text(a_, la);
      d.b = tensor_text(b_, lb);
    };
    if (ta != tb) return both(Difference::Kind::type);
    ++report_.compared_tensors;
    const TensorInfo &ia = a_.tensors[la.tensor], &ib = b_.tensors[lb.tensor];
    if (!equal(ia.shape, ib.shape)) return both(Difference::Kind::shape);
    const bool dtype_differs = ia.dtype != ib.dtype;
    pairs_.push_back({&la, &lb, report_.differences.size(), dtype_differs});
    if (dtype_differs) both(Difference::Kind::dtype);
  }

  // Both sides are read once for their sums; only tensors whose sums differ are read again.
  void compare_bytes() {
    std::vector<TensorIndex> wanted_a, wanted_b;
    for (const Pair& p : pairs_) {
      if (p.dtype_differs) continue;
      wanted_a.push_back(p.a->tensor);
      wanted_b.push_back(p.b->tensor);
    }
    std::vector<TensorSum> sums_a, sums_b;
    if (!wanted_a.empty()) {
      sums_a = fingerprint(a_, wanted_a, options_.engine);
      sums_b = fingerprint(b_, wanted_b, options_.engine);
    }
    std::vector<Difference> ordered;
    size_t next = 0;
    for (const Pair& p : pairs_) {
      while (next < p.at) ordered.push_back(std::move(report_.differences[next++]));
      if (p.dtype_differs) {
        Difference d = std::move(report_.differences[next++]);
        compare_values(a_, p.a->tensor, b_, p.b->tensor, options_, d);
        ordered.push_back(std::move(d));
        continue;
      }
      if (sums_a[p.a->tensor].crc64 == sums_b[p.b->tensor].crc64) continue;
      Difference d;
      d.key = p.a->path;
      d.a = tensor_text(a_, *p.a);
      d.b = tensor_text(b_, *p.b);
      compare_values(a_, p.a->tensor, b_, p.b->tensor, options_, d);
      if (d.different > 0) ordered.push_back(std::move(d));
    }
    while (next < report_.differences.size()) ordered.push_back(std::move(report_.differences[next++]));
    report_.differences = std::move(ordered);
  }

  const Checkpoint& a_;
  const Checkpoint& b_;
  const DiffOptions& options_;
  Parts parts_a_, parts_b_;
  std::vector<Pair> pairs_;
  DiffReport report_;
};

}  // namespace

std::string_view difference_name(Difference::Kind kind) {
  switch (kind) {
    case Difference::Kind::missing: return "missing";
    case Difference::Kind::added: return "added";
    case Difference::Kind::dtype: return "dtype";
    case Difference::Kind::shape: return "shape";
    case Difference::Kind::values: return "values";
    case Difference::Kind::value: return "value";
    case Difference::Kind::type: return "type";
  }
  return "values";
}

DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options, FindingSink& sink) {
  if (options.trust_manifests && options.name_glob.empty() && !options.structure_only && same_recorded_fingerprint(a, b, sink)) {
    DiffReport report;
    report.by_fingerprint = true;
    report.compared_tensors = a.tensors.size();
    return report;
  }
  return Comparison(a, b, options).run();
}

}  // namespace fsdpctl
