/// runtime/cuda/gpu.h — a GPU of this machine: what it is, its memory, and calls inside its
/// context.
///
///   TRY(const Gpu gpu, open_gpu(0));
///   InContext here(gpu);               until the end of the scope this thread's calls go to it
///   Memory arena;  TRY_STATUS(arena.reserve(bytes, "the arena"));
#pragma once

#include <string>
#include <vector>

#include "machine/machine.h"
#include "runtime/cuda/driver.h"

namespace obelisk::runtime::cuda {

struct Gpu {
  std::string name;  // "NVIDIA H200"
  machine::Arch arch;
  int index = 0, sms = 0, shared_bytes = 0, driver_version = 0;
  Handle context = nullptr;  // the primary one, which other libraries of the process share
};

/// Errors: kDevice, when there is no driver, no GPU, or none of this number.
Result<Gpu> open_gpu(int index);
/// The first one, entered for the rest of the process.
Result<Gpu> first_gpu();

/// Enters a GPU's context and leaves it again, so that the caller's own stays what it was.
class InContext {
 public:
  explicit InContext(const Gpu& gpu);
  ~InContext();
  InContext(const InContext&) = delete;

 private:
  const Driver* driver_ = nullptr;
};

/// Copies the host's bytes to the GPU; they are there, for kernels of every stream, when it
/// returns. (The driver's own copy returns when it has read pageable memory: its last bytes may
/// still be under way, and streams like ours do not wait for the default one.)
Status copy_in(const Driver& driver, DevicePointer to, const void* from, int64_t bytes,
               const std::string& what);

/// Room behind a weight's last byte: copies of whole pages may read past its end.
inline constexpr int64_t kBehindWeight = 256;

/// Device memory that frees itself. Made and ended inside the GPU's context.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory(Memory&& other) noexcept : driver_(other.driver_), at_(other.at_), bytes_(other.bytes_) {
    other.at_ = 0, other.bytes_ = 0;
  }
  ~Memory() { release(); }
  void release();
  Status reserve(int64_t bytes, const std::string& what);
  Status fill(const void* from, int64_t bytes, const std::string& what);
  template <typename T>
  Status fill(const std::vector<T>& from, const std::string& what) {
    return fill(from.data(), static_cast<int64_t>(from.size() * sizeof(T)), what);
  }
  DevicePointer at() const { return at_; }
  int64_t bytes() const { return bytes_; }

 private:
  const Driver* driver_ = nullptr;
  DevicePointer at_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace obelisk::runtime::cuda
