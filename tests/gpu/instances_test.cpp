// Runs of programs of the same code in one launch (Context::run_together), each with weights, memory
// and inputs of its own: the bits of each are those that it has alone. Where no GPU is, the device
// code is compiled.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "compile.h"
#include "network_texts.h"

namespace obelisk::compiler {
namespace {

using network_texts::encoder, network_texts::pictures, network_texts::steps;

struct Case {
  const char* name;
  std::string (*network)(int64_t batch, const std::string& type);
  int64_t batch;
};
const Case kCases[] = {{"encoder", encoder, 1},
                       {"encoder_of_five", encoder, 5},  // rows enough for pipelined GEMMs
                       {"pictures", pictures, 1},
                       {"steps", steps, 1}};
constexpr int kSms = 16, kModels = 3, kEach = 2;  // contexts of each model

using Bytes = std::vector<std::byte>;

/// One context with an input of its own, and the answer that it gives alone.
struct Instance {
  std::shared_ptr<const runtime::Executable> executable;
  std::unique_ptr<runtime::Context> context;
  Tensor x, wanted, y;
  std::vector<const void*> in;
  std::vector<void*> out;

  explicit Instance(std::shared_ptr<const runtime::Executable> of, unsigned seed)
      : executable(std::move(of)),
        x(Tensor::allocate(executable->program().inputs[0].type)),
        wanted(Tensor::allocate(executable->program().outputs[0].type)),
        y(Tensor::allocate(executable->program().outputs[0].type)),
        in{x.data()},
        out{y.mutable_data()} {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (int64_t k = 0; k < x.count(); ++k) x.set_double(k, uniform(random));
  }
  bool answered() const {
    return memcmp(y.data(), wanted.data(), static_cast<size_t>(y.bytes())) == 0;
  }
};

Result<std::shared_ptr<const runtime::Executable>> compiled(const Case& one, unsigned seed,
                                                            Options options, bool instances) {
  Network network;
  TRY(network.graph, graph::parse_random(one.network(one.batch, "f16"), 0.125, seed));
  options.load.instances = instances;
  Compilation made;
  TRY_STATUS(compile(network, options, made));
  return made.executable;
}

class Instances : public testing::TestWithParam<std::tuple<int, const char*>> {};
TEST_P(Instances, HaveTheBitsOfThoseAlone) {
  if (!runtime::find_device_compiler().ok()) GTEST_SKIP() << "no device compiler";
  const Case& one = kCases[std::get<0>(GetParam())];
  const auto gpu = runtime::describe_gpu(0);
  Options options;
  options.verify = false, options.load.watchdog = true;
  options.target = gpu.ok() ? gpu->architecture : "sm_90a", options.sms = kSms;
  options.granularity = machine::parse_granularity(std::get<1>(GetParam()));
  std::vector<std::unique_ptr<Instance>> instances;
  std::string code;
  for (unsigned model = 0; model < (gpu.ok() ? kModels : 1); ++model) {
    auto plain = compiled(one, model, options, false), shared = compiled(one, model, options, true);
    ASSERT_TRUE(plain.ok()) << plain.error().text();
    ASSERT_TRUE(shared.ok()) << shared.error().text();
    EXPECT_EQ((*plain)->code(), "");
    if (model == 0) code = (*shared)->code();
    ASSERT_NE(code, "");
    EXPECT_EQ((*shared)->code(), code) << "weights changed the code";
    if (!gpu.ok()) GTEST_SKIP() << "compiled, not run: no GPU is here";
    auto alone = (*plain)->context();
    ASSERT_TRUE(alone.ok()) << alone.error().text();
    for (unsigned k = 0; k < kEach; ++k) {
      auto& made = instances.emplace_back(
          std::make_unique<Instance>(*shared, 100 * model + k));
      auto context = (*shared)->context();
      ASSERT_TRUE(context.ok()) << context.error().text();
      made->context = std::move(*context);
      void* wanted[] = {made->wanted.mutable_data()};
      ASSERT_TRUE((*alone)->run(made->in, wanted).ok());
      const Status ran = made->context->run(made->in, made->out);
      ASSERT_TRUE(ran.ok()) << ran.error().text();
      EXPECT_TRUE(made->answered()) << "alone, of model " << model;
    }
  }
  EXPECT_NE(memcmp(instances.front()->wanted.data(), instances.back()->wanted.data(),
                   static_cast<size_t>(instances.front()->wanted.bytes())),
            0)
      << "the models answer alike";
  std::mt19937 random(3);
  std::vector<size_t> order(instances.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const char* wished = getenv("OBELISK_GPU_RUNS");
  for (int round = 0; round < (wished ? atoi(wished) : 60); ++round) {
    std::shuffle(order.begin(), order.end(), random);
    const size_t count = 1 + static_cast<size_t>(round) % order.size();
    std::vector<runtime::Run> runs;
    for (size_t k = 0; k < count; ++k) {
      Instance& each = *instances[order[k]];
      memset(each.y.mutable_data(), 0xff, static_cast<size_t>(each.y.bytes()));
      runs.push_back({each.context.get(), each.in, each.out});
    }
    const Status ran = runs[0].context->run_together(runs);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    for (size_t k = 0; k < count; ++k)
      EXPECT_TRUE(instances[order[k]]->answered())
          << "instance " << k << " of " << count << ", round " << round;
  }
  // Alone again, behind the others' streams.
  for (const auto& each : instances) {
    memset(each->y.mutable_data(), 0xff, static_cast<size_t>(each->y.bytes()));
    ASSERT_TRUE(each->context->run(each->in, each->out).ok());
    EXPECT_TRUE(each->answered());
  }
  const runtime::Run twice[] = {{instances[0]->context.get(), instances[0]->in, instances[0]->out},
                                {instances[0]->context.get(), instances[0]->in, instances[0]->out}};
  const Status refused = instances[0]->context->run_together(twice);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUsage);
}
INSTANTIATE_TEST_SUITE_P(Networks, Instances,
                         testing::Combine(testing::Values(0, 1, 2, 3),
                                          testing::Values("mono", "stitch", "op")),
                         [](const auto& all) {
                           return fmt::format("{}_{}", kCases[std::get<0>(all.param)].name,
                                              std::get<1>(all.param));
                         });

// A program whose code was compiled without instances shares no launch, and says so.
TEST(InstancesRefused, WithoutTheOption) {
  const auto gpu = runtime::describe_gpu(0);
  if (!gpu.ok()) GTEST_SKIP() << gpu.error().text();
  if (!runtime::find_device_compiler().ok()) GTEST_SKIP() << "no device compiler";
  Options options;
  options.verify = false, options.target = gpu->architecture, options.sms = kSms;
  options.granularity = machine::Granularity::kStitch;
  auto made = compiled(kCases[0], 0, options, false);
  ASSERT_TRUE(made.ok()) << made.error().text();
  Instance a(*made, 1), b(*made, 2);
  for (Instance* each : {&a, &b}) {
    auto context = (*made)->context();
    ASSERT_TRUE(context.ok()) << context.error().text();
    each->context = std::move(*context);
  }
  const runtime::Run runs[] = {{a.context.get(), a.in, a.out}, {b.context.get(), b.in, b.out}};
  const Status refused = a.context->run_together(runs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUsage);
  EXPECT_NE(refused.error().message.find("LoadOptions::instances"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace obelisk::compiler
