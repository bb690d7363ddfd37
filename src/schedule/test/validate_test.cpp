// A table that was tampered with is refused, each way by its reason: what would otherwise hang a
// GPU or give wrong answers.
#include <gtest/gtest.h>

#include <functional>
#include <regex>

#include "schedule/schedule.h"

namespace obelisk::schedule {
namespace {

// Products of two matrices each, a row reduction, chains between them: several waves, cut rows and
// columns, reused workspace.
constexpr const char* kText = R"(graph "g" {
  in %0 "x": f32[2,96,128]
  in %1 "w": f32[2,128,200]
  in %2 "b": f32[200]
  const %9: i64[1] = [-1]
  %3: f32[2,96,200] = MatMul(%0, %1)
  %4: f32[2,96,200] = Add(%3, %2)
  %5: f32[2,96,200] = Tanh(%4)
  %6: f32[2,96,1] = ReduceMax(%5, %9) {keepdims = 1}
  %7: f32[2,96,200] = Sub(%5, %6)
  %8: f32[2,200,96] = Transpose(%7) {perm = [0, 2, 1]}
  %10: f32[2,200,200] = MatMul(%8, %7)
  %11: f32[2,200,1] = ReduceSum(%10, %9) {keepdims = 1}
  %12: f32[2,200,200] = Div(%10, %11)
  %13: f32[2,200,200] = Exp(%12)
  const %14: i64[1] = [0]
  %15: f32[1,200,200] = ReduceSum(%13, %14) {keepdims = 1}
  out %15 "z"
})";

struct Table {
  graph::Graph graph;
  stitch::Plan plan;
  TaskGraph tasks;
};

Table table() {
  auto graph = graph::parse(kText);
  CHECK(graph.ok(), "{}", graph.error().text());
  auto device = machine::gpu("sm_90a");
  CHECK(device.ok());
  Table made{.graph = std::move(*graph)};
  made.plan = stitch::plan(made.graph, *device);
  made.tasks = build(made.graph, made.plan, *device);
  return made;
}

/// The first task that fits, in place.
ObkTask& task_where(TaskGraph& tasks, const std::function<bool(const ObkTask&)>& fits) {
  for (auto& list : tasks.lists)
    for (ObkTask& task : list)
      if (fits(task)) return task;
  CHECK(false, "no task fits");
}
std::vector<ObkTask>& list_where(TaskGraph& tasks,
                                 const std::function<bool(const std::vector<ObkTask>&)>& fits) {
  for (auto& list : tasks.lists)
    if (fits(list)) return list;
  CHECK(false, "no list fits");
}
bool any(const ObkTask&) { return true; }

/// An arena buffer, the k-th.
Buffer& arena(TaskGraph& tasks, size_t k) {
  for (Buffer& buffer : tasks.buffers)
    if (buffer.kind == BufferKind::kArena && k-- == 0) return buffer;
  CHECK(false, "there are too few buffers");
}

struct Tampering {
  const char* name;
  const char* said;  // the whole reason, after "the task table is refused: "
  std::function<void(Table&)> how;
};

