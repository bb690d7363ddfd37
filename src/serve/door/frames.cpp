#include "serve/door/frames.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace obelisk::serve::door {
namespace {

struct Head {
  uint32_t kind = 0, magic = 0x4b424f21;
  uint64_t text_bytes = 0, whole_bytes = 0;
};
constexpr uint64_t kLongestFrame = uint64_t{1} << 40;

constexpr uint64_t rounded(uint64_t size) { return (size + 63) / 64 * 64; }

void write_error(FrameWriter& to, const std::optional<Error>& error) {
  to.put(error.has_value());
  if (error)
    to.put(error->code).text(error->room).text(error->message).text(error->node).text(error->hint);
}
std::optional<Error> read_error(FrameReader& from) {
  if (!from.get<bool>()) return std::nullopt;
  Error error;
  error.code = from.get<Code>();
  error.room = from.text(), error.message = from.text(), error.node = from.text(),
  error.hint = from.text();
  return error;
}

template <typename T>
void write_optional(FrameWriter& to, const std::optional<T>& value) {
  to.put(value.has_value());
  if (value) to.put(*value);
}
template <typename T>
std::optional<T> read_optional(FrameReader& from) {
  if (!from.get<bool>()) return std::nullopt;
  return from.get<T>();
}

void write_texts(FrameWriter& to, const std::vector<std::string>& texts) {
  to.put<uint64_t>(texts.size());
  for (const std::string& text : texts) to.text(text);
}
std::vector<std::string> read_texts(FrameReader& from) {
  std::vector<std::string> out;
  const auto count = from.get<uint64_t>();
  for (uint64_t k = 0; from.ok() && k < count; ++k) out.push_back(from.text());
  return out;
}

void write_ports(FrameWriter& to, const std::vector<PortInfo>& ports) {
  to.put<uint64_t>(ports.size());
  for (const PortInfo& port : ports) to.text(port.name).put(port.dtype).shape(port.shape);
}
std::vector<PortInfo> read_ports(FrameReader& from) {
  std::vector<PortInfo> out;
  const auto count = from.get<uint64_t>();
  for (uint64_t k = 0; from.ok() && k < count; ++k) {
    PortInfo port;
    port.name = from.text(), port.dtype = from.get<DType>(), port.shape = from.shape();
    out.push_back(std::move(port));
  }
  return out;
}

}  // namespace

bool FrameWriter::send(int socket, FrameKind kind) const {
  static constexpr char kZeros[64] = {};
  Head head{static_cast<uint32_t>(kind)};
  head.text_bytes = text_.size();
  head.whole_bytes = rounded(text_.size());
  std::vector<iovec> parts = {{&head, sizeof head},
                              {const_cast<char*>(text_.data()), text_.size()}};
  const auto pad = [&](uint64_t size) {
    if (rounded(size) != size) parts.push_back({const_cast<char*>(kZeros), rounded(size) - size});
  };
  pad(text_.size());
  for (const auto& tensor : tensors_) {
    head.whole_bytes += rounded(tensor.size());
    parts.push_back({const_cast<std::byte*>(tensor.data()), tensor.size()});
    pad(tensor.size());
  }
  for (size_t first = 0; first < parts.size();) {
    msghdr message{};
    message.msg_iov = parts.data() + first;
    message.msg_iovlen = std::min<size_t>(parts.size() - first, 512);
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    auto left = static_cast<size_t>(sent);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (first < parts.size()) {
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
      parts[first].iov_len -= left;
    }
  }
  return true;
}

