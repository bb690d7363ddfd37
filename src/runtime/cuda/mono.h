/// runtime/cuda/mono.h — a program as one kernel on a GPU: its bodies compiled together, its tables
/// in device memory, one cooperative launch a run.
///
///   Program ── mono_source ──▶ text ── compile_cubin ──▶ Cubin ── MonoKernel::load ──▶ run(inputs,
///   outputs)
///
/// A program with an op that has no body, or a body that calls the CPU's tiles, is refused by name.
#pragma once

#include <memory>
#include <span>

#include "runtime/cuda/driver.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/program.h"

namespace obelisk::runtime::cuda {

/// One translation unit: the device headers, every distinct body, and the choice between them.
Result<std::string> mono_source(const Program& program);

/// One instance: machine code, tables, weights, arena, staging for inputs and outputs, a barrier's
/// counter. One thread at a time.
class MonoKernel {
 public:
  virtual ~MonoKernel() = default;
  /// Copies in, one launch, copies out. Errors: kDevice with what the driver says.
  virtual Status run(std::span<const void* const> inputs, std::span<void* const> outputs) = 0;
  /// Device microseconds of one run, the median of `repeats` runs timed back to back, without the
  /// copies.
  virtual Result<double> time(int repeats) = 0;

  static Result<std::unique_ptr<MonoKernel>> load(std::shared_ptr<const Program> program,
                                                  const Cubin& cubin);
};

/// The architecture of the first GPU, "sm_90a", and its name.
struct Gpu {
  std::string name, architecture;
  int sms = 0, shared_bytes = 0, driver_version = 0;
};
Result<Gpu> first_gpu();

}  // namespace obelisk::runtime::cuda
