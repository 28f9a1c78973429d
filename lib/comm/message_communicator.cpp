#include "lib/comm/message_communicator.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <utility>

#include "lib/comm/blame.h"
#include "lib/comm/header.h"
#include "lib/comm/reduce.h"

namespace fsdpctl {
namespace {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

// Below this size all_reduce lets every rank have everything; above, each rank reduces its part.
constexpr uint64_t kSmallReduce = 64 << 10;

ByteSpan bytes_of(Elements e) { return {static_cast<const std::byte*>(e.data), e.count * item_size(e.dtype)}; }
MutableByteSpan bytes_of(MutableElements e) { return {static_cast<std::byte*>(e.data), e.count * item_size(e.dtype)}; }

// A message under way, and whom it is with.
struct Post {
  int peer;
  std::unique_ptr<Message> message;
};

class MessageCommunicator : public Communicator {
 public:
  MessageCommunicator(std::unique_ptr<Transport> transport, std::shared_ptr<Store> store, const CommunicatorOptions& options)
      : transport_(std::move(transport)), store_(std::move(store)), options_(options) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }

  std::unique_ptr<Pending> start_all_gather(Elements in, MutableElements out, std::string_view unit) override;
  std::unique_ptr<Pending> start_reduce_scatter(Elements in, MutableElements out, std::string_view unit) override;
  void all_reduce(MutableElements data, Reduction reduction, std::string_view unit) override;
  void broadcast(MutableElements data, int root, std::string_view unit) override;
  std::vector<std::string> exchange(std::string_view bytes, std::string_view unit) override;
  void barrier(std::string_view unit) override;
  void abort(Finding why) override;
  void close() override {
    barrier("the end");
    transport_->close();
  }

 private:
  class Operation;

  enum class Cause : uint8_t { seen, late, lost };
  [[noreturn]] void fail(Finding mine, Cause cause, uint64_t step);
  Finding written_cause(const Finding& mine, Cause cause, uint64_t step);
  int global(int rank) const {
    return options_.global_ranks.empty() ? rank : options_.global_ranks[static_cast<size_t>(rank)];
  }
  void all_reduce_small(MutableElements data, const Header& header);
  void all_reduce_large(MutableElements data, const Header& header);

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<Store> store_;
  const CommunicatorOptions options_;
  uint64_t sequence_ = 0;
  std::optional<Finding> failure_;    // once set, for good
};

// One operation on this rank: the headers, and whatever data it posts. Never outlives its communicator.
class MessageCommunicator::Operation : public Pending {
 public:
  Operation(MessageCommunicator& all, Header header) : all_(all), header_(std::move(header)) {
    if (all_.failure_) throw Error(*all_.failure_);
    header_.sequence = all_.sequence_++;
    // Bit 0 tells data from headers; data also carries the header's hash.
    header_tag_ = static_cast<uint32_t>(header_.sequence << 1) & 0x7FFFFFFE;
    data_tag_ = (static_cast<uint32_t>(header_.hash()) & 0x7FFFFFFE) | 1;
    bytes_ = header_.encode();
    theirs_.resize(static_cast<size_t>(all_.size()));
    theirs_[static_cast<size_t>(all_.rank())] = bytes_;
    for_others([&](int peer) {
      header_posts_.push_back({peer, all_.transport_->receive(peer, header_tag_, theirs_[static_cast<size_t>(peer)])});
      sends_.push_back({peer, all_.transport_->send(peer, header_tag_, bytes_)});
    });
  }

  ~Operation() override {
    if (!waited_ && !all_.failure_) {
      Finding finding = error(Exit::failed, "a collective operation was given up");
      finding.found_only(header_.text());
      all_.abort(std::move(finding));
    }
  }

  // Calls body(peer), beginning after this rank, so that not all ranks send to the same one at first.
  template <class Body>
  void for_others(Body body) const {
    for (int i = 1; i < all_.size(); ++i) body((all_.rank() + i) % all_.size());
  }

  void send(int peer, ByteSpan bytes) {
    if (!bytes.empty()) sends_.push_back({peer, all_.transport_->send(peer, data_tag_, bytes)});
  }
  void receive(int peer, MutableByteSpan bytes) {
    if (!bytes.empty()) receives_.push_back({peer, all_.transport_->receive(peer, data_tag_, bytes)});
  }
  void at_end(std::function<void()> finish) { finish_ = std::move(finish); }

  // Memory that lives as long as the operation.
  MutableByteSpan scratch(uint64_t size) {
    scratch_.reset(new std::byte[size]);   // not zeroed: it is received into
    return {scratch_.get(), size};
  }

