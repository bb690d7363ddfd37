#include "graph/graph.h"

#include <gtest/gtest.h>

namespace obelisk::graph {
namespace {

const Type kVector{DType::f32, {3}};

// x -> Relu a -> Add(a, x) b -> out; plus a dead Relu.
struct Small {
  Graph graph;
  ValueId x, a, b;
  Small() {
    x = graph.add_input("x", kVector);
    a = graph.must_add(Op::Relu, {x}, {}, "relu");
    b = graph.must_add(Op::Add, {a, x}, {}, "add");
    graph.must_add(Op::Relu, {b}, {}, "dead");
    graph.mark_output(b, "y");
  }
};

// Passes hand a value's shape to what adds nodes: where it lay in a vector it was read after that
// had moved.
TEST(Graphs, ReferencesHoldWhileItGrows) {
  Small small;
  const Type& type = small.graph.type(small.a);
  const Node& node = small.graph.node(1);
  for (int k = 0; k < 1000; ++k) small.graph.must_add(Op::Relu, {small.a});
  EXPECT_EQ(&type, &small.graph.type(small.a));
  EXPECT_EQ(&node, &small.graph.node(1));
  EXPECT_EQ(type.shape, kVector.shape);
}

TEST(Graphs, UsersFollowEveryChange) {
  Small small;
  Graph& graph = small.graph;
  ASSERT_TRUE(verify(graph).ok());
  EXPECT_EQ(graph.users(small.x), (std::vector<NodeId>{0, 1}));
  EXPECT_EQ(graph.users(small.b), (std::vector<NodeId>{2}));
  graph.replace_uses(small.a, small.x);
  EXPECT_EQ(graph.node(1).inputs, (std::vector<ValueId>{small.x, small.x}));
  EXPECT_EQ(graph.users(small.x), (std::vector<NodeId>{0, 1}));
  EXPECT_TRUE(graph.users(small.a).empty());
  graph.set_inputs(1, {small.x, small.a});
  EXPECT_EQ(graph.users(small.a), (std::vector<NodeId>{1}));
  EXPECT_TRUE(verify(graph).ok());
  EXPECT_TRUE(graph.is_output(small.b));
  EXPECT_EQ(graph.producer(small.b, Op::Add), 1);
  EXPECT_EQ(graph.producer(small.b, Op::Relu), kNone);
  EXPECT_EQ(graph.producer(small.x, Op::Relu), kNone);
}

TEST(Graphs, ReplacingAnOutputKeepsItsName) {
  Small small;
  small.graph.replace_uses(small.b, small.a);
  EXPECT_EQ(small.graph.outputs()[0], small.a);
  EXPECT_EQ(small.graph.output_names()[0], "y");
  EXPECT_EQ(small.graph.remove_dead(), 2);
  EXPECT_EQ(small.graph.order(), (std::vector<NodeId>{0}));
  EXPECT_TRUE(verify(small.graph).ok());
}

TEST(Graphs, DeadChainsGoAtOnce) {
  Small small;
  Graph& graph = small.graph;
  ValueId last = small.b;
  for (int k = 0; k < 10; ++k) last = graph.must_add(Op::Relu, {last});
  EXPECT_EQ(graph.remove_dead(), 11);
  EXPECT_EQ(graph.remove_dead(), 0);
  EXPECT_EQ(graph.users(small.b).size(), 0u);
  EXPECT_TRUE(verify(graph).ok());
}

TEST(Graphs, SortIsStable) {
  Small small;
  Graph& graph = small.graph;
  const std::vector<NodeId> before = graph.order();
  graph.sort();
  EXPECT_EQ(graph.order(), before);
  // A pass puts a node between relu and add: it is made last and moves just before its reader.
  const ValueId between = graph.must_add(Op::Neg, {small.a});
  graph.set_inputs(1, {between, small.x});
  EXPECT_NE(verify(graph).error().message.find("before it is made"), std::string::npos);
  graph.sort();
  EXPECT_EQ(graph.order(), (std::vector<NodeId>{0, 3, 1, 2}));
  EXPECT_TRUE(verify(graph).ok());
}

TEST(Graphs, ACycleIsABug) {
  Small small;
  small.graph.set_inputs(0, {small.b});
  EXPECT_THROW(small.graph.sort(), Bug);
}

TEST(Graphs, SortIsNotLimitedByTheCallStack) {
  Graph graph;
  const ValueId x = graph.add_input("x", kVector);
  ValueId last = x;
  for (int k = 0; k < 200000; ++k) last = graph.must_add(Op::Relu, {last});
  graph.mark_output(last, "y");
  graph.sort();
  EXPECT_EQ(graph.remove_dead(), 0);
  EXPECT_TRUE(verify(graph).ok());
}

TEST(Graphs, CompactedRenumbers) {
  Small small;
  Graph& graph = small.graph;
  graph.add_constant(tensor_of({1, 2}), "unused");
  const ValueId c = graph.add_constant(tensor_of(DType::f32, {3}, {1, 2, 3}), "c");
  const ValueId sum = graph.must_add(Op::Add, {small.b, c});
  graph.replace_uses(small.b, sum);
  graph.set_inputs(graph.value(sum).producer, {small.b, c});
  graph.remove_dead();
  const Graph copy = graph.compacted();
  EXPECT_TRUE(verify(copy).ok()) << verify(copy).error().text();
  EXPECT_EQ(copy.value_count(), 5);
  EXPECT_EQ(copy.node_count(), 3);
  EXPECT_EQ(copy.value(1).name, "c");
  EXPECT_EQ(print(copy), print(graph));
}

TEST(Graphs, ErrorsNameTheUsersNode) {
  Graph graph;
  const ValueId x = graph.add_input("x", kVector), y = graph.add_input("y", {DType::f32, {2}});
  const Result<NodeId> bad = graph.add_node(Op::Add, {x, y}, {}, "layer/add");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, Code::kBadModel);
  EXPECT_EQ(bad.error().node, "layer/add");
  EXPECT_EQ(graph.node_count(), 0);
  EXPECT_THROW(graph.must_add(Op::Add, {x, y}), Bug);
}

std::string broken(const Graph& graph) {
  const Status status = verify(graph);
  return status.ok() ? "sound" : status.error().text();
}

TEST(Verify, NamesWhatIsBroken) {
  {
    Small small;
    small.graph.value(small.a).type.shape = {4};
    EXPECT_EQ(broken(small.graph),
              "graph: 'relu': node 0 (Relu) output 0 is f32[4] but its inputs make it f32[3]");
  }
  {
    Small small;
    small.graph.erase_node(0);
    EXPECT_EQ(broken(small.graph),
              "graph: 'add': node 1 (Add) reads value 1 before it is made (input 0)");
  }
  {
    Small small;
    small.graph.set_inputs(0, {small.b});
    EXPECT_EQ(broken(small.graph),
              "graph: 'relu': node 0 (Relu) reads value 2 before it is made (input 0)");
  }
  {
    Small small;
    small.graph.node(1).inputs[0] = small.x;  // behind the back of set_inputs
    EXPECT_EQ(broken(small.graph), "graph: the readers of value 1 are not what users() says");
  }
  {
    Small small;
    small.graph.value(small.b).constant = tensor_of({1});
    EXPECT_EQ(broken(small.graph), "graph: 'add': value 2 has a constant and a producer");
  }
  {
    Small small;
    small.graph.mark_output(small.a, "y");
    EXPECT_EQ(broken(small.graph), "graph: two outputs are named 'y'");
  }
  {
    Small small;
    small.graph.mark_output(small.a, "z", 7);
    EXPECT_EQ(broken(small.graph), "graph: output 'z' is in place of input 7 of 1");
  }
  {
    Small small;
    const ValueId pair =
        small.graph.must_add(Op::Concat, {small.x, small.x}, ops::Attrs().set("axis", int64_t{0}));
    small.graph.mark_output(pair, "z", 0);
    EXPECT_NE(broken(small.graph).find("and in place of input 'x', which is"), std::string::npos)
        << broken(small.graph);
  }
  {
    Small small;
    small.graph.mark_output(small.x, "z", 0), small.graph.mark_output(small.x, "w", 0);
    EXPECT_EQ(broken(small.graph), "graph: two outputs are in place of input 'x'");
  }
}

TEST(Interpret, RunsNodeByNode) {
  Small small;
  const std::vector<Tensor> inputs = {tensor_of(DType::f32, {3}, {-1, 2, 3})};
  const auto answers = interpret(small.graph, inputs);
  ASSERT_TRUE(answers.ok()) << answers.error().text();
  ASSERT_EQ(answers->size(), 1u);
  EXPECT_EQ((*answers)[0].type(), kVector);
  EXPECT_EQ((*answers)[0].get_double(0), -1);
  EXPECT_EQ((*answers)[0].get_double(2), 6);
}

TEST(Interpret, ExactModeCarriesDoubles) {
  Graph graph;
  const ValueId x = graph.add_input("x", {DType::f16, {1}});
  const ValueId c = graph.add_constant(tensor_of(DType::f16, {1}, {0x1p-20}));
  graph.mark_output(graph.must_add(Op::Add, {x, c}), "y");
  const std::vector<Tensor> one = {tensor_of(DType::f16, {1}, {1})};
  EXPECT_EQ(interpret(graph, one).value()[0].get_double(0), 1);
  const auto exact = interpret(graph, one, {.exact = true});
  ASSERT_TRUE(exact.ok()) << exact.error().text();
  EXPECT_EQ((*exact)[0].dtype(), DType::f64);
  EXPECT_EQ((*exact)[0].get_double(0), 1 + 0x1p-20);
  // Wider inputs are taken as they are.
  const std::vector<Tensor> wide = {tensor_of(DType::f64, {1}, {1 + 0x1p-40})};
  EXPECT_EQ(interpret(graph, wide, {.exact = true}).value()[0].get_double(0),
            1 + 0x1p-40 + 0x1p-20);
}

TEST(Interpret, NarrowFloatsStayNarrowInExactMode) {
  Graph graph;
  const ValueId x = graph.add_input("x", {DType::f32, {1}});
  const auto to = [](DType dtype) { return ops::Attrs().set("to", ops::number_of_dtype(dtype)); };
  const ValueId half = graph.must_add(Op::Cast, {x}, to(DType::f16));
  const ValueId low = graph.must_add(Op::Cast, {half}, to(DType::f8e5m2));
  graph.mark_output(half, "half");
  graph.mark_output(graph.must_add(Op::Cast, {low}, to(DType::f32)), "low");
  const std::vector<Tensor> inputs = {tensor_of(DType::f32, {1}, {1.1})};
  const auto exact = interpret(graph, inputs, {.exact = true});
  ASSERT_TRUE(exact.ok()) << exact.error().text();
  EXPECT_EQ((*exact)[0].dtype(), DType::f64);
  EXPECT_EQ((*exact)[0].get_double(0), 1.099609375);  // rounding is what a Cast means
  EXPECT_EQ((*exact)[1].get_double(0), 1.0);
}

TEST(Interpret, ProbeSeesEveryNodeAndMayStop) {
  Small small;
  const std::vector<Tensor> inputs = {tensor_of(DType::f32, {3}, {-1, 2, 3})};
  std::vector<NodeId> seen;
  Interpretation how;
  how.probe = [&](NodeId id, std::span<const Tensor> outputs) {
    seen.push_back(id);
    EXPECT_EQ(outputs.size(), 1u);
    return seen.size() < 2;
  };
  EXPECT_TRUE(interpret(small.graph, inputs, how).value().empty());
  EXPECT_EQ(seen, (std::vector<NodeId>{0, 1}));
}

TEST(Interpret, InputsMustFit) {
  Small small;
  EXPECT_EQ(interpret(small.graph, {}).error().text(), "graph: 0 inputs for a graph that takes 1");
  const std::vector<Tensor> wrong = {tensor_of(DType::f32, {2}, {1, 2})};
  EXPECT_EQ(interpret(small.graph, wrong).error().text(),
            "graph: 'x': the input is f32[2] but the graph takes f32[3]");
}

}  // namespace
}  // namespace obelisk::graph
