// The library's bookkeeping of a GPU, over a driver that computes nothing (driver.c): what is out
// of memory once is not for ever, the memory limit counts all contexts, and the GPU's memory is not
// handed out as the host's. Skipped where there is no device compiler.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "obelisk/obelisk.h"

extern "C" {
void stub_allow(size_t bytes);
size_t stub_taken(void);
int stub_launches(void);
void stub_capture(int on);
int stub_children(void);
int cuMemAlloc_v2(unsigned long long* at, size_t bytes);
int cuMemFree_v2(unsigned long long at);
int cuStreamCreate(void** made);
}

namespace {

namespace fs = std::filesystem;
using obelisk::Context;
using obelisk::Failure;
using obelisk::FailureKind;
using obelisk::Model;

constexpr size_t kMegabyte = 1 << 20;

class Stub : public testing::Test {
 protected:
  void TearDown() override { stub_allow(static_cast<size_t>(-1)); }
  /// Input and output of a megabyte each, 1 KB of weights. Nothing where no compiler is.
  static std::optional<Model> model(int64_t memory_limit = 0) {
    std::string weights;
    for (int k = 0; k < 256; ++k) weights += (k ? ", " : "") + std::to_string(k / 8.0);
    const std::string path =
        fs::temp_directory_path() / ("obelisk-stub-test-" + std::to_string(getpid()) + ".ir");
    std::ofstream(path)
        << "graph \"g\" {\n  in %0 \"x\": f32[1024,256]\n  const %1 \"w\": f32[256] = [" + weights +
               "]\n  %2 \"y\": f32[1024,256] = Mul(%0, %1)\n  out %2 \"y\"\n}\n";
    std::optional<Model> made;
    try {
      made = Model::compile(path, {.target = "cuda",
                                   .granularity = "stitch",
                                   .memory_limit = memory_limit,
                                   .verify = false});
    } catch (const Failure& failure) {
      EXPECT_NE(failure.message().find("device compiler"), std::string::npos) << failure.what();
    }
    fs::remove(path);
    return made;
  }
};
#define MODEL(name, ...)                                \
  const std::optional<Model> name = model(__VA_ARGS__); \
  if (HasFailure()) return;                             \
  if (!name) GTEST_SKIP() << "there is no device compiler"

template <typename F>
std::optional<Failure> failure_of(F&& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure;
  }
  return std::nullopt;
}

TEST_F(Stub, OutOfMemoryOnceIsNotForEver) {
  MODEL(made);
  const size_t before = stub_taken();
  stub_allow(before + 512);
  for (int again = 0; again < 2; ++again) {
    const auto failed = failure_of([&] { Context context(*made); });
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->kind(), FailureKind::kMemory) << failed->what();
  }
  stub_allow(static_cast<size_t>(-1));
  Context context(*made);
  context.run();
}

TEST_F(Stub, TheMemoryLimitCountsAllContexts) {
  MODEL(made, 3 * kMegabyte);
  std::optional<Context> first;
  first.emplace(*made);
  const auto failed = failure_of([&] { Context second(*made); });
  ASSERT_TRUE(failed) << "two contexts take four megabytes";
  EXPECT_EQ(failed->kind(), FailureKind::kMemory);
  EXPECT_NE(failed->message().find("each of 2 contexts"), std::string::npos) << failed->what();
  first->run();
  first.reset();
  Context instead(*made);  // there is room again
  instead.run();
}

TEST_F(Stub, ARunOnACapturedStreamIsAPartOfItsGraph) {
  void* stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream), 0);
  unsigned long long x = 0, y = 0;
  ASSERT_EQ(cuMemAlloc_v2(&x, kMegabyte), 0);
  ASSERT_EQ(cuMemAlloc_v2(&y, kMegabyte), 0);
  const size_t before = stub_taken();
  {
    MODEL(made);
    Context context(*made);
    context.bind_input("x", {reinterpret_cast<std::byte*>(x), kMegabyte});
    context.bind_output("y", {reinterpret_cast<std::byte*>(y), kMegabyte});
    context.run_on(stream);
    const size_t with_one = stub_taken();
    const int launches = stub_launches();
    stub_capture(1);
    for (int again = 1; again < 3; ++again) {
      context.run_on(stream);
      EXPECT_EQ(stub_children(), again);
    }
    stub_capture(0);
    EXPECT_EQ(stub_launches(), launches) << "a run was launched instead";
    EXPECT_GT(stub_taken(), with_one) << "graphs and runs share memory";
    context.run_on(stream);
    context.wait();
    EXPECT_EQ(stub_launches(), launches + 1);
  }
  EXPECT_EQ(stub_taken(), before) << "memory of captured runs is the model's";
  cuMemFree_v2(x), cuMemFree_v2(y);
}

