// Weights of several programs in ranges of addresses that stay, whether memory is behind them or
// not (the driver's virtual memory management).
#include <algorithm>
#include <map>
#include <mutex>

#include "runtime/cuda/gpu.h"
#include "runtime/runtime.h"

namespace obelisk::runtime {
namespace {

using namespace cuda;

constexpr int64_t kAligned = 256;

/// Addresses of the GPU, memory behind them, and a copy of what it holds on the host.
class Range {
 public:
  Range(const Driver& driver, MemoryKind kind) : driver_(driver), kind_(kind) {}
  Range(const Range&) = delete;
  ~Range() {
    unmap();
    if (pinned_) driver_.MemFreeHost(pinned_);
    if (at_ && mapped()) driver_.AddressFree(at_, static_cast<size_t>(bytes_));
    if (at_ && !mapped()) driver_.MemFree(at_);
  }
  DevicePointer at() const { return at_; }
  int64_t device_bytes() const { return here_ ? bytes_ : 0; }
  int64_t host_bytes() const { return pinned_ ? bytes_ : 0; }

  Status reserve(int64_t bytes) {
    if (!mapped()) {
      bytes_ = bytes;
      TRY_STATUS(check(driver_.MemAlloc(&at_, static_cast<size_t>(bytes)), what()));
      here_ = true;
      return ok_status();
    }
    size_t step = 0;
    TRY_STATUS(check(driver_.MemGranularity(&step, &kind_, 0), "ask for the GPU's pages"));
    const auto page = static_cast<int64_t>(std::max<size_t>(step, 1));
    bytes_ = (bytes + page - 1) / page * page;
    TRY_STATUS(check(driver_.AddressReserve(&at_, static_cast<size_t>(bytes_), 0, 0, 0),
                     "addresses for weights"));
    return map();
  }
  Status release() {
    if (!here_) return ok_status();
    if (!mapped())
      return Error{Code::kUnsupported, "runtime", "the NVIDIA driver maps no memory", "",
                   "update the driver to 525 or later"};
    if (!pinned_) {
      void* pinned = nullptr;
      TRY_STATUS(check(driver_.MemHostAlloc(&pinned, static_cast<size_t>(bytes_), 0),
                       "pinned memory for weights"));
      const Status copied = check(driver_.CopyToHost(pinned, at_, static_cast<size_t>(bytes_)),
                                  "copy weights to the host");
      if (!copied.ok()) {
        driver_.MemFreeHost(pinned);
        return copied;
      }
      pinned_ = pinned;  // weights do not change: the copy serves again
    }
    unmap();
    return ok_status();
  }
  Status restore() {
    if (here_) return ok_status();
    TRY_STATUS(map());
    const Status copied = copy_in(driver_, at_, pinned_, bytes_, "copy weights back");
    if (!copied.ok()) unmap();
    return copied;
  }

 private:
  std::string what() const { return fmt::format("weights of {}", to_string(Bytes{bytes_})); }
  bool mapped() const {
    return driver_.AddressReserve && driver_.AddressFree && driver_.MemCreate &&
           driver_.MemRelease && driver_.MemMap && driver_.MemUnmap && driver_.MemSetAccess &&
           driver_.MemGranularity;
  }
  Status map() {
    const auto bytes = static_cast<size_t>(bytes_);
    unsigned long long memory = 0;
    TRY_STATUS(check(driver_.MemCreate(&memory, bytes, &kind_, 0), what()));
    Status status = check(driver_.MemMap(at_, bytes, 0, memory, 0), what());
    if (status.ok()) {
      const MemoryAccess access{.device = kind_.device};
      status = check(driver_.MemSetAccess(at_, bytes, &access, 1), what());
      if (!status.ok()) driver_.MemUnmap(at_, bytes);
    }
    driver_.MemRelease(memory);  // it stays as long as it is mapped
    here_ = status.ok();
    return status;
  }
  void unmap() {
    if (here_ && mapped()) driver_.MemUnmap(at_, static_cast<size_t>(bytes_));
    here_ = false;
  }

