// How works are cut into tiles on a CPU.
#include <gtest/gtest.h>

#include <set>

#include "schedule/schedule.h"
#include "schedule/tile_gemm_pipelined.h"

namespace obelisk::schedule {
namespace {

TaskGraph scheduled(const std::string& text, int workers) {
  const auto graph = graph::parse(text);
  CHECK(graph.ok(), "{}", graph.error().text());
  const machine::Machine device = machine::cpu(workers);
  const stitch::Plan plan = stitch::plan(*graph, device);
  TaskGraph tasks = build(*graph, plan, device);
  const Status sound = validate(*graph, plan, tasks);
  CHECK(sound.ok(), "{}", sound.error().text());
  return tasks;
}

std::string product(int64_t rows, int64_t k, int64_t columns) {
  return fmt::format(R"(graph "g" {{
  in %0 "x": f32[{0},{1}]
  in %1 "w": f32[{1},{2}]
  %2: f32[{0},{2}] = MatMul(%0, %1)
  out %2 "y"
}})",
                     rows, k, columns);
}

// All rows of a layer of a transformer stand in one tile, so that no weight is read twice.
TEST(Tiles, AProductReadsItsWeightsOnce) {
  for (const int64_t columns : {768, 2304, 3072}) {
    const TaskGraph tasks = scheduled(product(128, 768, columns), 2);
    EXPECT_EQ(tasks.works.back().tile_rows, 128) << columns;
    EXPECT_EQ(tasks.lists[0].size(), tasks.lists[1].size()) << columns;
  }
}

TEST(Tiles, EveryWorkerOfManyHasSome) {
  const TaskGraph tasks = scheduled(product(512, 768, 3072), 32);
  for (const auto& list : tasks.lists) EXPECT_GE(list.size(), 1u);
}

TEST(Tiles, AProductOfAFewNanosecondsIsOneTask) {
  EXPECT_EQ(scheduled(product(4, 8, 32), 2).task_count(), 1);
}

// Rows that are looked up are contiguous along their columns, whatever order the numbers of the
// rows are read in; what a sum takes of many such rows is contiguous along the row that it makes.
TEST(Tiles, LookedUpRowsRunAlongThemselves) {
  const auto over_rows = [](const std::string& text) {
    return scheduled(text, 2).works.at(0).nest.lanes_in_rows;
  };
  EXPECT_FALSE(over_rows(R"(graph "g" {
  in %0 "words": i64[8,17]
  in %1 "table": f32[100,384]
  in %2 "position": f32[1,17,384]
  const %3: i64[1] = [-1]
  %4: f32[8,17,384] = Gather(%1, %0) {axis = 0}
  %5: f32[8,17,384] = Add(%4, %2)
  %6: f32[8,17,1] = ReduceMean(%5, %3) {keepdims = 1}
  %7: f32[8,17,384] = Sub(%5, %6)
  out %7 "y"
})"));
  EXPECT_TRUE(over_rows(R"(graph "g" {
  in %0 "words": i64[64,39]
  in %1 "table": f32[100,16]
  const %2: i64[1] = [1]
  %3: f32[64,39,16] = Gather(%1, %0) {axis = 0}
  %4: f32[64,16] = ReduceSum(%3, %2) {keepdims = 0}
  out %4 "y"
})"));
}

