#include "graph/test_cases.h"

namespace obelisk::graph {
namespace {

TEST(Text, Cases) {
  run_cases("src/graph/test/text_form.ir", [](Graph graph) { return graph; });
}

TEST(Text, PrintingIsAFixedPoint) {
  for (const TextCase& one :
       read_cases(read_file(OBELISK_SOURCE_DIR "/src/graph/test/text_form.ir").value())) {
    const Result<Graph> first = parse(one.in);
    if (!first.ok()) continue;
    const PrintOptions full{.all_data = true};
    const std::string text = print(*first, full);
    const Result<Graph> second = parse(text);
    ASSERT_TRUE(second.ok()) << second.error().text() << text;
    EXPECT_EQ(print(*second, full), text);
    EXPECT_EQ(print(first->compacted(), full), text);
  }
}

Graph large_constant() {
  Graph graph;
  Tensor weight = Tensor::allocate({DType::f32, {40, 2}});
  for (int64_t k = 0; k < weight.count(); ++k) weight.set_double(k, static_cast<double>(k) / 3);
  graph.mark_output(graph.add_constant(weight, "w"), "y");
  return graph;
}

TEST(Text, LargeConstantsByHashOrInFull) {
  const Graph graph = large_constant();
  const std::string text = print(graph);
  EXPECT_NE(text.find("const %0 \"w\": f32[40,2] = #"), std::string::npos) << text;
  EXPECT_NE(parse(text).error().message.find("only by its hash"), std::string::npos);
  const Weights weights = collect_weights(graph);
  ASSERT_EQ(weights.size(), 1u);
  const KnownHashes hashes = hash_weights(graph);
  ASSERT_EQ(hashes.size(), 1u);
  EXPECT_EQ(hashes.begin()->second, weights.begin()->first);
  EXPECT_EQ(print(graph, {.hashes = &hashes}), text);
  EXPECT_EQ(collect_weights(graph, {.hashes = &hashes}).begin()->first, weights.begin()->first);
  const Result<Graph> by_hash = parse(text, weights);
  ASSERT_TRUE(by_hash.ok()) << by_hash.error().text();
  EXPECT_EQ(by_hash->value(0).constant.data(), graph.value(0).constant.data());
  const Result<Graph> in_full = parse(print(graph, {.all_data = true}));
  ASSERT_TRUE(in_full.ok());
  EXPECT_EQ(print(*in_full), text);
}

// Whatever the bytes, the parser answers.
TEST(Text, EveryTruncationAndEveryChangedByteIsAnswered) {
  const std::string good =
      read_cases(read_file(OBELISK_SOURCE_DIR "/src/graph/test/text_form.ir").value())[2].in;
  ASSERT_TRUE(parse(good).ok());
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse(good.substr(0, size)).ok());
  for (size_t place = 0; place < good.size(); ++place) {
    for (const char letter : {'\0', '\xff', '"', '%', '9', '}', '-', '\n', '#'}) {
      std::string bad = good;
      bad[place] = letter;
      const Result<Graph> graph = parse(bad);
      EXPECT_TRUE(!graph.ok() || verify(*graph).ok()) << bad;
    }
  }
}

}  // namespace
}  // namespace obelisk::graph
