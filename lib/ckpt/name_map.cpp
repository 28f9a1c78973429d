#include "lib/ckpt/name_map.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>

#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

constexpr std::array<std::string_view, 3> kWrappers = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"};
constexpr std::string_view kDataParallel = "module.";

// Without the elements that are wrappers. The last element, the parameter's own name, always stays.
std::string without_wrappers(std::string_view fqn) {
  std::string out;
  size_t begin = 0;
  for (size_t dot = fqn.find('.'); dot != std::string_view::npos; dot = fqn.find('.', begin)) {
    const std::string_view element = fqn.substr(begin, dot - begin);
    if (std::find(kWrappers.begin(), kWrappers.end(), element) == kWrappers.end()) out.append(element).append(".");
    begin = dot + 1;
  }
  return out.append(fqn.substr(begin));
}

// The names that an optimizer has, ids left out.
template <class Visit>
void for_names(const OptimizerInfo& o, Visit visit) {
  if (!o.named) return;
  for (const std::string_view name : o.parameters) visit(name);
  for (const OptimizerGroup& group : o.groups) {
    for (const std::string_view name : group.params) visit(name);
  }
}

}  // namespace

NameMap::NameMap(const Parts& parts, const Selection& selection) : selection_(selection), glob_used_(selection.drop.size()) {
  std::unordered_set<std::string_view> met;
  const auto add = [&](std::string_view fqn) {
    if (met.insert(fqn).second) fqns_.push_back(fqn);
  };
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.part == Part::model) add(leaf.fqn);
  }
  for (const OptimizerInfo& o : parts.optimizers) for_names(o, add);

  for (const std::string_view fqn : fqns_) {
    if (!drop_glob(fqn).empty()) dropped_.insert(fqn);
  }
  for_fqns_ = glob_used_;
  drop_by_path(parts);
  std::vector<std::string> names(fqns_.begin(), fqns_.end());
  if (selection.strip_wrappers) strip_wrappers(names, parts);
  apply_rules(names);
  check_collisions(names);
  for (size_t i = 0; i < fqns_.size(); ++i) {
    if (names[i] != fqns_[i] && !dropped(fqns_[i])) renamed_.emplace(fqns_[i], std::move(names[i]));
  }
}

std::string_view NameMap::renamed(std::string_view fqn) const {
  const auto found = renamed_.find(fqn);
  return found == renamed_.end() ? fqn : std::string_view(found->second);
}

std::string_view NameMap::drop_glob(std::string_view path) {
  std::string_view hit;
  for (size_t i = 0; i < selection_.drop.size(); ++i) {
    if (!glob_match(selection_.drop[i], path)) continue;
    glob_used_[i] = true;
    if (hit.empty()) hit = selection_.drop[i];
  }
  return hit;
}

void NameMap::drop_by_path(const Parts& parts) {
  for (size_t i = 0; i < glob_used_.size(); ++i) {
    if (for_fqns_[i]) continue;
    for (const LeafInfo& leaf : parts.leaves) {
      if (leaf.part != Part::model || !glob_match(selection_.drop[i], leaf.path)) continue;
      glob_used_[i] = true;
      dropped_.insert(leaf.fqn);
    }
  }
}

std::string_view NameMap::drop_glob_of(const LeafInfo& leaf) {
  const std::string_view glob = drop_glob(leaf.fqn);
  return glob.empty() ? drop_glob(leaf.path) : glob;
}

std::string_view NameMap::drop_glob_of_optimizer(std::string_view path) {
  for (size_t i = 0; i < selection_.drop.size(); ++i) {
    const std::string& glob = selection_.drop[i];
    if (for_fqns_[i] || path.empty() || (!glob_match(glob, path) && !glob_match(glob, std::string(path) + "."))) continue;
    glob_used_[i] = true;
    return glob;
  }
  return {};
}

void NameMap::check_globs() const {
  for (size_t i = 0; i < glob_used_.size(); ++i) {
    if (!glob_used_[i]) throw Error(Exit::refused, "nothing matches a --drop pattern").found_only(selection_.drop[i]);
  }
}

void NameMap::strip_wrappers(std::vector<std::string>& names, const Parts& parts) const {
  for (std::string& name : names) name = without_wrappers(name);
  // Model names come first; without a model those of the optimizers decide.
  std::unordered_set<std::string_view> model;
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.part == Part::model) model.insert(leaf.fqn);
  }
  const size_t deciding = model.empty() ? names.size() : model.size();
  const auto wrapped = [](const std::string& name) { return name.starts_with(kDataParallel) && name.size() > kDataParallel.size(); };
  if (!std::all_of(names.begin(), names.begin() + static_cast<ptrdiff_t>(deciding), wrapped)) return;
  for (std::string& name : names) {
    if (wrapped(name)) name.erase(0, kDataParallel.size());
  }
}

void NameMap::apply_rules(std::vector<std::string>& names) const {
  RE2::Options options;
  options.set_log_errors(false);
  for (const RenameRule& rule : selection_.rename) {
    const RE2 pattern(rule.pattern, options);
    std::string problem;
    if (!pattern.ok()) {
      throw Error(Exit::usage, "bad --rename pattern").saw("an RE2 regular expression", rule.pattern + ": " + pattern.error());
    }
    if (!pattern.CheckRewriteString(rule.replacement, &problem)) {
      throw Error(Exit::usage, "bad --rename replacement").saw("text with \\1 for groups", rule.replacement + ": " + problem);
    }
    bool matched = false;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!dropped(fqns_[i])) matched = RE2::GlobalReplace(&names[i], pattern, rule.replacement) > 0 || matched;
      if (names[i].empty()) throw Error(Exit::refused, "--rename would leave an empty name").key(std::string(fqns_[i])).found_only(rule.pattern);
    }
    if (!matched) throw Error(Exit::refused, "nothing matches a --rename pattern").found_only(rule.pattern);
  }
}

void NameMap::check_collisions(const std::vector<std::string>& names) const {
  std::unordered_map<std::string_view, size_t> owners;
  for (size_t i = 0; i < names.size(); ++i) {
    if (dropped(fqns_[i])) continue;
    const auto [at, fresh] = owners.emplace(names[i], i);
    if (fresh) continue;
    throw Error(Exit::refused, "two names would become one")
        .key(names[i])
        .found_only(std::string(fqns_[at->second]) + " and " + std::string(fqns_[i]))
        .try_("--drop " + shell_quoted(std::string(fqns_[i])));
  }
}

std::unordered_map<std::string, std::string> NameMap::modules() const {
  std::unordered_map<std::string, std::string> modules;
  for (const std::string_view fqn : fqns_) {
    std::string_view from = fqn, to = renamed(fqn);
    if (from == to) continue;
    // a.b.weight -> x.b.weight moves a.b to x.b and a to x: as long as the last elements agree.
    while (true) {
      const size_t f = from.rfind('.'), t = to.rfind('.');
      if (from.substr(f + 1) != to.substr(t + 1)) break;
      from = f == std::string_view::npos ? std::string_view() : from.substr(0, f);
      to = t == std::string_view::npos ? std::string_view() : to.substr(0, t);
      if (from.empty() || from == to) break;
      modules.emplace(from, to);
      if (to.empty()) break;
    }
  }
  return modules;
}

void NameMap::list_renames(std::vector<Change>& changes) const {
  for (const std::string_view fqn : fqns_) {
    const auto found = renamed_.find(fqn);
    if (found != renamed_.end()) changes.push_back({"renamed", std::string(fqn), found->second});
  }
}

}  // namespace fsdpctl
