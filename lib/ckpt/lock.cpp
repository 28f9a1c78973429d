#include "lib/ckpt/lock.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "lib/ckpt/parts.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kMagic = "{\"fsdpctl_lock\": 1,";

auto order(const LockRow& r) { return std::tie(r.part, r.fqn, r.field); }

std::string row_name(const LockRow& r) {
  std::string name = r.part;
  for (const std::string* s : {&r.fqn, &r.field}) {
    if (!s->empty()) name += " " + *s;
  }
  return name;
}

std::string row_text(const LockRow& r) { return r.dtype.empty() ? "value" : r.dtype + " " + dims_text(r.shape); }

Difference difference(Difference::Kind kind, const LockRow* before, const LockRow* now) {
  Difference d;
  d.kind = kind;
  d.key = row_name(before ? *before : *now);
  if (before) d.a = row_text(*before);
  if (now) d.b = row_text(*now);
  return d;
}

}  // namespace

Lock lock_of(const Checkpoint& checkpoint) {
  const Parts parts = find_parts(checkpoint);
  Lock lock;
  for (const LeafInfo& leaf : parts.leaves) {
    LockRow row;
    row.part = part_name(leaf.part);
    row.fqn = leaf.fqn;
    row.field = leaf.field;
    if (row.fqn.empty()) {
      row.fqn = leaf.path;
      for (const OptimizerInfo& o : parts.optimizers) {
        if (leaf.part == Part::optimizer && leaf.path.starts_with(o.path + ".")) row.fqn = leaf.path.substr(o.path.size() + 1);
      }
    }
    if (leaf.tensor != kNoTensor) {
      const TensorInfo& info = checkpoint.tensors[leaf.tensor];
      row.dtype = dtype_name(info.dtype);
      row.shape.assign(info.shape.begin(), info.shape.end());
    }
    lock.rows.push_back(std::move(row));
  }
  std::stable_sort(lock.rows.begin(), lock.rows.end(), [](const LockRow& a, const LockRow& b) { return order(a) < order(b); });
  return lock;
}

std::string lock_text(const Lock& lock) {
  std::string text = std::string(kMagic) + " \"rows\": [\n";
  for (size_t i = 0; i < lock.rows.size(); ++i) {
    const LockRow& r = lock.rows[i];
    nlohmann::ordered_json row = {{"part", r.part}, {"fqn", r.fqn}};
    if (!r.field.empty()) row["field"] = r.field;
    if (!r.dtype.empty()) {
      row["dtype"] = r.dtype;
      row["shape"] = r.shape;
    }
    text += row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    text += i + 1 < lock.rows.size() ? ",\n" : "\n";
  }
  return text + "]}\n";
}

bool looks_like_lock(std::string_view text) { return text.starts_with("{\"fsdpctl_lock\":"); }

Lock parse_lock(std::string_view text, const std::string& file_name) {
  Lock lock;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    lock.version = json.at("fsdpctl_lock").get<int>();
    if (lock.version != 1) {
      throw Error(Exit::unsupported, "lock file of an unknown version").at(file_name).saw("1", fmt::format("{}", lock.version));
    }
    for (const nlohmann::json& j : json.at("rows")) {
      LockRow row;
      row.part = j.at("part").get<std::string>();
      row.fqn = j.at("fqn").get<std::string>();
      row.field = j.value("field", "");
      row.dtype = j.value("dtype", "");
      row.shape = j.value("shape", std::vector<int64_t>());
      lock.rows.push_back(std::move(row));
    }
  } catch (const nlohmann::json::parse_error& e) {
    throw Error(Exit::usage, "lock file cannot be read").at(file_name)
        .saw("what verify --write-lock wrote, whole", fmt::format("text that is no JSON from byte {}", e.byte));
  } catch (const nlohmann::json::exception&) {
    throw Error(Exit::usage, "lock file cannot be read").at(file_name)
        .saw("what verify --write-lock wrote", "JSON without the fields of a lock file, or with others in their place");
  }
  std::stable_sort(lock.rows.begin(), lock.rows.end(), [](const LockRow& a, const LockRow& b) { return order(a) < order(b); });
  return lock;
}

std::vector<Difference> compare_locks(const Lock& before, const Lock& now) {
  std::vector<Difference> found;
  auto a = before.rows.begin();
  auto b = now.rows.begin();
  while (a != before.rows.end() || b != now.rows.end()) {
    if (b == now.rows.end() || (a != before.rows.end() && order(*a) < order(*b))) {
      found.push_back(difference(Difference::Kind::missing, &*a++, nullptr));
    } else if (a == before.rows.end() || order(*b) < order(*a)) {
      found.push_back(difference(Difference::Kind::added, nullptr, &*b++));
    } else {
      if (a->dtype.empty() != b->dtype.empty()) {
        found.push_back(difference(Difference::Kind::type, &*a, &*b));
      } else if (a->shape != b->shape) {
        found.push_back(difference(Difference::Kind::shape, &*a, &*b));
      } else if (a->dtype != b->dtype) {
        found.push_back(difference(Difference::Kind::dtype, &*a, &*b));
      }
      ++a;
      ++b;
    }
  }
  return found;
}

}  // namespace fsdpctl
