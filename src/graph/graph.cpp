#include "graph/graph.h"

#include <algorithm>

namespace obelisk::graph {

ValueId Graph::add_value(Value value) {
  values_.push_back(std::move(value));
  users_.emplace_back();
  return value_count() - 1;
}

ValueId Graph::add_input(std::string name, Type type) {
  const ValueId id = add_value({.name = std::move(name), .type = std::move(type)});
  inputs_.push_back(id);
  return id;
}

ValueId Graph::add_constant(Tensor tensor, std::string name) {
  CHECK(!tensor.empty(), "constant '{}' without a tensor", name);
  Type type = tensor.type();
  return add_value(
      {.name = std::move(name), .type = std::move(type), .constant = std::move(tensor)});
}

Result<NodeId> Graph::add_node(Op op, std::vector<ValueId> inputs, ops::Attrs attrs,
                               std::string name, int outputs) {
  ops::Call call{.op = op, .attrs = attrs, .outputs = outputs};
  for (ValueId input : inputs) {
    CHECK(input >= kNone && input < value_count(), "{} reads value {} of {}", ops::to_string(op),
          input, value_count());
    const Value* value = input == kNone ? nullptr : &values_[input];
    call.inputs.push_back(value != nullptr ? &value->type : nullptr);
    call.constants.push_back(value != nullptr && value->is_constant() ? &value->constant : nullptr);
  }
  Result<ops::Types> types = ops::infer(call);
  if (!types.ok()) {
    Error error = std::move(types.error());
    if (error.node.empty()) error.node = name;
    return error;
  }
  const NodeId id = node_count();
  Node node{
      .op = op, .attrs = std::move(attrs), .inputs = std::move(inputs), .name = std::move(name)};
  for (int output = 0; output < outputs; ++output) {
    node.outputs.push_back(add_value({.type = std::move((*types)[static_cast<size_t>(output)]),
                                      .producer = id,
                                      .producer_output = output}));
  }
  for (ValueId input : node.inputs) use(input, id);
  nodes_.push_back(std::move(node));
  position_.push_back(order_.empty() ? 0 : position_[order_.back()] + 1);
  order_.push_back(id);
  return id;
}

ValueId Graph::must_add(Op op, std::vector<ValueId> inputs, ops::Attrs attrs, std::string name) {
  const Result<NodeId> id = add_node(op, std::move(inputs), std::move(attrs), std::move(name));
  CHECK(id.ok(), "{}", id.error().text());
  return nodes_[*id].outputs[0];
}

void Graph::mark_output(ValueId value, std::string name, int in_place_of) {
  CHECK(value >= 0 && value < value_count(), "output '{}' is value {}", name, value);
  outputs_.push_back(value);
  output_names_.push_back(std::move(name));
  in_place_of_.push_back(in_place_of);
}

std::vector<NodeId> Graph::users(ValueId id) const {
  std::vector<NodeId> out = users_[id];
  std::sort(out.begin(), out.end(),
            [&](NodeId a, NodeId b) { return position_[a] < position_[b]; });
  return out;
}

bool Graph::is_output(ValueId id) const {
  return std::find(outputs_.begin(), outputs_.end(), id) != outputs_.end();
}

NodeId Graph::producer(ValueId id, Op op) const {
  if (id == kNone) return kNone;
  const NodeId node = values_[id].producer;
  return node != kNone && nodes_[node].op == op ? node : kNone;
}

ops::Call Graph::call(NodeId id) const {
  const Node& node = nodes_[id];
  ops::Call call{
      .op = node.op, .attrs = node.attrs, .outputs = static_cast<int>(node.outputs.size())};
  for (ValueId input : node.inputs) {
    const Value* value = input == kNone ? nullptr : &values_[input];
    call.inputs.push_back(value != nullptr ? &value->type : nullptr);
    call.constants.push_back(value != nullptr && value->is_constant() ? &value->constant : nullptr);
  }
  for (ValueId output : node.outputs) call.results.push_back(&values_[output].type);
  return call;
}

void Graph::use(ValueId id, NodeId reader) {
  if (id == kNone) return;
  std::vector<NodeId>& readers = users_[id];
  if (std::find(readers.begin(), readers.end(), reader) == readers.end()) readers.push_back(reader);
}

void Graph::unuse(ValueId id, NodeId reader) {
  if (id != kNone) std::erase(users_[id], reader);
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  const std::vector<NodeId> readers = std::move(users_[from]);
  users_[from].clear();
  for (NodeId reader : readers) {
    std::vector<ValueId>& inputs = nodes_[reader].inputs;
    std::replace(inputs.begin(), inputs.end(), from, to);
    use(to, reader);
  }
  std::replace(outputs_.begin(), outputs_.end(), from, to);
}

void Graph::erase_node(NodeId id) {
  Node& node = nodes_[id];
  CHECK(!node.erased, "node {} '{}' is erased already", id, node.name);
  node.erased = true;
  for (ValueId input : node.inputs) unuse(input, id);
  for (ValueId output : node.outputs) values_[output].producer = kNone;
  const auto at = std::lower_bound(order_.begin(), order_.end(), id,
                                   [&](NodeId a, NodeId b) { return position_[a] < position_[b]; });
  CHECK(at != order_.end() && *at == id, "node {} is not in the order", id);
  order_.erase(at);
}

void Graph::set_inputs(NodeId id, std::vector<ValueId> inputs) {
  for (ValueId input : nodes_[id].inputs) unuse(input, id);
  for (ValueId input : inputs) use(input, id);
  nodes_[id].inputs = std::move(inputs);
}

int Graph::remove_dead() {
  std::vector<bool> wanted(values_.size());
  for (ValueId output : outputs_) wanted[output] = true;
  const auto is_dead = [&](NodeId id) {
    const Node& node = nodes_[id];
    return !node.erased && std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId out) {
      return !wanted[out] && users_[out].empty();
    });
  };
  int removed = 0;
  std::vector<NodeId> work(order_.rbegin(), order_.rend());
  for (size_t next = 0; next < work.size(); ++next) {
    const NodeId id = work[next];
    if (!is_dead(id)) continue;
    Node& node = nodes_[id];
    node.erased = true;
    ++removed;
    for (ValueId output : node.outputs) values_[output].producer = kNone;
    for (ValueId input : node.inputs) {
      unuse(input, id);
      if (input != kNone && values_[input].producer != kNone) {
        work.push_back(values_[input].producer);
      }
    }
  }
  std::erase_if(order_, [&](NodeId id) { return nodes_[id].erased; });
  return removed;
}

