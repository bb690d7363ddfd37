// A GPU's program as one text, and what is read in the assembler's log. No device compiler is
// wanted.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "codegen/codegen.h"
#include "graph/graph.h"
#include "graph/test_decoder.h"
#include "passes/passes.h"
#include "runtime/cuda/assembler_log.h"
#include "runtime/cuda/images.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/cuda/source.h"
#include "runtime/cuda/tables.h"

namespace obelisk::runtime::cuda {
namespace {

TEST(CudaSource, ASerialisedKernelIsItsBody) {
  const Serialised none = serialised("ptxas info    : Used 168 registers\n");
  EXPECT_FALSE(none.any);
  const Serialised two = serialised(
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to insufficient register resources in the function 'obk_kernel_12'\n"
      "ptxas info    : Used 168 registers\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized in the function '_ZN3obk10obk_body_3EPK7ObkTask'\n");
  EXPECT_TRUE(two.any && two.known);
  EXPECT_EQ(two.bodies, (std::set<int>{3, 12}));
}

TEST(CudaSource, AnInjectedArriveSerialisesNothing) {
  const std::string arrive =
      "ptxas info    : (C7519) warpgroup.arrive is injected in around line 1381 by compiler to "
      "allow use of registers in GMMA in "
      "function 'obk_kernel_3'\n";
  EXPECT_FALSE(serialised(arrive).any);
  const std::string wait =
      "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to "
      "insufficient register resources in the function 'obk_kernel_4'";
  const Serialised both = serialised(arrive + wait + "\n");
  EXPECT_TRUE(both.any && both.known);
  EXPECT_EQ(both.bodies, std::set<int>{4});
  EXPECT_EQ(both.first, wait);
}

TEST(CudaSource, CodeThatTheDriverCannotReadIsToldWithTheWayOut) {
  EXPECT_TRUE(check_image(0).ok());
  for (const int unreadable : {200, 209, 222}) {
    const Status refused = check_image(unreadable);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().hint.find("-m pip install"), std::string::npos)
        << refused.error().hint;
  }
  const Status failed = check_image(700);  // an error of an earlier launch
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().hint, "");
}

TEST(CudaSource, OneKernelOfAllNamesNoBody) {
  const Serialised all = serialised("ptxas info : (C7514) serialized in function 'obk_program'\n");
  EXPECT_TRUE(all.any);
  EXPECT_FALSE(all.known);
}

Program two_bodies() {
  Program program;
  program.name = "two", program.target = "sm_90a",
  program.granularity = machine::Granularity::kStitch;
  for (const char* label : {"first", "second"}) {
    codegen::BodyText body;
    body.label = label, body.text = "OBK_BODY(obk_body) {\n}\n";
    body.traits.form = codegen::BodyTraits::Form::kGrid, body.traits.ctas_per_sm = 2;
    program.bodies.push_back(std::move(body));
  }
  return program;
}

TEST(CudaSource, OnlyTheBodyThatWouldBeSerialisedLosesItsWgmmaTiles) {
  const auto plain = device_source(two_bodies()), narrow = device_source(two_bodies(), {1});
  ASSERT_TRUE(plain.ok() && narrow.ok());
  EXPECT_EQ(plain->find("#define OBK_WGMMA_TILES"), std::string::npos);
  const size_t off = narrow->find("#define OBK_WGMMA_TILES 0\n");
  ASSERT_NE(off, std::string::npos);
  EXPECT_GT(off, narrow->find("/* first */"));
  EXPECT_LT(off, narrow->find("/* second */"));
  EXPECT_GT(narrow->find("#define OBK_WGMMA_TILES OBK_INLINED"), narrow->find("/* second */"));
}

/// A graph's bodies for an H200, kernels of a graph.
std::vector<codegen::BodyText> bodies_of(const graph::Graph& graph,
                                         const machine::Strategy& strategy) {
  const machine::Machine device = *machine::gpu("sm_90a");
  const stitch::Plan plan = stitch::plan(graph, device, strategy);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device, strategy);
  return codegen::emit(graph, plan, tasks, kernels::tile_library(device)).bodies;
}

// What a pipelined GEMM's epilogue reads of weights is requested before its kernel waits for the
// one before, what others compute after it.
TEST(CudaSource, APipelinedGemmReadsOnlyWeightsBeforeItWaits) {
  graph::Graph graph;
  const auto x = graph.add_input("x", {DType::f16, {192, 192}}),
             r = graph.add_input("r", {DType::f16, {192, 96}});
  const auto w = graph.add_constant(Tensor::allocate({DType::f16, {192, 96}})),
             bias = graph.add_constant(Tensor::allocate({DType::f16, {96}}));
  const auto product = graph.must_add(graph::Op::MatMul, {graph.must_add(graph::Op::Tanh, {x}), w});
  graph.mark_output(
      graph.must_add(graph::Op::Add, {graph.must_add(graph::Op::Add, {product, bias}), r}), "y");
  int products = 0;
  for (const codegen::BodyText& body : bodies_of(graph, {.own_kernels = true})) {
    const size_t begin = body.text.find("OBK_PIPELINED_GEMM_BEGIN()");
    if (begin == std::string::npos) continue;
    ++products;
    std::vector<size_t> loads;
    for (size_t at = body.text.find("load_pack<V>("); at != std::string::npos;
         at = body.text.find("load_pack<V>(", at + 1))
      loads.push_back(at);
    ASSERT_EQ(loads.size(), 2u)
        << body.text;  // the bias, the residual; the tile's sums have a load of their own
    EXPECT_LT(loads[0], begin) << body.text;
    EXPECT_GT(loads[1], begin) << body.text;
    EXPECT_LT(begin, body.text.find("OBK_PIPELINED_GEMM_SUMS_OF(")) << body.text;
    EXPECT_EQ(body.text.find("OBK_PIPELINED_GEMM_BEGIN(", begin + 1), std::string::npos);
  }
  EXPECT_EQ(products, 1);
}

// Threads of a tall tile's epilogue keep their columns: each loads its bias once, before the kernel
// waits.
TEST(CudaSource, ATallTilesBiasIsLoadedOnce) {
  for (const auto [columns, vectors] : {std::pair{2304, 18}, {3072, 24}, {768, 0}}) {
    graph::Graph graph;
    const auto x = graph.add_input("x", {DType::f16, {1024, 768}});
    const auto w = graph.add_constant(Tensor::allocate({DType::f16, {768, columns}})),
               bias = graph.add_constant(Tensor::allocate({DType::f16, {columns}}));
    const auto product =
        graph.must_add(graph::Op::MatMul, {graph.must_add(graph::Op::Tanh, {x}), w});
    graph.mark_output(graph.must_add(graph::Op::Add, {product, bias}), "y");
    int tall = 0;
    for (const codegen::BodyText& body : bodies_of(graph, {.own_kernels = true})) {
      if (body.text.find("OBK_PIPELINED_GEMM_TALL_OF(") == std::string::npos) continue;
      ++tall;
      const size_t load = body.text.find("load_pack<V>(x");
      EXPECT_LT(load, body.text.find("OBK_PIPELINED_GEMM_BEGIN()")) << body.text;
      EXPECT_EQ(body.text.find("load_pack<V>(x", load + 1), std::string::npos) << body.text;
      // 768 columns: a thread has so few points that each loads its own, before the tile.
      EXPECT_EQ(body.text.find("OBK_GROUP(") != std::string::npos, vectors > 0) << body.text;
      EXPECT_EQ(body.text.find(fmt::format("OBK_GROUPS({})", vectors)) != std::string::npos,
                vectors > 0)
          << body.text;
    }
    EXPECT_EQ(tall, 1) << columns;
  }
}

Program compiled_as(machine::Granularity granularity, const graph::Graph& graph,
                    const machine::Machine& device, const machine::Strategy& strategy) {
  const stitch::Plan plan = stitch::plan(graph, device, strategy);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device, strategy);
  Program program =
      assemble(graph, plan, tasks, codegen::emit(graph, plan, tasks, kernels::tile_library(device)),
               "sm_90a");
  program.granularity = granularity;
  return program;
}

