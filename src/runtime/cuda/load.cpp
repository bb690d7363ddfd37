#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>

#include "machine/machine.h"
#include "runtime/cuda/source.h"
#include "runtime/cuda/tables.h"

namespace obelisk::runtime {
namespace {

using namespace cuda;

/// Shared memory that kernels take for themselves beside the tables' (program.cuh), and a reserve
/// of the driver's.
constexpr int64_t kOwnShared = 2048;

int64_t bytes_of(const std::vector<Port>& ports) {
  int64_t total = 0;
  for (const Port& port : ports) total += (port.type.bytes() + 255) / 256 * 256;
  return total;
}

void place_shared(const Launch& launch, ObkProgram& record) {
  record.ring_pages = launch.ring_pages;
  record.scratch_at = launch.scratch_at, record.block_at = launch.block_at;
  record.block_bytes = launch.block_bytes, record.block = launch.block;
  record.near_at = launch.near_at, record.soon_at = launch.soon_at,
  record.soon_bytes = launch.soon_bytes;
}

class CudaExecutable : public Executable, public std::enable_shared_from_this<CudaExecutable> {
 public:
  CudaExecutable(std::shared_ptr<const Program> program, std::vector<Image> images,
                 const LoadOptions& options)
      : program_(std::move(program)), images_(std::move(images)), options_(options) {}
  ~CudaExecutable() override {
    if (modules_.empty()) return;
    InContext here(gpu_);
    weight_memory_.clear();
    for (Memory* each : {&tasks_, &first_, &blocks_}) each->release();
    for (Handle module : modules_) driver_->ModuleUnload(module);
  }

  const Program& program() const override { return *program_; }
  const LoadReport& report() const override { return report_; }
  const DeviceReport* device() const override { return &device_; }
  std::vector<LaunchReport> launches() const override;
  std::vector<std::string> objects() const override {
    std::vector<std::string> entries;
    for (const Image& image : images_) entries.push_back(to_entry(image));
    return entries;
  }
  Result<std::unique_ptr<Context>> context(int threads) const override;

  /// Tables and the report; the GPU's side only where one is.
  Status init(LoadReport report);
  /// Weights and tables on the GPU, when the first context is made: who compiles for a file has
  /// none.
  Status fill() const;

  std::shared_ptr<const Program> program_;
  std::vector<Image> images_;  // by part
  const LoadOptions options_;
  LoadReport report_;
  DeviceReport device_;
  Tables cut_;
  const Driver* driver_ = nullptr;
  Gpu gpu_;
  std::optional<Error> absent_;    // why there is no GPU to run on
  std::vector<Handle> modules_;    // by part
  std::vector<Handle> functions_;  // by launch
  Memory tasks_, first_, blocks_;
  std::vector<DevicePointer> weights_;    // by number; 0: nobody reads it
  mutable std::atomic<int> contexts_{0};  // that there are now

 private:
  bool mono() const { return program_->granularity == machine::Granularity::kMono; }
  Status on_gpu();
  Status check_memory_limit(int contexts) const;
  Status upload();
  Status upload_weights();

  std::vector<Memory> weight_memory_;  // of weights that no other program has
  mutable std::mutex filling_;         // guards `filled_` and what upload() writes
  mutable bool filled_ = false;        // what fails is tried again: memory may be free by then
};

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
  Status run_on(std::span<const void* const> inputs, std::span<void* const> outputs,
                void* stream) override;
  Status wait() override;
  Result<bool> on_device(const void* pointer) const override {
    InContext here(gpu_);
    return lies_on_device(pointer);
  }
  Result<std::byte*> input_memory(size_t input) override {
    InContext here(gpu_);
    TRY_STATUS(reserve_staging());
    return static_cast<std::byte*>(pinned_) + offsets_[input];
  }
  Result<std::vector<double>> device_us(int count) override;
  Result<std::vector<TaskTime>> task_times() override;

 private:
  const Program& program() const { return *executable_->program_; }
  bool mono() const { return program().granularity == machine::Granularity::kMono; }
  Result<Handle> make_graph(DevicePointer stamps);
  ObkDealt dealt(const Launch& launch, DevicePointer stamps) const;
  Result<ObkProduct> product(const Launch& launch, DevicePointer stamps) const;
  KernelNode node_of(size_t launch, void** parameters) const;
  Status reserve_staging();
  Status packs_fit(std::span<const void* const> inputs, std::span<void* const> outputs);
  Status bind(Handle stream);
  Status launch(Handle stream, Handle graph, DevicePointer stamps);
  Status copies(Handle stream);
  Status failed(Status status);
  Result<bool> lies_on_device(const void* pointer) const;

