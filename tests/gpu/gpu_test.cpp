// The CUDA target against the interpreter: graphs as text become one kernel. Where no device
// compiler is found everything is skipped; where no GPU is, the kernels are compiled for sm_90a and
// not run.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/cuda/mono.h"
#include "runtime/runtime.h"

namespace obelisk::runtime::cuda {
namespace {

struct Case {
  const char* name;
  const char* text;  // FLOAT stands for the element type
};

const Case kCases[] = {
    {"softmax", R"(graph "g" {
  in %0 "x": FLOAT[3,70,333]
  const %9: i64[1] = [-1]
  %1: FLOAT[3,70,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: FLOAT[3,70,333] = Sub(%0, %1)
  %3: FLOAT[3,70,333] = Exp(%2)
  %4: FLOAT[3,70,1] = ReduceSum(%3, %9) {keepdims = 1}
  %5: FLOAT[3,70,333] = Div(%3, %4)
  out %5 "z"
})"},
    {"softmax_long_rows", R"(graph "g" {
  in %0 "x": FLOAT[133,9000]
  const %9: i64[1] = [-1]
  %1: FLOAT[133,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: FLOAT[133,9000] = Sub(%0, %1)
  %3: FLOAT[133,9000] = Exp(%2)
  %4: FLOAT[133,1] = ReduceSum(%3, %9) {keepdims = 1}
  %5: FLOAT[133,9000] = Div(%3, %4)
  out %5 "z"
})"},
    {"layer_norm", R"(graph "g" {
  in %0 "x": FLOAT[2,128,768]
  in %1 "s": FLOAT[768]
  in %2 "b": FLOAT[768]
  const %9: i64[1] = [-1]
  const %20: FLOAT[] = [0.00001]
  %3: FLOAT[2,128,1] = ReduceMean(%0, %9) {keepdims = 1}
  %4: FLOAT[2,128,768] = Sub(%0, %3)
  %5: FLOAT[2,128,768] = Mul(%4, %4)
  %6: FLOAT[2,128,1] = ReduceMean(%5, %9) {keepdims = 1}
  %7: FLOAT[2,128,1] = Add(%6, %20)
  %8: FLOAT[2,128,1] = Sqrt(%7)
  %10: FLOAT[2,128,768] = Div(%4, %8)
  %11: FLOAT[2,128,768] = Mul(%10, %1)
  %12: FLOAT[2,128,768] = Add(%11, %2)
  out %12 "z"
})"},
    {"gelu_chain", R"(graph "g" {
  in %0 "x": FLOAT[128,1030]
  in %1 "b": FLOAT[1030]
  in %2 "y": FLOAT[128,1030]
  %3: FLOAT[128,1030] = Add(%0, %1)
  %4: FLOAT[128,1030] = Gelu(%3)
  %5: FLOAT[128,1030] = Add(%4, %2)
  %6: FLOAT[128,1030] = Tanh(%5)
  out %6 "z"
})"},
    {"transpose_add", R"(graph "g" {
  in %0 "x": FLOAT[13,40,33]
  in %1 "y": FLOAT[33,13,40]
  %2: FLOAT[33,13,40] = Transpose(%0) {perm = [2, 0, 1]}
  %3: FLOAT[33,13,40] = Add(%2, %1)
  %4: FLOAT[33,13,40] = Exp(%3)
  out %4 "z"
})"},
    {"column_sum", R"(graph "g" {
  in %0 "x": FLOAT[700,519]
  const %9: i64[1] = [0]
  %1: FLOAT[1,519] = ReduceSum(%0, %9) {keepdims = 1}
  %2: FLOAT[1,519] = Abs(%1)
  out %2 "z"
})"},
    {"column_mean_sub", R"(graph "g" {
  in %0 "x": FLOAT[5,90,61]
  const %9: i64[1] = [1]
  %1: FLOAT[5,1,61] = ReduceMean(%0, %9) {keepdims = 1}
  %2: FLOAT[5,90,61] = Sub(%0, %1)
  out %2 "z"
})"},
    {"max_all", R"(graph "g" {
  in %0 "x": FLOAT[2,3,50000]
  const %9: i64[1] = [2]
  %1: FLOAT[2,3,1] = ReduceMax(%0, %9) {keepdims = 1}
  %2: FLOAT[2,3,1] = ReduceMin(%0, %9) {keepdims = 1}
  %3: FLOAT[2,3,1] = Sub(%1, %2)
  out %3 "z"
})"},
    {"gather", R"(graph "g" {
  in %0 "x": FLOAT[40,96]
  in %1 "i": i64[7,11]
  %2: FLOAT[7,11,96] = Gather(%0, %1) {axis = 0}
  %3: FLOAT[7,11,96] = Sigmoid(%2)
  out %3 "z"
})"},
    {"product", R"(graph "g" {
  in %0 "x": FLOAT[2,9,40]
  in %1 "w": FLOAT[40,24]
  in %2 "b": FLOAT[24]
  %3: FLOAT[2,9,24] = MatMul(%0, %1)
  %4: FLOAT[2,9,24] = Add(%3, %2)
  %5: FLOAT[2,9,24] = Tanh(%4)
  out %5 "z"
})"},
};

