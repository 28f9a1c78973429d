#include "lib/train/copy_stream.h"

#include <cstring>
#include <utility>

namespace fsdpctl::train {

CopyStream::~CopyStream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

uint64_t CopyStream::start(std::vector<kernels::CopyEntry> table) {
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(table));
    ticket = ++started_;
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  }
  changed_.notify_all();
  return ticket;
}

void CopyStream::wait(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= ticket; });
}

void CopyStream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::vector<kernels::CopyEntry> table = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
    for (const kernels::CopyEntry& entry : table) {
      if (entry.bytes != 0) std::memcpy(entry.target, entry.source, entry.bytes);
    }
    lock.lock();
    ++finished_;
    changed_.notify_all();
  }
}

}  // namespace fsdpctl::train
