// The shadow run: sound tables of every kind pass, and each kind of wrong access is found, by its
// reason.
#include <gtest/gtest.h>

#include <functional>

#include "graph/test_decoder.h"
#include "graph/test_texts.h"
#include "passes/passes.h"
#include "schedule/schedule.h"

namespace obelisk::schedule {
namespace {

struct Table {
  graph::Graph graph;
  stitch::Plan plan;
  TaskGraph tasks;
};

enum class Form { kCpu, kGraphOfKernels, kOneKernel };

Table table(graph::Graph graph, Form form, int sms = 0, bool stitching = true) {
  using machine::Granularity;
  const auto device =
      form == Form::kCpu ? machine::cpu(sms ? sms : 3) : *machine::gpu("sm_90a", sms);
  const auto strategy = strategy_for(
      device,
      {.granularity = form == Form::kOneKernel ? Granularity::kMono : Granularity::kStitch});
  Table made{.graph = std::move(graph)};
  stitch::Options options;
  options.stitch = stitching;
  made.plan = stitch::plan(made.graph, device, strategy, options);
  made.tasks = build(made.graph, made.plan, device, strategy);
  return made;
}

graph::Graph parsed(const char* text) {
  auto graph = graph::parse_random(text, 0.25);
  CHECK(graph.ok(), "{}", graph.error().text());
  return std::move(*graph);
}

// Pieces of a concatenation and a channel shuffle of it, a convolution stored in another order,
// padding, a gather by data, a GEMM of a value with itself, a row reduction.
constexpr const char* kMoves = R"(graph "g" {
  in %0 "a": f32[2,8,6,6]
  in %1 "i": i64[5]
  const %2: f32[8,8,3,3] = @random
  %3: f32[2,8,6,6] = Relu(%0) "left"
  %25: f32[2,8,6,6] = Neg(%0)
  %4: f32[2,8,6,6] = Conv(%25, %2) {pads = [1, 1, 1, 1]} "conv"
  %5: f32[2,16,6,6] = Concat(%3, %4) {axis = 1} "both"
  const %6: i64[5] = [2, 2, 8, 6, 6]
  %7: f32[2,2,8,6,6] = Reshape(%5, %6)
  %8: f32[2,8,2,6,6] = Transpose(%7) {perm = [0, 2, 1, 3, 4]}
  const %9: i64[4] = [2, 16, 6, 6]
  %10: f32[2,16,6,6] = Reshape(%8, %9)
  %11: f32[2,16,6,6] = Tanh(%10) "shuffled"
  const %12: f32[16,16,1,1] = @random
  %13: f32[2,16,6,6] = Conv(%11, %12) "pixels"
  %14: f32[2,6,6,16] = Transpose(%13) {perm = [0, 3, 2, 1]}
  %15: f32[2,6,5,16] = Gather(%14, %1) {axis = 2} "by data"
  const %16: i64[3] = [2, 30, 16]
  %17: f32[2,30,16] = Reshape(%15, %16)
  %18: f32[2,16,30] = Transpose(%17) {perm = [0, 2, 1]}
  %19: f32[2,16,16] = MatMul(%18, %17) "gram"
  const %24: i64[1] = [-1]
  %23: f32[2,16,1] = ReduceMax(%19, %24) {keepdims = 1} "most"
  %20: f32[2,16,16] = Sub(%19, %23) "less"
  const %21: i64[6] = [0, 1, 2, 0, 1, 0]
  %22: f32[2,18,18] = Pad(%20, %21) "padded"
  out %22 "y"
  out %10 "z"
})";

constexpr const char* kAttention = R"(graph "g" {
  in %0 "x": f16[2,32,64]
  const %1: f16[64,192] = @random
  %2: f16[2,32,192] = MatMul(%0, %1) "projections"
  const %3: i64[3] = [64, 64, 64]
  %4: f16[2,32,64], %5: f16[2,32,64], %6: f16[2,32,64] = Split(%2, %3) {axis = 2}
  %7: f16[2,32,64] = Attention(%4, %5, %6) {q_num_heads = 4, kv_num_heads = 4} "attention"
  %8: f16[2,32,64] = Add(%7, %0) "residual"
  out %8 "y"
})";

