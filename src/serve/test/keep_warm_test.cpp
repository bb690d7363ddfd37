#include "serve/keep_warm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace obelisk::serve {
namespace {

using namespace std::chrono_literals;

bool comes(const std::function<bool()>& what) {
  for (int k = 0; k < 10'000 && !what(); ++k) std::this_thread::sleep_for(1ms);
  return what();
}

TEST(KeepWarm, BeatsAgainAndAgainOnceSomebodyAskedAndNotBefore) {
  std::atomic<int> beats{0};
  KeepWarm warm(100us, [&] { return ++beats, true; }, 1h);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(beats, 0);
  warm.asked();
  EXPECT_TRUE(comes([&] { return beats >= 5; }));
}

TEST(KeepWarm, DoesNotBeatWhileAnythingRuns) {
  std::atomic<int> beats{0};
  KeepWarm warm(20us, [&] { return ++beats, true; }, 1h);
  warm.asked();
  for (int k = 0; k < 20; ++k) {
    const int before = beats;
    EXPECT_TRUE(comes([&] { return beats > before; })) << "idle again, it beats";
    warm.begins(), warm.begins(), warm.ends();
    const int then = beats;
    std::this_thread::sleep_for(4ms);
    EXPECT_LE(beats, then + 1) << "only the beat that was decided on before the run began";
    warm.ends();
  }
}

TEST(KeepWarm, StopsWhenNobodyAsksAndBeginsWhenSomebodyDoes) {
  std::atomic<int> beats{0};
  KeepWarm warm(100us, [&] { return ++beats, true; }, 5ms);
  for (int k = 0; k < 5; ++k) {
    const int before = beats;
    EXPECT_TRUE(comes([&] {
      warm.asked();
      return beats > before;
    }));
    std::this_thread::sleep_for(50ms);  // longer than requests count as lately
    const int then = beats;
    std::this_thread::sleep_for(20ms);
    EXPECT_LE(beats, then + 1) << "only a beat that was decided on before";
  }
}

TEST(KeepWarm, EndsWithTheFirstBeatThatFailsAndIsNothingWithoutATime) {
  std::atomic<int> beats{0};
  {
    KeepWarm warm(50us, [&] { return ++beats, false; }, 1h);
    warm.asked();
    EXPECT_TRUE(comes([&] { return beats == 1; }));
    std::this_thread::sleep_for(10ms);
    warm.asked();
  }
  EXPECT_EQ(beats, 1);
  KeepWarm never(0us, [&] { return ++beats, true; });
  never.asked(), never.begins(), never.ends();
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(beats, 1);
}

}  // namespace
}  // namespace obelisk::serve