const Tampering kTamperings[] = {
    {"a work that is none", R"(SM \d+ has a task of work 1000, of \d+)",
     [](Table& t) { task_where(t.tasks, any).work = 1000; }},
    {"a list that goes back", R"(SM \d+ goes back from wave \d+ to \d+)",
     [](Table& t) {
       auto& list = list_where(
           t.tasks, [](const auto& l) { return l.size() > 1 && l.front().wave < l.back().wave; });
       std::swap(list.front(), list.back());
     }},
    {"a task in another wave", R"(SM \d+ runs work \d+ in wave \d+ instead of \d+)",
     [](Table& t) { ++list_where(t.tasks, [](const auto& l) { return !l.empty(); }).back().wave; }},
    {"a wave beyond the last", R"(SM \d+ has wave (\d+) of \1)", [](Table& t) { --t.tasks.waves; }},
    {"a task that is lost", R"(work \d+ computes (row|column) \d+ never)",
     [](Table& t) { list_where(t.tasks, [](const auto& l) { return l.size() > 1; }).pop_back(); }},
    {"a list that is lost", R"(work \d+ computes (row|column) \d+ never)",
     [](Table& t) { list_where(t.tasks, [](const auto& l) { return !l.empty(); }).clear(); }},
    {"a task that is there twice", R"(work \d+ computes (row|column) \d+ twice)",
     [](Table& t) {
       t.tasks.lists.back().push_back(list_where(t.tasks, [&](const auto& l) {
                                        return !l.empty() && &l != &t.tasks.lists.back();
                                      }).back());
     }},
    {"rows beyond the last", R"(work \d+ has rows \d+\.\.1\d{6} of \d+)",
     [](Table& t) {
       task_where(t.tasks, [](const ObkTask& k) { return k.r0 > 0; }).r1 += 1 << 20;
     }},
    {"rows before the first", R"(work \d+ computes row -8 twice)",
     [](Table& t) { task_where(t.tasks, [](const ObkTask& k) { return k.r0 == 0; }).r0 = -8; }},
    {"no rows", R"(work \d+ has rows (\d+)\.\.\1 of \d+)",
     [](Table& t) {
       ObkTask& k = task_where(t.tasks, any);
       k.r1 = k.r0;
     }},
    {"a hole in the rows", R"(work \d+ computes row \d+ never)",
     [](Table& t) {
       ++task_where(t.tasks, [&](const ObkTask& k) {
           return !t.tasks.works[k.work].nest.cut_columns && k.r1 - k.r0 > 1;
         }).r0;
     }},
    {"rows that overlap", R"(work \d+ computes row \d+ twice)",
     [](Table& t) { --task_where(t.tasks, [](const ObkTask& k) { return k.r0 > 0; }).r0; }},
    {"a hole in the columns", R"(work \d+ computes column \d+ never)",
     [](Table& t) { ++task_where(t.tasks, [](const ObkTask& k) { return k.c0 > 0; }).c0; }},
    {"columns that overlap", R"(work \d+ computes column \d+ twice)",
     [](Table& t) { --task_where(t.tasks, [](const ObkTask& k) { return k.c0 > 0; }).c0; }},
    {"tiles of unequal rows side by side", R"(work \d+ has tiles of unequal rows side by side)",
     [](Table& t) { --task_where(t.tasks, [](const ObkTask& k) { return k.c0 > 0; }).r1; }},
    {"columns beyond the last", R"(work \d+ computes \d+ of \d+ columns)",
     [](Table& t) {
       task_where(t.tasks, [&](const ObkTask& k) {
         return k.c0 > 0 && k.c1 == t.tasks.works[k.work].nest.column_count();
       }).c1 += 512;
     }},
    {"a reduction of half its columns", R"(work \d+ reduces only a part of its columns)",
     [](Table& t) {
       task_where(t.tasks, [&](const ObkTask& k) {
         return !t.tasks.works[k.work].nest.cut_columns && k.c1 > 1;
       }).c1 /= 2;
     }},
    {"a tile over two matrices", R"(work \d+ has a tile over two matrices)",
     [](Table& t) {
       task_where(t.tasks, [&](const ObkTask& k) {
         const Work& w = t.tasks.works[k.work];
         return t.plan.groups[w.group].kind == stitch::GroupKind::kProduct &&
                k.r1 == tile_span(t.plan.groups[w.group], w.nest);
       }).r1 += 4;
     }},
    {"a reader in its writer's wave",
     R"(work \d+ \(wave (\d+)\) reads what work \d+ writes in wave \1)",
     [](Table& t) {
       for (size_t w = 0; w < t.tasks.works.size(); ++w) {
         const auto& after = t.plan.groups[t.tasks.works[w].group].after;
         if (after.empty()) continue;
         Work& work = t.tasks.works[w];
         work.wave = t.tasks.works[after.back()].wave;
         for (auto& list : t.tasks.lists) {
           for (ObkTask& task : list)
             if (task.work == w) task.wave = static_cast<uint32_t>(work.wave);
           std::stable_sort(list.begin(), list.end(),
                            [](const ObkTask& a, const ObkTask& b) { return a.wave < b.wave; });
         }
         return;
       }
       CHECK(false, "nothing reads");
     }},
    {"a buffer that is none", R"(work 0 names buffer 1048576)",
     [](Table& t) { t.tasks.works.front().buffers[0] = 1 << 20; }},
    {"a buffer used after its life",
     R"(work \d+ uses buffer \d+ in wave (\d+), alive in \1\.\.-?\d+)",
     [](Table& t) {
       arena(t.tasks, 0).last = arena(t.tasks, 0).first;
       --arena(t.tasks, 0).last;
     }},
    {"a buffer used before its life", R"(work \d+ uses buffer \d+ in wave 0, alive in 1\.\.\d+)",
     [](Table& t) { ++arena(t.tasks, 0).first; }},
    {"a buffer before the arena", R"(value %\d+ lies outside of the arena)",
     [](Table& t) { arena(t.tasks, 0).offset = {-64}; }},
    {"a buffer behind the arena", R"(value %\d+ lies outside of the arena)",
     [](Table& t) { arena(t.tasks, 0).offset = t.tasks.arena; }},
    {"an arena that is too small", R"(value %\d+ lies outside of the arena)",
     [](Table& t) { t.tasks.arena = {1024}; }},
    {"buffers that share bytes", R"(values %\d+ and %\d+ share bytes in wave \d+)",
     [](Table& t) {
       Buffer &a = arena(t.tasks, 0), &b = arena(t.tasks, 1);
       b.offset = a.offset;
       a.first = b.first = 0, a.last = b.last = t.tasks.waves;
     }},
};

