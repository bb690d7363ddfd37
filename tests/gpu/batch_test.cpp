// A row's bits in programs of any batch and width: on cores as they are, on a GPU with
// Options::batch_invariant. Networks are texts whose first dimension is the batch; the first inputs
// of a larger batch are those of a smaller one. A width is a number of multiprocessors that a
// program is made for.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compile.h"
#include "kernels/tile_library.h"
#include "machine/machine.h"
#include "network_texts.h"
#include "sample.h"

namespace obelisk::compiler {
namespace {

using network_texts::encoder, network_texts::pictures, network_texts::spreads, network_texts::steps;

struct Case {
  const char* name;
  std::string (*network)(int64_t batch, const std::string& type);
  std::vector<int64_t> batches;
};
const Case kCases[] = {{"encoder", encoder, {1, 2, 5, 8, 29, 60}},
                       {"pictures", pictures, {1, 3, 8, 40}},
                       {"steps", steps, {1, 2, 7, 33}},
                       {"spreads", spreads, {1, 3, 5, 40}}};

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

/// All multiprocessors, a half, a quarter and an eighth.
std::vector<int> widths_of(int sms) { return {sms, sms / 2, sms / 4, sms / 8}; }

class Batches : public testing::TestWithParam<std::tuple<int, const char*, const char*>> {};
TEST_P(Batches, ARowHasTheSameBitsInAny) {
  const auto& [index, type, where] = GetParam();
  const Case& one = kCases[index];
  Options options;
  options.verify = false;
  bool runs = true;
  std::vector<int> widths = {0};
  if (where != std::string("cpu")) {
    if (!runtime::find_device_compiler().ok()) GTEST_SKIP() << "no device compiler";
    const auto gpu = runtime::describe_gpu(0);
    runs = gpu.ok();
    if (!runs && type != std::string("f16")) GTEST_SKIP() << "no GPU is here; f16 is compiled";
    if (!runs && !compiles_all() && where != std::string("stitch"))
      GTEST_SKIP() << "no GPU is here; OBELISK_TEST_ALL compiles more than stitch";
    options.target = gpu.ok() ? gpu->architecture : "sm_90a";
    widths = gpu.ok() ? widths_of(gpu->sms) : std::vector<int>{132};
    options.granularity = machine::parse_granularity(where), options.batch_invariant = true,
    options.load.watchdog = true;
  }
  std::vector<Tensor> answers;
  for (const int width : widths) {
    SCOPED_TRACE(width);
    options.sms = width;
    const auto more = firsts(one, type, options, runs);
    if (testing::Test::HasFailure()) return;
    if (!more) GTEST_SKIP() << "compiled, not run: no GPU is here";
    answers.insert(answers.end(), more->begin(), more->end());
  }
  const Tensor& alone = answers.front();
  double size = 0;
  for (int64_t k = 0; k < alone.count(); ++k) size = std::max(size, std::fabs(alone.get_double(k)));
  EXPECT_GT(size, 1e-3);
  for (size_t k = 1; k < answers.size(); ++k)
    EXPECT_EQ(memcmp(answers[k].data(), alone.data(), static_cast<size_t>(alone.bytes())), 0)
        << "of " << one.batches[k % one.batches.size()] << ", width "
        << widths[k / one.batches.size()];
}
INSTANTIATE_TEST_SUITE_P(Networks, Batches,
                         testing::Combine(testing::Values(0, 1, 2, 3),
                                          testing::Values("f32", "f16", "bf16"),
                                          testing::Values("cpu", "mono", "stitch", "op")),
                         [](const auto& all) {
                           return fmt::format("{}_{}_{}", kCases[std::get<0>(all.param)].name,
                                              std::get<1>(all.param), std::get<2>(all.param));
                         });

/// What decides the order of sums and what is rounded between them: the ops after the machine's
/// passes, with the parts of k, and the groups that they form. Of a table, that no work has tiles
/// that sum otherwise.
struct Sums {
  std::vector<std::string> ops;
  std::string groups;
};
Sums sums_of(const Network& network, const Options& options) {
  Compilation made;
  const Status compiled = compile(network, options, made);
  EXPECT_TRUE(compiled.ok()) << compiled.error().text();
  Sums sums;
  for (const graph::NodeId id : made.graph.order()) {
    const graph::Node& node = made.graph.node(id);
    sums.ops.push_back(fmt::format("{} {}", to_string(node.op), node.attrs.get_int("parts", 1)));
  }
  sums.groups = stitch::print(made.graph, made.plan);
  if (options.batch_invariant)
    for (const schedule::Work& work : made.tasks.works) {
      EXPECT_FALSE(work.pipelined() || work.dataflow);
      EXPECT_FALSE(work.list() && work.list()->shares_rows);
    }
  return sums;
}

// By tables alone: without a GPU, and without a device compiler.
TEST(Widths, DecideNeitherGroupsNorParts) {
  int differ = 0;  // of those that are not batch-invariant
  for (const Case& one : kCases)
    for (const char* type : {"f32", "f16"}) {
      std::map<std::string, std::vector<std::string>> ops;  // by granularity, of all batches
      for (const int64_t batch : {one.batches.front(), one.batches[2], one.batches.back()}) {
        Network network;
        auto graph = graph::parse_random(one.network(batch, type), 0.125);
        ASSERT_TRUE(graph.ok()) << graph.error().text();
        network.graph = std::move(*graph);
        for (const char* where : {"mono", "stitch", "op"}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", one.name, type, where, batch));
          Options options;
          options.verify = false, options.target = "sm_90a", options.to = "schedule";
          options.granularity = machine::parse_granularity(where);
          const auto sums_on = [&](int width, bool invariant) {
            options.sms = width, options.batch_invariant = invariant;
            return sums_of(network, options);
          };
          std::string groups;
          for (const int width : widths_of(132)) {
            const Sums sums = sums_on(width, true);
            if (groups.empty()) groups = sums.groups;
            EXPECT_EQ(sums.groups, groups) << width;
            if (ops[where].empty()) ops[where] = sums.ops;
            EXPECT_EQ(sums.ops, ops[where]) << width;
          }
          differ += sums_on(132, false).groups != sums_on(16, false).groups;
        }
      }
    }
  EXPECT_GT(differ, 0) << "there is nothing that the mode has to keep alike";
}

}  // namespace
}  // namespace obelisk::compiler