/// tanh(x W + bias) + r in one kernel, `layers` times, of which each reads the one before.
Program in_one_kernel(int64_t rows, int64_t width, int layers) {
  const machine::Machine device = *machine::gpu("sm_90a");
  const machine::Strategy strategy{.granularity = machine::Granularity::kMono,
                                   .sync = machine::Sync::kDataflow};
  graph::Graph graph;
  const auto r = graph.add_input("r", {DType::f16, {rows, width}});
  auto x = graph.must_add(graph::Op::Tanh, {graph.add_input("x", {DType::f16, {rows, width}})});
  for (int layer = 0; layer < layers; ++layer) {
    const auto w = graph.add_constant(Tensor::allocate({DType::f16, {width, width}})),
               bias = graph.add_constant(Tensor::allocate({DType::f16, {width}}));
    const auto sum =
        graph.must_add(graph::Op::Add, {graph.must_add(graph::Op::MatMul, {x, w}), bias});
    x = graph.must_add(graph::Op::Add, {graph.must_add(graph::Op::Tanh, {sum}), r});
  }
  graph.mark_output(x, "y");
  return compiled_as(machine::Granularity::kMono, graph, device, strategy);
}

// A body of one kernel waits for the wave before after it has requested weights and before all
// other loads; where its text does not, its caller does.
TEST(CudaSource, ABodyOfOneKernelReadsOnlyWeightsBeforeItWaits) {
  const Program program = in_one_kernel(128, 768, 1);
  int products = 0;
  for (const codegen::BodyText& body : program.bodies) {
    const size_t begin = body.text.find("  OBK_BEGIN_");
    ASSERT_NE(begin, std::string::npos) << body.text;
    EXPECT_EQ(body.traits.waits, codegen::BodyTraits::Wait::kWaveBefore);
    EXPECT_EQ(body.text.find("  OBK_BEGIN_", begin + 1), std::string::npos) << body.text;
    std::vector<size_t> loads;
    for (size_t at = body.text.find("load_pack<V>("); at != std::string::npos;
         at = body.text.find("load_pack<V>(", at + 1))
      loads.push_back(at);
    EXPECT_EQ(body.traits.async_rows.has_value(), body.text.find("OBK_ROWS(") != std::string::npos);
    if (!body.traits.async_rows) {
      for (size_t at : loads) EXPECT_GT(at, begin) << body.text;
      continue;
    }
    ++products;
    EXPECT_EQ(body.text.compare(begin, 18, "  OBK_BEGIN_ROWS()"), 0) << body.text;
    ASSERT_EQ(loads.size(), 3u) << body.text;  // the bias, the residual, the tile's sums
    EXPECT_LT(loads[0], begin) << body.text;
    EXPECT_GT(loads[1], begin) << body.text;
    EXPECT_LT(begin, body.text.find("OBK_GEMM_ROWS_OF(")) << body.text;
  }
  EXPECT_EQ(products, 1);
  auto source = device_source(program);
  ASSERT_TRUE(source.ok()) << source.error().text();
  EXPECT_EQ(source->find("obk::begin_wave()"), std::string::npos);
  Program silent = program;
  for (codegen::BodyText& body : silent.bodies)
    if (!body.traits.async_rows) body.traits.waits = codegen::BodyTraits::Wait::kNothing;
  source = device_source(silent);
  ASSERT_TRUE(source.ok()) << source.error().text();
  EXPECT_NE(source->find("obk::begin_wave(); return obk_body_"), std::string::npos);
  // As a kernel of its own such a body would wait for a count that nobody keeps.
  Program apart = program;
  apart.granularity = machine::Granularity::kStitch;
  EXPECT_THROW((void)device_source(apart), Bug);
}

// A tile of a product is sure of its shape where its rows begin at multiples of 16 bytes: then
// device code needs no general form beside.
TEST(CudaSource, ATileIsAlignedWhereRowsBeginAt16Bytes) {
  struct Case {
    int64_t rows, pitch, begin;
    bool aligned;
  };
  for (const Case& c : {Case{16, 768, 0, true},
                        {16, 776, 8, true},
                        {16, 776, 4, false},
                        {16, 772, 0, true},  // by copies of 8 bytes
                        {1, 772, 0, true},
                        {1, 776, 4, false}}) {
    SCOPED_TRACE(fmt::format("{} rows of {}, from {}", c.rows, c.pitch, c.begin));
    const machine::Machine device = *machine::gpu("sm_90a");
    graph::Graph graph;
    const auto number = [&](int64_t value) {
      return graph.add_constant(tensor_of(std::vector<int64_t>{value}));
    };
    const auto x = graph.add_input("x", {DType::f16, {c.rows, c.pitch}});
    const auto part =
        graph.must_add(graph::Op::Slice, {x, number(c.begin), number(c.begin + 768), number(1)});
    graph.mark_output(
        graph.must_add(graph::Op::MatMul,
                       {part, graph.add_constant(Tensor::allocate({DType::f16, {768, 100}}))}),
        "y");
    const stitch::Plan plan = stitch::plan(graph, device);
    const schedule::TaskGraph tasks = schedule::build(graph, plan, device);
    const Program program =
        assemble(graph, plan, tasks,
                 codegen::emit(graph, plan, tasks, kernels::tile_library(device)), "sm_90a");
    int aligned = 0, all = 0;
    for (const codegen::BodyText& body : program.bodies)
      for (size_t at = body.text.find("OBK_GEMM_TILE_OF(kObkF16, g, "); at != std::string::npos;
           at = body.text.find("OBK_GEMM_TILE_OF(kObkF16, g, ", at + 1), ++all)
        aligned += body.text[at + 29] == '1';
    ASSERT_GT(all, 0);
    EXPECT_EQ(aligned, c.aligned ? all : 0) << program.bodies.back().text;
  }
}

// Code that has no other form of a tile than the one that waits for pages is not run where there
// are none.
TEST(CudaSource, AKernelWithoutThePagesThatItsCodeWantsIsRefused) {
  const Program program = in_one_kernel(128, 768, 1);
  const auto tables = make_tables(program, true, machine::gpu("sm_90a")->scratchpad.count);
  ASSERT_TRUE(tables.ok()) << tables.error().text();
  std::vector<Launch> launches = tables->launches;
  ASSERT_EQ(launches.size(), 1u);
  ASSERT_TRUE(launches[0].streams);
  EXPECT_TRUE(check_pages(program, launches).ok());
  launches[0].ring_pages = 1;
  const Status refused = check_pages(program, launches);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kDevice);
  EXPECT_NE(refused.error().message.find(
                "wants 2 pages of weights in shared memory, this GPU has room for 1"),
            std::string::npos)
      << refused.error().text();
  launches[0].streams = false;
  EXPECT_TRUE(check_pages(program, launches).ok());
}

// Whether there are pages follows from what an architecture has, not from how its name compares
// with another's.
TEST(CudaTables, WeightsComeByPagesWhereTheArchitectureHasTma) {
  for (const machine::Arch& arch : machine::architectures()) {
    SCOPED_TRACE(to_string(arch));
    const machine::Machine device = *machine::gpu(arch);
    const machine::Strategy strategy = strategy_for(device, {});
    graph::Graph graph;
    const auto x = graph.add_input("x", {DType::f16, {128, 768}});
    graph.mark_output(
        graph.must_add(graph::Op::MatMul,
                       {x, graph.add_constant(Tensor::allocate({DType::f16, {768, 768}}))}),
        "y");
    const stitch::Plan plan = stitch::plan(graph, device, strategy);
    const schedule::TaskGraph tasks = schedule::build(graph, plan, device, strategy);
    Program program =
        assemble(graph, plan, tasks,
                 codegen::emit(graph, plan, tasks, kernels::tile_library(device)), device.name);
    program.granularity = strategy.granularity;
    const auto tables = make_tables(program, true, device.scratchpad.count);
    ASSERT_TRUE(tables.ok()) << tables.error().text();
    ASSERT_TRUE(tables->launches.at(0).streams);
    EXPECT_EQ(tables->launches.at(0).ring_pages > 0, device.features.tma);
    const std::vector<std::string> defines = device_defines(program, {});
    const auto is_ring = [](const std::string& define) { return define.starts_with("OBK_RING="); };
    EXPECT_EQ(std::any_of(defines.begin(), defines.end(), is_ring), device.features.tma);
  }
}

