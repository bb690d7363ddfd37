/// serve/door/memory.h — received bytes, and how long they live.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace obelisk::serve::door {

/// Bytes on a boundary of 64, with room behind them for readers that look ahead (a JSON parser's).
/// They are not written before they are received: pages that nothing arrives for cost nothing.
class Block {
 public:
  static constexpr size_t kBoundary = 64, kBehind = 64;
  Block() = default;
  /// `before`: bytes in front of the boundary, so that what comes after a header of that length
  /// lies on it.
  explicit Block(size_t size, size_t before = 0) : size_(size) {
    const size_t shift = (kBoundary - before % kBoundary) % kBoundary;
    const size_t whole = (shift + size + kBehind + kBoundary - 1) / kBoundary * kBoundary;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBoundary, whole)));
    if (!memory_) throw std::bad_alloc();
    data_ = memory_.get() + shift;
  }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Bytes that the bodies of all connections may take together. Threads: any.
class BodyMemory {
 public:
  /// Bodies up to this length are always taken: who sends long ones keeps nobody from asking.
  static constexpr size_t kShort = 64 << 10;
  explicit BodyMemory(size_t limit) : limit_(limit) {}
  size_t limit() const { return limit_; }
  size_t taken() const { return taken_; }
  uint64_t refused() const { return refused_; }

 private:
  friend class BodyShare;
  const size_t limit_;
  std::atomic<size_t> taken_{0};
  std::atomic<uint64_t> refused_{0};
};

/// What of it one body has, from when its length is known until it is gone.
class BodyShare {
 public:
  BodyShare() = default;
  BodyShare(const BodyShare&) = delete;
  ~BodyShare() {
    if (memory_) memory_->taken_ -= bytes_;
  }
  /// So many bytes in all from now on. False where they are not there: what it had stays.
  bool hold(const std::shared_ptr<BodyMemory>& memory, size_t bytes) {
    if (!memory || (bytes <= BodyMemory::kShort && !memory_)) return true;
    size_t taken = memory->taken_;
    do {
      if (bytes > bytes_ && taken - bytes_ + bytes > memory->limit_)
        return ++memory->refused_, false;
    } while (!memory->taken_.compare_exchange_weak(taken, taken - bytes_ + bytes));
    memory_ = memory, bytes_ = bytes;
    return true;
  }

 private:
  std::shared_ptr<BodyMemory> memory_;
  size_t bytes_ = 0;
};

/// What a request's spans point into: the body as it came, and tensors that had to be written anew.
struct Received {
  BodyShare share;
  Block body;
  std::vector<Block> tensors;
  std::vector<std::shared_ptr<void>> others;  // shared memory, a message of another protocol
};

}  // namespace obelisk::serve::door
