#include "runtime/cuda/mono.h"

#include <algorithm>
#include <cstring>

namespace obelisk::runtime::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The layouts of kernels/cuda/program.cuh.
struct DeviceWork {
  int32_t body, params, operands, spare;
};
struct DeviceProgram {
  DevicePointer tasks, first, works, params, operands, counter, watch, times;
  int32_t waves, groups;
  int64_t scratch;
};

/// Device memory that frees itself.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  ~Memory() {
    if (at_) driver_->MemFree(at_);
  }
  Status reserve(const Driver& driver, int64_t bytes, const char* what) {
    driver_ = &driver;
    return check(driver.MemAlloc(&at_, static_cast<size_t>(std::max<int64_t>(bytes, 16))),
                 fmt::format("{} of {} bytes", what, bytes));
  }
  Status fill(const Driver& driver, const void* from, int64_t bytes, const char* what) {
    TRY_STATUS(reserve(driver, bytes, what));
    return bytes ? check(driver.CopyToDevice(at_, from, static_cast<size_t>(bytes)), what)
                 : ok_status();
  }
  template <typename T>
  Status fill(const Driver& driver, const std::vector<T>& from, const char* what) {
    return fill(driver, from.data(), static_cast<int64_t>(from.size() * sizeof(T)), what);
  }
  DevicePointer at() const { return at_; }

 private:
  const Driver* driver_ = nullptr;
  DevicePointer at_ = 0;
};

class Mono : public MonoKernel {
 public:
  explicit Mono(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  ~Mono() override {
    if (start_) driver_->EventDestroy(start_);
    if (stop_) driver_->EventDestroy(stop_);
    if (module_) driver_->ModuleUnload(module_);
  }

  Status init(const Cubin& cubin) {
    TRY(driver_, load_driver());
    const Driver& d = *driver_;
    int device = 0, optin = 0, fits = 0, sms = 0;
    TRY_STATUS(check(d.DeviceGet(&device, 0), "open the GPU"));
    TRY_STATUS(check(d.DeviceGetAttribute(&optin, kSharedPerBlockOptin, device), "ask the GPU"));
    TRY_STATUS(check(d.DeviceGetAttribute(&sms, kSmCount, device), "ask the GPU"));
    TRY_STATUS(check(d.ModuleLoadData(&module_, cubin.bytes.data()), "load the device code"));
    TRY_STATUS(check(d.ModuleGetFunction(&function_, module_, "obk_program"), "find the kernel"));
    const Program& p = *program_;
    const int64_t scratch = (p.scratch.count + 127) / 128 * 128, room = optin - 2048;
    groups_ = scratch == 0 ? kWarps : static_cast<int>(std::min<int64_t>(kWarps, room / scratch));
    if (groups_ < 1)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("a row stages {} bytes, a multiprocessor has {}", scratch, room), "",
                   "compile with --target cpu"};
    shared_ = static_cast<int>(scratch * groups_);
    TRY_STATUS(
        check(d.FuncSetAttribute(function_, kDynamicShared, shared_), "reserve shared memory"));
    TRY_STATUS(check(d.Occupancy(&fits, function_, kThreads, static_cast<size_t>(shared_)),
                     "ask for the occupancy"));
    if (fits * sms < p.sms)
      return Error{
          Code::kDevice, "runtime",
          fmt::format("the program is scheduled for {} multiprocessors, {} can run it at once",
                      p.sms, fits * sms),
          "", "compile it again on this machine"};
    TRY_STATUS(tables());
    TRY_STATUS(check(d.EventCreate(&start_, 0), "make an event"));
    return check(d.EventCreate(&stop_, 0), "make an event");
  }