// Tasks of one kernel that stream the same weights lie on neighbouring multiprocessors, 2k and 2k
// + 1.
TEST(CudaSource, TilesOfOneKernelWithTheSameWeightsAreNeighbours) {
  for (const int64_t rows : {128, 197}) {  // 2 and 4 tiles high
    const Program program = in_one_kernel(rows, 768, 2);
    int pairs = 0;
    for (size_t sm = 0; sm < program.lists.size(); sm += 2) {
      std::vector<std::tuple<uint32_t, int64_t, int64_t>> loads[2];  // work, columns, row
      for (size_t k : {0, 1})
        for (const ObkTask& task : program.lists[sm + k])
          if (task.weight_bytes > 0) loads[k].push_back({task.work, task.c0, task.r0});
      ASSERT_EQ(loads[0].size(), loads[1].size())
          << "multiprocessor " << sm << ", " << rows << " rows";
      for (size_t k = 0; k < loads[0].size(); ++k, ++pairs) {
        EXPECT_EQ(std::get<0>(loads[0][k]), std::get<0>(loads[1][k]));
        EXPECT_EQ(std::get<1>(loads[0][k]), std::get<1>(loads[1][k]));
        EXPECT_LT(std::get<2>(loads[0][k]), std::get<2>(loads[1][k]));
      }
    }
    EXPECT_GT(pairs, 40);
  }
}

// A row of one kernel, of which a task has one or two, is shared by all threads where it is long;
// elsewhere a warp has it.
TEST(CudaSource, LongRowsOfOneKernelAreSharedByAllThreads) {
  const auto text_of = [](bool one_kernel, int64_t columns, int64_t rows = 128) {
    const auto graph =
        graph::parse(fmt::format("graph \"g\" {{\n  in %0 \"x\": f16[{1},{0}]\n  const %9: i64[1] "
                                 "= [1]\n  %1: f16[{1},1] = ReduceMean(%0, %9) {{keepdims = 1}}\n"
                                 "  %2: f16[{1},{0}] = Sub(%0, %1)\n  out %2 \"y\"\n}}",
                                 columns, rows));
    CHECK(graph.ok(), "{}", graph.error().text());
    const machine::Machine device = *machine::gpu("sm_90a");
    const machine::Strategy strategy{.granularity = one_kernel ? machine::Granularity::kMono
                                                               : machine::Granularity::kThreads};
    const stitch::Plan plan = stitch::plan(*graph, device, strategy);
    const schedule::TaskGraph tasks = schedule::build(*graph, plan, device, strategy);
    const codegen::Source source =
        codegen::emit(*graph, plan, tasks, kernels::tile_library(device));
    CHECK(source.bodies.size() == 1);
    return source.bodies[0].text;
  };
  EXPECT_NE(text_of(true, 768).find("OBK_JOINED(256, Sum"), std::string::npos)
      << text_of(true, 768);
  EXPECT_NE(text_of(true, 768).find("U = OBK_UNITS(192, OBK_LANES_OF(256)), V = 4"),
            std::string::npos)
      << text_of(true, 768);
  EXPECT_NE(text_of(true, 512).find("OBK_JOINED(32, Sum"), std::string::npos) << text_of(true, 512);
  EXPECT_NE(text_of(true, 768, 264).find("OBK_JOINED(32, Sum"), std::string::npos)
      << text_of(true, 768, 264);
  EXPECT_NE(text_of(false, 768).find("OBK_JOINED(32, Sum"), std::string::npos)
      << text_of(false, 768);
}

// Maps of matrices whose rows products of one kernel request: behind the arena, one a matrix, their
// addresses behind the operands; numbers of a damaged file are refused.
TEST(CudaTables, MapsOfAsyncRowsLieBehindTheArena) {
  Program program = in_one_kernel(128, 768, 4);
  const int64_t room = machine::gpu("sm_90a")->scratchpad.count;
  const auto tables = make_tables(program, true, room);
  ASSERT_TRUE(tables.ok()) << tables.error().text();
  std::set<int64_t> matrices;
  int asking = 0;
  for (const WorkRecord& work : program.works) {
    if (!program.bodies[work.body].traits.async_rows) continue;
    ++asking;
    const Place& a = work.operands[work.operands.size() - 2];
    ASSERT_EQ(a.kind, BufferKind::kArena);
    matrices.insert(a.index);
    const auto map = std::find_if(tables->maps.begin(), tables->maps.end(),
                                  [&](const ArenaMap& each) { return each.from == a.index; });
    ASSERT_NE(map, tables->maps.end());
    const RowsMap& rows = map->rows;
    EXPECT_TRUE(rows.rows == 128 && rows.pitch == 768 && rows.together == 64 && rows.blocks == 3);
    EXPECT_TRUE(map->at >= program.arena.count && map->at % 64 == 0 &&
                map->at + 128 <= program.arena.count + tables->map_bytes);
    EXPECT_NE(std::find(tables->blocks.begin(), tables->blocks.end(),
                        static_cast<uint64_t>(map->at) | OBK_ARENA),
              tables->blocks.end());
  }
  EXPECT_EQ(asking, 4);
  EXPECT_EQ(matrices.size(), tables->maps.size());  // memory that is used again has one map
  EXPECT_LT(matrices.size(), 4u);
  EXPECT_TRUE(make_tables(program, false, room)->maps.empty());
  for (codegen::BodyText& body : program.bodies) {
    if (!body.traits.async_rows) continue;
    const codegen::AsyncRows sound = *body.traits.async_rows;
    EXPECT_TRUE(sound.rows == 128 && sound.pitch == 768 && sound.blocks == 3 && sound.box == 64);
    const auto with = [&](int64_t codegen::AsyncRows::*number, int64_t value) {
      codegen::AsyncRows broken = sound;
      broken.*number = value;
      return broken;
    };
    using Asked = codegen::AsyncRows;
    for (const Asked& broken :
         {with(&Asked::a, sound.a + 1), with(&Asked::a, 9), with(&Asked::a, -1),
          with(&Asked::rows, 0), with(&Asked::rows, INT32_MAX), Asked{sound.a, 129, 786432, 3, 64},
          with(&Asked::pitch, 770), with(&Asked::blocks, 0), with(&Asked::box, 257)}) {
      body.traits.async_rows = broken;
      const auto refused = make_tables(program, true, room);
      ASSERT_FALSE(refused.ok()) << to_string(body.traits);
      EXPECT_EQ(refused.error().code, Code::kBuild) << to_string(body.traits);
    }
    body.traits.async_rows = sound;
  }
}

// Of a program for half of the GPU or less, beside which others run, no GEMM prefetches the next
// one's weights, and its device code is told.
TEST(CudaTables, AProgramThatSharesTheGpuPrefetchesNothing) {
  const machine::Strategy strategy{.own_kernels = true};
  for (const auto& [sms, shares] :
       {std::pair{132, false}, std::pair{114, false}, std::pair{67, false}, std::pair{66, true},
        std::pair{16, true}}) {
    SCOPED_TRACE(sms);
    const machine::Machine device = *machine::gpu("sm_90a", sms);
    graph::Graph graph;
    auto x = graph.must_add(graph::Op::Tanh, {graph.add_input("x", {DType::f16, {128, 768}})});
    for (int layer = 0; layer < 2; ++layer)
      x = graph.must_add(graph::Op::MatMul,
                         {graph.must_add(graph::Op::Tanh, {x}),
                          graph.add_constant(Tensor::allocate({DType::f16, {768, 768}}))});
    graph.mark_output(x, "y");
    Program program = compiled_as(machine::Granularity::kStitch, graph, device, strategy);
    EXPECT_EQ(shares_gpu(program), shares);
    const auto tables = make_tables(program, false, device.scratchpad.count);
    ASSERT_TRUE(tables.ok()) << tables.error().text();
    std::vector<int> next;
    for (const Launch& launch : tables->launches)
      if (launch.pipelined_gemm) next.push_back(launch.next);
    ASSERT_EQ(next.size(), 2u);
    EXPECT_EQ(next[0] < 0, shares);
    EXPECT_LT(next[1], 0);
    const std::vector<std::string> defines = device_defines(program, {});
    EXPECT_EQ(std::count(defines.begin(), defines.end(), "OBK_SHARES_GPU=1"), shares);
  }
}

