#include "serve/door/infer_json.h"

#include <simdjson.h>

#include <cmath>
#include <cstring>

#include "serve/door/json.h"
#include "serve/door/shared_memory.h"
#include "serve/door/wire_types.h"

namespace obelisk::serve::door {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kMostPorts = 4096;
static_assert(Block::kBehind >= simdjson::SIMDJSON_PADDING);

Maybe<std::string_view> text_of(dom::object object, const char* key, std::string_view where) {
  std::string_view text;
  const auto error = object.at_key(key).get(text);
  if (error == simdjson::NO_SUCH_FIELD)
    return bad_request(fmt::format("{} has no '{}'", where, key));
  if (error) return bad_request(fmt::format("'{}' of {} is no string", key, where));
  return text;
}

Maybe<Shape> shape_of(dom::object object, std::string_view where) {
  dom::array array;
  if (object.at_key("shape").get(array))
    return bad_request(fmt::format("{} has no 'shape', an array of numbers", where));
  Shape shape;
  for (dom::element one : array) {
    int64_t extent;
    if (one.get(extent) || extent < 0)
      return bad_request(
          fmt::format("'shape' of {} holds something other than numbers from 0 on", where));
    shape.push_back(extent);
  }
  return shape;
}

std::optional<Parameter> parameter_of(dom::element value) {
  switch (value.type()) {
    case dom::element_type::BOOL:
      return Parameter(bool(value));
    case dom::element_type::INT64:
      return Parameter(int64_t(value));
    case dom::element_type::UINT64:
      return Parameter(static_cast<double>(uint64_t(value)));
    case dom::element_type::DOUBLE:
      return Parameter(double(value));
    case dom::element_type::STRING:
      return Parameter(std::string(std::string_view(value)));
    default:
      return std::nullopt;
  }
}

/// A parameter that counts bytes.
Maybe<std::optional<uint64_t>> count_of(dom::object parameters, const char* key,
                                        std::string_view where) {
  dom::element value;
  if (parameters.at_key(key).get(value)) return std::optional<uint64_t>();
  uint64_t count;
  if (value.get(count))
    return bad_request(fmt::format("'{}' of {} is no number of bytes", key, where));
  return std::optional<uint64_t>(count);
}

Maybe<std::optional<Region>> region_of(dom::object parameters, std::string_view where) {
  std::string_view name;
  if (parameters.at_key("shared_memory_region").get(name)) return std::optional<Region>();
  auto bytes = count_of(parameters, "shared_memory_byte_size", where);
  if (!bytes.ok()) return bytes.fault();
  auto offset = count_of(parameters, "shared_memory_offset", where);
  if (!offset.ok()) return offset.fault();
  if (!*bytes)
    return bad_request(fmt::format("{} names a region, but no 'shared_memory_byte_size'", where));
  return std::optional<Region>({std::string(name), offset->value_or(0), **bytes});
}

/// Writes the numbers of an array, however deep, one after the other.
class Numbers {
 public:
  Numbers(std::string_view input, DType dtype, std::byte* to, int64_t room)
      : input_(input), dtype_(dtype), to_(to), room_(room) {}

  Checked read(dom::array array) {
    for (dom::element one : array) {
      if (one.is_array()) {
        dom::array inner;
        if (one.get(inner)) break;
        if (Checked wrong = read(inner)) return wrong;
        continue;
      }
      if (done_ == room_)
        return bad_request(
            fmt::format("input '{}' brings more than the {} elements of its shape", input_, room_));
      if (!write(one))
        return bad_request(
            fmt::format("element {} of input '{}' is no {}", done_, input_, wire_name(dtype_)));
      ++done_;
    }
    return std::nullopt;
  }
  int64_t done() const { return done_; }

 private:
  template <typename T>
  bool put(T value) {
    memcpy(to_ + static_cast<size_t>(done_) * sizeof value, &value, sizeof value);
    return true;
  }
  template <typename T>
  bool put_integer(dom::element one) {
    if (int64_t value; !one.get(value))
      return std::in_range<T>(value) && put(static_cast<T>(value));
    if (uint64_t value; !one.get(value))
      return std::in_range<T>(value) && put(static_cast<T>(value));
    return false;
  }
  bool write(dom::element one) {
    if (dtype_ == DType::b1) {
      if (bool yes; !one.get(yes)) return put(static_cast<uint8_t>(yes));
      int64_t value;
      return !one.get(value) && (value == 0 || value == 1) && put(static_cast<uint8_t>(value));
    }
    if (is_float(dtype_)) {
      double value;
      if (one.get(value)) return false;
      if (dtype_ == DType::f32) return put(static_cast<float>(value));
      if (dtype_ == DType::f64) return put(value);
      set_double(to_, dtype_, done_, value);
      return true;
    }
    switch (dtype_) {
      case DType::i64:
        return put_integer<int64_t>(one);
      case DType::i32:
        return put_integer<int32_t>(one);
      case DType::i16:
        return put_integer<int16_t>(one);
      case DType::i8:
        return put_integer<int8_t>(one);
      case DType::u64:
        return put_integer<uint64_t>(one);
      case DType::u32:
        return put_integer<uint32_t>(one);
      case DType::u16:
        return put_integer<uint16_t>(one);
      case DType::u8:
        return put_integer<uint8_t>(one);
      default: {
        int64_t value;
        const int width = bits(dtype_);
        const int64_t low = is_signed(dtype_) ? -(int64_t{1} << (width - 1)) : 0;
        if (one.get(value) || value < low || value >= low + (int64_t{1} << width)) return false;
        set_int(to_, dtype_, done_, value);
        return true;
      }
    }
  }

