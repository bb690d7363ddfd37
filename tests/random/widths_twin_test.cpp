// Batch-invariant programs of a GPU for several batches and widths (numbers of multiprocessors), as
// the twin runs their device code: the rows that they share have the same bits. Small networks with
// whatever sums: products with one sum and with parts of k, attention, convolutions, rows, columns.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compile.h"
#include "graph/test_texts.h"
#include "twin_library.h"

namespace obelisk::random_graphs {
namespace {

/// Products of long and short sums with norms behind, and attention of two heads.
std::string layers(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "layers" {{
  in %0 "x": {1}[{0},5,128]
  const %1: {1}[128,64] = @random
  const %2: {1}[128,64] = @random
  const %3: {1}[128,64] = @random
  const %4: {1}[64,1536] = @random
  const %5: {1}[1536,64] = @random
  const %6: i64[4] = [{0}, 5, 2, 32]
  const %7: i64[3] = [{0}, 5, 64]
  const %8: i64[1] = [-1]
  %9: {1}[{0},5,64] = MatMul(%0, %1)
  %10: {1}[{0},5,64] = MatMul(%0, %2)
  %11: {1}[{0},5,64] = MatMul(%0, %3)
  %12: {1}[{0},5,2,32] = Reshape(%9, %6)
  %13: {1}[{0},5,2,32] = Reshape(%10, %6)
  %14: {1}[{0},5,2,32] = Reshape(%11, %6)
  %15: {1}[{0},2,5,32] = Transpose(%12) {{perm = [0, 2, 1, 3]}}
  %16: {1}[{0},2,5,32] = Transpose(%13) {{perm = [0, 2, 1, 3]}}
  %17: {1}[{0},2,5,32] = Transpose(%14) {{perm = [0, 2, 1, 3]}}
  %18: {1}[{0},2,5,32] = Attention(%15, %16, %17)
  %19: {1}[{0},5,2,32] = Transpose(%18) {{perm = [0, 2, 1, 3]}}
  %20: {1}[{0},5,64] = Reshape(%19, %7)
  %21: {1}[{0},5,1536] = MatMul(%20, %4)
  %22: {1}[{0},5,1536] = Gelu(%21)
  %23: {1}[{0},5,64] = MatMul(%22, %5)
  %24: {1}[{0},5,1] = ReduceMean(%23, %8) {{keepdims = 1}}
  %25: {1}[{0},5,64] = Sub(%23, %24)
  out %25 "y"
}})",
                     batch, type);
}

/// Convolutions of taps, of one pixel and by channel; a mean of pixels.
std::string images(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "images" {{
  in %0 "x": {1}[{0},3,10,10]
  const %1: {1}[32,3,3,3] = @random
  const %2: {1}[64,32,1,1] = @random
  const %3: {1}[64,1,3,3] = @random
  const %4: {1}[64,10] = @random
  const %5: i64[2] = [{0}, 64]
  %6: {1}[{0},32,8,8] = Conv(%0, %1)
  %7: {1}[{0},32,8,8] = Relu(%6)
  %8: {1}[{0},64,8,8] = Conv(%7, %2)
  %9: {1}[{0},64,6,6] = Conv(%8, %3) {{group = 64}}
  %10: {1}[{0},64,1,1] = GlobalAveragePool(%9)
  %11: {1}[{0},64] = Reshape(%10, %5)
  %12: {1}[{0},10] = MatMul(%11, %4)
  out %12 "y"
}})",
                     batch, type);
}

/// Bodies without a tile: a value of a row for a long one, sums down columns and along rows.
std::string rows(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "rows" {{
  in %0 "x": {1}[{0},8,2304]
  const %1: i64[1] = [2]
  const %2: i64[1] = [1]
  const %3: {1}[1,2304] = @random
  const %4: i64[1] = [0]
  %5: {1}[{0},8,1] = Slice(%0, %4, %2, %1)
  %6: {1}[{0},8,1] = Tanh(%5)
  %7: {1}[{0},8,2304] = Mul(%6, %0)
  %8: {1}[{0},1,2304] = ReduceSum(%7, %2) {{keepdims = 1}}
  %9: {1}[{0},1,2304] = Mul(%8, %3)
  %10: {1}[{0},1,2304] = Softmax(%9) {{axis = 2}}
  %11: {1}[{0},8,2304] = Add(%7, %10)
  %12: {1}[{0},8,1] = ReduceMean(%11, %1) {{keepdims = 1}}
  %13: {1}[{0},8,2304] = Sub(%11, %12)
  out %13 "y"
}})",
                     batch, type);
}

