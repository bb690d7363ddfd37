#include "runtime/cuda/gpu.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "runtime/runtime.h"

namespace obelisk::runtime::cuda {

Result<Gpu> open_gpu(int index) {
  TRY(const Driver* driver, load_driver());
  static std::mutex mutex;  // guards `opened`
  static std::map<int, Gpu> opened;
  std::lock_guard lock(mutex);
  if (auto known = opened.find(index); known != opened.end()) return known->second;
  int count = 0;
  TRY_STATUS(check(driver->DeviceGetCount(&count), "count the GPUs"));
  if (index < 0 || index >= count)
    return Error{Code::kDevice, "runtime",
                 fmt::format("GPU {} is asked for, this machine has {}", index, count), "",
                 fmt::format("--target cuda:{}", count - 1)};
  Gpu gpu;
  gpu.index = index;
  int device = 0, major = 0, minor = 0, cooperative = 0;
  char name[128] = {};
  TRY_STATUS(check(driver->DeviceGet(&device, index), "open the GPU"));
  TRY_STATUS(check(driver->DeviceGetName(name, sizeof name, device), "name the GPU"));
  for (auto [to, attribute] :
       {std::pair{&major, kMajor}, std::pair{&minor, kMinor}, std::pair{&gpu.sms, kSmCount},
        std::pair{&gpu.shared_bytes, kSharedPerBlockOptin}, std::pair{&cooperative, kCooperative}})
    TRY_STATUS(check(driver->DeviceGetAttribute(to, attribute, device), "ask the GPU"));
  gpu.name = name;
  constexpr int kFirstWithSuffix = 9;
  gpu.arch = {major, minor, major >= kFirstWithSuffix ? 'a' : '\0'};
  if (major < 8)
    return Error{
        Code::kDevice, "runtime",
        fmt::format("{} is an {}, the least that is supported is sm_80", name, to_string(gpu.arch)),
        "", "run with --target cpu"};
  gpu.driver_version = driver_version();
  TRY_STATUS(check(driver->PrimaryRetain(&gpu.context, device), "open the GPU's context"));
  return opened[index] = gpu;
}

Result<Gpu> first_gpu() {
  TRY(const Gpu gpu, open_gpu(0));
  TRY(const Driver* driver, load_driver());
  TRY_STATUS(check(driver->CtxSetCurrent(gpu.context), "enter the GPU's context"));
  return gpu;
}

InContext::InContext(const Gpu& gpu) {
  if (auto driver = load_driver(); driver.ok() && (*driver)->CtxPush(gpu.context) == 0)
    driver_ = *driver;
}

InContext::~InContext() {
  Handle left = nullptr;
  if (driver_) driver_->CtxPop(&left);
}

Status copy_in(const Driver& driver, DevicePointer to, const void* from, int64_t bytes,
               const std::string& what) {
  if (bytes == 0) return ok_status();
  TRY_STATUS(check(driver.CopyToDevice(to, from, static_cast<size_t>(bytes)), what));
  return check(driver.StreamSynchronize(nullptr), what);
}

void Memory::release() {
  if (at_) driver_->MemFree(at_);
  at_ = 0;
}

Status Memory::reserve(int64_t bytes, const std::string& what) {
  TRY(driver_, load_driver());
  release();
  Status got = check(driver_->MemAlloc(&at_, static_cast<size_t>(std::max<int64_t>(bytes, 16))),
                     fmt::format("{} of {}", what, to_string(Bytes{bytes})));
  bytes_ = got.ok() ? bytes : 0;
  if (got.ok()) return got;
  at_ = 0;
  size_t free = 0, total = 0;
  Error error = got.error();
  if (driver_->MemInfo(&free, &total) == 0)
    error.message +=
        fmt::format("; {} of the GPU's {} are free", to_string(Bytes{static_cast<int64_t>(free)}),
                    to_string(Bytes{static_cast<int64_t>(total)}));
  error.hint = "a smaller batch, fewer contexts, or a GPU with more memory";
  return error;
}

Status Memory::fill(const void* from, int64_t bytes, const std::string& what) {
  TRY_STATUS(reserve(bytes, what));
  return copy_in(*driver_, at_, from, bytes, what);
}

}  // namespace obelisk::runtime::cuda

namespace obelisk::runtime {

Result<GpuDescription> describe_gpu(int index) {
  TRY(const cuda::Gpu gpu, cuda::open_gpu(index));
  TRY(const cuda::Driver* driver, cuda::load_driver());
  const cuda::InContext here(gpu);
  size_t free = 0, total = 0;
  TRY_STATUS(cuda::check(driver->MemInfo(&free, &total), "ask for the GPU's memory"));
  return GpuDescription{
      gpu.name,           to_string(gpu.arch),        gpu.sms,
      gpu.driver_version, static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

}  // namespace obelisk::runtime