  std::string_view input_;
  DType dtype_;
  std::byte* to_;
  int64_t room_, done_ = 0;
};

Checked read_input(Call& call, dom::object input, size_t& behind, const SharedMemory& memory) {
  auto name = text_of(input, "name", "an input");
  if (!name.ok()) return name.fault();
  const std::string where = fmt::format("input '{}'", *name);
  auto datatype = text_of(input, "datatype", where);
  if (!datatype.ok()) return datatype.fault();
  auto shape = shape_of(input, where);
  if (!shape.ok()) return shape.fault();
  dom::object parameters;
  if (!input.at_key("parameters").get(parameters)) {
    auto region = region_of(parameters, where);
    if (!region.ok()) return region.fault();
    if (*region)
      return add_region_input(call, std::string(*name), *datatype, std::move(*shape), **region,
                              memory);
    auto bytes = count_of(parameters, "binary_data_size", where);
    if (!bytes.ok()) return bytes.fault();
    if (*bytes) {
      const Block& body = call.received->body;
      if (**bytes > body.size() - behind)
        return bad_request(
            fmt::format("{} has {} bytes behind the JSON, but only {} are left there", where,
                        **bytes, body.size() - behind));
      const std::span<const std::byte> data(body.data() + behind, **bytes);
      behind += **bytes;
      return add_input(call, std::string(*name), *datatype, std::move(*shape), data);
    }
  }
  dom::element data;
  if (input.at_key("data").get(data)) return bad_request(fmt::format("{} has no 'data'", where));
  dom::array array;
  if (data.get(array)) return bad_request(fmt::format("'data' of {} is no array", where));
  auto dtype = input_type(*name, *datatype);
  if (!dtype.ok()) return dtype.fault();
  auto size = tensor_bytes(*name, *dtype, *shape);
  if (!size.ok()) return size.fault();
  // Each number takes two characters at least: what cannot be there is not made room for.
  const int64_t count = *checked_element_count(*shape);
  if (static_cast<uint64_t>(count) > call.received->body.size())
    return bad_request(
        fmt::format("{} has the shape {}, but its data is shorter", where, to_string(*shape)));
  Block& tensor = call.received->tensors.emplace_back(*size);
  if (bits(*dtype) < 8) memset(tensor.data(), 0, *size);
  Numbers numbers(*name, *dtype, tensor.data(), count);
  if (Checked wrong = numbers.read(array)) return wrong;
  if (numbers.done() != count)
    return bad_request(fmt::format("{} brings {} elements, but its shape {} has {}", where,
                                   numbers.done(), to_string(*shape), count));
  return add_input(call, std::string(*name), *datatype, std::move(*shape), tensor.bytes());
}

Checked read_output(Call& call, dom::object output) {
  auto name = text_of(output, "name", "an output");
  if (!name.ok()) return name.fault();
  WantedOutput wanted{std::string(*name), std::nullopt, std::nullopt};
  const std::string where = fmt::format("output '{}'", *name);
  dom::object parameters;
  if (!output.at_key("parameters").get(parameters)) {
    if (bool binary; !parameters.at_key("binary_data").get(binary)) wanted.binary = binary;
    auto region = region_of(parameters, where);
    if (!region.ok()) return region.fault();
    wanted.region = *region;
    if (uint64_t classes; !parameters.at_key("classification").get(classes) && classes > 0)
      return bad_request(
          fmt::format("{} is asked for as a classification, which is not served", where));
  }
  for (const WantedOutput& other : call.wanted)
    if (other.name == wanted.name) return bad_request(fmt::format("{} is asked for twice", where));
  call.request.outputs.push_back(wanted.name);
  call.wanted.push_back(std::move(wanted));
  return std::nullopt;
}

}  // namespace

