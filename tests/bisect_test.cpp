// A fault that more outputs hide: bisecting says so and names the group, from what the program that
// was asked about stored.
#include <gtest/gtest.h>

#include "compile.h"

namespace obelisk::compiler {
namespace {

// Three layers, so that one can read too early or be written over.
const char* const kChain = R"(graph "chain" {
  in %0 "x": f32[4,8]
  %1: f32[8,4] = Transpose(%0)
  %2: f32[4,4] = MatMul(%0, %1) "first"
  %3: f32[4,4] = Tanh(%2) "first/Tanh"
  %4: f32[4,4] = MatMul(%3, %3) "second"
  %5: f32[4,4] = Tanh(%4) "second/Tanh"
  %6: f32[4,4] = MatMul(%5, %3) "third"
  out %6 "y"
})";

struct Faulty {
  Options options;
  Compilation made;  // its tasks have the fault
  std::vector<passes::Pass> passes;

  Faulty() {
    Network network;
    auto graph = graph::parse(kChain);
    CHECK(graph.ok(), "{}", graph.error().text());
    network.graph = *graph;
    options.sms = 1, options.threads = 1, options.verify = false;
    const Status status = compile(network, options, made);
    CHECK(status.ok(), "{}", status.error().text());
  }
  /// The work that computes a node.
  size_t work_of(const std::string& node) const {
    for (size_t w = 0; w < made.tasks.works.size(); ++w)
      for (graph::NodeId id : made.plan.groups[made.tasks.works[w].group].nodes)
        if (made.graph.node(id).name == node) return w;
    CHECK(false, "no work computes '{}'", node);
    return 0;
  }
  /// The program of the changed tasks.
  void assemble() {
    const machine::Machine device = *machine::device("cpu", 1);
    auto source = codegen::emit(made.graph, made.plan, made.tasks, kernels::tile_library(device));
    auto program = std::make_shared<runtime::Program>(
        runtime::assemble(made.graph, made.plan, made.tasks, std::move(source), device.name));
    made.program = program;
    auto loaded = runtime::load(program, options.load);
    CHECK(loaded.ok(), "{}", loaded.error().text());
    made.executable = *loaded;
  }
  Result<verify::Report> bisect() const {
    verify::Bisection bisection{.graph = made.graph};
    bisection.program = made.executable;
    bisection.imported = &made.imported, bisection.passes = passes;
    for (const graph::NodeId id : made.graph.order())
      for (const graph::ValueId v : made.graph.node(id).outputs)
        if (made.plan.layouts[v].materialized) bisection.boundaries.push_back(v);
    bisection.inside = [](graph::ValueId) { return std::vector<graph::ValueId>(); };
    bisection.compile =
        [&](const graph::Graph& graph) -> Result<std::shared_ptr<const runtime::Executable>> {
      Network network;
      network.graph = graph;
      Compilation again;
      TRY_STATUS(compile(network, options, again));
      return again.executable;
    };
    bisection.stored = [&](std::span<const Tensor> in) -> Result<std::map<graph::ValueId, Tensor>> {
      TRY(const Unshared unshared, unshare(made, options));
      TRY(const auto outputs, verify::run(*unshared.executable, in, 1));
      return stored_values(made, unshared, outputs);
    };
    bisection.group = [](graph::ValueId value) { return fmt::format("the group of %{}", value); };
    return verify::bisect(bisection);
  }
};

TEST(Bisect, NamesTheGroupThatReadsTooEarly) {
  Faulty faulty;
  // The tasks of the second layer run first, and read an arena of zeros.
  const size_t early = faulty.work_of("second");
  ASSERT_NE(early, faulty.work_of("first"));
  std::vector<ObkTask>& list = faulty.made.tasks.lists[0];
  std::stable_partition(list.begin(), list.end(),
                        [&](const ObkTask& task) { return task.work == early; });
  for (ObkTask& task : list)
    if (task.work == early) task.wave = 0;
  faulty.assemble();
  const auto report = faulty.bisect();
  ASSERT_TRUE(report.ok()) << report.error().text();
  ASSERT_FALSE(report->ok);
  EXPECT_TRUE(report->bad->node.starts_with("second")) << report->text();
  EXPECT_NE(report->note.find("changes the plan"), std::string::npos) << report->note;
  EXPECT_NE(report->note.find("the group of"), std::string::npos) << report->note;
}

TEST(Bisect, SaysThatAValueIsWrittenOver) {
  Faulty faulty;
  // The second layer's answer is stored where the first's is, which the third still reads.
  std::vector<schedule::Buffer*> arena;
  for (schedule::Buffer& buffer : faulty.made.tasks.buffers)
    if (buffer.kind == schedule::BufferKind::kArena) arena.push_back(&buffer);
  ASSERT_GE(arena.size(), 2u);
  for (schedule::Buffer* buffer : arena) buffer->offset = arena[0]->offset;
  faulty.assemble();
  const auto report = faulty.bisect();
  ASSERT_TRUE(report.ok()) << report.error().text();
  ASSERT_FALSE(report->ok);
  EXPECT_NE(report->note.find("written over"), std::string::npos) << report->note;
}

TEST(Bisect, NamesThePassThatChangesTheMeaning) {
  Faulty sound;
  sound.assemble();
  const auto keep = [](graph::Graph graph, passes::Remarks*) -> Result<graph::Graph> {
    return graph;
  };
  const auto squeeze_twice = [](graph::Graph graph, passes::Remarks*) -> Result<graph::Graph> {
    const graph::ValueId last = graph.outputs()[0];
    const graph::ValueId more = graph.must_add(ops::Op::Tanh, {last});
    graph.replace_uses(last, more);
    graph.set_inputs(graph.value(more).producer, {last});
    return graph;
  };
  sound.passes = {{"harmless", "", keep}, {"harmful", "", squeeze_twice}};
  const auto report = sound.bisect();
  ASSERT_TRUE(report.ok()) << report.error().text();
  ASSERT_FALSE(report->ok);
  EXPECT_NE(report->note.find("the pass harmful changes"), std::string::npos) << report->note;
}

TEST(Bisect, FindsNothingInASoundProgram) {
  Faulty sound;
  sound.assemble();
  const auto report = sound.bisect();
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_TRUE(report->ok) << report->text();
}

}  // namespace
}  // namespace obelisk::compiler