// Twelve heads of 197 queries are 156 blocks of 16, which would go round twice on a GPU of 132
// multiprocessors.
TEST(Tiles, AttentionGoesRoundOnce) {
  const auto graph = graph::parse(R"(graph "g" {
  in %0 "q": f16[1,12,197,64]
  in %1 "k": f16[1,12,197,64]
  in %2 "v": f16[1,12,197,64]
  %3: f16[1,12,197,64] = Attention(%0, %1, %2)
  out %3 "y"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto device = machine::gpu("sm_90a");
  ASSERT_TRUE(device.ok());
  const stitch::Plan plan = stitch::plan(*graph, *device);
  const TaskGraph tasks = build(*graph, plan, *device);
  EXPECT_LE(tasks.task_count(), 132);
  EXPECT_TRUE(validate(*graph, plan, tasks).ok());
}

// Attention of one task a multiprocessor has a kernel without a table where its rectangles are a
// grid: heads whose last block of queries is smaller are none where heads are rows.
TEST(Tiles, AttentionOfOneRoundNeedsNoTable) {
  const auto work_of = [](int64_t images, int64_t heads, int64_t queries, bool packed,
                          bool as_grid) {
    const std::string type = packed ? fmt::format("f16[{},{},{}]", images, queries, heads * 64)
                                    : fmt::format("f16[{},{},{},64]", images, heads, queries);
    const auto graph = graph::parse(fmt::format(
        "graph \"g\" {{\n  in %0 \"q\": {0}\n  in %1 \"k\": {0}\n  in %2 \"v\": {0}\n  %3: {0} = "
        "Attention(%0, %1, %2){1}\n  out %3 \"y\"\n}}",
        type, packed ? fmt::format(" {{q_num_heads = {0}, kv_num_heads = {0}}}", heads) : ""));
    CHECK(graph.ok(), "{}", graph.error().text());
    const machine::Machine device = *machine::gpu("sm_90a");
    const machine::Strategy strategy{
        .min_grid_bytes = {as_grid ? device.scratchpad.count * device.sms : 0}};
    const stitch::Plan plan = stitch::plan(*graph, device, strategy);
    const TaskGraph tasks = build(*graph, plan, device, strategy);
    CHECK(validate(*graph, plan, tasks).ok());
    const Work& work = tasks.works.front();
    const int64_t rows = work.nest.row_count(),
                  columns = std::max<int64_t>(work.nest.column_count(), 1);
    const int64_t grid = (rows + work.tile_rows - 1) / work.tile_rows *
                         ((columns + work.tile_columns - 1) / work.tile_columns);
    CHECK(!work.rectangles() || grid == tasks.task_count(), "{} rectangles, {} tasks", grid,
          tasks.task_count());
    return work;
  };
  EXPECT_TRUE(work_of(1, 12, 128, false, true).rectangles());
  EXPECT_FALSE(work_of(1, 12, 128, false, false).rectangles());  // lists say who runs what
  EXPECT_FALSE(work_of(1, 12, 197, false, true).rectangles());
  EXPECT_TRUE(work_of(1, 12, 197, true, true).rectangles());
  EXPECT_FALSE(work_of(2, 2, 50, true, true).rectangles());
  EXPECT_FALSE(work_of(16, 12, 128, true, true).rectangles());  // more tasks than multiprocessors
}

// Stitched bodies and depthwise convolutions have none either, where their rectangles are a grid of
// 32-bit places and none of their operands is the caller's.
TEST(Tiles, KernelsOfRectanglesNeedNoTable) {
  const auto has_table = [](const std::string& shape, const std::string& op, bool as_grid) {
    std::string weights = "1";
    for (int k = 1; k < 32 * 3 * 3; ++k) weights += ", 1";
    const auto graph = graph::parse(
        fmt::format("graph \"g\" {{\n  in %0 \"x\": f16[{0}]\n  const %1: f16[32,1,3,3] = [{2}]\n  "
                    "%2: f16[{0}] = "
                    "Tanh(%0)\n  %3: f16[{0}] = {1}\n  %4: f16[{0}] = Tanh(%3)\n  out %4 \"y\"\n}}",
                    shape, op, weights));
    CHECK(graph.ok(), "{}", graph.error().text());
    const machine::Machine device = *machine::gpu("sm_90a");
    const machine::Strategy strategy{
        .granularity = machine::Granularity::kOp,
        .min_grid_bytes = {as_grid ? int64_t{1} << 50 : 0}};  // no work is so long
    const stitch::Plan plan = stitch::plan(*graph, device, strategy, {.stitch = false});
    const TaskGraph tasks = build(*graph, plan, device, strategy);
    CHECK(tasks.works.size() == 3, "{} of {}", tasks.works.size(), op);
    CHECK(tasks.works.front().list() && tasks.works.back().list(), "they name the caller's memory");
    return tasks.works[1].list() != nullptr;
  };
  EXPECT_FALSE(has_table("1,32,14,14", "Sigmoid(%2)", true));
  EXPECT_FALSE(has_table("1,32,14,14", "Conv(%2, %1) {group = 32, pads = [1, 1, 1, 1]}", true));
  EXPECT_TRUE(has_table("1,32,14,14", "Sigmoid(%2)", false));  // lists say who runs what
  EXPECT_TRUE(has_table("2200000000,3", "Softmax(%2)", true));
}

// A long work is cut small where it is a grid, and once for each worker where
// lists say who runs what. Short ones are cut alike.
TEST(Tiles, LongWorksAreGrids) {
  const auto tasks_of = [](const std::string& body, bool as_grid) {
    const auto graph = graph::parse("graph \"g\" {\n" + body + "}");
    CHECK(graph.ok(), "{}", graph.error().text());
    const machine::Machine device = *machine::gpu("sm_90a");
    const machine::Strategy strategy{
        .min_grid_bytes = {as_grid ? device.scratchpad.count * device.sms : 0}};
    const stitch::Plan plan = stitch::plan(*graph, device, strategy);
    TaskGraph tasks = build(*graph, plan, device, strategy);
    const Status sound = validate(*graph, plan, tasks);
    CHECK(sound.ok(), "{}", sound.error().text());
    CHECK(tasks.works.size() == 1);
    return tasks;
  };
  const auto centred = [](int rows) {
    return fmt::format(R"(in %0 "x": f32[{0},8192]
  const %9: i64[1] = [1]
  %1: f32[{0},1] = ReduceMean(%0, %9) {{keepdims = 1}}
  %2: f32[{0},8192] = Sub(%0, %1)
  out %2 "y"
)",
                       rows);
  };
  EXPECT_EQ(tasks_of(centred(8192), true).task_count(), 8192);  // a row each
  EXPECT_LE(tasks_of(centred(8192), false).task_count(), 132);
  EXPECT_EQ(tasks_of(centred(256), true).task_count(), tasks_of(centred(256), false).task_count());
  const TaskGraph transposed = tasks_of(R"(in %0 "x": f32[8192,8192]
  in %1 "b": f32[8192,8192]
  %2: f32[8192,8192] = Transpose(%0) {perm = [1, 0]}
  %3: f32[8192,8192] = Add(%1, %2)
  out %3 "y"
)",
                                        true);
  EXPECT_EQ(transposed.works[0].tile_rows, 64);
  EXPECT_EQ(transposed.works[0].tile_columns, 64);
  const TaskGraph flat = tasks_of(R"(in %0 "x": f32[8192,8192]
  %1: f32[8192,8192] = Relu(%0)
  out %1 "y"
)",
                                  true);
  EXPECT_TRUE(flat.works[0].grid());
  EXPECT_EQ(flat.works[0].tile_columns * flat.works[0].tile_rows % 64, 0);
  const TaskGraph halves = tasks_of(R"(in %0 "x": f16[8192,8192]
  %1: f16[8192,8192] = Transpose(%0) {perm = [1, 0]}
  out %1 "y"
)",
                                    true);
  EXPECT_EQ(halves.works[0].tile_rows, 128);
  EXPECT_EQ(halves.works[0].tile_columns, 64);
  // Rows of a task: what 25 kB have, one or two or four of few, but three of staged ones.
  const auto rows_of = [&](const std::string& type, int64_t columns, bool staged) {
    const int64_t count = (int64_t{1} << 26) / columns;
    const std::string whole = fmt::format("{}[{},{}]", type, count, columns),
                      row = fmt::format("{}[{},1]", type, count);
    const std::string text =
        staged ? "in %0 \"x\": {0}\n  const %9: i64[1] = [1]\n  %1: {1} = ReduceMax(%0, %9) "
                 "{{keepdims = 1}}\n  %2: {0} = Sub(%0, %1)\n  %3: {0} = Exp(%2)\n"
                 "  %4: {1} = ReduceSum(%3, %9) {{keepdims = 1}}\n  %5: {0} = Div(%3, %4)\n  out "
                 "%5 \"y\"\n"
               : "in %0 \"x\": {0}\n  const %9: i64[1] = [1]\n  %1: {1} = ReduceMean(%0, %9) "
                 "{{keepdims = 1}}\n  %2: {0} = Sub(%0, %1)\n  out %2 \"y\"\n";
    return tasks_of(fmt::format(fmt::runtime(text), whole, row), true).works[0].tile_rows;
  };
  EXPECT_EQ(rows_of("f16", 8192, false), 1);
  EXPECT_EQ(rows_of("f16", 4096, false), 2);
  EXPECT_EQ(rows_of("f16", 4096, true), 2);
  EXPECT_EQ(rows_of("f16", 3000, false), 4);
  EXPECT_EQ(rows_of("f16", 3000, true), 2);
  EXPECT_EQ(rows_of("f32", 1024, false), 4);
  EXPECT_EQ(rows_of("f32", 1024, true), 3);
  EXPECT_EQ(rows_of("f32", 512, false), 6);
}

// A product of some rows has a kernel of its own where works have kernels: tiles of 64 rows, A a
// matrix of blocks, computed or an input. Not one of few rows or of many, of odd k or columns, or
// where one kernel runs all.
TEST(Tiles, GemmsOfSomeRowsArePipelined) {
  const auto work_of = [](int64_t rows, int64_t k, bool own, bool computed = true,
                          const char* architecture = "sm_90a", int64_t columns = 192) {
    const machine::Machine device = *machine::gpu(architecture);
    const machine::Strategy strategy{.own_kernels = own};
    graph::Graph graph;
    const auto x = graph.add_input("x", {DType::f16, {rows, k}}),
               w = graph.add_constant(Tensor::allocate({DType::f16, {k, columns}}));
    const auto a = graph.must_add(graph::Op::Tanh, {x});
    const auto product = graph.must_add(graph::Op::MatMul, {computed ? a : x, w});
    graph.mark_output(
        graph.must_add(graph::Op::Add, {graph.must_add(graph::Op::Relu, {product}), w}), "y");
    const stitch::Plan plan = stitch::plan(graph, device, strategy);
    const TaskGraph tasks = build(graph, plan, device, strategy);
    const Status sound = validate(graph, plan, tasks);
    CHECK(sound.ok(), "{}", sound.error().text());
    for (const Work& work : tasks.works)
      if (plan.groups[work.group].kind == stitch::GroupKind::kProduct) return work;
    return Work{};
  };
  const Work work = work_of(192, 192, true);
  ASSERT_TRUE(work.pipelined());
  EXPECT_EQ(work.tile_rows, 64);
  EXPECT_EQ(work.tile_columns % 16, 0);
  EXPECT_EQ(work.pipelined()->a.rows, 192);
  EXPECT_EQ(work.pipelined()->a.pitch, 192);
  EXPECT_EQ(work.pipelined()->a.span, 192);
  EXPECT_FALSE(work_of(192, 192, false).pipelined());
  EXPECT_TRUE(work_of(192, 192, true, false).pipelined());  // of an input
  EXPECT_FALSE(work_of(192, 192, true, true, "sm_80").pipelined());
  EXPECT_TRUE(work_of(192, 192, true, true, "sm_90a", 10).pipelined());
  EXPECT_FALSE(work_of(192, 192, true, true, "sm_90a", 7).pipelined());  // sums are stored in pairs
}