Maybe<Call> parse_infer(std::shared_ptr<Received> received, size_t json_bytes,
                        const SharedMemory& memory) {
  Call call;
  call.received = std::move(received);
  const Block& body = call.received->body;
  thread_local dom::parser parser;
  dom::element document;
  const auto error =
      parser.parse(reinterpret_cast<const char*>(body.data()), json_bytes, false).get(document);
  if (error)
    return bad_request(fmt::format("the request is no JSON: {}", simdjson::error_message(error)));
  // A large text would keep its memory in this thread for ever.
  struct Shrink {
    ~Shrink() {
      if (parser.capacity() > (size_t{16} << 20)) parser = dom::parser();
    }
  } shrink;
  dom::object request;
  if (document.get(request)) return bad_request("the request is no JSON object");
  if (std::string_view id; !request.at_key("id").get(id)) call.request.id = id;
  if (dom::object parameters; !request.at_key("parameters").get(parameters))
    for (auto [key, value] : parameters)
      if (const auto parameter = parameter_of(value))
        if (Checked wrong = apply_parameter(call, key, *parameter)) return *wrong;
  dom::array inputs;
  if (request.at_key("inputs").get(inputs))
    return bad_request("the request has no 'inputs', an array");
  size_t behind = json_bytes, count = 0;
  for (dom::element one : inputs) {
    dom::object input;
    if (one.get(input)) return bad_request("an input is no JSON object");
    if (++count > kMostPorts)
      return bad_request(fmt::format("a request has at most {} inputs", kMostPorts));
    if (Checked wrong = read_input(call, input, behind, memory)) return *wrong;
  }
  if (behind != body.size())
    return bad_request(
        fmt::format("{} bytes are left behind the last input's", body.size() - behind));
  if (dom::array outputs; !request.at_key("outputs").get(outputs))
    for (dom::element one : outputs) {
      dom::object output;
      if (one.get(output)) return bad_request("an output is no JSON object");
      if (call.wanted.size() >= kMostPorts)
        return bad_request(fmt::format("a request names at most {} outputs", kMostPorts));
      if (Checked wrong = read_output(call, output)) return *wrong;
    }
  call.request.keep = call.received;
  return call;
}

Maybe<Call> raw_infer(std::shared_ptr<Received> received, const ModelInfo& model) {
  Call call;
  call.received = std::move(received);
  call.binary = true;
  const Block& body = call.received->body;
  if (model.inputs.size() != 1)
    return bad_request(fmt::format("a body of bytes alone is for models of one input; '{}' has {}",
                                   model.config.name, model.inputs.size()));
  const PortInfo& port = model.inputs[0];
  Shape shape = port.shape;
  for (int64_t& extent : shape)
    if (extent < 0) extent = 1;
  if (Checked wrong = add_input(call, port.name, wire_name(port.dtype), shape, body.bytes()))
    return *wrong;
  call.request.keep = call.received;
  return call;
}

HttpReply infer_reply(const Call& call, const Answer& answer, const SharedMemory& memory) {
  if (answer.outcome != Outcome::kOk) return fault_reply(fault_of(answer));
  auto placed = place_outputs(call, answer, memory);
  if (!placed.ok()) return fault_reply(placed.fault());
  HttpReply reply;
  JsonWriter json;
  json.text.reserve(256);
  json.open('{').key("model_name").value(call.request.model).key("model_version").value("1");
  if (!call.request.id.empty()) json.key("id").value(call.request.id);
  if (call.request.trace && answer.trace) {
    json.key("parameters").open('{');
    for (const auto& [name, value] : trace_parameters(*answer.trace, call.request.arrival))
      std::visit([&, &name = name](const auto& one) { json.key(name).value(one); }, value);
    json.close('}');
  }
  json.key("outputs").open('[');
  for (const auto& [output, wanted] : *placed) {
    json.open('{').key("name").value(output->name).key("datatype").value(wire_name(output->dtype));
    json.key("shape").array(output->shape);
    if (wanted && wanted->region) {
      // No parameters: clients take them for those of binary data.
      json.close('}');
    } else if (wanted && wanted->binary ? *wanted->binary : call.binary) {
      json.key("parameters")
          .open('{')
          .key("binary_data_size")
          .value(output->bytes.size())
          .close('}')
          .close('}');
      reply.tail.push_back(output->bytes);
      reply.binary = true;
    } else {
      json.key("data").open('[');
      write_numbers(json.text, output->dtype, output->bytes.data(), element_count(output->shape));
      json.close(']').close('}');
    }
  }
  json.close(']').close('}');
  reply.text = std::move(json.text);
  if (reply.binary) {
    reply.type = "application/octet-stream";
    reply.headers.emplace_back("Inference-Header-Content-Length",
                               std::to_string(reply.text.size()));
  }
  reply.keep = answer.keep;
  return reply;
}

}  // namespace obelisk::serve::door
