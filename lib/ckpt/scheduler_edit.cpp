// fill_schedulers of lib/ckpt/tree_edit.h.
#include <algorithm>
#include <string>

#include "lib/ckpt/optimizer.h"
#include "lib/ckpt/tree_edit.h"

namespace fsdpctl {
namespace {

// State dicts of LRScheduler have the first two, those of newer PyTorch also the third. Schedulers that are made of others
// (SequentialLR, ChainedScheduler) and ReduceLROnPlateau have neither the first nor the third themselves.
constexpr std::string_view kMark = "_get_lr_called_within_step", kEpoch = "last_epoch", kLater = "_is_initial";

class SchedulerFiller {
 public:
  explicit SchedulerFiller(std::vector<Change>& changes) : changes_(changes) {}

  // True where `value` was replaced.
  bool fill(Value& value, const std::string& path) {
    if (value.is_mapping()) return fill_mapping(value, path);
    if (!value.is(Kind::list) && !value.is(Kind::tuple)) return false;
    std::vector<Value> items = value.items();
    bool changed = false;
    for (size_t i = 0; i < items.size(); ++i) changed = fill(items[i], below(path, std::to_string(i))) || changed;
    if (changed) value = Value::sequence(value.kind(), std::move(items));
    return changed;
  }

 private:
  static std::string below(const std::string& path, std::string_view element) {
    return path.empty() ? std::string(element) : path + "." + std::string(element);
  }

  bool fill_mapping(Value& value, const std::string& path) {
    std::vector<Entry> entries;
    entries.reserve(value.entries().size());
    bool changed = false;
    for (const Entry& e : value.entries()) {
      entries.push_back(e);
      if (e.value.is_mapping() || e.value.is_sequence()) changed = fill(entries.back().value, below(path, key_text(e.key))) || changed;
      // Where a checkpoint does not record nesting, the whole path is the key.
      const std::string_view key = key_of(e);
      if (!key.ends_with(kMark)) continue;
      const std::string prefix(key.substr(0, key.size() - kMark.size())), later = prefix + std::string(kLater);
      if ((!prefix.empty() && prefix.back() != '.') || !value.find(prefix + std::string(kEpoch)) || value.find(later)) continue;
      entries.push_back({Value::string(later), Value::boolean(false)});
      changes_.push_back({"filled", below(path, later), "False (default of LRScheduler)"});
      changed = true;
    }
    if (!changed) return false;
    Value made = Value::mapping(value.kind(), std::move(entries));
    made.mutable_node<MappingNode>().attributes = value.node<MappingNode>().attributes;
    value = std::move(made);
    return true;
  }

  std::vector<Change>& changes_;
};

}  // namespace

void fill_schedulers(Value& tree, std::vector<Change>& changes) { SchedulerFiller(changes).fill(tree, {}); }

}  // namespace fsdpctl
