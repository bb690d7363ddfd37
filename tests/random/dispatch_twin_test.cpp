// A graph of kernels has the same bits in every order that its dependencies allow: kernels of a
// network of branches, as the twin runs them, one after another by each dispatch and at random,
// beside the sequential one, with 1,000 random inputs ($OBELISK_TWIN_INPUTS).
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "compile.h"
#include "graph/test_texts.h"
#include "twin_library.h"

namespace obelisk::random_graphs {
namespace {

// Branches of products, norms and reductions, which sums join; twice, one behind the other.
constexpr const char* kBranches = R"(graph "branches" {
  in %0 "x": f32[4,32]
  const %1: f32[32,32] = @random
  const %2: f32[32,32] = @random
  const %3: f32[32,32] = @random
  const %4: i64[1] = [-1]
  %5: f32[4,32] = MatMul(%0, %1)
  %6: f32[4,32] = MatMul(%0, %2)
  %7: f32[4,32] = Softmax(%6) {axis = -1}
  %8: f32[4,32] = Exp(%0)
  %9: f32[4,1] = ReduceMax(%8, %4) {keepdims = 1}
  %10: f32[4,32] = MatMul(%7, %3)
  %11: f32[4,32] = Add(%5, %10)
  %12: f32[4,32] = Add(%11, %9)
  %13: f32[4,32] = MatMul(%12, %1)
  %14: f32[4,32] = Tanh(%12)
  %15: f32[4,32] = Softmax(%12) {axis = 0}
  %16: f32[4,32] = MatMul(%14, %2)
  %17: f32[4,32] = MatMul(%16, %3)
  %18: f32[4,32] = Mul(%15, %13)
  %19: f32[4,32] = Add(%17, %18)
  out %19 "y"
  out %7 "scores"
})";

class Ordered {
 public:
  explicit Ordered(std::string dispatch) {
    compiler::Options options;
    options.verify = false, options.check_tables = true, options.to = "assemble";
    options.target = "sm_90a", options.granularity = machine::Granularity::kOp;
    options.dispatch.policy = std::move(dispatch);
    options.disabled = {"dataflow"};
    compiler::Network network;
    auto graph = graph::parse_random(kBranches, 0.25);
    EXPECT_TRUE(graph.ok()) << graph.error().text();
    network.graph = std::move(*graph);
    const Status compiled = compiler::compile(network, options, made);
    EXPECT_TRUE(compiled.ok()) << compiled.error().text();
    auto dependencies = schedule::true_dependencies(made.graph, made.plan, made.tasks);
    EXPECT_TRUE(dependencies.ok());
    dag = dependencies->dag;
    for (const schedule::Work& work : made.tasks.works) {
      waves.push_back(work.wave);
      schedule::Kernel& kernel = kernels.emplace_back();
      kernel.demand.blocks = static_cast<int64_t>(kernels.size() % 3);
      kernel.kind =
          kernels.size() % 2 ? schedule::KernelClass::kCompute : schedule::KernelClass::kMemory;
    }
  }
  /// The order of works by a policy, or by one of lanes with a launch order behind it.
  std::vector<int> order(const std::string& policy, const std::string& launch_order = "") const {
    auto placed = schedule::dispatch(dag, kernels, waves,
                                     {.policy = policy, .launch_order = launch_order, .sms = 132});
    EXPECT_TRUE(placed.ok()) << placed.error().text();
    std::vector<int> works;
    for (const schedule::Dispatched& each : placed->kernels) works.push_back(each.kernel);
    return works;
  }
  compiler::Compilation made;
  schedule::Dag dag;
  std::vector<schedule::Kernel> kernels;
  std::vector<int> waves;
};

TEST(DispatchTwin, EveryOrderOfTheDependenciesHasTheBitsOfTheSequentialOne) {
  const Ordered whole("opara");
  ASSERT_FALSE(HasFailure());
  const runtime::Program& program = *whole.made.program;
  ASSERT_EQ(beyond_twin(program), "");
  auto library = TwinLibrary::create();
  ASSERT_TRUE(library.ok()) << library.error().text();
  std::vector<const codegen::BodyText*> bodies;
  for (const codegen::BodyText& body : program.bodies) bodies.push_back(&body);
  const Status added = (*library)->add(bodies);
  ASSERT_TRUE(added.ok()) << added.error().text();

  const std::vector<int> sequential = whole.order("sequential");
  ASSERT_GT(sequential.size(), 10u);
  std::vector<std::vector<int>> orders = {whole.order("nimble"), whole.order("opara"),
                                          whole.order("critical")};
  std::mt19937 random(11);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<Tensor> inputs = {Tensor::allocate(program.inputs[0].type)};
  std::vector<Tensor> before = {Tensor::allocate(program.inputs[0].type)};
  std::vector<Tensor> wanted, got;
  int others = 0;  // orders that are not the sequential one
  const char* inputs_wanted = getenv("OBELISK_TWIN_INPUTS");
  const int turns = inputs_wanted ? std::max(atoi(inputs_wanted), 4) : 1000;
  for (int turn = 0; turn < turns; ++turn) {
    for (int64_t k = 0; k < inputs[0].count(); ++k) inputs[0].set_double(k, uniform(random));
    const std::vector<Tensor>* alone[] = {&inputs};
    ASSERT_EQ(run_twin(program, **library, alone, wanted, sequential), "");
    const std::vector<int> order = turn < 3 ? orders[static_cast<size_t>(turn)]
                                            : whole.order("nimble", fmt::format("random:{}", turn));
    others += order != sequential;
    // Now and then in memory that a run with other inputs has used, so that a stale read is seen.
    std::vector<const std::vector<Tensor>*> runs = {&inputs};
    if (turn % 10 == 1) runs.insert(runs.begin(), &before);
    ASSERT_EQ(run_twin(program, **library, runs, got, order), "");
    for (size_t k = 0; k < wanted.size(); ++k)
      ASSERT_EQ(memcmp(got[k].data(), wanted[k].data(), static_cast<size_t>(wanted[k].bytes())), 0)
          << "turn " << turn << ", output " << k;
    memcpy(before[0].mutable_data(), inputs[0].data(), static_cast<size_t>(inputs[0].bytes()));
  }
  EXPECT_GT(others, turns / 2);

  // An order that breaks a dependency is seen: the last work first.
  std::vector<int> wrong = sequential;
  std::rotate(wrong.begin(), wrong.end() - 1, wrong.end());
  const std::vector<Tensor>* alone[] = {&inputs};
  ASSERT_EQ(run_twin(program, **library, alone, got, wrong), "");
  bool same = true;
  for (size_t k = 0; k < wanted.size(); ++k)
    same = same &&
           memcmp(got[k].data(), wanted[k].data(), static_cast<size_t>(wanted[k].bytes())) == 0;
  EXPECT_FALSE(same);
}

}  // namespace
}  // namespace obelisk::random_graphs
