#include "formats/dcp_carry.h"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/codec/python_classes.h"
#include "formats/dcp_flatten.h"
#include "formats/special_tensors.h"

#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

std::string kind_text(Kind kind) {
  switch (kind) {
    case Kind::ordered_dict: return "OrderedDict";
    case Kind::default_dict: return "defaultdict";
    case Kind::list: return "list";
    case Kind::tensor: return "tensor";
    case Kind::object: return "object";
    default: return "value";
  }
}

// Counts what happens often, and remembers where it happened first.
struct Tally {
  uint64_t count = 0;
  Location first;
  void add(Location where) {
    if (count++ == 0) first = std::move(where);
  }
};

class Losses {
 public:
  Losses(const Checkpoint& checkpoint, FindingSink& sink) : file_(checkpoint.metadata_file), sink_(sink) {}

  // Mappings and lists that are taken apart.
  void descend(const Value& value) {
    if (value.is_mapping() && !value.entries().empty()) {
      mapping(value);
      for (const Entry& e : value.entries()) below(key_text(e.key), e.value);
    } else if (value.is(Kind::list) && is_descended(value)) {
      for (size_t i = 0; i < value.items().size(); ++i) below(std::to_string(i), value.items()[i]);
    } else if (value.is(Kind::tensor)) {
      tensor(value);
    } else {
      inspect(value);
    }
  }

  void summary() {
    tell(kinds_, "mappings become plain dicts, as whenever PyTorch saves this way");
    tell(attributes_, "attributes of an OrderedDict are not stored, as whenever PyTorch saves this way");
    tell(parameters_, "parameters become plain tensors, as whenever PyTorch saves this way");
  }

 private:
  void below(const std::string& element, const Value& value) {
    const size_t length = path_.size();
    if (length > 0) path_ += '.';
    path_ += element;
    descend(value);
    path_.resize(length);
  }

  // The mapping at the top has no path: it is named by its file.
  Location here() const {
    Location where;
    (path_.empty() ? where.path : where.key) = path_.empty() ? file_ : path_;
    return where;
  }

  void report(Finding finding) {
    finding.where = here();
    sink_.report(std::move(finding));
  }

  void mapping(const Value& value) {
    if (value.is(Kind::counter)) {   // named each, with its path: one value of ours becomes several
      report(note("a Counter becomes a plain dict, as whenever PyTorch saves this way"));
    } else if (!value.is(Kind::dict)) {
      Location where = here();
      (path_.empty() ? where.path : where.key) += fmt::format(" ({})", kind_text(value.kind()));
      kinds_.add(std::move(where));
    }
    if (value.is(Kind::ordered_dict) && !value.node<MappingNode>().attributes.is(Kind::none)) attributes_.add(here());
    std::string keys;
    uint64_t count = 0;
    for (const Entry& e : value.entries()) {
      if (e.key.is(Kind::string)) continue;
      if (++count <= 3) keys += (keys.empty() ? "" : ", ") + key_text(e.key);
    }
    if (count == 0) return;
    report(warning("keys become strings").found_only(count > 3 ? fmt::format("{} ... ({} keys)", keys, count) : keys));
  }

  void tensor(const Value& value) {
    if (value.as_tensor().parameter) parameters_.add(here());
    if (!value.tensor_attributes().is(Kind::none)) {
      report(warning("attributes of a tensor are not stored"));
    }
  }

  // A value that is stored as a whole.
  void inspect(const Value& value) {
    if (has_storage(value)) {
      report(error(Exit::refused, "quantised, sparse and other special tensors do not fit into a distributed checkpoint")
                 .found_only(object_class_).try_("--drop " + shell_quoted(path_)));
    } else if (!object_class_.empty()) {
      report(warning("value needs its own Python code to be loaded").found_only(object_class_));
    }
    object_class_.clear();
    seen_.clear();
  }

  static bool is_foreign(const ObjectNode& object) {
    if (!object.callable.is(Kind::global)) return false;
    const auto& g = object.callable.node<GlobalNode>();
    return classify_python_name(g.module, g.name).role == PythonRole::foreign;
  }

