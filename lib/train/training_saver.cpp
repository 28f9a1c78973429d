#include "lib/train/training_saver.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "lib/ckpt/placement.h"
#include "lib/ckpt/publish_as_rank.h"
#include "lib/ckpt/untie.h"
#include "lib/train/live_checkpoint.h"
#include "lib/train/old_saves.h"
#include "lib/train/store_coordinator.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kAlignment = 64;   // of parts in the copy

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

bool is_one_file(const Format& format, const std::string& path) {
  const Capabilities can = format.capabilities();
  if (can.single_file) return true;
  for (const std::string_view ending : can.endings) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

}  // namespace

struct TrainingSaver::Impl {
  Impl(TrainingState& of, Communicator& world, std::shared_ptr<Store> store, const SaverOptions& given)
      : state(of),
        options(given),
        live(of, world),
        ranks(store ? std::move(store) : std::make_shared<LocalStore>(), "save", world.rank(), world.size(), given.patience) {
    if (options.background) make_room();
  }

  void make_room() {
    uint64_t bytes = 0;
    for (const StatePart& part : live.parts()) {
      places.push_back(bytes);
      bytes += (part.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    copy = state.optimizer.device().allocate(Place::pinned, bytes);
    if (bytes > 0) std::memset(copy.data(), 0, bytes);   // the first save must not wait for pages
  }

  std::vector<const void*> memory_now() const {
    std::vector<const void*> memory;
    for (size_t part = 0; part < live.parts().size(); ++part) memory.push_back(live.memory(part));
    return memory;
  }

  std::vector<const void*> copied() {
    if (places.empty()) make_room();
    std::vector<const void*> memory = memory_now();
    std::vector<kernels::CopyEntry> table;
    for (size_t part = 0; part < memory.size(); ++part) {
      if (memory[part] == nullptr) continue;
      std::byte* const place = copy.as<std::byte>() + places[part];
      table.push_back({memory[part], place, live.parts()[part].bytes});
      memory[part] = place;
    }
    Device& device = state.optimizer.device();
    device.wait(device.copy(std::move(table), kernels::Direction::to_host));
    return memory;
  }

  // From any thread: what it needs of the state was taken before.
  void write(const StateValues& values, const std::vector<const void*>& memory, SaveReport& report) {
    const Clock clock;
    LiveCheckpoint made = live.checkpoint(values, memory);
    PublishOptions publishing;
    publishing.engine.threads = options.threads;
    publishing.engine.max_memory = options.max_memory;
    publishing.engine.cancel = options.cancel;
    publishing.read_back = options.read_back;
    publishing.arguments = fmt::format("training to {}", options.format->name());
    if (!options.format->capabilities().ties) made.checkpoint = untied(made.checkpoint, publishing.changes);
    const TargetPlacement placement = place(made.checkpoint, live.shards());
    Target target;
    target.placement = &placement;
    target.file_name = base_name(report.path);
    target.directory = !is_one_file(*options.format, report.path);
    FindingSink sink(/*strict=*/false);
    const PublishResult result = publish_as_rank(made.checkpoint, *options.format, target, report.path, publishing, ranks, sink);
    report.bytes = result.bytes;
    report.bytes_written = result.bytes_written;
    if (ranks.is_first()) rotate(sink, report);
    report.warnings = sink.all();
    report.seconds += clock.seconds();
  }

  // The save is published: what is left lying does not undo it.
  void rotate(FindingSink& sink, SaveReport& report) {
    try {
      report.removed = remove_old_saves(report.path, options.keep);
    } catch (const Error& e) {
      Finding finding = warning("an older save could not be removed");
      finding.at(e.finding().where.path).found_only(e.what());
      sink.report(std::move(finding));
    }
  }

  SaveReport new_report(const std::string& path, bool background) const {
    SaveReport report;
    report.path = path;
    report.step = state.step;
    report.background = background;
    return report;
  }

  void join() {
    if (thread.joinable()) thread.join();
  }

  // Of a started save that has ended.
  std::optional<SaveReport> take() {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
    return std::exchange(outcome, std::nullopt);
  }

  TrainingState& state;
  const SaverOptions options;
  const LiveState live;
  StoreCoordinator ranks;
  Block copy;
  std::vector<uint64_t> places;              // of parts in the copy

  std::thread thread;
  std::atomic<bool> ended = true;
  std::optional<SaveReport> outcome;         // these two belong to the thread until it has ended
  std::exception_ptr error;
};

TrainingSaver::TrainingSaver(TrainingState& state, Communicator& world, std::shared_ptr<Store> store, const SaverOptions& options)
    : impl_(std::make_unique<Impl>(state, world, std::move(store), options)) {}

TrainingSaver::~TrainingSaver() { impl_->join(); }

SaveReport TrainingSaver::save(const std::string& path) {
  const Clock clock;
  impl_->join();
  SaveReport report = impl_->new_report(path, false);
  report.waited = clock.seconds();
  const bool readable = impl_->state.optimizer.device().simulated();   // by the threads that write
  const Clock copying;
  const std::vector<const void*> memory = readable ? impl_->memory_now() : impl_->copied();
  if (!readable) report.copying = copying.seconds();
  impl_->write(values_of(impl_->state), memory, report);
  report.seconds += report.copying;
  return report;
}

std::optional<SaveReport> TrainingSaver::start(const std::string& path) {
  const Clock clock;
  std::optional<SaveReport> before = wait();
  SaveReport report = impl_->new_report(path, true);
  report.waited = clock.seconds();
  const Clock copying;
  std::vector<const void*> memory = impl_->copied();
  report.copying = report.seconds = copying.seconds();
  impl_->ended = false;
  impl_->thread = std::thread([impl = impl_.get(), values = values_of(impl_->state), memory = std::move(memory), report]() mutable {
    try {
      impl->write(values, memory, report);
      impl->outcome = std::move(report);
    } catch (...) {
      impl->error = std::current_exception();
    }
    impl->ended = true;
  });
  return before;
}

std::optional<SaveReport> TrainingSaver::finished() {
  if (!impl_->ended) return std::nullopt;
  return wait();
}

std::optional<SaveReport> TrainingSaver::wait() {
  impl_->join();
  return impl_->take();
}

}  // namespace fsdpctl::train