struct Case {
  const char* name;
  std::string (*network)(int64_t batch, const std::string& type);
  std::vector<int64_t> batches;
};
const Case kCases[] = {
    {"layers", layers, {1, 3, 8}}, {"images", images, {1, 3}}, {"rows", rows, {1, 4, 9}}};

/// One for all tests: what a library's functions share is not unloaded with it.
TwinLibrary* library() {
  static const auto made = TwinLibrary::create();
  if (!made.ok()) ADD_FAILURE() << made.error().text();
  return made.ok() ? made->get() : nullptr;
}

class WidthsTwin : public testing::TestWithParam<std::tuple<int, const char*, const char*>> {};
TEST_P(WidthsTwin, AllWidthsAndBatchesGiveTheSameBits) {
  const auto& [index, type, where] = GetParam();
  const Case& one = kCases[index];
  ASSERT_TRUE(library());
  struct Made {
    std::string name;
    std::shared_ptr<const runtime::Program> program;
  };
  std::vector<Made> programs;
  std::vector<const codegen::BodyText*> bodies;
  std::set<std::string> tables;  // that programs of one batch have
  for (const int64_t batch : one.batches)
    for (const int width : {132, 66, 33, 16}) {
      compiler::Options options;
      options.verify = false, options.to = "assemble", options.target = "sm_90a";
      options.granularity = machine::parse_granularity(where), options.sms = width;
      options.batch_invariant = true;
      compiler::Network network;
      auto graph = graph::parse_random(one.network(batch, type), 0.125);
      ASSERT_TRUE(graph.ok()) << graph.error().text();
      network.graph = std::move(*graph);
      compiler::Compilation made;
      const Status compiled = compiler::compile(network, options, made);
      ASSERT_TRUE(compiled.ok()) << compiled.error().text();
      ASSERT_EQ(beyond_twin(*made.program), "");
      if (batch == one.batches.back()) {
        std::string table;
        for (const schedule::Work& work : made.tasks.works)
          table += fmt::format("{} x {}, ", work.tile_rows, work.tile_columns);
        tables.insert(std::move(table));
      }
      programs.push_back({fmt::format("batch {}, {} multiprocessors", batch, width), made.program});
      for (const codegen::BodyText& body : made.program->bodies) bodies.push_back(&body);
    }
  EXPECT_GT(tables.size(), 1u) << "all widths have the same tiles";
  const Status added = library()->add(bodies);
  ASSERT_TRUE(added.ok()) << added.error().text();
  Tensor alone;
  for (const Made& made : programs) {
    std::mt19937 random(5);
    std::uniform_real_distribution<double> uniform(-1, 1);
    std::vector<Tensor> inputs = {Tensor::allocate(made.program->inputs[0].type)}, outputs;
    for (int64_t k = 0; k < inputs[0].count(); ++k) inputs[0].set_double(k, uniform(random));
    const std::vector<Tensor>* runs[] = {&inputs};
    ASSERT_EQ(run_twin(*made.program, *library(), runs, outputs), "") << made.name;
    if (alone.empty()) {
      alone = outputs[0];
      double size = 0;
      for (int64_t k = 0; k < alone.count(); ++k)
        size = std::max(size, std::fabs(alone.get_double(k)));
      EXPECT_GT(size, 1e-3);
    }
    EXPECT_EQ(memcmp(outputs[0].data(), alone.data(), static_cast<size_t>(alone.bytes())), 0)
        << made.name;
  }
}
INSTANTIATE_TEST_SUITE_P(Networks, WidthsTwin,
                         testing::Combine(testing::Values(0, 1, 2), testing::Values("f32", "f16"),
                                          testing::Values("stitch", "mono")),
                         [](const auto& all) {
                           return fmt::format("{}_{}_{}", kCases[std::get<0>(all.param)].name,
                                              std::get<1>(all.param), std::get<2>(all.param));
                         });

}  // namespace
}  // namespace obelisk::random_graphs
