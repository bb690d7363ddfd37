#include "runtime/cuda/streams.h"

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>

#include "runtime/runtime.h"

namespace obelisk::runtime::cuda {
namespace {

/// The GPU's priority for an urgency: smaller is more urgent, 0 the least.
Result<int> priority_of(const Driver& driver, int urgency) {
  int least = 0, greatest = 0;
  if (!driver.StreamPriorities || !driver.StreamCreateWithPriority) return 0;
  TRY_STATUS(check(driver.StreamPriorities(&least, &greatest), "ask for priorities of streams"));
  return least + (greatest - least) * urgency / kMostUrgent;
}

Result<Handle> make_stream(const Driver& driver, int priority) {
  Handle made = nullptr;
  TRY_STATUS(check(priority == 0
                       ? driver.StreamCreate(&made, kStreamNonBlocking)
                       : driver.StreamCreateWithPriority(&made, kStreamNonBlocking, priority),
                   "make a stream"));
  return made;
}

}  // namespace

/// Lives as long as the process, as the GPU's context does.
struct PooledStream::Pool {
  std::mutex mutex;
  std::array<std::vector<Handle>, kMostUrgent + 1> free;  // by urgency
};

PooledStream::Pool& PooledStream::pool_of(int gpu) {
  static std::mutex mutex;
  static auto& pools = *new std::map<int, Pool>;
  const std::lock_guard lock(mutex);
  return pools[gpu];
}

Result<PooledStream> PooledStream::take(const Gpu& gpu, int urgency) {
  // Streams that are made one after the other get different queues; chosen: all urgencies together
  // have fewer than the 32 queues that there are at most.
  constexpr int kAtOnce = 8;
  Pool& pool = pool_of(gpu.index);
  auto& free = pool.free[static_cast<size_t>(urgency)];
  const std::lock_guard lock(pool.mutex);
  if (free.empty()) {
    TRY(const Driver* driver, load_driver());
    TRY(const int priority, priority_of(*driver, urgency));
    std::vector<Handle> made;
    while (made.size() < kAtOnce) {
      TRY(const Handle stream, make_stream(*driver, priority));
      made.push_back(stream);
    }
    free.assign(made.rbegin(), made.rend());
  }
  const Handle stream = free.back();
  free.pop_back();
  return PooledStream(pool, urgency, stream);
}

PooledStream::~PooledStream() {
  if (!stream_) return;
  const std::lock_guard lock(pool_->mutex);
  pool_->free[static_cast<size_t>(urgency_)].push_back(stream_);
}

namespace {

class Pulse : public GpuPulse {
 public:
  Pulse(const Driver& driver, Gpu gpu) : driver_(driver), gpu_(std::move(gpu)) {}
  ~Pulse() override {
    const InContext here(gpu_);
    if (stream_) driver_.StreamSynchronize(stream_), driver_.StreamDestroy(stream_);
    memory_.release();
  }
  Status init(int64_t bytes) {
    const InContext here(gpu_);
    TRY(stream_, make_stream(driver_, 0));
    return memory_.reserve(bytes, "memory that keeps the GPU from idling");
  }
  Status beat() override {
    const InContext here(gpu_);
    return check(
        driver_.MemsetAsync(memory_.at(), 0, static_cast<size_t>(memory_.bytes()), stream_),
        "keep the GPU from idling");
  }

 private:
  const Driver& driver_;
  const Gpu gpu_;
  Memory memory_;
  Handle stream_ = nullptr;
};

}  // namespace
}  // namespace obelisk::runtime::cuda

namespace obelisk::runtime {

Result<std::unique_ptr<GpuPulse>> gpu_pulse(int index, int64_t bytes) {
  TRY(const cuda::Gpu gpu, cuda::open_gpu(index));
  TRY(const cuda::Driver* driver, cuda::load_driver());
  auto made = std::make_unique<cuda::Pulse>(*driver, gpu);
  TRY_STATUS(made->init(std::max<int64_t>(bytes, 16)));
  return std::unique_ptr<GpuPulse>(std::move(made));
}

void want_hardware_queues() {
  constexpr int kKeep = 0;  // what the user has said
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeep);
}

}  // namespace obelisk::runtime
