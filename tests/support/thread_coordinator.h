// Ranks that are threads of one process, writing a checkpoint together.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lib/ckpt/coordinator.h"

namespace fsdpctl {

class ThreadMeetings {
 public:
  explicit ThreadMeetings(int size) : mine_(static_cast<size_t>(size)) {}

  std::string meet(int rank, Contribution mine, const std::function<std::string(const std::vector<std::string>&)>& answer) {
    std::unique_lock lock(mutex_);
    mine_[static_cast<size_t>(rank)] = std::move(mine);
    const uint64_t round = round_;
    if (++here_ == mine_.size()) changed_.notify_all();
    if (rank == 0) {
      changed_.wait(lock, [&] { return here_ == mine_.size(); });
      std::vector<std::string> texts;
      outcome_ = {};
      for (size_t r = 0; r < mine_.size(); ++r) {
        if (mine_[r].failure && !outcome_.failure) {
          outcome_.failure = mine_[r].failure;
          outcome_.failure->where.rank = static_cast<int>(r);
        }
        texts.push_back(mine_[r].text);
      }
      if (!outcome_.failure) outcome_ = contribution_of([&] { return answer(texts); });
      here_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
    if (outcome_.failure) throw Error(*outcome_.failure);
    return outcome_.text;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Contribution> mine_;
  size_t here_ = 0;
  uint64_t round_ = 0;
  Contribution outcome_;
};

class ThreadCoordinator final : public Coordinator {
 public:
  ThreadCoordinator(ThreadMeetings& meetings, int rank, int size) : meetings_(meetings), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string meet(std::string_view, Contribution mine, const std::function<std::string(const std::vector<std::string>&)>& answer) override {
    return meetings_.meet(rank_, std::move(mine), answer);
  }

 private:
  ThreadMeetings& meetings_;
  const int rank_, size_;
};

// Runs a body as each of the ranks. What each ended with, if with an Error.
inline std::vector<std::optional<Finding>> as_ranks(int size, const std::function<void(Coordinator&)>& body) {
  ThreadMeetings meetings(size);
  std::vector<std::optional<Finding>> findings(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCoordinator coordinator(meetings, rank, size);
      try {
        body(coordinator);
      } catch (const Error& e) {
        findings[static_cast<size_t>(rank)] = e.finding();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return findings;
}

}  // namespace fsdpctl
