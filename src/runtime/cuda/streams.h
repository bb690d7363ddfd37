/// runtime/cuda/streams.h — streams that runs of all contexts of a GPU share, one at a time each.
///
/// The driver maps streams to a few hardware queues, and what is in one queue runs in order. A
/// stream for each context would be hundreds, of which two that are busy may well share a queue.
/// Streams of a pool are as many as runs are under way at once, and stay for the next ones.
#pragma once

#include "runtime/cuda/gpu.h"

namespace obelisk::runtime::cuda {

class PooledStream {
 public:
  /// Inside the GPU's context. `urgency`: 0 to kMostUrgent, a stream's priority. Errors: kDevice,
  /// kMemory.
  static Result<PooledStream> take(const Gpu& gpu, int urgency);
  PooledStream(PooledStream&& other) noexcept
      : pool_(other.pool_), urgency_(other.urgency_), stream_(other.stream_) {
    other.stream_ = nullptr;
  }
  PooledStream& operator=(PooledStream&&) = delete;
  ~PooledStream();
  Handle handle() const { return stream_; }

 private:
  struct Pool;
  static Pool& pool_of(int gpu);
  PooledStream(Pool& pool, int urgency, Handle stream)
      : pool_(&pool), urgency_(urgency), stream_(stream) {}
  Pool* pool_;
  int urgency_;
  Handle stream_;
};

}  // namespace obelisk::runtime::cuda