/// The work of tanh(x) W for so many multiprocessors, in parts of k.
Work product_of(int64_t rows, int64_t columns, int64_t k, int sms, bool tall = true,
                int64_t parts = 1) {
  const machine::Machine device = *machine::gpu("sm_90a", sms);
  const machine::Strategy strategy =
      strategy_for(device, {.granularity = machine::Granularity::kStitch, .tall_gemm = tall});
  graph::Graph graph;
  const auto wide = [&](graph::ValueId value) {
    return parts == 1
               ? value
               : graph.must_add(graph::Op::Cast, {value}, ops::Attrs().set("to", int64_t{1}));
  };
  const auto x = graph.add_input("x", {DType::f16, {rows, k}}),
             w = graph.add_constant(Tensor::allocate({DType::f16, {k, columns}})),
             a = graph.must_add(graph::Op::Tanh, {x});
  auto y = graph.must_add(graph::Op::MatMul, {wide(a), wide(w)},
                          parts == 1 ? ops::Attrs() : ops::Attrs().set("parts", parts));
  if (parts > 1)
    y = graph.must_add(graph::Op::Cast, {y},
                       ops::Attrs().set("to", int64_t{10}).set("loose", int64_t{1}));
  graph.mark_output(y, "y");
  const stitch::Plan plan = stitch::plan(graph, device, strategy);
  const TaskGraph tasks = build(graph, plan, device, strategy);
  const Status sound = validate(graph, plan, tasks);
  CHECK(sound.ok(), "{}", sound.error().text());
  for (const Work& work : tasks.works)
    if (plan.groups[work.group].kind == stitch::GroupKind::kProduct) return work;
  return Work{};
}

/// A batch of products of two activations, B transposed perhaps, computed perhaps, for a strategy.
Work of_activations(int64_t batch, int64_t rows, int64_t columns, int64_t k,
                    bool transposed = false, bool computed = false,
                    const machine::Strategy& strategy = {.own_kernels = true},
                    const char* architecture = "sm_90a", DType type = DType::f16) {
  const machine::Machine device = *machine::gpu(architecture);
  graph::Graph graph;
  const auto x = graph.add_input("x", {type, {batch, rows, k}});
  auto w = transposed ? graph.add_input("w", {type, {batch, columns, k}})
                      : graph.add_input("w", {type, {batch, k, columns}});
  if (computed) w = graph.must_add(graph::Op::Tanh, {w});
  if (transposed)
    w = graph.must_add(graph::Op::Transpose, {w},
                       ops::Attrs().set("perm", std::vector<int64_t>{0, 2, 1}));
  graph.mark_output(graph.must_add(graph::Op::MatMul, {x, w}), "y");
  const stitch::Plan plan = stitch::plan(graph, device, strategy);
  const TaskGraph tasks = build(graph, plan, device, strategy);
  const Status sound = validate(graph, plan, tasks);
  CHECK(sound.ok(), "{}", sound.error().text());
  for (const Work& work : tasks.works)
    if (plan.groups[work.group].kind == stitch::GroupKind::kProduct) return work;
  return Work{};
}

// Products of two activations are pipelined whatever memory these are in, where copies can address
// both: rows at multiples of 16 bytes, whole blocks of 64 k. Tall tiles where there are enough for
// all workers, else such as fill them.
TEST(Tiles, ProductsOfActivationsArePipelined) {
  const Work many = of_activations(120, 256, 256, 256);
  ASSERT_TRUE(many.pipelined() && many.pipelined()->b);
  EXPECT_EQ(many.tile_rows, 128);
  EXPECT_EQ(many.pipelined()->chains, 1);
  EXPECT_GE(many.tile_columns, 96);
  const BoxMatrix& b = *many.pipelined()->b;
  EXPECT_TRUE(b.k_rows && b.rows == 120 * 256 && b.columns == 256 && b.pitch == 256);
  EXPECT_TRUE(b.row == 0 && b.column == 0 && b.row_step == 256 && b.column_step == 0);
  const Work few = of_activations(8, 256, 256, 256);
  ASSERT_TRUE(few.pipelined());
  EXPECT_EQ(few.tile_rows, 64);
  EXPECT_LE(few.tile_columns, 80);
  EXPECT_TRUE(of_activations(3, 197, 104, 320, true, true).pipelined());
  const Work turned = of_activations(3, 197, 104, 320, true);
  ASSERT_TRUE(turned.pipelined() && turned.pipelined()->b);
  const BoxMatrix& of_turned = *turned.pipelined()->b;
  EXPECT_TRUE(!of_turned.k_rows && of_turned.rows == 3 * 104 && of_turned.columns == 320);
  EXPECT_TRUE(of_turned.row_step == 104 && of_turned.column_step == 0);
  EXPECT_TRUE(of_activations(1, 600, 200, 64).pipelined());
  EXPECT_FALSE(of_activations(8, 32, 256, 256).pipelined());
  EXPECT_FALSE(of_activations(8, 64, 256, 96).pipelined());
  EXPECT_FALSE(of_activations(8, 64, 252, 256).pipelined());
  EXPECT_TRUE(of_activations(8, 64, 252, 256, true).pipelined());
  EXPECT_FALSE(of_activations(8, 64, 253, 256, true).pipelined());  // sums are stored in pairs
  EXPECT_FALSE(of_activations(8, 64, 256, 256, false, false, {}).pipelined());
  EXPECT_FALSE(
      of_activations(8, 64, 256, 256, false, false, {.own_kernels = true, .batch_invariant = true})
          .pipelined());
  EXPECT_FALSE(
      of_activations(8, 64, 256, 256, false, false, {.own_kernels = true}, "sm_80").pipelined());
}

// Up to eight rows stream an activation B whose columns are neighbours: narrow tiles where there
// are few, grids that run two tasks a worker at once where there are more than one each.
TEST(Tiles, FewRowsStreamAnActivation) {
  const Work one = of_activations(1, 1, 512, 512);
  EXPECT_TRUE(one.streams_b);
  ASSERT_TRUE(one.rectangles());
  EXPECT_EQ(one.rectangles()->tasks_per_worker, 1);
  EXPECT_EQ(one.tile_columns, 32);
  const Work many = of_activations(120, 1, 512, 512);
  EXPECT_TRUE(many.streams_b);
  ASSERT_TRUE(many.rectangles());
  EXPECT_EQ(many.rectangles()->tasks_per_worker, 2);
  EXPECT_GE(many.tile_columns, 64);
  const Work eight = of_activations(5, 8, 200, 96);
  EXPECT_TRUE(eight.streams_b);
  EXPECT_EQ(eight.tile_rows, 8);
  EXPECT_FALSE(of_activations(5, 9, 200, 96).streams_b);
  EXPECT_FALSE(of_activations(5, 8, 200, 96, true).streams_b);
  EXPECT_TRUE(of_activations(5, 3, 201, 95).streams_b);
  EXPECT_LE(of_activations(120, 3, 201, 95).tile_columns, 32);  // elements are loaded one by one
  const Work listed = of_activations(5, 8, 200, 96, false, true, {});
  EXPECT_TRUE(listed.streams_b && listed.list());
  EXPECT_TRUE(
      of_activations(1, 1, 512, 512, false, false, {.own_kernels = true, .batch_invariant = true})
          .streams_b);
  EXPECT_TRUE(
      of_activations(1, 4, 512, 512, false, false, {.own_kernels = true}, "sm_80").streams_b);
}

