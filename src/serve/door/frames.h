/// serve/door/frames.h — what a server and its worker process tell each other, as frames over a
/// socket.
///
///   a frame    its kind and length, then values one after the other, then tensors on boundaries of
///   64 bytes
/// Both ends are the same program, so that there is no version; a frame that contradicts itself is
/// the end of the worker.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "serve/door/memory.h"
#include "serve/engine.h"

namespace obelisk::serve::door {

enum class FrameKind : uint32_t {
  kAdd,
  kRemove,
  kSubmit,
  kCancel,
  kStop,  // to the worker
  kAnswer,
  kModels,  // from it
};

class FrameWriter {
 public:
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  FrameWriter& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  FrameWriter& text(std::string_view value) {
    put<uint64_t>(value.size());
    text_.append(value);
    return *this;
  }
  FrameWriter& shape(const Shape& shape) {
    put<uint64_t>(shape.size());
    for (int64_t extent : shape) put(extent);
    return *this;
  }
  /// Bytes that are sent from where they lie, which they do until the frame is sent.
  FrameWriter& tensor(std::span<const std::byte> bytes) {
    put<uint64_t>(bytes.size());
    tensors_.push_back(bytes);
    return *this;
  }
  /// Sends it whole. False: the other end is gone, or took nothing for seconds.
  bool send(int socket, FrameKind kind) const;

 private:
  std::string text_;
  std::vector<std::span<const std::byte>> tensors_;
};

struct Frame {
  FrameKind kind = FrameKind::kStop;
  Block bytes;
};
/// Waits for the next frame. Nothing: the other end is gone.
std::optional<Frame> receive(int socket);

/// Reads values in the order that they were written; after a value that is not there all are empty,
/// and ok() is false.
class FrameReader {
 public:
  explicit FrameReader(const Block& bytes);
  bool ok() const { return ok_; }
  template <typename T>
  T get() {
    T value{};
    if (const std::byte* at = take(sizeof value)) memcpy(&value, at, sizeof value);
    return value;
  }
  std::string text() {
    const auto size = get<uint64_t>();
    const std::byte* at = take(size);
    return at ? std::string(reinterpret_cast<const char*>(at), size) : std::string();
  }
  Shape shape() {
    const auto size = get<uint64_t>();
    if (size > 64) ok_ = false;
    Shape out;
    for (uint64_t k = 0; ok_ && k < size; ++k) out.push_back(get<int64_t>());
    return out;
  }
  std::span<const std::byte> tensor();

 private:
  const std::byte* take(uint64_t size) {
    if (!ok_ || size > static_cast<uint64_t>(end_ - at_)) {
      ok_ = false;
      return nullptr;
    }
    at_ += size;
    return at_ - size;
  }
  const std::byte *at_, *end_, *tensors_, *whole_;
  bool ok_ = true;
};

void write_config(FrameWriter& to, const ModelConfig& config);
ModelConfig read_config(FrameReader& from);
void write_info(FrameWriter& to, const ModelInfo& info);
ModelInfo read_info(FrameReader& from);
void write_request(FrameWriter& to, RequestKey key, const Request& request);
std::pair<RequestKey, Request> read_request(FrameReader& from);  // its inputs point into the frame
void write_answer(FrameWriter& to, RequestKey key, const Answer& answer);
std::pair<RequestKey, Answer> read_answer(FrameReader& from);

}  // namespace obelisk::serve::door
