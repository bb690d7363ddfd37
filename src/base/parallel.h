/// base/parallel.h — a few large, independent jobs, or the parts of a long range, on all cores.
///
///   for_each_on_all_cores(tensors.size(), [&](size_t k) { hashes[k] = hash_bytes(...); });
///   for_each_part_on_all_cores(count, [&](int64_t begin, int64_t end) { convert(begin, end); });
///
/// Jobs are taken one by one; the caller works too. When one throws no more are begun, and the
/// caller gets the first exception once all that run have ended. Threads live for the call: for
/// jobs of a millisecond and more.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace obelisk {

/// Between two looks at a word that another thread, or a device, is about to write.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

/// Cores that the system lets this process run on.
int cores_we_may_use();

template <typename Job>
void for_each_on_all_cores(size_t count, const Job& job) {
  std::atomic<size_t> next{0};  // a ticket, which publishes nothing: relaxed
  std::mutex lock;
  std::exception_ptr thrown;
  const auto work = [&] {
    try {
      for (size_t k; (k = next.fetch_add(1, std::memory_order_relaxed)) < count;) job(k);
    } catch (...) {
      const std::scoped_lock held(lock);
      if (!thrown) thrown = std::current_exception();
      next.store(count, std::memory_order_relaxed);
    }
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (size_t k = 1; k < std::min(cores, count); ++k) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (thrown) std::rethrow_exception(thrown);
}

/// Parts of about a million elements.
template <typename Part>
void for_each_part_on_all_cores(int64_t count, const Part& part) {
  constexpr int64_t kPart = 1 << 20;
  for_each_on_all_cores(static_cast<size_t>((count + kPart - 1) / kPart), [&](size_t k) {
    const auto begin = static_cast<int64_t>(k) * kPart;
    part(begin, std::min(count, begin + kPart));
  });
}

}  // namespace obelisk
