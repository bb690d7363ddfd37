#include <algorithm>
#include <atomic>
#include <cmath>

#include "runtime/cuda/context.h"

namespace obelisk::runtime::cuda {
namespace {

/// Between hold() and release() a stream begins nothing that it is given. Holds nothing where the
/// driver cannot.
class Gate {
 public:
  explicit Gate(const Driver& driver) : driver_(driver) {}
  ~Gate() {
    release();
    if (word_) driver_.MemFreeHost(word_);
  }
  Gate(const Gate&) = delete;

  Status hold(Handle stream) {
    if (!driver_.StreamWaitValue) return ok_status();
    if (!word_) {
      void* host = nullptr;
      TRY_STATUS(check(driver_.MemHostAlloc(&host, sizeof(uint32_t), kHostMapped),
                       "memory to hold a stream"));
      word_ = new (host) std::atomic<uint32_t>(0);
    }
    const auto at = reinterpret_cast<DevicePointer>(word_);
    const int code = driver_.StreamWaitValue(stream, at, ++wanted_, 0);  // or more
    return code == kNotSupported ? ok_status() : check(code, "hold a stream");
  }
  void release() {
    if (word_) word_->store(wanted_, std::memory_order_release);
  }

 private:
  const Driver& driver_;
  std::atomic<uint32_t>* word_ = nullptr;
  uint32_t wanted_ = 0;
};

}  // namespace

Status CudaContext::leave_host_memory() {
  const Program& p = program();
  for (size_t k = 0; k < ports_.size(); ++k) {
    if (!staged_in_ || !zero_copy(k) || ports_[k] != staged_[k]) continue;
    ports_[k] = staged_on_gpu(k);
    const auto bytes = static_cast<size_t>(k < p.inputs.size() ? p.inputs[k].type.bytes() : 0);
    if (bytes > 0)
      TRY_STATUS(check(driver_.CopyToDevice(ports_[k], pinned(k), bytes), "copy inputs"));
  }
  return ok_status();
}

Result<std::vector<double>> CudaContext::device_us(int count, Launches launches) {
  if (broken_) return *broken_;
  if (!has_run_)
    return Error{Code::kUsage, "runtime", "nothing has run yet", "", "run once before timing"};
  InContext here(gpu_);
  // Runs in a row hide the host's latency, which is a few microseconds; what takes kLong has no
  // need of it.
  constexpr int kMostInARow = 10;
  constexpr double kLong = 5000;  // us
  std::vector<double> us;
  Gate gate(driver_);
  const auto time_row = [&](int runs) -> Result<double> {
    if (launches == Launches::kQueued) TRY_STATUS(gate.hold(stream_));
    TRY_STATUS(check(driver_.EventRecord(from_, stream_), "record an event"));
    for (int run = 0; run < runs; ++run) {
      TRY_STATUS(launch(stream_, graph_, 0));
      TRY_STATUS(copies(stream_));
    }
    TRY_STATUS(check(driver_.EventRecord(to_, stream_), "record an event"));
    gate.release();
    TRY_STATUS(check(driver_.EventSynchronize(to_), "run the program"));
    float millis = 0;
    TRY_STATUS(check(driver_.EventElapsed(&millis, from_, to_), "read an event"));
    return millis * 1000.0 / runs;
  };
  const std::vector<DevicePointer> ports = ports_;
  const auto measure = [&]() -> Status {
    TRY_STATUS(leave_host_memory());
    TRY_STATUS(bind(stream_));
    TRY(const double first, time_row(1));
    const int runs = first * kMostInARow <= kLong
                         ? kMostInARow
                         : std::max(1, static_cast<int>(std::ceil(kLong / first)));
    if (runs > 1) TRY_STATUS(time_row(runs));  // warms up
    if (runs == 1 && count > 0) us.push_back(first);
    while (us.size() < static_cast<size_t>(count)) {
      TRY(const double each, time_row(runs));
      us.push_back(each);
    }
    return ok_status();
  };
  const Status status = failed(measure());
  ports_ = ports;
  if (!status.ok()) return status.error();
  return us;
}

Result<std::vector<TaskTime>> CudaContext::task_times() {
  if (broken_) return *broken_;
  if (!has_run_)
    return Error{Code::kUsage, "runtime", "nothing has run yet", "", "run once before profiling"};
  InContext here(gpu_);
  const std::vector<ObkTask>& tasks = executable_->cut_.tasks;
  Memory stamps;
  std::vector<ObkStamp> got(tasks.size());
  Handle graph = nullptr;
  const auto measure = [&]() -> Status {
    TRY_STATUS(stamps.fill(got, "the stamps"));
    if (!mono()) {
      TRY(graph, make_graph(stamps.at()));
    }
    TRY_STATUS(bind(stream_));
    if (of_instances()) TRY_STATUS(write_records(stream_, stamps.at()));
    for (int run = 0; run < 4; ++run)
      TRY_STATUS(launch(stream_, graph, stamps.at()));  // the last one counts, warm
    TRY_STATUS(check(driver_.StreamSynchronize(stream_), "run the program"));
    return check(driver_.CopyToHost(got.data(), stamps.at(), got.size() * sizeof(ObkStamp)),
                 "read the stamps");
  };
  Status status = failed(measure());
  record_.stamps = 0;
  bound_.assign(bound_.size(), 1);  // the next run writes records without stamps
  if (graph) driver_.GraphExecDestroy(graph);
  if (!status.ok()) return status.error();
  uint64_t start = UINT64_MAX;
  for (const ObkStamp& stamp : got) start = std::min(start, stamp.start);
  std::vector<TaskTime> times;
  for (size_t k = 0; k < got.size(); ++k)
    times.push_back({.work = static_cast<int>(tasks[k].work),
                     .wave = static_cast<int>(tasks[k].wave),
                     .sm = static_cast<int>(got[k].sm),
                     .start_us = static_cast<double>(got[k].start - start) / 1e3,
                     .end_us = static_cast<double>(got[k].end - start) / 1e3});
  return times;
}

}  // namespace obelisk::runtime::cuda
