/// serve/door/memory.h — received bytes, and how long they live.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
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

/// What a request's spans point into: the body as it came, and tensors that had to be written anew.
struct Received {
  Block body;
  std::vector<Block> tensors;
  std::vector<std::shared_ptr<void>> others;  // shared memory, a message of another protocol
};

}  // namespace obelisk::serve::door