  // Every rank's header, once all have arrived and agree.
  std::vector<Header> wait_for_headers() {
    deadline_ = after(all_.options_.timeout);
    wait_for(header_posts_, 0, "came to no such operation");
    std::vector<Header> headers;
    for (const Header::Bytes& bytes : theirs_) headers.push_back(Header::decode(bytes));
    if (std::optional<Finding> finding = disagreement(headers, all_.options_.global_ranks)) {
      waited_ = true;
      all_.fail(std::move(*finding), Cause::seen, header_.sequence * 2);
    }
    return headers;
  }

  void wait_for_data() {
    deadline_ = after(all_.options_.timeout);
    wait_for(receives_, 1, "did not send its data");
    wait_for(sends_, 1, "did not take our data");
    waited_ = true;
    if (finish_) finish_();
  }

  void wait() override {
    if (all_.failure_) {
      waited_ = true;
      throw Error(*all_.failure_);
    }
    wait_for_headers();
    wait_for_data();
  }

 private:
  void wait_for(std::vector<Post>& posts, uint64_t step, const char* found) {
    for (Post& post : posts) {
      const Outcome outcome = post.message->wait(deadline_);
      if (outcome.state == Outcome::done) continue;
      waited_ = true;
      const bool late = outcome.state == Outcome::late;
      Finding finding = error(Exit::failed, late ? "a rank does not answer" : "a rank is gone");
      finding.where.rank = all_.global(post.peer);
      finding.expected = header_.text();
      if (late) finding.expected += fmt::format(" within {} s", static_cast<double>(all_.options_.timeout.count()) / 1000);
      finding.found = late ? found : "connection lost: " + outcome.detail;
      all_.fail(std::move(finding), late ? Cause::late : Cause::lost, header_.sequence * 2 + step);
    }
    posts.clear();
  }

