#include <cmath>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "base/parallel.h"
#include "graph/graph.h"

namespace obelisk::graph {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (letter == '\n') {
      out += "\\n";
    } else if (letter == '\t') {
      out += "\\t";
    } else if (code < 0x20 || code == 0x7f) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += letter;
    }
  }
  return out + '"';
}

// Shortest text that reads back as the same value. NaN has one spelling.
template <typename Float>
std::string shortest(Float value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

std::string float_attr(double value) {
  std::string out = shortest(value);
  if (out.find_first_of(".ein") == std::string::npos) out += ".0";
  return out;
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (const char letter : name) {
    if (!std::isalnum(static_cast<unsigned char>(letter)) && letter != '_') return false;
  }
  return true;
}

std::string element(const Tensor& tensor, int64_t index) {
  const DType dtype = tensor.dtype();
  if (dtype == DType::b1) return tensor.get_int(index) ? "true" : "false";
  if (dtype == DType::f64) return shortest(tensor.get_double(index));
  // Every narrower float is an f32 exactly, whose shortest text is the shorter one.
  if (is_float(dtype)) return shortest(static_cast<float>(tensor.get_double(index)));
  if (dtype == DType::u64) return fmt::format("{}", static_cast<uint64_t>(tensor.get_int(index)));
  return fmt::format("{}", tensor.get_int(index));
}

// Whether reading the elements back one by one gives these bytes: not for NaNs with a payload, bits
// of padding, booleans other than 0 and 1.
bool survives_as_list(const Tensor& tensor) {
  Tensor copy = Tensor::allocate(tensor.type());
  for (int64_t k = 0; k < tensor.count(); ++k) {
    if (is_float(tensor.dtype())) {
      const double value = tensor.get_double(k);
      copy.set_double(k, std::isnan(value) ? std::nan("") : value);
    } else {
      copy.set_int(k, tensor.get_int(k));
    }
  }
  return std::memcmp(copy.data(), tensor.data(), static_cast<size_t>(tensor.bytes())) == 0;
}

Hash hash_of(const Tensor& tensor, const PrintOptions& options = {}) {
  if (options.hashes != nullptr) {
    if (const auto known = options.hashes->find({tensor.data(), tensor.bytes()});
        known != options.hashes->end())
      return known->second;
  }
  return hash_bytes(tensor.data(), static_cast<size_t>(tensor.bytes()));
}

bool is_hashed(const Tensor& tensor, const PrintOptions& options) {
  return !options.all_data && tensor.count() > options.list_limit;
}

std::string data_text(const Tensor& tensor, const PrintOptions& options) {
  if (is_hashed(tensor, options)) return "#" + to_string(hash_of(tensor, options));
  if (tensor.count() > options.list_limit || !survives_as_list(tensor)) {
    std::string out = "0x";
    const auto* bytes = tensor.as<unsigned char>();
    for (int64_t k = 0; k < tensor.bytes(); ++k) {
      out += "0123456789abcdef"[bytes[k] >> 4];
      out += "0123456789abcdef"[bytes[k] & 15];
    }
    return out;
  }
  if (tensor.shape().empty()) return element(tensor, 0);
  std::string out = "[";
  for (int64_t k = 0; k < tensor.count(); ++k) {
    if (k > 0) out += ", ";
    out += element(tensor, k);
  }
  return out + "]";
}

struct AttrText {
  const PrintOptions& options;
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return float_attr(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<int64_t>& values) const {
    std::string out = "[";
    for (const int64_t value : values)
      out += fmt::format("{}{}", out.size() > 1 ? ", " : "", value);
    return out + "]";
  }
  std::string operator()(const std::vector<double>& values) const {
    if (values.empty()) return "floats []";
    std::string out = "[";
    for (const double value : values) out += (out.size() > 1 ? ", " : "") + float_attr(value);
    return out + "]";
  }
  std::string operator()(const Tensor& value) const {
    return fmt::format("tensor {} {}", to_string(value.type()), data_text(value, options));
  }
};

std::string attrs_text(const ops::Attrs& attrs, const PrintOptions& options) {
  if (attrs.all().empty()) return "";
  std::string out = " {";
  for (const auto& [name, value] : attrs.all()) {
    if (out.size() > 2) out += ", ";
    out += is_plain_name(name) ? name : quoted(name);
    out += " = " + std::visit(AttrText{options}, value);
  }
  return out + "}";
}

class Printer {
 public:
  Printer(const Graph& graph, const PrintOptions& options)
      : graph_(graph), options_(options), numbers_(static_cast<size_t>(graph.value_count()), -1) {}

  std::string run() {
    out_ = fmt::format("graph {} {{\n", quoted(graph_.name));
    for (ValueId id : graph_.inputs()) out_ += fmt::format("  in {}\n", definition(id));
    for (NodeId id : graph_.order()) {
      for (ValueId input : graph_.node(id).inputs) constant(input);
    }
    for (ValueId output : graph_.outputs()) constant(output);
    for (NodeId id : graph_.order()) out_ += "  " + node(id) + "\n";
    for (size_t k = 0; k < graph_.outputs().size(); ++k) {
      const int input = graph_.in_place_of(k);
      out_ += fmt::format(
          "  out {} {}{}\n", reference(graph_.outputs()[k]), quoted(graph_.output_names()[k]),
          input == kNone ? ""
                         : " in_place_of " + quoted(graph_.value(graph_.inputs()[input]).name));
    }
    return out_ + "}\n";
  }

  std::string node_by_ids(NodeId id) {
    for (size_t k = 0; k < numbers_.size(); ++k) numbers_[k] = static_cast<int>(k);
    return node(id, false);
  }

 private:
  // Gives the value its number.
  std::string definition(ValueId id, bool renumber = true) {
    const Value& value = graph_.value(id);
    if (renumber) numbers_[static_cast<size_t>(id)] = next_++;
    return fmt::format("%{}{}{}: {}", numbers_[static_cast<size_t>(id)],
                       value.name.empty() ? "" : " ", value.name.empty() ? "" : quoted(value.name),
                       to_string(value.type));
  }

  // A graph that fails verify() must still print, so that one can see why.
  std::string reference(ValueId id) const {
    if (id == kNone) return "_";
    if (id < 0 || id >= graph_.value_count()) return fmt::format("%?{}", id);
    const int number = numbers_[static_cast<size_t>(id)];
    return number < 0 ? fmt::format("%?{}", id) : fmt::format("%{}", number);
  }

  void constant(ValueId id) {
    if (id < 0 || id >= graph_.value_count()) return;
    const Value& value = graph_.value(id);
    if (!value.is_constant() || numbers_[static_cast<size_t>(id)] >= 0) return;
    const std::string head = definition(id);
    out_ += fmt::format("  const {} = {}\n", head, data_text(value.constant, options_));
  }

  std::string node(NodeId id, bool renumber = true) {
    const Node& node = graph_.node(id);
    std::string inputs, outputs;
    for (ValueId input : node.inputs) inputs += (inputs.empty() ? "" : ", ") + reference(input);
    for (ValueId output : node.outputs) {
      outputs += (outputs.empty() ? "" : ", ") + definition(output, renumber);
    }
    std::string out = fmt::format("{} = {}({}){}", outputs, ops::to_string(node.op), inputs,
                                  attrs_text(node.attrs, options_));
    if (!node.name.empty()) out += " " + quoted(node.name);
    return out;
  }

  const Graph& graph_;
  const PrintOptions& options_;
  std::vector<int> numbers_;  // by value, -1 before its line
  int next_ = 0;
  std::string out_;
};

}  // namespace

