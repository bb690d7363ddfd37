// Every dispatch of a graph of kernels answers with the bits of the sequential one: of a network of
// branches, for many random inputs, alone and beside other contexts and threads. Where no GPU is,
// the device code is compiled. $OBELISK_GPU_RUNS: inputs of each, 1,000 otherwise.
// $OBELISK_GPU_THREADS: threads, of as many contexts each, 8 otherwise.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "compile.h"
#include "network_texts.h"

namespace obelisk::compiler {
namespace {

constexpr const char* kOthers[] = {"waves", "nimble", "opara", "critical", "opara random:1"};

class Dispatches : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!runtime::find_device_compiler().ok()) GTEST_SKIP() << "no device compiler";
    const auto gpu = runtime::describe_gpu(0);
    options.verify = false, options.load.watchdog = true;
    options.target = gpu.ok() ? gpu->architecture : "sm_90a";
    options.sms = gpu.ok() ? gpu->sms : 132;
    options.granularity = machine::parse_granularity(GetParam());
    runs = gpu.ok();
  }
  /// `how`: a policy, and a launch order behind it.
  void compile_as(const std::string& how, Compilation& made) {
    SCOPED_TRACE(how);
    Network network;
    auto graph = graph::parse_random(network_texts::branches(1, "f16"), 0.125);
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    network.graph = std::move(*graph);
    const size_t space = how.find(' ');
    options.dispatch.policy = how.substr(0, space);
    options.dispatch.launch_order = space == std::string::npos ? "" : how.substr(space + 1);
    const Status compiled = compile(network, options, made);
    ASSERT_TRUE(compiled.ok()) << compiled.error().text();
  }
  /// Inputs of that number, for all dispatches the same.
  static Tensor input(const runtime::Program& program, int number) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::uniform_real_distribution<float> uniform(-1, 1);
    Tensor x = Tensor::allocate(program.inputs[0].type);
    for (int64_t k = 0; k < x.count(); ++k) x.set_double(k, uniform(random));
    return x;
  }
  static Status run(runtime::Context& context, const Tensor& x, Tensor& y) {
    memset(y.mutable_data(), 0xff, static_cast<size_t>(y.bytes()));
    const void* in[] = {x.data()};
    void* out[] = {y.mutable_data()};
    return context.run(in, out);
  }
  static bool same_bits(const Tensor& a, const Tensor& b) {
    return memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
  }
  static int number(const char* variable, int otherwise) {
    const char* wanted = getenv(variable);
    return wanted ? std::max(atoi(wanted), 1) : otherwise;
  }
  static int inputs_of_each() { return number("OBELISK_GPU_RUNS", 1000); }
  Options options;
  bool runs = false;
};

