#include "schedule/local_search.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace obelisk::schedule {
namespace {

Kernel kernel(double us, int64_t blocks) {
  return {
      "k", {.threads = 256, .registers = 32, .blocks = blocks, .nanos = us * 1000}, {}, "", true};
}

/// Believes the prediction.
Judge by_prediction(double& least) {
  return [&least](const Dispatch& candidate) -> Result<bool> {
    if (candidate.predicted_nanos >= least) return false;
    least = candidate.predicted_nanos;
    return true;
  };
}

TEST(LocalSearch, IndependentKernelsLeaveTheirOneLane) {
  const Dag dag(3);
  const std::vector<Kernel> kernels(3, kernel(1, 1));
  const DispatchOptions options{.policy = "sequential", .sms = 4};
  const auto from = dispatch(dag, kernels, {0, 0, 0}, options);
  ASSERT_TRUE(from.ok());
  double least = from->predicted_nanos;
  EXPECT_EQ(least, 3000);
  const auto found = local_search(dag, kernels, *from, options, {.seconds = 60, .judged = 50},
                                  by_prediction(least));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->dispatch.predicted_nanos, 1000);
  EXPECT_EQ(found->dispatch.lanes, 3);
  EXPECT_GE(found->better, 2);
}

TEST(LocalSearch, LanesStayWithinTheirBound) {
  const Dag dag(6);
  const std::vector<Kernel> kernels(6, kernel(1, 1));
  DispatchOptions options{.policy = "sequential", .sms = 8};
  const auto from = dispatch(dag, kernels, std::vector<int>(6, 0), options);
  options.streams = 2;
  double least = from->predicted_nanos;
  const auto found = local_search(dag, kernels, *from, options, {.seconds = 60, .judged = 200},
                                  by_prediction(least));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->dispatch.lanes, 2);
  EXPECT_EQ(found->dispatch.predicted_nanos, 3000);
}

TEST(LocalSearch, OfRandomGraphsNothingGetsWorseAndTheSameLimitsFindTheSame) {
  std::mt19937 random(7);
  int better = 0;
  for (int round = 0; round < 40; ++round) {
    const int count = 3 + static_cast<int>(random() % 30);
    Dag dag(count);
    for (int k = 0; k < count; ++k) {
      const int a = static_cast<int>(random() % static_cast<unsigned>(count)),
                b = static_cast<int>(random() % static_cast<unsigned>(count));
      if (a != b) dag.add(std::min(a, b), std::max(a, b));
    }
    std::vector<Kernel> kernels;
    for (int k = 0; k < count; ++k) {
      kernels.push_back(kernel(1 + static_cast<double>(random() % 20), 1 + random() % 100));
      kernels.back().launches = random() % 8 != 0;
    }
    const DispatchOptions options{.policy = "opara", .sms = 64, .node_nanos = 500};
    const auto from = dispatch(dag, kernels, std::vector<int>(count, 0), options);
    ASSERT_TRUE(from.ok());
    std::vector<std::string> texts;
    for (int twice = 0; twice < 2; ++twice) {
      double least = from->predicted_nanos;
      const auto found = local_search(dag, kernels, *from, options, {.seconds = 60, .judged = 40},
                                      by_prediction(least));
      ASSERT_TRUE(found.ok()) << found.error().text();
      EXPECT_LE(found->dispatch.predicted_nanos, from->predicted_nanos);
      EXPECT_EQ(found->dispatch.predicted_nanos, least);
      EXPECT_TRUE(validate_dispatch(dag, kernels, found->dispatch).ok());
      texts.push_back(print_json(found->dispatch, kernels));
      better += found->better > 0;
    }
    EXPECT_EQ(texts[0], texts[1]);
  }
  EXPECT_GT(better, 20);
}

TEST(LocalSearch, NoCandidateIsJudgedTwice) {
  const Dag dag(3);
  const std::vector<Kernel> kernels(3, kernel(1, 1));
  const auto from = dispatch(dag, kernels, {0, 0, 0}, {.policy = "sequential", .sms = 4});
  std::set<std::string> seen;
  const auto found = local_search(dag, kernels, *from, {.streams = 2, .sms = 4}, {.seconds = 60},
                                  [&](const Dispatch& candidate) -> Result<bool> {
                                    std::string text;
                                    for (const Dispatched& each : candidate.kernels)
                                      text += fmt::format("{}:{} ", each.kernel, each.lane);
                                    EXPECT_TRUE(seen.insert(text).second) << text;
                                    return false;
                                  });
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->judged, static_cast<int>(seen.size()));
  EXPECT_EQ(found->better, 0);
}

TEST(LocalSearch, TheJudgesErrorEndsIt) {
  const Dag dag(2);
  const std::vector<Kernel> kernels(2, kernel(1, 1));
  const auto from = dispatch(dag, kernels, {0, 0}, {.policy = "sequential", .sms = 4});
  const auto found = local_search(
      dag, kernels, *from, {.sms = 4}, {.seconds = 60}, [](const Dispatch&) -> Result<bool> {
        return Error{Code::kDevice, "schedule", "the device is lost", "", ""};
      });
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().message, "the device is lost");
}

}  // namespace
}  // namespace obelisk::schedule
