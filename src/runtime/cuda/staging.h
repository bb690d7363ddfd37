/// runtime/cuda/staging.h — memory for inputs or outputs that are arrays of the host: pinned there,
/// and as much on the GPU.
///
/// Stretches of one size lie side by side in both where several are wanted (`beside`), so that one
/// copy serves several contexts: what is copied between them is a list, and neighbours in it are
/// joined.
#pragma once

#include <memory>

#include "runtime/cuda/gpu.h"
#include "runtime/program.h"

namespace obelisk::runtime::cuda {

class Staging {
 public:
  Staging() = default;
  Staging(Staging&& other) noexcept { *this = std::move(other); }
  Staging& operator=(Staging&& other) noexcept;
  ~Staging() { release(); }
  /// A stretch of so many bytes. Inside the GPU's context, as release() is. Errors: kMemory.
  static Result<Staging> take(const Gpu& gpu, int64_t bytes, bool beside);
  void release();
  explicit operator bool() const { return block_ != nullptr; }
  std::byte* host() const { return host_; }
  DevicePointer device() const { return device_; }

 private:
  struct Block;
  struct Blocks;
  static Blocks& blocks();
  std::shared_ptr<Block> block_;
  size_t number_ = 0;  // in it
  std::byte* host_ = nullptr;
  DevicePointer device_ = 0;
};

/// Whether kernels of a graph read all inputs, or write all outputs, where the host has them (zero
/// copy): a few kilobytes, which few kernels touch, take less time over the bus than the copy
/// engine takes to begin and to end.
bool zero_copy_inputs(const Program& program);
bool zero_copy_outputs(const Program& program);

/// One copy between the two.
struct StagedCopy {
  std::byte* host = nullptr;
  DevicePointer device = 0;
  size_t bytes = 0;
  bool alone = false;  // the host's memory is a caller's: no copy may reach beyond it
};
/// Ports begin at multiples of this in a stretch, and stretches in a block.
inline constexpr int64_t kStagedAlign = 256;
/// Makes one of those that lie side by side on both sides: what fills a port up to the next is
/// copied, too.
void join_neighbours(std::vector<StagedCopy>& copies);

}  // namespace obelisk::runtime::cuda
