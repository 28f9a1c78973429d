#include "lib/train/memory_ledger.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

void add(MemoryAccount& account, uint64_t bytes) {
  account.live += bytes;
  account.peak = std::max(account.peak, account.live);
}

Error misuse(const char* what, const Block& block) {
  return Error(Exit::failed, what)
      .found_only(std::to_string(block.bytes()) + " bytes of " + std::string(place_name(block.place())) + " memory");
}

}  // namespace

void Copy::wait() {
  if (state_ == nullptr || state_->waited_for) return;
  state_->device->wait(state_->ticket);
  state_->waited_for = true;
}

MemoryBlock MemoryLedger::allocate(Place place, uint64_t bytes, std::string_view owner, std::string_view use) {
  MemoryBlock block;
  block.block_ = device_.allocate(place, bytes);
  MemoryAccount& account = accounts_[Key(place, owner, use)];
  account.place = place;
  account.owner = owner;
  account.use = use;
  add(account, bytes);
  add(totals_[static_cast<int>(place)], bytes);
  block.account_ = &account;
  block.ledger_ = this;
  return block;
}

Copy MemoryLedger::copy(MemoryBlock& target, uint64_t target_offset, MemoryBlock& source, uint64_t source_offset,
                        uint64_t bytes) {
  const auto fits = [bytes](const MemoryBlock& block, uint64_t offset) {
    return offset <= block.bytes() && bytes <= block.bytes() - offset;
  };
  if (!fits(target, target_offset)) throw misuse("a copy exceeds its target", target.block_);
  if (!fits(source, source_offset)) throw misuse("a copy exceeds its source", source.block_);
  if (bytes == 0) return {};
  const auto* from = static_cast<const std::byte*>(source.data());
  auto* to = static_cast<std::byte*>(target.mutable_data());
  const bool up = target.block_.place() == Place::device;
  Copy copy;
  copy.state_ = std::make_shared<Copy::State>();
  copy.state_->device = &device_;
  copy.state_->ticket = device_.copy({{from + source_offset, to + target_offset, bytes}},
                                     up ? kernels::Direction::to_device : kernels::Direction::to_host);
  target.writer_ = copy.state_;
  std::erase_if(source.readers_, [](const auto& reader) { return reader->waited_for; });
  source.readers_.push_back(copy.state_);
  bytes_copied_ += bytes;
  return copy;
}

std::vector<MemoryAccount> MemoryLedger::accounts() const {
  std::vector<MemoryAccount> lines;
  for (const auto& [key, account] : accounts_) lines.push_back(account);
  return lines;
}

void MemoryLedger::reset_peaks() {
  for (MemoryAccount& total : totals_) total.peak = total.live;
  for (auto& [key, account] : accounts_) account.peak = account.live;
}

MemoryBlock& MemoryBlock::operator=(MemoryBlock&& other) noexcept {
  if (this == &other) return *this;
  reset();
  ledger_ = std::exchange(other.ledger_, nullptr);
  account_ = std::exchange(other.account_, nullptr);
  block_ = std::move(other.block_);
  writer_ = std::move(other.writer_);
  readers_ = std::move(other.readers_);
  other.readers_.clear();
  return *this;
}

const void* MemoryBlock::data() const {
  if (writer_ != nullptr && !writer_->waited_for) throw misuse("memory is read before the copy into it was waited for", block_);
  return block_.data();
}

void* MemoryBlock::mutable_data() {
  for (const auto& reader : readers_) {
    if (!reader->waited_for) throw misuse("memory is written before the copy out of it was waited for", block_);
  }
  readers_.clear();
  return const_cast<void*>(data());
}

void MemoryBlock::reset() noexcept {
  if (ledger_ == nullptr) return;
  if (writer_ != nullptr) readers_.push_back(std::move(writer_));
  bool early = false;
  for (const auto& copy : readers_) {
    if (copy->waited_for) continue;
    copy->device->wait(copy->ticket);
    copy->waited_for = early = true;
  }
  if (early) ++ledger_->early_releases_;
  readers_.clear();
  account_->live -= block_.bytes();
  ledger_->totals_[static_cast<int>(account_->place)].live -= block_.bytes();
  block_ = Block();
  ledger_ = nullptr;
}

}  // namespace fsdpctl::train
