// The walk: binding of shapes, folding, functions, control flow, sequences, and every refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontends/onnx/test/make_model.h"

namespace obelisk::frontends::onnx {
namespace {

using namespace make;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string imported(const std::string& bytes, const ImportOptions& options = {},
                     ImportReport* report = nullptr) {
  const auto model = read(bytes);
  if (!model.ok()) return model.error().text();
  const auto graph = import_onnx(*model, options, report);
  return graph.ok() ? graph::print(*graph) : graph.error().text();
}

/// The only output of a model with one input x f32[n], answered by the reference.
std::vector<double> answer(const std::string& bytes, const std::vector<double>& x) {
  const Model model = *read(bytes);
  const auto graph = import_onnx(model);
  EXPECT_TRUE(graph.ok()) << graph.error().text();
  if (!graph.ok()) return {};
  const auto outputs = graph::interpret(
      *graph, std::vector<Tensor>{tensor_of(DType::f32, {static_cast<int64_t>(x.size())}, x)});
  EXPECT_TRUE(outputs.ok());
  std::vector<double> values;
  for (int64_t at = 0; at < (*outputs)[0].count(); ++at)
    values.push_back((*outputs)[0].get_double(at));
  return values;
}

const std::string kX = value("x", kFloat, {"batch", "4"});

// ---- shapes ----

TEST(Import, BindsSymbolicDimensions) {
  const std::string bytes = model(graph({node("Relu", {"x"}, {"y"})}, {kX}, {value("y")}));
  EXPECT_THAT(imported(bytes), HasSubstr("dimension 'batch' of input 'x'; --shape batch=2"));
  ImportOptions options;
  options.dimensions["batch"] = 7;
  EXPECT_THAT(imported(bytes, options), HasSubstr("f32[7,4] = Relu"));
  options = {};
  options.input_shapes["x"] = {3, 4};
  EXPECT_THAT(imported(bytes, options), HasSubstr("f32[3,4] = Relu"));
  options.input_shapes["x"] = {3, 5};
  EXPECT_THAT(imported(bytes, options), HasSubstr("dimension 1 is 4 in the model"));
  options.input_shapes["x"] = {3};
  EXPECT_THAT(imported(bytes, options), HasSubstr("it has 2 dimensions in the model"));
  options.input_shapes = {{"z", {3}}};
  EXPECT_THAT(imported(bytes, options), HasSubstr("no input 'z'"));
  options.input_shapes.clear();
  options.dimensions = {{"bach", 7}};
  EXPECT_THAT(imported(bytes, options), HasSubstr("its symbolic dimensions are: batch"));
}

TEST(Import, OneInputBindsTheDimensionOfAnother) {
  const std::string bytes = model(graph({node("Add", {"x", "y"}, {"z"})},
                                        {kX, value("y", kFloat, {"batch", "1"})}, {value("z")}));
  ImportOptions options;
  options.input_shapes["x"] = {3, 4};
  EXPECT_THAT(imported(bytes, options), HasSubstr("\"y\": f32[3,1]"));
  // Two values: the op that they do not fit says so, unless the name itself was bound.
  options.input_shapes["y"] = {2, 1};
  EXPECT_THAT(imported(bytes, options), HasSubstr("Add"));
  EXPECT_THAT(imported(bytes, options), Not(HasSubstr("graph")));
  options.dimensions["batch"] = 3;
  EXPECT_THAT(imported(bytes, options),
              HasSubstr("dimension 'batch' is 3 by one binding, and 2 by input 'y'"));
}

TEST(Import, ASymbolWithTwoValuesRunsWhereTheModelDoes) {
  const std::string y = value("y", kFloat, {"batch", "1"}), w = value("w", kFloat, {"batch"});
  const std::vector<std::string> nodes = {node("MatMul", {"x", "y"}, {"z"})};
  ImportOptions options;
  options.input_shapes = {{"x", {3, 4}}, {"y", {4, 1}}};
  EXPECT_THAT(imported(model(graph(nodes, {kX, y}, {value("z")})), options),
              HasSubstr("f32[3,1] = MatMul"));
  // An input whose shape is not given would have to choose.
  EXPECT_THAT(imported(model(graph(nodes, {kX, y, w}, {value("z")})), options),
              HasSubstr("which one is that of input 'w'?"));
}

TEST(Import, NamesThatTellNothingAreNoSymbols) {
  for (const std::string name : {"?", "", "-1", "??"}) {
    const std::string x = value("x", kFloat, {"2", "'" + name, "'" + name}),
                      bytes = model(graph({node("Relu", {"x"}, {"z"})}, {x}, {value("z")}));
    ImportOptions options;
    options.input_shapes["x"] = {2, 48, 192};
    EXPECT_THAT(imported(bytes, options), HasSubstr("f32[2,48,192] = Relu")) << name;
    EXPECT_THAT(imported(bytes), HasSubstr("--shape x=2x2x2")) << name;
    options = {};
    options.dimensions[name] = 5;
    EXPECT_THAT(imported(bytes, options), HasSubstr("no symbolic dimension")) << name;
  }
}

TEST(Import, ShapeFlags) {
  const Model model = *read(make::model(graph({}, {kX}, {})));
  ImportOptions options;
  EXPECT_TRUE(bind_shape(model, "x=2x4", options).ok());
  EXPECT_THAT(options.input_shapes["x"], ElementsAre(2, 4));
  EXPECT_TRUE(bind_shape(model, "batch=2", options).ok());
  EXPECT_EQ(options.dimensions["batch"], 2);
  EXPECT_TRUE(bind_shape(model, "x=2x4", options).ok());
  for (const char* again : {"x=2x5", "x=", "batch=3"})
    EXPECT_THAT(bind_shape(model, again, options).error().text(), HasSubstr("otherwise before"));
  ImportOptions scalar;
  EXPECT_TRUE(bind_shape(model, "x=", scalar).ok());
  EXPECT_THAT(scalar.input_shapes["x"], IsEmpty());
  for (const char* wrong : {"x", "=2", "x=2x", "x=ax2", "x=-1", "x=2xx3"})
    EXPECT_THAT(bind_shape(model, wrong, options).error().text(), HasSubstr("is not understood"));
  EXPECT_THAT(bind_shape(model, "q=2x3", options).error().text(), HasSubstr("no input 'q'"));
}

TEST(Import, InputsThatShapesDependOn) {
  const std::string bytes =
      model(graph({node("Shape", {"x"}, {"s"}), node("Mul", {"s", "f"}, {"t"}),
                   node("Reshape", {"x", "t"}, {"y"}), node("TopK", {"y", "k"}, {"v", "i"}),
                   node("Add", {"v", "data"}, {"z"})},
                  {value("x", kFloat, {"4"}), value("f", kI64, {"1"}), value("k", kI64, {"1"}),
                   value("data", kFloat, {"2"})},
                  {value("z")}));
  EXPECT_THAT(value_dependent_inputs(*read(bytes)), ElementsAre("f", "k"));
  ImportReport report;
  EXPECT_THAT(imported(bytes, {}, &report), HasSubstr("depends on data"));
  ASSERT_EQ(report.unsupported.size(), 1u);
  EXPECT_EQ(report.unsupported[0].node, "Reshape_2");
  EXPECT_THAT(report.unsupported[0].types, ElementsAre("f32", "i64"));
  EXPECT_THAT(report.unsupported[0].shapes, ElementsAre("[4]", "[1]"));
  ImportOptions options;
  options.bound_inputs = {{"f", tensor_of({1})}, {"k", tensor_of({2})}};
  const std::string text = imported(bytes, options);
  EXPECT_THAT(text, HasSubstr("= TopK("));
  EXPECT_THAT(text, Not(HasSubstr("\"k\": i64[1]\n")));
  options.bound_inputs["k"] = tensor_of(DType::f32, {1}, {2});
  EXPECT_THAT(imported(bytes, options),
              HasSubstr("input 'k' is int64 but the value given is f32[1]"));
}

TEST(Import, InspectTellsWhatToBind) {
  const ModelDescription description = inspect(
      *read(make::model(graph({node("Relu", {"x"}, {"y"})}, {kX, value("w", kFloat, {"2"})},
                              {value("y", kF16, {"batch", "?"})}, {floats("w", {2}, {1, 2})}))));
  ASSERT_EQ(description.inputs.size(), 1u);
  EXPECT_EQ(description.inputs[0].shape_text(), "[batch,4]");
  EXPECT_EQ(description.outputs[0].type, "f16");
  EXPECT_EQ(description.outputs[0].shape_text(), "[batch,?]");
  EXPECT_THAT(description.symbols, ElementsAre("batch"));
  EXPECT_EQ(description.weights_bytes, 8);
}

// ---- folding ----

TEST(Import, FoldsShapeComputations) {
  const std::string text = imported(model(graph(
      {node("Shape", {"x"}, {"s"}), node("Gather", {"s", "zero"}, {"n"}),
       node("Unsqueeze", {"n", "axes"}, {"u"}),
       node("Concat", {"u", "rest"}, {"t"}, {attr("axis", 0)}), node("Reshape", {"x", "t"}, {"y"})},
      {value("x", kFloat, {"2", "6"})}, {value("y")},
      {scalar_int("zero", 0), ints("axes", {0}), ints("rest", {3, -1})})));
  EXPECT_THAT(text, HasSubstr("[2, 3, -1]"));
  EXPECT_THAT(text, HasSubstr("f32[2,3,2] = Reshape"));
  EXPECT_THAT(text, Not(HasSubstr("Gather")));
}

TEST(Import, LargeConstantsStayComputations) {
  const std::string text = imported(model(
      graph({node("ConstantOfShape", {"s"}, {"z"})}, {}, {value("z")}, {ints("s", {2048, 2048})})));
  EXPECT_THAT(text, HasSubstr("f32[2048,2048] = ConstantOfShape"));
}

TEST(Import, HugeShapesAreRefused) {
  EXPECT_THAT(imported(model(graph({node("ConstantOfShape", {"s"}, {"z"})}, {}, {value("z")},
                                   {ints("s", {1000000, 1000000})}))),
              HasSubstr("elements"));
  EXPECT_THAT(
      imported(model(graph({}, {value("x", kFloat, {"1000000", "1000000"})}, {value("x")}))),
      HasSubstr("more than"));
  EXPECT_THAT(imported(model(graph({node("ConstantOfShape", {"s"}, {"z"})}, {}, {value("z")},
                                   {ints("s", std::vector<int64_t>(65, 1))}))),
              HasSubstr("ConstantOfShape has 65 axes, more than 64"));
}

// ---- structure ----

TEST(Import, SortsNodesAndFindsCycles) {
  EXPECT_THAT(imported(model(graph({node("Relu", {"a"}, {"y"}), node("Neg", {"x"}, {"a"})},
                                   {value("x", kFloat, {"2"})}, {value("y")}))),
              HasSubstr("= Relu("));
  EXPECT_THAT(
      imported(model(graph({node("Add", {"x", "b"}, {"a"}, {}, "first"), node("Neg", {"a"}, {"b"})},
                           {value("x", kFloat, {"2"})}, {value("a")}))),
      HasSubstr("'first': it reads, over other nodes, what it writes"));
  EXPECT_THAT(imported(model(graph({node("Neg", {"x"}, {"a"}), node("Relu", {"x"}, {"a"})},
                                   {value("x", kFloat, {"2"})}, {value("a")}))),
              HasSubstr("'a' is written a second time"));
  EXPECT_THAT(imported(model(graph({node("Neg", {"q"}, {"a"})}, {}, {value("a")}))),
              HasSubstr("'Neg_0': reads 'q', which nothing writes"));
  EXPECT_THAT(imported(model(graph({}, {}, {value("a")}))),
              HasSubstr("nothing writes the model's output 'a'"));
  EXPECT_THAT(imported(model(graph({node("Neg", {"x"}, {"a"})}, {value("x", kFloat, {"2"})},
                                   {value("a"), value("a")}))),
              HasSubstr("the model has two outputs 'a'"));
}

TEST(Import, NamesTheNodeThatContradicts) {
  const std::string text =
      imported(model(graph({node("Softmax", {"x"}, {"y"}, {attr("axis", 3)}, "enc/sm")},
                           {value("x", kFloat, {"2"})}, {value("y")})));
  EXPECT_THAT(text, HasSubstr("'enc/sm'"));
  EXPECT_THAT(text, HasSubstr("axis 3"));
}

TEST(Import, ListsEveryUnsupportedNodeButNotWhatFollows) {
  ImportReport report;
  const std::string text = imported(
      model(graph({node("Foo", {"x"}, {"a"}, {}, "one", "my.domain"), node("Relu", {"a"}, {"b"}),
                   node("StringConcat", {"s", "s"}, {"c"}, {}, "two"), node("Neg", {"x"}, {"d"}),
                   node("NonZero", {"d"}, {"e"}, {}, "three")},
                  {value("x", kFloat, {"2"}), value("s", kString, {"2"})},
                  {value("b"), value("c"), value("e")})),
      {}, &report);
  EXPECT_THAT(text, HasSubstr("and 2 more nodes cannot be run"));
  ASSERT_EQ(report.unsupported.size(), 3u);
  EXPECT_EQ(report.unsupported[0].domain, "my.domain");
  EXPECT_EQ(report.unsupported[1].node, "two");
  EXPECT_THAT(report.unsupported[1].reason, HasSubstr("is string"));
  EXPECT_EQ(report.unsupported[2].op, "NonZero");
  EXPECT_THAT(report.unsupported[2].inputs, ElementsAre("d"));
  EXPECT_GT(report.unsupported[2].opset, 0);
  EXPECT_THAT(report.unsupported[2].reason, Not(HasSubstr("NonZero")));
}

// ---- functions ----

TEST(Import, InlinesFunctionsWithTheirAttributes) {
  const std::string scaled = function("local", "Scaled", {"a"}, {"b"},
                                      {node("Elu", {"a"}, {"t"}, {attr_from("alpha", "alpha", 1)}),
                                       node("Twice", {"t"}, {"b"}, {}, "", "local")},
                                      {"alpha"});
  const std::string twice =
      function("local", "Twice", {"a"}, {"b"}, {node("Add", {"a", "a"}, {"b"})});
  const List nodes{node("Scaled", {"x"}, {"y"}, {attr("alpha", 0.5f)}, "call", "local")};
  const std::string text =
      imported(model(graph(nodes, {value("x", kFloat, {"2"})}, {value("y")}), 18, {scaled, twice}));
  EXPECT_THAT(text, HasSubstr("Elu(%0) {alpha = 0.5} \"call/Elu_0\""));
  EXPECT_THAT(text, HasSubstr("\"call/Twice_1/Add_0\""));
  EXPECT_THAT(text, HasSubstr("\"y\": f32[2]"));
}

TEST(Import, DefaultsOfFunctionAttributes) {
  const std::string f = function("local", "F", {"a"}, {"b"},
                                 {node("Elu", {"a"}, {"b"}, {attr_from("alpha", "alpha", 1)})}, {},
                                 {attr("alpha", 0.25f)});
  EXPECT_THAT(imported(model(graph({node("F", {"x"}, {"y"}, {}, "", "local")},
                                   {value("x", kFloat, {"2"})}, {value("y")}),
                             18, {f})),
              HasSubstr("alpha = 0.25"));
}

TEST(Import, RefusesRecursion) {
  const std::string f =
      function("local", "F", {"a"}, {"b"}, {node("F", {"a"}, {"b"}, {}, "", "local")});
  EXPECT_THAT(imported(model(graph({node("F", {"x"}, {"y"}, {}, "", "local")},
                                   {value("x", kFloat, {"2"})}, {value("y")}),
                             18, {f})),
              HasSubstr("the function 'F' calls itself"));
}

TEST(Import, BoundsWhatFunctionsUnrollTo) {
  List functions;
  for (int level = 0; level < 30; ++level) {
    const std::string next = level == 29 ? "" : "F" + std::to_string(level + 1);
    const auto call = [&](const char* from, const char* to) {
      return next.empty() ? node("Neg", {from}, {to}) : node(next, {from}, {to}, {}, "", "local");
    };
    functions.push_back(function("local", "F" + std::to_string(level), {"a"}, {"c"},
                                 {call("a", "b"), call("b", "c")}));
  }
  ImportOptions options;
  options.max_nodes = 5000;
  EXPECT_THAT(imported(model(graph({node("F0", {"x"}, {"y"}, {}, "", "local")},
                                   {value("x", kFloat, {"2"})}, {value("y")}),
                             18, functions),
                       options),
              HasSubstr("more than 5000 nodes"));
}

// ---- control flow ----

std::string branch(const std::string& op) {
  return graph({node(op, {"x"}, {"r"})}, {}, {value("r")});
}

TEST(Import, TakesTheBranchThatIsKnown) {
  const std::string choice =
      node("If", {"c"}, {"y"},
           {attr_graph("then_branch", branch("Neg")), attr_graph("else_branch", branch("Relu"))},
           "pick");
  const auto with = [&](bool c) {
    return imported(
        model(graph({choice}, {value("x", kFloat, {"2"})}, {value("y")}, {scalar_bool("c", c)})));
  };
  EXPECT_THAT(with(true), HasSubstr("Neg(%0) \"pick/Neg_0\""));
  EXPECT_THAT(with(false), HasSubstr("Relu(%0)"));
  ImportReport report;
  EXPECT_THAT(imported(model(graph({choice}, {value("x", kFloat, {"2"}), value("c", kBool, {})},
                                   {value("y")})),
                       {}, &report),
              HasSubstr("the condition depends on data"));
}

/// body(i, cond, a) → cond, a + x, a
const std::string kLoopBody =
    graph({node("Identity", {"cond"}, {"go"}), node("Add", {"a", "x"}, {"next"}),
           node("Identity", {"a"}, {"row"})},
          {value("i", kI64, {}), value("cond", kBool, {}), value("a", kFloat, {"2"})},
          {value("go"), value("next"), value("row", kFloat, {"2"})});

TEST(Import, UnrollsLoops) {
  const auto loop = [&](int64_t trips, const char* output) {
    return model(
        graph({node("Loop", {"m", "", "x"}, {"last", "rows"}, {attr_graph("body", kLoopBody)})},
              {value("x", kFloat, {"2"})}, {value(output)}, {scalar_int("m", trips)}));
  };
  EXPECT_THAT(answer(loop(3, "last"), {1, 2}), ElementsAre(4, 8));
  EXPECT_THAT(answer(loop(3, "rows"), {1, 2}), ElementsAre(1, 2, 2, 4, 3, 6));
  EXPECT_THAT(imported(loop(0, "rows")), HasSubstr("f32[0,2]"));
  EXPECT_THAT(imported(loop(1 << 20, "last")), HasSubstr("runs more than 4096 times"));
}

TEST(Import, LoopsThatStopThemselves) {
  // goes on while i < 2
  const std::string body =
      graph({node("Less", {"i", "two"}, {"go"}), node("Add", {"a", "x"}, {"next"})},
            {value("i", kI64, {}), value("cond", kBool, {}), value("a", kFloat, {"2"})},
            {value("go"), value("next")}, {scalar_int("two", 2)});
  EXPECT_THAT(
      answer(model(graph({node("Loop", {"", "t", "x"}, {"y"}, {attr_graph("body", body)})},
                         {value("x", kFloat, {"2"})}, {value("y")}, {scalar_bool("t", true)})),
             {1, 2}),
      ElementsAre(4, 8));
  EXPECT_THAT(imported(model(
                  graph({node("Loop", {"m", "", "x"}, {"y", "r"}, {attr_graph("body", kLoopBody)})},
                        {value("x", kFloat, {"2"}), value("m", kI64, {})}, {value("y")}))),
              HasSubstr("the trip count (input 0) depends on data"));
}

TEST(Import, UnrollsScans) {
  // state + element → state, and each state out
  const std::string body =
      graph({node("Add", {"s", "e"}, {"n"}), node("Identity", {"n"}, {"o"})},
            {value("s", kFloat, {}), value("e", kFloat, {})}, {value("n"), value("o")});
  const auto scan = [&](const List& attrs) {
    List all{attr_graph("body", body), attr("num_scan_inputs", 1)};
    all.insert(all.end(), attrs.begin(), attrs.end());
    return model(graph({node("Scan", {"zero", "x"}, {"last", "sums"}, all)},
                       {value("x", kFloat, {"3"})}, {value("sums")}, {floats("zero", {}, {0})}));
  };
  EXPECT_THAT(answer(scan({}), {1, 2, 3}), ElementsAre(1, 3, 6));
  EXPECT_THAT(answer(scan({attr("scan_input_directions", std::vector<int64_t>{1})}), {1, 2, 3}),
              ElementsAre(3, 5, 6));
  EXPECT_THAT(answer(scan({attr("scan_output_directions", std::vector<int64_t>{1})}), {1, 2, 3}),
              ElementsAre(6, 3, 1));
  EXPECT_THAT(imported(scan({attr("scan_input_directions", std::vector<int64_t>{1, 0})})),
              HasSubstr("has 2 entries, not 1"));
}

TEST(Import, SequencesAreListsOfValues) {
  const std::string bytes = model(graph(
      {node("SplitToSequence", {"x"}, {"s"}), node("SequenceAt", {"s", "last"}, {"e"}),
       node("SequenceInsert", {"s", "e", "zero"}, {"t"}),
       node("SequenceErase", {"t", "last"}, {"u"}),
       node("ConcatFromSequence", {"u"}, {"y"}, {attr("axis", 0)})},
      {value("x", kFloat, {"3"})}, {value("y")}, {scalar_int("last", -1), scalar_int("zero", 0)}));
  EXPECT_THAT(answer(bytes, {1, 2, 3}), ElementsAre(3, 1, 2));
  EXPECT_THAT(
      imported(model(graph({node("SequenceConstruct", {"x"}, {"s"}), node("Relu", {"s"}, {"y"})},
                           {value("x", kFloat, {"3"})}, {value("y")}))),
      HasSubstr("Relu takes no sequence"));
  EXPECT_THAT(imported(model(graph({node("SequenceConstruct", {"x"}, {"s"})},
                                   {value("x", kFloat, {"3"})}, {value("s")}))),
              HasSubstr("it is no tensor"));
}

TEST(Import, ListsDoNotNest) {
  const auto nested = [](const std::string& inner, const std::string& outer) {
    return imported(model(graph(
        {node(inner, {"x"}, {"a"}), node(outer, {"a"}, {"b"}), node("Identity", {"x"}, {"y"})},
        {value("x", kFloat, {"3"})}, {value("y")})));
  };
  EXPECT_THAT(nested("SequenceConstruct", "Optional"), HasSubstr("out %0"));
  EXPECT_THAT(nested("SequenceConstruct", "SequenceConstruct"),
              HasSubstr("an element of the sequence is no tensor"));
  EXPECT_THAT(nested("Optional", "SequenceConstruct"),
              HasSubstr("an element of the sequence is no tensor"));
  EXPECT_THAT(nested("Optional", "Optional"), HasSubstr("it takes an optional"));
}

}  // namespace
}  // namespace obelisk::frontends::onnx
