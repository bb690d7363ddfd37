#include "runtime/cuda/driver.h"

#include <dlfcn.h>

namespace obelisk::runtime::cuda {
namespace {

Driver table;

Result<const Driver*> load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Error{Code::kDevice, "runtime", "no NVIDIA driver: libcuda.so.1 is not found", "",
                 "install the driver, or run with --target cpu"};
#define OBELISK_RESOLVE(name, symbol, arguments)                                   \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, symbol));     \
  if (!table.name)                                                                 \
    return Error{Code::kDevice, "runtime", "the NVIDIA driver has no " symbol, "", \
                 "update the driver to 525 or later"};
  OBELISK_DRIVER_CALLS(OBELISK_RESOLVE)
#undef OBELISK_RESOLVE
#define OBELISK_RESOLVE(name, symbol, arguments) \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, symbol));
  OBELISK_OPTIONAL_DRIVER_CALLS(OBELISK_RESOLVE)
#undef OBELISK_RESOLVE
  TRY_STATUS(check(table.Init(0), "start the NVIDIA driver"));
  int count = 0;
  TRY_STATUS(check(table.DeviceGetCount(&count), "count the GPUs"));
  if (count == 0)
    return Error{Code::kDevice, "runtime", "the NVIDIA driver finds no GPU", "",
                 "run with --target cpu"};
  return &table;
}

}  // namespace

Result<const Driver*> load_driver() {
  static const Result<const Driver*> loaded = load();
  return loaded;
}

int driver_version() {
  static const int version = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto ask =
        library ? reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion")) : nullptr;
    int version = 0;
    return ask && ask(&version) == 0 ? version : 0;
  }();
  return version;
}

/// A map of elements of `size` bytes in so many dimensions, swizzled by rows of 128 bytes.
static Status encode(DevicePointer at, int dimensions, const uint64_t* extent,
                     const uint64_t* bytes, const unsigned* box, int64_t size, bool tf32,
                     void* map) {
  constexpr int kHalf = 1, kFloat = 7, kTf32 = 11, kPlain = 0, kSwapped128 = 3, kWide = 3,
                kZeros = 0;
  if (!table.MapEncode)
    return Error{Code::kDevice, "runtime", "the NVIDIA driver has no cuTensorMapEncodeTiled", "",
                 "update the driver to 525 or later"};
  const unsigned step[] = {1, 1, 1};
  return check(table.MapEncode(map,
                               size != 4 ? kHalf
                               : tf32    ? kTf32
                                         : kFloat,
                               static_cast<unsigned>(dimensions), at, extent, bytes, box, step,
                               kPlain, kSwapped128, kWide, kZeros),
               "describe a matrix to TMA");
}

Status encode_rows(DevicePointer at, int64_t rows, int64_t pitch, int64_t blocks, int64_t together,
                   int64_t size, bool tf32, void* map) {
  const auto wide = static_cast<unsigned>(128 / size);
  const uint64_t extent[] = {wide, static_cast<uint64_t>(rows),
                             static_cast<uint64_t>(pitch / wide)};
  const uint64_t bytes[] = {static_cast<uint64_t>(pitch * size), 128};
  const unsigned box[] = {wide, static_cast<unsigned>(together), static_cast<unsigned>(blocks)};
  return encode(at, 3, extent, bytes, box, size, tf32, map);
}

Status encode_boxes(DevicePointer at, int64_t rows, int64_t columns, int64_t pitch,
                    int64_t together, int64_t size, bool tf32, void* map) {
  const uint64_t extent[] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t bytes[] = {static_cast<uint64_t>(pitch * size)};
  const unsigned box[] = {static_cast<unsigned>(128 / size), static_cast<unsigned>(together)};
  return encode(at, 2, extent, bytes, box, size, tf32, map);
}

Status check(int code, const std::string& what) {
  if (code == 0) return ok_status();
  const char *name = nullptr, *text = nullptr;
  if (table.ErrorName) table.ErrorName(code, &name);
  if (table.ErrorString) table.ErrorString(code, &text);
  const Code kind = code == 2 ? Code::kMemory : Code::kDevice;
  return Error{kind, "runtime",
               fmt::format("{}: {} ({})", what, text ? text : "unknown error",
                           name ? name : std::to_string(code)),
               "", ""};
}

}  // namespace obelisk::runtime::cuda