  Status run(std::span<const void* const> inputs, std::span<void* const> outputs) override {
    const Program& p = *program_;
    const Driver& d = *driver_;
    for (size_t k = 0; k < inputs.size(); ++k)
      TRY_STATUS(check(d.CopyToDevice(inputs_[k]->at(), inputs[k], p.inputs[k].type.bytes()),
                       "copy an input"));
    Status done = launch();
    if (done.ok()) done = check(d.CtxSynchronize(), "run the program");
    if (!done.ok()) {
      d.MemsetD8(counter_.at(), 0, 8);  // a run that ended early leaves a partial count
      return done;
    }
    for (size_t k = 0; k < outputs.size(); ++k)
      TRY_STATUS(check(d.CopyToHost(outputs[k], outputs_[k]->at(), p.outputs[k].type.bytes()),
                       "copy an output"));
    return ok_status();
  }

  Result<double> time(int repeats) override {
    const Driver& d = *driver_;
    std::vector<double> micros;
    for (int k = 0; k < repeats; ++k) {
      constexpr int kRow = 10;  // launches in a row, so that the host's latency is hidden
      TRY_STATUS(check(d.EventRecord(start_, nullptr), "record an event"));
      for (int run = 0; run < kRow; ++run) TRY_STATUS(launch());
      TRY_STATUS(check(d.EventRecord(stop_, nullptr), "record an event"));
      TRY_STATUS(check(d.EventSynchronize(stop_), "wait for an event"));
      float millis = 0;
      TRY_STATUS(check(d.EventElapsed(&millis, start_, stop_), "read an event"));
      micros.push_back(millis * 1000.0 / kRow);
    }
    std::sort(micros.begin(), micros.end());
    return micros[micros.size() / 2];
  }

 private:
  Status tables() {
    const Program& p = *program_;
    const Driver& d = *driver_;
    std::vector<ObkTask> tasks;
    std::vector<int32_t> first;
    for (const auto& list : p.lists) {
      first.push_back(static_cast<int32_t>(tasks.size()));
      tasks.insert(tasks.end(), list.begin(), list.end());
    }
    first.push_back(static_cast<int32_t>(tasks.size()));
    TRY_STATUS(arena_.reserve(d, p.arena.count + 256, "the arena"));
    for (const Port& port : p.inputs) TRY_STATUS(staging(inputs_, port));
    for (const Port& port : p.outputs) TRY_STATUS(staging(outputs_, port));
    for (const Tensor& weight : p.weights) {
      weights_.push_back(std::make_unique<Memory>());
      const int64_t bytes = weight.data() ? weight.bytes() : 0;
      TRY_STATUS(weights_.back()->fill(d, weight.data(), bytes, "a weight"));
    }
    std::vector<DeviceWork> works;
    std::vector<int64_t> params;
    std::vector<DevicePointer> operands;
    for (const WorkRecord& work : p.works) {
      works.push_back({work.body, static_cast<int32_t>(params.size()),
                       static_cast<int32_t>(operands.size()), 0});
      params.insert(params.end(), work.params.begin(), work.params.end());
      for (const Place& place : work.operands) operands.push_back(address(place));
    }
    TRY_STATUS(tasks_.fill(d, tasks, "the tasks"));
    TRY_STATUS(first_.fill(d, first, "the lists"));
    TRY_STATUS(works_.fill(d, works, "the works"));
    TRY_STATUS(params_.fill(d, params, "the parameters"));
    TRY_STATUS(operands_.fill(d, operands, "the operands"));
    const uint64_t zero[16] = {};
    TRY_STATUS(counter_.fill(d, zero, sizeof zero, "the barrier"));
    record_ = {tasks_.at(),      first_.at(), works_.at(), params_.at(),         operands_.at(),
               counter_.at(),    0,           0,           std::max(p.waves, 1), groups_,
               shared_ / groups_};
    return ok_status();
  }
  Status staging(std::vector<std::unique_ptr<Memory>>& list, const Port& port) {
    list.push_back(std::make_unique<Memory>());
    return list.back()->reserve(*driver_, port.type.bytes(), "a port");
  }
  DevicePointer address(const Place& place) const {
    switch (place.kind) {
      case BufferKind::kInput:
        return inputs_[place.index]->at();
      case BufferKind::kOutput:
        return outputs_[place.index]->at();
      case BufferKind::kWeight:
        return weights_[place.index]->at();
      case BufferKind::kArena:
        return arena_.at() + static_cast<uint64_t>(place.index);
    }
    return 0;
  }
  Status launch() {
    void* arguments[] = {&record_};
    return check(
        driver_->LaunchCooperative(function_, static_cast<unsigned>(program_->sms), 1, 1, kThreads,
                                   1, 1, static_cast<unsigned>(shared_), nullptr, arguments),
        "launch the program");
  }

