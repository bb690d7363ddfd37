// Programs without barriers: which flow, what each worker does of them, and that a table in which somebody reads what it has not is refused.
#include "schedule/flow.h"

#include <gtest/gtest.h>

#include <functional>

#include "graph/test_decoder.h"
#include "passes/passes.h"

namespace obelisk::schedule {
namespace {

struct Table {
  graph::Graph graph;
  stitch::Plan plan;
  TaskGraph tasks;
};

Table table(graph::Graph graph, bool flows = true) {
  auto device = target::gpu("sm_90a");
  CHECK(device.ok());
  device->flows = flows;
  auto early = passes::copy_early_pieces(std::move(graph));
  CHECK(early.ok(), "{}", early.error().text());
  auto gates = passes::merge_gates(std::move(*early));
  CHECK(gates.ok(), "{}", gates.error().text());
  Table made{.graph = std::move(*gates)};
  made.plan = stitch::plan(made.graph, *device);
  made.tasks = build(made.graph, made.plan, *device);
  return made;
}

TEST(Flow, ADecodersTokenFlows) {
  const Table t = table(graph::decoder_step(DType::f16));
  ASSERT_TRUE(t.tasks.flows) << print(t.graph, t.plan, t.tasks);
  const Status valid = validate(t.graph, t.plan, t.tasks);
  EXPECT_TRUE(valid.ok()) << valid.error().text();
  int given = 0, own = 0;
  for (const Buffer& buffer : t.tasks.buffers) {
    given += buffer.reach == Reach::kGiven, own += buffer.reach == Reach::kOwn;
    if (buffer.reach != Reach::kAll) {
      EXPECT_GE(buffer.near.count, 0);
      EXPECT_LE((buffer.near + buffer.size).count, t.tasks.near.count);
    }
    if (buffer.kind == BufferKind::kArena) {
      EXPECT_EQ(buffer.last, t.tasks.waves - 1) << "memory that others may read is not written twice";
    }
  }
  EXPECT_GE(given, 7);  // of two layers: queries, keys and values; attention; its product; gates; the last layer's product is an output
  EXPECT_GE(own, 4);    // norms, queries
  EXPECT_GT(t.tasks.near.count, 0);
  // Who has a piece of a head's keys copies that piece; attention has workers without a part of the product before it.
  for (size_t sm = 0; sm < t.tasks.lists.size(); ++sm) {
    bool attends = false, copies = false;
    for (const ObkTask& task : t.tasks.lists[sm]) {
      const Work& work = t.tasks.works[task.work];
      attends |= t.plan.groups[work.group].kind == stitch::GroupKind::kAttention;
      copies |= work.own && t.plan.groups[work.group].after.empty() && t.tasks.buffers[work.buffers[0]].kind == BufferKind::kInput && work.nest.row_count() > 1;
    }
    EXPECT_EQ(attends, copies) << "SM " << sm;
  }
}

// Whatever the sizes, the table is one that nobody waits in for ever and in which all that is read is there; most of these flow.
TEST(Flow, TablesOfManySizesAreRight) {
  int flowing = 0, all = 0;
  for (const int64_t width : {64, 192})
    for (const int64_t heads : {1, 3, 8})
      for (const int64_t keys : {256, 301, 1025, 3000})
        for (const int64_t inner : {64, 200, 1024}) {
          const Table t = table(graph::decoder_step(DType::bf16, {.width = width, .heads = heads, .keys = keys, .inner = inner}));
          const Status valid = validate(t.graph, t.plan, t.tasks);
          ASSERT_TRUE(valid.ok()) << width << " " << heads << " " << keys << " " << inner << ": " << valid.error().text();
          ++all, flowing += t.tasks.flows;
        }
  EXPECT_GT(flowing, all / 2) << "of " << all;
}

TEST(Flow, WhatIsLargeOrManyRowsOrOfOtherMachinesDoesNot) {
  EXPECT_FALSE(table(graph::decoder_step(DType::f16), false).tasks.flows);
  EXPECT_FALSE(table(graph::decoder_step(DType::f32)).tasks.flows);                              // no tile that takes pages as they come
  EXPECT_FALSE(table(graph::decoder_step(DType::f16, {.width = 64, .heads = 1, .inner = 20480})).tasks.flows);            // 40 KB to pass on
  EXPECT_FALSE(table(graph::decoder_step(DType::f16, {.keys = 64})).tasks.flows);                // attention in one piece
}

/// The first task of a work that fits.
ObkTask& task_of(Table& t, const std::function<bool(const Work&, const stitch::Group&)>& fits) {
  for (auto& list : t.tasks.lists)
    for (ObkTask& task : list)
      if (fits(t.tasks.works[task.work], t.plan.groups[t.tasks.works[task.work].group])) return task;
  CHECK(false, "no task fits");
}
Buffer& buffer_of(Table& t, Reach reach) {
  for (Buffer& buffer : t.tasks.buffers)
    if (buffer.reach == reach) return buffer;
  CHECK(false, "no buffer fits");
}
bool is_copy(const Work& work, const stitch::Group& group) { return work.own && group.after.empty() && work.nest.row_count() > 1; }

TEST(Flow, ATableThatReadsWhatIsNotThereIsRefused) {
  struct { const char* name; const char* said; std::function<void(Table&)> how; } tamperings[] = {
      {"a piece of a copy is missing", "has not computed it", [](Table& t) { task_of(t, is_copy).c1 -= 8; }},
      {"a copy is another row's", "has not computed it", [](Table& t) { ObkTask& task = task_of(t, is_copy); (task.r0 > 0 ? --task.r0, --task.r1 : ++task.r0, ++task.r1); }},
      {"a worker does not compute its norm", "", [](Table& t) {
         for (auto& list : t.tasks.lists)
           if (std::erase_if(list, [&](const ObkTask& task) { return t.tasks.works[task.work].own && !is_copy(t.tasks.works[task.work], t.plan.groups[t.tasks.works[task.work].group]); })) return;
       }},
      {"a part of what is given is lost", "", [](Table& t) {
         for (auto& list : t.tasks.lists)
           if (std::erase_if(list, [&](const ObkTask& task) { return !t.tasks.works[task.work].own; })) return;
       }},
      {"what is given is everybody's own", "given to nobody", [](Table& t) { buffer_of(t, Reach::kGiven).reach = Reach::kOwn; }},
      {"a worker's own is given", "", [](Table& t) { buffer_of(t, Reach::kOwn).reach = Reach::kGiven; }},
      {"copies lie where others lie", "", [](Table& t) {
         for (Buffer& buffer : t.tasks.buffers)
           if (buffer.near.count > 0) buffer.near = {0};
       }},
      {"a copy leaves its place", "leaves its place", [](Table& t) { t.tasks.near = {t.tasks.near.count / 2}; }},
      {"words lie where others lie", "share bytes", [](Table& t) {
         for (Buffer& buffer : t.tasks.buffers)
           if (buffer.kind == BufferKind::kArena) buffer.offset = {0};
       }},
      {"a norm of half its row", "", [](Table& t) { task_of(t, [](const Work& work, const stitch::Group&) { return work.own && !work.nest.cut_columns; }).c1 /= 2; }},
  };
  const Table right = table(graph::decoder_step(DType::f16));
  ASSERT_TRUE(validate(right.graph, right.plan, right.tasks).ok());
  for (const auto& [name, said, how] : tamperings) {
    Table t = right;
    how(t);
    const Status status = validate(t.graph, t.plan, t.tasks);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_NE(status.error().message.find(said), std::string::npos) << name << ": " << status.error().message;
  }
}

}  // namespace
}  // namespace obelisk::schedule