void Graph::sort() {
  enum State : uint8_t { kNew, kOpen, kDone };
  std::vector<State> states(nodes_.size(), kNew);
  std::vector<NodeId> sorted;
  sorted.reserve(order_.size());
  struct Visit {
    NodeId node;
    size_t next_input;
  };
  std::vector<Visit> stack;  // explicit, since networks are deeper than call stacks
  for (NodeId root : order_) {
    if (states[root] != kNew) continue;
    stack.push_back({root, 0});
    states[root] = kOpen;
    while (!stack.empty()) {
      Visit& visit = stack.back();
      const Node& node = nodes_[visit.node];
      if (visit.next_input == node.inputs.size()) {
        states[visit.node] = kDone;
        sorted.push_back(visit.node);
        stack.pop_back();
        continue;
      }
      const ValueId input = node.inputs[visit.next_input++];
      const NodeId producer = input == kNone ? kNone : values_[input].producer;
      if (producer == kNone || states[producer] == kDone) continue;
      CHECK(states[producer] == kNew, "a cycle through '{}'", nodes_[producer].name);
      states[producer] = kOpen;
      stack.push_back({producer, 0});
    }
  }
  order_ = std::move(sorted);
  for (size_t k = 0; k < order_.size(); ++k) position_[order_[k]] = static_cast<int64_t>(k);
}

Graph Graph::compacted() const {
  Graph out;
  out.name = name;
  std::vector<ValueId> renamed(values_.size(), kNone);
  for (ValueId input : inputs_) {
    renamed[input] = out.add_input(values_[input].name, values_[input].type);
  }
  const auto copy_constant = [&](ValueId id) {
    if (id == kNone || renamed[id] != kNone || !values_[id].is_constant()) return;
    renamed[id] = out.add_constant(values_[id].constant, values_[id].name);
  };
  for (NodeId id : order_) {
    for (ValueId input : nodes_[id].inputs) copy_constant(input);
  }
  for (ValueId output : outputs_) copy_constant(output);
  const auto rename = [&](ValueId id) {
    if (id == kNone) return kNone;
    CHECK(renamed[id] != kNone, "value {} '{}' has no producer before it", id, values_[id].name);
    return renamed[id];
  };
  for (NodeId id : order_) {
    // Types are copied, not inferred again: that is for verify to compare.
    Node node = nodes_[id];
    const NodeId copy = out.node_count();
    for (ValueId& input : node.inputs) {
      input = rename(input);
      out.use(input, copy);
    }
    for (ValueId& output : node.outputs) {
      Value value = values_[output];
      value.producer = copy;
      output = renamed[output] = out.add_value(std::move(value));
    }
    out.nodes_.push_back(std::move(node));
    out.position_.push_back(copy);
    out.order_.push_back(copy);
  }
  for (size_t k = 0; k < outputs_.size(); ++k) {
    out.mark_output(rename(outputs_[k]), output_names_[k], in_place_of_[k]);
  }
  return out;
}

}  // namespace obelisk::graph