TEST(Validate, TakesWhatTheScheduleMade) {
  const Table t = table();
  const Status sound = validate(t.graph, t.plan, t.tasks);
  EXPECT_TRUE(sound.ok()) << sound.error().text();
}

TEST(Validate, RefusesATableThatWasTamperedWith) {
  for (const Tampering& tampering : kTamperings) {
    SCOPED_TRACE(tampering.name);
    Table t = table();
    tampering.how(t);
    const Status got = validate(t.graph, t.plan, t.tasks);
    ASSERT_FALSE(got.ok());
    const std::regex whole(std::string("the task table is refused: ") + tampering.said);
    EXPECT_TRUE(std::regex_match(got.error().message, whole))
        << "got    " << got.error().message << "\nwanted " << tampering.said;
  }
}

// ---- outputs in place of inputs ----

// The old value is read, the new one as well; an output beside.
constexpr const char* kInPlace = R"(graph "g" {
  in %0 "past": f32[2,64,8]
  in %1 "row": i64[2,1,8]
  in %2 "new": f32[2,1,8]
  in %3 "other": f32[2,64,8]
  const %4: i64[1] = [1]
  %5: f32[2,1,8] = ReduceSum(%0, %4) {keepdims = 1} "old"
  %6: f32[2,64,8] = ScatterElements(%0, %1, %2) {axis = 1} "put"
  %7: f32[2,1,8] = ReduceMax(%6, %4) {keepdims = 1} "sum"
  out %6 "now" in_place_of "past"
  out %5 "was"
  out %7 "is"
})";

Table table_in_place() {
  auto graph = graph::parse(kInPlace);
  CHECK(graph.ok(), "{}", graph.error().text());
  const machine::Machine device = machine::cpu(3);
  Table made{.graph = std::move(*graph)};
  made.plan = stitch::plan(made.graph, device);
  made.tasks = build(made.graph, made.plan, device);
  return made;
}
size_t writer_of(const Table& t) {
  for (size_t w = 0; w < t.tasks.works.size(); ++w)
    if (t.plan.groups[t.tasks.works[w].group].in_place_of != graph::kNone) return w;
  CHECK(false, "nothing is written in place");
}