  const std::shared_ptr<const CudaExecutable> executable_;
  const Gpu gpu_;
  const Driver& driver_;
  const int number_;
  Memory arena_, counter_, port_table_, staging_;
  void* pinned_ = nullptr;
  ObkWatch* watch_ = nullptr;
  Handle stream_ = nullptr, graph_ = nullptr, ran_ = nullptr, from_ = nullptr, to_ = nullptr;
  Handle last_stream_ = nullptr, sleep_ = nullptr;  // the event that a thread sleeps on
  Handle plain_ = nullptr;  // the graph that graph_ was made of, for the kernels below
  std::vector<std::pair<Handle, size_t>> dealt_;  // nodes that name ports, and their launches
  bool has_run_ = false;
  ObkProgram record_ = {};
  std::vector<DevicePointer> ports_, bound_;  // of this run; what the GPU's table holds
  std::vector<DevicePointer> staged_;         // by port
  std::vector<int64_t> offsets_;              // by port, into the staging
  std::optional<Error>
      broken_;  // what a run ended with; the GPU's context does not recover from it
};

Status CudaExecutable::init(LoadReport report) {
  report_ = std::move(report);
  const Program& p = *program_;
  TRY(const machine::Machine machine, machine::gpu(p.target, p.sms));
  auto gpu = open_gpu(options_.gpu);
  if (!gpu.ok()) {
    absent_ = gpu.error();
  } else if (!runs(gpu->arch, machine.arch)) {
    absent_ = Error{Code::kDevice, "runtime",
                    fmt::format("the program is for {}, the GPU is {} ({})", p.target,
                                to_string(gpu->arch), gpu->name),
                    "", "compile it again with --target cuda"};
  } else {
    gpu_ = *gpu;
    TRY(driver_, load_driver());
  }
  int64_t room = gpu_.shared_bytes;
  if (room == 0) room = machine.fast_memory.count + kOwnShared;
  TRY(cut_, make_tables(p, mono(), room - kOwnShared));
  TRY_STATUS(check_pages(p, cut_.launches));
  device_ = {.gpu = gpu_.name,
             .architecture = p.target,
             .granularity = p.granularity,
             .overlaps = p.granularity == machine::Granularity::kStitch && machine.features.pdl,
             .launches = static_cast<int>(cut_.launches.size()),
             .phases = p.waves};
  device_.barriers = mono() && !p.flows ? std::max(p.waves - 1, 0) : 0;
  device_.bytes_streamed = bytes_of_a_run(p);
  device_.roof_bytes_per_us = machine.bytes_per_sm * 1000.0 * machine.sms;
  report_kernels(p, images_, cut_.launches, device_);
  TRY_STATUS(check_memory_limit(1));  // also for a GPU that is not here
  if (absent_) return ok_status();
  InContext here(gpu_);
  return on_gpu();
}

std::vector<LaunchReport> CudaExecutable::launches() const {
  std::vector<LaunchReport> out;
  for (const Launch& launch : cut_.launches) {
    if (launch.work < 0) continue;
    const std::string name = kernel_name(launch.body);
    LaunchReport one{launch.work, launch.product ? launch.ctas : launch.tasks, launch.threads, 0,
                     launch.shared};
    for (const KernelReport& kernel : device_.kernels)
      if (kernel.name == name) one.registers = kernel.registers;
    out.push_back(one);
  }
  return out;
}

Status CudaExecutable::on_gpu() {
  const Driver& d = *driver_;
  const Program& p = *program_;
  for (const Image& image : images_) {
    Handle module = nullptr;
    TRY_STATUS(check_image(d.ModuleLoadData(&module, image.bytes.data())));
    modules_.push_back(module);
  }
  for (const Launch& launch : cut_.launches) {
    Handle function = nullptr;
    const Handle module = modules_[static_cast<size_t>(part_of(p, launch.body))];
    TRY_STATUS(check(d.ModuleGetFunction(&function, module, kernel_name(launch.body).c_str()),
                     "find a kernel"));
    int now = 0;
    d.FuncGetAttribute(&now, kDynamicShared,
                       function);  // bodies are shared by works that take less
    if (launch.shared > now || launch.work < 0)
      TRY_STATUS(check(d.FuncSetAttribute(function, kDynamicShared, std::max(launch.shared, now)),
                       "reserve shared memory"));
    functions_.push_back(function);
  }
  if (mono() && !cut_.launches.empty()) {
    int fits = 0;
    TRY_STATUS(check(d.Occupancy(&fits, functions_[0], cut_.launches[0].threads,
                                 static_cast<size_t>(cut_.launches[0].shared)),
                     "ask for the occupancy"));
    if (fits * gpu_.sms < p.sms)
      return Error{
          Code::kDevice, "runtime",
          fmt::format("the program is scheduled for {} multiprocessors, {} can run it at once",
                      p.sms, fits * gpu_.sms),
          "", "compile it again on this machine"};
  }
  return ok_status();
}

Status CudaExecutable::fill() const {
  // Nobody reads what this writes before a context is there.
  std::lock_guard lock(filling_);
  if (filled_) return ok_status();
  auto* self = const_cast<CudaExecutable*>(this);
  Status uploaded = self->upload();
  filled_ = uploaded.ok();
  if (!filled_) self->weight_memory_.clear();  // others may have room for what they need
  return uploaded;
}

Status CudaExecutable::upload() {
  TRY_STATUS(upload_weights());
  Tables placed = cut_;  // which keeps the numbers: what fails is tried again
  place_weights(placed, *program_, weights_);
  TRY_STATUS(tasks_.fill(placed.tasks, "the tasks"));
  TRY_STATUS(first_.fill(placed.first, "the lists"));
  return blocks_.fill(placed.blocks, "the works");
}

Status CudaExecutable::check_memory_limit(int contexts) const {
  const Program& p = *program_;
  const auto bytes = [](const auto& table) {
    return static_cast<int64_t>(table.size() * sizeof(table[0]));
  };
  int64_t wanted = bytes(cut_.tasks) + bytes(cut_.first) + bytes(cut_.blocks);
  wanted += contexts * (p.arena.count + cut_.map_bytes + bytes_of(p.inputs) + bytes_of(p.outputs));
  for (const Tensor& weight : p.weights) wanted += weight.empty() ? 0 : weight.bytes();
  if (const int64_t limit = options_.memory_limit.count; limit > 0 && wanted > limit)
    return Error{
        Code::kMemory, "runtime",
        fmt::format("the program takes {} of the GPU's memory ({} of workspace{}), the limit is {}",
                    to_string(Bytes{wanted}), to_string(p.arena),
                    contexts > 1 ? fmt::format(" for each of {} contexts", contexts) : "",
                    to_string(Bytes{limit})),
        "",
        contexts > 1 ? "fewer contexts, or a higher memory limit"
                     : "a smaller batch, or a higher --memory-limit"};
  return ok_status();
}

Status CudaExecutable::upload_weights() {
  const Program& p = *program_;
  if (options_.device_weights) {
    TRY(weights_, options_.device_weights->place(p.weights));
  } else {
    weights_.clear();
    for (const Tensor& weight : p.weights) {
      weights_.push_back(0);
      if (weight.empty()) continue;
      Memory memory;
      TRY_STATUS(memory.reserve(weight.bytes() + kBehindWeight, "a weight"));
      TRY_STATUS(copy_in(*driver_, memory.at(), weight.data(), weight.bytes(), "copy a weight"));
      weights_.back() = memory.at();
      weight_memory_.push_back(std::move(memory));
    }
  }
  return ok_status();
}

Result<std::unique_ptr<Context>> CudaExecutable::context(int) const {
  if (absent_) return *absent_;
  InContext here(gpu_);
  auto context = std::make_unique<CudaContext>(shared_from_this());  // counts itself
  TRY_STATUS(check_memory_limit(context->number()));
  TRY_STATUS(fill());
  TRY_STATUS(context->init());
  return std::unique_ptr<Context>(std::move(context));
}

CudaContext::~CudaContext() {
  InContext here(gpu_);
  if (stream_) driver_.StreamSynchronize(stream_);
  if (has_run_ && last_stream_ != stream_ && ran_) driver_.EventSynchronize(ran_);
  if (graph_) driver_.GraphExecDestroy(graph_);
  if (plain_) driver_.GraphDestroy(plain_);
  for (Handle event : {ran_, from_, to_, sleep_})
    if (event) driver_.EventDestroy(event);
  if (stream_) driver_.StreamDestroy(stream_);
  if (pinned_) driver_.MemFreeHost(pinned_);
  if (watch_) driver_.MemFreeHost(watch_);
  for (Memory* each : {&arena_, &counter_, &port_table_, &staging_}) each->release();
  --executable_->contexts_;
}

Status CudaContext::init() {
  const Program& p = program();
  const size_t ports = p.inputs.size() + p.outputs.size();
  ports_.assign(ports, 0), staged_.assign(ports, 0), bound_.assign(ports, 1);
  TRY_STATUS(check(driver_.StreamCreate(&stream_, kStreamNonBlocking), "make a stream"));
  for (Handle* event : {&ran_, &from_, &to_})
    TRY_STATUS(check(driver_.EventCreate(event, 0), "make an event"));
  if (executable_->options_.blocking_wait)
    TRY_STATUS(
        check(driver_.EventCreate(&sleep_, kEventBlockingSync | kEventNoTiming), "make an event"));
  TRY_STATUS(arena_.reserve(p.arena.count + executable_->cut_.map_bytes + 256, "the workspace"));
  // Words that teams exchange are zero at first and last from run to run.
  TRY_STATUS(
      check(driver_.MemsetAsync(arena_.at(), 0, static_cast<size_t>(p.arena.count + 256), stream_),
            "clear the workspace"));
  TRY_STATUS(check(driver_.StreamSynchronize(stream_), "clear the workspace"));
  TRY_STATUS(make_maps(executable_->cut_, arena_.at()));
  const uint64_t zero[16] = {};
  TRY_STATUS(counter_.fill(zero, sizeof zero, "the barrier"));
  TRY_STATUS(port_table_.reserve(static_cast<int64_t>(ports * 8), "the table of ports"));
  if (executable_->options_.watchdog) {
    void* host = nullptr;
    TRY_STATUS(check(driver_.MemHostAlloc(&host, sizeof(ObkWatch), kHostMapped),
                     "memory of the watchdog"));
    watch_ = static_cast<ObkWatch*>(memset(host, 0, sizeof(ObkWatch)));
  }
  record_ = {.tasks = executable_->tasks_.at(),
             .first = executable_->first_.at(),
             .blocks = executable_->blocks_.at(),
             .arena = arena_.at(),
             .counter = counter_.at(),
             .watch = reinterpret_cast<DevicePointer>(watch_),
             .waves = std::max(p.waves, 1)};
  if (mono()) {
    place_shared(executable_->cut_.launches[0], record_);
    if (ports > obk::kInlinePorts) record_.ports = port_table_.at();
    return ok_status();
  }
  record_.ports = port_table_.at();
  TRY(graph_, make_graph(0));
  return check(driver_.GraphUpload(graph_, stream_), "upload the graph");
}

/// Whether a work reads or writes what the caller brings.
bool names_ports(const WorkRecord& work) {
  return std::any_of(work.operands.begin(), work.operands.end(), [](const Place& place) {
    return place.kind == BufferKind::kInput || place.kind == BufferKind::kOutput;
  });
}

/// The parameter of a kernel whose CTAs find their rectangles by themselves.
ObkDealt CudaContext::dealt(const Launch& launch, DevicePointer stamps) const {
  const Program& p = program();
  ObkDealt record = launch.rectangles;
  record.watch = record_.watch;
  if (stamps) record.stamps = stamps + static_cast<uint64_t>(launch.first_task) * sizeof(ObkStamp);
  DevicePointer* at = record.operands;
  for (const Place& place : p.works[launch.work].operands) {
    const auto index = static_cast<size_t>(place.index);
    switch (place.kind) {
      case BufferKind::kInput:
        *at++ = ports_[index];
        break;
      case BufferKind::kOutput:
        *at++ = ports_[p.inputs.size() + index];
        break;
      case BufferKind::kWeight:
        *at++ = executable_->weights_[index];
        break;
      case BufferKind::kArena:
        *at++ = arena_.at() + static_cast<uint64_t>(place.index);
        break;
    }
  }
  return record;
}

/// The same of a product's own kernel.
Result<ObkProduct> CudaContext::product(const Launch& launch, DevicePointer stamps) const {
  ObkProduct record = {};
  record.dealt = dealt(launch, stamps), record.weights = record.dealt.operands[launch.weights];
  if (launch.next >= 0) {
    constexpr int64_t kMost = 12 << 20;  // a quarter of the second-level cache
    const auto next = static_cast<size_t>(launch.next);
    const Tensor& weight = program().weights[next];
    const int64_t bytes = weight.empty() ? 0 : weight.bytes() + kBehindWeight;
    record.next = executable_->weights_[next], record.next_bytes = std::min(bytes / 16 * 16, kMost);
    record.next_share = (record.next_bytes / launch.ctas + 127) / 128 * 128;
  }
  const RowsMap& rows = launch.rows;
  TRY_STATUS(encode_rows(record.dealt.operands[rows.operand], rows.rows, rows.pitch, rows.blocks,
                         rows.together, record.map));
  return record;
}

KernelNode CudaContext::node_of(size_t k, void** parameters) const {
  const Launch& launch = executable_->cut_.launches[k];
  // Where an SM has room for one CTA, that goes on with the next task: it need not begin again.
  const bool alone = launch.ring_pages > 0 && 2 * launch.shared > executable_->gpu_.shared_bytes;
  const int ctas = launch.product ? launch.ctas
                   : alone        ? std::min({launch.tasks, executable_->gpu_.sms, program().sms})
                                  : launch.tasks;
  return {.function = executable_->functions_[k],
          .grid = {static_cast<unsigned>(ctas), 1, 1},
          .block = {kThreads, 1, 1},
          .shared_bytes = static_cast<unsigned>(launch.shared),
          .parameters = parameters};
}

/// A kernel a work; every kernel of a wave follows all of the wave before. Independent works are
/// parallel branches.
Result<Handle> CudaContext::make_graph(DevicePointer stamps) {
  const std::vector<Launch>& launches = executable_->cut_.launches;
  // By place in the dispatch, if there is one: which launch.
  std::vector<size_t> order;
  for (const schedule::Dispatched& each : program().dispatch)
    for (size_t k = 0; k < launches.size(); ++k)
      if (launches[k].work == each.kernel) order.push_back(k);
  if (!order.empty() && order.size() != launches.size())
    return Error{
        Code::kBuild, "runtime",
        fmt::format("the dispatch has {} kernels, the program {}", order.size(), launches.size()),
        "", "this is a defect of Obelisk; please report it with the model"};
  const unsigned long long flags = order.empty() ? 0 : kGraphNodePriorities;
  const auto build = [&](bool programmatic) -> Result<Handle> {
    Handle graph = nullptr, ready = nullptr;
    TRY_STATUS(check(driver_.GraphCreate(&graph, 0), "make a graph"));
    std::vector<Handle> before, now;
    std::vector<Handle> of_work(program().works.size(), nullptr);
    const auto add = [&]() -> Status {
      for (size_t place = 0; place < launches.size(); ++place) {
        const size_t k = order.empty() ? place : order[place];
        const Launch& launch = launches[k];
        if (order.empty()) {
          if (k > 0 && launches[k - 1].wave != launch.wave) before = std::move(now), now.clear();
        } else {
          before.clear();
          for (const int work : program().dispatch[place].predecessors)
            before.push_back(of_work[static_cast<size_t>(work)]);
        }
        ObkProgram record = record_;
        record.tasks += static_cast<uint64_t>(launch.first_task) * sizeof(ObkTask);
        record.first = 0;
        place_shared(launch, record);
        record.waves = launch.tasks;
        record.stamps =
            stamps ? stamps + static_cast<uint64_t>(launch.first_task) * sizeof(ObkStamp) : 0;
        ObkDealt rectangles = launch.dealt ? dealt(launch, stamps) : ObkDealt{};
        ObkProduct streamed = {};
        if (launch.product) {
          TRY(streamed, product(launch, stamps));
        }
        void* parameters[] = {launch.product ? static_cast<void*>(&streamed)
                              : launch.dealt ? static_cast<void*>(&rectangles)
                                             : &record};
        const KernelNode node = node_of(k, parameters);
        Handle made = nullptr;
        TRY_STATUS(check(driver_.GraphAddKernel(&made, graph, nullptr, 0, &node),
                         "add a kernel to the graph"));
        for (Handle previous : before) {
          const int code = programmatic ? driver_.GraphAddTypedEdges(graph, &previous, &made,
                                                                     &kProgrammaticEdge, 1)
                                        : driver_.GraphAddEdges(graph, &previous, &made, 1);
          TRY_STATUS(check(code, "add an edge to the graph"));
        }
        now.push_back(made);
        if (launch.work >= 0) of_work[static_cast<size_t>(launch.work)] = made;
        if (const int priority = order.empty() ? 0 : program().dispatch[place].priority;
            priority != 0 && driver_.GraphNodeAttribute) {
          const NodeAttribute value{priority};
          TRY_STATUS(check(driver_.GraphNodeAttribute(made, kNodePriority, &value),
                           "give a kernel its priority"));
        }
        if ((launch.dealt || launch.product) && names_ports(program().works[launch.work]) &&
            !stamps)
          dealt_.push_back({made, k});
      }
      return check(driver_.GraphInstantiate(&ready, graph, flags), "make the graph ready");
    };
    if (!stamps) dealt_.clear();
    const Status added = add();
    if (added.ok() && !stamps && !dealt_.empty())
      plain_ = graph;  // its nodes name the kernels that learn where ports are
    else
      driver_.GraphDestroy(graph);
    if (!added.ok()) return added.error();
    return ready;
  };
  if (executable_->device()->overlaps && driver_.GraphAddTypedEdges) {
    auto overlapping = build(true);
    if (overlapping.ok()) return overlapping;
    LOG(kWarning, "runtime", "kernels of the graph do not overlap: {}",
        overlapping.error().message);
  }
  return build(false);
}

/// Errors: kDevice, when the GPU's context fails, which says nothing about the pointer.
Result<bool> CudaContext::lies_on_device(const void* pointer) const {
  unsigned kind = 0;
  const int code =
      driver_.PointerAttribute(&kind, kPointerMemoryType, reinterpret_cast<DevicePointer>(pointer));
  constexpr int kUnknown = 1;  // to the driver: memory of the host
  if (code != 0 && code != kUnknown) return check(code, "ask where memory lies").error();
  return code == 0 && kind == kMemoryDevice;
}

/// Memory for the host's arrays, when the first one comes.
Status CudaContext::reserve_staging() {
  if (pinned_) return ok_status();
  const Program& p = program();
  offsets_.clear();
  int64_t total = 0;
  for (const auto* ports : {&p.inputs, &p.outputs})
    for (const Port& port : *ports)
      offsets_.push_back(total), total += (port.type.bytes() + 255) / 256 * 256;
  TRY_STATUS(staging_.reserve(total, "inputs and outputs"));
  for (size_t k = 0; k < offsets_.size(); ++k)
    staged_[k] = staging_.at() + static_cast<uint64_t>(offsets_[k]);
  return check(driver_.MemHostAlloc(&pinned_, static_cast<size_t>(std::max<int64_t>(total, 16)), 0),
               "pinned memory for inputs and outputs");
}

/// Tells the GPU where this run's ports are, when they are elsewhere than in the last.
Status CudaContext::bind(Handle stream) {
  if (has_run_ && last_stream_ != stream)
    TRY_STATUS(check(driver_.StreamWaitEvent(stream, ran_, 0), "wait for the run before"));
  last_stream_ = stream;
  if (record_.ports == 0) {
    std::copy(ports_.begin(), ports_.end(), record_.inline_ports);
  } else if (ports_ != bound_) {
    TRY_STATUS(
        check(driver_.CopyToDeviceAsync(port_table_.at(), ports_.data(), ports_.size() * 8, stream),
              "name the ports"));
    for (const auto& [node, k] : dealt_) {
      const Launch& launch = executable_->cut_.launches[k];
      ObkDealt rectangles = dealt(launch, 0);
      ObkProduct streamed = {};
      if (launch.product) {
        TRY(streamed, product(launch, 0));
      }
      void* parameters[] = {launch.product ? static_cast<void*>(&streamed) : &rectangles};
      const KernelNode now = node_of(k, parameters);
      TRY_STATUS(check(driver_.GraphSetKernel(graph_, node, &now), "name a kernel's ports"));
    }
    bound_ = ports_;
  }
  return ok_status();
}

Status CudaContext::launch(Handle stream, Handle graph, DevicePointer stamps) {
  if (graph) return check(driver_.GraphLaunch(graph, stream), "launch the graph");
  record_.stamps = stamps;
  void* parameters[] = {&record_};
  const Launch& all = executable_->cut_.launches[0];
  return check(
      driver_.LaunchCooperative(executable_->functions_[0], static_cast<unsigned>(all.tasks), 1, 1,
                                static_cast<unsigned>(all.threads), 1, 1,
                                static_cast<unsigned>(all.shared), stream, parameters),
      "launch the program");
}

/// Outputs that are inputs, weights or other outputs.
Status CudaContext::copies(Handle stream) {
  const Program& p = program();
  for (const Program::Copy& copy : p.copies) {
    DevicePointer from = 0;
    switch (copy.from.kind) {
      case BufferKind::kInput:
        from = ports_[copy.from.index];
        break;
      case BufferKind::kOutput:
        from = ports_[p.inputs.size() + copy.from.index];
        break;
      case BufferKind::kWeight:
        from = executable_->weights_[static_cast<size_t>(copy.from.index)];
        break;
      case BufferKind::kArena:
        from = arena_.at() + static_cast<uint64_t>(copy.from.index);
        break;
    }
    const auto bytes = static_cast<size_t>(p.outputs[copy.output].type.bytes());
    if (bytes)
      TRY_STATUS(
          check(driver_.CopyAsync(ports_[p.inputs.size() + copy.output], from, bytes, stream),
                "copy an output"));
  }
  return ok_status();
}

/// An error of the device stays: later runs answer with it. Says what the watchdog saw.
Status CudaContext::failed(Status status) {
  if (status.ok() || status.error().code != Code::kDevice) return status;
  Error error = status.error();
  if (watch_ && watch_->hit) {
    const ObkWatch& w = *watch_;
    const ObkTask* task = mono() && w.task < executable_->cut_.tasks.size()
                              ? &executable_->cut_.tasks[w.task]
                              : nullptr;
    error.message = fmt::format(
        "SM {} waits for {} at {:#x} before task {}{}: it wants {}, has {} ({})", w.sm,
        w.kind == 1   ? "the grid barrier"
        : w.kind == 4 ? "another member of its team"
        : w.kind == 5 ? "a value that other SMs give"
        : w.kind == 6 ? "rows of a product"
                      : "a page of weights",
        w.counter, w.task,
        task ? fmt::format(" (wave {}, '{}')", task->wave, program().works[task->work].label)
             : std::string(),
        w.want, w.have, error.message);
  }
  error.hint = "the GPU's context does not recover: start the program again";
  broken_ = error;
  return error;
}

/// Bodies read and write packs of 16 bytes.
Status CudaContext::packs_fit(std::span<const void* const> inputs, std::span<void* const> outputs) {
  const Program& p = program();
  for (size_t k = 0; k < ports_.size(); ++k) {
    const bool in = k < inputs.size();
    const void* pointer = in ? inputs[k] : outputs[k - inputs.size()];
    const Port& port = in ? p.inputs[k] : p.outputs[k - inputs.size()];
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (port.type.bytes() == 0 || address % 16 == 0) continue;
    TRY(const bool there, lies_on_device(pointer));
    if (!there) continue;
    return Error{
        Code::kUsage, "runtime",
        fmt::format("'{}' lies at {:#x} of the GPU's memory, which is no multiple of 16", port.name,
                    address),
        "", "give memory as the driver allocates it, or copy a part of a tensor to such first"};
  }
  return ok_status();
}

Status CudaContext::run(std::span<const void* const> inputs, std::span<void* const> outputs) {
  const Program& p = program();
  CHECK(inputs.size() == p.inputs.size() && outputs.size() == p.outputs.size(),
        "{} inputs and {} outputs given, {} and {} needed", inputs.size(), outputs.size(),
        p.inputs.size(), p.outputs.size());
  if (broken_) return *broken_;
  InContext here(gpu_);
  TRY_STATUS(failed(packs_fit(inputs, outputs)));
  const auto whole = [&]() -> Status {
    for (size_t k = 0; k < ports_.size(); ++k) {
      const bool in = k < inputs.size();
      const void* pointer = in ? inputs[k] : outputs[k - inputs.size()];
      const int64_t bytes = (in ? p.inputs[k] : p.outputs[k - inputs.size()]).type.bytes();
      TRY(const bool there, lies_on_device(pointer));
      if (there) {
        ports_[k] = reinterpret_cast<DevicePointer>(pointer);
        continue;
      }
      TRY_STATUS(reserve_staging());
      ports_[k] = staged_[k];
      if (!in || bytes == 0) continue;
      char* pinned = static_cast<char*>(pinned_) + offsets_[k];
      if (pinned != pointer) memcpy(pinned, pointer, static_cast<size_t>(bytes));
      TRY_STATUS(
          check(driver_.CopyToDeviceAsync(staged_[k], pinned, static_cast<size_t>(bytes), stream_),
                "copy an input"));
    }
    TRY_STATUS(bind(stream_));
    TRY_STATUS(launch(stream_, graph_, 0));
    TRY_STATUS(copies(stream_));
    for (size_t k = 0; k < outputs.size(); ++k) {
      const auto bytes = static_cast<size_t>(p.outputs[k].type.bytes());
      const size_t port = inputs.size() + k;
      if (ports_[port] == staged_[port] && bytes)
        TRY_STATUS(check(driver_.CopyToHostAsync(static_cast<char*>(pinned_) + offsets_[port],
                                                 staged_[port], bytes, stream_),
                         "copy an output"));
    }
    if (sleep_) {
      TRY_STATUS(check(driver_.EventRecord(sleep_, stream_), "record an event"));
      TRY_STATUS(check(driver_.EventSynchronize(sleep_), "run the program"));
    } else {
      TRY_STATUS(check(driver_.StreamSynchronize(stream_), "run the program"));
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      const size_t port = inputs.size() + k;
      if (ports_[port] == staged_[port] && pinned_)
        memcpy(outputs[k], static_cast<char*>(pinned_) + offsets_[port],
               static_cast<size_t>(p.outputs[k].type.bytes()));
    }
    has_run_ = true;
    return ok_status();
  };
  return failed(whole());
}

Status CudaContext::run_on(std::span<const void* const> inputs, std::span<void* const> outputs,
                           void* stream) {
  const Program& p = program();
  CHECK(inputs.size() == p.inputs.size() && outputs.size() == p.outputs.size(),
        "{} inputs and {} outputs given, {} and {} needed", inputs.size(), outputs.size(),
        p.inputs.size(), p.outputs.size());
  if (broken_) return *broken_;
  InContext here(gpu_);
  TRY_STATUS(failed(packs_fit(inputs, outputs)));
  for (size_t k = 0; k < ports_.size(); ++k) {
    const void* pointer = k < inputs.size() ? inputs[k] : outputs[k - inputs.size()];
    const Result<bool> there = lies_on_device(pointer);
    if (!there.ok()) return failed(there.error());
    if (!*there)
      return Error{
          Code::kUsage, "runtime",
          fmt::format("'{}' is not in the GPU's memory",
                      (k < inputs.size() ? p.inputs[k] : p.outputs[k - inputs.size()]).name),
          "", "device pointers, or run() without a stream"};
    ports_[k] = reinterpret_cast<DevicePointer>(pointer);
  }
  const auto on = static_cast<Handle>(stream);
  const auto whole = [&]() -> Status {
    TRY_STATUS(bind(on));
    TRY_STATUS(launch(on, graph_, 0));
    TRY_STATUS(copies(on));
    has_run_ = true;
    return check(driver_.EventRecord(ran_, on), "record an event");
  };
  return failed(whole());
}

Status CudaContext::wait() {
  if (broken_) return *broken_;
  if (!has_run_) return ok_status();
  InContext here(gpu_);
  return failed(check(driver_.EventSynchronize(ran_), "wait for the runs"));
}

Result<std::vector<double>> CudaContext::device_us(int count) {
  if (broken_) return *broken_;
  if (!has_run_)
    return Error{Code::kUsage, "runtime", "nothing has run yet", "", "run once before timing"};
  InContext here(gpu_);
  constexpr int kRow = 10;  // runs in a row, so that the host's latency is hidden
  std::vector<double> us;
  const auto measure = [&]() -> Status {
    TRY_STATUS(bind(stream_));
    for (int k = -1; k < count; ++k) {  // the first one warms up
      TRY_STATUS(check(driver_.EventRecord(from_, stream_), "record an event"));
      for (int run = 0; run < kRow; ++run) {
        TRY_STATUS(launch(stream_, graph_, 0));
        TRY_STATUS(copies(stream_));
      }
      TRY_STATUS(check(driver_.EventRecord(to_, stream_), "record an event"));
      TRY_STATUS(check(driver_.EventSynchronize(to_), "run the program"));
      float millis = 0;
      TRY_STATUS(check(driver_.EventElapsed(&millis, from_, to_), "read an event"));
      if (k >= 0) us.push_back(millis * 1000.0 / kRow);
    }
    return ok_status();
  };
  if (Status status = failed(measure()); !status.ok()) return status.error();
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
    for (int run = 0; run < 4; ++run)
      TRY_STATUS(launch(stream_, graph, stamps.at()));  // the last one counts, warm
    TRY_STATUS(check(driver_.StreamSynchronize(stream_), "run the program"));
    return check(driver_.CopyToHost(got.data(), stamps.at(), got.size() * sizeof(ObkStamp)),
                 "read the stamps");
  };
  Status status = failed(measure());
  record_.stamps = 0;
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

}  // namespace

