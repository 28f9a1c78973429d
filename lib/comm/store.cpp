#include "lib/comm/store.h"

#include <fmt/format.h>

#include <algorithm>

namespace fsdpctl {

Milliseconds left_until(Deadline deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, Milliseconds(0));
}

Error key_timed_out(const std::string& key, Milliseconds timeout) {
  return Error(Exit::failed, "timed out waiting for another rank")
      .key(key)
      .saw(fmt::format("the key within {} s", static_cast<double>(timeout.count()) / 1000), "nothing");
}

void LocalStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string LocalStore::set_once(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  const auto place = values_.try_emplace(key, value).first;
  changed_.notify_all();
  return place->second;
}

int64_t LocalStore::add(const std::string& key, int64_t delta) {
  const std::lock_guard lock(mutex_);
  return counters_[key] += delta;
}

std::string LocalStore::get(const std::string& key, Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const Deadline deadline = after(timeout);
  for (;;) {
    if (const auto found = values_.find(key); found != values_.end()) return found->second;
    if (failure_) throw Error(*failure_);
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !values_.count(key) && !failure_) {
      throw key_timed_out(key, timeout);
    }
  }
}

void LocalStore::erase(const std::string& key) {
  const std::lock_guard lock(mutex_);
  values_.erase(key);
  counters_.erase(key);
}

Finding LocalStore::fail(const Finding& finding) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = finding;
  changed_.notify_all();
  return *failure_;
}

std::optional<Finding> LocalStore::failure(Milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] { return failure_.has_value(); });
  return failure_;
}

std::optional<std::string> LocalStore::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace fsdpctl
