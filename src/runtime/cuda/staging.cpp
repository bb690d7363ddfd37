#include "runtime/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace obelisk::runtime::cuda {

struct Staging::Block {
  const Driver* driver = nullptr;
  void* host = nullptr;
  Memory device;
  std::vector<bool> taken;  // stretches
  ~Block() {
    if (host) driver->MemFreeHost(host);
  }
};

/// All of the process that have stretches beside each other.
struct Staging::Blocks {
  std::mutex mutex;
  std::map<std::pair<int, int64_t>, std::vector<std::weak_ptr<Block>>> by_size;  // GPU, bytes
};

Staging::Blocks& Staging::blocks() {
  static Blocks blocks;
  return blocks;
}

Staging& Staging::operator=(Staging&& other) noexcept {
  if (this == &other) return *this;
  release();
  block_ = std::move(other.block_), number_ = other.number_;
  host_ = std::exchange(other.host_, nullptr), device_ = std::exchange(other.device_, 0);
  return *this;
}

Result<Staging> Staging::take(const Gpu& gpu, int64_t bytes, bool beside) {
  // Chosen: a large array takes long enough to be copied that a call for each does not matter.
  constexpr int64_t kMostBytes = 1 << 20, kMostStretches = 16;
  bytes = std::max((bytes + kStagedAlign - 1) / kStagedAlign * kStagedAlign, kStagedAlign);
  const auto stretches =
      static_cast<size_t>(beside ? std::clamp<int64_t>(kMostBytes / bytes, 1, kMostStretches) : 1);
  Staging made;
  Blocks& all = blocks();
  const std::lock_guard lock(all.mutex);
  const auto use = [&](std::shared_ptr<Block> block, size_t number) {
    block->taken[number] = true, made.number_ = number;
    made.host_ = static_cast<std::byte*>(block->host) + number * static_cast<size_t>(bytes);
    made.device_ = block->device.at() + number * static_cast<uint64_t>(bytes);
    made.block_ = std::move(block);
  };
  std::vector<std::weak_ptr<Block>>* known = nullptr;
  if (beside) {
    known = &all.by_size[{gpu.index, bytes}];
    std::erase_if(*known, [](const auto& one) { return one.expired(); });
    for (const auto& each : *known) {
      std::shared_ptr<Block> block = each.lock();
      if (!block) continue;
      const auto free = std::find(block->taken.begin(), block->taken.end(), false);
      if (free == block->taken.end()) continue;
      use(block, static_cast<size_t>(free - block->taken.begin()));
      return made;
    }
  }
  auto block = std::make_shared<Block>();
  TRY(block->driver, load_driver());
  const int64_t whole = bytes * static_cast<int64_t>(stretches);
  block->taken.assign(stretches, false);
  TRY_STATUS(block->device.reserve(whole, "inputs and outputs"));
  // What fills a port up to the next is copied with it.
  TRY_STATUS(check(block->driver->MemsetD8(block->device.at(), 0, static_cast<size_t>(whole)),
                   "clear the memory of inputs and outputs"));
  TRY_STATUS(
      check(block->driver->StreamSynchronize(nullptr), "clear the memory of inputs and outputs"));
  TRY_STATUS(check(block->driver->MemHostAlloc(&block->host, static_cast<size_t>(whole), 0),
                   "pinned memory for inputs and outputs"));
  if (known) known->push_back(block);
  use(std::move(block), 0);
  return made;
}

void Staging::release() {
  if (!block_) return;
  const std::lock_guard lock(blocks().mutex);
  block_->taken[number_] = false;
  block_.reset();  // the last one frees it
}

void join_neighbours(std::vector<StagedCopy>& copies) {
  std::sort(copies.begin(), copies.end(),
            [](const StagedCopy& a, const StagedCopy& b) { return a.device < b.device; });
  size_t last = 0;
  for (size_t k = 1; k < copies.size(); ++k) {
    StagedCopy& before = copies[last];
    const StagedCopy& next = copies[k];
    const uint64_t far = next.device - before.device;
    const bool near = !before.alone && !next.alone && far >= before.bytes &&
                      far < before.bytes + static_cast<uint64_t>(kStagedAlign) &&
                      next.host == before.host + far;
    if (near)
      before.bytes = static_cast<size_t>(far) + next.bytes;
    else
      copies[++last] = next;
  }
  if (!copies.empty()) copies.resize(last + 1);
}

namespace {

/// Bytes and kernels; chosen, no others were measured. A read waits for the bus, so that few
/// kernels may have any, and none whose tiles read it piece by piece (h200_few_rows.json); nobody
/// waits for a write.
constexpr int64_t kMostRead = 2048, kMostWritten = 16384;
constexpr int kMostReaders = 2, kMostWriters = 1;

/// Whether a copy inside the run has the port, too, or an output lies in it.
bool is_copied(const Program& program, BufferKind kind, size_t port) {
  if (kind == BufferKind::kOutput && program.outputs[port].in_place_of >= 0) return true;
  for (const Port& output : program.outputs)
    if (kind == BufferKind::kInput && output.in_place_of == static_cast<int>(port)) return true;
  return std::ranges::any_of(program.copies, [&](const Program::Copy& copy) {
    return (kind == BufferKind::kOutput && copy.output == static_cast<int>(port)) ||
           (copy.from.kind == kind && copy.from.index == static_cast<int64_t>(port));
  });
}

bool zero_copy(const Program& program, BufferKind kind) {
  const bool inputs = kind == BufferKind::kInput;
  const std::vector<Port>& ports = inputs ? program.inputs : program.outputs;
  if (program.granularity == machine::Granularity::kMono) return false;
  std::vector<int> works(ports.size());
  for (const WorkRecord& work : program.works) {
    std::set<int64_t> named;
    for (const Place& place : work.operands)
      if (place.kind == kind) named.insert(place.index);
    const bool tiles =
        work.body >= 0 &&
        program.bodies[static_cast<size_t>(work.body)].traits.calls(codegen::kAllTiles);
    if (inputs && !named.empty() && tiles) return false;
    for (const int64_t port : named) ++works[static_cast<size_t>(port)];
  }
  int64_t bytes = 0;
  for (size_t k = 0; k < ports.size(); ++k) {
    if (is_copied(program, kind, k) || works[k] > (inputs ? kMostReaders : kMostWriters))
      return false;
    bytes += ports[k].type.bytes();
  }
  return bytes <= (inputs ? kMostRead : kMostWritten);
}

}  // namespace

bool zero_copy_inputs(const Program& program) { return zero_copy(program, BufferKind::kInput); }
bool zero_copy_outputs(const Program& program) { return zero_copy(program, BufferKind::kOutput); }

}  // namespace obelisk::runtime::cuda