// What a pipelined GEMM's kernel copies lies inside its packed weights and its places; numbers of
// a damaged file are refused.
TEST(CudaTables, APipelinedGemmStaysInsideItsOperands) {
  const machine::Strategy strategy{.own_kernels = true};
  int overlaid = 0;
  for (const auto& [rows, columns, k, sms] :
       {std::tuple{128, 768, 768, 132}, std::tuple{197, 2304, 768, 132},
        std::tuple{128, 768, 3072, 132}, std::tuple{197, 3064, 768, 132},
        std::tuple{500, 40, 192, 132},  // and tall ones
        std::tuple{128, 3072, 768, 33}, std::tuple{197, 3064, 768, 16},
        std::tuple{65, 1536, 768, 16}, std::tuple{1024, 2304, 768, 132},
        std::tuple{1000, 3064, 768, 132}, std::tuple{600, 768, 3072, 16}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << columns << " x " << k << ", " << sms);
    const machine::Machine device = *machine::gpu("sm_90a", sms);
    graph::Graph graph;
    const auto x = graph.add_input("x", {DType::f16, {rows, k}});
    const auto w = graph.add_constant(Tensor::allocate({DType::f16, {k, columns}}));
    graph.mark_output(graph.must_add(graph::Op::MatMul, {graph.must_add(graph::Op::Tanh, {x}), w}),
                      "y");
    Program program = compiled_as(machine::Granularity::kStitch, graph, device, strategy);
    const auto tables = make_tables(program, false, device.scratchpad.count);
    ASSERT_TRUE(tables.ok()) << tables.error().text();
    const auto launch = std::find_if(tables->launches.begin(), tables->launches.end(),
                                     [](const Launch& made) { return made.pipelined_gemm; });
    ASSERT_NE(launch, tables->launches.end());
    const PipelinedGemmNumbers& p = launch->numbers;
    const Tensor& weights = program.weights[static_cast<size_t>(
        program.works[launch->work].operands[launch->weights].index)];
    const int64_t blocks = k / 64;
    EXPECT_EQ(blocks, int64_t{p.split_k} * p.stage * p.tile_stages);
    EXPECT_EQ(p.across * p.each, p.tasks);
    EXPECT_EQ(
        (p.across - 1) * int64_t{p.tile_bytes} + p.split_k * p.tile_stages * int64_t{p.last_bytes},
        weights.bytes());
    EXPECT_EQ(p.tile_bytes, p.split_k * p.tile_stages * p.bytes);
    EXPECT_LE(p.rows_bytes + std::max(p.bytes, p.last_bytes), p.stage_bytes);
    EXPECT_LE(p.stages, obk::kPipelinedGemmStages);
    EXPECT_LE(p.stages * p.stage_bytes + p.scratch_bytes - p.overlaid, launch->shared);
    EXPECT_LE(launch->shared, device.scratchpad.count);
    EXPECT_EQ(p.single, launch->ctas == p.tasks * p.split_k);
    if (p.single) {
      EXPECT_EQ(p.refills, p.stages < p.tile_stages);
    }
    if (p.overlaid > 0) {  // only where all that is still to come has come, and for want of room
      EXPECT_TRUE(p.single);
      EXPECT_GT((p.stages - 1) * p.stage_bytes + p.scratch_bytes,
                device.scratchpad.count - 128 - p.stage_bytes);
    }
    EXPECT_EQ(p.share, p.single && p.each % 2 == 0 ? 2 : 1);
    EXPECT_EQ(p.tasks % p.share, 0);
    EXPECT_EQ(launch->ctas % (p.split_k * p.share), 0);
    overlaid += p.overlaid > 0;
    // The numbers are constants of its kernel.
    const auto source = device_source(program);
    ASSERT_TRUE(source.ok()) << source.error().text();
    const std::string name = fmt::format("ObkPipelinedGemm{}", program.works[launch->work].body);
    EXPECT_NE(source->find(text_of(p, name)), std::string::npos);
    EXPECT_NE(source->find(fmt::format("_KERNEL(obk_kernel_{0}, obk_body_{0}, {1})",
                                       program.works[launch->work].body, name)),
              std::string::npos);
    const auto small =
        make_tables(program, false, p.stages * p.stage_bytes + p.scratch_bytes - p.overlaid - 1);
    ASSERT_FALSE(small.ok());
    EXPECT_EQ(small.error().code, Code::kUnsupported);
    using Gemm = codegen::PipelinedGemm;
    codegen::BodyTraits& traits = program.bodies[program.works[launch->work].body].traits;
    ASSERT_TRUE(traits.gemm);
    const Gemm sound = *traits.gemm;
    const auto with = [&](int64_t Gemm::*number, int64_t value) {
      traits.gemm = sound;
      (*traits.gemm).*number = value;
      return make_tables(program, false, device.scratchpad.count);
    };
    EXPECT_TRUE(with(&Gemm::a, sound.a).ok());
    const std::vector<std::pair<int64_t Gemm::*, int64_t>> others = {
        {&Gemm::a, -1},
        {&Gemm::a, 99},
        {&Gemm::b, -1},
        {&Gemm::b, 99},
        {&Gemm::span, 0},
        {&Gemm::span, int64_t{1} << 40},
        {&Gemm::blocks, 0},
        {&Gemm::blocks, blocks * 100000},
        {&Gemm::stage, 0},
        {&Gemm::stage, blocks + 1},
        {&Gemm::stage, INT32_MAX},
        {&Gemm::b_count, 0},
        {&Gemm::b_count, 9},
        {&Gemm::columns, 0},
        {&Gemm::columns, sound.columns - 16},
        {&Gemm::columns, 1000},
        {&Gemm::split_k, 0},
        {&Gemm::split_k, 99},
        {&Gemm::late_scratch, -16},
        {&Gemm::late_scratch, 8},
        {&Gemm::late_scratch, 1 << 24},
        {&Gemm::row, -1},
        {&Gemm::block_step, int64_t{1} << 40},
        {&Gemm::weights_step, 8},
        {&Gemm::all_rows, 0},
        {&Gemm::all_rows, sound.all_rows + 1},
        {&Gemm::all_columns, sound.all_columns + 64}};
    for (size_t k = 0; k < others.size(); ++k) {
      const auto broken = with(others[k].first, others[k].second);
      ASSERT_FALSE(broken.ok()) << "the " << k << "th: " << to_string(traits);
      EXPECT_EQ(broken.error().code, Code::kBuild);
    }
  }
  EXPECT_EQ(overlaid, 6);  // of 197 rows, and tall ones that are alone
}