Tensor random_tensor(const Type& type, std::mt19937& random) {
  Tensor tensor = Tensor::allocate(type);
  std::normal_distribution<double> normal(0, 1);
  std::uniform_int_distribution<int> small(0, 30);
  for (int64_t k = 0; k < type.count(); ++k) {
    if (is_float(type.dtype))
      tensor.set_double(k, normal(random));
    else
      tensor.set_int(k, small(random));
  }
  return tensor;
}

class OneKernel : public testing::TestWithParam<std::tuple<Case, const char*>> {};

TEST_P(OneKernel, EqualsInterpreter) {
  const auto& [test, dtype] = GetParam();
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  std::string text = test.text;
  for (size_t at; (at = text.find("FLOAT")) != std::string::npos;) text.replace(at, 5, dtype);
  auto graph = graph::parse(text);
  ASSERT_TRUE(graph.ok()) << graph.error().text();

  // As many virtual SMs as an H200 has, so that the same tables serve both machines.
  auto gpu = first_gpu();
  const target::DeviceSpec device = target::cpu(132);
  for (bool stitching : {true, false}) {
    SCOPED_TRACE(stitching ? "stitched" : "an op a wave");
    stitch::Options options;
    options.stitch = stitching, options.tiles = false;
    const stitch::Plan plan = stitch::plan(*graph, device, options);
    schedule::TaskGraph tasks = schedule::build(*graph, plan, device);
    auto program = std::make_shared<Program>(
        assemble(*graph, plan, tasks, codegen::emit(*graph, plan, tasks), "cuda"));
    auto source = mono_source(*program);
    ASSERT_TRUE(source.ok()) << source.error().text();
    auto cubin = compile_cubin(*source, gpu.ok() ? gpu->architecture : "sm_90a",
                               {"OBK_WATCHDOG=2000000000"});
    ASSERT_TRUE(cubin.ok()) << cubin.error().text();
    EXPECT_EQ(cubin->log.find("C75"), std::string::npos) << cubin->log;
    if (!gpu.ok()) continue;

    std::mt19937 random(7);
    std::vector<Tensor> inputs, outputs;
    for (graph::ValueId v : graph->inputs())
      inputs.push_back(random_tensor(graph->type(v), random));
    auto wanted = graph::interpret(*graph, inputs);
    ASSERT_TRUE(wanted.ok()) << wanted.error().text();
    auto kernel = MonoKernel::load(program, *cubin);
    ASSERT_TRUE(kernel.ok()) << kernel.error().text();
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const Tensor& tensor : inputs) in.push_back(tensor.data());
    for (const Port& port : program->outputs) {
      outputs.push_back(Tensor::allocate(port.type));
      memset(outputs.back().mutable_data(), 0x7b, static_cast<size_t>(outputs.back().bytes()));
      out.push_back(outputs.back().mutable_data());
    }
    std::string first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      Status ran = (*kernel)->run(in, out);
      ASSERT_TRUE(ran.ok()) << ran.error().text();
      std::string bits;
      for (const Tensor& tensor : outputs)
        bits.append(static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.bytes()));
      if (repeat == 0) first = bits;
      EXPECT_EQ(first, bits) << "the same input gave other bits in run " << repeat;
    }
    const double step = std::string(dtype) == "f32"   ? 1e-5
                        : std::string(dtype) == "f16" ? 2e-3
                                                      : 1.6e-2;
    double worst = 0;
    for (size_t o = 0; o < outputs.size(); ++o) {
      for (int64_t k = 0; k < outputs[o].count(); ++k) {
        const double a = outputs[o].get_double(k), b = (*wanted)[o].get_double(k);
        if (std::isnan(a) && std::isnan(b)) continue;
        const double error = std::fabs(a - b) / (1.0 + std::fabs(b));
        ASSERT_LE(error, 4 * step)
            << "output " << o << " element " << k << ": " << a << " wanted " << b;
        worst = std::max(worst, error);
      }
    }
    auto micros = (*kernel)->time(20);
    ASSERT_TRUE(micros.ok()) << micros.error().text();
    fmt::print(
        "{{\"case\": \"{}\", \"dtype\": \"{}\", \"stitched\": {}, \"waves\": {}, \"bodies\": {}, "
        "\"worst\": {:.2e}, \"device_us\": {:.2f}}}\n",
        test.name, dtype, stitching, program->waves, program->bodies.size(), worst, *micros);
  }
  if (!gpu.ok()) GTEST_SKIP() << "compiled for sm_90a, not run: " << gpu.error().text();
}

INSTANTIATE_TEST_SUITE_P(Bodies, OneKernel,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values("f32", "f16", "bf16")),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name,
                                              std::get<1>(info.param));
                         });

}  // namespace
}  // namespace obelisk::runtime::cuda