// In tf32 so do up to 32 rows by weights, which are packed.
TEST(Tiles, FewRowsStreamPackedWeightsInTf32) {
  const auto of_weights = [](int64_t rows, bool tf32) {
    const machine::Machine device = *machine::gpu("sm_90a");
    const machine::Strategy strategy{.own_kernels = true, .tf32 = tf32};
    graph::Graph graph;
    const auto x = graph.add_input("x", {DType::f32, {rows, 400}}),
               w = graph.add_constant(Tensor::allocate({DType::f32, {400, 200}}));
    graph.mark_output(graph.must_add(graph::Op::MatMul, {x, w}), "y");
    const stitch::Plan plan = stitch::plan(graph, device, strategy);
    const TaskGraph tasks = build(graph, plan, device, strategy);
    const Status sound = validate(graph, plan, tasks);
    CHECK(sound.ok(), "{}", sound.error().text());
    return tasks.works.at(0);
  };
  const Work one = of_weights(1, true);
  EXPECT_TRUE(one.streams_b && one.rectangles());
  EXPECT_EQ(one.tile_columns, 16);
  EXPECT_TRUE(of_weights(32, true).streams_b);
  EXPECT_FALSE(of_weights(33, true).streams_b);
  EXPECT_FALSE(of_weights(1, false).streams_b);
}

// So are products of f32 rounded to tf32, a block of whose k is 32, in tiles of up to 128 rows and
// columns; and none whose rows have the same bits in any batch.
TEST(Tiles, ProductsOfTf32ArePipelined) {
  const auto of_tf32 = [](int64_t batch, int64_t rows, int64_t columns, int64_t k,
                          bool transposed = false) {
    return of_activations(batch, rows, columns, k, transposed, false,
                          {.own_kernels = true, .tf32 = true}, "sm_90a", DType::f32);
  };
  const Work many = of_tf32(120, 256, 128, 1152);
  ASSERT_TRUE(many.pipelined() && many.pipelined()->b);
  EXPECT_GE(many.tile_rows * many.tile_columns, 64 * 128);
  EXPECT_LE(many.tile_rows, 128);
  EXPECT_LE(many.tile_columns, 128);
  EXPECT_EQ(many.pipelined()->chains, 1);
  EXPECT_TRUE(many.pipelined()->b->k_rows && many.pipelined()->b->row_step == 1152);
  const Work one = of_tf32(1, 256, 256, 256);
  ASSERT_TRUE(one.pipelined());
  EXPECT_LE(one.tile_rows * one.tile_columns, 64 * 64);
  const Work turned = of_tf32(3, 197, 104, 320, true);
  ASSERT_TRUE(turned.pipelined() && turned.pipelined()->b);
  EXPECT_FALSE(turned.pipelined()->b->k_rows);
  EXPECT_TRUE(of_tf32(8, 64, 252, 96).pipelined());
  EXPECT_TRUE(of_tf32(1, 600, 200, 64).pipelined());
  EXPECT_FALSE(of_tf32(8, 32, 256, 256).pipelined());
  EXPECT_FALSE(of_tf32(8, 64, 256, 80).pipelined());
  EXPECT_FALSE(of_tf32(8, 64, 254, 256).pipelined());
  EXPECT_FALSE(of_tf32(8, 64, 253, 256, true).pipelined());  // sums are stored in pairs
  for (const machine::Strategy& strategy :
       {machine::Strategy{.own_kernels = true, .batch_invariant = true, .tf32 = true},
        machine::Strategy{.tf32 = true}})
    EXPECT_FALSE(
        of_activations(8, 64, 256, 256, false, false, strategy, "sm_90a", DType::f32).pipelined());
}

// Products of exact f32 are, where they are predicted to take less time so than in tiles whose
// warps share out k: many rows are, few tiles of a long k are not.
TEST(Tiles, ProductsOfExactF32ArePipelinedWhereTheyAreQuicker) {
  const auto of_f32 = [](int64_t batch, int64_t rows, int64_t columns, int64_t k,
                         machine::Strategy strategy = {.own_kernels = true}) {
    return of_activations(batch, rows, columns, k, false, false, strategy, "sm_90a", DType::f32);
  };
  const Work many = of_f32(120, 256, 128, 1152);
  ASSERT_TRUE(many.pipelined() && many.pipelined()->b);
  EXPECT_EQ(many.tile_rows * many.tile_columns, 128 * 128);
  EXPECT_EQ(many.pipelined()->chains, 1);
  EXPECT_TRUE(of_f32(1, 4096, 3072, 768).pipelined());
  EXPECT_FALSE(of_f32(8, 32, 256, 256).pipelined());
  EXPECT_FALSE(of_f32(120, 256, 128, 1152, {}).pipelined());
  EXPECT_FALSE(
      of_f32(120, 256, 128, 1152, {.own_kernels = true, .batch_invariant = true}).pipelined());
}

// Of a long k, where tiles would leave workers idle, a cluster computes a tile of f32, each of its
// CTAs a part of k.
TEST(Tiles, ClustersShareOutALongKOfF32) {
  for (const bool tf32 : {false, true}) {
    const auto parts_of = [&](int64_t rows, int64_t columns, int64_t k) {
      const Work work = of_activations(1, rows, columns, k, false, false,
                                       {.own_kernels = true, .tf32 = tf32}, "sm_90a", DType::f32);
      return work.pipelined() ? work.pipelined()->parts : 0;
    };
    const int64_t parts = parts_of(128, 768, 3072);
    EXPECT_GE(parts, 2) << tf32;
    EXPECT_EQ(3072 % (parts * 32), 0) << tf32;
    EXPECT_LE(parts_of(4096, 3072, 768), 1) << tf32;
    EXPECT_LE(parts_of(128, 768, 352), 1) << tf32;  // a part would be too short
  }
}