// The same where B is an activation: both matrices lie inside what holds them.
TEST(CudaTables, APipelinedGemmOfActivationsStaysInsideItsOperands) {
  for (const bool tf32 : {false, true})
    for (const bool turned : {false, true})
      for (const bool computed : {false, true})
        for (const auto& [batch, rows, columns, k, sms] :
             {std::tuple{8, 256, 256, 256, 132}, std::tuple{40, 250, 232, 192, 132},
              std::tuple{1, 1000, 392, 512, 16}, std::tuple{3, 40, 72, 64, 132}}) {
          SCOPED_TRACE(testing::Message()
                       << batch << " of " << rows << " x " << columns << " x " << k
                       << (turned ? ", transposed" : "") << (computed ? ", computed" : "")
                       << (tf32 ? ", tf32" : ""));
          const machine::Strategy strategy{.own_kernels = true, .tf32 = tf32};
          const DType type = tf32 ? DType::f32 : DType::f16;
          const int deep = tf32 ? 32 : 64;  // elements of 128 bytes
          const machine::Machine device = *machine::gpu("sm_90a", sms);
          graph::Graph graph;
          const auto x = graph.add_input("x", {type, {batch, rows, k}});
          auto w = turned ? graph.add_input("w", {type, {batch, columns, k}})
                          : graph.add_input("w", {type, {batch, k, columns}});
          if (computed) w = graph.must_add(graph::Op::Tanh, {w});
          if (turned)
            w = graph.must_add(graph::Op::Transpose, {w},
                               ops::Attrs().set("perm", std::vector<int64_t>{0, 2, 1}));
          graph.mark_output(graph.must_add(graph::Op::MatMul, {x, w}), "y");
          Program program = compiled_as(machine::Granularity::kStitch, graph, device, strategy);
          const auto tables = make_tables(program, false, device.scratchpad.count);
          ASSERT_TRUE(tables.ok()) << tables.error().text();
          const auto launch = std::find_if(tables->launches.begin(), tables->launches.end(),
                                           [](const Launch& made) { return made.pipelined_gemm; });
          ASSERT_NE(launch, tables->launches.end());
          const PipelinedGemmNumbers& p = launch->numbers;
          if (!computed) {  // else its layout is the compiler's choice
            EXPECT_EQ(p.k_rows, !turned);
          }
          EXPECT_EQ(p.block_k, deep);
          EXPECT_EQ(p.boxes, p.k_rows ? (p.tile_columns + deep - 1) / deep : 1);
          const bool whole_stage = tf32 && p.k_rows;  // is a box
          EXPECT_EQ(launch->boxes.together, whole_stage ? p.stage * deep
                                            : p.k_rows  ? deep
                                                        : (p.tile_columns + 15) / 16 * 16);
          EXPECT_EQ(p.bytes, (whole_stage ? 1 : p.stage) * p.boxes * launch->boxes.together * 128);
          EXPECT_EQ(launch->boxes.size, tf32 ? 4 : 2);
          EXPECT_EQ(launch->rows.size, tf32 ? 4 : 2);
          EXPECT_EQ(p.rows_bytes + p.bytes, p.stage_bytes);
          EXPECT_EQ(k / deep, p.split_k * p.stage * p.tile_stages);
          EXPECT_EQ(p.across * p.each * batch, p.tasks);
          EXPECT_LE(p.stages * p.stage_bytes + p.scratch_bytes - p.overlaid, launch->shared);
          EXPECT_LE(launch->shared, device.scratchpad.count);
          EXPECT_EQ(p.share, 1);
          EXPECT_LT(launch->next, 0);
          const auto source = device_source(program);
          ASSERT_TRUE(source.ok()) << source.error().text();
          codegen::BodyTraits& traits = program.bodies[program.works[launch->work].body].traits;
          ASSERT_TRUE(traits.gemm && traits.gemm->boxes);
          using Boxes = codegen::BoxMatrix;
          const codegen::PipelinedGemm whole = *traits.gemm;
          const Boxes sound = *whole.boxes;
          const auto with = [&](int64_t Boxes::*number, int64_t value) {
            traits.gemm = whole;
            (*traits.gemm->boxes).*number = value;
            return make_tables(program, false, device.scratchpad.count);
          };
          EXPECT_TRUE(with(&Boxes::rows, sound.rows).ok());
          const std::vector<std::pair<int64_t Boxes::*, int64_t>> others = {
              {&Boxes::rows, 0},
              {&Boxes::rows, sound.rows - 1},
              {&Boxes::rows, sound.rows * 2},
              {&Boxes::rows, INT32_MAX},
              {&Boxes::columns, sound.columns - 1},
              {&Boxes::columns, sound.pitch + 1},
              {&Boxes::pitch, sound.pitch + deep / 16},
              {&Boxes::pitch, sound.pitch * 2},
              {&Boxes::pitch, 0},
              {&Boxes::row, 1},
              {&Boxes::row, -1},
              {&Boxes::column, 1},
              {&Boxes::row_step, int64_t{1} << 40}};
          for (size_t at = 0; at < others.size(); ++at) {
            if (others[at].second == sound.pitch * 2 && sound.rows == 1) continue;
            const auto broken = with(others[at].first, others[at].second);
            ASSERT_FALSE(broken.ok()) << "the " << at << "th: " << to_string(traits);
            EXPECT_EQ(broken.error().code, Code::kBuild);
          }
          traits.gemm = whole, traits.gemm->boxes.reset();  // then it would be packed weights
          EXPECT_FALSE(make_tables(program, false, device.scratchpad.count).ok());
          traits.gemm = whole, traits.gemm->rows = whole.rows * 2;
          EXPECT_FALSE(make_tables(program, false, device.scratchpad.count).ok());
          traits.gemm = whole, traits.gemm->block = INT32_MAX;
          EXPECT_FALSE(make_tables(program, false, device.scratchpad.count).ok());
        }
}

/// The bodies of a graph of kernels whose works are grids from `grid_bytes` bytes on.
std::vector<codegen::BodyText> bodies_of(const std::string& text, int64_t grid_bytes) {
  const auto graph = graph::parse("graph \"g\" {\n" + text + "}");
  CHECK(graph.ok(), "{}", graph.error().text());
  return bodies_of(*graph, machine::Strategy{.min_grid_bytes = {grid_bytes}});
}
int count_of(const std::string& text, std::string_view what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Attention of one task a multiprocessor waits for the kernel before where it first reads what that
// computes: its keys, or a residual.
TEST(CudaSource, AttentionWithoutATableWaitsBeforeItReads) {
  const std::string attention = R"(in %0 "q": f16[1,12,128,64]
  in %1 "k": f16[1,12,128,64]
  in %2 "v": f16[1,12,128,64]
  in %3 "r": f16[1,12,128,64]
  %4: f16[1,12,128,64] = Attention(%0, %1, %2)
)";
  for (const bool residual : {false, true}) {
    const std::string rest =
        residual ? "%5: f16[1,12,128,64] = Add(%4, %3)\n" : "%5: f16[1,12,128,64] = Relu(%4)\n";
    const auto bodies = bodies_of(attention + rest + "out %5 \"y\"\n", int64_t{1} << 40);
    ASSERT_EQ(bodies.size(), 1u);
    const std::string& text = bodies[0].text;
    const size_t waits = text.find("OBK_WAIT_FOR_PREVIOUS();"),
                 tile = text.find("OBK_ATTENTION_TILE("), load = text.find("load_pack<V>(x");
    ASSERT_NE(waits, std::string::npos) << text;
    EXPECT_EQ(count_of(text, "OBK_WAIT_FOR_PREVIOUS();"), 1);
    EXPECT_EQ(bodies[0].traits.form, codegen::BodyTraits::Form::kGrid);
    EXPECT_EQ(bodies[0].traits.ctas_per_sm, 1);
    EXPECT_LT(waits, tile);
    EXPECT_EQ(load != std::string::npos, residual) << text;
    EXPECT_LT(residual ? waits : text.find("ObkAttention g"), residual ? load : waits) << text;
  }
}

