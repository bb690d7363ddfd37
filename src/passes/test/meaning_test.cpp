// Whatever the graph, a pass keeps its meaning; run again, a pass that stands before `expand`
// changes nothing more.
#include "graph/compare.h"

#include <gtest/gtest.h>

#include "graph/test_cases.h"
#include "passes/passes.h"

namespace obelisk::passes {
namespace {

using graph::Graph;

// In f64, so that what passes may change, the order of roundings, is far below what they may not.
constexpr ops::Tolerance kAlike{1e-9, 1e-9};
constexpr uint64_t kSeeds = 60;

Graph made(uint64_t seed) {
  graph::RandomOptions options;
  options.nodes = 6 + static_cast<int>(seed % 20);
  options.dtype = DType::f64;
  options.steps = seed % 3 == 0;
  return graph::random_graph(seed, options);
}

void expect_same(const Graph& before, const Graph& after, uint64_t seed,
                 ops::Tolerance alike = kAlike, const graph::Interpretation& how = {}) {
  const Status sound = graph::verify(after);
  ASSERT_TRUE(sound.ok()) << sound.error().text();
  ASSERT_EQ(before.output_names(), after.output_names());
  const std::vector<Tensor> inputs = graph::random_inputs(before, seed);
  const auto want = graph::interpret(before, inputs, how),
             got = graph::interpret(after, inputs, how);
  ASSERT_TRUE(want.ok() && got.ok());
  const std::vector<ops::Tolerance> tolerances{alike};
  const graph::Comparison same = graph::compare(*got, *want, tolerances);
  EXPECT_TRUE(same.ok) << same.text() << "\n" << graph::print(before) << graph::print(after);
}

TEST(Meaning, EachPassKeepsIt) {
  for (const Pass& pass : table()) {
    SCOPED_TRACE(pass.name);
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(seed);
      const Graph graph = made(seed);
      const Result<Graph> after = pass.run(graph);
      ASSERT_TRUE(after.ok()) << after.error().text();
      expect_same(graph, *after, seed);
    }
  }
}

TEST(Meaning, AllPassesTogetherKeepIt) {
  for (uint64_t seed = 1000; seed < 1000 + kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = made(seed);
    Graph after = graph;
    for (const Pass& pass : table()) {
      Result<Graph> next = pass.run(std::move(after));
      ASSERT_TRUE(next.ok()) << next.error().text();
      after = std::move(*next);
    }
    expect_same(graph, after, seed);
  }
}

// The text cases hold the patterns, which random graphs seldom meet.
TEST(Meaning, EachPassKeepsThatOfItsTextCases) {
  constexpr int64_t kMostElements = 1 << 20;  // a case may be about size alone
  for (const Pass& pass : table()) {
    const std::string path = fmt::format("{}/src/passes/test/{}.ir", OBELISK_SOURCE_DIR, pass.name);
    const Result<std::string> text = read_file(path);
    ASSERT_TRUE(text.ok()) << text.error().text();
    for (const graph::TextCase& one : graph::read_cases(*text)) {
      SCOPED_TRACE(fmt::format("{}: {}", pass.name, one.sentence));
      const Result<Graph> graph = graph::parse(one.in);
      ASSERT_TRUE(graph.ok()) << graph.error().text();
      if (graph->type(graph->outputs()[0]).count() > kMostElements) continue;
      const Result<Graph> after = pass.run(*graph);
      ASSERT_TRUE(after.ok()) << after.error().text();
      expect_same(*graph, *after, 7, {1e-4, 1e-4});  // their types are f32
    }
  }
}

// Those of machine_passes that ask nothing of the machine but whether it has such tiles.
TEST(Meaning, MachinePassesKeepIt) {
  const auto parts = [](Graph graph) {
    const auto last = [](const Graph& of) {
      std::vector<bool> stored;
      for (graph::ValueId v = 0; v < of.value_count(); ++v)
        stored.push_back(of.type(v).rank() == 4);
      return stored;
    };
    return split_reductions(std::move(graph), [](const Reduction&) { return int64_t{2}; }, last);
  };
  bool pays = false;  // in turn
  const auto halves = [&](Graph graph) {
    pays = !pays;
    return hoist_halves(std::move(graph), [=](DType, int64_t, int64_t, int64_t) { return pays; });
  };
  const std::pair<const char*, std::function<Result<Graph>(Graph)>> passes[] = {
      {"unflatten_gemm", unflatten_gemm},
      {"hoist_halves", halves},
      {"hoist_maps", hoist_maps},
      {"merge_rotary_norms", merge_rotary_norms},
      {"sink_concatenations", sink_concatenations},
      {"fold_channel_moves", fold_channel_moves},
      {"split_reductions", parts}};
  for (const auto& [name, pass] : passes) {
    for (uint64_t seed = 5000; seed < 5000 + kSeeds; ++seed) {
      SCOPED_TRACE(fmt::format("{} {}", name, seed));
      const Graph graph = made(seed);
      const Result<Graph> after = pass(graph);
      ASSERT_TRUE(after.ok()) << after.error().text();
      expect_same(graph, *after, seed);
    }
    const Result<std::string> text =
        read_file(fmt::format("{}/src/passes/test/{}.ir", OBELISK_SOURCE_DIR, name));
    ASSERT_TRUE(text.ok()) << text.error().text();
    for (const graph::TextCase& one : graph::read_cases(*text)) {
      SCOPED_TRACE(fmt::format("{}: {}", name, one.sentence));
      const Result<Graph> graph = graph::parse(one.in);
      ASSERT_TRUE(graph.ok()) << graph.error().text();
      const Result<Graph> after = pass(*graph);
      ASSERT_TRUE(after.ok()) << after.error().text();
      expect_same(*graph, *after, 7, {1e-3, 1e-3}, {.exact = true});  // some types are f16
    }
  }
}

/// How far 16-bit constants may move the answers of a small graph that is computed exactly.
double rounding_of(Precision precision) {
  return precision == Precision::kFp16 ? 2e-2 : precision == Precision::kBf16 ? 1.5e-1 : 1e-6;
}

TEST(Meaning, APrecisionKeepsItUpToItsRounding) {
  for (const Precision precision : {Precision::kFp32, Precision::kFp16, Precision::kBf16}) {
    SCOPED_TRACE(to_string(*dtype_of(precision)));
    const double alike = rounding_of(precision);
    for (uint64_t seed = 3000; seed < 3000 + kSeeds; ++seed) {
      SCOPED_TRACE(seed);
      graph::RandomOptions options;
      options.nodes = 6 + static_cast<int>(seed % 20);
      const DType models[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
      options.dtype = models[seed % 4];
      const Graph graph = graph::random_graph(seed, options);
      const Result<Graph> after = convert_precision(graph, precision);
      ASSERT_TRUE(after.ok());
      for (size_t k = 0; k < graph.outputs().size(); ++k)
        EXPECT_EQ(graph.type(graph.outputs()[k]), after->type(after->outputs()[k]));
      expect_same(graph, *after, seed, {alike, alike}, {.exact = true});
      const Result<Graph> twice = convert_precision(*after, precision);
      ASSERT_TRUE(twice.ok());
      EXPECT_EQ(graph::print(*after), graph::print(*twice));
    }
  }
}

TEST(Meaning, APrecisionKeepsThatOfItsTextCases) {
  const Result<std::string> text =
      read_file(fmt::format("{}/src/passes/test/convert_precision.ir", OBELISK_SOURCE_DIR));
  ASSERT_TRUE(text.ok());
  for (const graph::TextCase& one : graph::read_cases(*text)) {
    SCOPED_TRACE(one.sentence);
    const Result<Graph> graph = graph::parse(one.in);
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    if (one.sentence.starts_with("A mask") || one.sentence.starts_with("In bf16")) continue;
    const Precision precision = *parse_precision(graph->name);
    const Result<Graph> after = convert_precision(*graph, precision);
    ASSERT_TRUE(after.ok());
    // The user's own casts round, and they go: an f16 model's answers come nearer to the truth.
    const double alike = std::max(rounding_of(precision), 1e-3);
    expect_same(*graph, *after, 7, {alike, alike}, {.exact = true});
  }
}

TEST(Meaning, ASecondRunChangesNothing) {
  for (const Pass& pass : table()) {
    SCOPED_TRACE(pass.name);
    for (uint64_t seed = 2000; seed < 2000 + kSeeds; ++seed) {
      SCOPED_TRACE(seed);
      const Result<Graph> once = pass.run(made(seed));
      ASSERT_TRUE(once.ok());
      const Result<Graph> twice = pass.run(*once);
      ASSERT_TRUE(twice.ok());
      EXPECT_EQ(graph::print(*once), graph::print(*twice));
    }
  }
}

// Batches behind one another, each with maps behind it that read batches, rows, and what all share.
TEST(Meaning, BatchesInPartsKeepIt) {
  constexpr int64_t kCount = 7, kRows = 3, kSize = 4;
  for (int64_t first = 0; first <= kCount; ++first) {
    Graph graph;
    const Type whole{DType::f64, {kCount, kRows, kSize}};
    graph::ValueId y = graph.add_input("x", whole);
    for (int k = 0; k < 4; ++k) {
      const auto input = [&](const char* name, Shape shape) {
        return graph.add_input(fmt::format("{}{}", name, k), {DType::f64, std::move(shape)});
      };
      y = graph.must_add(graph::Op::MatMul, {y, input("w", {kCount, kSize, kSize})});
      y = graph.must_add(graph::Op::Add, {y, input("each", {kCount, 1, kSize})});
      y = graph.must_add(graph::Op::Mul, {input("column", {kSize}), y});
      y = graph.must_add(graph::Op::Tanh, {y});
      y = graph.must_add(graph::Op::Add, {y, input("row", {1, kRows, 1})});
      y = graph.must_add(graph::Op::Mul, {y, y});
      y = graph.must_add(graph::Op::Add, {input("like", {kCount, kRows, kSize}), y});
    }
    graph.mark_output(y, "y");
    const Result<Graph> after = split_batches(graph, [&](const BatchOfProducts&) { return first; });
    ASSERT_TRUE(after.ok()) << after.error().text();
    const auto products = [](const Graph& of) {
      int count = 0;
      for (const graph::NodeId id : of.order()) count += of.node(id).op == graph::Op::MatMul;
      return count;
    };
    EXPECT_EQ(products(*after), first > 0 && first < kCount ? 8 : 4) << first;
    expect_same(graph, *after, static_cast<uint64_t>(first));
  }
}

}  // namespace
}  // namespace obelisk::passes
