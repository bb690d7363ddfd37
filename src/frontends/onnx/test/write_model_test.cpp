// Graphs written as model files and read again mean the same; notes, names and large weights
// arrive.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "frontends/frontends.h"

namespace obelisk::frontends {
namespace {

namespace fs = std::filesystem;

class WriteModel : public testing::Test {
 protected:
  WriteModel() : folder(fs::temp_directory_path() / fmt::format("obelisk-write-{}", ::getpid())) {
    fs::create_directories(folder);
  }
  ~WriteModel() override { fs::remove_all(folder); }
  std::string path() const { return (folder / "m.onnx").string(); }

  graph::Graph again(const graph::Graph& graph) {
    Status written = write_onnx(graph, path());
    EXPECT_TRUE(written.ok()) << written.error().text();
    auto model = onnx::read_model(path());
    EXPECT_TRUE(model.ok()) << model.error().text();
    auto read = import_onnx(*model);
    EXPECT_TRUE(read.ok()) << read.error().text() << "\n" << graph::print(graph);
    return *read;
  }
  static graph::Graph parsed(const std::string& text) {
    auto graph = graph::parse(text);
    EXPECT_TRUE(graph.ok()) << graph.error().text();
    return *graph;
  }
  fs::path folder;
};

TEST_F(WriteModel, RandomGraphsMeanTheSameAgain) {
  for (int seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const graph::Graph graph = graph::random_graph(seed);
    const graph::Graph read = again(graph);
    ASSERT_EQ(graph.output_names(), read.output_names());
    const std::vector<Tensor> inputs = graph::random_inputs(graph, seed);
    const auto wanted = graph::interpret(graph, inputs), got = graph::interpret(read, inputs);
    ASSERT_TRUE(wanted.ok() && got.ok());
    for (size_t k = 0; k < wanted->size(); ++k) ASSERT_EQ((*wanted)[k].type(), (*got)[k].type());
    // Not bit by bit: the format's real attributes are f32.
    const std::vector<ops::Tolerance> tolerances(got->size(), {1e-5, 1e-5});
    const graph::Comparison same = graph::compare(*got, *wanted, tolerances);
    ASSERT_TRUE(same.ok) << same.text();
  }
}

TEST_F(WriteModel, OutputsThatNoNodeMakesKeepTheirNames) {
  const graph::Graph read = again(parsed(R"(graph "g" {
  in %0 "x": f32[2]
  const %1 "w": f32[2] = [1, 2]
  %2 "y": f32[2] = Rsqrt(%0) "root"
  out %2 "y"
  out %2 "second"
  out %0 "input"
  out %1 "weight"
})"));
  EXPECT_EQ(read.output_names(), (std::vector<std::string>{"y", "second", "input", "weight"}));
  const auto answers = graph::interpret(read, std::vector{tensor_of(DType::f32, {2}, {4, 16})});
  ASSERT_TRUE(answers.ok());
  EXPECT_EQ((*answers)[1].get_double(1), 0.25);
  EXPECT_EQ((*answers)[3].get_double(1), 2);
}

TEST_F(WriteModel, AsksForTheOldestOperatorSetThatDoes) {
  const auto opset = [&](const std::string& op, const std::string& type) {
    return needed_opset(parsed(fmt::format(
        "graph \"g\" {{\n  in %0 \"x\": {0}[2,2]\n  %1: {0}[2,2] = {1}(%0)\n  out %1 \"y\"\n}}",
        type, op)));
  };
  EXPECT_EQ(opset("Relu", "f32"), 21);
  EXPECT_EQ(opset("Swish", "f32"), 24);
  EXPECT_EQ(opset("Identity", "f8e8m0"), 24);
  EXPECT_EQ(opset("Celu", "f32"), 21);
  EXPECT_EQ(opset("Celu", "f16"), 28);
}

// Rows of NaN where everything is masked: the standard's op has zeros there.
TEST_F(WriteModel, WhatTheStandardHasNoWordsForIsOfADomainOfItsOwn) {
  const auto written = [&](const std::string& attrs) {
    const graph::Graph graph = parsed(R"(graph "g" {
  in %0 "q": f32[1,1,2,2]
  in %1 "seen": b1[2,2]
  %2: f32[1,1,2,2] = Attention(%0, %0, %0, %1) {)" +
                                      attrs + "}\n  out %2 \"y\"\n}");
    EXPECT_TRUE(write_onnx(graph, path()).ok());
    auto model = onnx::read_model(path());
    EXPECT_TRUE(model.ok());
    return std::pair(std::string(model->graph.nodes[0].domain), needed_opset(graph));
  };
  EXPECT_EQ(written("scale = 1.0"), std::pair(std::string(), int64_t{23}));
  EXPECT_EQ(written("left_window_size = 1"), std::pair(std::string(), int64_t{25}));
  EXPECT_EQ(written("nan_if_masked = 1, scale = 1.0").first, "obelisk");
}

TEST_F(WriteModel, LargeWeightsGoBeside) {
  graph::Graph graph;
  graph.name = "large";
  const graph::ValueId x = graph.add_input("x", {DType::u8, {kInlineWeights + 5}});
  Tensor weight = Tensor::allocate({DType::u8, {kInlineWeights + 5}});
  weight.set_int(kInlineWeights + 4, 77);
  graph.mark_output(graph.must_add(ops::Op::BitwiseXor, {x, graph.add_constant(weight, "w")}), "y");
  const graph::Graph read = again(graph);
  EXPECT_LT(fs::file_size(path()), 4096u);
  EXPECT_GE(fs::file_size(path() + ".weights"), static_cast<uintmax_t>(kInlineWeights));
  const graph::Node& node = read.node(read.order()[0]);
  EXPECT_EQ(read.value(node.inputs[1]).constant.get_int(kInlineWeights + 4), 77);
}

TEST_F(WriteModel, NodesHaveNamesOfTheirOwn) {
  const graph::Graph read =
      again(parsed("graph \"g\" {\n  in %0 \"x\": f32[2]\n  %1: f32[2] = Relu(%0) \"n\"\n  %2: "
                   "f32[2] = Neg(%1) \"n\"\n  out %2 \"y\"\n}"));
  EXPECT_EQ(read.node(read.order()[0]).name, "n");
  EXPECT_EQ(read.node(read.order()[1]).name, "n.1");
}

TEST_F(WriteModel, NotesAreTheNodesMetadata) {
  const graph::Graph graph = parsed(
      "graph \"g\" {\n  in %0 \"x\": f32[2]\n  %1: f32[2] = Relu(%0) \"first\"\n  out %1 \"y\"\n}");
  ASSERT_TRUE(
      write_onnx(graph, path(), [](graph::NodeId) { return Notes{{"obelisk.wave", "7"}}; }).ok());
  const std::string bytes = read_file(path()).value();
  EXPECT_NE(bytes.find("obelisk.wave"), std::string::npos);
  const Status failed = write_onnx(graph, "/no/such/folder/m.onnx");
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().text().find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace obelisk::frontends
