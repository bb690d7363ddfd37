// A row's bits in programs of any batch: on cores as they are, on a GPU with
// Options::batch_invariant. Networks are texts whose first dimension is the batch; the first inputs
// of a larger batch are those of a smaller one.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compile.h"
#include "graph/test_texts.h"
#include "kernels/tile_library.h"
#include "machine/machine.h"

namespace obelisk::compiler {
namespace {

/// Products with norms before and behind, residuals, attention of 3 heads: sums over 192, 768 and
/// 1536 numbers, by tiles of as many columns.
std::string encoder(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "encoder" {{
  in %0 "x": {1}[{0},9,768]
  const %1: {1}[768,192] = @random
  const %2: {1}[768,192] = @random
  const %3: {1}[768,192] = @random
  const %4: {1}[192,768] = @random
  const %5: {1}[768,1536] = @random
  const %6: {1}[1536,768] = @random
  const %7: i64[1] = [-1]
  const %8: i64[4] = [{0}, 9, 3, 64]
  const %9: i64[3] = [{0}, 9, 192]
  const %10: {1}[] = [0.001]
  %11: {1}[{0},9,192] = MatMul(%0, %1)
  %12: {1}[{0},9,192] = MatMul(%0, %2)
  %13: {1}[{0},9,192] = MatMul(%0, %3)
  %14: {1}[{0},9,3,64] = Reshape(%11, %8)
  %15: {1}[{0},9,3,64] = Reshape(%12, %8)
  %16: {1}[{0},9,3,64] = Reshape(%13, %8)
  %17: {1}[{0},3,9,64] = Transpose(%14) {{perm = [0, 2, 1, 3]}}
  %18: {1}[{0},3,9,64] = Transpose(%15) {{perm = [0, 2, 1, 3]}}
  %19: {1}[{0},3,9,64] = Transpose(%16) {{perm = [0, 2, 1, 3]}}
  %20: {1}[{0},3,9,64] = Attention(%17, %18, %19)
  %21: {1}[{0},9,3,64] = Transpose(%20) {{perm = [0, 2, 1, 3]}}
  %22: {1}[{0},9,192] = Reshape(%21, %9)
  %23: {1}[{0},9,768] = MatMul(%22, %4)
  %24: {1}[{0},9,768] = Add(%23, %0)
  %25: {1}[{0},9,1] = ReduceMean(%24, %7) {{keepdims = 1}}
  %26: {1}[{0},9,768] = Sub(%24, %25)
  %27: {1}[{0},9,768] = Mul(%26, %26)
  %28: {1}[{0},9,1] = ReduceMean(%27, %7) {{keepdims = 1}}
  %29: {1}[{0},9,1] = Add(%28, %10)
  %30: {1}[{0},9,1] = Sqrt(%29)
  %31: {1}[{0},9,768] = Div(%26, %30)
  %32: {1}[{0},9,1536] = MatMul(%31, %5)
  %33: {1}[{0},9,1536] = Gelu(%32)
  %34: {1}[{0},9,768] = MatMul(%33, %6)
  %35: {1}[{0},9,768] = Add(%34, %31)
  %36: {1}[{0},9,1] = ReduceMean(%35, %7) {{keepdims = 1}}
  %37: {1}[{0},9,768] = Sub(%35, %36)
  const %38: {1}[768,768] = @random
  %39: {1}[{0},9,768] = MatMul(%37, %38)
  %40: {1}[{0},9,768] = Add(%39, %0)
  %41: {1}[{0},9,1] = ReduceMean(%40, %7) {{keepdims = 1}}
  %42: {1}[{0},9,768] = Sub(%40, %41)
  out %42 "y"
}})",
                     batch, type);
}

/// Convolutions of every kind that tiles differ in, a pooling, and a product of what is left.
std::string pictures(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "pictures" {{
  in %0 "x": {1}[{0},3,34,34]
  const %1: {1}[64,3,3,3] = @random
  const %2: {1}[64,64,3,3] = @random
  const %3: {1}[128,64,1,1] = @random
  const %4: {1}[128,1,3,3] = @random
  const %5: {1}[128,10] = @random
  const %6: i64[2] = [{0}, 128]
  %7: {1}[{0},64,32,32] = Conv(%0, %1)
  %8: {1}[{0},64,32,32] = Relu(%7)
  %9: {1}[{0},64,32,32] = Conv(%8, %2) {{pads = [1, 1, 1, 1]}}
  %10: {1}[{0},64,32,32] = Add(%9, %8)
  %11: {1}[{0},128,16,16] = Conv(%10, %3) {{strides = [2, 2]}}
  %12: {1}[{0},128,14,14] = Conv(%11, %4) {{group = 128}}
  %13: {1}[{0},128,7,7] = MaxPool(%12) {{kernel_shape = [2, 2], strides = [2, 2]}}
  %14: {1}[{0},128,1,1] = GlobalAveragePool(%13)
  %15: {1}[{0},128] = Reshape(%14, %6)
  %16: {1}[{0},10] = MatMul(%15, %5)
  out %16 "y"
}})",
                     batch, type);
}

