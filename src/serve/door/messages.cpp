#include "serve/door/messages.h"

#include <cstring>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "serve/door/routes.h"
#include "serve/door/wire_types.h"

namespace obelisk::serve::door {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;

constexpr size_t kMostPorts = 4096;
constexpr auto kText = pbf_wire_type::length_delimited;
constexpr auto kNumber = pbf_wire_type::varint;

std::string_view view(const protozero::data_view& data) { return {data.data(), data.size()}; }

/// Runs a reader: protozero throws where a message is none.
template <typename F>
auto guarded(F&& read) -> decltype(read()) {
  try {
    return read();
  } catch (const protozero::exception& wrong) {
    return bad_request(fmt::format("the message is malformed: {}", wrong.what()));
  }
}

std::optional<Parameter> read_parameter(pbf_reader message) {
  std::optional<Parameter> value;
  while (message.next()) switch (message.tag_and_type()) {
      case protozero::tag_and_type(1, kNumber):
        value = message.get_bool();
        break;
      case protozero::tag_and_type(2, kNumber):
        value = message.get_int64();
        break;
      case protozero::tag_and_type(3, kText):
        value = std::string(view(message.get_view()));
        break;
      case protozero::tag_and_type(4, pbf_wire_type::fixed64):
        value = message.get_double();
        break;
      case protozero::tag_and_type(5, kNumber): {
        const uint64_t number = message.get_uint64();
        if (number <= static_cast<uint64_t>(INT64_MAX))
          value = static_cast<int64_t>(number);
        else
          value = static_cast<double>(number);
        break;
      }
      default:
        message.skip();
    }
  return value;
}

/// An entry of map<string, InferParameter>.
std::pair<std::string, std::optional<Parameter>> read_entry(pbf_reader message) {
  std::pair<std::string, std::optional<Parameter>> entry;
  while (message.next()) switch (message.tag_and_type()) {
      case protozero::tag_and_type(1, kText):
        entry.first = view(message.get_view());
        break;
      case protozero::tag_and_type(2, kText):
        entry.second = read_parameter(message.get_message());
        break;
      default:
        message.skip();
    }
  return entry;
}

/// The parameters of a tensor that say where its bytes lie.
struct Place {
  std::optional<std::string> region;
  std::optional<int64_t> bytes, offset;
  bool classified = false;
  void read(pbf_reader message) {
    auto [name, value] = read_entry(message);
    if (!value) return;
    const auto* number = std::get_if<int64_t>(&*value);
    if (name == "shared_memory_region" && std::holds_alternative<std::string>(*value))
      region = std::get<std::string>(*value);
    if (name == "shared_memory_byte_size" && number) bytes = *number;
    if (name == "shared_memory_offset" && number) offset = *number;
    if (name == "classification" && number && *number > 0) classified = true;
  }
  Maybe<std::optional<Region>> region_of(const std::string& tensor) const {
    if (!region) return std::optional<Region>();
    if (!bytes || *bytes < 0 || offset.value_or(0) < 0)
      return bad_request(fmt::format("'{}' names a region, but no number of bytes in it", tensor));
    return std::optional<Region>(
        {*region, static_cast<uint64_t>(offset.value_or(0)), static_cast<uint64_t>(*bytes)});
  }
};

/// Elements of a typed list, packed or one by one, into a tensor.
struct Contents {
  std::string name;
  DType dtype = DType::f32;
  size_t count = 0, done = 0;
  std::byte* to = nullptr;
  bool foreign = false, out_of_range = false;