// A batch whose last round of tiles would leave most workers idle is computed in two parts, the
// first of which fills its rounds; not one that fills them, or that is smaller than a round.
TEST(Tiles, ABatchOfProductsIsSplitBehindItsFullRounds) {
  const machine::Machine device = *machine::gpu("sm_90a");
  const auto first = [&](passes::BatchOfProducts batch, bool tf32 = false) {
    if (batch.rows == 0) batch.rows = 256;
    batch.columns = 128, batch.depth = 1152;
    return products_in_full_rounds(batch, device, {.own_kernels = true, .tf32 = tf32});
  };
  for (const bool constant : {false, true})
    for (const auto& [type, tf32] : {std::pair{DType::f16, false}, std::pair{DType::bf16, false},
                                     std::pair{DType::f32, false}, std::pair{DType::f32, true}}) {
      SCOPED_TRACE(fmt::format("{} {} {}", to_string(type), tf32, constant));
      const auto of = [&, type = type, tf32 = tf32](int64_t count) {
        return first({.type = type, .constant = constant, .count = count}, tf32);
      };
      EXPECT_EQ(of(72), 66);  // 132 tiles of 128 x 128, and 12
      EXPECT_EQ(of(66), 0);
      EXPECT_EQ(of(8), 0);
    }
  EXPECT_EQ(first({.type = DType::f32, .count = 128}, true), 0);  // two rounds, nearly full
  EXPECT_EQ(first({.type = DType::f64, .count = 72}), 0);
  EXPECT_EQ(first({.type = DType::f16, .count = 72, .rows = 8}), 0);
  EXPECT_EQ(products_in_full_rounds(
                {.type = DType::f16, .count = 72, .rows = 256, .columns = 128, .depth = 1152},
                device, {}),
            0);
}

// Pipelined GEMMs compute two halves side by side in 16 bits; in f32 and tf32 they do not, and of
// many rows with a short k neither: there two of them are quicker than a dual GEMM's listed tiles.
TEST(Tiles, ADualGemmIsWeighedAgainstTwo) {
  const machine::Machine device = *machine::gpu("sm_90a");
  const auto pays = [&](DType type, int64_t rows, int64_t depth, bool tf32 = false) {
    machine::Strategy strategy =
        strategy_for(device, {.granularity = machine::Granularity::kStitch});
    strategy.tf32 = tf32;
    return dual_gemm_pays(type, rows, 2048, depth, device, strategy);
  };
  for (const DType type : {DType::f16, DType::bf16}) {
    EXPECT_TRUE(pays(type, 128, 1024));
    EXPECT_TRUE(pays(type, 128, 320));
    EXPECT_TRUE(pays(type, 1024, 1024));
    EXPECT_FALSE(pays(type, 4096, 320));
  }
  for (const bool tf32 : {false, true}) {
    EXPECT_FALSE(pays(DType::f32, 128, 1024, tf32));
    EXPECT_FALSE(pays(DType::f32, 1024, 1024, tf32));
    EXPECT_TRUE(pays(DType::f32, 8, 1024, tf32));  // their weights stream
  }
  EXPECT_TRUE(pays(DType::f64, 128, 1024));
  EXPECT_TRUE(dual_gemm_pays(DType::f32, 128, 2048, 1024, device, {}));  // no kernels of their own
}

// Groups of 4 or 8 channels are narrower than what tensor cores multiply at once; those of 32 or 64
// are not, and a depthwise convolution has tiles of its own.
TEST(Tiles, NarrowGroupsOfAConvolutionAreMerged) {
  const machine::Machine device = *machine::gpu("sm_90a");
  const machine::Strategy strategy =
      strategy_for(device, {.granularity = machine::Granularity::kStitch});
  const auto groups_of = [&](int64_t channels, int64_t groups, int64_t side, int64_t window = 3) {
    graph::Graph graph;
    const auto x = graph.add_input("x", {DType::f16, {1, channels, side, side}}),
               w = graph.add_constant(
                   Tensor::allocate({DType::f16, {channels, channels / groups, window, window}}));
    const auto y = graph.must_add(
        graph::Op::Conv, {x, w},
        ops::Attrs().set("group", groups).set("pads", std::vector<int64_t>(4, window / 2)));
    graph.mark_output(y, "y");
    const auto tile = stitch::conv_tile(graph, graph.order().front(), device, strategy);
    CHECK(tile.has_value());
    return quickest_conv_groups(*tile, device, strategy);
  };
  EXPECT_LT(groups_of(48, 6, 56), 6);
  EXPECT_LT(groups_of(128, 32, 56), 32);
  EXPECT_EQ(groups_of(1024, 32, 7), 32);
  EXPECT_EQ(groups_of(128, 2, 56), 2);
  EXPECT_EQ(groups_of(64, 64, 56), 64);
  EXPECT_EQ(groups_of(64, 1, 56), 1);
}

// Kernels of a wave share the workers, but where each fills them alone and one after the other
// takes less: then each has the tiles that it has alone.
TEST(Tiles, KernelsThatFillTheMachineTakeTurns) {
  const machine::Machine device = *machine::gpu("sm_90a");
  const machine::Strategy strategy =
      strategy_for(device, {.granularity = machine::Granularity::kStitch});
  const auto tasks_of = [&](const std::vector<int64_t>& counts) {
    graph::Graph graph;
    for (size_t k = 0; k < counts.size(); ++k) {
      const auto x = graph.add_input(fmt::format("x{}", k), {DType::f16, {counts[k], 256, 1152}}),
                 w = graph.add_input(fmt::format("w{}", k), {DType::f16, {counts[k], 1152, 128}});
      graph.mark_output(graph.must_add(graph::Op::MatMul, {x, w}), fmt::format("y{}", k));
    }
    const stitch::Plan plan = stitch::plan(graph, device, strategy);
    std::vector<int64_t> tasks;
    const TaskGraph made = build(graph, plan, device, strategy);
    for (const Work& work : made.works) tasks.push_back(count_tasks(plan.groups[work.group], work));
    return tasks;
  };
  EXPECT_EQ(tasks_of({66, 6}), (std::vector<int64_t>{tasks_of({66})[0], tasks_of({6})[0]}));
  const std::vector<int64_t> halves = tasks_of({8, 8});
  EXPECT_LE(halves[0] + halves[1], 132);
  EXPECT_LT(halves[0], tasks_of({8})[0]);
}

// Tiles of more than 64 rows where they cost less: they read the weights once, but where twice as
// many tiles run at once that is no gain, nor, of few rows, where several run in turn.
TEST(Tiles, TallOnesWhereWeightsAreReadOften) {
  EXPECT_EQ(product_of(128, 3072, 768, 132).tile_rows, 64);
  EXPECT_EQ(product_of(128, 768, 768, 16).tile_rows, 64);
  struct Case {
    int rows, sms, chains, columns;
  };
  // Four chains have the bits of all tiles; one has room for wider ones, of which a worker has one.
  for (const auto& [rows, sms, chains, columns] :
       {Case{128, 33, 4, 96}, Case{128, 16, 1, 192}, Case{384, 16, 1, 192}}) {
    const Work work = product_of(rows, 3072, 768, sms);
    ASSERT_TRUE(work.pipelined());
    EXPECT_TRUE(work.pipelined()->tall);
    EXPECT_EQ(work.pipelined()->chains, chains);
    EXPECT_EQ(work.tile_rows, 128);
    EXPECT_EQ(work.tile_columns, columns);
    EXPECT_EQ(to_string(work.form), "a pipelined GEMM of tall tiles, a persistent task a worker");
    const Work without = product_of(rows, 3072, 768, sms, false);
    ASSERT_TRUE(without.pipelined());
    EXPECT_FALSE(without.pipelined()->tall);
    EXPECT_EQ(without.tile_rows, 64);
  }
  for (const auto& [rows, tile] : {std::pair{197, 99}, std::pair{65, 65}})
    EXPECT_EQ(product_of(rows, 3072, 768, 16).tile_rows, tile);
  EXPECT_EQ(product_of(300, 3072, 768, 16).tile_rows, 100);  // as even as can be
}

