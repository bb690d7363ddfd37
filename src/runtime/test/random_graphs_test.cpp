// Random graphs, half of them of moves: plan, schedule and program keep the meaning, on few and on
// many virtual SMs; the same bits from run to run and from one number of threads to another.
// OBELISK_GRAPHS=N tries N of them from OBELISK_SEED on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "passes/passes.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

int from_environment(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

std::vector<Tensor> run(const Executable& executable, const std::vector<Tensor>& inputs,
                        int threads) {
  auto context = executable.context(threads);
  EXPECT_TRUE(context.ok());
  std::vector<const void*> in;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  std::vector<Tensor> outputs;
  std::vector<void*> out;
  for (const Port& port : executable.program().outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    memset(outputs.back().mutable_data(), 0xa5, outputs.back().bytes());
    out.push_back(outputs.back().mutable_data());
  }
  for (int repeat = 0; repeat < 2; ++repeat) {
    Status status = (*context)->run(in, out);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
  }
  return outputs;
}

/// Each task to any virtual SM, in any order within its wave.
void assign_anew(Program& program, int seed) {
  std::mt19937 random(seed);
  std::vector<ObkTask> all;
  for (auto& list : program.lists) all.insert(all.end(), list.begin(), list.end()), list.clear();
  std::shuffle(all.begin(), all.end(), random);
  std::stable_sort(all.begin(), all.end(),
                   [](const ObkTask& a, const ObkTask& b) { return a.wave < b.wave; });
  for (const ObkTask& task : all) program.lists[random() % program.lists.size()].push_back(task);
}

TEST(RandomGraphs, ProgramsKeepTheMeaning) {
  const int first = from_environment("OBELISK_SEED", 1),
            count = from_environment("OBELISK_GRAPHS",
                                     50);  // a second each where no body is in the cache yet
  for (int seed = first; seed < first + count; ++seed) {
    const graph::Graph made = graph::random_graph(seed, {.moves = seed % 2 == 0 ? 60 : 0});
    const std::vector<Tensor> inputs = graph::random_inputs(made, seed);
    auto wanted = graph::interpret(made, inputs, {.exact = true});
    ASSERT_TRUE(wanted.ok()) << wanted.error().text();
    graph::Graph lowered = made;
    for (const passes::Pass& pass : passes::table()) {
      auto next = pass.run(std::move(lowered));
      ASSERT_TRUE(next.ok()) << pass.name << ": " << next.error().text();
      lowered = std::move(*next);
    }
    for (int sms : {1, 7, 132}) {
      const machine::Machine device = machine::cpu(sms);
      const stitch::Plan plan = stitch::plan(lowered, device);
      Status sound = stitch::verify(lowered, plan);
      ASSERT_TRUE(sound.ok()) << "seed " << seed << ": " << sound.error().text();
      const schedule::TaskGraph tasks = schedule::build(lowered, plan, device);
      sound = schedule::validate(lowered, plan, tasks);
      ASSERT_TRUE(sound.ok()) << "seed " << seed << ": " << sound.error().text();
      sound = schedule::shadow_run(lowered, plan, tasks);
      ASSERT_TRUE(sound.ok()) << "seed " << seed << ": " << sound.error().text();
      auto program = std::make_shared<Program>(assemble(
          lowered, plan, tasks,
          codegen::emit(lowered, plan, tasks, sms == 132 ? vector_tiles() : kernels::kCpuTiles),
          "cpu"));
      LoadOptions load;
      load.every_thread = true;
      auto executable = load_cpu(program, load);
      ASSERT_TRUE(executable.ok()) << "seed " << seed << ": " << executable.error().text();
      const std::vector<Tensor> got = run(**executable, inputs, 1);
      const std::vector<ops::Tolerance> tolerances(got.size(), {1e-4, 1e-3});
      const graph::Comparison same = graph::compare(got, *wanted, tolerances);
      ASSERT_TRUE(same.ok) << "seed " << seed << ", " << sms << " SMs: " << same.text() << "\n"
                           << graph::print(made);
      const std::vector<Tensor> again = run(**executable, inputs, 3);
      for (size_t o = 0; o < got.size(); ++o)
        ASSERT_EQ(0, memcmp(got[o].data(), again[o].data(), got[o].bytes()))
            << "seed " << seed << ": bits differ between 1 and 3 threads";
      // Another assignment of the same tasks: the answers do not depend on who runs what when,
      // within a wave.
      auto assigned = std::make_shared<Program>(*program);
      assign_anew(*assigned, seed);
      auto other = load_cpu(assigned, load);
      ASSERT_TRUE(other.ok()) << other.error().text();
      const std::vector<Tensor> anew = run(**other, inputs, 2);
      for (size_t o = 0; o < got.size(); ++o)
        ASSERT_EQ(0, memcmp(got[o].data(), anew[o].data(), got[o].bytes()))
            << "seed " << seed << ", " << sms << " SMs: bits differ when tasks are assigned anew";
    }
  }
}

}  // namespace
}  // namespace obelisk::runtime
