#include "lib/comm/nccl.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstring>
#include <thread>
#include <utility>

#include "lib/comm/header.h"

namespace fsdpctl {
namespace {

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  const bool none = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver || code == cudaErrorInvalidDevice;
  throw Error(none ? Exit::unsupported : Exit::failed, what).found_only(cudaGetErrorString(code));
}

void check(ncclResult_t code, const char* what) {
  if (code != ncclSuccess && code != ncclInProgress) throw Error(Exit::failed, what).found_only(ncclGetErrorString(code));
}

// Memory on the GPU that is given back in the order of a stream.
class Scratch {
 public:
  Scratch(uint64_t bytes, cudaStream_t stream) : stream_(stream) {
    if (bytes > 0) check(cudaMallocAsync(&data_, bytes, stream_), "no memory on the GPU for a collective operation");
  }
  Scratch(Scratch&& other) noexcept : stream_(other.stream_), data_(std::exchange(other.data_, nullptr)) {}
  ~Scratch() {
    if (data_) cudaFreeAsync(data_, stream_);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const cudaStream_t stream_;
  void* data_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "CUDA gives no event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> control, const NcclOptions& options)
      : control_(std::move(control)), options_(options), theirs_(static_cast<cudaStream_t>(options.stream)) {
    check(cudaSetDevice(options_.device), "no such GPU");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "CUDA gives no stream");
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id), "NCCL gives no id");
    control_->broadcast({DType::uint8, &id, sizeof id}, 0, "NCCL's id");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;   // so that a rank that does not come ends in a time-out
    check(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), "NCCL does not start");
    settle("NCCL does not start");
  }

  ~NcclCommunicator() override {
    if (comm_) ncclCommAbort(comm_);
    if (stream_) cudaStreamDestroy(stream_);
  }

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }

  std::unique_ptr<Pending> start_all_gather(Elements in, MutableElements out, std::string_view unit) override;
  std::unique_ptr<Pending> start_reduce_scatter(Elements in, MutableElements out, std::string_view unit) override;
  void all_reduce(MutableElements data, Reduction reduction, std::string_view unit) override;
  void broadcast(MutableElements data, int root, std::string_view unit) override;

  std::vector<std::string> exchange(std::string_view bytes, std::string_view unit) override {
    return control_->exchange(bytes, unit);
  }
  void barrier(std::string_view unit) override { control_->barrier(unit); }
  void abort(Finding why) override {
    if (comm_) ncclCommAbort(std::exchange(comm_, nullptr));
    control_->abort(std::move(why));
  }
  void close() override {
    control_->close();
    if (comm_) ncclCommDestroy(std::exchange(comm_, nullptr));
  }

 private:
  class Operation;

  void compare(Header header);
  [[noreturn]] void fail(const char* what, std::string found);
  void settle(const char* what);
  void begin() {
    if (!comm_) fail("NCCL was given up", "a call after a failure");
    check(cudaEventRecord(before_.get(), theirs_), "CUDA failed");
    check(cudaStreamWaitEvent(stream_, before_.get(), 0), "CUDA failed");
  }

  const std::unique_ptr<Communicator> control_;
  const NcclOptions options_;
  const cudaStream_t theirs_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  Event before_;
  uint64_t sequence_ = 0;
};

// One that has been put into the stream.
class NcclCommunicator::Operation : public Pending {
 public:
  Operation(NcclCommunicator& all, std::string text, Scratch scratch)
      : all_(all), text_(std::move(text)), scratch_(std::move(scratch)) {
    check(cudaEventRecord(done_.get(), all_.stream_), "CUDA failed");
  }
  ~Operation() override {
    if (!waited_ && all_.comm_) all_.abort(error(Exit::failed, "a collective operation was given up").found_only(text_));
  }

  void wait() override {
    waited_ = true;
    const Deadline deadline = after(all_.options_.timeout);
    for (;;) {
      if (!all_.comm_) all_.fail("NCCL was given up", text_);
      const cudaError_t state = cudaEventQuery(done_.get());
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) all_.fail("a collective operation failed on the GPU", cudaGetErrorString(state));
      ncclResult_t result = ncclSuccess;
      ncclCommGetAsyncError(all_.comm_, &result);
      if (result != ncclSuccess && result != ncclInProgress) {
        all_.fail("a collective operation failed between GPUs", text_ + ": " + ncclGetLastError(all_.comm_));
      }
      if (left_until(deadline).count() == 0) all_.fail("a collective operation does not end", text_);
      std::this_thread::yield();
    }
  }

 private:
  NcclCommunicator& all_;
  const std::string text_;
  const Scratch scratch_;
  Event done_;
  bool waited_ = false;
};

