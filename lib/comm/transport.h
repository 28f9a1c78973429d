// What moves bytes between two ranks: threads of one process (threads.h), Gloo (gloo.h), or one of these made to fail
// (faulty.h). Collectives are built on it once, in message_communicator.cpp, so they are the same bits on each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lib/comm/store.h"

namespace fsdpctl {

// How a started message ended. `late`: not within the deadline; `lost`: the other rank's end is closed.
struct Outcome {
  enum State : uint8_t { done, late, lost } state = done;
  std::string detail;     // the transport's own words
};

// A send or receive that has begun. Destroying it before it is done gives it up; its bytes are not touched afterwards.
class Message {
 public:
  virtual ~Message() = default;
  virtual Outcome wait(Deadline deadline) = 0;   // once
};

// One rank's end of the connections to all others. Calls come from one thread at a time. Tags are below 2^31.
// Messages between two ranks with one tag arrive in the order in which they were started, and both ends of one must
// have the same size. A send may need its receive to have begun before it can be done.
class Transport {
 public:
  virtual ~Transport() = default;   // closes
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Message> send(int to, uint32_t tag, std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Message> receive(int from, uint32_t tag, std::span<std::byte> bytes) = 0;
  // Ends the connections: here and at the other ends, what is under way is lost.
  virtual void close() = 0;
};

}  // namespace fsdpctl
