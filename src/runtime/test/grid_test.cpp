// Long works as grids of small tasks, scheduled dynamically: their texts on a core, beside the
// interpreter.
#include "run_program.h"

namespace obelisk::runtime {
namespace {

struct Case {
  const char* name;
  const char* text;
};

const Case kCases[] = {
    {"long_rows", R"(graph "g" {
  in %0 "x": f32[5,8192]
  const %9: i64[1] = [1]
  %1: f32[5,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: f32[5,8192] = Sub(%0, %1)
  %3: f32[5,8192] = Exp(%2)
  %4: f32[5,1] = ReduceSum(%3, %9) {keepdims = 1}
  %5: f32[5,8192] = Div(%3, %4)
  out %5 "y"
})"},
    {"norm", R"(graph "g" {
  in %0 "x": f32[6,8192]
  in %1 "scale": f32[8192]
  in %2 "bias": f32[8192]
  const %9: i64[1] = [1]
  %3: f32[6,1] = ReduceMean(%0, %9) {keepdims = 1}
  %4: f32[6,8192] = Sub(%0, %3)
  %5: f32[6,8192] = Mul(%4, %4)
  %6: f32[6,1] = ReduceMean(%5, %9) {keepdims = 1}
  %7: f32[6,1] = Sqrt(%6)
  %8: f32[6,8192] = Div(%4, %7)
  %10: f32[6,8192] = Mul(%8, %1)
  %11: f32[6,8192] = Add(%10, %2)
  out %11 "y"
})"},
    {"short_rows", R"(graph "g" {
  in %0 "x": f32[3001,32]
  const %9: i64[1] = [1]
  %1: f32[3001] = ReduceSum(%0, %9) {keepdims = 0}
  out %1 "y"
})"},
    {"points", R"(graph "g" {
  in %0 "x": f32[3,20000]
  in %1 "b": f32[20000]
  %2: f32[3,20000] = Add(%0, %1)
  %3: f32[3,20000] = Tanh(%2)
  out %3 "y"
})"},
    {"few_points", R"(graph "g" {
  in %0 "x": f32[3000,40]
  %1: f32[3000,40] = Relu(%0)
  out %1 "y"
})"},
    {"transposed", R"(graph "g" {
  in %0 "x": f32[200,330]
  in %1 "b": f32[330,200]
  %2: f32[330,200] = Transpose(%0) {perm = [1, 0]}
  %3: f32[330,200] = Add(%2, %1)
  out %3 "y"
})"},
};

class Grids : public testing::TestWithParam<Case> {};

TEST_P(Grids, EqualsInterpreter) {
  auto graph = graph::parse(GetParam().text);
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const std::vector<Tensor> inputs = random_inputs(*graph);
  auto wanted = graph::interpret(*graph, inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.error().text();
  expect_outputs(run_program(*graph, inputs, 3, true, true, true, Bytes{1}), *wanted,
                 GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(Works, Grids, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace obelisk::runtime
