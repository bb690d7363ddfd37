#include "serve/door/delivery.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace obelisk::serve::door {
namespace {

using namespace std::chrono_literals;

TEST(DeliveryTime, FollowsWhatAnswersTake) {
  DeliveryTime delivery;
  EXPECT_EQ(delivery.before(40ms), 40ms);
  for (int k = 0; k < 400; ++k) delivery.note(k % 2 ? 1ms : 3ms);
  EXPECT_GT(delivery.expected(), 3ms);  // the mean and twice the mean deviation: 2 and 1 ms
  EXPECT_LT(delivery.expected(), 5ms);
  EXPECT_EQ(delivery.before(40ms), 40ms - delivery.expected());
  EXPECT_EQ(delivery.before(8ms), 7ms) << "at most an eighth";
  for (int k = 0; k < 400; ++k) delivery.note(10us);
  EXPECT_LT(delivery.expected(), 20us);
}

TEST(DeliveryTime, IsNotedByManyThreads) {
  DeliveryTime delivery;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int k = 0; k < 10'000; ++k) delivery.note(1ms);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(delivery.expected(), 990us);
  EXPECT_LT(delivery.expected(), 1010us);
}

}  // namespace
}  // namespace obelisk::serve::door
