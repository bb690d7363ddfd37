// What is copied between the host's pinned memory and a GPU's: neighbours are one copy.
#include "runtime/cuda/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace obelisk::runtime::cuda {
namespace {

TEST(Staging, NeighboursOnBothSidesAreOneCopy) {
  std::vector<std::byte> host(1 << 16);
  constexpr DevicePointer kDevice = 1 << 20;
  const auto copy = [&](size_t at, size_t bytes) {
    return StagedCopy{host.data() + at, kDevice + at, bytes};
  };
  std::vector<StagedCopy> copies = {copy(512, 40), copy(0, 256), copy(256, 100)};
  join_neighbours(copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].host, host.data());
  EXPECT_EQ(copies[0].bytes, 552u);
  copies = {copy(0, 256), copy(768, 256)};  // a whole stretch between them is not theirs
  join_neighbours(copies);
  EXPECT_EQ(copies.size(), 2u);
  copies = {copy(0, 256), copy(256, 256)};
  copies[1].host += 256;  // side by side on the GPU alone
  join_neighbours(copies);
  EXPECT_EQ(copies.size(), 2u);
  copies = {copy(0, 256), copy(256, 256)};
  copies[1].alone = true;  // a caller's memory may end where it begins
  join_neighbours(copies);
  EXPECT_EQ(copies.size(), 2u);
  copies.clear();
  join_neighbours(copies);
  EXPECT_TRUE(copies.empty());
}

TEST(Staging, EveryByteThatIsAskedForIsCopiedOnceAndNoStretchOfAnother) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 1000; ++turn) {
    constexpr size_t kStretches = 40;
    std::vector<std::byte> host(kStretches * kStagedAlign);
    std::vector<int> wanted(kStretches, 0), got(kStretches * kStagedAlign, 0);
    std::vector<size_t> sizes(kStretches);
    std::vector<StagedCopy> copies;
    for (size_t k = 0; k < kStretches; ++k) {
      sizes[k] = 1 + random() % static_cast<size_t>(kStagedAlign);
      wanted[k] = random() % 3 != 0;
      if (wanted[k])
        copies.push_back({host.data() + k * kStagedAlign, 4096 + k * kStagedAlign, sizes[k]});
    }
    std::shuffle(copies.begin(), copies.end(), random);
    join_neighbours(copies);
    for (const StagedCopy& each : copies) {
      const auto at = static_cast<size_t>(each.host - host.data());
      ASSERT_EQ(each.device, 4096 + at);
      for (size_t k = 0; k < each.bytes; ++k) ++got[at + k];
    }
    for (size_t k = 0; k < kStretches; ++k)
      for (size_t byte = 0; byte < static_cast<size_t>(kStagedAlign); ++byte) {
        const int count = got[k * kStagedAlign + byte];
        ASSERT_TRUE(wanted[k] ? byte < sizes[k] ? count == 1 : count <= 1 : count == 0);
      }
  }
}

}  // namespace
}  // namespace obelisk::runtime::cuda
