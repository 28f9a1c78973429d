#include "lib/ckpt/optimizer.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <string>

namespace fsdpctl {
namespace {

using Names = std::span<const std::string_view>;

bool holds(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// Adam and AdamW take the same arguments. Since 2.7 decoupled_weight_decay tells them apart; before, the order of their
// constructors' defaults did. It says nothing where the fields stand in an order of neither (DCP spreads them over the ranks).
std::string_view adam_or_adamw(Names hypers, const Value* decoupled) {
  if (decoupled != nullptr) {
    if (!decoupled->is(Kind::boolean)) return "";
    return decoupled->as_boolean() ? "AdamW" : "Adam";
  }
  const auto ordered = [&](std::initializer_list<std::string_view> names) {
    auto at = hypers.begin();
    for (const std::string_view name : names) {
      at = std::find(at, hypers.end(), name);
      if (at == hypers.end()) return false;
    }
    return true;
  };
  if (ordered({"amsgrad", "foreach", "maximize", "capturable"})) return "AdamW";
  if (ordered({"amsgrad", "maximize", "foreach", "capturable"})) return "Adam";
  return "";
}

struct Signature {
  std::string_view optimizer_class;
  std::array<std::string_view, 2> hypers;   // both must be there
};
// Arguments that only one class has. The order matters: NAdam before the betas family, Muon before SGD.
constexpr Signature kSignatures[] = {
    {"Muon", {"ns_steps", "ns_coefficients"}}, {"SGD", {"momentum", "dampening"}},
    {"RMSprop", {"alpha", "centered"}},        {"Adagrad", {"lr_decay", "initial_accumulator_value"}},
    {"Adadelta", {"rho", "eps"}},              {"Adafactor", {"beta2_decay", "d"}},
    {"ASGD", {"lambd", "t0"}},                 {"Rprop", {"etas", "step_sizes"}},
    {"LBFGS", {"history_size", "max_iter"}},   {"NAdam", {"betas", "momentum_decay"}},
};

using Table = std::map<std::string_view, std::vector<std::pair<std::string_view, Value>>>;

const Table& later_fields() {
  static const Table table = [] {
    const std::pair<std::string_view, Value> maximize{"maximize", Value::boolean(false)}, foreach_{"foreach", Value()},
        capturable{"capturable", Value::boolean(false)}, differentiable{"differentiable", Value::boolean(false)}, fused{"fused", Value()},
        coupled{"decoupled_weight_decay", Value::boolean(false)}, decoupled{"decoupled_weight_decay", Value::boolean(true)};
    Table t;
    t["ASGD"] = {foreach_, maximize, differentiable, capturable};
    t["Adadelta"] = {maximize, capturable, foreach_, differentiable};
    t["Adafactor"] = {foreach_, maximize};
    t["Adagrad"] = {foreach_, maximize, differentiable, fused};
    t["Adam"] = {maximize, foreach_, capturable, differentiable, fused, coupled};
    t["AdamW"] = {maximize, foreach_, capturable, differentiable, fused, decoupled};
    t["Adamax"] = {foreach_, maximize, differentiable, capturable};
    t["LBFGS"] = {};
    t["Muon"] = {};
    t["NAdam"] = {coupled, maximize, foreach_, capturable, differentiable};
    t["RAdam"] = {maximize, foreach_, capturable, coupled, differentiable};
    t["RMSprop"] = {capturable, foreach_, maximize, differentiable};
    t["Rprop"] = {foreach_, maximize, differentiable, capturable};
    t["SGD"] = {maximize, foreach_, differentiable, fused};
    t["SparseAdam"] = {maximize};
    return t;
  }();
  return table;
}

std::string_view class_by_fields(Names hypers, const Value* decoupled, Names fields) {
  for (const Signature& s : kSignatures) {
    if (holds(hypers, s.hypers[0]) && holds(hypers, s.hypers[1])) return s.optimizer_class;
  }
  if (!holds(hypers, "betas") || !holds(hypers, "eps")) return "";
  if (holds(hypers, "amsgrad")) return adam_or_adamw(hypers, decoupled);
  if (holds(fields, "exp_inf")) return "Adamax";
  if (!holds(hypers, "weight_decay")) return holds(fields, "exp_avg_sq") ? "SparseAdam" : "";
  if (decoupled != nullptr && holds(fields, "exp_avg_sq")) return "RAdam";
  return "";
}

}  // namespace

std::string guess_class(const OptimizerInfo& info) {
  // Composer keeps optimizers under the name of their class.
  const std::string_view last = std::string_view(info.path).substr(info.path.rfind('.') + 1);
  if (later_fields().count(last) != 0) return std::string(last);
  if (info.groups.empty()) return "";
  std::vector<std::string_view> hypers;
  const Value* decoupled = nullptr;
  for (const auto& field : info.groups.front().fields) {
    hypers.push_back(field.first);
    if (field.first == "decoupled_weight_decay") decoupled = field.second;
  }
  return std::string(class_by_fields(hypers, decoupled, info.fields));
}

std::span<const std::pair<std::string_view, Value>> later_group_fields(std::string_view optimizer_class) {
  const auto found = later_fields().find(optimizer_class);
  if (found == later_fields().end()) return {};
  return found->second;
}

}  // namespace fsdpctl
