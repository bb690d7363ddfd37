// Runs of programs of the same code in one launch (Context::run_together, run_together_on), each
// with weights, memory and inputs of its own: the bits of each are those that it has alone. Where
// no GPU is, the device code is compiled. $OBELISK_GPU_RUNS: rounds; $OBELISK_GPU_NO_WATCHDOG: as
// users compile, for the watchdog makes some kernels slower.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "compile.h"
#include "network_texts.h"
#include "runtime/cuda/gpu.h"
#include "sample.h"

namespace obelisk::compiler {
namespace {

using network_texts::branches, network_texts::encoder, network_texts::pictures,
    network_texts::squares, network_texts::steps;

struct Case {
  const char* name;
  std::string (*network)(int64_t batch, const std::string& type);
  int64_t batch;
};
const Case kCases[] = {
    {"encoder", encoder, 1},   {"encoder_of_five", encoder, 5},  // rows enough for pipelined GEMMs
    {"pictures", pictures, 1}, {"steps", steps, 1},
    {"branches", branches, 1}, {"squares", squares, 4}};  // of two activations
constexpr int kSms = 16, kModels = 4, kEach = 2;          // contexts of each model
constexpr size_t kInputs = 2;                             // that each is run with, in turn

using Bytes = std::vector<std::byte>;

/// One context with inputs of its own, and the answers that it gives alone.
struct Instance {
  std::shared_ptr<const runtime::Executable> executable;
  std::unique_ptr<runtime::Context> context;
  std::vector<Tensor> x, wanted;
  Tensor y;
  size_t input = 0;  // of this run
  std::vector<const void*> in;
  std::vector<void*> out;

