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

/// Under a tool that makes kernels many times slower (gpu.py sanitize): cases of every block, but
/// small ones, once each.
inline bool few() { return getenv("OBELISK_GPU_FEW") != nullptr; }

/// Compiled, or as another process of the same run has it in the folder OBELISK_GPU_CUBINS.
inline Result<Cubin> cubin_of(const std::string& text, const std::string& architecture,
                              const std::vector<std::string>& defines) {
  const char* folder = getenv("OBELISK_GPU_CUBINS");
  if (!folder) return compile_cubin(text, architecture, defines);
  std::string all = architecture + text;
  for (const std::string& define : defines) all += "\n" + define;
  const std::string kept = std::string(folder) + "/" + to_string(hash_text(all)) + ".cubin";
  if (auto bytes = read_file(kept); bytes.ok()) return Cubin{.bytes = std::move(*bytes)};
  TRY(Cubin cubin, compile_cubin(text, architecture, defines));
  if (Status written = write_file(kept, cubin.bytes); !written.ok()) return written.error();
  return cubin;
}

/// One module, and device memory that lives as long as the test.
struct Device {
  const Driver* d = nullptr;
  Gpu gpu;
  Handle module = nullptr;
  std::vector<DevicePointer> memory;
  std::string log;

  Status open(const char* text, std::vector<std::string> defines) {
    if (const char* more = getenv("OBELISK_GPU_DEFINE")) defines.push_back(more);
    for (std::string& define : defines)  // a tool's clocks are others
      if (few() && define.starts_with("OBK_WATCHDOG=")) define = "OBK_WATCHDOG=400000000000LL";
    if (auto driver = load_driver(); driver.ok())
      d = *driver;
    else if (!getenv("OBELISK_GPU_CUBINS"))
      return driver.error();
    else if (auto made = cubin_of(text, "sm_90a", defines); !made.ok())
      return made.error();
    else
      return driver.error();
    TRY(gpu, first_gpu());
    TRY(Cubin cubin, cubin_of(text, to_string(gpu.arch), defines));
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

#define OPEN(device, source, ...)                                          \
  Device device;                                                           \
  if (Status opened = device.open(source, {__VA_ARGS__}); !opened.ok()) {  \
    ASSERT_NE(opened.error().code, Code::kBuild) << opened.error().text(); \
    GTEST_SKIP() << opened.error().text();                                 \
  }                                                                        \
  static_assert(true)

}  // namespace obelisk::runtime::cuda
