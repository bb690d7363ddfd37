// A run that gives way between its tasks: what is let in runs on the caller's thread, and the run's
// answers have the bits of one that nobody interrupts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<Program> program_of(const graph::Graph& graph, int workers) {
  const machine::Machine device = machine::cpu(workers);
  const stitch::Plan plan = stitch::plan(graph, device);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device);
  return std::make_shared<Program>(assemble(
      graph, plan, tasks, codegen::emit(graph, plan, tasks, kernels::tile_library(device)), "cpu"));
}

/// Several waves, with sums over rows that another order would round differently.
graph::Graph network() {
  auto graph = graph::parse(
      "graph \"g\" {\n  in %0 \"x\": f32[96,96]\n  %1: f32[96,96] = MatMul(%0, %0)\n"
      "  %2: f32[96,96] = Softmax(%1) {axis=1}\n  %3: f32[96,96] = MatMul(%2, %1)\n"
      "  %4: f32[96,96] = Softmax(%3) {axis=1}\n  %5 \"y\": f32[96,96] = MatMul(%4, %3)\n"
      "  out %5 \"y\"\n}");
  EXPECT_TRUE(graph.ok()) << graph.error().text();
  return std::move(*graph);
}

/// A context with what its runs read and write.
struct Runs {
  explicit Runs(const Executable& executable, int workers, uint32_t seed) {
    auto made = executable.context(workers);
    EXPECT_TRUE(made.ok());
    context = std::move(*made);
    std::mt19937 random(seed);
    x = random_tensor(executable.program().inputs[0].type, random);
    y = Tensor::allocate(executable.program().outputs[0].type);
  }
  std::vector<std::byte> run() {
    std::memset(y.mutable_data(), 0, static_cast<size_t>(y.bytes()));
    const Status status =
        context->run(std::vector<const void*>{x.data()}, std::vector<void*>{y.mutable_data()});
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
    const auto* bytes = static_cast<const std::byte*>(y.data());
    return {bytes, bytes + y.bytes()};
  }
  std::unique_ptr<Context> context;
  Tensor x, y;
};

TEST(GiveWay, InterruptedBeforeEachTaskARunHasTheSameBits) {
  LoadOptions load;
  load.every_thread = true;
  const auto program = program_of(network(), 4);
  ASSERT_GT(program->waves, 2);
  const auto executable = load_cpu(program, load);
  ASSERT_TRUE(executable.ok()) << executable.error().text();
  for (const int workers : {1, 2, 4})
    for (const int wanted : {1, 2}) {
      Runs host(**executable, workers, 1), guest(**executable, wanted, 2);
      const std::vector<std::byte> host_alone = host.run(), guest_alone = guest.run();
      ASSERT_NE(host_alone, guest_alone);
      int calls = 0;
      const auto me = std::this_thread::get_id();
      GiveWay way;
      way.work = [&] {
        ++calls;
        EXPECT_EQ(std::this_thread::get_id(), me);
        EXPECT_EQ(guest.run(), guest_alone);
      };
      ASSERT_TRUE(host.context->give_way(&way));
      EXPECT_EQ(host.run(), host_alone);
      EXPECT_EQ(calls, 0) << "nobody asked";
      way.wanted = wanted;
      for (int turn = 0; turn < 5; ++turn) {
        calls = 0;
        EXPECT_EQ(host.run(), host_alone);
        EXPECT_GE(calls, program->waves) << "at the end of each wave at least";
      }
      way.work = [&] { ++calls, way.wanted = 0; };
      calls = 0;
      EXPECT_EQ(host.run(), host_alone);
      EXPECT_EQ(calls, 1);
      way.wanted = wanted;
      host.context->give_way(nullptr);
      EXPECT_EQ(host.run(), host_alone);
      EXPECT_EQ(calls, 1);
    }
}

std::atomic<int> begun;
void body(const ObkTask*, const int64_t*, void* const*, ObkWorker*) { ++begun; }

// Where what is let in takes one worker, the others go on with the wave; where it takes more, all
// of them leave the cores to it.
TEST(GiveWay, OtherWorkersGoOnOrStandStill) {
  constexpr int kWorkers = 3;
  auto graph = graph::parse(
      "graph \"g\" {\n  in %0 \"x\": f32[2048,512]\n  in %1 \"w\": f32[512,512]\n"
      "  %2: f32[2048,512] = MatMul(%0, %1)\n  %3 \"y\": f32[2048,512] = MatMul(%2, %1)\n"
      "  out %3 \"y\"\n}");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto program = program_of(*graph, 64);
  int first = 0, all = 0;  // tasks
  for (const auto& list : program->lists)
    for (const ObkTask& task : list) ++all, first += task.wave == 0;
  ASSERT_GT(first, 4 * kWorkers);
  const OneBody library(body);
  LoadOptions load;
  load.library = &library, load.every_thread = true;
  const auto executable = load_cpu(program, load);
  ASSERT_TRUE(executable.ok()) << executable.error().text();
  auto context = (*executable)->context(kWorkers);
  ASSERT_TRUE(context.ok());
  std::vector<float> x(2048 * 512), w(512 * 512), y(2048 * 512);
  GiveWay way;
  (*context)->give_way(&way);
  const auto run = [&] {
    begun = 0;
    ASSERT_TRUE(
        (*context)
            ->run(std::vector<const void*>{x.data(), w.data()}, std::vector<void*>{y.data()})
            .ok());
    EXPECT_EQ(begun, all);
  };
  const auto within_a_minute = [](const auto& condition) {
    for (int k = 0; k < 60'000 && !condition(); ++k) std::this_thread::sleep_for(1ms);
    return condition();
  };
  way.wanted = 1, way.work = [&] {
    way.wanted = 0;
    EXPECT_TRUE(within_a_minute([&] { return begun == first; })) << begun;
  };
  run();
  int most = 0;
  for (int turn = 0; turn < 20; ++turn) {
    way.wanted = 2, way.work = [&] {
      way.wanted = 0;
      const int before = begun;
      std::this_thread::sleep_for(2ms);
      most = std::max(most, begun - before);
    };
    run();
  }
  EXPECT_LT(most, first);
}

}  // namespace
}  // namespace obelisk::runtime
