#include <protozero/pbf_writer.hpp>

#include "base/protobuf.h"
#include "ort/graph.h"

namespace obelisk::ort {
namespace {

using protozero::pbf_writer;

constexpr size_t kSmall = 1024;         // bytes of a weight that stand in the model itself
constexpr int64_t kFormatVersion = 10;  // of the file; what ops mean is told by the operator sets

std::string value_message(const std::string& name, const ValueType* type) {
  const auto dimension = [&](size_t d) {
    return message([&](pbf_writer& out) {
      if (type->extents[d] >= 0)
        out.add_int64(1, type->extents[d]);
      else if (!type->symbols[d].empty())
        out.add_string(2, type->symbols[d]);
    });
  };
  const auto tensor = [&](pbf_writer& out) {
    out.add_int32(1, type->element);
    if (type->has_shape)
      out.add_message(2, message([&](pbf_writer& shape) {
                        for (size_t d = 0; d < type->extents.size(); ++d)
                          shape.add_message(1, dimension(d));
                      }));
  };
  return message([&](pbf_writer& out) {
    out.add_string(1, name);
    if (type && type->element != 0)
      out.add_message(2, message([&](pbf_writer& kind) { kind.add_message(1, message(tensor)); }));
  });
}

std::string entry(const std::string& key, const std::string& value) {
  return message([&](pbf_writer& out) { out.add_string(1, key), out.add_string(2, value); });
}

std::string weight_message(const std::string& name, const Weight& weight, Part& part) {
  return message([&](pbf_writer& out) {
    for (int64_t extent : weight.type.extents) out.add_int64(1, extent);
    out.add_int32(2, weight.type.element);
    out.add_string(8, name);
    if (weight.data.size() <= kSmall)
      return out.add_bytes(9, reinterpret_cast<const char*>(weight.data.data()),
                           weight.data.size());
    const std::string location = "weight/" + std::to_string(part.memory.size());
    part.memory[location] = weight.data;
    out.add_message(13, entry("location", location));
    out.add_message(13, entry("length", std::to_string(weight.data.size())));
    out.add_int32(14, 1);
  });
}

}  // namespace

bool ValueType::known() const {
  if (!has_shape) return false;
  for (int64_t extent : extents)
    if (extent < 0) return false;
  return true;
}

bool Part::known_shapes() const {
  for (const auto& [name, type] : inputs)
    if (!type.known()) return false;
  return true;
}

Part write_part(const Graph& graph, const Group& group) {
  Part part{.nodes = group};
  const std::set<size_t> inside(group.begin(), group.end());
  std::set<std::string> made, wanted = graph.outputs, read;
  for (size_t n : group)
    for (const std::string& name : graph.nodes[n].outputs) made.insert(name);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (inside.contains(n)) continue;
    wanted.insert(graph.nodes[n].inputs.begin(), graph.nodes[n].inputs.end());
    wanted.insert(graph.nodes[n].outer.begin(), graph.nodes[n].outer.end());
  }
  const auto type_of = [&](const std::string& name) {
    const auto found = graph.values.find(name);
    return found == graph.values.end() ? nullptr : &found->second;
  };
  const std::string body = message([&](pbf_writer& out) {
    out.add_string(2, "part");
    for (size_t n : group) {
      const Node& node = graph.nodes[n];
      out.add_message(1, message([&](pbf_writer& to) {
                        for (const std::string& name : node.inputs) to.add_string(1, name);
                        for (const std::string& name : node.outputs) to.add_string(2, name);
                        to.add_string(3, node.name), to.add_string(4, node.op);
                        for (const std::string& each : node.attributes) to.add_message(5, each);
                        to.add_string(7, node.domain);
                      }));
      for (const std::string& name : node.inputs) {
        if (name.empty() || made.contains(name) || !read.insert(name).second) continue;
        if (const auto weight = graph.weights.find(name); weight != graph.weights.end()) {
          out.add_message(5, weight_message(name, weight->second, part));
          continue;
        }
        out.add_message(11, value_message(name, type_of(name)));
        part.inputs.emplace_back(name, *type_of(name));
      }
      for (const std::string& name : node.outputs) {
        if (name.empty() || !wanted.contains(name)) continue;
        out.add_message(12, value_message(name, type_of(name)));
        part.outputs.push_back(name);
      }
    }
  });
  part.model = message([&](pbf_writer& out) {
    out.add_int64(1, kFormatVersion);
    for (const auto& [domain, version] : graph.opsets)
      out.add_message(8, message([&, &domain = domain, &version = version](pbf_writer& to) {
                        to.add_string(1, domain), to.add_int64(2, version);
                      }));
    out.add_message(7, body);
  });
  return part;
}

}  // namespace obelisk::ort