const Tampering kTamperingsInPlace[] = {
    {"an old value that is read too late",
     R"(work 0 \(wave 1\) reads input %0, which work 1 overwrites in wave 1)",
     [](Table& t) {
       const size_t writer = writer_of(t);
       t.plan.groups[t.tasks.works[writer].group].after.clear();
       t.tasks.works[0].wave = t.tasks.works[writer].wave;
       for (auto& list : t.tasks.lists) {
         for (ObkTask& task : list)
           if (task.work == 0) task.wave = static_cast<uint32_t>(t.tasks.works[0].wave);
         std::stable_sort(list.begin(), list.end(),
                          [](const ObkTask& a, const ObkTask& b) { return a.wave < b.wave; });
       }
     }},
    {"no output takes the memory", R"(work 1 overwrites input %0, whose memory no output takes)",
     [](Table& t) { t.plan.in_place.clear(); }},
    {"an output of another input", R"(output 'now' is not in place of input %3)",
     [](Table& t) { t.plan.in_place[0].input = 3; }},
    {"a group that copies", R"(output 'now' is not in place of input %0)",
     [](Table& t) { t.plan.groups[t.tasks.works[writer_of(t)].group].in_place_of = graph::kNone; }},
    {"another output's memory", R"(work 1 overwrites input %0, but stores value %\d+ elsewhere)",
     [](Table& t) {
       for (Buffer& buffer : t.tasks.buffers)
         if (buffer.kind == BufferKind::kOutput && buffer.index == 0) buffer.index = 2;
     }},
    {"memory of its own", R"(work 1 overwrites input %0, but stores value %\d+ elsewhere)",
     [](Table& t) {
       for (Buffer& buffer : t.tasks.buffers)
         if (buffer.kind == BufferKind::kOutput && buffer.index == 0)
           buffer.kind = BufferKind::kArena;
     }},
    {"an old value that is an answer", R"(work 1 overwrites input %0, which is an output)",
     [](Table& t) { t.graph.mark_output(t.graph.inputs()[0], "before"); }},
    {"no waves", R"(work 1 of a dataflow program overwrites input %0)",
     [](Table& t) { t.tasks.dataflow = true; }},
};

TEST(Validate, RefusesAnOutputInPlaceThatWasTamperedWith) {
  for (const Tampering& tampering : kTamperingsInPlace) {
    SCOPED_TRACE(tampering.name);
    Table t = table_in_place();
    ASSERT_EQ(writer_of(t), 1u);
    const Status sound = validate(t.graph, t.plan, t.tasks);
    ASSERT_TRUE(sound.ok()) << sound.error().text();
    tampering.how(t);
    const Status got = validate(t.graph, t.plan, t.tasks);
    ASSERT_FALSE(got.ok());
    const std::regex whole(std::string("the task table is refused: ") + tampering.said);
    EXPECT_TRUE(std::regex_match(got.error().message, whole))
        << "got    " << got.error().message << "\nwanted " << tampering.said;
  }
}

// Layouts of values that lie inside others are checked against the graph: an image that is made of
// tokens, and an input of a concatenation.
TEST(Validate, RefusesPlacesThatTheGraphDoesNotHave) {
  const auto graph = graph::parse(R"(graph "g" {
  in %0 "x": f32[2,40,8]
  const %1: f32[8,1,3] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
  %2: f32[2,40,8] = Sigmoid(%0)
  %3: f32[2,8,40] = Transpose(%2) {perm = [0, 2, 1]}
  %4: f32[2,8,40] = Conv(%3, %1) {group = 8, pads = [1, 1]}
  %5: f32[2,8,40] = Relu(%4)
  %6: f32[2,16,40] = Concat(%4, %5) {axis = 1}
  %7: f32[2,16,40] = Tanh(%6)
  out %7 "y"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto value_of = [&](ops::Op op) {
    for (const graph::NodeId node : graph->order())
      if (graph->node(node).op == op) return graph->node(node).outputs[0];
    return graph::kNone;
  };
  const machine::Machine device = machine::cpu(2);
  const stitch::Plan plan = stitch::plan(*graph, device);
  const TaskGraph tasks = build(*graph, plan, device);
  ASSERT_TRUE(validate(*graph, plan, tasks).ok());
  const graph::ValueId image = value_of(ops::Op::Transpose), piece = value_of(ops::Op::Relu),
                       tokens = value_of(ops::Op::Sigmoid), whole = value_of(ops::Op::Concat);
  ASSERT_EQ(plan.layouts[image].part_of, tokens);
  ASSERT_EQ(plan.layouts[piece].part_of, whole);
  const auto refused = [&](const std::function<void(stitch::Plan&)>& how) {
    stitch::Plan wrong = plan;
    how(wrong);
    const Status got = validate(*graph, wrong, tasks);
    return got.ok() ? "accepted" : got.error().message;
  };
  const auto said = [](graph::ValueId value, graph::ValueId storage, const char* what) {
    return fmt::format("value %{} is stored inside %{}, but {}", value, storage, what);
  };
  EXPECT_EQ(refused([&](stitch::Plan& p) { p.layouts[image].offset += 4; }),
            said(image, tokens, "at offset 4 instead of 0"));
  EXPECT_EQ(refused([&](stitch::Plan& p) { p.layouts[image].strides[1] = 40; }),
            said(image, tokens, "its strides are not those of the storage"));
  EXPECT_EQ(refused([&](stitch::Plan& p) { p.layouts[piece].part_of = graph::kNone; }),
            said(piece, whole, "nothing leads there"));
  EXPECT_EQ(refused([&](stitch::Plan& p) { p.layouts[piece].part_of = tokens; }),
            said(piece, whole, "no chain of concatenations, slices and moves leads there"));
}

TEST(Buffers, ShareTheArenaOneAfterTheOther) {
  const Table t = table();
  Bytes together{0};
  for (const Buffer& buffer : t.tasks.buffers)
    if (buffer.kind == BufferKind::kArena) together.count += buffer.room().count;
  EXPECT_GT(together.count, 0);
  EXPECT_LT(t.tasks.arena.count, together.count);
}

// ---- gangs: members of one wait for each other ----
constexpr const char* kSteps = R"(graph "g" {
  in %0 "x": f32[4,20,2048]
  in %1 "r": f16[2,1024,256]
  in %2 "s": f32[4,3,768]
  in %3 "q": f16[1,768,256]
  in %4 "w": f32[512,512]
  %5: f16[4,2,20,256] = Recurrence(%0, %1) {cell = "lstm", direction = "bidirectional"}
  %6: f16[4,1,3,256] = Recurrence(%2, %3) {cell = "gru", direction = "reverse"}
  %7: f32[512,512] = MatMul(%4, %4)
  out %5 "y"
  out %6 "z"
  out %7 "p"
})";