// Weights come from memory once for all tiles that read them: a tile that is their only reader
// takes no less than their way from memory.
TEST(Tiles, PipelinedGemmsCostTheirBytes) {
  const auto& tiles = *kernels::kCudaTiles.gemm.pipelined;
  const auto nanos = [&](int64_t rows, int64_t columns, int64_t readers, double memory,
                         int chains = 4) {
    return tiles.nanos({.type = kObkF16,
                        .rows = rows,
                        .columns = columns,
                        .k = 768,
                        .chains = chains,
                        .readers = readers,
                        .memory_bytes = memory});
  };
  EXPECT_GT(nanos(64, 96, 1, 35), nanos(64, 96, 2, 35));
  EXPECT_EQ(nanos(64, 96, 2, 1e9), nanos(64, 96, 1, 0));
  EXPECT_LT(nanos(128, 96, 1, 1e9), 2 * nanos(64, 96, 1, 1e9));  // B is read once
  EXPECT_GT(nanos(128, 96, 1, 1e9), nanos(64, 96, 1, 1e9));
  EXPECT_EQ(nanos(64, 176, 1, 35), 0);  // there is no such tile
  EXPECT_EQ(nanos(128, 112, 1, 35), 0);
  EXPECT_GT(nanos(128, 192, 1, 35, 1), 0);
  EXPECT_EQ(nanos(128, 208, 1, 35, 1), 0);
  EXPECT_EQ(nanos(129, 96, 1, 35), 0);
  // Of two activations rows of A come from memory, too, and of B all columns of a box.
  kernels::PipelinedGemmTile tile{.type = kObkF16, .rows = 64, .columns = 96, .k = 768};
  tile.memory_bytes = 35;
  const double weights = tiles.nanos(tile);
  tile.a_readers = 1, tile.brought = 96;
  const double alone = tiles.nanos(tile);
  EXPECT_GT(alone, weights);
  tile.a_readers = 4;
  EXPECT_LT(tiles.nanos(tile), alone);
  tile.brought = 128;
  EXPECT_GT(tiles.nanos(tile), weights);
}

// Of 512 rows and more: in one chain over k instead of a grid; of a long k tiles of 64 rows, one a
// worker, or of few columns parts of k, where gangs of all of them run at once.
TEST(Tiles, TallOnesOfManyRows) {
  const Work work = product_of(1024, 2304, 768, 132);
  ASSERT_TRUE(work.pipelined());
  EXPECT_TRUE(work.pipelined()->tall);
  EXPECT_EQ(work.pipelined()->chains, 1);
  EXPECT_EQ(work.tile_rows, 128);
  EXPECT_EQ(work.tile_columns, 144);  // 8 x 16 tiles
  EXPECT_TRUE(product_of(1024, 2304, 768, 132, false).grid());
  const machine::Machine device = *machine::gpu("sm_90a");
  const machine::Strategy strategy{.own_kernels = true},
      without{.own_kernels = true, .tall_gemm = false};
  const auto parts = [&](int64_t rows, int64_t columns, int64_t k, const machine::Strategy& by) {
    return tall_split_k(device, by, kObkF16, rows, columns, k);
  };
  EXPECT_EQ(parts(1024, 768, 3072, strategy), 1);
  for (const int64_t rows : {520, 1000}) {  // as the GPU's test has them
    const Work work = product_of(rows, 320, 1088, 132);
    ASSERT_TRUE(work.pipelined());
    EXPECT_FALSE(work.pipelined()->tall);
  }
  const Work low = product_of(1024, 768, 3072, 132);
  ASSERT_TRUE(low.pipelined());
  EXPECT_FALSE(low.pipelined()->tall);
  EXPECT_EQ(low.pipelined()->parts, 1);
  EXPECT_EQ(low.tile_rows, 64);
  EXPECT_EQ(low.tile_columns, 96);  // 16 x 8 tiles
  for (const auto& [rows, k] : {std::pair{1024, 768}, std::pair{4096, 3072}}) {
    const Work high = product_of(rows, 768, k, 132);  // a shorter k; more tiles than workers
    ASSERT_TRUE(high.pipelined());
    EXPECT_TRUE(high.pipelined()->tall);
  }
  EXPECT_EQ(parts(512, 32, 8192, strategy), 4);  // 4 x 2 tiles
  EXPECT_EQ(parts(512, 32, 8192, without), 1);
  EXPECT_EQ(parts(1024, 768, 768, strategy), 1);
  EXPECT_EQ(parts(1024, 3072, 3072, strategy), 1);
  EXPECT_EQ(parts(4096, 768, 3072, strategy), 1);
  const auto one_round = [&](DType type, int64_t rows, int64_t columns, int64_t depth,
                             const machine::Strategy& by) {
    return one_round_of_tiles(type, rows, columns, depth, device, by);
  };
  EXPECT_TRUE(one_round(DType::f16, 1024, 3072, 768, strategy));
  EXPECT_TRUE(one_round(DType::bf16, 512, 3072, 768, strategy));
  EXPECT_FALSE(one_round(DType::bf16, 511, 3072, 768, strategy));  // not asked of fewer rows
  EXPECT_FALSE(one_round(DType::f16, 1024, 3072, 768, without));   // a grid
  EXPECT_FALSE(one_round(DType::f16, 2048, 3072, 768, strategy));  // several tiles a worker
  EXPECT_FALSE(one_round(DType::f16, 3136, 768, 192, strategy));   // a short k
  EXPECT_FALSE(one_round(DType::f32, 1024, 3072, 768, strategy));
  EXPECT_FALSE(one_round(DType::f16, 1024, 3072, 768, {}));  // no kernels of their own
  EXPECT_TRUE(stitch::splits_meet(device, strategy, 1024, 768, 2));
  EXPECT_FALSE(stitch::splits_meet(device, strategy, 1024, 768, 4));
  EXPECT_FALSE(stitch::splits_meet(device, without, 1024, 768, 2));
  const Work split = product_of(1024, 768, 3072, 132, true, 2);
  ASSERT_TRUE(split.pipelined());
  EXPECT_EQ(split.pipelined()->chains, 1);
  EXPECT_EQ(split.tile_rows, 128);
  EXPECT_EQ(split.tile_columns, 96);
}

// No more than an H200 holds (66, 39, 30, 15).
TEST(Tiles, ClustersAtOnce) {
  EXPECT_EQ(machine::gangs_at_once(132, 1), 132);
  EXPECT_EQ(machine::gangs_at_once(132, 2), 66);
  EXPECT_EQ(machine::gangs_at_once(132, 3), 39);
  EXPECT_EQ(machine::gangs_at_once(132, 4), 29);
  EXPECT_EQ(machine::gangs_at_once(132, 8), 14);
  EXPECT_EQ(machine::gangs_at_once(8, 4), 2);
  EXPECT_EQ(machine::gangs_at_once(1, 4), 1);
}

