#include "serve/door/infer.h"

#include <cstring>

#include "serve/door/shared_memory.h"
#include "serve/door/wire_types.h"

namespace obelisk::serve::door {
namespace {

std::optional<int64_t> whole(const Parameter& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  if (const auto* number = std::get_if<double>(&value))
    if (*number == static_cast<double>(static_cast<int64_t>(*number)) && std::abs(*number) < 9e15)
      return static_cast<int64_t>(*number);
  return std::nullopt;
}

std::optional<bool> truth(const Parameter& value) {
  if (const auto* yes = std::get_if<bool>(&value)) return *yes;
  if (const auto number = whole(value); number && (*number == 0 || *number == 1))
    return *number == 1;
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (*text == "true" || *text == "1") return true;
    if (*text == "false" || *text == "0") return false;
  }
  return std::nullopt;
}

// A thousand years: what is longer is none, and sums of it with a clock would not fit.
constexpr int64_t kLongestMicroseconds = int64_t{1000} * 365 * 86400 * 1'000'000 / 10;

}  // namespace

Checked apply_parameter(Call& call, std::string_view name, const Parameter& value) {
  if (name == "timeout") {
    const auto us = whole(value);
    if (!us || *us < 0)
      return bad_request("parameter 'timeout' is a number of microseconds that is not negative");
    if (*us > 0 && *us < kLongestMicroseconds)
      call.request.deadline = std::chrono::microseconds(*us);
  } else if (name == "priority") {
    const auto priority = whole(value);
    if (!priority || *priority < 0 || *priority > 1'000'000)
      return bad_request(
          "parameter 'priority' is a number from 0 (the model's own) or 1 (the most urgent) on");
    call.request.priority = static_cast<int>(*priority);
  } else if (name == "tenant") {
    const auto* tenant = std::get_if<std::string>(&value);
    if (!tenant || tenant->size() > 256)
      return bad_request("parameter 'tenant' is a string of at most 256 bytes");
    call.request.tenant = *tenant;
  } else if (name == "trace") {
    const auto traced = truth(value);
    if (!traced) return bad_request("parameter 'trace' is true or false");
    call.request.trace = *traced;
  } else if (name == "binary_data_output") {
    const auto binary = truth(value);
    if (!binary) return bad_request("parameter 'binary_data_output' is true or false");
    call.binary = *binary;
  } else if (name == "sequence_id") {
    const auto id = whole(value);
    const auto* text = std::get_if<std::string>(&value);
    if ((id && *id != 0) || (text && !text->empty()))
      return bad_request(
          "parameter 'sequence_id': requests of a sequence are not served; models here keep no "
          "state");
  }
  return std::nullopt;
}

void apply_transport_deadline(Call& call, std::chrono::nanoseconds budget) {
  if (!call.request.deadline) call.request.deadline = budget;
}

Maybe<DType> input_type(std::string_view input, std::string_view datatype) {
  const auto dtype = parse_wire_name(datatype);
  if (dtype) return *dtype;
  if (datatype == "BYTES")
    return bad_request(
        fmt::format("input '{}' has datatype BYTES; models here take no strings", input));
  return bad_request(
      fmt::format("input '{}' has datatype '{}', which is none; FP32, INT64, BOOL, ...", input,
                  datatype.substr(0, 64)));
}

Maybe<size_t> tensor_bytes(std::string_view name, DType dtype, const Shape& shape) {
  if (shape.size() > 64)
    return bad_request(
        fmt::format("input '{}' has {} dimensions, 64 are allowed", name, shape.size()));
  const auto count = checked_element_count(shape);
  if (!count || *count > (int64_t{1} << 56))
    return bad_request(
        fmt::format("input '{}' has the shape {}, which no tensor has", name, to_string(shape)));
  return static_cast<size_t>(byte_size(dtype, *count));
}

