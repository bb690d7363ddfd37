#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// Memory of the GPU that a server runs on, by the driver's own calls, which a server has begun.
class GpuMemory {
 public:
  explicit GpuMemory(int index) {
    library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int device = 0;
    if (!library_ || call<int (*)(int*, int)>("cuDeviceGet")(&device, index) != 0 ||
        call<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context_, device) != 0)
      throw std::runtime_error("the GPU cannot be opened");
  }
  std::span<const std::byte> copy_of(std::span<const std::byte> bytes) {
    use();
    unsigned long long at = 0;
    if (call<int (*)(unsigned long long*, size_t)>("cuMemAlloc_v2")(&at, bytes.size()) != 0 ||
        call<int (*)(unsigned long long, const void*, size_t)>("cuMemcpyHtoD_v2")(
            at, bytes.data(), bytes.size()) != 0 ||
        call<int (*)()>("cuCtxSynchronize")() != 0)
      throw std::runtime_error("an input cannot be copied to the GPU");
    return {reinterpret_cast<const std::byte*>(at), bytes.size()};
  }
  void read(const void* at, std::span<std::byte> to) {
    use();
    if (call<int (*)(void*, unsigned long long, size_t)>("cuMemcpyDtoH_v2")(
            to.data(), reinterpret_cast<unsigned long long>(at), to.size()) != 0)
      throw std::runtime_error("an answer cannot be copied from the GPU");
  }
  /// The same in page-locked memory of the host.
  std::span<const std::byte> pinned_copy_of(std::span<const std::byte> bytes) {
    use();
    void* at = nullptr;
    constexpr unsigned kPortable = 1;
    if (call<int (*)(void**, size_t, unsigned)>("cuMemHostAlloc")(&at, bytes.size(), kPortable) !=
        0)
      throw std::runtime_error("there is no page-locked memory for an input");
    std::memcpy(at, bytes.data(), bytes.size());
    return {static_cast<const std::byte*>(at), bytes.size()};
  }
  /// What lies there, once all work on the GPU is done.
  std::vector<std::byte> read(std::span<const std::byte> from) {
    use();
    std::vector<std::byte> bytes(from.size());
    if (call<int (*)()>("cuCtxSynchronize")() != 0 ||
        call<int (*)(void*, unsigned long long, size_t)>("cuMemcpyDtoH_v2")(
            bytes.data(), reinterpret_cast<unsigned long long>(from.data()), bytes.size()) != 0)
      throw std::runtime_error("an output cannot be read from the GPU");
    return bytes;
  }
  /// A stream that waits for no other.
  /// `urgent`: of the highest priority.
  void* stream(bool urgent = false) {
    use();
    void* made = nullptr;
    constexpr unsigned kNonBlocking = 1;
    constexpr int kHighest = -100;  // the driver takes the highest that there is
    if (call<int (*)(void**, unsigned, int)>("cuStreamCreateWithPriority")(
            &made, kNonBlocking, urgent ? kHighest : 0) != 0)
      throw std::runtime_error("the GPU gives no stream");
    return made;
  }
  /// Bytes of the GPU that are taken, by whomever.
  int64_t taken() {
    use();
    size_t free = 0, all = 0;
    if (call<int (*)(size_t*, size_t*)>("cuMemGetInfo_v2")(&free, &all) != 0)
      throw std::runtime_error("the GPU does not tell its memory");
    return static_cast<int64_t>(all - free);
  }

 private:
  void use() {  // on whatever thread asks
    if (call<int (*)(void*)>("cuCtxSetCurrent")(context_) != 0)
      throw std::runtime_error("the GPU cannot be used");
  }
  template <typename Function>
  Function call(const char* name) {
    void* const found = dlsym(library_, name);
    if (!found) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function>(found);
  }
  void *library_ = nullptr, *context_ = nullptr;
};
