#include <algorithm>

#include "base/parallel.h"
#include "serve/device.h"

namespace obelisk::serve {
namespace {

class GpuWeights : public Weights {
 public:
  explicit GpuWeights(std::shared_ptr<runtime::DeviceWeights> weights)
      : weights_(std::move(weights)) {}
  void use(runtime::LoadOptions& load) const override { load.device_weights = weights_; }
  Status keep(const runtime::Executable&) override {
    bytes_ = std::max(bytes_, weights_->device_bytes());
    return ok_status();
  }
  Status release() override { return weights_->release(); }
  Status restore() override { return weights_->restore(); }
  int64_t bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<runtime::DeviceWeights> weights_;
  int64_t bytes_ = 0;
};

class GpuDevice : public Device {
 public:
  GpuDevice(const GpuOptions& options, runtime::GpuDescription gpu, std::vector<int> widths)
      : index_(options.index),
        gpu_(std::move(gpu)),
        widths_(std::move(widths)),
        instances_(options.instances),
        pooled_(options.pooled_streams),
        priorities_(options.priorities),
        warm_bytes_(options.keep_warm_bytes),
        spins_(options.spin.value_or(
            cores_we_may_use() >=
            2 * (gpu_.sms / *std::min_element(widths_.begin(), widths_.end())))) {}
  int slots() const override { return gpu_.sms; }
  std::string unit() const override { return "SMs"; }
  std::string name() const override {
    return fmt::format("{} {} {}", gpu_.name, gpu_.sms, gpu_.driver_version);
  }
  std::string target() const override { return gpu_.architecture; }
  std::vector<int> widths() const override { return widths_; }
  bool any_width() const override { return false; }
  bool overlaps() const override { return true; }
  int seats(int width, const Policy& policy) const override {
    constexpr int kMost = 8;  // chosen: of more at once the requests would rather be one batch
    if (policy.kind == PolicyKind::kStreams) return std::min(policy.streams, kMost);
    // Of launches that are shared the copies of all are one where their memory lies side by side.
    if (policy.kind != PolicyKind::kVliw || instances_) return 1;
    return std::clamp(gpu_.sms / width, 1 + std::min(policy.overlap, kMost / 2), kMost);
  }
  int threads(const Policy& policy) const override {
    if (policy.kind == PolicyKind::kStreams) return policy.streams;
    return gpu_.sms / *std::min_element(widths_.begin(), widths_.end()) + policy.overlap;
  }
  std::chrono::microseconds hand_over() const override { return {}; }  // who submits never waits
  Lanes::Spin spin() const override {
    if (!spins_) return {};
    return {.all = kIdleSpin, .longer = kPause, .some = std::max(cores_we_may_use() / 8, 1)};
  }
  Result<std::unique_ptr<runtime::GpuPulse>> pulse() const override {
    return runtime::gpu_pulse(index_, warm_bytes_);
  }
  void aim(int width, compiler::Options& options) const override {
    options.target = gpu_.architecture, options.sms = width;
    options.load.instances = instances_ && 2 * width <= gpu_.sms;
    options.load.gpu = index_;
    options.load.pooled_streams = pooled_, options.load.by_urgency = pooled_ && priorities_;
    options.load.spin = spins_ ? kRunSpin : std::chrono::microseconds(0);
  }
  Result<machine::Machine> machine(int width) const override {
    return machine::gpu(gpu_.architecture, width);
  }
  Result<std::shared_ptr<Weights>> weights() const override {
    TRY(auto made, runtime::DeviceWeights::create(index_));
    return std::shared_ptr<Weights>(std::make_shared<GpuWeights>(std::move(made)));
  }
  Result<std::unique_ptr<Seat>> seat(const runtime::Executable& executable, int) const override {
    auto seat = std::make_unique<Seat>();
    TRY(seat->context, executable.context());
    for (size_t k = 0; k < executable.program().inputs.size(); ++k) {
      TRY(std::byte* const memory, seat->context->input_memory(k));
      seat->inputs.push_back(memory);
    }
    for (size_t k = 0; k < executable.program().outputs.size(); ++k) {
      TRY(std::byte* const memory, seat->context->output_memory(k));
      seat->outputs.push_back(memory);
    }
    return seat;
  }
  int64_t memory() const override { return gpu_.free_bytes / 10 * 9; }  // some is the driver's
  bool ends_with(const Error& error) const override { return error.code == Code::kDevice; }
  bool works() const override { return runtime::describe_gpu(index_).ok(); }

 private:
  /// Chosen, not measured: an idle thread polls about as long as waking it is expected to take, one
  /// of eight cores through pauses of a server that is asked at least 20 times a second, and the
  /// end of a run for longer than most programs last.
  static constexpr std::chrono::microseconds kIdleSpin{50}, kPause{50'000}, kRunSpin{2000};
  const int index_;
  const runtime::GpuDescription gpu_;
  const std::vector<int> widths_;
  const bool instances_, pooled_, priorities_;
  const int64_t warm_bytes_;
  const bool spins_;
};

}  // namespace

Result<std::shared_ptr<const Device>> gpu_device(const GpuOptions& options) {
  TRY(runtime::GpuDescription gpu, runtime::describe_gpu(options.index));
  std::vector<int> widths = options.widths;
  constexpr int kNarrowest = 8;  // an eighth
  if (widths.empty())
    for (int part = 1; part <= kNarrowest && gpu.sms / part > 0; part *= 2)
      widths.push_back(gpu.sms / part);
  for (const int width : widths)
    if (width < 1 || width > gpu.sms)
      return Error{
          Code::kUsage, "serve",
          fmt::format("programs for {} SMs are asked for, the GPU has {}", width, gpu.sms)};
  return std::shared_ptr<const Device>(
      std::make_shared<GpuDevice>(options, std::move(gpu), std::move(widths)));
}

}  // namespace obelisk::serve
