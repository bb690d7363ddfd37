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

/// A graph of kernels: each of `readers` works reads the inputs, of so many floats, the last one
/// writes the output.
Program kernels(int64_t inputs, int64_t outputs, int readers) {
  Program program;
  program.granularity = machine::Granularity::kStitch;
  program.bodies.resize(2);
  program.bodies[1].traits.tiles = codegen::kGemmTile;
  program.inputs = {{.name = "x", .type = {DType::f32, {inputs}}},
                    {.name = "i", .type = {DType::i64, {1}}}};
  program.outputs = {{.name = "y", .type = {DType::f32, {outputs}}}};
  for (int k = 0; k < readers; ++k)
    program.works.push_back(
        {.body = 0, .operands = {{BufferKind::kInput, 0}, {BufferKind::kInput, 1}, {}}});
  program.works.back().operands.push_back({BufferKind::kOutput, 0});
  return program;
}

TEST(ZeroCopy, OfFewKilobytesThatFewKernelsTouch) {
  EXPECT_TRUE(zero_copy_inputs(kernels(510, 4096, 2)));
  EXPECT_FALSE(zero_copy_inputs(kernels(511, 4096, 2))) << "with the index, more than 2 KiB";
  EXPECT_FALSE(zero_copy_inputs(kernels(4, 4096, 3))) << "three kernels would wait for the bus";
  Program custom = kernels(4, 4096, 1);
  custom.works[0].body = -1;  // an op without a loop form
  EXPECT_TRUE(zero_copy_inputs(custom));
  Program product = kernels(4, 4096, 1);
  product.works[0].body = 1;
  EXPECT_FALSE(zero_copy_inputs(product)) << "its tiles would wait for the bus again and again";
  EXPECT_TRUE(zero_copy_outputs(product));
  EXPECT_TRUE(zero_copy_outputs(kernels(1000, 4096, 3)));
  EXPECT_FALSE(zero_copy_outputs(kernels(1000, 4097, 3))) << "more than 16 KiB";
}

TEST(ZeroCopy, NotWhereMoreThanItsKernelTouchesIt) {
  Program program = kernels(4, 4, 2);
  program.works[0].operands.push_back({BufferKind::kOutput, 0});  // reads what the other writes
  EXPECT_FALSE(zero_copy_outputs(program));
  EXPECT_TRUE(zero_copy_inputs(program));
  program = kernels(4, 4, 1);
  program.outputs[0].in_place_of = 0;
  EXPECT_FALSE(zero_copy_outputs(program) || zero_copy_inputs(program));
  program = kernels(4, 4, 1);
  program.copies = {{.output = 0, .from = {BufferKind::kInput, 0}}};
  EXPECT_FALSE(zero_copy_outputs(program) || zero_copy_inputs(program));
  program = kernels(4, 4, 1);
  program.granularity = machine::Granularity::kMono;
  EXPECT_FALSE(zero_copy_outputs(program) || zero_copy_inputs(program));
}

}  // namespace
}  // namespace obelisk::runtime::cuda
