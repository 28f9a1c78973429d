#include "lib/train/optimizer_state.h"

#include <cstring>
#include <string>

#include "lib/base/finding.h"

namespace fsdpctl::train {

using kernels::CopyEntry;
using kernels::Direction;

struct StateMove::Transit {
  OptimizerState* state = nullptr;   // null when that is gone, or the move is over
  CopyTicket ticket;
  uint64_t bytes = 0;
  bool simulated = false;
  std::vector<std::pair<Block*, Block>> arriving;   // whose memory each becomes
};

uint64_t StateMove::bytes() const { return transit_->bytes; }
bool StateMove::simulated() const { return transit_->simulated; }

void StateMove::wait() {
  OptimizerState* state = std::exchange(transit_->state, nullptr);
  if (state == nullptr) return;
  if (transit_->bytes != 0) state->device_.wait(transit_->ticket);
  for (auto& [place, block] : transit_->arriving) *place = std::move(block);
  transit_->arriving.clear();   // the old memory
  state->transit_.reset();
}

OptimizerState::~OptimizerState() {
  if (!transit_) return;
  if (transit_->bytes != 0) device_.wait(transit_->ticket);
  transit_->state = nullptr;
  transit_->arriving.clear();
}

void OptimizerState::add(uint64_t count, int moments, float* alias) {
  Slot slot;
  slot.count = count;
  slot.moments = moments;
  slot.alias = alias;
  if (alias == nullptr) slot.master = device_.allocate(Place::device, count * sizeof(float));
  slots_.push_back(std::move(slot));
}

float* OptimizerState::master(size_t i) const {
  require_ready("reading a master");
  return slots_[i].alias != nullptr ? slots_[i].alias : slots_[i].master.as<float>();
}

float* OptimizerState::moment(size_t i, int moment) const {
  require_ready("reading a moment");
  return slots_[i].moment[static_cast<size_t>(moment)].as<float>();
}

void OptimizerState::begin_step(size_t i) {
  Slot& slot = slots_[i];
  if (slot.step == 0) {
    slot.moment = make_moments(i);
    for (const Block& block : slot.moment) device_.zero(block);
  }
  ++slot.step;
}

std::array<Block, 2> OptimizerState::make_moments(size_t i) const {
  std::array<Block, 2> made;
  for (int m = 0; m < slots_[i].moments; ++m) {
    made[static_cast<size_t>(m)] = device_.allocate(Place::device, slots_[i].count * sizeof(float));
  }
  return made;
}

void OptimizerState::set_step(size_t i, uint64_t step, std::array<Block, 2> moments) {
  Slot& slot = slots_[i];
  if (step == 0 || slot.step == 0) slot.moment = std::move(moments);   // none for step 0
  slot.step = step;
}

std::vector<Block> OptimizerState::snapshot(std::span<const Part> parts) const {
  require_ready("a snapshot");
  std::vector<Block> blocks;
  std::vector<CopyEntry> on_device, on_host;
  for (const Part& part : parts) {
    const Slot& slot = slots_[part.parameter];
    const Block& own = part.moment < 0 ? slot.master : slot.moment[static_cast<size_t>(part.moment)];
    const void* source = part.moment < 0 && slot.alias != nullptr ? slot.alias : own.data();
    blocks.push_back(device_.allocate(Place::pinned, slot.count * sizeof(float)));
    const CopyEntry entry{source, blocks.back().data(), blocks.back().bytes()};
    if (entry.bytes != 0) (own.place() == Place::pinned ? on_host : on_device).push_back(entry);
  }
  const CopyTicket ticket = device_.copy(std::move(on_device), Direction::to_host);
  for (const CopyEntry& entry : on_host) std::memcpy(entry.target, entry.source, entry.bytes);
  device_.wait(ticket);
  return blocks;
}

StateMove OptimizerState::offload(bool masters) { return move(Place::pinned, masters); }
StateMove OptimizerState::load() { return move(Place::device, true); }

StateMove OptimizerState::move(Place to, bool masters) {
  require_ready(to == Place::device ? "loading optimizer state" : "offloading optimizer state");
  auto transit = std::make_shared<StateMove::Transit>();
  transit->simulated = device_.simulated();
  std::vector<CopyEntry> table;
  const auto add = [&](Block& block) {
    if (block.bytes() == 0 || block.place() == to) return;
    Block target = device_.allocate(to, block.bytes());
    table.push_back({block.data(), target.data(), block.bytes()});
    transit->bytes += block.bytes();
    transit->arriving.emplace_back(&block, std::move(target));
  };
  for (Slot& slot : slots_) {
    if (masters) add(slot.master);
    for (Block& block : slot.moment) add(block);
  }
  StateMove handle;
  handle.transit_ = transit;
  if (table.empty()) return handle;   // nothing to wait for
  transit->ticket = device_.copy(std::move(table), to == Place::device ? Direction::to_device : Direction::to_host);
  transit->state = this;
  transit_ = transit;
  return handle;
}

bool OptimizerState::offloaded() const {
  const auto away = [](const Block& block) { return block.bytes() != 0 && block.place() != Place::device; };
  for (const Slot& slot : slots_) {
    if (away(slot.master) || away(slot.moment[0]) || away(slot.moment[1])) return true;
  }
  return false;
}

void OptimizerState::require_ready(std::string_view operation) const {
  if (!transit_) return;
  throw Error(Exit::usage, "optimizer state is used before the wait() of its move")
      .saw("wait(), then " + std::string(operation), std::string(operation));
}

void OptimizerState::require_loaded(std::string_view operation) const {
  require_ready(operation);
  if (!offloaded()) return;
  throw Error(Exit::usage, "optimizer state is not on the device")
      .saw("load_fsdp_optimizer(), then " + std::string(operation), std::string(operation));
}

}  // namespace fsdpctl::train
