// walk_tree of lib/ckpt/checkpoint.h: the paths of a tree's leaves.
#include <charconv>
#include <string>
#include <unordered_map>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {
namespace {

class Walker {
 public:
  Walker(TreeVisitor& visitor, PathStyle style) : visitor_(visitor), subscripts_(style == PathStyle::subscripts) {}

  void walk(const Value& value) {
    if (value.is_mapping() && !value.is(Kind::counter) && !value.entries().empty()) {
      for (const Entry& e : value.entries()) {
        const size_t length = path_.size();
        if (e.key.is(Kind::string)) {
          push(e.key.text(), true);
        } else {
          push(key_text(e.key));
        }
        walk(e.value);
        path_.resize(length);
      }
    } else if (is_branch(value)) {
      size_t i = 0;
      for (const Value& item : value.items()) {
        char digits[20];
        const auto end = std::to_chars(digits, digits + sizeof digits, i++).ptr;
        const size_t length = path_.size();
        push({digits, end});
        walk(item);
        path_.resize(length);
      }
    } else {
      visitor_.leaf(path_, value);
    }
  }

 private:
  struct Holds {
    bool tensor = false;
    bool mapping = false;
  };

  void push(std::string_view element, bool text = false) {
    if (subscripts_) {
      const std::string_view quote = text ? "'" : "";
      path_.append("[").append(quote).append(element).append(quote).append("]");
      return;
    }
    if (!path_.empty()) path_ += '.';
    path_ += element;
  }

  static bool is_list(const Value& value) {
    return value.is(Kind::list) || value.is(Kind::tuple) || value.is(Kind::size);
  }

  // A list or tuple that holds a tensor, or a list that holds a mapping through lists only.
  bool is_branch(const Value& value) {
    if (!is_list(value)) return false;
    const Holds holds = holds_of(value);
    return holds.tensor || (holds.mapping && value.is(Kind::list));
  }

  // Remembered for each node: a nested list is asked again at every level, a shared one through every parent.
  Holds holds_of(const Value& value) {
    if (value.is(Kind::tensor)) return {.tensor = true, .mapping = false};
    if (!is_list(value) && !value.is_mapping()) return {};
    if (const auto known = known_.find(value.identity()); known != known_.end()) return known->second;
    Holds holds;
    if (value.is_mapping()) {
      holds.mapping = true;
      for (const Entry& e : value.entries()) {
        if (holds.tensor) break;
        holds.tensor = holds_of(e.value).tensor;
      }
    } else {
      for (const Value& item : value.items()) {
        const Holds inner = holds_of(item);
        holds.tensor |= inner.tensor;
        holds.mapping |= inner.mapping && !item.is(Kind::tuple);
        if (holds.tensor) break;
      }
    }
    known_.emplace(value.identity(), holds);
    return holds;
  }

  TreeVisitor& visitor_;
  const bool subscripts_;
  std::string path_;
  std::unordered_map<const void*, Holds> known_;
};

}  // namespace

void walk_tree(const Value& tree, TreeVisitor& visitor, PathStyle style) { Walker(visitor, style).walk(tree); }

}  // namespace fsdpctl
