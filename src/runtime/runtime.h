/// runtime/runtime.h — the door of `runtime`: build bodies, load programs, run them.
///
///   Program (data) ── load ──▶ Executable (machine code, immutable, shared by threads) ── context
///   ──▶ Context (one thread's memory)
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/private_folder.h"
#include "runtime/obk.h"
#include "runtime/program.h"
#include "runtime/weight_pool.h"

namespace obelisk::runtime {

class BodyLibrary;
class DeviceWeights;

struct LoadOptions {
  std::string compiler;   // the host compiler's path; empty: $OBELISK_CXX, $CXX, then g++, clang++,
                          // c++ on the PATH, then the Python environment's ziglang
  std::string cache_dir;  // empty: $OBELISK_CACHE, $XDG_CACHE_HOME/obelisk, ~/.cache/obelisk;
                          // "off": no cache
  int jobs = 0;           // compilers at once; 0: one a core. 1: a GPU's kernels are one text for
                          // its compiler, too, which reads the headers once
  int gpu = 0;            // which one
  Bytes memory_limit{0};  // of a GPU's memory, for weights and all contexts; 0: what there is
  std::shared_ptr<DeviceWeights>
      device_weights;  // of a GPU: programs share what they have in common there
  std::optional<std::chrono::microseconds>
      spin;  // of a GPU: how long a thread that waits for a run polls memory before it sleeps until
             // the run ends; nothing: the driver's way, which spins
  bool instances =
      false;  // runs of programs of the same code, each with its own weights, may share a launch
              // (run_together). On a GPU a kernel's parameters are read from memory then: machine
              // code that a program brings along is not used, unless there is no device compiler,
              // and then it shares no launch. On a CPU they run one after the other
  bool pooled_streams = false;  // of a GPU: run() takes a stream that no other run has, of a pool
                                // of the process. Each has a hardware queue of its own as far as
                                // there are; contexts with streams of their own would share some,
                                // and runs that share one wait for each other
  bool by_urgency = false;      // with pooled_streams: a run's kernels have the priority that
                            // Context::set_urgency says; those of branches of one graph are equal
  bool watchdog = false;  // spins on a GPU end after two seconds and say what they waited for
  bool every_thread =
      false;  // contexts use all threads asked for, also where fewer are predicted to be faster
  const BodyLibrary* library =
      nullptr;  // bodies that it holds are not compiled; it outlives what is loaded
  std::function<void(int done, int total)> progress;
  std::function<bool()>
      interrupted;  // asked while bodies are compiled; true ends with kInterrupted
  double compiler_seconds =
      0;  // that the host compiler may take for a body; 0: $OBELISK_COMPILER_SECONDS, 600
};

/// What loading did.
struct LoadReport {
  int compiled = 0, cached = 0;
  double seconds = 0;
  std::string compiler;
  int carried = 0;  // bodies whose machine code the program brought along
  std::string
      not_carried;  // why that machine code was not used; empty when it was, or when there was none
};

/// A function of device code as the assembler reports it. Registers and shared memory are a
/// kernel's: of functions that are called it says none.
struct KernelReport {
  std::string name;
  int registers = 0;
  int64_t spill_bytes = 0, smem_bytes = 0;  // static and dynamic shared memory
  int launches = 0;  // of one run; 0: kernels call it, or its body has no tasks
};

/// What a GPU's program consists of.
struct DeviceReport {
  std::string gpu, architecture;  // gpu: its name, empty where none is
  int driver_version = 0;         // 13000: it offers CUDA 13.0
  machine::Granularity granularity = machine::Granularity::kThreads;
  bool overlaps = false;  // a kernel of the graph begins before the one before it ends
                          // (programmatic dependent launch)
  int launches = 0, phases = 0, barriers = 0;  // of one run
  int64_t cubin_bytes = 0;
  int64_t bytes_streamed = 0;         // weights, inputs and outputs of one run
  double roof_bytes_per_us = 0;       // what the memory gives at most
  std::vector<KernelReport> kernels;  // and the functions that they call
  std::vector<std::string> warnings;  // registers that generated bodies spill to local memory
};

/// A kernel that a run of a graph launches.
struct LaunchReport {
  int work = 0, ctas = 0, threads = 0,
      registers = 0;         // threads of a CTA, registers of a thread; 0: not known
  int64_t shared_bytes = 0;  // of a CTA
};

/// When a task ran, in microseconds since the first began.
struct TaskTime {
  int work = 0, wave = 0, sm = 0;
  double start_us = 0, end_us = 0;
};

/// Work for a GPU that would be idle: it lowers its clocks and its power then, and the next run
/// takes longer. One thread at a time.
class GpuPulse {
 public:
  virtual ~GpuPulse() = default;
  /// Sets memory, on a stream of the least priority; returns before that is done.
  virtual Status beat() = 0;
};
/// `bytes`: of the memory that a beat sets. Errors: kDevice without a GPU, kMemory.
Result<std::unique_ptr<GpuPulse>> gpu_pulse(int index, int64_t bytes);

/// Tells the driver to give streams as many hardware queues as it can (32 in place of 8), unless
/// $CUDA_DEVICE_MAX_CONNECTIONS says how many. Before the first use of a GPU in this process; later
/// it does nothing.
void want_hardware_queues();

class Context;

/// A program with its machine code. Immutable: any number of contexts may run it at once.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual const Program& program() const = 0;
  virtual const LoadReport& report() const = 0;
  /// Of a program for a GPU; null otherwise.
  virtual const DeviceReport* device() const { return nullptr; }
  /// Kernels of a GPU's program, in the order of works' waves; none of a CPU's.
  virtual std::vector<LaunchReport> launches() const { return {}; }
  /// Of a program whose runs may share a launch with those of others (LoadOptions::instances): what
  /// programs of the same code have in common. Empty: of none.
  virtual std::string code() const { return ""; }
  /// The machine code by body (of a GPU: one for all), for a file.
  virtual std::vector<std::string> objects() const = 0;
  /// `threads`: of the CPU, the most workers that run the virtual SMs' lists; 0: as many as there
  /// are SMs, at most one a core. A program so small that handing it over costs more than it saves
  /// gets fewer (LoadOptions::every_thread).
  virtual Result<std::unique_ptr<Context>> context(int threads = 0) const = 0;
};

