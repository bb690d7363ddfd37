#include "serve/lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace obelisk::serve {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kLong(60);

// Everything that several threads give to lanes is run once, whether idle lanes sleep at once, look
// for work for a moment, or look for longer than the pauses between the works.
TEST(Lanes, RunEverythingOnce) {
  for (const std::chrono::microseconds spin : {0us, 20us, 100'000us}) {
    constexpr int kGivers = 3, kWorks = 2000;
    std::vector<std::atomic<int>> ran(kGivers * kWorks);
    {
      Lanes lanes(4, {.all = spin, .longer = 20 * spin, .some = 2});
      std::vector<std::thread> givers;
      for (int giver = 0; giver < kGivers; ++giver)
        givers.emplace_back([&, giver] {
          for (int k = 0; k < kWorks; ++k) {
            lanes.run([&ran, at = giver * kWorks + k] { ++ran[static_cast<size_t>(at)]; });
            if (k % 100 == 0) std::this_thread::sleep_for(50us);
          }
        });
      for (std::thread& giver : givers) giver.join();
    }
    for (const std::atomic<int>& count : ran) ASSERT_EQ(count, 1) << "spin " << spin.count();
  }
}

// A lane that has stopped looking is woken.
TEST(Lanes, WakeAfterTheyHaveStoppedLooking) {
  Lanes lanes(1, {.all = 10us});
  for (int k = 0; k < 50; ++k) {
    std::promise<void> ran;
    lanes.run([&] { ran.set_value(); });
    ASSERT_EQ(ran.get_future().wait_for(10s), std::future_status::ready);
    if (k % 5 == 0) std::this_thread::sleep_for(1ms);
  }
}

// While one works two others look for what comes next, as long as there are so many; a thread that
// was too late for a work looks on.
TEST(Lanes, SomeLookWhileOthersWork) {
  Lanes lanes(4, {.all = 10us, .longer = kLong, .some = 2});
  const auto look = [&](int count) {
    const auto until = std::chrono::steady_clock::now() + kLong;
    while (lanes.looking() != count && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(10us);
    return lanes.looking() == count;
  };
  for (int k = 0; k < 20; ++k) lanes.run([] {});
  ASSERT_TRUE(look(2));
  std::promise<void> ends;
  const std::shared_future<void> end = ends.get_future().share();
  for (const int left : {2, 2, 1, 0}) {
    std::promise<void> begun;
    lanes.run([&begun, end] { begun.set_value(), end.wait(); });
    begun.get_future().wait();
    EXPECT_TRUE(look(left)) << lanes.looking();
  }
  ends.set_value();
  EXPECT_TRUE(look(2)) << lanes.looking();
}

// Threads stop looking for work 2 ms after the last one. A thread that is scheduled late may still
// look once more, so the test waits for 500 polls in a row that see none; threads that kept waking
// each other would be seen every 2 ms.
TEST(Lanes, NobodyLooksForWorkBehindAPause) {
  Lanes lanes(4, {.all = 10us, .longer = 2ms, .some = 2});
  for (int k = 0; k < 20; ++k) lanes.run([] {});
  for (int k = 0; k < 5; ++k) {  // one that looks wakes another, which takes this one's place
    std::this_thread::sleep_for(100us);
    lanes.run([] {});
  }
  constexpr int kPause = 500;  // times that none looked, one after the other
  int none = 0;
  const auto until = std::chrono::steady_clock::now() + kLong;
  while (none < kPause && std::chrono::steady_clock::now() < until) {
    none = lanes.looking() == 0 ? none + 1 : 0;
    std::this_thread::sleep_for(100us);
  }
  EXPECT_EQ(none, kPause);
}

}  // namespace
}  // namespace obelisk::serve