Table table_of_gangs(int sms) {
  auto graph = graph::parse(kSteps);
  CHECK(graph.ok(), "{}", graph.error().text());
  auto device = machine::gpu("sm_90a", sms);
  CHECK(device.ok());
  Table made{.graph = std::move(*graph)};
  made.plan = stitch::plan(made.graph, *device, {}, {.gangs = true});
  made.tasks = build(made.graph, made.plan, *device);
  return made;
}

TEST(Validate, MembersOfAGangHaveAnSmEach) {
  for (int sms : {8, 9, 13, 50, 132}) {
    const Table t = table_of_gangs(sms);
    int64_t members = 0;
    for (const auto& list : t.tasks.lists)
      for (const ObkTask& task : list)
        members += t.plan.groups[t.tasks.works[task.work].group].block.gang == 8;
    EXPECT_EQ(members, 2 * 3 * 8 + 8) << sms;
    const Status sound = validate(t.graph, t.plan, t.tasks);
    EXPECT_TRUE(sound.ok()) << sms << ": " << sound.error().text();
  }
}

TEST(Validate, RefusesGangsThatWouldWaitForEver) {
  const auto ganged = [](const Table& t, const ObkTask& task) {
    return t.plan.groups[t.tasks.works[task.work].group].block.gang > 0;
  };
  Table t = table_of_gangs(8);  // seven gangs, each on all SMs
  std::vector<ObkTask>& list = t.tasks.lists[3];
  const auto first =
      std::find_if(list.begin(), list.end(), [&](const ObkTask& task) { return ganged(t, task); });
  ASSERT_TRUE(first != list.end() && ganged(t, *(first + 1)));
  std::swap(*first, *(first + 1));
  Status got = validate(t.graph, t.plan, t.tasks);
  ASSERT_FALSE(got.ok());
  EXPECT_NE(got.error().message.find("too late"), std::string::npos) << got.error().message;
  std::swap(*first, *(first + 1));
  // Two members on one SM.
  t.tasks.lists[4].insert(std::find_if(t.tasks.lists[4].begin(), t.tasks.lists[4].end(),
                                       [&](const ObkTask& task) { return ganged(t, task); }),
                          *first);
  list.erase(first);
  got = validate(t.graph, t.plan, t.tasks);
  ASSERT_FALSE(got.ok());
  EXPECT_NE(got.error().message.find("two members"), std::string::npos) << got.error().message;
}

}  // namespace
}  // namespace obelisk::schedule
