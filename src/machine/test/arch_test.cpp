// Architectures as numbers, what follows from them, and the strategies that they allow.
#include <gtest/gtest.h>

#include "machine/machine.h"

namespace obelisk::machine {
namespace {

TEST(Arch, IsReadAndWritten) {
  EXPECT_EQ(parse_arch("sm_90a"), (Arch{9, 0, 'a'}));
  EXPECT_EQ(parse_arch("sm_80"), (Arch{8, 0}));
  EXPECT_EQ(parse_arch("sm_100a"), (Arch{10, 0, 'a'}));
  EXPECT_EQ(parse_arch("sm_121f"), (Arch{12, 1, 'f'}));
  for (const char* none : {"", "cpu", "sm_", "sm_9", "sm_a", "sm_09", "sm_90b", "sm_90aa",
                           "sm_1000", "sm_-90", "90a", "sm_ 90"})
    EXPECT_FALSE(parse_arch(none)) << none;
  for (const Arch& arch : architectures())
    EXPECT_EQ(parse_arch(to_string(arch)), arch) << to_string(arch);
}

TEST(Arch, CodeRunsOnItsOwnAndPlainCodeOnLaterMinorVersions) {
  EXPECT_TRUE(runs({9, 0, 'a'}, {9, 0, 'a'}));
  EXPECT_FALSE(runs({10, 0, 'a'}, {9, 0, 'a'}));
  EXPECT_FALSE(runs({10, 3, 'a'}, {10, 0, 'a'}));
  EXPECT_TRUE(runs({8, 9}, {8, 0}));
  EXPECT_FALSE(runs({8, 0}, {8, 9}));
  EXPECT_TRUE(runs({9, 0, 'a'}, {9, 0}));
  EXPECT_FALSE(runs({9, 0, 'a'}, {8, 0}));
}

TEST(Arch, FeaturesFollowFromTheNumbers) {
  for (const Arch& arch : architectures()) {
    const auto machine = gpu(arch);
    ASSERT_TRUE(machine.ok()) << to_string(arch);
    const Features& has = machine->features;
    const bool hopper_or_later = arch.major >= 9;
    EXPECT_EQ(has.tma, hopper_or_later) << machine->name;
    EXPECT_EQ(has.clusters, hopper_or_later) << machine->name;
    EXPECT_EQ(has.pdl, hopper_or_later) << machine->name;
    EXPECT_EQ(has.wgmma, (arch == Arch{9, 0, 'a'})) << machine->name;
    EXPECT_EQ(machine->gang > 0, has.clusters) << machine->name;
    EXPECT_GT(machine->sms, 0) << machine->name;
    EXPECT_GE(machine->scratchpad, 64_KiB) << machine->name;
  }
  EXPECT_EQ(gpu("sm_90a", 7)->sms, 7);
}

TEST(Arch, AnUnknownOneIsRefusedWithThoseThatThereAre) {
  for (const char* name : {"sm_70", "sm_90", "sm_12345", "nothing"}) {
    const auto machine = gpu(std::string(name));
    ASSERT_FALSE(machine.ok()) << name;
    EXPECT_EQ(machine.error().code, Code::kUsage);
    for (const Arch& arch : architectures())
      EXPECT_NE(machine.error().hint.find(to_string(arch)), std::string::npos)
          << machine.error().hint;
  }
  EXPECT_EQ(gpu(std::string("sm_90")).error().hint.find("sm_90a is the one"), 0u);
}

TEST(Strategy, FollowsFromMachineAndWishes) {
  const Machine hopper = *gpu("sm_90a"), ampere = *gpu("sm_80");
  const Strategy mono = strategy_for(hopper, {});
  EXPECT_TRUE(mono.one_kernel() && mono.dataflow() && !mono.own_kernels);
  EXPECT_EQ(mono.min_grid_bytes, Bytes{});
  EXPECT_FALSE(strategy_for(hopper, {.dataflow = false}).dataflow());
  EXPECT_FALSE(strategy_for(hopper, {.batch_invariant = true}).dataflow());
  EXPECT_FALSE(strategy_for(ampere, {}).dataflow());
  for (const Granularity each : {Granularity::kOp, Granularity::kStitch}) {
    const Strategy kernels = strategy_for(hopper, {.granularity = each});
    EXPECT_TRUE(kernels.own_kernels && !kernels.one_kernel() && !kernels.dataflow());
    EXPECT_EQ(kernels.stitches(), each == Granularity::kStitch);
    EXPECT_EQ(kernels.min_grid_bytes, hopper.scratchpad * hopper.sms);
  }
  const Strategy threads = strategy_for(cpu(2), {.granularity = Granularity::kOp, .tf32 = true});
  EXPECT_EQ(threads.granularity, Granularity::kThreads);
  EXPECT_TRUE(threads.tf32 && threads.stitches());
}

TEST(Strategy, WgmmaIsOfItsArchitectureAndOfBatchesThatMayDiffer) {
  EXPECT_TRUE(takes_async_mma(*gpu("sm_90a"), {}));
  EXPECT_FALSE(takes_async_mma(*gpu("sm_90a"), {.batch_invariant = true}));
  for (const char* other : {"sm_80", "sm_100a", "sm_120a"})
    EXPECT_FALSE(takes_async_mma(*gpu(std::string(other)), {})) << other;
}

TEST(Granularity, IsReadAndWritten) {
  for (const Granularity each : {Granularity::kOp, Granularity::kStitch, Granularity::kMono})
    EXPECT_EQ(parse_granularity(to_string(each)), each);
  EXPECT_FALSE(parse_granularity("auto") || parse_granularity("") || parse_granularity("threads"));
}

}  // namespace
}  // namespace obelisk::machine
