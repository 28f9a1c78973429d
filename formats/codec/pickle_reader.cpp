#include "formats/codec/pickle_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "formats/codec/pickle_machine.h"

namespace fsdpctl {

uint32_t PickleHandler::know(std::string_view, std::string_view) { return 0; }
uint32_t PickleHandler::id_of(const Value& value) { return value.is(Kind::global) ? value.node<GlobalNode>().handler_id : 0; }
Value PickleHandler::persistent(const Value&) { throw Error(Exit::unsupported, "pickle refers to objects outside it"); }
bool PickleHandler::call(const PickleCall&, Value&) { return false; }
bool PickleHandler::build_fields(Value&, std::span<const Value>) { return false; }
bool PickleHandler::build(Value&, const Value&) { return false; }

PickleResult read_pickle(Bytes stream, PickleHandler& handler, const std::string& name, uint64_t base,
                         FindingSink& sink, const PickleLimits& limits) {
  return pickle::Machine(stream, handler, name, base, sink, limits).run();
}

namespace pickle {

Machine::Machine(Bytes stream, PickleHandler& handler, const std::string& name, uint64_t base, FindingSink& sink,
                 const PickleLimits& limits)
    : begin_(reinterpret_cast<const uint8_t*>(stream.data())), p_(begin_), at_(begin_), handler_(handler), name_(name),
      base_(base), sink_(sink), limits_(limits), scan_(scan_pickle(stream, name, base)) {
  if (scan_.protocol > 5) {
    throw error(Exit::unsupported, "pickle protocol not supported").saw("0 to 5", fmt::format("{}", scan_.protocol));
  }
  if (scan_.opcodes > limits.opcodes) {
    throw error(Exit::unsupported, "pickle too long")
        .saw(fmt::format("at most {} opcodes", limits.opcodes), fmt::format("{}", scan_.opcodes));
  }
  next_fetched_ = scan_.fetched.next(0);
  memo_.assign(scan_.fetched.slots(), Value::token(kNotStoredType, 0));
}

namespace {

// Sharing makes much of a short pickle only where somebody wants it to: a tree may have some values and names for each
// opcode, and some text for each byte; what is beyond that is taken from the budget.
void check_sharing(const Value& tree, const PickleScan& scan, const PickleLimits& limits) {
  constexpr uint64_t kValuesPerOpcode = 16, kTextPerOpcode = 256, kTextPerByte = 2;
  SharingBudget own;
  SharingBudget& budget = limits.sharing != nullptr ? *limits.sharing : own;
  const TreeSize free{kValuesPerOpcode * scan.opcodes, kTextPerOpcode * scan.opcodes + kTextPerByte * scan.consumed};
  const TreeSize used = check_tree(tree, limits.depth, {std::min(limits.expanded, budget.values + free.values), budget.text + free.text});
  budget.values -= used.values - std::min(used.values, free.values);
  budget.text -= used.text - std::min(used.text, free.text);
}

}  // namespace

PickleResult Machine::run() {
  try {
    PickleResult result;
    result.value = execute();
    check_sharing(result.value, scan_, limits_);
    result.consumed = scan_.consumed;
    result.protocol = scan_.protocol;
    return result;
  } catch (Error& e) {
    Finding finding = e.finding();
    if (finding.where.path.empty()) finding.at(name_);
    if (!finding.where.offset) finding.offset(base_ + static_cast<uint64_t>(at_ - begin_));
    throw Error(std::move(finding));
  }
}

Error Machine::error(Exit code, const char* what) const {
  return Error(code, what).at(name_).offset(base_ + static_cast<uint64_t>(at_ - begin_));
}

// The opcodes of big streams. scan_pickle() proved that all arguments are there and that STOP comes.
Value Machine::execute() {
  for (;;) {
    at_ = p_;
    const uint8_t op = *p_++;
    switch (op) {
      case kStop: return stop();
      case kMemoize: memoize(); break;
      case kBinPut: put(number<uint8_t>()); break;
      case kLongBinPut: put(number<uint32_t>()); break;
      case kBinGet: fetch(number<uint8_t>()); break;
      case kLongBinGet: fetch(number<uint32_t>()); break;
      case kMark: mark(); break;
      case kBinInt1: push(Value::integer(number<uint8_t>())); break;
      case kBinInt2: push(Value::integer(number<uint16_t>())); break;
      case kBinInt: push(Value::integer(number<int32_t>())); break;
      case kNone: push(Value()); break;
      case kNewTrue: push(Value::boolean(true)); break;
      case kNewFalse: push(Value::boolean(false)); break;
      case kBinFloat: push(big_endian_real()); break;
      case kShortBinUnicode: push(string(text(number<uint8_t>()))); break;
      case kBinUnicode: push(string(text(number<uint32_t>()))); break;
      case kEmptyDict: push(fresh(Kind::dict)); break;
      case kEmptyList: push(fresh(Kind::list)); break;
      case kEmptyTuple: tuple(stack_.size()); break;
      case kTuple1: need(1); tuple(stack_.size() - 1); break;
      case kTuple2: need(2); tuple(stack_.size() - 2); break;
      case kTuple3: need(3); tuple(stack_.size() - 3); break;
      case kTuple: tuple(pop_mark()); break;
      case kSetItem: need(3); set_items(stack_.size() - 3); break;
      case kSetItems: {
        const size_t first = pop_mark();
        if (first == fence_) underflow();
        set_items(first - 1);
        break;
      }
      case kAppend: need(2); append(stack_.size() - 2, false); break;
      case kAppends: case kAddItems: {
        const size_t first = pop_mark();
        if (first == fence_) underflow();
        append(first - 1, op == kAddItems);
        break;
      }
      case kReduce: case kNewObj: reduce(op == kNewObj); break;
      case kBuild: build(); break;
      case kBinPersId: persistent(pop()); break;
      case kGlobal: global(); break;
      case kStackGlobal: stack_global(); break;
      case kFrame: p_ += 8; break;
      default: step(op);
    }
  }
}

void Machine::step(uint8_t op) {
  switch (op) {
    case kProto: ++p_; break;
    case kLong1: push(integer_bytes(number<uint8_t>())); break;
    case kLong4: push(integer_bytes(number<uint32_t>())); break;
    case kBinUnicode8: push(string(text(number<uint64_t>()))); break;
    case kShortBinBytes: push(Value::bytes(text(number<uint8_t>()))); break;
    case kBinBytes: push(Value::bytes(text(number<uint32_t>()))); break;
    case kBinBytes8: push(Value::bytes(text(number<uint64_t>()))); break;
    case kByteArray8: push(Value::bytearray(text(number<uint64_t>()))); break;
    case kShortBinString: push(python2_string(text(number<uint8_t>()))); break;
    case kBinString: push(python2_string(text(number<uint32_t>()))); break;
    case kEmptySet: push(fresh(Kind::set)); break;
    case kFrozenSet: push(sequence(Kind::frozenset, pop_mark())); break;
    case kNewObjEx: newobj_ex(); break;
    case kDup: need(1); make(stack_.back()); push(Value(stack_.back())); break;
    case kPop:
      if (stack_.size() > fence_) {
        pop();
      } else {
        pop_mark();
      }
      break;
    case kPopMark: drop(pop_mark()); break;
    default: old_step(op);
  }
}

void Machine::old_step(uint8_t op) {
  switch (op) {
    case kInt: push(integer_line()); break;
    case kLong: push(long_line()); break;
    case kFloat: push(real_line()); break;
    case kString: push(escaped_string()); break;
    case kUnicode: push(escaped_unicode()); break;
    case kPersId: persistent(string(line())); break;
    case kPut: old_memo(true); break;
    case kGet: old_memo(false); break;
    case kList: push(sequence(Kind::list, pop_mark())); break;
    case kDict: {
      const size_t first = pop_mark();
      stack_.insert(stack_.begin() + static_cast<ptrdiff_t>(first), fresh(Kind::dict));
      set_items(first);
      break;
    }
    case kInst: call_marked(true); break;
    case kObj: call_marked(false); break;
    default: throw error(Exit::damaged, "unknown pickle opcode");
  }
}

Value Machine::stop() {
  need(1);
  if (!marks_.empty() || stack_.size() != 1) throw error(Exit::damaged, "pickle ends with values left over");
  Value value = pop();
  settle(value);
  return value;
}

// ---- the stack

void Machine::too_deep() const { throw error(Exit::unsupported, "pickle nested too deeply"); }
void Machine::underflow() const { throw error(Exit::damaged, "pickle stack underflow"); }
void Machine::never_stored() const { throw error(Exit::damaged, "pickle fetches a memo entry that it never stored"); }

Value Machine::pop() {
  need(1);
  Value value = std::move(stack_.back());
  stack_.pop_back();
  return value;
}

// ---- the memo

void Machine::store(uint64_t id) {
  need(1);
  Value& value = stack_.back();
  make(value);
  const size_t slot = scan_.fetched.slot(id);
  Value old = std::exchange(memo_[slot], value);
  if (old.identity() != nullptr) retired_.push_back(std::move(old));
  if (value.is(Kind::object)) {
    if (auto* object = dynamic_cast<OpenObject*>(value.mutable_base())) object->slot = static_cast<uint32_t>(slot);
  }
}

void Machine::old_memo(bool is_put) {
  const std::string_view digits = line();
  uint64_t id = 0;
  const auto [stop, status] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (status != std::errc() || stop != digits.data() + digits.size()) {
    throw error(Exit::damaged, "memo number in pickle is not a number");
  }
  if (is_put) {
    put(id);
  } else {
    fetch(id);
  }
}

void Machine::store_memoized() {
  store(next_fetched_);
  next_fetched_ = scan_.fetched.next(next_fetched_ + 1);
}

const uint8_t* Machine::skip_numbered_puts(const uint8_t* p, uint64_t& memoized) const {
  for (;;) {
    uint32_t id;
    if (*p == kBinPut && !scan_.fetched.has(p[1])) {
      p += 2;
    } else if (*p == kLongBinPut && (std::memcpy(&id, p + 1, 4), !scan_.fetched.has(id))) {
      p += 5;
    } else if (*p == kFrame) {
      p += 9;
    } else if (*p == kMemoize && memoized != next_fetched_) {
      ++memoized;
      ++p;
    } else {
      return p;
    }
  }
}

}  // namespace pickle
}  // namespace fsdpctl