  const Driver& driver_;
  const MemoryKind kind_;
  DevicePointer at_ = 0;
  int64_t bytes_ = 0;
  bool here_ = false;
  void* pinned_ = nullptr;
};

class CudaWeights : public DeviceWeights {
 public:
  CudaWeights(Gpu gpu, const Driver& driver, int device)
      : gpu_(std::move(gpu)), driver_(driver), kind_{.device = device} {}
  ~CudaWeights() override {
    InContext here(gpu_);
    ranges_.clear();
  }

  Result<std::vector<uint64_t>> place(std::span<const Tensor> weights) override {
    InContext here(gpu_);
    std::lock_guard lock(mutex_);
    std::map<Key, int64_t> fresh;  // and where in the new range
    int64_t bytes = 0;
    for (const Tensor& weight : weights) {
      if (weight.empty() || placed_.contains(key_of(weight)) || fresh.contains(key_of(weight)))
        continue;
      fresh[key_of(weight)] = bytes;
      bytes += (weight.bytes() + kBehindWeight + kAligned - 1) / kAligned * kAligned;
    }
    if (!fresh.empty()) {
      auto range = std::make_unique<Range>(driver_, kind_);
      TRY_STATUS(range->reserve(bytes));
      std::map<Key, Placed> copied;
      for (const Tensor& weight : weights) {
        const auto found = weight.empty() ? fresh.end() : fresh.find(key_of(weight));
        if (found == fresh.end() || copied.contains(found->first)) continue;
        const DevicePointer at = range->at() + static_cast<uint64_t>(found->second);
        TRY_STATUS(copy_in(driver_, at, weight.data(), weight.bytes(), "copy a weight"));
        copied[found->first] = {weight, at};
      }
      placed_.merge(copied);
      ranges_.push_back(std::move(range));
    }
    std::vector<uint64_t> at;
    for (const Tensor& weight : weights)
      at.push_back(weight.empty() ? 0 : placed_.at(key_of(weight)).at);
    return at;
  }

  Status release() override {
    InContext here(gpu_);
    std::lock_guard lock(mutex_);
    for (size_t k = 0; k < ranges_.size(); ++k) {
      const Status status = ranges_[k]->release();
      if (status.ok()) continue;
      for (size_t back = 0; back < k; ++back) TRY_STATUS(ranges_[back]->restore());
      return status;
    }
    return ok_status();
  }
  Status restore() override {
    InContext here(gpu_);
    std::lock_guard lock(mutex_);
    for (size_t k = 0; k < ranges_.size(); ++k) {
      const Status status = ranges_[k]->restore();
      if (status.ok()) continue;
      for (size_t back = 0; back < k; ++back) TRY_STATUS(ranges_[back]->release());
      return status;
    }
    return ok_status();
  }
  int64_t device_bytes() const override {
    std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (const auto& range : ranges_) bytes += range->device_bytes();
    return bytes;
  }
  int64_t host_bytes() const override {
    std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (const auto& range : ranges_) bytes += range->host_bytes();
    return bytes;
  }

 private:
  using Key = std::pair<const void*, int64_t>;
  static Key key_of(const Tensor& tensor) { return {tensor.data(), tensor.bytes()}; }
  struct Placed {
    Tensor kept;  // so that nothing else comes to lie where it is
    DevicePointer at = 0;
  };

  const Gpu gpu_;
  const Driver& driver_;
  const MemoryKind kind_;
  mutable std::mutex mutex_;  // all below
  std::map<Key, Placed> placed_;
  std::vector<std::unique_ptr<Range>> ranges_;
};

}  // namespace

Result<std::shared_ptr<DeviceWeights>> DeviceWeights::create(int index) {
  TRY(const Gpu gpu, open_gpu(index));
  TRY(const Driver* driver, load_driver());
  int device = 0;
  TRY_STATUS(check(driver->DeviceGet(&device, index), "open the GPU"));
  return std::shared_ptr<DeviceWeights>(std::make_shared<CudaWeights>(gpu, *driver, device));
}

}  // namespace obelisk::runtime