  template <typename T>
  void put(T value) {
    if (done < count) {
      if (is_float(dtype))
        set_double(to, dtype, static_cast<int64_t>(done), static_cast<double>(value));
      else if constexpr (std::is_integral_v<T>) {
        set_int(to, dtype, static_cast<int64_t>(done), static_cast<int64_t>(value));
        const int64_t kept = get_int(to, dtype, static_cast<int64_t>(done));
        if (dtype != DType::b1 && static_cast<T>(kept) != value) out_of_range = true;
      }
    }
    ++done;
  }
  template <typename Range>
  void all(Range range) {
    for (auto value : range) put(value);
  }
  /// Which list a type's elements come in.
  static int field_of(DType dtype) {
    switch (dtype) {
      case DType::b1:
        return 1;
      case DType::i8:
      case DType::i16:
      case DType::i32:
        return 2;
      case DType::i64:
        return 3;
      case DType::u8:
      case DType::u16:
      case DType::u32:
        return 4;
      case DType::u64:
        return 5;
      case DType::f32:
        return 6;
      case DType::f64:
        return 7;
      default:
        return 0;
    }
  }
  void read(pbf_reader message) {
    while (message.next()) {
      if (static_cast<int>(message.tag()) != field_of(dtype)) {
        // An empty list is none.
        foreign |= message.wire_type() != kText || message.get_view().size() > 0;
        if (message.wire_type() != kText) message.skip();
        continue;
      }
      const bool packed = message.wire_type() == kText;
      switch (message.tag()) {
        case 1:
          packed ? all(message.get_packed_bool()) : put(message.get_bool());
          break;
        case 2:
          packed ? all(message.get_packed_int32()) : put(message.get_int32());
          break;
        case 3:
          packed ? all(message.get_packed_int64()) : put(message.get_int64());
          break;
        case 4:
          packed ? all(message.get_packed_uint32()) : put(message.get_uint32());
          break;
        case 5:
          packed ? all(message.get_packed_uint64()) : put(message.get_uint64());
          break;
        case 6:
          packed ? all(message.get_packed_float()) : put(message.get_float());
          break;
        case 7:
          packed ? all(message.get_packed_double()) : put(message.get_double());
          break;
        default:
          message.skip();
      }
    }
  }
};

struct Input {
  std::string name, datatype;
  Shape shape;
  Place place;
  std::vector<protozero::data_view> contents;
};

Input read_input(pbf_reader message) {
  Input input;
  while (message.next()) switch (message.tag_and_type()) {
      case protozero::tag_and_type(1, kText):
        input.name = view(message.get_view());
        break;
      case protozero::tag_and_type(2, kText):
        input.datatype = view(message.get_view());
        break;
      case protozero::tag_and_type(3, kText):
        for (int64_t extent : message.get_packed_int64()) {
          if (input.shape.size() > 64) break;
          input.shape.push_back(extent);
        }
        break;
      case protozero::tag_and_type(3, kNumber): {
        const int64_t extent = message.get_int64();
        if (input.shape.size() <= 64) input.shape.push_back(extent);
        break;
      }
      case protozero::tag_and_type(4, kText):
        input.place.read(message.get_message());
        break;
      case protozero::tag_and_type(5, kText):
        input.contents.push_back(message.get_view());
        break;
      default:
        message.skip();
    }
  return input;
}

Checked add_typed(Call& call, Input& input) {
  auto dtype = input_type(input.name, input.datatype);
  if (!dtype.ok()) return dtype.fault();
  auto size = tensor_bytes(input.name, *dtype, input.shape);
  if (!size.ok()) return size.fault();
  if (Contents::field_of(*dtype) == 0)
    return bad_request(fmt::format("input '{}' is {}, which travels in raw_input_contents only",
                                   input.name, input.datatype));
  // Each element takes a byte of the message at least.
  const auto count = static_cast<size_t>(*checked_element_count(input.shape));
  size_t there = 0;
  for (const auto& piece : input.contents) there += piece.size();
  if (count > there)
    return bad_request(fmt::format("input '{}' brings fewer than the {} elements of its shape",
                                   input.name, count));
  Block& tensor = call.received->tensors.emplace_back(*size);
  Contents contents{input.name, *dtype, count, 0, tensor.data()};
  for (const auto& piece : input.contents) contents.read(pbf_reader(piece));
  if (contents.foreign)
    return bad_request(
        fmt::format("the contents of input '{}' are not those of {}", input.name, input.datatype));
  if (contents.out_of_range)
    return bad_request(fmt::format("an element of input '{}' is out of the range of {}", input.name,
                                   input.datatype));
  if (contents.done != count)
    return bad_request(fmt::format("input '{}' brings {} elements, but its shape has {}",
                                   input.name, contents.done, count));
  return add_input(call, std::move(input.name), input.datatype, std::move(input.shape),
                   tensor.bytes());
}

void write_parameter(pbf_writer& to, protozero::pbf_tag_type field, std::string_view name,
                     const Parameter& value) {
  pbf_writer entry(to, field);
  entry.add_string(1, name.data(), name.size());
  pbf_writer one(entry, 2);
  if (const auto* yes = std::get_if<bool>(&value)) one.add_bool(1, *yes);
  if (const auto* number = std::get_if<int64_t>(&value)) one.add_int64(2, *number);
  if (const auto* text = std::get_if<std::string>(&value)) one.add_string(3, *text);
  if (const auto* number = std::get_if<double>(&value)) one.add_double(4, *number);
}

void add_text(pbf_writer& to, protozero::pbf_tag_type field, std::string_view text) {
  to.add_string(field, text.data(), text.size());
}

}  // namespace

