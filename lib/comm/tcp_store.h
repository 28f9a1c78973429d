// The store over TCP. The server keeps a connection to every rank: one that closes without a goodbye is a rank that
// died, and that is written down as the failure of the run, which ends every wait.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/comm/socket.h"
#include "lib/comm/store.h"

namespace fsdpctl {

// Serves in a thread of its own until it is destroyed.
class StoreServer {
 public:
  // Port 0 takes a free one. Error(failed) where the port is in use. Ranks of another run (by run_id) are turned away.
  StoreServer(const std::string& address, uint16_t port, int world_size, std::string run_id);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;

  uint16_t port() const;
  Finding fail(const Finding& finding);   // as Store::fail
  std::optional<Finding> failure();
  // Until every rank that came has said goodbye or died; false if some have not within `patience`.
  bool wait_until_all_left(Milliseconds patience);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

struct StoreClientOptions {
  std::string address;
  uint16_t port = 0;
  std::string run_id;
  int rank = 0;
  int world_size = 1;
  int served_by = -1;                   // the rank whose end is the end of the store; -1: the launcher
  Milliseconds connect{60'000};         // for the server to appear
  Milliseconds reply{10'000};           // for an answer that waits for no other rank
};

class TcpStore : public Store {
 public:
  // Connects, says who we are, and stays connected.
  explicit TcpStore(StoreClientOptions options);
  ~TcpStore() override;   // without leave(): this rank counts as dead
  TcpStore(const TcpStore&) = delete;

  void set(const std::string& key, const std::string& value) override;
  std::string set_once(const std::string& key, const std::string& value) override;
  int64_t add(const std::string& key, int64_t delta) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  void erase(const std::string& key) override;
  Finding fail(const Finding& finding) override;
  std::optional<Finding> failure(Milliseconds wait) override;

  void leave();   // the goodbye; nothing else may be called after it
  std::string own_address() const { return principal_.address(); }   // this machine's, as the server reaches it

 private:
  struct Reply;
  Socket connect(bool principal, Deadline deadline) const;
  Reply call(const std::string& request, Milliseconds wait);
  [[noreturn]] void lost(std::string found) const;

  const StoreClientOptions options_;
  Socket principal_;              // its end tells the server about ours; carries nothing else
  std::mutex mutex_;
  std::vector<Socket> idle_;      // for requests; as many as threads have waited at once
};

}  // namespace fsdpctl