  std::shared_ptr<const Program> program_;
  const Driver* driver_ = nullptr;
  Handle module_ = nullptr, function_ = nullptr, start_ = nullptr, stop_ = nullptr;
  Memory arena_, tasks_, first_, works_, params_, operands_, counter_;
  std::vector<std::unique_ptr<Memory>> inputs_, outputs_, weights_;
  DeviceProgram record_ = {};
  int groups_ = 1, shared_ = 0;
};

}  // namespace

Result<std::string> mono_source(const Program& program) {
  for (const CustomRecord& custom : program.customs)
    return Error{Code::kUnsupported, "runtime",
                 fmt::format("{} has no device code", ops::to_string(custom.op)), custom.name,
                 "compile with --target cpu"};
  std::string text = "#include \"program.cuh\"\n";
  std::string cases;
  for (size_t k = 0; k < program.bodies.size(); ++k) {
    if (program.bodies[k].text.find("w->kernels->") != std::string::npos)
      return Error{Code::kUnsupported, "runtime", "the CPU's tiles have no device code",
                   program.bodies[k].label, "plan without tiles"};
    text += fmt::format("\n#define obk_body obk_body_{}\n{}#undef obk_body\n", k,
                        program.bodies[k].text);
    cases += fmt::format("    case {0}: obk_body_{0}(t, p, x, w); break;\n", k);
  }
  text +=
      "\nstatic __device__ void obk_dispatch(int32_t body, const ObkTask* t, const int64_t* p, "
      "void* const* x, ObkLanes* w) {\n"
      "  switch (body) {\n" +
      cases + "  }\n}\n";
  return text;
}

Result<std::unique_ptr<MonoKernel>> MonoKernel::load(std::shared_ptr<const Program> program,
                                                     const Cubin& cubin) {
  auto kernel = std::make_unique<Mono>(std::move(program));
  TRY_STATUS(kernel->init(cubin));
  return std::unique_ptr<MonoKernel>(std::move(kernel));
}

Result<Gpu> first_gpu() {
  TRY(const Driver* driver, load_driver());
  int device = 0, major = 0, minor = 0;
  Gpu gpu;
  char name[128] = {};
  Handle context = nullptr;
  TRY_STATUS(check(driver->DeviceGet(&device, 0), "open the GPU"));
  TRY_STATUS(check(driver->DeviceGetName(name, sizeof name, device), "name the GPU"));
  TRY_STATUS(check(driver->DeviceGetAttribute(&major, kMajor, device), "ask the GPU"));
  TRY_STATUS(check(driver->DeviceGetAttribute(&minor, kMinor, device), "ask the GPU"));
  TRY_STATUS(check(driver->DeviceGetAttribute(&gpu.sms, kSmCount, device), "ask the GPU"));
  TRY_STATUS(check(driver->DeviceGetAttribute(&gpu.shared_bytes, kSharedPerBlockOptin, device),
                   "ask the GPU"));
  TRY_STATUS(check(driver->DriverGetVersion(&gpu.driver_version), "ask the driver"));
  TRY_STATUS(check(driver->PrimaryRetain(&context, device), "open the GPU's context"));
  TRY_STATUS(check(driver->CtxSetCurrent(context), "enter the GPU's context"));
  gpu.name = name;
  gpu.architecture = fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
  return gpu;
}

}  // namespace obelisk::runtime::cuda
