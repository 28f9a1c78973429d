#include "lib/train/store_coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lib/comm/wire.h"

namespace fsdpctl::train {
namespace {

constexpr size_t kMostValue = 16 << 20;   // bytes; a store's messages have a limit
constexpr int kProgressTold = 8;          // times within the others' patience

int64_t now() {
  return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string part_of(const std::string& key, size_t part) { return fmt::format("{}/{}", key, part); }

}  // namespace

StoreCoordinator::StoreCoordinator(std::shared_ptr<Store> store, std::string name, int rank, int size, Milliseconds patience)
    : store_(std::move(store)), name_(std::move(name)), rank_(rank), size_(size), patience_(patience) {}

StoreCoordinator::~StoreCoordinator() = default;

std::string StoreCoordinator::meet(std::string_view phase, Contribution mine,
                                   const std::function<std::string(const std::vector<std::string>&)>& answer) {
  const std::string meeting = fmt::format("{}/{} {}", name_, meetings_++, phase), answer_key = meeting + "/answer";
  Contribution outcome;
  if (is_first()) {
    outcome = collect(meeting, std::move(mine), answer);
    if (size_ > 1) {
      erase(last_answer_, last_values_);
      last_values_ = put(answer_key, outcome);
      last_answer_ = answer_key;
    }
  } else {
    put(fmt::format("{}/{}", meeting, rank_), mine);
    // Longer than the first rank waits for the others: it knows better who is missing.
    outcome = take(answer_key, 0, 2 * patience_, false);
  }
  if (outcome.failure) throw Error(*outcome.failure);
  return std::move(outcome.text);
}

Contribution StoreCoordinator::collect(const std::string& meeting, Contribution mine,
                                       const std::function<std::string(const std::vector<std::string>&)>& answer) {
  std::vector<std::string> texts = {std::move(mine.text)};
  std::optional<Finding> failure = std::move(mine.failure);
  if (failure && size_ > 1) failure->where.rank = 0;
  for (int rank = 1; rank < size_; ++rank) {
    Contribution theirs;
    try {
      theirs = take(fmt::format("{}/{}", meeting, rank), rank, patience_, true);
      if (theirs.failure) theirs.failure->where.rank = rank;
    } catch (const Error& e) {
      theirs.failure = e.finding();   // which may be of another rank's death
    }
    if (theirs.failure && !failure) failure = std::move(theirs.failure);
    texts.push_back(std::move(theirs.text));
  }
  if (failure) return {{}, std::move(failure)};
  return contribution_of([&] { return answer(texts); });
}

size_t StoreCoordinator::put(const std::string& key, const Contribution& contribution) {
  WireWriter out;
  out.number(contribution.failure.has_value());
  contribution.failure ? out.finding(*contribution.failure) : out.text(contribution.text);
  const std::string bytes = out.take();
  // The first part last: it says how many there are, and whoever sees it finds all.
  const size_t parts = std::max<size_t>(1, (bytes.size() + kMostValue - 1) / kMostValue);
  for (size_t part = parts; part-- > 0;) {
    WireWriter value;
    value.number(parts).text(std::string_view(bytes).substr(part * kMostValue, kMostValue));
    store_->set(part_of(key, part), value.take());
  }
  return parts;
}

Contribution StoreCoordinator::take(const std::string& key, int from, Milliseconds patience, bool erases) {
  std::string bytes;
  uint64_t parts = 1;
  for (size_t part = 0; part < parts; ++part) {
    const std::string value = wait_for(part_of(key, part), from, patience);
    WireReader in(value);
    parts = in.number();
    bytes += in.text();
  }
  if (erases) erase(key, parts);
  WireReader in(bytes);
  if (in.number() != 0) return {{}, in.finding()};
  return {in.text(), std::nullopt};
}

std::string StoreCoordinator::wait_for(const std::string& key, int from, Milliseconds patience) {
  const std::string progress = name_ + "/progress";
  for (int64_t before = store_->add(progress, 0);;) {
    try {
      return store_->get(key, patience);
    } catch (const Error&) {
      if (const auto failure = store_->failure(Milliseconds(0))) throw Error(*failure);
      const int64_t now_made = store_->add(progress, 0);   // a lost store throws here
      if (now_made == before) {
        Finding finding = error(Exit::failed, "a rank takes no part in a save");
        finding.saw(fmt::format("progress within {} s", std::chrono::duration<double>(patience).count()), "none").where.rank = from;
        throw Error(std::move(finding));
      }
      before = now_made;
    }
  }
}

void StoreCoordinator::erase(const std::string& key, size_t values) {
  for (size_t part = 0; part < values; ++part) store_->erase(part_of(key, part));
}

void StoreCoordinator::make_progress() {
  if (size_ == 1) return;
  int64_t last = told_progress_.load();
  const int64_t time = now();
  if (time - last < patience_.count() / kProgressTold || !told_progress_.compare_exchange_strong(last, time)) return;
  store_->add(name_ + "/progress", 1);
}

}  // namespace fsdpctl::train
