#include "runtime/cuda/executable.h"

#include <algorithm>

#include "machine/machine.h"
#include "runtime/cuda/context.h"

namespace obelisk::runtime::cuda {

namespace {

/// Shared memory that kernels take for themselves beside the tables' (program.cuh), and a reserve
/// of the driver's.
constexpr int64_t kOwnShared = 2048;

int64_t bytes_of(const std::vector<Port>& ports) {
  int64_t total = 0;
  for (const Port& port : ports) total += (port.type.bytes() + 255) / 256 * 256;
  return total;
}

/// What programs have in common whose runs may share launches: machine code, CTAs and shared memory
/// of each launch, sizes of the arena and the ports. (Addresses and tables are an instance's own.)
std::string code_of(const Program& program, const std::vector<Image>& images,
                    const Tables& tables) {
  std::string all;
  for (const Image& image : images) all += to_string(hash_text(image.bytes)) + ' ';
  for (const Launch& launch : tables.launches)
    all += fmt::format("{}:{}:{}:{}:{} ", launch.body, launch.tasks, launch.ctas, launch.shared,
                       launch.threads);
  all += fmt::format("{} {} {} {}", to_string(program.granularity), program.sms,
                     program.arena.count, tables.map_bytes);
  for (const auto* ports : {&program.inputs, &program.outputs})
    for (const Port& port : *ports) all += " " + to_string(port.type);
  for (const schedule::Dispatched& each : program.dispatch) {
    all += fmt::format(" {}:{}", each.kernel, each.priority);
    for (const int before : each.predecessors) all += fmt::format("-{}", before);
  }
  for (const WorkRecord& work : program.works)
    for (const Place& place : work.operands)
      all += fmt::format(" {}@{}", static_cast<int>(place.kind),
                         place.kind == BufferKind::kWeight ? -1 : place.index);
  return to_string(hash_text(all));
}

}  // namespace

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
  if (room == 0) room = machine.scratchpad.count + kOwnShared;
  TRY(cut_, make_tables(p, mono(), room - kOwnShared));
  TRY_STATUS(check_pages(p, cut_.launches));
  device_ = {.gpu = gpu_.name,
             .architecture = p.target,
             .driver_version = gpu_.driver_version,
             .granularity = p.granularity,
             .overlaps = p.granularity == machine::Granularity::kStitch && machine.features.pdl,
             .launches = static_cast<int>(cut_.launches.size()),
             .phases = p.waves};
  device_.barriers = mono() && !p.dataflow ? std::max(p.waves - 1, 0) : 0;
  device_.bytes_streamed = bytes_of_a_run(p);
  device_.roof_bytes_per_us = machine.bytes_per_sm * 1000.0 * machine.sms;
  report_kernels(p, images_, cut_.launches, device_);
  if (options_.instances) code_ = code_of(p, images_, cut_);
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
    LaunchReport one{launch.work, launch.pipelined_gemm ? launch.ctas : launch.tasks,
                     launch.threads, 0, launch.shared};
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
    const Handle module =
        modules_[static_cast<size_t>(part_of(launch.body, static_cast<int>(modules_.size())))];
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
    room_ = fits * gpu_.sms;
    if (room_ < p.sms)
      return Error{
          Code::kDevice, "runtime",
          fmt::format("the program is scheduled for {} multiprocessors, {} can run it at once",
                      p.sms, room_),
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
    return ok_status();
  }
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

}  // namespace obelisk::runtime::cuda