// What a grid reads of its rows is read once, what all rows share is not.
TEST(CudaSource, RowsOfGridWorksAreReadOnce) {
  const std::string norm = R"(in %0 "x": f32[4096,1024]
  const %1: f32[1024] = [)" +
                           [] {
                             std::string ones = "1";
                             for (int k = 1; k < 1024; ++k) ones += ", 1";
                             return ones;
                           }() +
                           R"(]
  %2: f32[4096,1024] = Softmax(%0) {axis = -1}
  %3: f32[4096,1024] = Mul(%2, %1)
  out %3 "y"
)";
  for (const bool grid : {true, false}) {
    const auto bodies = bodies_of(norm, grid ? 1 << 20 : int64_t{1} << 40);
    ASSERT_EQ(bodies.size(), 1u);
    EXPECT_EQ(count_of(bodies[0].text, "once_pack<V>(x0"), grid ? 1 : 0) << bodies[0].text;
    EXPECT_EQ(count_of(bodies[0].text, "once_pack<V>(x1"), 0) << bodies[0].text;
  }
}

std::string softmax_of(const std::string& type, int64_t columns,
                       const std::string& last = "Relu(%5)") {
  const std::string whole = fmt::format("{}[4096,{}]", type, columns), row = type + "[4096,1]";
  return fmt::format(
      "in %0 \"x\": {0}\n  const %9: i64[1] = [1]\n  %1: {1} = ReduceMax(%0, %9) {{keepdims = "
      "1}}\n  %2: {0} = Sub(%0, %1)\n  %3: {0} = Exp(%2)\n"
      "  %4: {1} = ReduceSum(%3, %9) {{keepdims = 1}}\n  %5: {0} = Div(%3, %4)\n  %6: {0} = {2}\n  "
      "out %6 \"y\"\n",
      whole, row, last);
}

// A row is held by as many CTAs of a multiprocessor as have the registers; packs of 16 bits are
// unpacked anew where wide copies of them would not fit.
TEST(CudaSource, GridRowsStayInRegisters) {
  const auto norm = [](const std::string& type, int64_t columns) {
    const std::string whole = fmt::format("{}[512,{}]", type, columns), row = type + "[512,1]";
    return fmt::format(
        "in %0 \"x\": {0}\n  const %1: i64[1] = [1]\n  %2: {1} = ReduceMean(%0, %1) {{keepdims = "
        "1}}\n  %3: {0} = Sub(%0, %2)\n  %4: {0} = Mul(%3, %3)\n"
        "  %5: {1} = ReduceMean(%4, %1) {{keepdims = 1}}\n  %6: {1} = Sqrt(%5)\n  %7: {0} = "
        "Div(%3, %6)\n  out %7 \"y\"\n",
        whole, row);
  };
  struct Row {
    std::string text;
    int ctas_per_sm, anew;
  };
  for (const auto& [text, ctas_per_sm, anew] :
       {Row{norm("f32", 8192), 3, 0}, Row{norm("f32", 12288), 2, 0}, Row{norm("f16", 8192), 4, 0},
        Row{norm("f16", 16384), 3, 2}, Row{norm("bf16", 24576), 3, 2},
        Row{norm("f16", 32768), 2, 2}, Row{softmax_of("f32", 8192), 3, 0},
        Row{softmax_of("f16", 32768), 1, 1}}) {
    const auto bodies = bodies_of(text, 1 << 20);
    ASSERT_EQ(bodies.size(), 1u) << text;
    EXPECT_EQ(bodies[0].traits.ctas_per_sm, ctas_per_sm) << bodies[0].text;
    EXPECT_EQ(count_of(bodies[0].text, "obk::unpack_anew("), anew) << bodies[0].text;
  }
}

// For floats of 16 bits a softmax takes short forms of exp and of division; not where more is
// stored, or where a little more or less would be another number, or an infinite one. A batch of
// one row takes the same forms as any other.
TEST(CudaSource, TheShortFormsOfASoftmaxAreForFloatsOf16Bits) {
  const std::string one =
      "in %1 \"x\": f16[ROWS,256]\n  in %2 \"s\": f16[ROWS,1]\n  const %9: i64[1] = [1]\n";
  const std::string divided = one +
                              "%3: f16[ROWS,256] = Div(%1, %2)\n  %4: f16[ROWS,1] = ReduceSum(%3, "
                              "%9) {keepdims = 1}\n  out %4 \"y\"\n";
  const std::string raised = one +
                             "%3: f16[ROWS,256] = Sub(%1, %2)\n  %5: f16[ROWS,256] = Exp(%3)\n  "
                             "%4: f16[ROWS,1] = ReduceSum(%5, %9) {keepdims = 1}\n  out %4 \"y\"\n";
  const auto of = [](std::string text, const char* rows) {
    for (size_t at; (at = text.find("ROWS")) != std::string::npos;) text.replace(at, 4, rows);
    return text;
  };
  struct Forms {
    std::string text;
    int exp, over;
  };
  for (const auto& [text, exp, over] : {Forms{softmax_of("f16", 256), 1, 1},
                                        {softmax_of("bf16", 4096), 1, 1},
                                        {softmax_of("f32", 256), 0, 0},
                                        {softmax_of("f16", 256, "Floor(%5)"), 0, 0},
                                        {softmax_of("f16", 256, "Log(%5)"), 0, 0},
                                        {softmax_of("f16", 256, "Sqrt(%5)"), 0, 0},
                                        {softmax_of("f16", 256, "Neg(%5)"), 1, 1},
                                        {of(divided, "1"), 0, 1},
                                        {of(divided, "4"), 0, 1},
                                        {of(raised, "1"), 1, 0},
                                        {of(raised, "4"), 1, 0}}) {
    const auto bodies = bodies_of(text, int64_t{1} << 40);
    ASSERT_EQ(bodies.size(), 1u) << text;
    EXPECT_EQ(count_of(bodies[0].text, "obk::exp_approx("), exp) << text << bodies[0].text;
    EXPECT_EQ(count_of(bodies[0].text, "obk::div_approx("), over) << text << bodies[0].text;
    EXPECT_EQ(count_of(bodies[0].text, "obk::divisor("), over) << text << bodies[0].text;
  }
}

// Squares of a transposition have as many bytes of 16 bits as of 32, and two neighbours of 16 bits
// are transposed as a word.
TEST(CudaSource, HalvesAreTransposedInPairs) {
  for (const auto& [type, tall] : {std::pair{"f16", 128}, {"bf16", 128}, {"f32", 64}}) {
    const auto bodies = bodies_of(fmt::format("in %0 \"x\": {0}[4096,2048]\n  %1: {0}[2048,4096] = "
                                              "Transpose(%0) {{perm = [1, 0]}}\n  out %1 \"y\"\n",
                                              type),
                                  1 << 20);
    ASSERT_EQ(bodies.size(), 1u);
    EXPECT_EQ(count_of(bodies[0].text, "obk::put_pair("), tall == 128 ? 1 : 0) << bodies[0].text;
    EXPECT_EQ(count_of(bodies[0].text, fmt::format("s / across * {},", tall)), 2) << bodies[0].text;
  }
}

// 1 + erf takes its short form where all that is stored of it has 16 bits, whatever else is stored
// beside it.
TEST(CudaSource, TheShortFormOfErfIsForWhatHas16Bits) {
  const std::string gelu = R"(in %0 "x": f32[64,256]
  const %1: f32[] = [1]
  %6: f32[64,256] = Tanh(%0)
  %2: f32[64,256] = Erf(%6)
  %3: f32[64,256] = Add(%2, %1)
  %4: f32[64,256] = Mul(%6, %3)
  %5: f16[64,256] = Cast(%4) {to = 10}
)";
  const auto narrow = bodies_of(gelu + "out %5 \"y\"\n out %6 \"z\"\n", int64_t{1} << 40),
             wide = bodies_of(gelu + "out %5 \"y\"\n out %4 \"z\"\n", int64_t{1} << 40);
  ASSERT_EQ(narrow.size(), 1u);
  ASSERT_EQ(wide.size(), 1u);
  EXPECT_EQ(count_of(narrow[0].text, "one_plus_erf("), 1) << narrow[0].text;
  EXPECT_EQ(count_of(wide[0].text, "one_plus_erf("), 0) << wide[0].text;
}