  // Is it, or is in it, a tensor that is none here? Also notes the first class of the user's own.
  bool has_storage(const Value& value) {
    if (value.is(Kind::storage)) return true;
    if (value.is(Kind::tensor)) return false;
    const bool holds = value.is_sequence() || value.is_mapping() || value.is(Kind::object);
    if (!holds || !seen_.insert(value.identity()).second) return false;
    if (value.is_sequence()) return any(value.items());
    if (value.is_mapping()) {
      for (const Entry& e : value.entries()) {
        if (has_storage(e.key) || has_storage(e.value)) return true;
      }
      return has_storage(value.node<MappingNode>().attributes);
    }
    const auto& object = value.node<ObjectNode>();
    const std::string name = object.class_name();
    if (is_special_tensor(object)) return object_class_ = name, true;   // meta tensors have no storage
    if (object_class_.empty() && is_foreign(object)) object_class_ = name;
    if (has_storage(object.args) || has_storage(object.kwargs) || has_storage(object.state) || any(object.items)) return true;
    for (const Entry& e : object.entries) {
      if (has_storage(e.key) || has_storage(e.value)) return true;
    }
    return false;
  }
  bool any(const std::vector<Value>& values) {
    for (const Value& v : values) {
      if (has_storage(v)) return true;
    }
    return false;
  }

  void tell(const Tally& tally, const char* what) {
    if (tally.count == 0) return;
    Finding finding = note(what);
    finding.found_only(tally.count > 1 ? fmt::format("{} of them", tally.count) : "");
    finding.where = tally.first;
    sink_.report(std::move(finding));
  }

  const std::string& file_;
  FindingSink& sink_;
  std::string path_;
  std::string object_class_;
  std::unordered_set<const void*> seen_;
  Tally kinds_, attributes_, parameters_;
};

}  // namespace

namespace {

// Calls visit(tensor) for each tensor in a value, in objects too. What is shared within the value is looked at once.
template <class Visit>
class EachTensor {
 public:
  explicit EachTensor(const Visit& visit) : visit_(visit) {}
  void in(const Value& value) {
    if (value.is(Kind::tensor)) return visit_(value.as_tensor().index);
    const bool holds = value.is_sequence() || value.is_mapping() || value.is(Kind::object);
    if (!holds || !seen_.insert(value.identity()).second) return;
    if (value.is_sequence()) return in_all(value.items());
    if (value.is_mapping()) return in_entries(value.entries());
    const auto& object = value.node<ObjectNode>();
    for (const Value* part : {&object.args, &object.kwargs, &object.state}) in(*part);
    in_all(object.items);
    in_entries(object.entries);
  }

 private:
  void in_all(const std::vector<Value>& values) {
    for (const Value& value : values) in(value);
  }
  void in_entries(const std::vector<Entry>& entries) {
    for (const Entry& e : entries) in(e.value);
  }
  const Visit& visit_;
  std::unordered_set<const void*> seen_;
};

// A value is stored as one archive with the tensors in it, so that no other name can share their bytes.
void refuse_shared_with_values(const Checkpoint& checkpoint, const DcpFlatState& state, FindingSink& sink) {
  std::vector<const DcpSavedLeaf*> holder(checkpoint.tensors.size(), nullptr);
  for (const DcpSavedLeaf& leaf : state.leaves()) {
    const auto visit = [&](TensorIndex t) {
      const DcpSavedLeaf* other = std::exchange(holder[t], &leaf);
      if (other == nullptr || other == &leaf || (other->is_tensor() && leaf.is_tensor())) return;
      const DcpSavedLeaf& value = leaf.is_tensor() ? *other : leaf;
      sink.report(error(Exit::refused, "a tensor that is tied into a value does not fit into a distributed checkpoint")
                      .key(std::string(value.fqn)).found_only("also at " + std::string((&value == &leaf ? other : &leaf)->fqn))
                      .try_("--drop " + shell_quoted(std::string(value.fqn))));
    };
    EachTensor(visit).in(*leaf.value);
  }
}

}  // namespace

void report_dcp_losses(const Checkpoint& checkpoint, FindingSink& sink) {
  try {
    const DcpFlatState state(checkpoint.tree);
    refuse_shared_with_values(checkpoint, state, sink);
  } catch (Error& e) {
    sink.report(e.in_file(checkpoint.metadata_file).finding());
    if (!checkpoint.tree.is_mapping()) return;
  }
  Losses losses(checkpoint, sink);
  losses.descend(checkpoint.tree);
  losses.summary();
}

}  // namespace fsdpctl
