#include "base/parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace obelisk {
namespace {

TEST(Parallel, EachJobRunsOnce) {
  std::vector<std::atomic<int>> runs(1000);
  for_each_on_all_cores(runs.size(), [&](size_t k) { ++runs[k]; });
  for (const auto& count : runs) EXPECT_EQ(count, 1);
  for_each_on_all_cores(0, [&](size_t) { ADD_FAILURE(); });
}

TEST(Parallel, TheCallerGetsWhatAJobThrows) {
  for (const size_t bad : {0u, 7u, 99u}) {
    try {
      for_each_on_all_cores(100, [&](size_t k) {
        if (k == bad) throw std::runtime_error("job " + std::to_string(k));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "job " + std::to_string(bad));
    }
  }
}

TEST(Parallel, PartsCoverARange) {
  std::atomic<int64_t> sum{0};
  for_each_part_on_all_cores(3'000'001, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 3'000'001);
}

}  // namespace
}  // namespace obelisk
