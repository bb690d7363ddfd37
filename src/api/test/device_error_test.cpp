// A GPU whose program hangs, as the library's users see it: a Failure of kind kDevice that says
// what was waited for, from then on of every run and of every new Context, and no crash. In a
// process of its own, since the GPU's context does not recover. Skipped where no GPU is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "obelisk/obelisk.h"

namespace {

using obelisk::Context;
using obelisk::Failure;
using obelisk::FailureKind;
using obelisk::Model;

Model softmax() {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("obelisk-device-error-test-" + std::to_string(getpid()) + ".ir");
  std::ofstream(path) << R"(graph "net" {
  in %0 "x": f32[128,384]
  const %1: i64[1] = [0]
  %2: f32[128,384] = Softmax(%0) {axis = -1}
  %3: f32[1,384] = ReduceMax(%2, %1) {keepdims = 1}
  %4 "p": f32[128,384] = Sub(%2, %3)
  out %4 "p"
})";
  struct Gone {
    std::string path;
    ~Gone() { std::filesystem::remove(path); }
  } gone{path};
  return Model::compile(
      path, {.target = "cuda", .granularity = "mono", .watchdog = true, .verify = false});
}

/// What the call says, or that it says nothing.
template <typename F>
std::string failure_of(F&& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return failure.kind() == FailureKind::kDevice ? failure.what()
                                                  : std::string("another kind: ") + failure.what();
  }
  return "it did not fail";
}

/// 0: all is as it should be; what was said goes to the standard error.
int run_one_that_hangs() {
  setenv("OBELISK_WATCHDOG_CLOCKS", "1", 1);  // any wait at all counts as hanging
  const auto model = std::make_unique<Model>(softmax());
  auto context = std::make_unique<Context>(*model);
  const std::string first = failure_of([&] { context->run(); });
  const std::string again = failure_of([&] { context->run(); });
  const std::string made = failure_of([&] { Context(*model).run(); });
  context.reset();
  std::cerr << first << "\nthe same context: " << again << "\nanother one: " << made << "\n";
  return first == again && made.find("CUDA_ERROR_") != std::string::npos ? 0 : 1;
}

TEST(DeviceError, OfAHangIsAFailureThatStays) {
  if (getenv("OBELISK_GPU_FEW")) GTEST_SKIP() << "a tool reports every trap";
  try {
    softmax();
  } catch (const Failure& failure) {
    ASSERT_EQ(failure.kind(), FailureKind::kDevice) << failure.what();
    GTEST_SKIP() << "no GPU is here: " << failure.what();
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the program anew, for this test alone
  EXPECT_EXIT(
      exit(run_one_that_hangs()), testing::ExitedWithCode(0),
      "SM [0-9]+ waits for .* at 0x[0-9a-f]+ before task [0-9]+ .*: it wants [0-9]+, has [0-9]+");
}

}  // namespace