/// What a run of a CPU's program lets in between two of its tasks (Context::give_way). It changes
/// nothing of the run but its time.
struct GiveWay {
  /// Workers that what waits takes, 0: nothing waits. Written by any thread (release), read by the
  /// run's (acquire). Of more than one, all of the context's workers stand still meanwhile; of one,
  /// the others go on with what can be done without it.
  std::atomic<int> wanted{0};
  /// Called by the thread that called run(), before each task while something is wanted, and while
  /// it waits for other workers, for as long as it does not sleep. It must not throw, nor use the
  /// context.
  std::function<void()> work;
};

/// How runs that are timed follow each other: each as soon as the host has launched it; or all of a
/// row are launched before the GPU begins, as behind other work.
enum class Launches { kInARow, kQueued };

/// Of Context::set_urgency().
inline constexpr int kMostUrgent = 2;

/// One of the runs that share a launch: arguments as of Context::run().
struct SharedRun {
  Context* context = nullptr;
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
};

/// Memory and workers of one user. One thread at a time; after the first run nothing is allocated.
class Context {
 public:
  virtual ~Context() = default;
  /// Pointers to dense row-major bytes, in the order of the program's ports; they must hold the
  /// ports' types. For a GPU's program each may be the host's or the device's; the device's are
  /// used in place, and inputs in pinned memory of the host are copied to the device from where
  /// they lie. Returns when the outputs are there.
  /// An output and the input whose memory it takes (Port::in_place_of) may have one address; no
  /// others may overlap. After a run that failed such memory holds neither the old nor the new
  /// value.
  virtual Status run(std::span<const void* const> inputs, std::span<void* const> outputs) = 0;
  /// The same for this context and others in one launch, the first of `runs` being this one's; all
  /// of executables of one code(), and each context once. Returns when the outputs of all are
  /// there. After an error none of them counts. The GPU has room for all of them at once: SMs that
  /// a program of one kernel is made for, times the runs. Errors: as of run(); kUsage where the
  /// codes differ or there is no such room.
  virtual Status run_together(std::span<const SharedRun> runs);
  /// The same as run() on the caller's stream (a CUstream), device pointers only; returns before
  /// the work is done. Runs of one context follow each other whatever streams they are given.
  /// On a stream that is being captured it becomes a part of the caller's graph, with memory of its
  /// own, which the executable keeps: that is to live as long as the graph. Errors: kUsage for a
  /// host pointer, kUnsupported where there are no streams.
  virtual Status run_on(std::span<const void* const> inputs, std::span<void* const> outputs,
                        void* stream);
  /// The runs of run_together() as of run_on(): device pointers only, and back before the work is
  /// done; wait() of any of their contexts waits for it. Errors: of both; kUsage on a stream that
  /// is being captured.
  virtual Status run_together_on(std::span<const SharedRun> runs, void* stream);
  /// How urgent the runs from here on are, from 0 to kMostUrgent: where they want the same
  /// processors, blocks of more urgent ones go first (LoadOptions::by_urgency).
  virtual void set_urgency(int /*level*/) {}
  /// Where the runs from here on may be interrupted; null: nowhere. What is given outlives them.
  /// Whether the context can do so: a GPU's cannot.
  virtual bool give_way(GiveWay* /*way*/) { return false; }
  /// Until all runs are done. Errors: kDevice, of one that failed after run_on() had returned.
  virtual Status wait();
  /// Of a GPU's program: pinned memory of the context's own for an input, from which run() copies
  /// without a copy on the host first. Null of a CPU's, which reads inputs where they lie.
  virtual Result<std::byte*> input_memory(size_t input);
  /// The same for an output, which run() leaves there: valid until the next run.
  virtual Result<std::byte*> output_memory(size_t output);
  /// Device microseconds of a run with the last run's pointers, `count` of them, each the mean of
  /// up to ten in a row, so that the host's latency is hidden: of fewer where these take 5 ms.
  /// kQueued on a driver that cannot hold a stream is kInARow.
  virtual Result<std::vector<double>> device_us(int count, Launches launches = Launches::kInARow);
  /// Whether memory is a GPU's, of the GPU that this context runs on. Errors: kDevice.
  virtual Result<bool> on_device(const void* pointer) const;
  /// When each task of one run ran.
  virtual Result<std::vector<TaskTime>> task_times();
};

