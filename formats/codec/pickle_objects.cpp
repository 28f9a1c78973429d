// Globals, calls and state of the pickle machine.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "formats/codec/numpy_pickle.h"
#include "formats/codec/pickle_machine.h"
#include "formats/codec/python_calls.h"
#include "lib/base/utf8.h"

namespace fsdpctl::pickle {
namespace {

std::string full_name(const Value& global) {
  const auto& node = global.node<GlobalNode>();
  return node.module + "." + node.name;
}

// What to do about the usual reason: torch.save(model) instead of torch.save(model.state_dict()).
std::string advice_for(std::string_view module) {
  std::string_view whole;
  if (module.starts_with("torch.nn.") || module.starts_with("torch.distributed.fsdp")) whole = "model";
  if (module.starts_with("torch.optim.")) whole = "optimizer";
  if (whole.empty()) return {};
  return fmt::format("; a whole pickled {0} is code, which is never run here: torch.save({0}.state_dict(), PATH) saves what can be opened", whole);
}

}  // namespace

Error Machine::unsafe(const Value& global) const {
  return error(Exit::unsupported, "unsafe callable in pickle")
      .found_only(full_name(global) + advice_for(global.node<GlobalNode>().module));
}

// ---- globals

void Machine::global() {
  const std::string_view module = line();
  const std::string_view name = line();
  if (!is_utf8(module, true) || !is_utf8(name, true)) throw error(Exit::damaged, "name in pickle is not UTF-8");
  push(Value::borrow(know(module, name).value));
}

void Machine::stack_global() {
  need(2);
  const Value& module = stack_[stack_.size() - 2];
  const Value& name = stack_.back();
  if (!module.is(Kind::string) || !name.is(Kind::string)) throw error(Exit::damaged, "name in pickle is not a string");
  Value value = Value::borrow(know(module.text(), name.text()).value);
  drop(stack_.size() - 2);
  push(std::move(value));
}

Machine::Known& Machine::know(std::string_view old_module, std::string_view old_name) {
  const auto [module, name] = python3_name(old_module, old_name);
  const auto [at, is_new] = known_ids_.try_emplace(fmt::format("{}\n{}", module, name), static_cast<uint32_t>(known_.size()) + 1);
  if (!is_new) return known_[at->second - 1];
  Known fact{classify_python_name(module, name), Value::global(module, name)};
  auto& node = fact.value.mutable_node<GlobalNode>();
  node.reader_id = at->second;
  node.handler_id = handler_.know(module, name);
  if (node.handler_id == 0) {
    // A dotted name is getattr in another spelling: only what is listed.
    const bool attribute = fact.python.role == PythonRole::uncallable && name.find('.') != std::string_view::npos;
    if (fact.python.role == PythonRole::unsafe || attribute) throw unsafe(fact.value);
    if (fact.python.role == PythonRole::foreign) warn(module, name);
    if (fact.python.role == PythonRole::constant) {
      // torch._utils names memory formats as "torch.channels_last".
      fact.value = Value::constant(fact.python.kind, name.starts_with("torch.") ? std::string(name) : fmt::format("torch.{}", name));
    }
  }
  known_.push_back(std::move(fact));
  return known_.back();
}

void Machine::warn(std::string_view module, std::string_view name) {
  const std::string outer = fmt::format("{}.{}", module, name.substr(0, name.find('.')));
  if (!warned_.insert(outer).second) return;
  Finding finding = warning("unknown class kept as it is");
  finding.at(name_).offset(base_ + static_cast<uint64_t>(at_ - begin_)).found_only(outer);
  sink_.report(std::move(finding));
}

// Handlers may make globals of their own; they are looked up by name.
const Machine::Known& Machine::known(const Value& global) {
  const auto& node = global.node<GlobalNode>();
  if (node.reader_id != 0) return known_[node.reader_id - 1];
  return know(node.module, node.name);
}

bool Machine::is_role(const Value& value, PythonRole role) {
  if (!value.is(Kind::global) || value.node<GlobalNode>().handler_id != 0) return false;
  return known(value).python.role == role;
}

bool Machine::is_foreign(const Value& value) {
  if (value.is(Kind::global)) return known(value).python.role == PythonRole::foreign;
  if (!value.is(Kind::object)) return false;
  const auto* object = dynamic_cast<const OpenObject*>(&value.node<ObjectNode>());
  return object != nullptr && object->foreign;
}

// ---- calls

void Machine::reduce(bool newobj) {
  need(2);
  if (!stack_.back().is(Kind::tuple)) throw error(Exit::damaged, "arguments in pickle are not a tuple");
  const size_t callable = stack_.size() - 2;
  const Value args = stack_.back();
  call(callable, args.items(), newobj, Value());
}

void Machine::newobj_ex() {
  need(3);
  settle_from(stack_.size() - 2);
  const Value kwargs = pop(), args = pop();
  if (!args.is(Kind::tuple) || !kwargs.is(Kind::dict)) throw error(Exit::damaged, "arguments in pickle are not a tuple");
  call(stack_.size() - 1, args.items(), true, kwargs.entries().empty() ? Value() : kwargs);
}

void Machine::call_marked(bool names_class) {
  if (names_class) {
    const size_t first = pop_mark();
    settle_from(first);
    const std::vector<Value> args(stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
    drop(first);
    global();
    call(first, args, args.empty(), Value());
    return;
  }
  const size_t first = pop_mark();
  if (first == stack_.size()) throw error(Exit::damaged, "pickle stack underflow");
  settle_from(first + 1);
  const std::vector<Value> args(stack_.begin() + static_cast<ptrdiff_t>(first) + 1, stack_.end());
  call(first, args, args.empty(), Value());
}

void Machine::call(size_t callable, Args args, bool newobj, const Value& kwargs) {
  const Value& called = stack_[callable];
  uint32_t height = std::max(height_over(called), height_over(kwargs));
  for (const Value& value : args) height = std::max(height, height_over(value));
  Value result = called.is(Kind::global) ? call_global(called, args, newobj, kwargs)
                                         : call_object(called, args, newobj, kwargs);
  if (has_children(result.kind())) raise(result, height + 1);
  drop(callable + 1);
  stack_.back() = std::move(result);
}

Value Machine::call_global(const Value& callable, Args args, bool newobj, const Value& kwargs) {
  const uint32_t id = callable.node<GlobalNode>().handler_id;
  Value result;
  if (id != 0 && handler_.call({id, callable, args, kwargs, newobj}, result)) return result;
  return call_known(callable, known(callable).python.role, args, newobj, kwargs);
}

Value Machine::call_known(const Value& callable, PythonRole role, Args args, bool newobj, const Value& kwargs) {
  switch (role) {
    case PythonRole::foreign: return inert(callable, args, newobj, kwargs, true);
    case PythonRole::data: return inert(callable, args, newobj, kwargs, false);
    case PythonRole::unsafe: case PythonRole::uncallable: case PythonRole::constant: throw unsafe(callable);
    case PythonRole::getattr: return get_attribute(callable, args);
    case PythonRole::reconstructor: return reconstruct(callable, args);
    case PythonRole::newobj: return newobj_by_name(args, false);
    case PythonRole::newobj_ex: return newobj_by_name(args, true);
    case PythonRole::type:   // type(None); with three arguments it makes classes
      if (args.size() != 1 || !args[0].is(Kind::none)) throw unsafe(callable);
      return inert(callable, args, newobj, kwargs, false);
    default: break;
  }
  Value result;
  if (!kwargs.is(Kind::none) || !call_python(role, args, newobj, result)) {
    throw error(Exit::unsupported, "call in pickle with arguments that Python does not write").found_only(full_name(callable));
  }
  return result.is(Kind::none) ? inert(callable, args, newobj, kwargs, false) : result;
}

Value Machine::call_object(const Value& callable, Args args, bool newobj, const Value& kwargs) {
  Value result;
  if (callable.is(Kind::object) && handler_.call({0, callable, args, kwargs, newobj}, result)) return result;
  if (is_foreign(callable)) return inert(callable, args, newobj, kwargs, true);
  if (!callable.is(Kind::object)) throw error(Exit::damaged, "call in pickle of something that cannot be called");
  throw error(Exit::unsupported, "unsafe callable in pickle").found_only(callable.node<ObjectNode>().class_name());
}

Value Machine::inert(const Value& callable, Args args, bool newobj, const Value& kwargs, bool foreign) const {
  auto* object = new OpenObject;
  Value value = Value::adopt(object);
  object->how = newobj ? ObjectNode::How::newobj : ObjectNode::How::reduce;
  object->callable = callable;
  object->args = Value::sequence(Kind::tuple, std::vector<Value>(args.begin(), args.end()));
  object->kwargs = kwargs;
  object->foreign = foreign;
  return value;
}

Value Machine::get_attribute(const Value& callable, Args args) {
  if (args.size() != 2 || !args[1].is(Kind::string)) throw unsafe(callable);
  const std::string_view attribute = args[1].text();
  if (args[0].is(Kind::global) && attribute.find('.') == std::string_view::npos) {
    const auto& owner = args[0].node<GlobalNode>();
    return know(owner.module, fmt::format("{}.{}", owner.name, attribute)).value;
  }
  if (!is_foreign(args[0])) throw unsafe(callable);
  return inert(callable, args, false, Value(), true);   // a method of an inert object
}

// copyreg._reconstructor(cls, base, state): protocols 0 and 1.
Value Machine::reconstruct(const Value& callable, Args args) {
  if (args.size() != 3 || !args[0].is(Kind::global) || !args[1].is(Kind::global)) throw unsafe(callable);
  if (args[1].node<GlobalNode>().module != "builtins") throw unsafe(args[1]);
  if (args[1].node<GlobalNode>().name == "object" && args[2].is(Kind::none)) return call_global(args[0], {}, true, Value());
  const PythonRole role = known(args[0]).python.role;
  if (role != PythonRole::foreign && role != PythonRole::data) throw unsafe(args[0]);
  return inert(callable, args, false, Value(), role == PythonRole::foreign);
}

// copyreg.__newobj__(cls, *args) and __newobj_ex__(cls, args, kwargs).
Value Machine::newobj_by_name(Args args, bool with_kwargs) {
  const bool fits = !args.empty() && args[0].is(Kind::global) &&
                    (!with_kwargs || (args.size() == 3 && args[1].is(Kind::tuple) && args[2].is(Kind::dict)));
  if (!fits) throw error(Exit::damaged, "arguments in pickle do not make an object");
  if (!with_kwargs) return call_global(args[0], args.subspan(1), true, Value());
  return call_global(args[0], args[1].items(), true, args[2].entries().empty() ? Value() : args[2]);
}

void Machine::persistent(Value id) {
  settle(id);
  push(handler_.persistent(id));
}

// ---- state

void Machine::build() {
  need(2);
  Value state = pop();
  const uint32_t height = settle(state);
  Value& object = stack_.back();
  make(object);
  object.keep();
  if (state.is(Kind::dict)) {
    fields_.clear();
    for (const Entry& e : state.entries()) {
      fields_.push_back(Value::borrow(e.key));
      fields_.push_back(Value::borrow(e.value));
    }
    const bool done = handler_.build_fields(object, fields_);
    fields_.clear();
    if (done) return raise(object, height);
  }
  if (handler_.build(object, state)) return raise(object, height);
  default_build(object, std::move(state));
  raise(stack_.back(), height);
}

bool Machine::build_at_once(size_t target) {
  uint64_t memoized = memoized_;
  const uint8_t* next = skip_unfetched_puts(p_, memoized);
  if (*next != kBuild || target <= fence_) return false;
  uint32_t height = 0;
  Value* const fields = stack_.data() + target + 1;
  Value* const end = stack_.data() + stack_.size();
  for (Value* v = fields; v != end; ++v) height = std::max(height, close(*v));
  Value& object = stack_[target - 1];
  make(object);
  object.keep();
  at_ = next;
  if (!handler_.build_fields(object, Args(fields, end))) return false;
  if (has_children(object.kind())) raise(object, height + 1);
  memoized_ = memoized;
  p_ = next + 1;
  drop_fields(target);
  return true;
}

void Machine::default_build(Value& object, Value state) {
  open(object);
  if (object.is(Kind::ordered_dict)) {
    auto& node = object.mutable_node<MappingNode>();
    if (!state.is(Kind::dict) || !node.attributes.is(Kind::none)) {
      throw error(Exit::unsupported, "state in pickle that an OrderedDict does not have");
    }
    if (!state.entries().empty()) node.attributes = std::move(state);
    return;
  }
  if (object.is(Kind::global)) throw unsafe(object);   // would change the class itself
  if (!object.is(Kind::object)) throw error(Exit::damaged, "state in pickle for something that takes none");
  auto& node = object.mutable_node<ObjectNode>();
  if (node.has_state) throw error(Exit::unsupported, "object in pickle is built twice");
  if (is_role(node.callable, PythonRole::numpy_reconstruct)) {
    Value array;
    if (read_numpy_state(state, array)) return replace(object, std::move(array));
  }
  node.state = std::move(state);
  node.has_state = true;
}

// On the stack and in the memo; nothing else may hold it yet, as it is not closed.
void Machine::replace(Value& object, Value now) {
  const uint32_t slot = object.node<OpenObject>().slot;
  if (slot != UINT32_MAX) {
    retired_.push_back(std::move(memo_[slot]));
    memo_[slot] = now;
  }
  object = std::move(now);
}

}  // namespace fsdpctl::pickle
