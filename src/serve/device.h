/// serve/device.h — what programs run on: the workers of a CPU, or the SMs of a GPU. The engine and
/// the scheduler know slots; which of the two they are is behind this interface.
///
///   a slot     a worker, or an SM
///   a width    slots that a program is made for, or given
///   a lane     slots, with the memory of a run (Seat) and, on a GPU, a stream of its own
///
/// Lanes of a GPU share no slots by budget: the programs that run side by side are compiled for as
/// many SMs as they get, and together for no more than there are; the hardware places their CTAs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "network.h"
#include "serve/lanes.h"
#include "serve/policy.h"

namespace obelisk::serve {

/// Memory, and workers or a stream, of one run; reused by the next.
struct Seat {
  std::unique_ptr<runtime::Context> context;
  std::vector<std::byte*> inputs;   // where requests are put together: pinned, for a GPU
  std::vector<std::byte*> outputs;  // of a GPU, where answers are left: likewise
  std::vector<Tensor> memory;       // that `inputs` are in, where they are not the context's
};

/// Where the weights of a model's programs are. Threads: as of runtime::DeviceWeights.
class Weights {
 public:
  virtual ~Weights() = default;
  /// Programs that are loaded from here on have their weights here.
  virtual void use(runtime::LoadOptions& load) const = 0;
  /// Once for each program, before it runs: its weights belong here.
  virtual Status keep(const runtime::Executable& executable) = 0;
  virtual Status release() = 0;  // so that others have the memory
  virtual Status restore() = 0;
  virtual int64_t bytes() const = 0;  // that they take of the device's memory when they are there
};

class Device {
 public:
  virtual ~Device() = default;
  virtual int slots() const = 0;
  virtual std::string unit() const = 0;    // "workers", "SMs"
  virtual std::string name() const = 0;    // of the hardware: times are kept by it
  virtual std::string target() const = 0;  // what programs are compiled for: "cpu", "sm_90a"
  /// Widths that programs are made for, the one that serves first in front.
  virtual std::vector<int> widths() const = 0;
  /// Whether one program runs on any number of slots; else there is one for each width.
  virtual bool any_width() const = 0;
  /// Whether programs may run beside others that have all slots (Policy::overlap).
  virtual bool overlaps() const { return false; }
  /// Whether a run gives way to another between two of its parts (Policy::segments).
  virtual bool gives_way() const { return false; }
  /// Runs of one program of so many slots that may well be under way at once: their memory is there
  /// before the first request.
  virtual int seats(int /*width*/, const Policy& /*policy*/) const { return 1; }
  /// Threads that start runs and wait for them: runs that may be in flight.
  virtual int threads(const Policy& policy) const = 0;
  /// How long threads that have nothing to do poll for work before they sleep.
  virtual Lanes::Spin spin() const { return {}; }
  /// Work for it when it would be idle; null where that gains nothing.
  virtual Result<std::unique_ptr<runtime::GpuPulse>> pulse() const {
    return std::unique_ptr<runtime::GpuPulse>();
  }
  /// What it costs to hand a run to another thread: shorter ones are run by the thread that
  /// submits.
  virtual std::chrono::microseconds hand_over() const = 0;
  /// Tells the compiler what to compile for.
  virtual void aim(int width, compiler::Options& options) const = 0;
  virtual Result<machine::Machine> machine(int width) const = 0;
  virtual Result<std::shared_ptr<Weights>> weights() const = 0;
  /// Memory for a run on so many slots. Errors: kMemory, kDevice.
  virtual Result<std::unique_ptr<Seat>> seat(const runtime::Executable& executable,
                                             int width) const = 0;
  /// Bytes for weights and workspaces, where nobody has set a limit; 0: no limit.
  virtual int64_t memory() const = 0;
  /// Whether after this error of a run nothing runs there any more in this process.
  virtual bool ends_with(const Error& error) const = 0;
  /// Whether it still answers: such an error may also come before anything ran.
  virtual bool works() const = 0;
};

/// Groups of threads. `workers` 0: one a core. `folder`: for weights that are released; empty: the
/// system's for temporary files.
/// `instances`: runs of models of the same code share launches; they run one after the other then,
/// which gains nothing: for tests.
std::shared_ptr<const Device> cpu_device(int workers, std::string folder = "",
                                         bool instances = false);

struct GpuOptions {
  int index = 0;
  /// Whether programs for a half of the SMs or fewer share launches with others of the same code.
  bool instances = false;
  /// SMs that programs are compiled for; empty: all, a half, a quarter and an eighth.
  std::vector<int> widths;
  /// Whether threads that wait spin for a moment; nothing: where each lane has two cores.
  std::optional<bool> spin;
  /// Whether runs take streams of a pool, in place of one each context (LoadOptions).
  bool pooled_streams = true;
  /// Whether kernels of runs with less slack go first where several want the same SMs: of `vliw`.
  bool priorities = true;
  int64_t keep_warm_bytes = 4 << 20;  // that a beat sets (EngineOptions::keep_warm): some
                                      // microseconds on all SMs. Chosen, not measured
};
/// Errors: kDevice without a GPU, kUsage for a width that it does not have.
Result<std::shared_ptr<const Device>> gpu_device(const GpuOptions& options);

}  // namespace obelisk::serve
