// Ranks talking: the collectives that training and distributed saving are made of.
//
// All ranks call the same operations in the same order. Before data moves, they compare what each is about to do:
// operation, number of elements, dtype and unit. Where they disagree, every rank throws one Error that says who wanted
// what. Whatever goes wrong (a rank that dies, hangs or gives up), every wait ends within the time-out and every rank
// throws the same Error, whose `where.rank` is the rank that failed first; from then on each call throws it again.
//
// Results are the same bits on every rank, every backend and every run: sums are made in rank order in float32.
//
// Calls come from one thread at a time. Buffers belong to the caller, lie in the communicator's memory (host, or the
// GPU for NCCL) and must neither move nor change between start and wait().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/base/finding.h"

namespace fsdpctl {

// `count` elements, row after row.
struct Elements {
  DType dtype;
  const void* data;
  uint64_t count;
};
struct MutableElements {
  DType dtype;
  void* data;
  uint64_t count;
};

enum class Reduction : uint8_t { sum, max, min, bit_or };

// A collective that was started.
class Pending {
 public:
  virtual ~Pending() = default;   // where wait() was not called: gives up, and the communicator fails
  virtual void wait() = 0;        // once
};

class Communicator {
 public:
  virtual ~Communicator() = default;   // without close(): the other ranks see this rank as gone
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `out` gets every rank's `in`, in rank order: out.count == size() * in.count, equal dtypes. `in` may be its own place
  // in `out`. `unit` is what the data is, for messages: a unit's name.
  virtual std::unique_ptr<Pending> start_all_gather(Elements in, MutableElements out, std::string_view unit) = 0;

  // out[i] = the sum over ranks r, in rank order and in float32, of in_r[rank() * out.count + i].
  // in.count == size() * out.count; in is float32, bfloat16 or float16, out is float32 or in's dtype (rounded once).
  virtual std::unique_ptr<Pending> start_reduce_scatter(Elements in, MutableElements out, std::string_view unit) = 0;

  // In place, element by element, in rank order: floating dtypes of 16 bits in float32 and rounded once, others in their
  // own. bit_or is for integers.
  virtual void all_reduce(MutableElements data, Reduction reduction, std::string_view unit) = 0;

  virtual void broadcast(MutableElements data, int root, std::string_view unit) = 0;

  // Every rank's bytes, of any length each, in rank order.
  virtual std::vector<std::string> exchange(std::string_view bytes, std::string_view unit) = 0;

  virtual void barrier(std::string_view unit) = 0;

  // Gives up: writes `why` down with this rank's number and ends what all ranks are waiting for. Does not wait.
  virtual void abort(Finding why) = 0;

  // The end, when all is well: waits for all ranks to come here.
  virtual void close() = 0;

  // ---- made of the above
  void all_gather(Elements in, MutableElements out, std::string_view unit) { start_all_gather(in, out, unit)->wait(); }
  void reduce_scatter(Elements in, MutableElements out, std::string_view unit) {
    start_reduce_scatter(in, out, unit)->wait();
  }
  // Collective failure: each rank passes what went wrong with it, or nothing. If anything did, all ranks throw what the
  // lowest such rank passed, with its number. The communicator stays usable.
  void agree(const std::optional<Finding>& mine, std::string_view unit);
};

std::string_view reduction_name(Reduction reduction);
bool can_reduce(DType dtype, Reduction reduction);

// The checks of arguments that all backends share; Error(usage), before anything is sent. They are the caller's bugs.
void check_all_gather(Elements in, MutableElements out, int size);
void check_reduce_scatter(Elements in, MutableElements out, int size);
void check_all_reduce(MutableElements data, Reduction reduction);
void check_broadcast(int root, int size);

}  // namespace fsdpctl
