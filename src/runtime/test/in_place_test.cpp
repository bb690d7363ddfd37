// Outputs in place of inputs: given one memory for both, or two, the answers are the interpreter's,
// step after step; what is not updated is not written.
#include "graph/test_texts.h"
#include "passes/passes.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

struct Case {
  const char* name;
  int updates;  // how many outputs are written in place; the others are staged
  const char* text;
};

const Case kCases[] = {
    {"rows_of_heads_read_before_and_after", 1, R"(graph "g" {
  in %0 "past": f32[2,64,8]
  in %1 "row": i64[2,3,8]
  in %2 "new": f32[2,3,8]
  const %3: i64[1] = [1]
  %4: f32[2,1,8] = ReduceSum(%0, %3) {keepdims = 1}
  %5: f32[2,3,8] = Add(%2, %4)
  %6: f32[2,64,8] = ScatterElements(%0, %1, %5) {axis = 1}
  %7: f32[2,1,8] = ReduceMax(%6, %3) {keepdims = 1}
  %8: f32[2,1,8] = Mul(%7, %4)
  out %6 "now" in_place_of "past"
  out %8 "seen"
})"},
    {"a_sum_into_lines", 1, R"(graph "g" {
  in %0 "past": f32[6,900]
  in %1 "row": i64[3,400]
  in %2 "new": f32[3,400]
  %3: f32[6,900] = ScatterElements(%0, %1, %2) {axis = 0, reduction = "add"}
  out %3 "now" in_place_of "past"
})"},
    {"many_updates_of_one_line", 1, R"(graph "g" {
  in %0 "past": f32[700]
  in %1 "at": i64[500]
  in %2 "new": f32[500]
  %3: f32[700] = ScatterElements(%0, %1, %2)
  out %3 "now" in_place_of "past"
})"},
    {"slices_by_two_axes", 1, R"(graph "g" {
  in %0 "past": f16[6,6,300]
  in %1 "at": i64[11,2]
  in %2 "new": f16[11,300]
  %3: f16[6,6,300] = ScatterND(%0, %1, %2) {reduction = "max"}
  %4: f16[6,6,300] = Neg(%3)
  out %4 "seen"
  out %3 "now" in_place_of "past"
})"},
    {"parts_of_what_is_computed", 2, R"(graph "g" {
  in %0 "x": f32[1,16]
  in %1 "w": f32[16,96]
  in %2 "keys": f32[1,4,6,8]
  in %3 "values": f32[1,4,6,8]
  in %4 "row": i64[1,4,1,8]
  const %5: i64[3] = [32, 32, 32]
  const %6: i64[4] = [1, 1, 4, 8]
  %7: f32[1,96] = MatMul(%0, %1)
  %8: f32[1,32], %9: f32[1,32], %10: f32[1,32] = Split(%7, %5) {axis = 1}
  %11: f32[1,1,4,8] = Reshape(%9, %6)
  %12: f32[1,4,1,8] = Transpose(%11) {perm = [0, 2, 1, 3]}
  %13: f32[1,1,4,8] = Reshape(%10, %6)
  %14: f32[1,4,1,8] = Transpose(%13) {perm = [0, 2, 1, 3]}
  %15: f32[1,4,6,8] = ScatterElements(%2, %4, %12) {axis = 2}
  %16: f32[1,4,6,8] = ScatterElements(%3, %4, %14) {axis = 2, reduction = "add"}
  %17: f32[1,32] = Neg(%8)
  out %15 "keys now" in_place_of "keys"
  out %16 "values now" in_place_of "values"
  out %17 "seen"
})"},
    {"a_part_that_is_in_another_order", 1, R"(graph "g" {
  in %0 "past": f32[3,5,8]
  in %1 "at": i64[2,1]
  in %2 "x": f32[8,5,4]
  const %3: i64[1] = [1]
  const %4: i64[1] = [3]
  const %5: i64[1] = [2]
  %6: f32[8,5,4] = Neg(%2)
  %7: f32[8,5,2] = Slice(%6, %3, %4, %5)
  %8: f32[2,5,8] = Transpose(%7) {perm = [2, 1, 0]}
  %9: f32[3,5,8] = ScatterND(%0, %1, %8)
  out %9 "now" in_place_of "past"
})"},
    {"a_part_of_the_old_value", 1, R"(graph "g" {
  in %0 "past": f32[6,8]
  in %1 "at": i64[1,1]
  const %2: i64[1] = [2]
  const %3: i64[1] = [3]
  const %4: i64[1] = [0]
  %5: f32[1,8] = Slice(%0, %2, %3, %4)
  %6: f32[6,8] = ScatterND(%0, %1, %5)
  out %6 "now" in_place_of "past"
})"},
    {"many_slices", 1, R"(graph "g" {
  in %0 "past": f32[6,300]
  in %1 "at": i64[400,1]
  in %2 "new": f32[400,300]
  %3: f32[6,300] = ScatterND(%0, %1, %2)
  out %3 "now" in_place_of "past"
})"},
    {"an_axis_moved_to_the_front_and_back", 1, R"(graph "g" {
  in %0 "past": f32[1,2,6,4]
  in %1 "row": i64[1,1]
  in %2 "new": f32[1,1,2,4]
  in %9 "query": f32[1,2,1,4]
  %3: f32[6,1,2,4] = Transpose(%0) {perm = [2, 0, 1, 3]}
  %4: f32[6,1,2,4] = ScatterND(%3, %1, %2)
  %5: f32[1,2,6,4] = Transpose(%4) {perm = [1, 2, 0, 3]}
  %6: f32[1,2,4,6] = Transpose(%5) {perm = [0, 1, 3, 2]}
  %7: f32[1,2,1,6] = MatMul(%9, %6)
  %8: f32[1,2,1,6] = Softmax(%7) {axis = -1}
  %10: f32[1,2,1,4] = MatMul(%8, %5)
  out %5 "now" in_place_of "past"
  out %10 "seen"
})"},
    {"two_caches_of_which_one_reads_the_other", 2, R"(graph "g" {
  in %0 "a": f32[8,64]
  in %1 "b": f32[8,64]
  in %2 "row": i64[1,1]
  const %3: i64[1] = [0]
  %4: f32[1,64] = ReduceSum(%0, %3) {keepdims = 1}
  %5: f32[1,64] = ReduceMax(%1, %3) {keepdims = 1}
  %6: f32[8,64] = ScatterND(%0, %2, %5)
  %7: f32[8,64] = ScatterND(%1, %2, %4)
  out %6 "a now" in_place_of "a"
  out %7 "b now" in_place_of "b"
})"},
    {"each_of_two_caches_needs_the_others_old_value_and_new_one", 1, R"(graph "g" {
  in %0 "a": f32[8,64]
  in %1 "b": f32[8,64]
  in %2 "row": i64[1,1]
  in %3 "new": f32[1,64]
  const %4: i64[1] = [0]
  %5: f32[8,64] = ScatterND(%0, %2, %3)
  %6: f32[8,64] = Add(%5, %1)
  %7: f32[1,64] = ReduceMax(%6, %4) {keepdims = 1}
  %8: f32[8,64] = ScatterND(%1, %2, %7)
  %9: f32[8,64] = Sub(%8, %0)
  out %5 "a now" in_place_of "a"
  out %8 "b now" in_place_of "b"
  out %9 "seen"
})"},
    {"values_change_places", 0, R"(graph "g" {
  in %0 "a": f32[8,64]
  in %1 "b": f32[8,64]
  in %2 "c": f32[8,64]
  in %3 "d": f32[64,64]
  const %4: f32[8,64] = @random
  const %6: f32[64,64] = @random
  %5: f32[64,64] = MatMul(%6, %3)
  out %1 "a now" in_place_of "a"
  out %0 "b now" in_place_of "b"
  out %4 "c now" in_place_of "c"
  out %5 "d now" in_place_of "d"
})"},
    {"an_answer_by_two_names", 0, R"(graph "g" {
  in %0 "past": f32[8,64]
  in %1 "row": i64[1,1]
  in %2 "new": f32[1,64]
  %3: f32[8,64] = ScatterND(%0, %1, %2)
  out %3 "copy"
  out %3 "now" in_place_of "past"
})"},
    {"an_answer_by_two_names_in_place_first", 1, R"(graph "g" {
  in %0 "past": f32[8,64]
  in %1 "row": i64[1,1]
  in %2 "new": f32[1,64]
  %3: f32[8,64] = ScatterND(%0, %1, %2)
  out %3 "now" in_place_of "past"
  out %3 "copy"
})"},
    {"the_old_value_is_an_answer", 0, R"(graph "g" {
  in %0 "past": f32[8,64]
  in %1 "row": i64[1,1]
  in %2 "new": f32[1,64]
  %3: f32[8,64] = ScatterND(%0, %1, %2)
  out %3 "now" in_place_of "past"
  out %0 "before"
})"},
    {"pieces_of_a_concatenation", 0, R"(graph "g" {
  in %0 "past": f32[8,64]
  in %1 "row": i64[1,1]
  in %2 "new": f32[1,64]
  %3: f32[8,64] = ScatterND(%0, %1, %2)
  %4: f32[8,64] = Neg(%0)
  %5: f32[16,64] = Concat(%3, %4) {axis = 0}
  out %5 "both"
  out %4 "now" in_place_of "past"
})"},
    {"nothing_to_update", 1, R"(graph "g" {
  in %0 "past": f32[8,64]
  in %1 "row": i64[0,1]
  in %2 "new": f32[0,64]
  %3: f32[8,64] = ScatterND(%0, %1, %2)
  out %3 "now" in_place_of "past"
})"},
};