/// A layer of an LSTM over nine steps: [steps, batch, size], so that a batch is a column of rows.
std::string steps(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "steps" {{
  in %0 "x": {1}[{0},9,96]
  const %1: {1}[1,512,96] = @random
  const %2: {1}[1,512,128] = @random
  %3: {1}[9,{0},96] = Transpose(%0) {{perm = [1, 0, 2]}}
  %4: {1}[9,1,{0},128] = LSTM(%3, %1, %2) {{hidden_size = 128}}
  %5: {1}[{0},9,1,128] = Transpose(%4) {{perm = [2, 0, 1, 3]}}
  out %5 "y"
}})",
                     batch, type);
}

struct Case {
  const char* name;
  std::string (*network)(int64_t batch, const std::string& type);
  std::vector<int64_t> batches;
};
const Case kCases[] = {{"encoder", encoder, {1, 2, 5, 8, 29, 60}},
                       {"pictures", pictures, {1, 3, 8, 40}},
                       {"steps", steps, {1, 2, 7, 33}}};

/// The answers of the first of a batch, run by run; nothing where only compiling was possible.
std::optional<std::vector<Tensor>> firsts(const Case& one, const std::string& type,
                                          const Options& options, bool runs) {
  std::vector<Tensor> answers;
  for (const int64_t batch : one.batches) {
    if (!runs && batch != one.batches[0] && batch != one.batches[2]) continue;
    SCOPED_TRACE(batch);
    Network network;
    auto graph = graph::parse_random(one.network(batch, type), 0.125);
    if (!graph.ok()) {
      ADD_FAILURE() << graph.error().text();
      return std::nullopt;
    }
    network.graph = std::move(*graph);
    Compilation made;
    const Status compiled = compile(network, options, made);
    if (!compiled.ok()) {
      ADD_FAILURE() << compiled.error().text();
      return std::nullopt;
    }
    for (const schedule::Work& work : made.tasks.works)
      if (options.batch_invariant) {
        const bool stitched = made.plan.groups[work.group].kind == stitch::GroupKind::kStitched;
        EXPECT_FALSE((work.list() && (work.list()->shares_rows || work.list()->a_rows)) ||
                     work.pipelined() || work.dataflow ||
                     (work.tasks_per_worker() > 0 && !stitched));
      }
    auto context = made.executable->context();
    if (!context.ok()) {
      EXPECT_EQ(context.error().code, Code::kDevice) << context.error().text();
      continue;
    }
    std::mt19937 random(5);
    std::uniform_real_distribution<double> uniform(-1, 1);
    Tensor x = Tensor::allocate(made.program->inputs[0].type),
           y = Tensor::allocate(made.program->outputs[0].type);
    for (int64_t k = 0; k < x.count(); ++k) x.set_double(k, uniform(random));
    const void* in[] = {x.data()};
    void* out[] = {y.mutable_data()};
    const Status ran = (*context)->run(in, out);
    if (!ran.ok()) {
      ADD_FAILURE() << ran.error().text();
      return std::nullopt;
    }
    answers.push_back(std::move(y));
  }
  return answers.size() == one.batches.size() ? std::optional(std::move(answers)) : std::nullopt;
}

class Batches : public testing::TestWithParam<std::tuple<int, const char*, const char*>> {};
TEST_P(Batches, ARowHasTheSameBitsInAny) {
  const auto& [index, type, where] = GetParam();
  const Case& one = kCases[index];
  Options options;
  options.verify = false;
  bool runs = true;
  if (where != std::string("cpu")) {
    if (!runtime::find_device_compiler().ok()) GTEST_SKIP() << "no device compiler";
    const auto gpu = runtime::describe_gpu(0);
    runs = gpu.ok();
    if (!runs && type != std::string("f16")) GTEST_SKIP() << "no GPU is here; f16 is compiled";
    options.target = gpu.ok() ? gpu->architecture : "sm_90a",
    options.sms = gpu.ok() ? gpu->sms : 132;
    options.granularity = machine::parse_granularity(where), options.batch_invariant = true,
    options.load.watchdog = true;
  }
  const auto answers = firsts(one, type, options, runs);
  if (testing::Test::HasFailure()) return;
  if (!answers) GTEST_SKIP() << "compiled, not run: no GPU is here";
  const Tensor& alone = answers->front();
  double size = 0;
  for (int64_t k = 0; k < alone.count(); ++k) size = std::max(size, std::fabs(alone.get_double(k)));
  EXPECT_GT(size, 1e-3);
  for (size_t k = 1; k < answers->size(); ++k)
    EXPECT_EQ(memcmp((*answers)[k].data(), alone.data(), static_cast<size_t>(alone.bytes())), 0)
        << "of " << one.batches[k];
}
INSTANTIATE_TEST_SUITE_P(Networks, Batches,
                         testing::Combine(testing::Values(0, 1, 2),
                                          testing::Values("f32", "f16", "bf16"),
                                          testing::Values("cpu", "mono", "stitch", "op")),
                         [](const auto& all) {
                           return fmt::format("{}_{}_{}", kCases[std::get<0>(all.param)].name,
                                              std::get<1>(all.param), std::get<2>(all.param));
                         });

}  // namespace
}  // namespace obelisk::compiler