std::string print(const Graph& graph, const PrintOptions& options) {
  return Printer(graph, options).run();
}

std::string print(const Graph& graph, NodeId id) { return Printer(graph, {}).node_by_ids(id); }

namespace {

/// Every tensor that print() names by its hash.
template <typename Visit>
void for_each_hashed(const Graph& graph, const PrintOptions& options, const Visit& visit) {
  const auto look = [&](const Tensor& tensor) {
    if (is_hashed(tensor, options)) visit(tensor);
  };
  for (NodeId id : graph.order()) {
    for (ValueId input : graph.node(id).inputs) {
      if (input != kNone && graph.value(input).is_constant()) look(graph.value(input).constant);
    }
    for (const auto& [name, value] : graph.node(id).attrs.all()) {
      if (const Tensor* tensor = std::get_if<Tensor>(&value)) look(*tensor);
    }
  }
  for (ValueId output : graph.outputs()) {
    if (graph.value(output).is_constant()) look(graph.value(output).constant);
  }
}

}  // namespace

Weights collect_weights(const Graph& graph, const PrintOptions& options) {
  Weights out;
  for_each_hashed(graph, options,
                  [&](const Tensor& tensor) { out.emplace(hash_of(tensor, options), tensor); });
  return out;
}

KnownHashes hash_weights(const Graph& graph, const PrintOptions& options) {
  KnownHashes out;
  for_each_hashed(graph, options,
                  [&](const Tensor& tensor) { out.try_emplace({tensor.data(), tensor.bytes()}); });
  std::vector<KnownHashes::value_type*> jobs;
  for (auto& entry : out) jobs.push_back(&entry);
  for_each_on_all_cores(jobs.size(), [&](size_t k) {
    const auto& [data, bytes] = jobs[k]->first;
    jobs[k]->second = hash_bytes(data, static_cast<size_t>(bytes));
  });
  return out;
}

}  // namespace obelisk::graph