std::vector<Tensor> inputs_of(const graph::Graph& graph, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Tensor> inputs;
  for (const graph::ValueId v : graph.inputs())
    inputs.push_back(random_tensor(graph.type(v), random));
  return inputs;
}

Result<graph::Graph> compiled(graph::Graph graph) {
  for (const passes::Pass& pass : passes::table()) {
    TRY(graph, pass.run(std::move(graph)));
  }
  return graph;
}

Tensor copy_of(const Tensor& tensor) {
  Tensor copy = Tensor::allocate(tensor.type());
  if (tensor.bytes() > 0) std::memcpy(copy.mutable_data(), tensor.data(), tensor.bytes());
  return copy;
}

struct Made {
  std::shared_ptr<const Program> program;
  std::unique_ptr<Context> context;
};

Result<Made> made_of(const graph::Graph& graph, int sms, bool stitching, bool vectors) {
  const machine::Machine device = machine::cpu(sms);
  stitch::Options options;
  options.stitch = stitching;
  const stitch::Plan plan = stitch::plan(graph, device, {}, options);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device);
  TRY_STATUS(schedule::validate(graph, plan, tasks));
  TRY_STATUS(schedule::shadow_run(graph, plan, tasks));
  auto program = std::make_shared<Program>(assemble(
      graph, plan, tasks,
      codegen::emit(graph, plan, tasks, vectors ? vector_tiles() : kernels::kCpuTiles), "cpu"));
  LoadOptions load;
  load.every_thread = true;
  TRY(const auto executable, load_cpu(program, load));
  Made made{program, nullptr};
  TRY(made.context, executable->context(std::min(sms, 4)));
  return made;
}