// A long sum in parts of some rows is cut so that all clusters run at once, and what follows it
// joins it. With more rows, or where one kernel runs all, its reader adds what it gives.
TEST(Tiles, PartsOfALongSumAreClusters) {
  const auto plan_of = [](int64_t rows, int64_t k, int64_t columns, int64_t parts, bool own,
                          stitch::Plan& plan) {
    const machine::Machine device = *machine::gpu("sm_90a");
    const machine::Strategy strategy{.own_kernels = own};
    graph::Graph graph;
    const auto x = graph.add_input("x", {DType::f16, {rows, k}}),
               residual = graph.add_input("r", {DType::f16, {rows, columns}});
    const auto wide = [&](graph::ValueId value) {
      return graph.must_add(graph::Op::Cast, {value}, ops::Attrs().set("to", int64_t{1}));
    };
    const auto w = graph.add_constant(Tensor::allocate({DType::f16, {k, columns}}));
    const auto a = graph.must_add(graph::Op::Tanh, {x});
    const auto product =
        graph.must_add(graph::Op::MatMul, {wide(a), wide(w)}, ops::Attrs().set("parts", parts));
    const auto narrow = graph.must_add(
        graph::Op::Cast, {product}, ops::Attrs().set("to", int64_t{10}).set("loose", int64_t{1}));
    graph.mark_output(graph.must_add(graph::Op::Add, {narrow, residual}), "y");
    plan = stitch::plan(graph, device, strategy);
    const TaskGraph tasks = build(graph, plan, device, strategy);
    const Status sound = validate(graph, plan, tasks);
    CHECK(sound.ok(), "{}", sound.error().text());
    for (const Work& work : tasks.works)
      if (plan.groups[work.group].kind == stitch::GroupKind::kProduct)
        return std::pair(work, tasks.task_count());
    return std::pair(Work{}, int64_t{0});
  };
  stitch::Plan plan;
  auto [work, count] = plan_of(128, 3072, 768, 4, true, plan);
  ASSERT_TRUE(work.pipelined());
  EXPECT_EQ(plan.groups.size(), 2u);  // what makes A; the product with the residual
  EXPECT_EQ(work.tile_rows, 64);
  EXPECT_EQ(work.tile_columns, 64);  // 2 x 12 tiles: 24 clusters of 4
  work = plan_of(197, 3072, 768, 4, true, plan).first;
  EXPECT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ(work.tile_rows, 50);      // of 4 x 50 rows
  EXPECT_EQ(work.tile_columns, 112);  // 4 x 7 tiles: 28 clusters
  plan_of(300, 3072, 768, 4, true, plan);
  EXPECT_EQ(plan.groups.size(), 3u);  // 5 x 7 are too many: its reader adds them
  EXPECT_EQ(plan_of(50, 1024, 96, 2, true, plan).first.tile_rows, 50);
  EXPECT_EQ(plan.groups.size(), 2u);
  EXPECT_FALSE(plan_of(50, 1280, 96, 10, true, plan).first.pipelined());  // no cluster is so large
  EXPECT_FALSE(plan_of(128, 3072, 768, 4, false, plan).first.pipelined());
  EXPECT_EQ(plan.groups.size(), 3u);
  plan_of(600, 3072, 768, 4, true, plan);
  EXPECT_EQ(plan.groups.size(), 3u);  // 5 x 7, by tall tiles
  EXPECT_TRUE(plan_of(600, 3072, 768, 3, true, plan).first.pipelined());
  EXPECT_EQ(plan.groups.size(), 2u);
}

// What block copies can load: rows of a batch side by side in the matrix, from whole blocks of 64
// columns; no others.
TEST(Tiles, RowsOfAreAMatrixOfBlocks) {
  const auto matrix_of = [](int64_t k, int64_t pitch, int64_t offset, int64_t step,
                            DType type = DType::f16) {
    stitch::Group group;
    group.kind = stitch::GroupKind::kProduct, group.product.a_type = type;
    group.product.k = {{k, 1, 1, 0}};
    Nest nest;
    nest.rows = 2, nest.dims = {{2, {0}}, {70, {1}}, {16, {2}}};
    Access a, b;
    a.operand = 0, a.offset = offset, a.strides = {step, pitch, 0};
    b.operand = 1, b.strides = {k * 16, 0, 1};
    nest.accesses = {a, b};
    return row_matrix(group, nest);
  };
  const auto beside = matrix_of(128, 256, 0, 128);  // parts of k
  ASSERT_TRUE(beside.has_value());
  EXPECT_EQ(beside->rows, 70);
  EXPECT_EQ(beside->span, 70);
  EXPECT_EQ(beside->row_step, 0);
  EXPECT_EQ(beside->block_step, 2);
  const auto below = matrix_of(128, 192, 64 + 192, 70 * 192);
  ASSERT_TRUE(below.has_value());
  EXPECT_EQ(below->row, 1);
  EXPECT_EQ(below->block, 1);
  EXPECT_EQ(below->row_step, 70);
  EXPECT_EQ(below->rows, 1 + 70 + 70);
  EXPECT_FALSE(matrix_of(128, 256, 32, 128).has_value());  // not from a block's first column
  EXPECT_FALSE(matrix_of(128, 256, 0, 32).has_value());
  EXPECT_FALSE(matrix_of(96, 256, 0, 128).has_value());   // half a block
  EXPECT_FALSE(matrix_of(128, 196, 0, 128).has_value());  // rows not 16 bytes apart
  EXPECT_FALSE(matrix_of(128, 192, 0, 128).has_value());  // over the end of the rows
  // Of floats a block has 32 columns.
  const auto floats = matrix_of(96, 228, 32, 96, DType::f32);
  ASSERT_TRUE(floats.has_value());
  EXPECT_EQ(floats->block, 1);
  EXPECT_EQ(floats->block_step, 3);
  EXPECT_FALSE(matrix_of(96, 230, 0, 96, DType::f32).has_value());
  EXPECT_FALSE(matrix_of(80, 228, 0, 96, DType::f32).has_value());
}

// A product of many rows, and a convolution of many images, take tiles that share multiprocessors,
// over the edges of images; not where a list says who runs what, nor where there are few rows.
TEST(Tiles, ManyRowsShareMultiprocessors) {
  const auto work_of = [](const std::string& body, bool as_grid, const char* machine = "sm_90a") {
    const auto graph = graph::parse("graph \"g\" {\n" + body + "}");
    CHECK(graph.ok(), "{}", graph.error().text());
    const machine::Machine device = *machine::gpu(machine);
    const machine::Strategy strategy{
        .own_kernels = as_grid,
        .min_grid_bytes = {as_grid ? device.scratchpad.count * device.sms : 0}};
    const stitch::Plan plan = stitch::plan(*graph, device, strategy);
    const TaskGraph tasks = build(*graph, plan, device, strategy);
    const Status sound = validate(*graph, plan, tasks);
    CHECK(sound.ok(), "{}", sound.error().text());
    return tasks.works.back();
  };
  const auto zeros = [](int64_t count) {
    std::string list = "0";
    for (int64_t k = 1; k < count; ++k) list += ", 0";
    return list;
  };
  const auto conv = [&](int images) {
    return fmt::format(R"(in %0 "x": f16[{0},64,28,28]
  const %1: f16[64,64,3,3] = [{1}]
  %4: f16[{0},64,28,28] = Tanh(%0)
  %2: f16[{0},64,14,14] = Conv(%4, %1) {{kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]}}
  %3: f16[{0},64,14,14] = Relu(%2)
  out %3 "y"
)",
                       images, zeros(64 * 64 * 9));
  };
  const Work many = work_of(conv(128), true);
  EXPECT_TRUE(many.grid());
  EXPECT_EQ(many.tasks_per_worker(), 2);
  EXPECT_NE(14 * 14 % many.tile_rows, 0);
  EXPECT_FALSE(work_of(conv(128), false).grid());
  const auto product = [&](int rows) {
    return fmt::format(R"(in %0 "x": f16[{0},64]
  const %1: f16[64,256] = [{1}]
  %2: f16[{0},256] = MatMul(%0, %1)
  %3: f16[{0},256] = Relu(%2)
  out %3 "y"
)",
                       rows, zeros(64 * 256));
  };
  EXPECT_EQ(work_of(product(25000), true).tasks_per_worker(), 2);
  EXPECT_EQ(work_of(product(25000), false).tasks_per_worker(), 0);
  EXPECT_EQ(work_of(product(128), true).tasks_per_worker(), 0);
  for (const char* lesser : {"sm_80", "sm_89"}) {  // they have no such tiles
    EXPECT_EQ(work_of(product(25000), true, lesser).tasks_per_worker(), 0);
    EXPECT_EQ(work_of(conv(128), true, lesser).tasks_per_worker(), 0);
  }
}