Checked add_input(Call& call, std::string name, std::string_view datatype, Shape shape,
                  std::span<const std::byte> bytes) {
  auto dtype = input_type(name, datatype);
  if (!dtype.ok()) return dtype.fault();
  auto wanted = tensor_bytes(name, *dtype, shape);
  if (!wanted.ok()) return wanted.fault();
  if (bytes.size() != *wanted)
    return bad_request(fmt::format("input '{}' brings {} bytes, but {} {} takes {}", name,
                                   bytes.size(), wire_name(*dtype), to_string(shape), *wanted));
  if (!valid_elements(*dtype, bytes.data(), bytes.size()))
    return bad_request(fmt::format("input '{}' is BOOL, but holds bytes other than 0 and 1", name));
  for (const InputView& other : call.request.inputs)
    if (other.name == name) return bad_request(fmt::format("input '{}' is given twice", name));
  const size_t width = std::max(bits(*dtype) / 8, 1);
  if (reinterpret_cast<uintptr_t>(bytes.data()) % width != 0) {
    Block& moved = call.received->tensors.emplace_back(bytes.size());
    memcpy(moved.data(), bytes.data(), bytes.size());
    bytes = moved.bytes();
  }
  call.request.inputs.push_back({std::move(name), *dtype, std::move(shape), bytes});
  return std::nullopt;
}

Checked add_region_input(Call& call, std::string name, std::string_view datatype, Shape shape,
                         const Region& region, const SharedMemory& memory) {
  auto view = memory.view(region);
  if (!view.ok()) return view.fault();
  call.received->others.push_back(view->keep);
  // The client may write there while the model reads: what was checked must be what is used.
  Block& copy = call.received->tensors.emplace_back(view->bytes.size());
  memcpy(copy.data(), view->bytes.data(), view->bytes.size());
  return add_input(call, std::move(name), datatype, std::move(shape), copy.bytes());
}

std::vector<std::pair<std::string, Parameter>> trace_parameters(const Trace& trace,
                                                                Clock::time_point arrival) {
  using std::chrono::duration_cast;
  const auto us = [](std::chrono::nanoseconds t) { return static_cast<double>(t.count()) / 1000; };
  // The moment by the clock on the wall, from the one that only counts.
  const auto since = std::chrono::system_clock::now().time_since_epoch() - (Clock::now() - arrival);
  std::vector<std::pair<std::string, Parameter>> out = {
      {"trace_arrival_us", duration_cast<std::chrono::microseconds>(since).count()},
      {"trace_variant", trace.variant},
      {"trace_lane", int64_t{trace.lane}},
      {"trace_partners", join(trace.partners, ",")},
      {"trace_batch_rows", int64_t{trace.batch_rows}},
      {"trace_waited_us", us(trace.queued)},
      {"trace_ran_us", us(trace.ran - trace.queued)},
      {"trace_reason", trace.reason}};
  if (trace.slack) out.push_back({"trace_slack_us", us(*trace.slack)});
  return out;
}

Maybe<std::vector<Placed>> place_outputs(const Call& call, const Answer& answer,
                                         const SharedMemory& memory) {
  std::vector<Placed> placed;
  if (call.wanted.empty()) {
    for (const OutputView& output : answer.outputs) placed.push_back({&output, nullptr});
    return placed;
  }
  for (const WantedOutput& wanted : call.wanted) {
    const OutputView* found = nullptr;
    for (const OutputView& output : answer.outputs)
      if (output.name == wanted.name) found = &output;
    if (!found)
      return Fault{Cause::kInternal, fmt::format("the engine gave no output '{}'", wanted.name)};
    if (wanted.region) {
      auto view = memory.view(*wanted.region);
      if (!view.ok()) return view.fault();
      if (view->bytes.size() < found->bytes.size())
        return bad_request(
            fmt::format("output '{}' has {} bytes, but its place in region '{}' only {}",
                        wanted.name, found->bytes.size(), wanted.region->name, view->bytes.size()));
      memcpy(view->bytes.data(), found->bytes.data(), found->bytes.size());
    }
    placed.push_back({found, &wanted});
  }
  return placed;
}

}  // namespace obelisk::serve::door