size_t first_tensor_offset(std::string_view piece) {
  const char* at = piece.data();
  const char* const end = at + piece.size();
  const auto number = [&](uint64_t& value) {
    value = 0;
    for (int shift = 0; at < end && shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(*at++);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  for (uint64_t tag, length; number(tag);) {
    if ((tag & 7) == 0) {
      if (!number(length)) return 0;
    } else if ((tag & 7) == 2) {
      if (!number(length)) return 0;
      if (tag >> 3 == 7) return static_cast<size_t>(at - piece.data());
      if (length > static_cast<uint64_t>(end - at)) return 0;
      at += length;
    } else {
      return 0;
    }
  }
  return 0;
}

Maybe<Call> read_infer(std::shared_ptr<Received> received, const SharedMemory& memory) {
  return guarded([&]() -> Maybe<Call> {
    Call call;
    call.received = std::move(received);
    const Block& body = call.received->body;
    pbf_reader message(reinterpret_cast<const char*>(body.data()), body.size());
    std::vector<Input> inputs;
    std::vector<protozero::data_view> raw;
    while (message.next()) switch (message.tag_and_type()) {
        case protozero::tag_and_type(1, kText):
          call.request.model = view(message.get_view());
          break;
        case protozero::tag_and_type(2, kText):
          call.version = view(message.get_view());
          break;
        case protozero::tag_and_type(3, kText):
          call.request.id = view(message.get_view());
          break;
        case protozero::tag_and_type(4, kText): {
          auto [name, value] = read_entry(message.get_message());
          if (!value) break;
          if (Checked wrong = apply_parameter(call, name, *value)) return *wrong;
          break;
        }
        case protozero::tag_and_type(5, kText):
          if (inputs.size() >= kMostPorts)
            return bad_request(fmt::format("a request has at most {} inputs", kMostPorts));
          inputs.push_back(read_input(message.get_message()));
          break;
        case protozero::tag_and_type(6, kText): {
          WantedOutput wanted;
          Place place;
          pbf_reader output = message.get_message();
          while (output.next()) switch (output.tag_and_type()) {
              case protozero::tag_and_type(1, kText):
                wanted.name = view(output.get_view());
                break;
              case protozero::tag_and_type(2, kText):
                place.read(output.get_message());
                break;
              default:
                output.skip();
            }
          if (place.classified)
            return bad_request(fmt::format(
                "output '{}' is asked for as a classification, which is not served", wanted.name));
          auto region = place.region_of(wanted.name);
          if (!region.ok()) return region.fault();
          wanted.region = *region;
          if (call.wanted.size() >= kMostPorts)
            return bad_request(fmt::format("a request names at most {} outputs", kMostPorts));
          for (const WantedOutput& other : call.wanted)
            if (other.name == wanted.name)
              return bad_request(fmt::format("output '{}' is asked for twice", wanted.name));
          call.request.outputs.push_back(wanted.name);
          call.wanted.push_back(std::move(wanted));
          break;
        }
        case protozero::tag_and_type(7, kText):
          if (raw.size() >= kMostPorts)
            return bad_request(fmt::format("a request has at most {} inputs", kMostPorts));
          raw.push_back(message.get_view());
          break;
        default:
          message.skip();
      }
    size_t next = 0;
    for (Input& input : inputs) {
      auto region = input.place.region_of(input.name);
      if (!region.ok()) return region.fault();
      if (*region) {
        if (Checked wrong = add_region_input(call, std::move(input.name), input.datatype,
                                             std::move(input.shape), **region, memory))
          return *wrong;
      } else if (!raw.empty()) {
        if (!input.contents.empty())
          return bad_request(fmt::format(
              "input '{}' has contents although the request has raw_input_contents", input.name));
        if (next == raw.size())
          return bad_request(fmt::format("the request has {} raw_input_contents, input '{}' none",
                                         raw.size(), input.name));
        const auto& bytes = raw[next++];
        if (Checked wrong =
                add_input(call, std::move(input.name), input.datatype, std::move(input.shape),
                          {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}))
          return *wrong;
      } else if (Checked wrong = add_typed(call, input)) {
        return *wrong;
      }
    }
    if (next != raw.size())
      return bad_request(fmt::format("the request has {} raw_input_contents, but inputs for {}",
                                     raw.size(), next));
    call.request.keep = call.received;
    return call;
  });
}

Maybe<Pieces> write_infer(const Call& call, const Answer& answer, const SharedMemory& memory) {
  if (answer.outcome != Outcome::kOk) return fault_of(answer);
  auto placed = place_outputs(call, answer, memory);
  if (!placed.ok()) return placed.fault();
  Pieces out;
  std::string text;
  pbf_writer response(text);
  response.add_string(1, call.request.model);
  add_text(response, 2, kVersion);
  if (!call.request.id.empty()) response.add_string(3, call.request.id);
  if (call.request.trace && answer.trace)
    for (const auto& [name, value] : trace_parameters(*answer.trace, call.request.arrival))
      write_parameter(response, 4, name, value);
  for (const auto& [output, wanted] : *placed) {
    pbf_writer one(response, 5);
    one.add_string(1, output->name);
    add_text(one, 2, wire_name(output->dtype));
    one.add_packed_int64(3, output->shape.begin(), output->shape.end());
    if (wanted && wanted->region) {
      write_parameter(one, 4, "shared_memory_region", wanted->region->name);
      write_parameter(one, 4, "shared_memory_byte_size",
                      static_cast<int64_t>(output->bytes.size()));
      write_parameter(one, 4, "shared_memory_offset", static_cast<int64_t>(wanted->region->offset));
    }
  }
  // raw_output_contents, field 6: each with its length, the bytes where they lie. Short ones are
  // copied, which costs less than a piece.
  constexpr size_t kShort = 4096;
  for (const auto& [output, wanted] : *placed) {
    const std::string_view bytes(reinterpret_cast<const char*>(output->bytes.data()),
                                 wanted && wanted->region ? 0 : output->bytes.size());
    if (bytes.size() <= kShort) {
      add_text(response, 6, bytes);
      continue;
    }
    text += static_cast<char>(6 << 3 | 2);
    protozero::write_varint(std::back_inserter(text), bytes.size());
    out.texts.push_back(std::move(text));
    text.clear();
    out.tensors.push_back(output->bytes);
  }
  out.texts.push_back(std::move(text));
  return out;
}

Pieces in_stream(Pieces response) {
  size_t size = 0;
  for (const auto& text : response.texts) size += text.size();
  for (const auto& tensor : response.tensors) size += tensor.size();
  std::string head(1, static_cast<char>(2 << 3 | 2));
  protozero::write_varint(std::back_inserter(head), size);
  response.texts.front().insert(0, head);
  return response;
}

Pieces stream_error(const std::string& message) {
  std::string text;
  pbf_writer(text).add_string(1, message);
  return {{std::move(text)}, {}};
}

Maybe<Named> read_named(std::string_view text) {
  return guarded([&]() -> Maybe<Named> {
    Named named;
    pbf_reader message(text.data(), text.size());
    while (message.next()) switch (message.tag_and_type()) {
        case protozero::tag_and_type(1, kText):
          named.name = view(message.get_view());
          break;
        case protozero::tag_and_type(2, kText):
          named.version = view(message.get_view());
          break;
        default:
          message.skip();
      }
    return named;
  });
}

Maybe<bool> read_index_ready(std::string_view text) {
  return guarded([&]() -> Maybe<bool> {
    bool ready = false;
    pbf_reader message(text.data(), text.size());
    while (message.next()) {
      if (message.tag_and_type() == protozero::tag_and_type(2, kNumber))
        ready = message.get_bool();
      else
        message.skip();
    }
    return ready;
  });
}

Maybe<LoadRequest> read_load(std::string_view text) {
  return guarded([&]() -> Maybe<LoadRequest> {
    LoadRequest load;
    pbf_reader message(text.data(), text.size());
    while (message.next()) switch (message.tag_and_type()) {
        case protozero::tag_and_type(2, kText):
          load.model = view(message.get_view());
          break;
        case protozero::tag_and_type(3, kText): {
          const auto name = read_entry(message.get_message()).first;
          load.has_config |= name == "config" || name.starts_with("file:");
          break;
        }
        default:
          message.skip();
      }
    return load;
  });
}

Maybe<SharedMemory::Status> read_region(std::string_view text) {
  return guarded([&]() -> Maybe<SharedMemory::Status> {
    SharedMemory::Status region;
    pbf_reader message(text.data(), text.size());
    while (message.next()) switch (message.tag_and_type()) {
        case protozero::tag_and_type(1, kText):
          region.name = view(message.get_view());
          break;
        case protozero::tag_and_type(2, kText):
          region.key = view(message.get_view());
          break;
        case protozero::tag_and_type(3, kNumber):
          region.offset = message.get_uint64();
          break;
        case protozero::tag_and_type(4, kNumber):
          region.bytes = message.get_uint64();
          break;
        default:
          message.skip();
      }
    return region;
  });
}

Maybe<LogSettings> read_log_settings(std::string_view text, LogSettings settings) {
  return guarded([&]() -> Maybe<LogSettings> {
    pbf_reader message(text.data(), text.size());
    while (message.next()) {
      if (message.tag_and_type() != protozero::tag_and_type(1, kText)) {
        message.skip();
        continue;
      }
      pbf_reader entry = message.get_message();
      std::string name;
      std::optional<bool> yes;
      std::optional<uint32_t> number;
      std::optional<std::string> word;
      while (entry.next()) switch (entry.tag_and_type()) {
          case protozero::tag_and_type(1, kText):
            name = view(entry.get_view());
            break;
          case protozero::tag_and_type(2, kText): {
            pbf_reader value = entry.get_message();
            while (value.next()) switch (value.tag_and_type()) {
                case protozero::tag_and_type(1, kNumber):
                  yes = value.get_bool();
                  break;
                case protozero::tag_and_type(2, kNumber):
                  number = value.get_uint32();
                  break;
                case protozero::tag_and_type(3, kText):
                  word = view(value.get_view());
                  break;
                default:
                  value.skip();
              }
            break;
          }
          default:
            entry.skip();
        }
      if (name == "log_info" && yes)
        settings.info = *yes;
      else if (name == "log_warning" && yes)
        settings.warning = *yes;
      else if (name == "log_error" && yes)
        settings.error = *yes;
      else if (name == "log_verbose_level" && number)
        settings.verbose = static_cast<int>(std::min<uint32_t>(*number, 9));
      else if (name == "log_format" && word == "json") {
      } else if (name == "log_file")
        return bad_request("'log_file' is set where the server is started, not by clients");
      else
        return bad_request(fmt::format("there is no log setting '{}' of such a value", name));
    }
    return settings;
  });
}

Maybe<bool> read_changes_trace(std::string_view text) {
  return guarded([&]() -> Maybe<bool> {
    bool changes = false;
    pbf_reader message(text.data(), text.size());
    while (message.next()) {
      changes |= message.tag() == 1;
      message.skip();
    }
    return changes;
  });
}

std::string write_bool(bool value) {
  std::string text;
  pbf_writer(text).add_bool(1, value);
  return text;
}

std::string write_health(HealthStatus status) {
  std::string text;
  pbf_writer(text).add_enum(1, static_cast<int32_t>(status));
  return text;
}

std::string write_server_metadata(const std::string& version) {
  std::string text;
  pbf_writer message(text);
  add_text(message, 1, "obelisk");
  message.add_string(2, version);
  for (std::string_view extension : kExtensions) add_text(message, 3, extension);
  return text;
}

std::string write_metadata(const ModelInfo& info) {
  std::string text;
  pbf_writer message(text);
  message.add_string(1, info.config.name);
  add_text(message, 2, kVersion);
  add_text(message, 3, "obelisk");
  const auto ports = [&](protozero::pbf_tag_type field, const std::vector<PortInfo>& all) {
    for (const PortInfo& port : all) {
      pbf_writer one(message, field);
      one.add_string(1, port.name);
      add_text(one, 2, wire_name(port.dtype));
      one.add_packed_int64(3, port.shape.begin(), port.shape.end());
    }
  };
  ports(4, info.inputs);
  ports(5, info.outputs);
  return text;
}

std::string write_config(const ModelInfo& info) {
  std::string text;
  pbf_writer response(text);
  {
    pbf_writer config(response, 1);
    config.add_string(1, info.config.name);
    add_text(config, 2, "obelisk");
    const int64_t batch = max_batch_size(info);
    config.add_int32(4, static_cast<int32_t>(batch));
    const auto ports = [&](protozero::pbf_tag_type field, protozero::pbf_tag_type dims,
                           const std::vector<PortInfo>& all) {
      for (const PortInfo& port : all) {
        pbf_writer one(config, field);
        one.add_string(1, port.name);
        one.add_enum(2, config_number(port.dtype));
        one.add_packed_int64(dims, port.shape.begin() + (batch > 0 ? 1 : 0), port.shape.end());
      }
    };
    ports(5, 4, info.inputs);
    ports(6, 3, info.outputs);
    if (batch > 0) add_text(config, 11, "");  // dynamic_batching, as it is
    add_text(config, 17, "obelisk");
  }
  return text;
}

std::string write_statistics(const std::vector<ModelInfo>& models) {
  std::string text;
  pbf_writer response(text);
  for (const ModelInfo& info : models) {
    const ModelCounts& counts = info.counts;
    pbf_writer one(response, 1);
    one.add_string(1, info.config.name);
    add_text(one, 2, kVersion);
    one.add_uint64(4, counts.rows);
    one.add_uint64(5, counts.launches);
    pbf_writer stats(one, 6);
    const auto entry = [&](protozero::pbf_tag_type field, uint64_t count,
                           std::chrono::nanoseconds time) {
      pbf_writer duration(stats, field);
      duration.add_uint64(1, count);
      duration.add_uint64(2, static_cast<uint64_t>(time.count()));
    };
    entry(1, counts.ok, counts.queued + counts.ran);
    entry(2, counts.failed + counts.rejected + counts.late + counts.cancelled, {});
    entry(3, counts.ok, counts.queued);
    entry(4, counts.ok, {});
    entry(5, counts.ok, counts.ran);
    entry(6, counts.ok, {});
  }
  return text;
}

std::string write_index(const std::vector<Service::IndexEntry>& entries) {
  std::string text;
  pbf_writer response(text);
  for (const auto& entry : entries) {
    pbf_writer one(response, 1);
    one.add_string(1, entry.name);
    one.add_string(2, entry.version);
    one.add_string(3, entry.state.empty() ? "UNAVAILABLE" : entry.state);
    one.add_string(4, entry.state.empty() ? "not loaded" : entry.reason);
  }
  return text;
}

std::string write_regions(const std::vector<SharedMemory::Status>& regions) {
  std::string text;
  pbf_writer response(text);
  for (const auto& region : regions) {
    pbf_writer entry(response, 1);
    entry.add_string(1, region.name);
    pbf_writer one(entry, 2);
    one.add_string(1, region.name);
    one.add_string(2, region.key);
    one.add_uint64(3, region.offset);
    one.add_uint64(4, region.bytes);
  }
  return text;
}

std::string write_log_settings(const LogSettings& settings) {
  std::string text;
  pbf_writer response(text);
  const auto entry = [&](const char* name, auto&& write) {
    pbf_writer one(response, 1);
    one.add_string(1, name);
    pbf_writer value(one, 2);
    write(value);
  };
  const auto yes = [&](const char* name, bool on) {
    entry(name, [&](pbf_writer& value) { value.add_bool(1, on); });
  };
  entry("log_file", [&](pbf_writer& value) { value.add_string(3, settings.file); });
  yes("log_info", settings.info);
  yes("log_warning", settings.warning);
  yes("log_error", settings.error);
  entry("log_verbose_level",
        [&](pbf_writer& value) { value.add_uint32(2, static_cast<uint32_t>(settings.verbose)); });
  entry("log_format", [&](pbf_writer& value) { value.add_string(3, "json"); });
  return text;
}

std::string write_trace_settings() {
  std::string text;
  pbf_writer response(text);
  const std::pair<const char*, const char*> settings[] = {
      {"trace_level", "OFF"}, {"trace_rate", "0"}, {"trace_count", "-1"},
      {"log_frequency", "0"}, {"trace_file", ""},  {"trace_mode", "triton"}};
  for (const auto& [name, word] : settings) {
    pbf_writer entry(response, 1);
    entry.add_string(1, name);
    pbf_writer value(entry, 2);
    value.add_string(1, word);
  }
  return text;
}

}  // namespace obelisk::serve::door
