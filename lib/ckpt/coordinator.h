// Coordinator: how the ranks that write one checkpoint together talk. Seldom and little: plans, sums, failures; never tensors.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/finding.h"

namespace fsdpctl {

// What a rank brings to a meeting: something, or why it has nothing.
struct Contribution {
  std::string text;
  std::optional<Finding> failure;
};

class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  bool is_first() const { return rank() == 0; }

  // All ranks come here, in the same order of phases. The first one makes an answer of what all brought (`answer` gets the texts in
  // rank order, and is called there alone), which every rank gets. If anybody failed, `answer` included, every rank throws the
  // failure of the lowest such rank, with its number. Error(failed) where a rank does not come.
  virtual std::string meet(std::string_view phase, Contribution mine,
                           const std::function<std::string(const std::vector<std::string>&)>& answer) = 0;

  // From any thread, between meetings: this rank is at work, and the others may go on waiting for it.
  virtual void make_progress() {}
};

// The outcome of `body`, which returns a text, as a contribution.
template <class Body>
Contribution contribution_of(Body&& body) {
  try {
    return {body(), std::nullopt};
  } catch (const Error& e) {
    return {{}, e.finding()};
  } catch (const std::exception& e) {
    return {{}, error(Exit::failed, "out of memory, or another failure of the system").found_only(e.what())};
  }
}

}  // namespace fsdpctl
