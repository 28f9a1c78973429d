// A Coordinator over the store that the ranks of a run share: it needs no collective, so a save can be beside training.
//
// A meeting is a key of each rank and one for the answer, all erased when nobody needs them any more. Whoever waits goes on waiting
// while any rank makes progress; a rank that died ends the wait at once, as the store knows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/ckpt/coordinator.h"
#include "lib/comm/store.h"

namespace fsdpctl::train {

class StoreCoordinator final : public Coordinator {
 public:
  // `name`: the same on all ranks, used once in a run. One thread at a time.
  StoreCoordinator(std::shared_ptr<Store> store, std::string name, int rank, int size, Milliseconds patience);
  ~StoreCoordinator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string meet(std::string_view phase, Contribution mine,
                   const std::function<std::string(const std::vector<std::string>&)>& answer) override;
  void make_progress() override;

 private:
  Contribution collect(const std::string& meeting, Contribution mine,
                       const std::function<std::string(const std::vector<std::string>&)>& answer);
  size_t put(const std::string& key, const Contribution& contribution);   // the number of values that it took
  Contribution take(const std::string& key, int from, Milliseconds patience, bool erases);
  std::string wait_for(const std::string& key, int from, Milliseconds patience);
  void erase(const std::string& key, size_t values);

  const std::shared_ptr<Store> store_;
  const std::string name_;
  const int rank_, size_;
  const Milliseconds patience_;
  uint64_t meetings_ = 0;
  std::string last_answer_;                  // key of the answer before, which all have read when they meet again
  size_t last_values_ = 0;
  std::atomic<int64_t> told_progress_ = 0;   // when, in milliseconds
};

}  // namespace fsdpctl::train
