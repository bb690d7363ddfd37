/// runtime/cuda/context.h — one user's memory on the GPU and the runs in it.
///
///   context.cpp   memory, binding of ports, runs, errors
///   graph.cpp     the graph of a program whose granularity is a kernel a work
///   capture.cpp   a run as a part of a graph that the caller captures
///   instances.cpp runs of several contexts in one launch
///   timing.cpp    times of whole runs and of tasks
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>

#include "runtime/cuda/executable.h"
#include "runtime/cuda/staging.h"

namespace obelisk::runtime::cuda {

/// One user's memory on the GPU: arena, barrier, staging for the host's arrays, a graph of
/// launches.
class CudaContext : public Context {
 public:
  explicit CudaContext(std::shared_ptr<const CudaExecutable> executable)
      : executable_(std::move(executable)),
        gpu_(executable_->gpu_),
        driver_(*executable_->driver_),
        number_(++executable_->contexts_) {}
  ~CudaContext() override;
  int number() const { return number_; }  // of the executable's contexts, when it was made
  Status init();
  Status run(std::span<const void* const> inputs, std::span<void* const> outputs) override;
  Status run_together(std::span<const SharedRun> runs) override;
  Status run_on(std::span<const void* const> inputs, std::span<void* const> outputs,
                void* stream) override;
  Status run_together_on(std::span<const SharedRun> runs, void* stream) override;
  /// The run of these ports as a part of the graph that a stream captures, and the only one of this
  /// context, whose addresses the graph keeps.
  Status capture(std::vector<DevicePointer> ports, Handle stream);
  Status wait() override;
  void set_urgency(int level) override { urgency_ = std::clamp(level, 0, kMostUrgent); }
  Result<bool> on_device(const void* pointer) const override {
    InContext here(gpu_);
    return lies_on_device(pointer);
  }
  Result<std::byte*> input_memory(size_t input) override {
    InContext here(gpu_);
    TRY_STATUS(reserve_staging());
    return pinned(input);
  }
  Result<std::byte*> output_memory(size_t output) override {
    InContext here(gpu_);
    TRY_STATUS(reserve_staging());
    return pinned(program().inputs.size() + output);
  }
  Result<std::vector<double>> device_us(int count, Launches launches) override;
  Result<std::vector<TaskTime>> task_times() override;