Result<std::shared_ptr<const Executable>> load_cuda(std::shared_ptr<const Program> program,
                                                    const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadReport report;
  std::vector<Image> images;
  if (!program->objects.empty() &&
      program->objects.size() != static_cast<size_t>(part_count(*program)))
    report.not_carried = "its device code is in another number of parts";
  else
    for (const std::string& object : program->objects) {
      auto image = from_entry(object);
      if (image.ok())
        images.push_back(std::move(*image));
      else
        report.not_carried = image.error().message;
    }
  if (!images.empty() && report.not_carried.empty()) {
    report.carried = 1;
  } else {
    TRY(images, build_images(*program, program->target, options));
    for (int body = 0; body < static_cast<int>(program->bodies.size()); ++body)
      ++(images[static_cast<size_t>(part_of(*program, body))].cached ? report.cached
                                                                     : report.compiled);
    report.compiler = "NVRTC " + nvrtc_version();
  }
  if (options.progress) options.progress(1, 1);
  LoadOptions kept = options;
  kept.progress = {}, kept.interrupted = {};  // the caller's own end with this call
  auto executable = std::make_shared<CudaExecutable>(std::move(program), std::move(images), kept);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  TRY_STATUS(executable->init(std::move(report)));
  return std::shared_ptr<const Executable>(std::move(executable));
}

Result<std::string> find_device_compiler() { return find_nvrtc_of_driver(); }

Result<std::string> device_text(const Program& program, const std::string& kind,
                                const LoadOptions& options) {
  TRY(const std::string text, device_source(program));
  if (kind == "cuda") return text;
  if (kind == "cubin") {
    TRY(const Cubin cubin, compile_cubin(text, program.target, device_defines(program, options)));
    return cubin.bytes;
  }
  TRY(const Cubin cubin, compile_cubin(text, program.target, device_defines(program, options)));
  if (cubin.ptx.empty())
    return Error{Code::kUnsupported, "runtime",
                 "this version of NVRTC gives no PTX for " + program.target, "",
                 "update it: pip install -U nvidia-cuda-nvrtc"};
  return cubin.ptx;
}

}  // namespace obelisk::runtime