// Kernels do nothing here: what arrives in an output is what was copied there.
TEST_F(Stub, OutputsInPlaceOfInputs) {
  const std::string path =
      fs::temp_directory_path() / ("obelisk-stub-in-place-" + std::to_string(getpid()) + ".ir");
  std::ofstream(path) << R"(graph "g" {
  in %0 "past": f32[64,16]
  in %1 "row": i64[1,1]
  in %2 "new": f32[1,16]
  in %3 "all": f32[64,16]
  %4: f32[64,16] = ScatterND(%0, %1, %2)
  %5: f32[64,16] = Neg(%3)
  out %4 "now" in_place_of "past"
  out %5 "all now" in_place_of "all"
})";
  std::optional<Model> made;
  try {
    made = Model::compile(path, {.target = "cuda", .granularity = "stitch", .verify = false});
  } catch (const Failure& failure) {
    EXPECT_NE(failure.message().find("device compiler"), std::string::npos) << failure.what();
  }
  fs::remove(path);
  if (!made) GTEST_SKIP() << "there is no device compiler";
  EXPECT_EQ(made->output("now").in_place_of, "past");
  EXPECT_TRUE(made->output("now").updates);
  EXPECT_EQ(made->output("all now").in_place_of, "all");
  EXPECT_FALSE(made->output("all now").updates);
  constexpr size_t kBytes = 64 * 16 * sizeof(float), kCount = kBytes / sizeof(float);
  unsigned long long at[4] = {};
  std::vector<std::span<std::byte>> memory;
  for (auto& each : at) {
    ASSERT_EQ(cuMemAlloc_v2(&each, kBytes), 0);
    memory.emplace_back(reinterpret_cast<std::byte*>(each), kBytes);
  }
  const auto fill = [&](int which, float number) {
    std::fill_n(reinterpret_cast<float*>(at[which]), kCount, number);
  };
  const auto first = [&](int which) { return *reinterpret_cast<float*>(at[which]); };
  Context context(*made);
  context.bind_input("past", memory[0]), context.bind_output("now", memory[0]);
  context.bind_input("all", memory[1]), context.bind_output("all now", memory[1]);
  fill(0, 1), fill(1, 2), fill(2, 3), fill(3, 4);
  context.run();  // one memory: the update is there, the other output was computed aside
  EXPECT_EQ(first(0), 1);
  EXPECT_NE(first(1), 2);
  context.bind_output("now", memory[2]), context.bind_output("all now", memory[3]);
  fill(1, 2);
  context.run();  // two: the input to be updated is copied, the other output is written where it is
  EXPECT_EQ(first(0), 1);
  EXPECT_EQ(first(1), 2);
  EXPECT_EQ(first(2), 1);
  EXPECT_EQ(first(3), 4);
  context.unbind_output("now");  // and so to the host
  context.run();
  EXPECT_EQ(context.output<float>("now")[kCount - 1], 1);
  for (const auto each : at) EXPECT_EQ(cuMemFree_v2(each), 0);
}

// That it was asked for shows in what is refused with it, of all models and of one.
TEST_F(Stub, AServersModelsAreBatchInvariantWhereItIsAskedFor) {
  MODEL(made);
  const std::string path =
      fs::temp_directory_path() / ("obelisk-invariant-" + std::to_string(getpid()) + ".ir");
  std::ofstream(path) << "graph \"g\" {\n  in %0 \"x\": f32[4,256]\n"
                         "  %1: f32[4,256] = Exp(%0)\n  out %1 \"y\"\n}\n";
  const auto refused = [&](bool server_wide, bool model_only, const std::string& granularity) {
    obelisk::Server server(
        {.target = "cuda", .verify = false, .batch_invariant = server_wide, .cache = "off"});
    server.add("g", path, {.granularity = granularity, .batch_invariant = model_only});
    const auto failure = failure_of([&] { server.wait("g"); });
    return failure ? failure->message() : std::string();
  };
  for (const bool server_wide : {false, true})
    EXPECT_NE(refused(server_wide, !server_wide, "auto").find("have one granularity"),
              std::string::npos);
  EXPECT_EQ(refused(true, true, "stitch"), "");
  fs::remove(path);
}

TEST_F(Stub, TheGpusMemoryIsNotHandedOutAsTheHosts) {
  MODEL(made);
  Context context(*made);
  unsigned long long at = 0;
  ASSERT_EQ(cuMemAlloc_v2(&at, kMegabyte), 0);
  context.bind_output("y", {reinterpret_cast<std::byte*>(at), kMegabyte});
  context.run();
  const auto refused = failure_of([&] { context.output<float>("y"); });
  ASSERT_TRUE(refused) << "a span over the GPU's memory";
  EXPECT_EQ(refused->kind(), FailureKind::kUsage);
  EXPECT_NE(refused->message().find("'y' is bound to the GPU's memory"), std::string::npos)
      << refused->what();
  std::vector<float> host(kMegabyte / 4);
  context.bind_output("y", std::as_writable_bytes(std::span(host)));
  context.run();
  EXPECT_EQ(context.output<float>("y").data(), host.data());
  context.unbind_output("y");
  context.run();
  EXPECT_NE(context.output<float>("y").data(), host.data());
  context.wait();
  EXPECT_EQ(cuMemFree_v2(at), 0);
}

}  // namespace