/// Three steps, each on what the last one left where it took an input's memory; of the other inputs
/// new ones.
void take_steps(const graph::Graph& meant, const Made& made, bool one_memory) {
  std::vector<Tensor> inputs = inputs_of(meant, 3);
  const Program& program = *made.program;
  for (int step = 0; step < 3; ++step) {
    if (step > 0) {
      std::vector<Tensor> next = inputs_of(meant, 3 + step);
      for (const Port& port : program.outputs)
        if (port.in_place_of >= 0) next[port.in_place_of] = inputs[port.in_place_of];
      inputs = std::move(next);
    }
    std::vector<Tensor> before;
    for (const Tensor& input : inputs) before.push_back(copy_of(input));
    const auto wanted = graph::interpret(meant, before);
    ASSERT_TRUE(wanted.ok()) << wanted.error().text();
    Run got;
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const Tensor& input : inputs) in.push_back(input.data());
    for (const Port& port : program.outputs) {
      got.outputs.push_back(one_memory && port.in_place_of >= 0 ? inputs[port.in_place_of]
                                                                : Tensor::allocate(port.type));
      out.push_back(const_cast<void*>(got.outputs.back().data()));
    }
    const Status ran = made.context->run(in, out);
    ASSERT_TRUE(ran.ok()) << ran.error().text();
    expect_outputs(got, *wanted, fmt::format("step {}", step), 1e-3);
    for (size_t k = 0; k < program.outputs.size(); ++k) {
      const int input = program.outputs[k].in_place_of;
      if (input < 0 || one_memory) continue;
      EXPECT_EQ(0, std::memcmp(inputs[input].data(), before[input].data(), before[input].bytes()))
          << "an input of its own changed";
      inputs[input] = got.outputs[k];
    }
  }
}

TEST(InPlace, StepsAreTheInterpreters) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.name);
    auto graph = graph::parse_random(one.text, 0.25);
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    auto after = compiled(*graph);
    ASSERT_TRUE(after.ok()) << after.error().text();
    for (const int sms : {1, 7})
      for (const int mode : {0, 1, 2}) {  // vectors: shapes are in the text
        auto made = made_of(*after, sms, mode != 1, mode == 2);
        ASSERT_TRUE(made.ok()) << made.error().text();
        int updates = 0;
        for (const Port& port : made->program->outputs) updates += port.written_in_place();
        EXPECT_EQ(updates, one.updates);
        for (const bool one_memory : {true, false}) take_steps(*graph, *made, one_memory);
        if (testing::Test::HasFatalFailure()) return;
      }
  }
}

// What no update hits is not written: elsewhere it may be read meanwhile.
TEST(InPlace, WhatIsNotUpdatedIsNotWritten) {
  auto graph = graph::parse(R"(graph "g" {
  in %0 "past": f32[64,16]
  in %1 "row": i64[2,1]
  in %2 "new": f32[2,16]
  %3: f32[64,16] = ScatterND(%0, %1, %2)
  out %3 "now" in_place_of "past"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  auto made = made_of(*graph, 3, true, false);
  ASSERT_TRUE(made.ok()) << made.error().text();
  for (const WorkRecord& work : made->program->works)
    for (const Place& place : work.operands)
      EXPECT_FALSE(place.kind == BufferKind::kInput && place.index == 0)
          << "the old value is an operand";
  EXPECT_EQ(bytes_of_a_run(*made->program), 64 * 16 * 4 + 2 * 8 + 2 * 16 * 4);
}

}  // namespace
}  // namespace obelisk::runtime