 private:
  const Program& program() const { return *executable_->program_; }
  bool mono() const { return program().granularity == machine::Granularity::kMono; }
  /// By work of a graph: whether the kernels that follow may start when it begins. A CTA that has
  /// started and waits keeps room from kernels that run beside: those of other branches
  /// (Dispatched::early), or, of a program that shares the GPU, of other programs.
  std::vector<bool> early_works() const;
  static void place_shared(const Launch& launch, ObkProgram& record);
  bool of_instances() const { return executable_->options_.instances; }
  Result<Handle> make_graph(DevicePointer stamps, unsigned instances = 1);
  using GridNodes = std::vector<std::pair<Handle, size_t>>;  // nodes, and their launches
  Result<Handle> graph_of_kernels(DevicePointer stamps, unsigned instances, bool programmatic,
                                  GridNodes* of_ports);
  Result<std::vector<size_t>> dispatch_order() const;
  /// Whether a run on the stream becomes a part of a graph.
  Result<bool> is_captured(Handle stream) const;
  Status add_to_captured(Handle stream);
  Result<std::vector<std::byte>> record_of(const Launch& launch, DevicePointer stamps) const;
  Status write_records(Handle stream, DevicePointer stamps);
  ObkInstances instances_of(size_t launch, unsigned instances) const;
  Status name_instances(std::span<CudaContext* const> contexts, Handle stream);
  /// Whose runs these are, if they may share a launch: admitted, this context's first.
  Result<std::vector<CudaContext*>> together(std::span<const SharedRun> runs);
  /// One launch for all of them, whose ports are bound.
  Status launch_together(std::span<CudaContext* const> contexts, Handle stream);
  Status failed_together(std::span<CudaContext* const> contexts, const Status& status);
  ObkGrid grid(const Launch& launch, DevicePointer stamps) const;
  Result<ObkPipelinedGemm> pipelined_gemm(const Launch& launch, DevicePointer stamps) const;
  KernelNode node_of(size_t launch, void** parameters, unsigned instances = 1) const;
  Status reserve_staging();
  /// What kernels have in the host's memory (zero copy) moves to the GPU's for this run.
  Status leave_host_memory();
  /// Whether the context is usable and the pointers are as many and as aligned as the ports want.
  Status admit(std::span<const void* const> inputs, std::span<void* const> outputs);
  Status packs_fit(std::span<const void* const> inputs, std::span<void* const> outputs);
  bool names_moved_ports(const Launch& launch) const;
  Status bind(Handle stream);
  /// The parts of a run: where the ports are, and which inputs are copied to the GPU, or that all
  /// are there (name_ports); what goes before the launch; the launch; what goes behind it, and
  /// which outputs are copied to the host, or that the run is under way (end_on); and, when the
  /// stream's work has ended, those to the caller.
  Status take_inputs(std::span<const void* const> inputs, std::span<void* const> outputs,
                     std::vector<StagedCopy>& copies);
  Status name_ports(std::span<const void* const> inputs, std::span<void* const> outputs);
  Status begin(Handle stream);
  Status launch(Handle stream, Handle graph, DevicePointer stamps, unsigned instances = 1);
  Status end(Handle stream, std::vector<StagedCopy>& copies);
  Status end_on(Handle stream);
  void hand_out(std::span<void* const> outputs);
  Status copy_inputs(std::vector<StagedCopy>& copies, Handle stream) const;
  Status copy_outputs(std::vector<StagedCopy>& copies, Handle stream) const;
  Status copies(Handle stream);
  Status place_ports();
  struct Transfer {
    DevicePointer to = 0, from = 0;
    size_t bytes = 0;
  };
  Status transfer(std::vector<Transfer>& transfers, Handle stream);
  Status wait_for_stream(Handle stream);
  std::string late_tasks(uint64_t want) const;
  Status failed(Status status);
  /// kMemoryHost: pinned; kMemoryDevice; 0: memory that the driver does not know.
  Result<unsigned> memory_of(const void* pointer) const;
  Result<bool> lies_on_device(const void* pointer) const {
    TRY(const unsigned kind, memory_of(pointer));
    return kind == kMemoryDevice;
  }
  /// What one or more contexts do on a stream, and wait for: one of the pool, or this one's own.
  Status on_stream(const std::function<Status(Handle stream)>& work);
  /// By port, into the context's memory for the host's arrays.
  std::byte* pinned(size_t port) const {
    const size_t inputs = program().inputs.size();
    return (port < inputs ? staged_in_ : staged_out_).host() + offsets_[port];
  }
  /// As much of the GPU's.
  DevicePointer staged_on_gpu(size_t port) const {
    const size_t inputs = program().inputs.size();
    return (port < inputs ? staged_in_ : staged_out_).device() +
           static_cast<uint64_t>(offsets_[port]);
  }
  bool is_own(size_t port, const void* pointer) const {
    return staged_in_ && pointer == pinned(port);
  }

  /// Whether kernels reach the host's array itself.
  bool zero_copy(size_t port) const {
    return port < program().inputs.size() ? zero_copy_in_ : zero_copy_out_;
  }

  const std::shared_ptr<const CudaExecutable> executable_;
  const Gpu gpu_;
  const Driver& driver_;
  const int number_;
  Memory arena_, counter_, port_table_;
  Staging staged_in_, staged_out_;
  bool zero_copy_in_ = false, zero_copy_out_ = false;
  ObkWatch* watch_ = nullptr;
  std::atomic<uint32_t>* ended_ = nullptr;  // runs that have ended, written by the GPU
  Handle stream_ = nullptr, graph_ = nullptr, ran_ = nullptr, from_ = nullptr, to_ = nullptr;
  Handle last_stream_ = nullptr, sleep_ = nullptr;  // the event that a thread sleeps on
  Handle plain_ = nullptr;  // the graph that graph_ was made of, for the kernels below
  GridNodes grid_nodes_;    // of those that name ports
  // Of a program of instances: the records of its launches, behind the table of ports; where each
  // lies; where the records of those are that the kernels run, first this one's alone.
  Memory records_, table_;
  std::vector<uint64_t> record_at_;
  std::vector<DevicePointer> named_;
  std::map<unsigned, Handle> graphs_;  // by instances, from 2 on
  int urgency_ = 0;
  const std::vector<bool> early_ = early_works();
  bool has_run_ = false;
  bool under_way_ = false;  // behind ran_: a run that returned before its end
  std::vector<StagedCopy> copies_;
  ObkProgram record_ = {};
  std::vector<DevicePointer> ports_, bound_;  // of this run; what the GPU's table holds
  std::vector<DevicePointer> staged_;         // by port: what kernels have of the host's arrays
  std::vector<Transfer> before_, behind_;     // of outputs in place of inputs, this run
  Memory aside_;                              // for outputs that go there behind a run
  std::vector<int64_t> offsets_;              // by port, into staged_in_ or staged_out_
  std::optional<Error>
      broken_;  // what a run ended with; the GPU's context does not recover from it
};

}  // namespace obelisk::runtime::cuda