TEST(CudaSource, TheWatchdogsClocksAreANumber) {
  const auto clocks = [](const char* wished) {
    setenv("OBELISK_WATCHDOG_CLOCKS", wished, 1);
    const std::vector<std::string> defines = device_defines(Program{}, {.watchdog = true});
    unsetenv("OBELISK_WATCHDOG_CLOCKS");
    return defines.empty() ? "" : defines.front();
  };
  EXPECT_EQ(clocks("12"), "OBK_WATCHDOG=12LL");
  for (const char* none : {"", "soon", "12;", "-1", "9999999999999999999"})
    EXPECT_EQ(clocks(none), "OBK_WATCHDOG=4000000000LL") << none;
  EXPECT_TRUE(device_defines(Program{}, {}).empty());
}

// An op that has neither a loop nor a block is named, however the program is launched.
TEST(CudaSource, AnOpWithoutDeviceCodeIsNamed) {
  const auto graph = graph::parse(
      "graph \"g\" {\n  in %0 \"x\": f32[1,80,4,4]\n  %1: f32[1,80,4,4] = Relu(%0)\n  %2: "
      "f32[1,80,4,4] = LRN(%1) {size = 65} \"norm/LRN\"\n  out %2 \"y\"\n}");
  ASSERT_TRUE(graph.ok()) << graph.error().text();
  const machine::Machine device = *machine::gpu("sm_90a");
  const stitch::Plan plan = stitch::plan(*graph, device);
  const schedule::TaskGraph tasks = schedule::build(*graph, plan, device);
  Program program =
      assemble(*graph, plan, tasks,
               codegen::emit(*graph, plan, tasks, kernels::tile_library(device)), "sm_90a");
  ASSERT_EQ(program.customs.size(), 1u);
  for (const machine::Granularity granularity :
       {machine::Granularity::kMono, machine::Granularity::kStitch, machine::Granularity::kOp}) {
    program.granularity = granularity;
    const auto refused = device_source(program);
    const auto tables =
        make_tables(program, granularity == machine::Granularity::kMono, device.scratchpad.count);
    ASSERT_FALSE(refused.ok() || tables.ok()) << to_string(granularity);
    for (const Error& error : {refused.error(), tables.error()}) {
      EXPECT_EQ(error.code, Code::kUnsupported);
      EXPECT_EQ(error.node, "norm/LRN");
      EXPECT_NE(error.message.find("LRN has no device code"), std::string::npos) << error.message;
    }
    (void)device_defines(program, {});  // asks the tables, too
  }
}

// A task that no multiprocessor has room for is refused by its ops' names.
TEST(CudaTables, ATaskTooLargeForAMultiprocessorIsNamed) {
  Program program = in_one_kernel(128, 768, 1);
  const int64_t room = machine::gpu("sm_90a")->scratchpad.count;
  program.works[0].scratch = room + 1;
  for (const bool one_kernel : {true, false}) {
    const auto refused = make_tables(program, one_kernel, room);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kUnsupported);
    EXPECT_EQ(refused.error().node, program.works[0].label);
    EXPECT_FALSE(program.works[0].label.empty());
  }
}

// Kernels are told with their launches and shared memory; generated functions that spill, by the
// ops of their bodies.
TEST(CudaSource, SpilledRegistersAreWarnedOf) {
  const Program program = two_bodies();
  const std::string log =
      "ptxas info    : Compiling entry function 'obk_kernel_0' for 'sm_90a'\n"
      "ptxas info    : Function properties for obk_kernel_0\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 40 registers, used 1 barriers, 100 bytes smem\n"
      "ptxas info    : Compiling entry function 'obk_kernel_1' for 'sm_90a'\n"
      "ptxas info    : Function properties for obk_kernel_1\n"
      "    64 bytes stack frame, 60 bytes spill stores, 40 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 8 bytes smem\n"
      "ptxas info    : Function properties for _ZN3obk4tileEv\n"
      "    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Function properties for obk_body_0\n"
      "    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
      "ptxas info    : Function properties for obk_body_1\n"
      "    24 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads\n";
  const Image image{.bytes = "code", .log = log, .kernels = read_assembler_log(log)};
  const std::vector<Launch> launches = {
      {.body = 1, .shared = 1000}, {.body = 0, .shared = 10}, {.body = 1, .shared = 500}};
  DeviceReport report;
  report_kernels(program, {image}, launches, report);
  ASSERT_EQ(report.kernels.size(), 5u);
  EXPECT_EQ(report.cubin_bytes, 4);
  const KernelReport &first = report.kernels[0], &second = report.kernels[1],
                     &called = report.kernels[2];
  EXPECT_TRUE(first.name == "obk_kernel_0" && first.launches == 1 && first.smem_bytes == 110 &&
              first.registers == 40)
      << first.name;
  EXPECT_TRUE(second.name == "obk_kernel_1" && second.launches == 2 && second.smem_bytes == 1008)
      << second.name;
  EXPECT_TRUE(called.name == "obk::tile" && called.launches == 0 && called.registers == 0 &&
              called.spill_bytes == 16)
      << called.name;
  ASSERT_EQ(report.warnings.size(),
            2u);  // what a hand-written block saves of its caller's is a few bytes a tile
  EXPECT_EQ(report.warnings[1],
            "2 called functions spill registers: 56 bytes stored and loaded, most by obk_body_1 "
            "('second'), 44");
  for (const char* part : {"obk_kernel_1", "'second'", "100 bytes"})
    EXPECT_NE(report.warnings[0].find(part), std::string::npos) << report.warnings[0];
}

// Kernels of a graph are compiled in parts, each body in one of them; one kernel of all is whole.
TEST(CudaSource, EachBodyIsInOnePart) {
  Program program = two_bodies();
  while (program.bodies.size() < 20) program.bodies.push_back(program.bodies[0]);
  const int parts = part_count(program);
  EXPECT_EQ(parts, 7);
  std::vector<int> found(program.bodies.size());
  for (int part = 0; part < parts; ++part) {
    const auto text = device_source(program, {}, part);
    ASSERT_TRUE(text.ok());
    for (int body = 0; body < 20; ++body)
      if (text->find(kernel_name(body) + ",") != std::string::npos) {
        ++found[static_cast<size_t>(body)];
        EXPECT_EQ(part_of(body, parts), part);
      }
  }
  EXPECT_EQ(found, std::vector<int>(20, 1));
  program.granularity = machine::Granularity::kMono;
  EXPECT_EQ(part_count(program), 1);
  EXPECT_EQ(part_of(-1, 1), 0);
}

// One job compiles one text, whose machine code has every body's kernel.
TEST(CudaSource, OneJobCompilesOneText) {
  if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();
  Program program = two_bodies();
  while (program.bodies.size() < 4) program.bodies.push_back(program.bodies[0]);
  LoadOptions options;
  options.cache_dir = "off";
  for (const int jobs : {0, 1}) {
    options.jobs = jobs;
    const auto images = build_images(program, program.target, options);
    ASSERT_TRUE(images.ok()) << images.error().text();
    EXPECT_EQ(images->size(), jobs == 1 ? 1u : 2u);
    std::set<std::string> kernels;
    for (const Image& image : *images)
      for (const KernelReport& kernel : image.kernels) kernels.insert(kernel.name);
    for (int body = 0; body < 4; ++body)
      EXPECT_TRUE(kernels.contains(kernel_name(body))) << "jobs " << jobs << ", body " << body;
  }
}

// A run reads a few rows of a table of words, all of a product's weight.
TEST(Images, CodeThatTakesOtherParametersIsRefused) {
  const Image image{.bytes = "code", .log = "log\n"};
  const std::string entry = to_entry(image);
  const auto read = from_entry(entry);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->bytes, image.bytes);
  EXPECT_EQ(read->log, image.log);
  constexpr size_t kTail = 8, kHash = 32;  // an entry ends with them
  for (size_t at = image.bytes.size() + image.log.size(); at < entry.size(); ++at) {
    std::string other = entry;
    other[at] ^= 1;
    const auto refused = from_entry(other);
    ASSERT_FALSE(refused.ok()) << at;
    const size_t behind = entry.size() - at;
    const bool of_hash = behind > kTail && behind <= kTail + kHash;
    EXPECT_NE(refused.error().text().find(of_hash ? "of another version" : "is damaged"),
              std::string::npos)
        << at << ": " << refused.error().text();
  }
}

