// Programs without barriers: which flow, what each worker does of them, and that a table in which
// somebody reads what it has not is refused.
#include "schedule/dataflow.h"
#include "schedule/dataflow_check.h"
#include "schedule/dataflow_spans.h"
#include "schedule/tile_gemm_dataflow.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <span>

#include "graph/test_decoder.h"
#include "passes/passes.h"
#include "schedule/in_place_kv.h"

namespace obelisk::schedule {
namespace {

struct Table {
  graph::Graph graph;
  stitch::Plan plan;
  TaskGraph tasks;
};

Table table(graph::Graph graph, bool dataflow = true, const std::string& target = "sm_90a") {
  auto device = machine::device(target, 132);
  CHECK(device.ok());
  const machine::Strategy strategy{.sync = dataflow ? machine::Sync::kDataflow
                                                    : machine::Sync::kBarrier};
  auto early = passes::copy_early_pieces(std::move(graph));
  CHECK(early.ok(), "{}", early.error().text());
  auto gates = passes::merge_gates(std::move(*early));
  CHECK(gates.ok(), "{}", gates.error().text());
  Table made{.graph = std::move(*gates)};
  made.plan = stitch::plan(made.graph, *device, strategy);
  made.tasks = build(made.graph, made.plan, *device, strategy);
  return made;
}

TEST(Dataflow, ADecodersTokenIsDataflow) {
  const Table t = table(graph::decoder_step(DType::f16));
  ASSERT_TRUE(t.tasks.dataflow) << print(t.graph, t.plan, t.tasks);
  const Status valid = validate(t.graph, t.plan, t.tasks);
  EXPECT_TRUE(valid.ok()) << valid.error().text();
  int broadcast = 0, local = 0;
  for (const Buffer& buffer : t.tasks.buffers) {
    broadcast += buffer.reach == Reach::kBroadcast, local += buffer.reach == Reach::kLocal;
    if (buffer.reach == Reach::kBroadcast) {
      EXPECT_EQ(byte_size(buffer.type.dtype, 1), 2)
          << "squares of a norm, wider than what they are made of, are its reader's";
    }
    if (buffer.reach != Reach::kAll) {
      EXPECT_GE(buffer.copy_at.count, 0);
      EXPECT_LE((buffer.copy_at + buffer.size).count, t.tasks.copies.count);
    }
    if (buffer.kind == BufferKind::kArena) {
      EXPECT_EQ(buffer.last, t.tasks.waves - 1)
          << "memory that others may read is not written twice";
    }
  }
  EXPECT_GE(broadcast, 7);  // of two layers: queries, keys and values; attention; its product;
                            // gates; the last layer's product is an output
  EXPECT_GE(local, 4);      // norms, queries
  EXPECT_GT(t.tasks.copies.count, 0);
}

// Vocabularies that no width of a tile divides: the last tile is narrower.
TEST(Dataflow, AnyNumberOfWordsIsBroadcast) {
  for (const int64_t words : {1000, 32000, 32001, 50257}) {
    const Table t = table(graph::decoder_step(DType::f16, {.layers = 1, .words = words}));
    ASSERT_TRUE(t.tasks.dataflow) << words;
    const Status valid = validate(t.graph, t.plan, t.tasks);
    EXPECT_TRUE(valid.ok()) << words << ": " << valid.error().text();
    const Work& last = t.tasks.works.back();
    EXPECT_EQ(last.nest.column_count(), words);
    EXPECT_EQ(words == 32000, words % last.tile_columns == 0)
        << last.tile_columns << " columns of " << words;
  }
}

bool is_copy(const Work& work, const stitch::Group& group) {
  return work.replicated() && group.after.empty() && work.nest.row_count() > 1;
}

// Where tiles read keys and values from memory of their own, who has a head copies them.
TEST(Dataflow, WhoAttendsCopiesWhatItReads) {
  const Table t = table(graph::decoder_step(DType::f16), true, "cpu");
  ASSERT_TRUE(t.tasks.dataflow);
  size_t attending = 0;
  for (size_t sm = 0; sm < t.tasks.lists.size(); ++sm) {
    bool attends = false, copies = false;
    for (const ObkTask& task : t.tasks.lists[sm]) {
      const Work& work = t.tasks.works[task.work];
      attends |= t.plan.groups[work.group].kind == stitch::GroupKind::kAttention;
      copies |= is_copy(work, t.plan.groups[work.group]) &&
                t.tasks.buffers[work.buffers[0]].kind == BufferKind::kInput;
      EXPECT_EQ(task.weight_group, 0);
    }
    EXPECT_EQ(attends, copies) << "SM " << sm;
    attending += attends;
  }
  EXPECT_GE(attending, 8u);
}

// Where tiles take them from the caller's memory nobody copies: each piece of a head's keys is a
// range of the two inputs.
TEST(Dataflow, KeysAreReadInPlace) {
  constexpr int64_t kKeys = 320, kHeads = 8, kSize = 64;
  const Table t =
      table(graph::decoder_step(DType::f16, {.heads = kHeads, .size = kSize, .keys = kKeys}));
  ASSERT_TRUE(t.tasks.dataflow);
  std::map<std::pair<uint32_t, int64_t>, std::vector<std::pair<int64_t, int64_t>>>
      ranges;  // by work and head: bytes of the input
  for (const std::vector<ObkTask>& list : t.tasks.lists)
    for (const ObkTask& task : list) {
      const Work& work = t.tasks.works[task.work];
      const stitch::Group& group = t.plan.groups[work.group];
      EXPECT_FALSE(is_copy(work, group) &&
                   t.tasks.buffers[work.buffers[0]].kind == BufferKind::kInput);
      if (group.kind != stitch::GroupKind::kAttention) continue;
      ASSERT_EQ(work.dataflow->in_place_kv, DType::f32);
      EXPECT_EQ(task.weight_group, -kSize * 4);
      const int64_t from = (task.weights & UINT32_MAX) * 16;
      EXPECT_EQ(task.weights >> 32, task.weights & UINT32_MAX) << "keys and values lie alike here";
      for (size_t k = 1; k <= 2; ++k)
        EXPECT_EQ(t.tasks.buffers[work.buffers[work.buffers.size() - k]].kind, BufferKind::kInput);
      ranges[{task.work, task.r0}].push_back({from, from + task.weight_bytes});
      const int64_t here = in_place_keys_of(task);
      const Span rest = read_by(t.plan, t.tasks, task, group.body.operands.size() + 1);
      const bool last = task.c1 == kSize;
      EXPECT_EQ(rest.high - rest.low, last ? kSize : 0) << "the new key";
      EXPECT_EQ(here * kSize * 4, task.weight_bytes);
    }
  ASSERT_EQ(ranges.size(), 2u * kHeads);
  for (auto& [of, all] : ranges) {
    std::sort(all.begin(), all.end());
    int64_t at = of.second * (kKeys - 1) * kSize * 4;
    for (const auto& [low, high] : all) {
      EXPECT_EQ(low, at);
      at = high;
    }
    EXPECT_EQ(at, (of.second + 1) * (kKeys - 1) * kSize * 4) << "head " << of.second;
  }
}

// A cache that the run updates is read where it lies, all of it, and the new row from where its
// scatter takes it; the scatter runs where no attention to that cache does.
TEST(Dataflow, ACacheIsReadBesideItsUpdate) {
  constexpr int64_t kKeys = 320, kHeads = 8, kSize = 64;
  const Table t = table(graph::decoder_step(DType::f16, {.keys = kKeys, .fixed_cache = true}));
  ASSERT_TRUE(t.tasks.dataflow);
  const Status valid = validate(t.graph, t.plan, t.tasks);
  EXPECT_TRUE(valid.ok()) << valid.error().text();
  int64_t keys = 0, updates = 0;
  for (const std::vector<ObkTask>& list : t.tasks.lists) {
    std::set<int> updated, read;
    for (const ObkTask& task : list) {
      const Work& work = t.tasks.works[task.work];
      const stitch::Group& group = t.plan.groups[work.group];
      if (group.kind == stitch::GroupKind::kBlock)
        ++updates, updated.insert(work.buffers[group.body.operands.size() - 1]);
      if (group.kind != stitch::GroupKind::kAttention) continue;
      keys += in_place_keys_of(task);
      ASSERT_TRUE(work.dataflow->cache_rows);
      const size_t slot = work.dataflow->cache_rows->slot;
      const Span rows = read_by(t.plan, t.tasks, task, slot + 2);
      EXPECT_EQ(rows.high - rows.low, kSize);
      EXPECT_EQ(rows.low % kSize, 0);
      EXPECT_EQ(read_by(t.plan, t.tasks, task, slot).high, 1);
      const size_t operand = group.body.operands.size();
      read.insert({work.buffers[operand + 1], work.buffers[operand + 2]});
      for (size_t k = 1; k <= 2; ++k) {
        const Buffer& buffer = t.tasks.buffers[work.buffers[work.buffers.size() - k]];
        EXPECT_EQ(buffer.kind, BufferKind::kOutput);
        EXPECT_NE(t.graph.in_place_of(static_cast<size_t>(buffer.index)), graph::kNone);
      }
      EXPECT_EQ(read_by(t.plan, t.tasks, task, operand + 3).high -
                    read_by(t.plan, t.tasks, task, operand + 3).low,
                in_place_keys_of(task))
          << "the mask of its keys";
    }
    for (const int cache : updated) EXPECT_EQ(read.count(cache), 0u);
  }
  EXPECT_EQ(keys, 2 * kHeads * kKeys);
  EXPECT_GT(updates, 0);
}

// Who else reads the cache, before or after, would have to wait; and rows at several places are not
// told by one index.
TEST(Dataflow, OtherUsesOfACacheHaveBarriers) {
  EXPECT_FALSE(table(graph::decoder_step(DType::f16, {.fixed_cache = true, .places_differ = true}))
                   .tasks.dataflow);
  EXPECT_FALSE(
      table(graph::decoder_step(DType::f16, {.fixed_cache = true}), true, "cpu").tasks.dataflow);
  for (const bool old : {false, true}) {
    graph::Graph graph = graph::decoder_step(DType::f16, {.layers = 1, .fixed_cache = true});
    const auto by_name = [&](std::string_view name) {
      for (const graph::ValueId v : graph.inputs())
        if (graph.value(v).name == name) return v;
      for (size_t k = 0; k < graph.outputs().size(); ++k)
        if (graph.output_names()[k] == name) return graph.outputs()[k];
      return graph::kNone;
    };
    graph.mark_output(graph.must_add(ops::Op::Neg, {by_name(old ? "keys0" : "new_keys0")}),
                      "negative");
    const Table t = table(std::move(graph));
    EXPECT_FALSE(t.tasks.dataflow) << old;
    EXPECT_TRUE(validate(t.graph, t.plan, t.tasks).ok());
  }
}

// Whatever the sizes, the table is one that nobody waits in for ever and in which all that is read
// is there; most of these flow.
TEST(Dataflow, TablesOfManySizesAreRight) {
  int flowing = 0, all = 0;
  for (const int64_t width : {64, 192})
    for (const int64_t heads : {1, 3, 8})
      for (const int64_t keys : {256, 301, 1025, 3000})
        for (const int64_t inner : {64, 200, 1024}) {
          const Table t = table(graph::decoder_step(
              DType::bf16, {.width = width, .heads = heads, .keys = keys, .inner = inner}));
          const Status valid = validate(t.graph, t.plan, t.tasks);
          ASSERT_TRUE(valid.ok()) << width << " " << heads << " " << keys << " " << inner << ": "
                                  << valid.error().text();
          ++all, flowing += t.tasks.dataflow;
        }
  EXPECT_GT(flowing, all / 2) << "of " << all;
}

TEST(Dataflow, WhatIsLargeOrManyRowsOrOfOtherMachinesDoesNot) {
  EXPECT_FALSE(table(graph::decoder_step(DType::f16), false).tasks.dataflow);
  EXPECT_FALSE(table(graph::decoder_step(DType::f32))
                   .tasks.dataflow);  // no tile that takes pages as they come
  EXPECT_FALSE(table(graph::decoder_step(DType::f16, {.width = 64, .heads = 1, .inner = 20480}))
                   .tasks.dataflow);  // 40 KB to pass on
  EXPECT_FALSE(table(graph::decoder_step(DType::f16, {.keys = 64}))
                   .tasks.dataflow);  // attention in one piece
  // Nobody waits for what is stored into an output.
  for (const std::string& target : {std::string("sm_90a"), std::string("cpu")}) {
    EXPECT_FALSE(
        table(graph::decoder_step(DType::f16, {.gives_keys = true}), true, target).tasks.dataflow)
        << target;
    EXPECT_FALSE(
        table(graph::decoder_step(DType::f16, {.gives_sum = true}), true, target).tasks.dataflow)
        << target;
  }
}

/// The first task of a work that fits.
ObkTask& task_of(Table& t, const std::function<bool(const Work&, const stitch::Group&)>& fits) {
  for (auto& list : t.tasks.lists)
    for (ObkTask& task : list)
      if (fits(t.tasks.works[task.work], t.plan.groups[t.tasks.works[task.work].group]))
        return task;
  CHECK(false, "no task fits");
}
Buffer& buffer_of(Table& t, Reach reach) {
  for (Buffer& buffer : t.tasks.buffers)
    if (buffer.reach == reach) return buffer;
  CHECK(false, "no buffer fits");
}
bool attends(const Work&, const stitch::Group& group) {
  return group.kind == stitch::GroupKind::kAttention;
}

TEST(Dataflow, KeysOfTheDecodersOwnTypeStayToo) {
  const Table t = table(graph::decoder_step(DType::bf16, {.size = 32, .past = DType::bf16}));
  ASSERT_TRUE(t.tasks.dataflow);
  int64_t keys = 0;
  for (const std::vector<ObkTask>& list : t.tasks.lists)
    for (const ObkTask& task : list) {
      if (task.weight_group >= 0) continue;
      EXPECT_EQ(task.weight_group, -32 * 2);
      EXPECT_EQ(t.tasks.works[task.work].dataflow->in_place_kv, DType::bf16);
      keys += in_place_keys_of(task);
    }
  EXPECT_EQ(keys, 2 * 8 * 319);  // of two layers and eight heads all but the new ones
}

TEST(Dataflow, ATableThatReadsWhatIsNotThereIsRefused) {
  struct Tampering {
    const char* name;
    const char* said;
    std::function<void(Table&)> how;
  };
  const Tampering of_copies[] = {
      {"a piece of a copy is missing", "has not computed it",
       [](Table& t) { task_of(t, is_copy).c1 -= 8; }},
      {"a copy is another row's", "has not computed it",
       [](Table& t) {
         ObkTask& task = task_of(t, is_copy);
         (task.r0 > 0 ? --task.r0, --task.r1 : ++task.r0, ++task.r1);
       }},
  };
  const Tampering tamperings[] = {
      {"keys in place are another head's", "does not keep them",
       [](Table& t) { task_of(t, attends).weights += 64; }},
      {"more keys than are in place", "does not keep them",
       [](Table& t) {
         ObkTask& task = task_of(t, attends);
         task.weight_bytes -= task.weight_group;
       }},
      {"rows of another size", "does not keep them",
       [](Table& t) { task_of(t, attends).weight_group *= 2; }},
      {"values of another input", "does not keep them",
       [](Table& t) {
         Work& work = t.tasks.works[task_of(t, attends).work];
         work.buffers.back() = work.buffers[work.buffers.size() - 2];
       }},
      {"keys that nobody brings", "has not computed it",
       [](Table& t) {
         ObkTask& task = task_of(t, attends);
         task.weight_group = task.weight_bytes = 0, task.weights = 0;
       }},
      {"a worker does not compute its norm", "has no copy of value",
       [](Table& t) {
         for (auto& list : t.tasks.lists)
           if (std::erase_if(list, [&](const ObkTask& task) {
                 return t.tasks.works[task.work].replicated() &&
                        !is_copy(t.tasks.works[task.work],
                                 t.plan.groups[t.tasks.works[task.work].group]);
               }))
             return;
       }},
      {"a part of a broadcast value is lost", " never",
       [](Table& t) {
         for (auto& list : t.tasks.lists)
           if (std::erase_if(list, [&](const ObkTask& task) {
                 return !t.tasks.works[task.work].replicated();
               }))
             return;
       }},
      {"a broadcast value is local", "not broadcast",
       [](Table& t) { buffer_of(t, Reach::kBroadcast).reach = Reach::kLocal; }},
      {"a local value is broadcast", "is broadcast, and computed by each worker",
       [](Table& t) { buffer_of(t, Reach::kLocal).reach = Reach::kBroadcast; }},
      {"copies lie where others lie", "has overwritten its copy",
       [](Table& t) {
         for (Buffer& buffer : t.tasks.buffers)
           if (buffer.copy_at.count > 0) buffer.copy_at = {0};
       }},
      {"a copy leaves its place", "leaves its place",
       [](Table& t) { t.tasks.copies = {t.tasks.copies.count / 2}; }},
      {"words lie where others lie", "share bytes",
       [](Table& t) {
         for (Buffer& buffer : t.tasks.buffers)
           if (buffer.kind == BufferKind::kArena) buffer.offset = {0};
       }},
      {"what is passed on is an output", "reads an output",
       [](Table& t) { buffer_of(t, Reach::kBroadcast).kind = BufferKind::kOutput; }},
      {"a norm of half its row", "columns 0..256 of 1 x 512",
       [](Table& t) {
         task_of(t, [](const Work& work, const stitch::Group&) {
           return work.replicated() && !work.nest.cut_columns;
         }).c1 /= 2;
       }},
  };
  const auto refuses_all = [](const Table& right, std::span<const Tampering> all) {
    ASSERT_TRUE(validate(right.graph, right.plan, right.tasks).ok());
    for (const auto& [name, said, how] : all) {
      Table t = right;
      how(t);
      const Status status = validate(t.graph, t.plan, t.tasks);
      ASSERT_FALSE(status.ok()) << name;
      EXPECT_NE(status.error().message.find(said), std::string::npos)
          << name << ": " << status.error().message;
    }
  };
  const Tampering of_caches[] = {
      {"new keys are another value's", "takes new keys from where they are not",
       [](Table& t) {
         Work& work = t.tasks.works[task_of(t, attends).work];
         work.buffers[work.dataflow->cache_rows->slot + 1] = work.buffers[0];
       }},
      {"new values are another head's", "takes new keys from where they are not",
       [](Table& t) {
         ++t.tasks.works[task_of(t, attends).work].dataflow->cache_rows->values.offset;
       }},
      {"nobody puts new keys in their place", "does not keep them",
       [](Table& t) { t.tasks.works[task_of(t, attends).work].dataflow->cache_rows.reset(); }},
      {"keys of the cache are another head's", "does not keep them",
       [](Table& t) { task_of(t, attends).weights += 64; }},
      {"another work reads the cache", "overwrites input",
       [](Table& t) {
         const Work& attention = t.tasks.works[task_of(t, attends).work];
         const int cache = attention.buffers.back();
         t.tasks.works.back().buffers.push_back(cache);
       }},
  };
  refuses_all(table(graph::decoder_step(DType::f16, {.fixed_cache = true})), of_caches);
  refuses_all(table(graph::decoder_step(DType::f16)), tamperings);
  refuses_all(table(graph::decoder_step(DType::f16), true, "cpu"), of_copies);
}

}  // namespace
}  // namespace obelisk::schedule
