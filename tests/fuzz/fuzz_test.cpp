// Replays the corpora: every kept case is answered.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/base.h"
#include "frontends/onnx/test/fuzz_case.h"
#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"
#include "runtime/runtime.h"

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

std::string kept(const std::string& name) {
  return read_file(std::string(OBELISK_SOURCE_DIR) + "/tests/fuzz/corpus/" + name).value();
}

/// What many mutations of one case, one after the other, did.
struct Mutated {
  std::vector<std::string> cases;
  int given_up = 0;  // the whole file was to be scrambled
};
Mutated mutations_of(const std::string& name, decltype(mutate_obk)* mutate) {
  constexpr size_t kMost = 8192, kMutations = 2000;
  const std::string first = kept(name);
  Mutated out;
  Dice dice(7);
  std::string bytes = first;
  for (size_t k = 0; k < kMutations; ++k) {
    if (k % 20 == 0) bytes = first;  // else little is left of it
    bytes = mutate(bytes, kMost, dice, [&](std::string some, size_t most) {
      out.given_up += most == kMost;
      if (most != kMost && !some.empty()) some[dice.below(some.size())] ^= 1;
      return some;
    });
    EXPECT_LE(bytes.size(), kMost);
    out.cases.push_back(bytes);
  }
  return out;
}

TEST(Fuzz, MutatedCompiledFilesHaveRightChecksums) {
  const Mutated mutated = mutations_of("obk/hostile_portable", mutate_obk);
  EXPECT_LT(mutated.given_up, 400);  // one in 16 is meant
  int taken = 0, graphs = 0;
  for (const std::string& bytes : mutated.cases) {
    const auto owner = std::make_shared<std::string>(bytes);
    const auto compiled = runtime::parse_obk(owner->data(), owner->size(), owner, "mutated", true);
    if (!compiled.ok()) {
      EXPECT_EQ(compiled.error().text().find("checksum"), std::string::npos)
          << compiled.error().text();
      EXPECT_EQ(compiled.error().text().find("section"), std::string::npos)
          << compiled.error().text();
      continue;
    }
    ++taken;
    const auto graph = compiled->graph();
    if (!graph.ok()) continue;
    ++graphs;
    EXPECT_TRUE(graph::verify(*graph).ok());
  }
  // Refusals by what the tables mean, and files that are taken: both sides of the reader's checks.
  EXPECT_GT(taken, 100);
  EXPECT_LT(taken, 1900);
  EXPECT_GT(graphs, 20);
}

TEST(Fuzz, MutatedModelsAreStillMessages) {
  const Mutated mutated = mutations_of("onnx/unaligned_weight", mutate_onnx);
  EXPECT_LT(mutated.given_up, 400);
  std::set<std::string> answers;
  int imported = 0;
  for (const std::string& bytes : mutated.cases) {
    const std::shared_ptr<char[]> owner(new char[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), owner.get());
    const auto model = frontends::onnx::read_model_bytes({owner.get(), bytes.size()}, owner,
                                                         "/nowhere/at/all", "mutated");
    if (!model.ok()) {
      answers.insert(model.error().message);
      continue;
    }
    const auto graph = frontends::import_onnx(*model, {.max_nodes = 100, .fold_bytes = 1 << 20});
    imported += graph.ok();
    if (!graph.ok()) answers.insert(graph.error().message);
  }
  EXPECT_GT(imported, 50);
  EXPECT_GT(answers.size(), 20u);  // many reasons, not one
}

}  // namespace
}  // namespace obelisk::fuzz