std::optional<Frame> receive(int socket) {
  const auto read_all = [&](void* to, uint64_t size) {
    auto* at = static_cast<char*>(to);
    while (size > 0) {
      const ssize_t got = ::recv(socket, at, size, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got, size -= static_cast<uint64_t>(got);
    }
    return true;
  };
  Head head;
  if (!read_all(&head, sizeof head) || head.magic != Head().magic ||
      head.whole_bytes > kLongestFrame || rounded(head.text_bytes) > head.whole_bytes)
    return std::nullopt;
  // The length of the values stands before them, on a boundary of its own.
  Frame frame{static_cast<FrameKind>(head.kind), Block(64 + head.whole_bytes)};
  memcpy(frame.bytes.data(), &head.text_bytes, sizeof head.text_bytes);
  if (!read_all(frame.bytes.data() + 64, head.whole_bytes)) return std::nullopt;
  return frame;
}

FrameReader::FrameReader(const Block& bytes) {
  uint64_t text = 0;
  memcpy(&text, bytes.data(), sizeof text);
  at_ = bytes.data() + 64, end_ = at_ + text;
  tensors_ = at_ + rounded(text), whole_ = bytes.data() + bytes.size();
}

std::span<const std::byte> FrameReader::tensor() {
  const auto size = get<uint64_t>();
  if (!ok_ || rounded(size) > static_cast<uint64_t>(whole_ - tensors_)) {
    ok_ = false;
    return {};
  }
  const std::span<const std::byte> out(tensors_, size);
  tensors_ += rounded(size);
  return out;
}

void write_config(FrameWriter& to, const ModelConfig& config) {
  to.text(config.name).text(config.path).put<uint64_t>(config.dimensions.size());
  for (const auto& [name, extent] : config.dimensions) to.text(name).put(extent);
  to.text(config.batch_dimension)
      .put(config.max_batch)
      .text(config.target)
      .text(config.precision)
      .text(config.granularity)
      .put<bool>(config.batch_invariant);
  write_optional(to, config.deadline);
  to.put(config.priority).put(config.weight).put(config.queue_limit).put(config.memory_limit);
}
ModelConfig read_config(FrameReader& from) {
  ModelConfig config;
  config.name = from.text(), config.path = from.text();
  const auto count = from.get<uint64_t>();
  for (uint64_t k = 0; from.ok() && k < count; ++k) {
    std::string name = from.text();
    config.dimensions[std::move(name)] = from.get<int64_t>();
  }
  config.batch_dimension = from.text(), config.max_batch = from.get<int>();
  config.target = from.text(), config.precision = from.text(), config.granularity = from.text();
  config.batch_invariant = from.get<bool>();
  config.deadline = read_optional<std::chrono::nanoseconds>(from);
  config.priority = from.get<int>(), config.weight = from.get<double>(),
  config.queue_limit = from.get<int>(), config.memory_limit = from.get<int64_t>();
  return config;
}

void write_info(FrameWriter& to, const ModelInfo& info) {
  write_config(to, info.config);
  to.put(info.state).put<bool>(info.replacing).text(info.reason);
  write_ports(to, info.inputs);
  write_ports(to, info.outputs);
  to.put(info.memory_bytes).put(info.counts).put(info.programs).put(info.to_come);
}
ModelInfo read_info(FrameReader& from) {
  ModelInfo info;
  info.config = read_config(from);
  info.state = from.get<ModelState>(), info.replacing = from.get<bool>();
  info.reason = from.text();
  info.inputs = read_ports(from), info.outputs = read_ports(from);
  info.memory_bytes = from.get<int64_t>(), info.counts = from.get<ModelCounts>();
  info.programs = from.get<int>(), info.to_come = from.get<int>();
  return info;
}

void write_request(FrameWriter& to, RequestKey key, const Request& request) {
  to.put(key).text(request.model).text(request.id).text(request.tenant);
  to.put<uint64_t>(request.inputs.size());
  for (const InputView& input : request.inputs)
    to.text(input.name).put(input.dtype).shape(input.shape).tensor(input.bytes);
  write_texts(to, request.outputs);
  write_optional(to, request.deadline);
  // One clock for all processes of a machine.
  to.put(request.priority)
      .put(request.weight)
      .put(request.trace)
      .put(request.arrival.time_since_epoch().count());
}
std::pair<RequestKey, Request> read_request(FrameReader& from) {
  Request request;
  const auto key = from.get<RequestKey>();
  request.model = from.text(), request.id = from.text(), request.tenant = from.text();
  const auto count = from.get<uint64_t>();
  for (uint64_t k = 0; from.ok() && k < count; ++k) {
    InputView input;
    input.name = from.text(), input.dtype = from.get<DType>(), input.shape = from.shape(),
    input.bytes = from.tensor();
    request.inputs.push_back(std::move(input));
  }
  request.outputs = read_texts(from);
  request.deadline = read_optional<std::chrono::nanoseconds>(from);
  request.priority = from.get<int>(), request.weight = from.get<double>(),
  request.trace = from.get<bool>();
  request.arrival = Clock::time_point(Clock::duration(from.get<Clock::rep>()));
  return {key, std::move(request)};
}

void write_answer(FrameWriter& to, RequestKey key, const Answer& answer) {
  to.put(key).put(answer.outcome);
  write_error(to, answer.error);
  write_optional(to, answer.retry_after);
  to.put<uint64_t>(answer.outputs.size());
  for (const OutputView& output : answer.outputs)
    to.text(output.name).put(output.dtype).shape(output.shape).tensor(output.bytes);
  to.put(answer.trace.has_value());
  if (!answer.trace) return;
  const Trace& trace = *answer.trace;
  to.text(trace.variant).put(trace.lane);
  write_texts(to, trace.partners);
  to.put(trace.batch_rows).put(trace.queued).put(trace.ran);
  write_optional(to, trace.slack);
  to.text(trace.reason);
}
std::pair<RequestKey, Answer> read_answer(FrameReader& from) {
  Answer answer;
  const auto key = from.get<RequestKey>();
  answer.outcome = from.get<Outcome>();
  answer.error = read_error(from);
  answer.retry_after = read_optional<std::chrono::nanoseconds>(from);
  const auto count = from.get<uint64_t>();
  for (uint64_t k = 0; from.ok() && k < count; ++k) {
    OutputView output;
    output.name = from.text(), output.dtype = from.get<DType>(), output.shape = from.shape(),
    output.bytes = from.tensor();
    answer.outputs.push_back(std::move(output));
  }
  if (from.get<bool>()) {
    Trace trace;
    trace.variant = from.text(), trace.lane = from.get<int>(), trace.partners = read_texts(from);
    trace.batch_rows = from.get<int>(), trace.queued = from.get<std::chrono::nanoseconds>(),
    trace.ran = from.get<std::chrono::nanoseconds>();
    trace.slack = read_optional<std::chrono::nanoseconds>(from), trace.reason = from.text();
    answer.trace = std::move(trace);
  }
  return {key, std::move(answer)};
}

}  // namespace obelisk::serve::door
