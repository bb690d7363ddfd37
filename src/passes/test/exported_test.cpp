// What both of PyTorch's exporters write of one pattern is raised to the same ops. The graphs are
// their files as imported, without names (scripts/zoo_patterns.py exports and compares afresh).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "graph/test_cases.h"
#include "passes/passes.h"

namespace obelisk::passes {
namespace {

using graph::Graph;

bool is_move(const graph::Node& node) {
  return ops::row(node.op).kind == ops::Kind::kMove || node.op == ops::Op::Cast;
}

/// The ops that are no moves, sorted.
std::string ops_of(const Graph& graph) {
  std::vector<std::string> names;
  for (graph::NodeId id : graph.order())
    if (!is_move(graph.node(id))) names.emplace_back(ops::to_string(graph.node(id).op));
  std::sort(names.begin(), names.end());
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : " ") + name;
  return out;
}

Result<Graph> raised(Graph graph) {
  for (const Pass& pass : table()) {
    TRY(graph, pass.run(std::move(graph)));
    if (pass.name == "merge_qkv") break;  // the last one that raises
  }
  return graph;
}

/// A case's sentence is `pattern: exporters and operator sets`, its `out:` the ops.
class Exported : public testing::TestWithParam<const char*> {};

TEST_P(Exported, IsRaisedToTheSameOps) {
  const std::string path =
      std::string(OBELISK_SOURCE_DIR) + "/src/passes/test/exported_" + GetParam() + ".ir";
  const Result<std::string> text = read_file(path);
  ASSERT_TRUE(text.ok()) << text.error().text();
  std::map<std::string, std::string> exporters;
  for (const graph::TextCase& one : graph::read_cases(*text)) {
    SCOPED_TRACE(one.sentence);
    const size_t colon = one.sentence.find(':');
    ASSERT_NE(colon, std::string::npos);
    exporters[one.sentence.substr(0, colon)] += one.sentence.substr(colon);
    const Result<Graph> written = graph::parse(one.in);
    ASSERT_TRUE(written.ok()) << written.error().text();
    const Result<Graph> got = raised(*written);
    ASSERT_TRUE(got.ok()) << got.error().text();
    EXPECT_EQ(ops_of(*got), one.out) << graph::print(*got);
    const std::vector<Tensor> inputs = graph::random_inputs(*written, 1);
    const auto want = graph::interpret(*written, inputs), same = graph::interpret(*got, inputs);
    ASSERT_TRUE(want.ok() && same.ok());
    const std::vector<ops::Tolerance> tolerances{{1e-5, 1e-5}};
    const graph::Comparison alike = graph::compare(*same, *want, tolerances);
    EXPECT_TRUE(alike.ok) << alike.text();
  }
  // PyTorch 2.13's TorchScript exporter has no spelling for these two; theirs by hand are here.
  const std::set<std::string> one_exporter{"rms_norm", "attention_groups"};
  for (const auto& [pattern, written_by] : exporters) {
    EXPECT_NE(written_by.find("dynamo"), std::string::npos) << pattern;
    if (!one_exporter.count(pattern)) {
      EXPECT_NE(written_by.find("TorchScript"), std::string::npos) << pattern;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Exported,
                         testing::Values("norms", "activations", "softmaxes", "attention", "rotary",
                                         "projections"));

}  // namespace
}  // namespace obelisk::passes