  explicit Instance(std::shared_ptr<const runtime::Executable> of, unsigned seed)
      : executable(std::move(of)), y(Tensor::allocate(executable->program().outputs[0].type)) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (size_t one = 0; one < kInputs; ++one) {
      wanted.push_back(Tensor::allocate(y.type()));
      Tensor& values = x.emplace_back(Tensor::allocate(executable->program().inputs[0].type));
      for (int64_t k = 0; k < values.count(); ++k) values.set_double(k, uniform(random));
    }
  }
  /// What is given to the next run: another input than the last one's.
  runtime::SharedRun next() {
    input = (input + 1) % kInputs;
    in = {x[input].data()}, out = {y.mutable_data()};
    memset(y.mutable_data(), 0xff, static_cast<size_t>(y.bytes()));
    return {context.get(), in, out};
  }
  bool answered() const {
    return memcmp(y.data(), wanted[input].data(), static_cast<size_t>(y.bytes())) == 0;
  }
  /// How the answer differs: elements, the first and the last of them.
  std::string difference() const {
    int64_t count = 0, first = -1, last = -1;
    for (int64_t k = 0; k < y.count(); ++k) {
      if (y.get_double(k) == wanted[input].get_double(k)) continue;
      ++count, last = k;
      if (first < 0) first = k;
    }
    return fmt::format("{} of {} elements, {} to {}", count, y.count(), first, last);
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
  if (!gpu.ok() && !compiles_all() && std::get<1>(GetParam()) != std::string("stitch"))
    GTEST_SKIP() << "no GPU is here; OBELISK_TEST_ALL compiles more than stitch";
  Options options;
  options.verify = false, options.load.watchdog = !getenv("OBELISK_GPU_NO_WATCHDOG");
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
      auto& made = instances.emplace_back(std::make_unique<Instance>(*shared, 100 * model + k));
      auto context = (*shared)->context();
      ASSERT_TRUE(context.ok()) << context.error().text();
      made->context = std::move(*context);
      for (size_t one = 0; one < kInputs; ++one) {
        const void* in[] = {made->x[one].data()};
        void* wanted[] = {made->wanted[one].mutable_data()};
        ASSERT_TRUE((*alone)->run(in, wanted).ok());
      }
      EXPECT_NE(memcmp(made->wanted[0].data(), made->wanted[1].data(),
                       static_cast<size_t>(made->y.bytes())),
                0)
          << "its inputs are answered alike";
    }
  }
  const char* wished = getenv("OBELISK_GPU_RUNS");
  const int rounds = wished ? atoi(wished) : 60;
  // Each alone, and all at once on threads of their own.
  for (const bool at_once : {false, true}) {
    std::atomic<int> wrong{0};
    std::mutex mutex;
    std::string how;
    const auto run_one = [&](Instance& each) {
      for (int round = 0; round < rounds; ++round) {
        const runtime::SharedRun run = each.next();
        if (run.context->run(run.inputs, run.outputs).ok() && each.answered()) continue;
        std::lock_guard lock(mutex);
        if (++wrong <= 8) how += "\n" + each.difference();
      }
    };
    std::vector<std::thread> threads;
    for (const auto& each : instances) {
      threads.emplace_back([&] { run_one(*each); });
      if (!at_once) threads.back().join(), threads.pop_back();
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0) << (at_once ? "at once" : "alone") << how;
  }
  std::mt19937 random(3);
  std::vector<size_t> order(instances.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    const size_t count = 1 + static_cast<size_t>(round) % order.size();
    std::vector<runtime::SharedRun> runs;
    for (size_t k = 0; k < count; ++k) runs.push_back(instances[order[k]]->next());
    const Status ran = runs[0].context->run_together(runs);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    for (size_t k = 0; k < count; ++k)
      EXPECT_TRUE(instances[order[k]]->answered())
          << "instance " << k << " of " << count << ", round " << round << ": "
          << instances[order[k]]->difference();
  }
  // From and to the contexts' own pinned memory, of which that of some lies side by side.
  for (int round = 0; round < rounds; ++round) {
    const size_t count = 1 + static_cast<size_t>(round) % order.size();
    std::shuffle(order.begin(), order.end(), random);
    std::vector<runtime::SharedRun> runs;
    for (size_t k = 0; k < count; ++k) {
      Instance& each = *instances[order[k]];
      each.next();
      auto in = each.context->input_memory(0), out = each.context->output_memory(0);
      ASSERT_TRUE(in.ok() && out.ok());
      memcpy(*in, each.x[each.input].data(), static_cast<size_t>(each.x[each.input].bytes()));
      memset(*out, 0xff, static_cast<size_t>(each.y.bytes()));
      each.in = {*in}, each.out = {*out};
      runs.push_back({each.context.get(), each.in, each.out});
    }
    const Status ran = runs[0].context->run_together(runs);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    for (size_t k = 0; k < count; ++k) {
      Instance& each = *instances[order[k]];
      memcpy(each.y.mutable_data(), each.out[0], static_cast<size_t>(each.y.bytes()));
      EXPECT_TRUE(each.answered()) << "instance " << k << " of " << count << ", round " << round;
    }
  }
  // On the caller's streams, between memory of the GPU: launches follow each other whatever
  // stream they are on and whoever is in them, and wait() of each context waits for its last one.
  using runtime::cuda::Memory;
  ASSERT_TRUE(runtime::cuda::first_gpu().ok());
  const runtime::cuda::Driver& driver = **runtime::cuda::load_driver();
  runtime::cuda::Handle streams[2];
  for (auto& stream : streams)
    ASSERT_EQ(driver.StreamCreate(&stream, runtime::cuda::kStreamNonBlocking), 0);
  std::vector<std::array<Memory, kInputs + 1>> memory(instances.size());
  for (size_t k = 0; k < instances.size(); ++k) {
    for (size_t one = 0; one < kInputs; ++one)
      ASSERT_TRUE(memory[k][one]
                      .fill(instances[k]->x[one].data(), instances[k]->x[one].bytes(), "an input")
                      .ok());
    ASSERT_TRUE(memory[k][kInputs].reserve(instances[k]->y.bytes(), "an output").ok());
  }
  const auto on_gpu = [&](size_t k) -> runtime::SharedRun {
    Instance& each = *instances[k];
    each.next();
    each.in = {reinterpret_cast<const void*>(memory[k][each.input].at())};
    each.out = {reinterpret_cast<void*>(memory[k][kInputs].at())};
    return {each.context.get(), each.in, each.out};
  };
  for (size_t k = 0; k < instances.size(); ++k)  // so that each has an answer
    ASSERT_TRUE(instances[k]->context->run_together_on(std::array{on_gpu(k)}, streams[0]).ok());
  for (int round = 0; round < rounds; ++round) {
    for (int launch = 0; launch < 3; ++launch) {
      std::shuffle(order.begin(), order.end(), random);
      const size_t count = 1 + static_cast<size_t>(round + 3 * launch) % order.size();
      std::vector<runtime::SharedRun> runs;
      for (size_t k = 0; k < count; ++k) runs.push_back(on_gpu(order[k]));
      const Status ran = runs[0].context->run_together_on(runs, streams[(round + launch) % 2]);
      ASSERT_TRUE(ran.ok()) << ran.error().text();
    }
    for (size_t k = 0; k < instances.size(); ++k) {
      Instance& each = *instances[k];
      ASSERT_TRUE(each.context->wait().ok());
      ASSERT_EQ(driver.CopyToHost(each.y.mutable_data(), memory[k][kInputs].at(),
                                  static_cast<size_t>(each.y.bytes())),
                0);
      EXPECT_TRUE(each.answered())
          << "instance " << k << ", round " << round << ": " << each.difference();
    }
  }
  const runtime::SharedRun on_host[] = {on_gpu(0), instances[1]->next()};
  const Status nowhere = instances[0]->context->run_together_on(on_host, streams[0]);
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.error().code, Code::kUsage);
  for (auto& stream : streams) {
    ASSERT_EQ(driver.StreamSynchronize(stream), 0);
    driver.StreamDestroy(stream);
  }
  // Alone again, behind the others' streams.
  for (const auto& each : instances) {
    const runtime::SharedRun run = each->next();
    ASSERT_TRUE(run.context->run(run.inputs, run.outputs).ok());
    EXPECT_TRUE(each->answered());
  }
  const runtime::SharedRun again = instances[0]->next(), twice[] = {again, again};
  const Status refused = instances[0]->context->run_together(twice);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUsage);
}
INSTANTIATE_TEST_SUITE_P(Networks, Instances,
                         testing::Combine(testing::Values(0, 1, 2, 3, 4, 5),
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
  const runtime::SharedRun runs[] = {a.next(), b.next()};
  const Status refused = a.context->run_together(runs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kUsage);
  EXPECT_NE(refused.error().message.find("LoadOptions::instances"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace obelisk::compiler
