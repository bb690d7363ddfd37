// tests/gpu/weight_stream.h — what a stress has beside the words that it checks: weights that
// stream through every SM meanwhile, the time of a run, and what a watchdog reported.
#pragma once

#include <optional>

#include "device.h"
#include "kernels/kernels.h"

namespace obelisk::runtime::cuda {

/// Word k of the weights is k * 747796405, which the stress's kernels check as well.
struct WeightStream {
  static constexpr int kShared = 36864;  // bytes of shared memory that a CTA loads them to
  static constexpr int64_t kWords = int64_t{64} << 20;
  Device& g;
  DevicePointer weights = 0;
  Handle begin = nullptr, end = nullptr;

  explicit WeightStream(Device& device) : g(device) {
    std::vector<uint32_t> host(static_cast<size_t>(kWords));
    for (size_t k = 0; k < host.size(); ++k) host[k] = static_cast<uint32_t>(k) * 747796405u;
    weights = g.make(host.size() * 4, 0);
    EXPECT_EQ(g.d->CopyToDevice(weights, host.data(), host.size() * 4), 0);
    g.d->EventCreate(&begin, 0), g.d->EventCreate(&end, 0);
  }
  WeightStream(const WeightStream&) = delete;
  ~WeightStream() { g.d->EventDestroy(begin), g.d->EventDestroy(end); }

  void starts(Handle stream = nullptr) const { g.d->EventRecord(begin, stream); }
  void ends(Handle stream = nullptr) const { g.d->EventRecord(end, stream); }
  /// Microseconds between the two, when all has ended; nothing where the device failed.
  std::optional<double> finished(const char* what) const {
    const Status done = check(g.d->CtxSynchronize(), what);
    EXPECT_TRUE(done.ok()) << done.error().text();
    if (!done.ok()) return std::nullopt;
    float millis = 0;
    g.d->EventElapsed(&millis, begin, end);
    return millis * 1e3;
  }
};

/// Runs a kernel (of a pointer and the watchdog's report) that waits for what never comes. What the
/// watchdog said.
inline ObkWatch watched(Device& g, const char* kernel, int ctas, DevicePointer counter) {
  static_assert(sizeof(ObkWatch) <= 64);
  ObkWatch seen = {};
  void* memory = nullptr;
  EXPECT_EQ(g.d->MemHostAlloc(&memory, 64, kHostMapped), 0);
  if (!memory) return seen;
  memset(memory, 0, 64);
  EXPECT_EQ(g.launch(g.function(kernel, 0), ctas, 0, nullptr, counter, memory), 0);
  EXPECT_NE(g.d->CtxSynchronize(), 0);
  memcpy(&seen, memory, sizeof seen);
  EXPECT_EQ(seen.hit, 1u);
  EXPECT_EQ(seen.task, 42u);
  EXPECT_EQ(seen.counter, counter);
  return seen;
}

}  // namespace obelisk::runtime::cuda
