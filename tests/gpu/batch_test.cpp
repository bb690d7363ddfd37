// A row's bits in programs of any batch: on cores as they are, on a GPU with
// Options::batch_invariant. Networks are texts whose first dimension is the batch; the first inputs
// of a larger batch are those of a smaller one.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compile.h"
#include "kernels/tile_library.h"
#include "machine/machine.h"
#include "network_texts.h"

namespace obelisk::compiler {
namespace {

using network_texts::encoder, network_texts::pictures, network_texts::steps;

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
