#include "lib/comm/threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace fsdpctl {
namespace {

struct Place {
  int from, to;
  uint32_t tag;
  friend bool operator<(const Place& a, const Place& b) {
    return std::tie(a.from, a.to, a.tag) < std::tie(b.from, b.to, b.tag);
  }
};

}  // namespace

// One lock for all: these ranks are few.
struct ThreadRanks::Hub {
  explicit Hub(int size) : closed(static_cast<size_t>(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<char> closed;
  std::map<Place, std::deque<Letter*>> sends, receives;   // begun, and without their other half; no empty queues
};

class ThreadRanks::Letter : public Message {
 public:
  Letter(std::shared_ptr<Hub> hub, Place place, bool is_send, std::byte* data, size_t size)
      : hub_(std::move(hub)), place_(place), is_send_(is_send), data_(data), size_(size) {
    const std::lock_guard lock(hub_->mutex);
    auto& others = is_send_ ? hub_->receives : hub_->sends;
    const auto queue = others.find(place_);
    if (queue == others.end()) {
      mine()[place_].push_back(this);
      return;
    }
    Letter* other = queue->second.front();
    queue->second.pop_front();
    if (queue->second.empty()) others.erase(queue);
    copy(*other);
    done_ = other->done_ = true;
    hub_->changed.notify_all();
  }

  ~Letter() override {
    const std::lock_guard lock(hub_->mutex);
    const auto queue = mine().find(place_);
    if (queue == mine().end()) return;
    std::deque<Letter*>& letters = queue->second;
    letters.erase(std::remove(letters.begin(), letters.end(), this), letters.end());
    if (letters.empty()) mine().erase(queue);
  }

  Outcome wait(Deadline deadline) override {
    std::unique_lock lock(hub_->mutex);
    const auto is_closed = [&](int rank) { return hub_->closed[static_cast<size_t>(rank)] != 0; };
    const auto over = [&] { return done_ || is_closed(place_.from) || is_closed(place_.to); };
    if (!hub_->changed.wait_until(lock, deadline, over)) return {Outcome::late, "no answer"};
    if (!done_) return {Outcome::lost, "its end is closed"};
    if (wrong_size_) return {Outcome::lost, "the message has another size"};
    return {};
  }

 private:
  using Queues = std::map<Place, std::deque<Letter*>>;
  Queues& mine() { return is_send_ ? hub_->sends : hub_->receives; }

  void copy(Letter& other) {
    wrong_size_ = other.wrong_size_ = size_ != other.size_;
    if (wrong_size_ || size_ == 0) return;
    if (is_send_) {
      std::memcpy(other.data_, data_, size_);
    } else {
      std::memcpy(data_, other.data_, size_);
    }
  }

  const std::shared_ptr<Hub> hub_;
  const Place place_;
  const bool is_send_;
  std::byte* const data_;
  const size_t size_;
  bool done_ = false, wrong_size_ = false;
};

class ThreadRanks::End : public Transport {
 public:
  End(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~End() override { close(); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->closed.size()); }
  std::unique_ptr<Message> send(int to, uint32_t tag, std::span<const std::byte> bytes) override {
    // Never written through: a send is only copied from.
    return std::make_unique<Letter>(hub_, Place{rank_, to, tag}, true, const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  std::unique_ptr<Message> receive(int from, uint32_t tag, std::span<std::byte> bytes) override {
    return std::make_unique<Letter>(hub_, Place{from, rank_, tag}, false, bytes.data(), bytes.size());
  }
  void close() override {
    const std::lock_guard lock(hub_->mutex);
    hub_->closed[static_cast<size_t>(rank_)] = 1;
    hub_->changed.notify_all();
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

ThreadRanks::ThreadRanks(int size) : hub_(std::make_shared<Hub>(size)), store_(std::make_shared<LocalStore>()) {}
ThreadRanks::~ThreadRanks() = default;

std::unique_ptr<Transport> ThreadRanks::transport(int rank) { return std::make_unique<End>(hub_, rank); }

}  // namespace fsdpctl
