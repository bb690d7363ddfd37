// tests/gpu/device.h — a module of device code and memory of the GPU for one test.
//
//   OPEN(g, kText, "NAME=value", ...);     compiles, loads; skips the test where no GPU is
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "runtime/cuda/gpu.h"
#include "runtime/cuda/nvrtc.h"

namespace obelisk::runtime::cuda {

/// One module, and device memory that lives as long as the test.
struct Device {
  const Driver* d = nullptr;
  Gpu gpu;
  Handle module = nullptr;
  std::vector<DevicePointer> memory;
  std::string log;

  Status open(const char* text, std::vector<std::string> defines) {
    if (const char* more = getenv("OBELISK_GPU_DEFINE")) defines.push_back(more);
    TRY(d, load_driver());
    TRY(gpu, first_gpu());
    TRY(Cubin cubin, compile_cubin(text, gpu.architecture, defines));
    log = cubin.log;
    return check(d->ModuleLoadData(&module, cubin.bytes.data()), "load");
  }
  Handle function(const char* name, int shared) {
    Handle f = nullptr;
    EXPECT_EQ(d->ModuleGetFunction(&f, module, name), 0);
    EXPECT_EQ(d->FuncSetAttribute(f, kDynamicShared, shared), 0);
    return f;
  }
  DevicePointer make(size_t bytes, int fill) {
    DevicePointer p = 0;
    EXPECT_EQ(d->MemAlloc(&p, bytes), 0);
    EXPECT_EQ(d->MemsetD8(p, static_cast<unsigned char>(fill), bytes), 0);
    memory.push_back(p);
    return p;
  }
  template <typename T>
  T read(DevicePointer p) {
    T value = {};
    EXPECT_EQ(d->CopyToHost(&value, p, sizeof value), 0);
    return value;
  }
  template <typename... Args>
  int launch(Handle f, int grid, int shared, Handle stream, Args... args) {
    void* list[] = {&args...};
    return d->LaunchCooperative(f, static_cast<unsigned>(grid), 1, 1, 256, 1, 1,
                                static_cast<unsigned>(shared), stream, list);
  }
  ~Device() {
    if (!d) return;
    for (DevicePointer p : memory) d->MemFree(p);
    if (module) d->ModuleUnload(module);
  }
};

inline float f16_to_float(uint16_t h) {
  const int e = (h >> 10) & 31, m = h & 1023;
  const float v =
      e ? std::ldexp(static_cast<float>(m + 1024), e - 25) : std::ldexp(static_cast<float>(m), -24);
  return h & 0x8000 ? -v : v;
}
inline uint16_t float_to_f16(float f) {
  return static_cast<uint16_t>(std::bit_cast<uint16_t>(static_cast<_Float16>(f)));
}
inline float bf16_to_float(uint16_t h) {
  return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}
inline uint16_t float_to_bf16(float f) {
  const uint32_t b = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}

#define OPEN(device, source, ...)                                       \
  Device device;                                                        \
  if (Status opened = device.open(source, {__VA_ARGS__}); !opened.ok()) { \
    ASSERT_NE(opened.error().code, Code::kBuild) << opened.error().text(); \
    GTEST_SKIP() << opened.error().text();                              \
  }                                                                     \
  static_assert(true)

}  // namespace obelisk::runtime::cuda