// One query of eight heads that four each share: the keys go to 8 tiles a head, to 16 where 8 could
// not hold them; their sums lie in a buffer that nobody else has.
TEST(Tiles, KeysOfFewHeadsAreSharedOut) {
  for (const auto& [keys, kv_splits] : {std::pair{1025, 8}, std::pair{4096, 16}}) {
    const auto graph = graph::parse(fmt::format(R"(graph "g" {{
  in %0 "q": f16[2,32,1,64]
  in %1 "k": f16[2,8,{0},64]
  in %2 "v": f16[2,8,{0},64]
  %3: f16[2,32,1,64] = Attention(%0, %1, %2)
  %4: f16[2,32,1,64] = Relu(%3)
  out %4 "y"
}})",
                                                keys));
    ASSERT_TRUE(graph.ok()) << graph.error().text();
    const auto device = machine::gpu("sm_90a");
    ASSERT_TRUE(device.ok());
    const stitch::Plan plan = stitch::plan(*graph, *device);
    const TaskGraph tasks = build(*graph, plan, *device);
    EXPECT_EQ(tasks.task_count(), 2 * 8 * kv_splits);
    EXPECT_TRUE(validate(*graph, plan, tasks).ok());
    const Work& work = tasks.works.at(0);
    const Buffer& shared = tasks.buffers.at(static_cast<size_t>(work.buffers.back()));
    EXPECT_EQ(shared.first, 0);
    EXPECT_EQ(shared.last, tasks.waves - 1);
    EXPECT_EQ(shared.size.count, 2 * 8 * plan.groups.at(0).attention.exchange);
  }
}

// A sum joins the branch that ends last, whichever was written last: the other runs beside that
// branch's beginning.
TEST(Waves, AShortcutRunsBesideTheBranchThatItJoins) {
  const std::string text = R"(graph "g" {
  in %0 "x": f32[64,64]
  in %1 "a": f32[64,64]
  in %2 "b": f32[64,64]
  in %3 "c": f32[64,64]
  %4: f32[64,64] = MatMul(%0, %1)
  %5: f32[64,64] = MatMul(%4, %2)
  %6: f32[64,64] = MatMul(%0, %3)
  %7: f32[64,64] = Add(%5, %6)
  out %7 "y"
})";
  const TaskGraph tasks = scheduled(text, 2);
  EXPECT_EQ(tasks.works.size(), 3u);
  EXPECT_EQ(tasks.waves, 2);
}

// The copy of a cache waits for nothing: it runs where workers are idle, not in the first wave nor
// in the one before its reader.
TEST(Waves, ACopyRunsWhereWorkersAreIdle) {
  const auto graph = graph::parse(R"(graph "g" {
  in %0 "past": f32[1,8,1023,64]
  in %1 "x": f16[1,2048]
  in %2 "wide": f16[2048,8192]
  in %3 "narrow": f16[8192,16]
  in %4 "new": f16[16,512]
  const %5: i64[4] = [1, 8, 1, 64]
  %6: f16[1,8,1023,64] = Cast(%0) {loose = 1, to = 10}
  %7: f16[1,8192] = MatMul(%1, %2)
  %8: f16[1,16] = MatMul(%7, %3)
  %9: f16[1,512] = MatMul(%8, %4)
  %10: f16[1,8,1,64] = Reshape(%9, %5)
  %11: f16[1,8,1,64] = Neg(%10)
  %12: f16[1,8,1023,64] = Identity(%6)
  %13: f16[1,8,1024,64] = Concat(%12, %11) {axis = 2}
  %14: f16[1,8,1024,64] = Exp(%13)
  out %14 "y"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto device = machine::gpu("sm_90a");
  ASSERT_TRUE(device.ok());
  const stitch::Plan plan = stitch::plan(*graph, *device);
  const TaskGraph tasks = build(*graph, plan, *device);
  ASSERT_TRUE(validate(*graph, plan, tasks).ok());
  std::vector<int> waves;
  int copy = -1, busiest = -1, narrow = -1;
  for (const Work& work : tasks.works) {
    const stitch::Group& group = plan.groups[work.group];
    const graph::Node& node = graph->node(group.nodes.front());
    if (node.op == ops::Op::Identity) copy = work.wave;
    if (node.op == ops::Op::MatMul && node.inputs[1] == 2) busiest = work.wave;
    if (node.op == ops::Op::MatMul && node.inputs[1] == 3)
      narrow = work.wave;  // one task of all workers'
  }
  EXPECT_EQ(busiest, 0);
  EXPECT_EQ(copy, narrow);
}

// A product of operands that are widened where they are read moves their 16 bits.
TEST(Tiles, WideningCastsMoveNothing) {
  const auto graph = graph::parse(R"(graph "g" {
  in %0 "x": f16[1,2048]
  in %1 "w": f16[2048,512]
  %2: f32[1,2048] = Cast(%0) {to = 1}
  %3: f32[2048,512] = Cast(%1) {to = 1}
  %4: f32[1,512] = MatMul(%2, %3)
  out %4 "y"
})");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const auto device = machine::gpu("sm_90a");
  ASSERT_TRUE(device.ok());
  const stitch::Plan plan = stitch::plan(*graph, *device);
  ASSERT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.groups[0].kind, stitch::GroupKind::kProduct);
  EXPECT_EQ(plan.groups[0].cost.read.count, 2 * (2048 + 2048 * 512));
}

// What is light, stands alone and is read about once has no phase: its reader computes it.
TEST(Waves, LightNodesAreLeftToTheirReaders) {
  const auto text = [](const char* last) {
    return fmt::format(R"(graph "g" {{
  in %0 "x": f32[64,64]
  in %1 "w": f32[64,64]
  const %2: i64[1] = [0]
  const %3: i64[1] = [32]
  const %4: i64[1] = [64]
  const %5: i64[1] = [1]
  %6: f32[64,64] = MatMul(%0, %1)
  %7: f32[64,32] = Slice(%6, %3, %4, %5)
  %8: f32[64,32] = {}(%7)
  %9: f32[64,32] = Slice(%6, %2, %3, %5)
  %10: f32[64,64] = Concat(%8, %9) {{axis = 1}}
  out %10 "y"
}})",
                       last);
  };
  EXPECT_EQ(scheduled(text("Neg"), 2).works.size(), 2u);
  EXPECT_EQ(scheduled(text("Tanh"), 2).works.size(), 3u);  // not light: computed once
}

}  // namespace
}  // namespace obelisk::schedule
