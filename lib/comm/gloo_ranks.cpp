#include "lib/comm/gloo_ranks.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>
#include <utility>

#include "lib/comm/faulty.h"
#include "lib/comm/gloo.h"
#include "lib/comm/threads.h"

namespace fsdpctl {
namespace {

constexpr Milliseconds kLeaving{10'000};

// "HOST:PORT", as leave_at_agent left it.
std::pair<std::string, uint16_t> take_apart(const std::string& place) {
  const size_t colon = place.rfind(':');
  uint16_t port = 0;
  if (colon != place.npos) std::from_chars(place.data() + colon + 1, place.data() + place.size(), port);
  if (port == 0) throw Error(Exit::failed, "torchrun's agent gave no place of a store").found_only(place);
  return {place.substr(0, colon), port};
}

}  // namespace

GlooRanks::GlooRanks(const Launch& launch, const GlooRanksOptions& options) : launch_(launch), options_(options) {
  try {
    std::unique_ptr<Transport> transport = come();   // sets store_
    world_ = make_message_communicator(std::move(transport), store_, options_.communicator);
  } catch (const Error&) {
    leave();
    throw;
  }
}

std::unique_ptr<Transport> GlooRanks::come() {
  std::unique_ptr<Transport> transport;
  if (launch_.world_size == 1) {
    ThreadRanks alone(1);
    store_ = alone.shared_store();
    transport = alone.transport(0);
  } else {
    open_store();
    transport = connect("world", launch_.rank, launch_.world_size);
  }
  if (const auto text = process_variable("FSDPCTL_COMM_FAULT")) {
    if (std::optional<Fault> fault = parse_fault(*text, launch_.rank)) transport = make_faulty(std::move(transport), *fault);
  }
  return transport;
}

void GlooRanks::close() {
  world_->close();
  if (tcp_store_) tcp_store_->leave();
}

GlooRanks::~GlooRanks() { leave(); }

void GlooRanks::leave() {
  world_.reset();
  store_.reset();
  tcp_store_.reset();
  if (server_) server_->wait_until_all_left(kLeaving);   // they may still have to read why
}

void GlooRanks::open_store() {
  StoreClientOptions client;
  client.address = launch_.address;
  client.port = launch_.port;
  client.run_id = launch_.run_id;
  client.rank = launch_.rank;
  client.world_size = launch_.world_size;
  client.connect = options_.connect;
  if (!launch_.store_is_served) {
    client.served_by = 0;
    if (launch_.rank == 0) {
      // torchrun's agent has the port; ours may be any, and the others ask the agent for it.
      const uint16_t port = launch_.agent_has_port ? uint16_t{0} : launch_.port;
      server_ = std::make_unique<StoreServer>(launch_.address, port, launch_.world_size, launch_.run_id);
      client.port = server_->port();
      if (launch_.agent_has_port) leave_at_agent(launch_, launch_.address + ":" + std::to_string(client.port), options_.connect);
    } else if (launch_.agent_has_port) {
      std::tie(client.address, client.port) = take_apart(read_from_agent(launch_, options_.connect));
    }
  }
  store_ = tcp_store_ = std::make_shared<TcpStore>(client);
}

std::unique_ptr<Transport> GlooRanks::connect(const std::string& group, int rank, int size) const {
  GlooOptions gloo;
  gloo.group = group;
  gloo.address = tcp_store_->own_address();
  gloo.interface = process_variable("GLOO_SOCKET_IFNAME").value_or("");
  gloo.connect = options_.connect;
  return make_gloo_transport(store_, rank, size, gloo);
}

std::unique_ptr<Communicator> GlooRanks::group(const std::string& name, const std::vector<int>& ranks) const {
  const auto place = std::find(ranks.begin(), ranks.end(), launch_.rank);
  if (place == ranks.end()) {
    throw Error(Exit::usage, "rank is not in the group").key(name).found_only(std::to_string(launch_.rank));
  }
  CommunicatorOptions options = options_.communicator;
  options.group = name;
  options.global_ranks = ranks;
  std::unique_ptr<Transport> transport;
  if (ranks.size() == 1) {
    transport = ThreadRanks(1).transport(0);
  } else {
    transport = connect(name, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()));
  }
  return make_message_communicator(std::move(transport), store_, options);
}

}  // namespace fsdpctl