  MessageCommunicator& all_;
  Header header_;
  uint32_t header_tag_ = 0, data_tag_ = 0;
  Header::Bytes bytes_;
  std::vector<Header::Bytes> theirs_;
  std::unique_ptr<std::byte[]> scratch_;
  Deadline deadline_;
  std::function<void()> finish_;
  bool waited_ = false;
  std::vector<Post> header_posts_, receives_, sends_;   // last, so that they go before what they point into
};

// What the run fails of: of all that the ranks notice, one thing, the same for all.
Finding MessageCommunicator::written_cause(const Finding& mine, Cause cause, uint64_t step) {
  if (cause == Cause::late) return settle_blame(*store_, global(rank()), {options_.group, step, mine}, options_.grace / 3);
  // A lost connection may only follow from another rank's failure, which that one writes down.
  if (const std::optional<Finding> written = store_->failure(cause == Cause::lost ? options_.grace : Milliseconds(0))) {
    return *written;
  }
  return store_->fail(mine);
}

void MessageCommunicator::fail(Finding mine, Cause cause, uint64_t step) {
  failure_ = std::move(mine);
  try {
    failure_ = written_cause(*failure_, cause, step);
  } catch (const Error& lost) {
    // The store went with a rank. Where our connection to another was lost, that is why.
    if (cause == Cause::lost && lost.finding().where.rank >= 0) failure_ = lost.finding();
  }
  transport_->close();
  throw Error(*failure_);
}

void MessageCommunicator::abort(Finding why) {
  if (failure_) return;
  why.where.rank = global(rank());
  failure_ = why;
  try {
    failure_ = store_->fail(why);
  } catch (const Error&) {   // the others will see the connections close
  }
  transport_->close();
}

std::unique_ptr<Pending> MessageCommunicator::start_all_gather(Elements in, MutableElements out, std::string_view unit) {
  check_all_gather(in, out, size());
  auto operation = std::make_unique<Operation>(*this, Header::all_gather(in, unit));
  const ByteSpan mine = bytes_of(in);
  const auto place = [&](int r) { return bytes_of(out).subspan(static_cast<size_t>(r) * mine.size(), mine.size()); };
  operation->for_others([&](int peer) {
    operation->receive(peer, place(peer));
    operation->send(peer, mine);
  });
  if (!mine.empty() && place(rank()).data() != mine.data()) std::memcpy(place(rank()).data(), mine.data(), mine.size());
  return operation;
}

std::unique_ptr<Pending> MessageCommunicator::start_reduce_scatter(Elements in, MutableElements out, std::string_view unit) {
  check_reduce_scatter(in, out, size());
  auto operation = std::make_unique<Operation>(*this, Header::reduce_scatter(in, out, unit));
  const uint64_t part_size = out.count * item_size(in.dtype);
  const auto part = [&](int r) { return bytes_of(in).subspan(static_cast<size_t>(r) * part_size, part_size); };
  const MutableByteSpan scratch = operation->scratch(part_size * static_cast<uint64_t>(size() - 1));
  std::vector<const void*> parts(static_cast<size_t>(size()));
  parts[static_cast<size_t>(rank())] = part(rank()).data();
  uint64_t next = 0;
  operation->for_others([&](int peer) {
    const MutableByteSpan theirs = scratch.subspan(next, part_size);
    next += part_size;
    parts[static_cast<size_t>(peer)] = theirs.data();
    operation->receive(peer, theirs);
    operation->send(peer, part(peer));
  });
  operation->at_end([parts, in, out] { reduce_in_rank_order(in.dtype, parts, Reduction::sum, out); });
  return operation;
}

void MessageCommunicator::all_reduce(MutableElements data, Reduction reduction, std::string_view unit) {
  check_all_reduce(data, reduction);
  const Header header = Header::all_reduce(data, reduction, unit);
  if (bytes_of(data).size() <= kSmallReduce || data.count < static_cast<uint64_t>(size())) {
    all_reduce_small(data, header);
  } else {
    all_reduce_large(data, header);
  }
}

void MessageCommunicator::all_reduce_small(MutableElements data, const Header& header) {
  Operation operation(*this, header);
  const uint64_t bytes = bytes_of(data).size();
  const MutableByteSpan scratch = operation.scratch(bytes * static_cast<uint64_t>(size() - 1));
  std::vector<const void*> parts(static_cast<size_t>(size()));
  parts[static_cast<size_t>(rank())] = data.data;
  uint64_t next = 0;
  operation.for_others([&](int peer) {
    const MutableByteSpan theirs = scratch.subspan(next, bytes);
    next += bytes;
    parts[static_cast<size_t>(peer)] = theirs.data();
    operation.receive(peer, theirs);
    operation.send(peer, bytes_of(data));
  });
  operation.at_end([&] { reduce_in_rank_order(data.dtype, parts, header.reduction, data); });
  operation.wait();
}

// Each rank reduces a part (the first ranks' are one element longer where it does not divide) and gives it to all.
void MessageCommunicator::all_reduce_large(MutableElements data, const Header& header) {
  const auto ranks = static_cast<uint64_t>(size());
  const uint64_t item = item_size(data.dtype);
  const auto begin = [&](int r) {
    const auto i = static_cast<uint64_t>(r);
    return i * (data.count / ranks) + std::min(i, data.count % ranks);
  };
  const auto part = [&](int r) { return bytes_of(data).subspan(begin(r) * item, (begin(r + 1) - begin(r)) * item); };

  const MutableByteSpan mine = part(rank());
  {
    Operation reduce(*this, header);
    const MutableByteSpan scratch = reduce.scratch(mine.size() * (ranks - 1));
    std::vector<const void*> parts(ranks);
    parts[static_cast<size_t>(rank())] = mine.data();
    uint64_t next = 0;
    reduce.for_others([&](int peer) {
      const MutableByteSpan theirs = scratch.subspan(next, mine.size());
      next += mine.size();
      parts[static_cast<size_t>(peer)] = theirs.data();
      reduce.receive(peer, theirs);
      reduce.send(peer, part(peer));
    });
    reduce.at_end([&] {
      reduce_in_rank_order(data.dtype, parts, header.reduction, {data.dtype, mine.data(), mine.size() / item});
    });
    reduce.wait();
  }
  Operation gather(*this, header);
  gather.for_others([&](int peer) {
    gather.receive(peer, part(peer));
    gather.send(peer, mine);
  });
  gather.wait();
}

void MessageCommunicator::broadcast(MutableElements data, int root, std::string_view unit) {
  check_broadcast(root, size());
  Operation operation(*this, Header::broadcast(data, root, unit));
  if (rank() == root) {
    operation.for_others([&](int peer) { operation.send(peer, bytes_of(data)); });
  } else {
    operation.receive(root, bytes_of(data));
  }
  operation.wait();
}

// The only operation whose sizes are learned from the headers.
std::vector<std::string> MessageCommunicator::exchange(std::string_view bytes, std::string_view unit) {
  Operation operation(*this, Header::exchange(bytes, unit));
  operation.for_others([&](int peer) { operation.send(peer, std::as_bytes(std::span(bytes))); });
  const std::vector<Header> headers = operation.wait_for_headers();
  std::vector<std::string> all(headers.size());
  all[static_cast<size_t>(rank())] = bytes;
  operation.for_others([&](int peer) {
    std::string& theirs = all[static_cast<size_t>(peer)];
    theirs.resize(headers[static_cast<size_t>(peer)].count);
    operation.receive(peer, std::as_writable_bytes(std::span(theirs)));
  });
  operation.wait_for_data();
  return all;
}

void MessageCommunicator::barrier(std::string_view unit) {
  Operation(*this, Header::barrier(unit)).wait();
}

}  // namespace

std::unique_ptr<Communicator> make_message_communicator(std::unique_ptr<Transport> transport, std::shared_ptr<Store> store,
                                                        const CommunicatorOptions& options) {
  return std::make_unique<MessageCommunicator>(std::move(transport), std::move(store), options);
}

}  // namespace fsdpctl
