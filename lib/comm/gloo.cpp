#include "lib/comm/gloo.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

// What Gloo throws begins with where in its source it was thrown; that helps nobody.
std::string words_of(const std::exception& e) {
  std::string_view text = e.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) {
    if (const size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
  }
  return std::string(text);
}

// Our store as Gloo sees it while ranks look for each other.
class Meeting : public c10d::Store {
 public:
  Meeting(std::shared_ptr<fsdpctl::Store> store, std::string prefix, Milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)), prefix_(std::move(prefix)) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<Meeting>(store_, prefix_, timeout_); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(prefix_ + key, std::string(value.begin(), value.end()));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = store_->get(prefix_ + key, timeout_);
    return {value.begin(), value.end()};
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(prefix_ + key, value); }
  bool deleteKey(const std::string& key) override {
    store_->erase(prefix_ + key);
    return true;
  }
  bool check(const std::vector<std::string>& keys) override {
    try {
      wait(keys, Milliseconds(0));
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  int64_t getNumKeys() override { return 0; }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    const Deadline deadline = after(timeout);
    for (const std::string& key : keys) store_->get(prefix_ + key, left_until(deadline));
  }

 private:
  const std::shared_ptr<fsdpctl::Store> store_;
  const std::string prefix_;
};

class GlooTransport;

class GlooMessage : public Message {
 public:
  GlooMessage(GlooTransport& transport, c10::intrusive_ptr<c10d::Work> work, std::string lost);
  ~GlooMessage() override;
  Outcome wait(Deadline deadline) override;
  void give_up() {
    work_.reset();
    lost_ = "closed on this side";
  }

 private:
  GlooTransport& transport_;
  c10::intrusive_ptr<c10d::Work> work_;   // null: `lost_` says why
  std::string lost_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(std::shared_ptr<fsdpctl::Store> store, int rank, int size, const GlooOptions& options) : rank_(rank), size_(size) {
    auto gloo = c10d::ProcessGroupGloo::Options::create(options.connect);
    using Gloo = c10d::ProcessGroupGloo;
    gloo->devices.push_back(options.interface.empty() ? Gloo::createDeviceForHostname(options.address)
                                                      : Gloo::createDeviceForInterface(options.interface));
    gloo->threads = 1;     // they run Gloo's own collectives, of which we use none
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<Meeting>(std::move(store), "gloo/" + options.group + "/", options.connect), rank, size,
        std::move(gloo));
  }
  ~GlooTransport() override { close(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Message> send(int to, uint32_t tag, std::span<const std::byte> bytes) override {
    // Gloo only reads from it.
    return start(const_cast<std::byte*>(bytes.data()), bytes.size(),
                 [&](std::vector<at::Tensor>& t) { return group_->send(t, to, static_cast<int>(tag)); });
  }
  std::unique_ptr<Message> receive(int from, uint32_t tag, std::span<std::byte> bytes) override {
    return start(bytes.data(), bytes.size(),
                 [&](std::vector<at::Tensor>& t) { return group_->recv(t, from, static_cast<int>(tag)); });
  }
  // Connections live as long as a message does, so those go first.
  void close() override {
    for (GlooMessage* message : under_way_) message->give_up();
    group_.reset();
  }

  void begin(GlooMessage* message) { under_way_.insert(message); }
  void end(GlooMessage* message) { under_way_.erase(message); }

 private:
  template <class Start>
  std::unique_ptr<Message> start(std::byte* data, size_t size, Start start) {
    if (!group_) return std::make_unique<GlooMessage>(*this, nullptr, "closed on this side");
    std::vector<at::Tensor> tensors{at::from_blob(data, {static_cast<int64_t>(size)}, at::kByte)};
    try {
      return std::make_unique<GlooMessage>(*this, start(tensors), "");
    } catch (const std::exception& e) {
      return std::make_unique<GlooMessage>(*this, nullptr, words_of(e));
    }
  }

  const int rank_, size_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::set<GlooMessage*> under_way_;
};

GlooMessage::GlooMessage(GlooTransport& transport, c10::intrusive_ptr<c10d::Work> work, std::string lost)
    : transport_(transport), work_(std::move(work)), lost_(std::move(lost)) {
  transport_.begin(this);
}
GlooMessage::~GlooMessage() { transport_.end(this); }

Outcome GlooMessage::wait(Deadline deadline) {
  if (!work_) return {Outcome::lost, lost_};
  try {
    work_->wait(std::max(left_until(deadline), Milliseconds(1)));   // 0 would mean for ever
    return {};
  } catch (const std::exception& e) {
    return {left_until(deadline).count() == 0 ? Outcome::late : Outcome::lost, words_of(e)};
  }
}

c10::intrusive_ptr<c10d::TCPStore> agent_store(const Launch& launch, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(launch.address, options);
}

// torchrun starts all ranks again after a failure, and keeps its store: the count of restarts is part of the run's id.
std::string agent_key(const Launch& launch) { return "fsdpctl/" + launch.run_id; }

template <class Body>
auto at_agent(const Launch& launch, Body body) {
  try {
    return body();
  } catch (const std::exception& e) {
    throw Error(Exit::failed, "torchrun's agent does not answer")
        .at(fmt::format("{}:{}", launch.address, launch.port))
        .found_only(words_of(e));
  }
}

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(std::shared_ptr<Store> store, int rank, int size, const GlooOptions& options) {
  // Who has not come is asked of the store, as Gloo's own errors name addresses.
  const std::string key = "gloo/" + options.group + "/came/";
  store->set(key + std::to_string(rank), "");
  const Deadline deadline = after(options.connect);
  for (int r = 0; r < size; ++r) {
    try {
      store->get(key + std::to_string(r), left_until(deadline));
    } catch (const Error& e) {
      if (e.finding().where.key != key + std::to_string(r)) throw;   // a failure that somebody wrote down
      Finding finding = error(Exit::failed, "a rank does not come");
      finding.saw(fmt::format("it within {} s", static_cast<double>(options.connect.count()) / 1000), "nothing");
      finding.where.rank = r;
      throw Error(store->fail(finding));
    }
  }
  try {
    return std::make_unique<GlooTransport>(store, rank, size, options);
  } catch (const std::exception& e) {
    if (const std::optional<Finding> failure = store->failure(Milliseconds(1000))) throw Error(*failure);
    Finding finding = error(Exit::failed, "ranks cannot connect with each other");
    finding.at(options.address).found_only(words_of(e));
    finding.where.rank = rank;
    throw Error(store->fail(finding));
  }
}

void leave_at_agent(const Launch& launch, const std::string& place, Milliseconds timeout) {
  at_agent(launch, [&] {
    agent_store(launch, timeout)->set(agent_key(launch), std::vector<uint8_t>(place.begin(), place.end()));
  });
}

std::string read_from_agent(const Launch& launch, Milliseconds timeout) {
  return at_agent(launch, [&] {
    const std::vector<uint8_t> place = agent_store(launch, timeout)->get(agent_key(launch));
    return std::string(place.begin(), place.end());
  });
}

}  // namespace fsdpctl