void NcclCommunicator::fail(const char* what, std::string found) {
  Finding finding = error(Exit::failed, what);
  finding.found_only(std::move(found));
  finding.where.rank = rank();
  abort(finding);
  control_->barrier("after a failure");   // throws what all ranks throw
  throw Error(std::move(finding));
}

// Waits for what NCCL does in the background.
void NcclCommunicator::settle(const char* what) {
  const Deadline deadline = after(options_.timeout);
  for (;;) {
    ncclResult_t result = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &result), what);
    if (result == ncclSuccess) return;
    if (result != ncclInProgress) fail(what, ncclGetLastError(comm_));
    if (left_until(deadline).count() == 0) fail(what, "nothing in time");
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

// NCCL itself hangs, or worse, where ranks want different things.
void NcclCommunicator::compare(Header header) {
  header.sequence = sequence_++;
  const Header::Bytes mine = header.encode();
  std::vector<Header> headers;
  for (const std::string& bytes :
       control_->exchange({reinterpret_cast<const char*>(mine.data()), mine.size()}, "comparing operations")) {
    Header::Bytes theirs{};
    std::memcpy(theirs.data(), bytes.data(), std::min(bytes.size(), theirs.size()));
    headers.push_back(Header::decode(theirs));
  }
  // Every rank sees the same headers, so all throw; the communicator stays as it is.
  if (std::optional<Finding> finding = disagreement(headers, {})) throw Error(std::move(*finding));
}

std::unique_ptr<Pending> NcclCommunicator::start_all_gather(Elements in, MutableElements out, std::string_view unit) {
  check_all_gather(in, out, size());
  compare(Header::all_gather(in, unit));
  begin();
  check(ncclAllGather(in.data, out.data, in.count * item_size(in.dtype), ncclUint8, comm_, stream_), "NCCL failed");
  settle("NCCL failed");
  return std::make_unique<Operation>(*this, fmt::format("all_gather in {}", unit), Scratch(0, stream_));
}

std::unique_ptr<Pending> NcclCommunicator::start_reduce_scatter(Elements in, MutableElements out, std::string_view unit) {
  check_reduce_scatter(in, out, size());
  compare(Header::reduce_scatter(in, out, unit));
  begin();
  // ncclReduceScatter sums in an order that depends on the machines' wiring. So: everybody gets all parts of its own.
  const uint64_t part = out.count * item_size(in.dtype);
  Scratch parts(part * static_cast<uint64_t>(size()), stream_);
  check(ncclGroupStart(), "NCCL failed");
  for (int r = 0; r < size(); ++r) {
    const uint64_t offset = static_cast<uint64_t>(r) * part;
    check(ncclSend(static_cast<const std::byte*>(in.data) + offset, part, ncclUint8, r, comm_, stream_), "NCCL failed");
    check(ncclRecv(parts.data() + offset, part, ncclUint8, r, comm_, stream_), "NCCL failed");
  }
  check(ncclGroupEnd(), "NCCL failed");
  settle("NCCL failed");
  options_.sum_in_rank_order(in.dtype, parts.data(), size(), out, stream_);
  return std::make_unique<Operation>(*this, fmt::format("reduce_scatter in {}", unit), std::move(parts));
}

void NcclCommunicator::all_reduce(MutableElements data, Reduction reduction, std::string_view unit) {
  check_all_reduce(data, reduction);
  std::vector<std::byte> host(data.count * item_size(data.dtype));
  check(cudaMemcpyAsync(host.data(), data.data, host.size(), cudaMemcpyDeviceToHost, theirs_), "CUDA failed");
  check(cudaStreamSynchronize(theirs_), "CUDA failed");
  control_->all_reduce({data.dtype, host.data(), data.count}, reduction, unit);
  check(cudaMemcpyAsync(data.data, host.data(), host.size(), cudaMemcpyHostToDevice, theirs_), "CUDA failed");
  check(cudaStreamSynchronize(theirs_), "CUDA failed");
}

void NcclCommunicator::broadcast(MutableElements data, int root, std::string_view unit) {
  check_broadcast(root, size());
  compare(Header::broadcast(data, root, unit));
  begin();
  const uint64_t bytes = data.count * item_size(data.dtype);
  check(ncclBroadcast(data.data, data.data, bytes, ncclUint8, root, comm_, stream_), "NCCL failed");
  settle("NCCL failed");
  Operation(*this, fmt::format("broadcast in {}", unit), Scratch(0, stream_)).wait();
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> control, const NcclOptions& options) {
  return std::make_unique<NcclCommunicator>(std::move(control), options);
}

}  // namespace fsdpctl

extern "C" __attribute__((visibility("default"))) fsdpctl::Communicator* fsdpctl_make_nccl_communicator(
    std::unique_ptr<fsdpctl::Communicator>* control, const fsdpctl::NcclOptions* options) {
  return fsdpctl::make_nccl_communicator(std::move(*control), *options).release();
}
