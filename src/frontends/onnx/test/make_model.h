/// frontends/onnx/test/make_model.h — small model files for tests, message by message.
///
/// Each function returns the bytes of one message of the wire format; a test puts them together:
///   model(graph({node("Relu", {"x"}, {"y"})}, {value("x", kFloat, {"2", "3"})}, {value("y")}), 13)
#pragma once

#include <protozero/pbf_writer.hpp>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "frontends/frontends.h"

#include "base/protobuf.h"

namespace obelisk::frontends::onnx::make {

using protozero::pbf_writer;
using List = std::vector<std::string>;

inline constexpr int kFloat = 1, kU8 = 2, kI8 = 3, kI32 = 6, kI64 = 7, kString = 8, kBool = 9,
                     kF16 = 10, kF64 = 11;

/// Dimensions as text: a number, a symbol, "?" for neither, or any symbol behind an apostrophe.
inline std::string tensor_type(int element, const List& dims, bool has_shape = true) {
  const std::string shape = message([&](pbf_writer& out) {
    for (const std::string& dim : dims)
      out.add_message(1, message([&](pbf_writer& d) {
                        if (dim == "?") return;
                        if (dim[0] == '\'')
                          d.add_string(2, dim.substr(1));
                        else if (std::isdigit(dim[0]) || dim[0] == '-')
                          d.add_int64(1, std::stoll(dim));
                        else
                          d.add_string(2, dim);
                      }));
  });
  const std::string tensor = message([&](pbf_writer& out) {
    out.add_int32(1, element);
    if (has_shape) out.add_message(2, shape);
  });
  return message([&](pbf_writer& out) { out.add_message(1, tensor); });
}

inline std::string value(const std::string& name, const std::string& type) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    if (!type.empty()) out.add_message(2, type);
  });
}
inline std::string value(const std::string& name) { return value(name, ""); }
inline std::string value(const std::string& name, int element, const List& dims) {
  return value(name, tensor_type(element, dims));
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string tensor(const std::string& name, int element, const std::vector<int64_t>& dims,
                          const std::string& bytes) {
  return message([&](pbf_writer& out) {
    for (const int64_t dim : dims) out.add_int64(1, dim);
    out.add_int32(2, element);
    out.add_string(8, name);
    out.add_bytes(9, bytes);
  });
}
inline std::string ints(const std::string& name, const std::vector<int64_t>& values) {
  return tensor(name, kI64, {static_cast<int64_t>(values.size())}, raw(values));
}
inline std::string floats(const std::string& name, const std::vector<int64_t>& dims,
                          const std::vector<float>& values) {
  return tensor(name, kFloat, dims, raw(values));
}
inline std::string scalar_int(const std::string& name, int64_t value) {
  return tensor(name, kI64, {}, raw<int64_t>({value}));
}
inline std::string scalar_bool(const std::string& name, bool value) {
  return tensor(name, kBool, {}, std::string(1, value ? '\1' : '\0'));
}

inline std::string external(const std::string& name, int element, const std::vector<int64_t>& dims,
                            const std::string& location, const std::string& offset = "",
                            const std::string& length = "") {
  const auto entry = [](const std::string& key, const std::string& text) {
    return message([&](pbf_writer& out) {
      out.add_string(1, key);
      out.add_string(2, text);
    });
  };
  return message([&](pbf_writer& out) {
    for (const int64_t dim : dims) out.add_int64(1, dim);
    out.add_int32(2, element);
    out.add_string(8, name);
    out.add_message(13, entry("location", location));
    if (!offset.empty()) out.add_message(13, entry("offset", offset));
    if (!length.empty()) out.add_message(13, entry("length", length));
    out.add_int32(14, 1);
  });
}

// ---- attributes ----
inline std::string attr(const std::string& name, int64_t value) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    out.add_int64(3, value);
    out.add_int32(20, 2);
  });
}
inline std::string attr(const std::string& name, int value) { return attr(name, int64_t{value}); }
inline std::string attr(const std::string& name, float value) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    out.add_float(2, value);
    out.add_int32(20, 1);
  });
}
inline std::string attr(const std::string& name, const char* value) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    out.add_bytes(4, std::string(value));
    out.add_int32(20, 3);
  });
}
inline std::string attr(const std::string& name, const std::vector<int64_t>& values) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    for (const int64_t value : values) out.add_int64(8, value);
    out.add_int32(20, 7);
  });
}
inline std::string attr_floats(const std::string& name, const std::vector<float>& values) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    out.add_packed_float(7, values.begin(), values.end());
    out.add_int32(20, 6);
  });
}
inline std::string attr_tensor(const std::string& name, const std::string& tensor) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    out.add_message(5, tensor);
    out.add_int32(20, 4);
  });
}
inline std::string attr_graph(const std::string& name, const std::string& graph) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    out.add_message(6, graph);
    out.add_int32(20, 5);
  });
}
/// Inside a function: takes the caller's attribute `from`. `kind` as the format numbers them.
inline std::string attr_from(const std::string& name, const std::string& from, int kind) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    out.add_int32(20, kind);
    out.add_string(21, from);
  });
}

inline std::string node(const std::string& op, const List& inputs, const List& outputs,
                        const List& attrs = {}, const std::string& name = "",
                        const std::string& domain = "") {
  return message([&](pbf_writer& out) {
    for (const std::string& input : inputs) out.add_string(1, input);
    for (const std::string& output : outputs) out.add_string(2, output);
    if (!name.empty()) out.add_string(3, name);
    out.add_string(4, op);
    for (const std::string& attribute : attrs) out.add_message(5, attribute);
    if (!domain.empty()) out.add_string(7, domain);
  });
}

inline std::string graph(const List& nodes, const List& inputs, const List& outputs,
                         const List& initializers = {}) {
  return message([&](pbf_writer& out) {
    for (const std::string& one : nodes) out.add_message(1, one);
    out.add_string(2, "g");
    for (const std::string& one : initializers) out.add_message(5, one);
    for (const std::string& one : inputs) out.add_message(11, one);
    for (const std::string& one : outputs) out.add_message(12, one);
  });
}

inline std::string opset(const std::string& domain, int64_t version) {
  return message([&](pbf_writer& out) {
    if (!domain.empty()) out.add_string(1, domain);
    out.add_int64(2, version);
  });
}

inline std::string function(const std::string& domain, const std::string& name, const List& inputs,
                            const List& outputs, const List& nodes, const List& attrs = {},
                            const List& defaults = {}) {
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    for (const std::string& one : inputs) out.add_string(4, one);
    for (const std::string& one : outputs) out.add_string(5, one);
    for (const std::string& one : attrs) out.add_string(6, one);
    for (const std::string& one : nodes) out.add_message(7, one);
    out.add_message(9, opset("", 18));
    out.add_message(9, opset("local", 1));
    out.add_string(10, domain);
    for (const std::string& one : defaults) out.add_message(11, one);
  });
}

inline std::string model(const std::string& graph, int64_t version = 18,
                         const List& functions = {}) {
  return message([&](pbf_writer& out) {
    out.add_int64(1, 8);
    out.add_string(2, "test");
    out.add_message(7, graph);
    out.add_message(8, opset("", version));
    out.add_message(8, opset("local", 1));
    out.add_message(8, opset("com.microsoft", 1));
    for (const std::string& one : functions) out.add_message(25, one);
  });
}

inline Result<Model> read(const std::string& bytes, const std::string& folder = ".") {
  auto owner = std::make_shared<std::string>(bytes);
  return read_model_bytes(*owner, owner, folder);
}

}  // namespace obelisk::frontends::onnx::make