// An update in place; the old value is read before, the new one after it.
constexpr const char* kInPlace = R"(graph "g" {
  in %0 "past": f16[2,64,8]
  in %1 "row": i64[2,1,8]
  in %2 "new": f16[2,1,8]
  const %3: i64[1] = [1]
  %4: f16[2,1,8] = ReduceSum(%0, %3) {keepdims = 1} "old"
  %5: f16[2,1,8] = Tanh(%4) "older"
  %6: f16[2,64,8] = ScatterElements(%0, %1, %2) {axis = 1} "put"
  %7: f16[2,1,8] = ReduceMax(%6, %3) {keepdims = 1} "read"
  %8: f16[2,1,8] = Sub(%7, %5) "change"
  out %6 "now" in_place_of "past"
  out %8 "y"
})";

Status shadow(const Table& t) { return shadow_run(t.graph, t.plan, t.tasks); }

TEST(ShadowRun, TakesWhatTheScheduleMakes) {
  for (const char* text : {kMoves, kAttention, kInPlace})
    for (const Form form : {Form::kCpu, Form::kGraphOfKernels, Form::kOneKernel})
      for (const bool stitching : {true, false})
        for (const int sms : {1, 7, 132}) {
          const Table t = table(parsed(text), form, sms, stitching);
          ASSERT_TRUE(validate(t.graph, t.plan, t.tasks).ok());
          const Status got = shadow(t);
          EXPECT_TRUE(got.ok()) << got.error().text() << "\n"
                                << stitch::print(t.graph, t.plan, false);
        }
}

Table decoder(const graph::DecoderSizes& sizes = {}) {
  auto early = passes::copy_early_pieces(graph::decoder_step(DType::f16, sizes));
  CHECK(early.ok(), "{}", early.error().text());
  auto gates = passes::merge_gates(std::move(*early));
  CHECK(gates.ok(), "{}", gates.error().text());
  return table(std::move(*gates), Form::kOneKernel, 132);
}

TEST(ShadowRun, FollowsADataflowProgram) {
  for (const bool fixed_cache : {false, true}) {
    const Table t = decoder({.fixed_cache = fixed_cache});
    ASSERT_TRUE(t.tasks.dataflow);
    const Status got = shadow(t);
    EXPECT_TRUE(got.ok()) << fixed_cache << ": " << got.error().text();
  }
}

// ---- what is wrong ----

/// The work that computes the node of that name.
size_t work_of(const Table& t, std::string_view name) {
  for (size_t w = 0; w < t.tasks.works.size(); ++w)
    for (const graph::NodeId n : t.plan.groups[t.tasks.works[w].group].nodes)
      if (t.graph.node(n).name == name) return w;
  CHECK(false, "no work computes '{}'", name);
}
stitch::Group& group_of(Table& t, std::string_view name) {
  return t.plan.groups[t.tasks.works[work_of(t, name)].group];
}
/// The k-th load, or store, of a work's body.
Access& access_of(Table& t, std::string_view name, bool store) {
  for (Access& access : t.tasks.works[work_of(t, name)].nest.accesses)
    if (store ? access.step >= 0 : access.load != ops::kNoExpr) return access;
  CHECK(false, "'{}' has no such access", name);
}
void move_to_wave(Table& t, size_t work, int wave) {
  t.tasks.works[work].wave = wave;
  for (auto& list : t.tasks.lists) {
    for (ObkTask& task : list)
      if (task.work == work) task.wave = static_cast<uint32_t>(wave);
    std::stable_sort(list.begin(), list.end(),
                     [](const ObkTask& a, const ObkTask& b) { return a.wave < b.wave; });
  }
}

struct Fault {
  const char* name;
  const char* text;
  const char* said;
  std::function<void(Table&)> how;
};