TEST_P(Dispatches, HaveTheBitsOfTheSequentialOneForEveryInput) {
  Compilation sequential;
  ASSERT_NO_FATAL_FAILURE(compile_as("sequential", sequential));
  std::vector<std::unique_ptr<Compilation>> others;
  for (const char* how : kOthers) {
    others.push_back(std::make_unique<Compilation>());
    ASSERT_NO_FATAL_FAILURE(compile_as(how, *others.back()));
  }
  if (!runs) GTEST_SKIP() << "compiled, not run: no GPU is here";
  auto alone = sequential.executable->context();
  ASSERT_TRUE(alone.ok()) << alone.error().text();
  std::vector<std::unique_ptr<runtime::Context>> contexts;
  std::vector<std::string> names;
  for (const auto& other : others) {
    auto context = other->executable->context();
    ASSERT_TRUE(context.ok()) << context.error().text();
    contexts.push_back(std::move(*context)), names.emplace_back(kOthers[contexts.size() - 1]);
  }
  // The same, none of whose kernels starts before the tiles of those before it are computed, or
  // every second one.
  for (size_t k = 0; k < others.size(); ++k)
    for (const size_t every : {1, 2}) {
      runtime::Program program = *others[k]->program;
      if (program.dispatch.empty()) continue;
      for (size_t kernel = 0; kernel < program.dispatch.size(); ++kernel)
        program.dispatch[kernel].early = kernel % every != 0;
      program.objects = others[k]->executable->objects();
      const auto late =
          runtime::load(std::make_shared<runtime::Program>(std::move(program)), options.load);
      ASSERT_TRUE(late.ok()) << late.error().text();
      auto context = (*late)->context();
      ASSERT_TRUE(context.ok()) << context.error().text();
      contexts.push_back(std::move(*context));
      names.push_back(fmt::format("{}, late starts behind one of {}", kOthers[k], every));
    }
  Tensor wanted = Tensor::allocate(sequential.program->outputs[0].type),
         got = Tensor::allocate(wanted.type()), before = Tensor::allocate(wanted.type());
  std::vector<int> wrong(contexts.size(), 0);
  int alike = 0;  // to the answer before: inputs that change nothing would show nothing
  for (int number = 0; number < inputs_of_each(); ++number) {
    const Tensor x = input(*sequential.program, number);
    const Status ran = run(**alone, x, wanted);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    alike += number > 0 && same_bits(wanted, before);
    memcpy(before.mutable_data(), wanted.data(), static_cast<size_t>(wanted.bytes()));
    for (size_t k = 0; k < contexts.size(); ++k) {
      const Status other = run(*contexts[k], x, got);
      ASSERT_TRUE(other.ok()) << names[k] << ": " << other.error().text();
      wrong[k] += !same_bits(got, wanted);
    }
  }
  EXPECT_EQ(alike, 0);
  for (size_t k = 0; k < contexts.size(); ++k)
    EXPECT_EQ(wrong[k], 0) << names[k] << ", of " << inputs_of_each() << " inputs";
}

TEST_P(Dispatches, HaveTheSameBitsInContextsOfManyThreads) {
  const int threads_of_each = number("OBELISK_GPU_THREADS", 8), contexts_of_each = threads_of_each,
            all = threads_of_each * contexts_of_each;
  Compilation sequential;
  ASSERT_NO_FATAL_FAILURE(compile_as("sequential", sequential));
  for (const char* how : {"opara", "critical"}) {
    Compilation other;
    ASSERT_NO_FATAL_FAILURE(compile_as(how, other));
    if (!runs) continue;
    auto alone = sequential.executable->context();
    ASSERT_TRUE(alone.ok()) << alone.error().text();
    std::vector<Tensor> inputs, wanted;  // of each context its own
    for (int k = 0; k < all; ++k) {
      inputs.push_back(input(*sequential.program, k));
      wanted.push_back(Tensor::allocate(sequential.program->outputs[0].type));
      ASSERT_TRUE(run(**alone, inputs.back(), wanted.back()).ok());
    }
    std::atomic<int> wrong{0}, failed{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < threads_of_each; ++thread)
      threads.emplace_back([&, thread] {
        std::vector<std::unique_ptr<runtime::Context>> contexts;
        for (int k = 0; k < contexts_of_each; ++k) {
          auto context = other.executable->context();
          if (!context.ok()) return void(++failed);
          contexts.push_back(std::move(*context));
        }
        Tensor got = Tensor::allocate(wanted[0].type());
        for (int round = 0; round < (inputs_of_each() + all - 1) / all; ++round)
          for (size_t k = 0; k < contexts.size(); ++k) {
            const size_t mine = static_cast<size_t>(thread * contexts_of_each) + k;
            if (!run(*contexts[k], inputs[mine], got).ok())
              ++failed;
            else
              wrong += !same_bits(got, wanted[mine]);
          }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failed, 0) << how;
    EXPECT_EQ(wrong, 0) << how;
  }
  if (!runs) GTEST_SKIP() << "compiled, not run: no GPU is here";
}

INSTANTIATE_TEST_SUITE_P(Graphs, Dispatches, testing::Values("op", "stitch"),
                         [](const auto& all) { return std::string(all.param); });

}  // namespace
}  // namespace obelisk::compiler
