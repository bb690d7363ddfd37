#include "base/test/apart.h"

#include <csignal>
#include <cstdlib>
#include <thread>

namespace obelisk {
namespace {

TEST(Apart, DISABLED_Passes) {
  const char* said = getenv("OBELISK_APART");
  ASSERT_TRUE(said) << "the variable is not there";
  EXPECT_EQ(std::string(said), "a value");
  EXPECT_EQ(getenv("GTEST_TOTAL_SHARDS"), nullptr);
}
TEST(Apart, DISABLED_Fails) { EXPECT_EQ(getenv("OBELISK_APART"), std::string("another value")); }
TEST(Apart, DISABLED_IsSkipped) { GTEST_SKIP() << "for a reason"; }
TEST(Apart, DISABLED_Aborts) { abort(); }
TEST(Apart, DISABLED_Hangs) { std::this_thread::sleep_for(std::chrono::seconds(100)); }
TEST(Apart, DISABLED_PassesAndFallsAtTheEnd) {
  atexit([] { raise(SIGKILL); });
}

TEST(Apart, OnlyAPassIsAPass) {
  // As one shard of a run that would leave all of these to another one.
  setenv("GTEST_TOTAL_SHARDS", "50", 1), setenv("GTEST_SHARD_INDEX", "49", 1);
  const std::vector<std::string> variable = {"OBELISK_APART=a value"};
  EXPECT_TRUE(passes_apart("Apart.DISABLED_Passes", variable));
  unsetenv("GTEST_TOTAL_SHARDS"), unsetenv("GTEST_SHARD_INDEX");
  const auto failed = passes_apart("Apart.DISABLED_Fails", variable);
  EXPECT_FALSE(failed);
  EXPECT_NE(std::string(failed.message()).find("another value"), std::string::npos)
      << failed.message();
  EXPECT_FALSE(passes_apart("Apart.DISABLED_IsSkipped"));
  EXPECT_FALSE(passes_apart("Apart.NoSuchTest"));
  EXPECT_FALSE(passes_apart("Apart.DISABLED_PassesAndFallsAtTheEnd"));
  EXPECT_EQ(run_apart("Apart.DISABLED_PassesAndFallsAtTheEnd").status, 128 + SIGKILL);
  EXPECT_EQ(run_apart("Apart.DISABLED_Aborts").status, 128 + SIGABRT);
  EXPECT_EQ(run_apart("Apart.DISABLED_Hangs", {}, 1).status, 124);
}

}  // namespace
}  // namespace obelisk
