/// serve/door/infer.h — one inference call as every protocol means it: what was sent, and how its
/// answer is to be written.
#pragma once

#include <map>
#include <variant>

#include "serve/door/fault.h"
#include "serve/door/memory.h"
#include "serve/engine.h"

namespace obelisk::serve::door {

class SharedMemory;

using Parameter = std::variant<bool, int64_t, double, std::string>;

/// A stretch of a region that a client has registered.
struct Region {
  std::string name;
  uint64_t offset = 0, bytes = 0;
};

struct WantedOutput {
  std::string name;
  std::optional<bool> binary;    // over HTTP: bytes behind the JSON, or numbers in it
  std::optional<Region> region;  // written there, not sent
};

struct Call {
  Request request;
  std::string version;               // that was asked for; empty: any
  std::vector<WantedOutput> wanted;  // empty: all
  bool binary = false;               // of outputs that do not say
  std::shared_ptr<Received> received;
};

/// The request's own parameters: `timeout` (us), `priority`, `tenant`, `trace`,
/// `binary_data_output`. Others are not ours and let be.
Checked apply_parameter(Call& call, std::string_view name, const Parameter& value);
/// A deadline that the transport brought stands where the request has none of its own.
void apply_transport_deadline(Call& call, std::chrono::nanoseconds budget);

/// Adds an input whose bytes lie somewhere already: checks that they are as many as the shape says,
/// and moves them where they are not aligned.
Checked add_input(Call& call, std::string name, std::string_view datatype, Shape shape,
                  std::span<const std::byte> bytes);
/// The element type, or why such an input is refused.
Maybe<DType> input_type(std::string_view input, std::string_view datatype);
/// Bytes of a tensor, or why its shape is none.
Maybe<size_t> tensor_bytes(std::string_view name, DType dtype, const Shape& shape);
Checked add_region_input(Call& call, std::string name, std::string_view datatype, Shape shape,
                         const Region& region, const SharedMemory& memory);

/// What `trace` tells, as parameters of the answer.
std::vector<std::pair<std::string, Parameter>> trace_parameters(const Trace& trace,
                                                                Clock::time_point arrival);

/// Puts outputs into the regions that were asked for; `left` are those that are to be sent.
struct Placed {
  const OutputView* output = nullptr;
  const WantedOutput* wanted = nullptr;  // null: all were
};
Maybe<std::vector<Placed>> place_outputs(const Call& call, const Answer& answer,
                                         const SharedMemory& memory);

}  // namespace obelisk::serve::door
