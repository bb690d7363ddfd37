/// base/test/apart.h — a test of this program in a process of its own: for what a process does not
/// recover from, as a GPU's context after a trap, and for what might crash or hang. For tests only
/// (it speaks googletest).
///
///   TEST(Watch, DISABLED_Case) { ... }                              does it, and checks what can
///   be seen from inside TEST(Watch, Case) { EXPECT_TRUE(passes_apart("Watch.DISABLED_Case",
///   {"NAME=value"})); }
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "base/process.h"

namespace obelisk {

struct Apart {
  int status = 0;  // 124: it took too long; 128 + N: signal N ended it
  std::string text;
};

/// Runs the test of that name, with more variables in its environment and without those that pick
/// tests here.
inline Apart run_apart(const std::string& test, const std::vector<std::string>& variables = {},
                       int seconds = 120) {
  auto folder = TemporaryFolder::create();
  if (!folder.ok()) return {127, folder.error().text()};
  std::vector<std::string> words = {find_program("env")};
  for (const char* ours : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_SHARD_STATUS_FILE",
                           "GTEST_OUTPUT", "GTEST_BRIEF"})
    words.insert(words.end(), {"-u", ours});
  words.insert(words.end(), variables.begin(), variables.end());
  words.insert(words.end(),
               {"timeout", "--kill-after=5", std::to_string(seconds),
                std::filesystem::read_symlink("/proc/self/exe").string(),
                "--gtest_also_run_disabled_tests", "--gtest_color=no", "--gtest_filter=" + test});
  const std::string log = folder->path() + "/said";
  Apart ended{.status = run_program(words, log, *folder)};
  if (auto said = read_file(log); said.ok())
    ended.text = std::move(*said);
  else
    ended.text = said.error().text();
  return ended;
}

/// Whether the test ran and passed, and its process ended by itself. What it measured, lines of
/// JSON, is said here as well.
inline testing::AssertionResult passes_apart(const std::string& test,
                                             const std::vector<std::string>& variables = {},
                                             int seconds = 120) {
  const Apart ended = run_apart(test, variables, seconds);
  std::istringstream lines(ended.text);
  std::string quoted;
  for (std::string line; std::getline(lines, line); quoted += "  | " + line + "\n")
    if (line.starts_with("{\"")) printf("%s\n", line.c_str());
  fflush(stdout);
  if (ended.status == 0 && ended.text.find("[  PASSED  ] 1 test.") != std::string::npos)
    return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << test << " in a process of its own ended with status " << ended.status
         << "; wanted: 0, and that it passed. It said:\n"
         << quoted;
}

}  // namespace obelisk
