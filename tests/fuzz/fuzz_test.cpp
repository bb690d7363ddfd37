// Replays the corpora: every kept case is answered.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/base.h"
#include "fuzz/fuzz.h"

namespace obelisk::fuzz {

std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

namespace {

TEST(Fuzz, EveryKeptCaseIsAnswered) {
  ASSERT_FALSE(targets().empty());
  for (const Target& target : targets()) {
    const std::filesystem::path folder =
        std::filesystem::path(OBELISK_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
    ASSERT_TRUE(std::filesystem::is_directory(folder)) << folder << " is missing";
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    EXPECT_FALSE(files.empty()) << folder;
    for (const auto& file : files) {
      SCOPED_TRACE(file);
      const std::string bytes = read_file(file).value();
      target.run(std::as_bytes(std::span(bytes.data(), bytes.size())));
      target.run({});
    }
  }
}

}  // namespace
}  // namespace obelisk::fuzz
