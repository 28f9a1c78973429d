// The store: a small map from keys to bytes that all ranks of a run share, and the place where the first failure is
// written down. Ranks meet in it (addresses, counters); tensors never pass through it.
//
// Over processes it is a TCP server (tcp_store.h), not a directory of files: a rank that dies closes its connection, so
// the others learn it at once and by name, also from kill -9; there is nothing to poll, no file of an earlier run to
// fall for, and no shared file system whose caches show different ranks different contents.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "lib/base/finding.h"

namespace fsdpctl {

using Milliseconds = std::chrono::milliseconds;
using Deadline = std::chrono::steady_clock::time_point;
inline Deadline after(Milliseconds time) { return std::chrono::steady_clock::now() + time; }
Milliseconds left_until(Deadline deadline);   // 0 once it has passed

// Every member may be called from any thread. Error(failed) where the store itself is lost.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  // The first value stays; returns the one that stayed.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  // A counter, 0 before its first use; returns the sum. A key is a counter or bytes, never both.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  // Waits until somebody has set the key. Error(failed) after `timeout`, or as soon as a failure is known.
  virtual std::string get(const std::string& key, Milliseconds timeout) = 0;
  virtual void erase(const std::string& key) = 0;

  // Writes down why the run fails; the first call wins. Returns what is written. Wakes all that wait.
  virtual Finding fail(const Finding& finding) = 0;
  // What is written, waiting for it for at most `wait`.
  virtual std::optional<Finding> failure(Milliseconds wait) = 0;
};

// The map itself: for ranks that are threads of one process, and inside of the server.
class LocalStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  void erase(const std::string& key) override;
  Finding fail(const Finding& finding) override;
  std::optional<Finding> failure(Milliseconds wait) override;

  std::optional<std::string> find(const std::string& key);   // does not wait

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
  std::optional<Finding> failure_;
};

// What a rank says whose wait for a key took too long.
Error key_timed_out(const std::string& key, Milliseconds timeout);

}  // namespace fsdpctl
