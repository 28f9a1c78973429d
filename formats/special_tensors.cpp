#include "formats/special_tensors.h"

#include <string>
#include <unordered_set>

#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

class Finder : public TreeVisitor {
 public:
  explicit Finder(FindingSink& sink) : sink_(sink) {}

  void leaf(std::string_view path, const Value& value) override {
    seen_.clear();
    const ObjectNode* special = find(value);
    if (special == nullptr) return;
    found = true;
    sink_.report(error(Exit::refused, "only torch files hold quantised, sparse and other special tensors")
                     .key(std::string(path)).found_only(special->class_name()).try_("--drop " + shell_quoted(std::string(path))));
  }

  bool found = false;

 private:
  const ObjectNode* find(const Value& value) {
    const bool holds = value.is_sequence() || value.is_mapping() || value.is(Kind::object);
    if (!holds || !seen_.insert(value.identity()).second) return nullptr;
    if (value.is_sequence()) return find(value.items());
    if (value.is_mapping()) return find(value.entries());
    const auto& object = value.node<ObjectNode>();
    if (is_special_tensor(object)) return &object;
    for (const Value* part : {&object.args, &object.kwargs, &object.state}) {
      if (const ObjectNode* special = find(*part)) return special;
    }
    const ObjectNode* special = find(object.items);
    return special != nullptr ? special : find(object.entries);
  }

  const ObjectNode* find(const std::vector<Value>& items) {
    for (const Value& item : items) {
      if (const ObjectNode* special = find(item)) return special;
    }
    return nullptr;
  }

  const ObjectNode* find(const std::vector<Entry>& entries) {
    for (const Entry& e : entries) {
      if (const ObjectNode* special = find(e.value)) return special;
    }
    return nullptr;
  }

  FindingSink& sink_;
  std::unordered_set<const void*> seen_;
};

}  // namespace

bool is_special_tensor(const ObjectNode& object) {
  const std::string name = object.class_name();
  return name.starts_with("torch.") && name.find("._rebuild_") != std::string::npos;
}

bool refuse_special_tensors(const Checkpoint& checkpoint, FindingSink& sink) {
  Finder finder(sink);
  walk_tree(checkpoint.tree, finder);
  return finder.found;
}

}  // namespace fsdpctl