TEST(Programs, AFewRowsOfATableAreRead) {
  graph::Graph graph;
  const auto weight = [&](Shape shape) {
    Tensor tensor = Tensor::allocate({DType::f16, shape});
    std::memset(tensor.mutable_data(), 0, static_cast<size_t>(tensor.bytes()));
    return graph.add_constant(std::move(tensor));
  };
  constexpr int64_t kWords = 50000, kWidth = 256, kColumns = 512;
  const graph::ValueId ids = graph.add_input("ids", {DType::i64, {1, 4}});
  const graph::ValueId rows = graph.must_add(ops::Op::Gather, {weight({kWords, kWidth}), ids});
  graph.mark_output(graph.must_add(ops::Op::MatMul, {rows, weight({kWidth, kColumns})}), "y");
  const machine::Machine device = *machine::gpu("sm_90a");
  const stitch::Plan plan = stitch::plan(graph, device);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device);
  const Program program =
      assemble(graph, plan, tasks, codegen::emit(graph, plan, tasks, kernels::tile_library(device)),
               "sm_90a");
  EXPECT_GE(bytes_of_a_run(program), kWidth * kColumns * 2);
  EXPECT_LE(bytes_of_a_run(program), 2 * kWidth * kColumns * 2);
}

// Of a dataflow program the table says where each work's operands are: what it gives in the
// arena, what it reads of others or of its own in the CTA's copies, each of which a task gathers
// before; no barrier is told, all bodies are part of the kernel.
TEST(CudaTables, ADataflowProgramReadsItsCopies) {
  const machine::Machine device = *machine::gpu("sm_90a");
  const machine::Strategy strategy{.sync = machine::Sync::kDataflow};
  const auto graph = passes::copy_early_pieces(graph::decoder_step(DType::f16));
  ASSERT_TRUE(graph.ok());
  const stitch::Plan plan = stitch::plan(*graph, device, strategy);
  const schedule::TaskGraph tasks = schedule::build(*graph, plan, device, strategy);
  ASSERT_TRUE(tasks.dataflow);
  Program program =
      assemble(*graph, plan, tasks,
               codegen::emit(*graph, plan, tasks, kernels::tile_library(device)), "sm_90a");
  program.granularity = machine::Granularity::kMono;
  const auto tables = make_tables(program, true, device.scratchpad.count);
  ASSERT_TRUE(tables.ok()) << tables.error().text();
  ASSERT_EQ(tables->launches.size(), 1u);
  const Launch& launch = tables->launches[0];
  EXPECT_EQ(launch.threads, obk::kDataflowThreads);
  EXPECT_GE(launch.ring_pages, 2);
  EXPECT_LE(launch.smem_copies_at + program.smem_copies.count, launch.shared);
  EXPECT_LE(launch.shared, device.scratchpad.count);
  std::set<int> numbers;
  for (const std::vector<ObkTask>& list : tasks.lists) {
    std::set<int> here;
    for (const ObkTask& task : list)
      for (const Gather& gather : program.works[task.work].gathers) here.insert(gather.number);
    numbers.insert(here.begin(), here.end());
  }
  EXPECT_GE(numbers.size(), 7u);
  EXPECT_EQ(*numbers.rbegin() + 1, static_cast<int>(numbers.size()));
  size_t at = 0, gathers = 0;
  for (const WorkRecord& work : program.works) {  // the blocks, one after another
    ObkWork head;
    memcpy(&head, &tables->blocks[at], sizeof head);
    ASSERT_EQ(head.operands, static_cast<int>(work.operands.size()));
    ASSERT_EQ(head.gathers, static_cast<int>(work.gathers.size()));
    size_t word = at + OBK_WORK_WORDS + work.params.size();
    for (const Place& place : work.operands) {
      const uint64_t told = tables->blocks[word++];
      if (place.smem_copy >= 0)
        EXPECT_EQ(told, static_cast<uint64_t>(place.smem_copy) | OBK_SMEM_COPY);
      else
        EXPECT_EQ(told & OBK_SMEM_COPY, 0u);
    }
    word += word % 2;
    for (const Gather& gather : work.gathers) {
      ObkGather told;
      memcpy(&told, &tables->blocks[word], sizeof told), word += 2, ++gathers;
      EXPECT_EQ(told.from * obk::kGatherUnit, gather.from);
      EXPECT_EQ(told.smem_copy, gather.smem_copy);
      EXPECT_EQ(told.pairs * 2, gather.words);
      EXPECT_TRUE(std::any_of(work.operands.begin(), work.operands.end(), [&](const Place& place) {
        return place.smem_copy == gather.smem_copy;
      })) << "it is gathered for nobody";
    }
    at = word;
  }
  EXPECT_EQ(at, tables->blocks.size());
  EXPECT_GT(gathers, numbers.size());  // what a residual adds is read twice
  // A task gathers what no task of its list before it has.
  size_t k = 0, kept = 0;
  for (const std::vector<ObkTask>& list : program.lists) {
    std::set<int> seen;
    for (const ObkTask& task : list) {
      const std::vector<Gather>& all = program.works[task.work].gathers;
      uint64_t fresh = 0;
      for (size_t n = 0; n < all.size(); ++n)
        if (seen.insert(all[n].number).second) fresh |= uint64_t{1} << n;
      EXPECT_EQ(static_cast<uint64_t>(tables->tasks[k].block) >> OBK_FRESH_AT, fresh);
      kept += task.weight_group < 0;
      ++k;
    }
  }
  EXPECT_GT(kept, 0u);
  // Keys that do not lie where the caller keeps them: a damaged file.
  const auto is_kept = [](const ObkTask& task) { return task.weight_group < 0; };
  const auto streams = [](const ObkTask& task) { return task.weight_group > 0; };
  const auto refused = [&](const std::function<void(ObkTask&, Program&)>& how,
                           bool kept_ones = true) {
    Program damaged = program;
    for (std::vector<ObkTask>& list : damaged.lists)
      if (const auto task = kept_ones ? std::find_if(list.begin(), list.end(), is_kept)
                                      : std::find_if(list.begin(), list.end(), streams);
          task != list.end()) {
        how(*task, damaged);
        return !make_tables(damaged, true, device.scratchpad.count).ok();
      }
    return false;
  };
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weights += int64_t{1} << 20; }));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weights += int64_t{1} << 52; }));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weights = -1; }));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weight_bytes = INT32_MAX; }));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weight_group = INT32_MIN; }));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weight_group = -24; }));
  EXPECT_TRUE(refused([](ObkTask& task, Program& p) {
    p.works[task.work].operands.back().kind = BufferKind::kArena;
  }));
  EXPECT_TRUE(
      refused([](ObkTask& task, Program& p) { p.works[task.work].operands.back().index = 99; }));
  EXPECT_TRUE(
      refused([](ObkTask& task, Program& p) { p.works[task.work].operands.back().smem_copy = 0; }));
  EXPECT_FALSE(refused([](ObkTask&, Program&) {}));
  // The same of packed weights.
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weight_group = 0; }, false));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weights += int64_t{1} << 24; }, false));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weights = -1024; }, false));
  EXPECT_TRUE(refused([](ObkTask& task, Program&) { task.weight_bytes += 8; }, false));
  EXPECT_FALSE(refused([](ObkTask&, Program&) {}, false));
  const std::vector<std::string> defines = device_defines(program, {});
  EXPECT_NE(std::find(defines.begin(), defines.end(), "OBK_DATAFLOW=1"), defines.end());
  const auto text = device_source(program);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->find("#define OBK_INLINED 0"), std::string::npos)
      << "a called body spills registers to local memory";
  EXPECT_NE(text->find("OBK_GIVE_PACK("), std::string::npos);
}

}  // namespace
}  // namespace obelisk::runtime::cuda