/// Compiles what the cache does not hold and loads it. Errors: kBuild with the compiler's first
/// lines; kUsage when no compiler is found (hint: what to install, or to run the reference with
/// --target reference).
Result<std::shared_ptr<const Executable>> load_cpu(std::shared_ptr<const Program> program,
                                                   const LoadOptions& options = {});

/// The same for a GPU. Without a driver the device code is still built for the program's
/// architecture; then context() gives the error. Errors: kBuild; kUnsupported, naming the node that
/// has no device code; kMemory, when weights do not fit the limit.
Result<std::shared_ptr<const Executable>> load_cuda(std::shared_ptr<const Program> program,
                                                    const LoadOptions& options = {});

/// Bodies of very many programs for the CPU, a shared object for each call of add(): where a
/// compiler is started for each body, that is most of its time. Not in the cache: the machine code
/// depends on what else is in the batch's text.
class BodyLibrary {
 public:
  virtual ~BodyLibrary() = default;
  /// Compiles those that it does not hold yet as one text. Errors: kBuild with the compiler's first
  /// lines; kUsage without a compiler.
  virtual Status add(std::span<const codegen::BodyText* const> bodies) = 0;
  /// Null: it is not here.
  virtual ObkBody find(const Hash& hash) const = 0;
  virtual size_t count() const = 0;
  /// `flags`: more for the compiler, after its own: "-O1" compiles sooner.
  static std::unique_ptr<BodyLibrary> create(std::vector<std::string> flags = {},
                                             std::string compiler = "");
};

/// Weights on a GPU, kept once however many programs use them (LoadOptions::device_weights): those
/// of one network for several batches and numbers of SMs.
///
/// A tensor is known by where its bytes lie on the host, so the programs share a WeightPool as
/// well; what they pack differently is there in each form. While no program runs, the weights can
/// be moved to pinned memory of the host and back: their addresses on the GPU stay the same, so
/// that programs, graphs and maps need not be made again.
/// Threads: any; release() and restore() only while nobody runs a program that uses them.
class DeviceWeights {
 public:
  virtual ~DeviceWeights() = default;
  /// Of the GPU of this number. Errors: kDevice.
  static Result<std::shared_ptr<DeviceWeights>> create(int gpu);
  /// Where each of these is; those that are not here yet are copied. Empty ones have no address.
  virtual Result<std::vector<uint64_t>> place(std::span<const Tensor> weights) = 0;
  /// Moves them to the host. Errors: kUnsupported where the driver cannot map memory; kMemory
  /// without pinned memory for them; then they are where they were.
  virtual Status release() = 0;
  /// Loads them again. Errors: kMemory; then they are on the host still, and it can be tried again.
  virtual Status restore() = 0;
  virtual int64_t device_bytes() const = 0;  // that they take on the GPU now
  virtual int64_t host_bytes() const = 0;    // and of pinned memory
};

/// By the program's target.
Result<std::shared_ptr<const Executable>> load(std::shared_ptr<const Program> program,
                                               const LoadOptions& options = {});

/// A GPU of this machine. Errors: kDevice, saying what is missing.
struct GpuDescription {
  std::string name, architecture;
  int sms = 0, driver_version = 0;
  int64_t free_bytes = 0, total_bytes = 0;
};
Result<GpuDescription> describe_gpu(int index);
/// The device compiler that load_cuda would use, or the error with the command that mends it.
Result<std::string> find_device_compiler();

/// A program's device code as people read it: "cuda" (source) or "ptx"; "cubin": machine code for a
/// disassembler.
Result<std::string> device_text(const Program& program, const std::string& kind,
                                const LoadOptions& options = {});

/// The instruction sets of this CPU that matter to machine code, as Program::objects_need names
/// them.
std::string cpu_features();

/// The host compiler that load would use, or the error that it would give.
Result<std::string> find_compiler(const std::string& wanted = "");
/// The program and what it is always told first: "zig" is "zig c++ ...".
std::vector<std::string> compiler_words(const std::string& compiler);
/// The folder of the object cache that load would use; empty when off.
std::string cache_folder(const std::string& wanted = "");
/// The same, opened; null when it is off, or, with a warning, where it is not the user's own.
std::shared_ptr<const PrivateFolder> open_cache(const std::string& wanted = "");

}  // namespace obelisk::runtime
