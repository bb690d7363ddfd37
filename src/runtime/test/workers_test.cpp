// What is thrown on a worker's thread reaches the caller; nobody waits for ever, and the next run
// is one like any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>

#include "codegen/codegen.h"
#include "graph/graph.h"
#include "runtime/cpu/workers.h"
#include "runtime/runtime.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

TEST(Workers, WhatOneThrowsReachesTheCaller) {
  cpu::Workers workers(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    EXPECT_THROW(workers.run([&](int worker) {
      if (worker == thrower) throw std::runtime_error("no");
    }),
                 std::runtime_error);
    std::atomic<int> ran{0};
    workers.run([&](int) { ++ran; });
    EXPECT_EQ(ran, 3);
  }
}

std::atomic<bool> fails;
std::atomic<int> calls;
void body(const ObkTask*, const int64_t*, void* const*, ObkWorker* self) {
  ++calls;
  if (fails && self->sm == 0) throw std::runtime_error("unforeseen");
  if (fails) throw std::bad_alloc();
}

TEST(Workers, ABodyThatThrowsIsAnErrorOfTheRun) {
  // Waves between which all meet.
  auto graph = graph::parse(
      "graph \"g\" {\n  in %0 \"x\": f32[512,512]\n  %1: f32[512,512] = MatMul(%0, %0)\n"
      "  %2 \"y\": f32[512,512] = MatMul(%1, %0)\n  out %2 \"y\"\n}");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const machine::Machine device = machine::cpu(3);
  const stitch::Plan plan = stitch::plan(*graph, device);
  const schedule::TaskGraph tasks = schedule::build(*graph, plan, device);
  const auto program = std::make_shared<Program>(
      assemble(*graph, plan, tasks,
               codegen::emit(*graph, plan, tasks, kernels::tile_library(device)), "cpu"));
  ASSERT_GT(program->waves, 1);
  const OneBody library(body);
  LoadOptions options;
  options.library = &library, options.every_thread = true;
  const auto loaded = load_cpu(program, options);
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  auto context = (*loaded)->context(3);
  ASSERT_TRUE(context.ok());
  std::vector<float> x(512 * 512), y(512 * 512);
  ASSERT_FALSE(program->lists.empty());
  const auto run = [&] {
    return (*context)->run(std::vector<const void*>{x.data()}, std::vector<void*>{y.data()});
  };
  ASSERT_TRUE(run().ok());
  ASSERT_GT(calls, 0);
  fails = true;
  const Status failed = run();
  fails = false;
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().text(), testing::AnyOf(testing::HasSubstr("out of memory"),
                                                    testing::HasSubstr("unforeseen")));
  EXPECT_TRUE(run().ok()) << "what failed once is not remembered";
}

}  // namespace
}  // namespace obelisk::runtime