const Fault kFaults[] = {
    {"a load that begins elsewhere", kMoves, "is meant",
     [](Table& t) { ++access_of(t, "most", false).offset; }},
    {"a load along another stride", kMoves, "is meant",
     [](Table& t) {
       for (int64_t& stride : access_of(t, "most", false).strides) stride *= 2;
     }},
    {"a load before the buffer", kMoves, "of a buffer of",
     [](Table& t) { access_of(t, "most", false).offset = -8; }},
    {"a store that begins elsewhere", kMoves, "stores element",
     [](Table& t) { ++access_of(t, "left", true).offset; }},
    {"a store behind the buffer", kMoves, "of a buffer of",
     [](Table& t) { access_of(t, "padded", true).offset = 1 << 20; }},
    {"a piece stored where the other one is", kMoves, "where the same wave stores",
     [](Table& t) {
       Access& conv = access_of(t, "conv", true);
       conv.offset = access_of(t, "left", true).offset;
       move_to_wave(t, work_of(t, "left"), t.tasks.works[work_of(t, "conv")].wave);
     }},
    {"a reader in its writer's wave", kMoves, "reads nothing",
     [](Table& t) {
       move_to_wave(t, work_of(t, "shuffled"), t.tasks.works[work_of(t, "conv")].wave);
     }},
    {"memory that is reused too early", kMoves, "which the same wave reads",
     [](Table& t) {
       for (Buffer& buffer : t.tasks.buffers)
         if (buffer.kind == BufferKind::kArena) buffer.offset = {0};
     }},
    {"an operand of a GEMM that begins elsewhere", kMoves, "is meant",
     [](Table& t) { group_of(t, "gram").product.b_offset += 16; }},
    {"rows of a GEMM along another stride", kMoves, "is meant",
     [](Table& t) { group_of(t, "gram").product.m[0].a += 1; }},
    {"a depth of a GEMM along another stride", kMoves, "is meant",
     [](Table& t) { group_of(t, "gram").product.k[0].b += 1; }},
    {"a convolution's pixels in another order", kMoves, "row",
     [](Table& t) {
       std::swap(group_of(t, "conv").anchor_coords[2], group_of(t, "conv").anchor_coords[3]);
     }},
    {"heads of attention that lie elsewhere", kAttention, "is meant",
     [](Table& t) { group_of(t, "attention").attention.k.head += 8; }},
    {"values of attention that are keys", kAttention, "is meant",
     [](Table& t) {
       group_of(t, "attention").attention.v.offset = group_of(t, "attention").attention.k.offset;
     }},
    {"an old value that is read beside the new one", kInPlace, "which the same wave reads",
     [](Table& t) { move_to_wave(t, work_of(t, "old"), t.tasks.works[work_of(t, "put")].wave); }},
    {"an old value that is read too late", kInPlace, "overwrote",
     [](Table& t) {
       move_to_wave(t, work_of(t, "put"), 0), move_to_wave(t, work_of(t, "old"), 1);
     }},
    {"a new value that is read too early", kInPlace, "reads nothing",
     [](Table& t) { move_to_wave(t, work_of(t, "read"), 0); }},
    {"a task that is lost", kMoves, "nothing",
     [](Table& t) {
       for (auto& list : t.tasks.lists)
         if (!list.empty()) return list.pop_back();
     }},
};

TEST(ShadowRun, FindsWhatIsWrong) {
  for (const Fault& fault : kFaults)
    for (const Form form : {Form::kCpu, Form::kOneKernel}) {
      Table t = table(parsed(fault.text), form);
      ASSERT_TRUE(shadow(t).ok()) << fault.name;
      fault.how(t);
      const Status got = shadow(t);
      ASSERT_FALSE(got.ok()) << fault.name;
      EXPECT_NE(got.error().message.find("shadow run"), std::string::npos)
          << fault.name << ": " << got.error().message;
      EXPECT_NE(got.error().message.find(fault.said), std::string::npos)
          << fault.name << ": " << got.error().message;
      if (getenv("OBELISK_SHOW")) fmt::print("{}: {}\n", fault.name, got.error().message);
    }
}

TEST(ShadowRun, FindsACopyThatIsOverwritten) {
  Table t = decoder();
  for (Buffer& buffer : t.tasks.buffers)
    if (buffer.copy_at.count >= 0) buffer.copy_at = {0};
  const Status got = shadow(t);
  ASSERT_FALSE(got.ok());
  EXPECT_NE(got.error().message.find("is meant"), std::string::npos) << got.error().message;
}

// What the validator says of a group that reads a concatenation of which it stores a piece.
TEST(Validate, RefusesAWorkThatReadsWhatItStores) {
  Table t = table(parsed(kMoves), Form::kCpu);
  const size_t left = work_of(t, "left"), shuffled = work_of(t, "shuffled");
  // As if "shuffled" had joined the group of "left": it reads "both", of which "left" is a piece.
  stitch::Group &to = t.plan.groups[t.tasks.works[left].group],
                &from = t.plan.groups[t.tasks.works[shuffled].group];
  const ValueId both = t.plan.layouts[t.graph.node(to.nodes[0]).outputs[0]].storage;
  for (size_t slot = 0; slot < to.body.operands.size(); ++slot)
    if (t.tasks.buffers[t.tasks.works[left].buffers[slot]].kind == BufferKind::kInput)
      to.body.operands[slot] = both;
  const Status got = validate(t.graph, t.plan, t.tasks);
  ASSERT_FALSE(got.ok());
  EXPECT_NE(got.error().message.find("of which it stores a part"), std::string::npos)
      << got.error().message;
  (void)from;
}

}  // namespace
}  // namespace obelisk::schedule
