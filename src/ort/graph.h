/// ort/graph.h — a graph of ONNX Runtime's as plain data; which of its nodes are taken together;
/// and those as a model file.
///
///   read_graph   OrtGraph → Graph                     (read_graph.cpp, the one that calls them)
///   groups_of    Graph    → groups of nodes           pure
///   write_part   Graph, a group → Part, an ONNX model pure
///   check_part   Part     → nodes that cannot be run  the importer, with trial extents
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ort/abi.h"

namespace obelisk::ort {

struct ValueType {
  int32_t element = 0;               // the format's number; 0: no tensor
  bool has_shape = false;            // its rank is known
  std::vector<int64_t> extents;      // below 0: not known
  std::vector<std::string> symbols;  // a dimension's name, or empty
  bool known() const;                // every extent
};

struct Node {
  std::string name, op, domain;
  std::vector<std::string> inputs, outputs;  // "" where an optional one is absent
  std::vector<std::string> outer;            // values that its inner graphs read
  std::vector<std::string> attributes;       // AttributeProto, as bytes
  std::string refused;                       // why it is not taken, whatever its shapes; or empty
  const OrtNode* theirs = nullptr;
};

struct Weight {
  ValueType type;
  std::span<const std::byte> data;  // as long as their graph lives
};

struct Graph {
  std::vector<Node> nodes;  // in topological order
  std::map<std::string, ValueType> values;
  std::map<std::string, Weight> weights;  // that nothing can overwrite
  std::set<std::string> outputs;
  std::vector<std::pair<std::string, int64_t>> opsets;
};

Graph read_graph(const Api& api, const OrtGraph* graph);

/// A group's nodes, by index, ascending.
using Group = std::vector<size_t>;

/// Largest groups of nodes that are not `refused`, such that no path leaves a group and comes back:
/// each can become one node. Nodes of a group have passed the same number of refused stretches.
std::vector<Group> groups_of(const Graph& graph, const std::vector<bool>& refused);

/// A group as a model: bytes, and weights beside them.
struct Part {
  Group nodes;
  std::string model;
  std::map<std::string, std::span<const std::byte>> memory;  // external data by location
  std::vector<std::pair<std::string, ValueType>> inputs;
  std::vector<std::string> outputs;
  bool known_shapes() const;
};
Part write_part(const Graph& graph, const Group& group);

struct Refusal {
  size_t node;  // of the graph
  std::string reason;
};

/// Nodes that the importer does not take, at extents that are known or, where they are not, at
/// some that are likely. Empty: it takes all. `trial`: the extents at which that was found.
std::vector<Refusal> check_part(const Graph& graph, const Part& part);

}  // namespace obelisk::ort
