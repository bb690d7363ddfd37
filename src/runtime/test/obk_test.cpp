// The compiled file: what is written is read again; each kind of damage is refused with a reason;
// packed weights tell their sources.
#include <gtest/gtest.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "graph/test_decoder.h"
#include "passes/passes.h"
#include "runtime/packing.h"
#include "runtime/runtime.h"

namespace obelisk::runtime {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeader = 24, kEntry = 40, kSections = 5,
                 kHeaderHash = kHeader + kSections * kEntry;

/// A product with packed weights, a convolution, and an op that runs by its reference, with
/// attributes.
std::string network() {
  const auto values = [](int count, int step) {
    std::string out = "[";
    for (int k = 0; k < count; ++k)
      out += (k ? ", " : "") + fmt::format("{}", (k * step % 97 - 48) / 64.0);
    return out + "]";
  };
  return fmt::format(R"(graph "file" {{
  in %0 "x": f32[1,6,8,8]
  const %1 "filter": f32[5,6,3,3] = {}
  const %2 "w": f32[64,24] = {}
  const %3 "b": f32[24] = {}
  %4: f32[1,6,8,8] = Identity(%0)
  %5: f32[1,5,8,8] = Conv(%4, %1) {{pads = [1, 1, 1, 1]}}
  const %6: i64[2] = [5, 64]
  %7: f32[5,64] = Reshape(%5, %6)
  %8: f32[5,24] = MatMul(%7, %2)
  %9: f32[5,24] = Add(%8, %3)
  const %10: i64[1] = [3]
  %11 "top": f32[5,3], %12 "which": i64[5,3] = TopK(%9, %10) {{axis = 1, largest = 1, sorted = 1}}
  out %11 "top"
  out %12 "which"
  out %3 "bias"
}})",
                     values(5 * 6 * 9, 31), values(64 * 24, 37), values(24, 5));
}

class Obk : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = fs::temp_directory_path() / fmt::format("obelisk-obk-{}", ::getpid());
    fs::create_directories(folder);
    auto parsed = graph::parse(network());
    ASSERT_TRUE(parsed.ok()) << parsed.error().text();
    graph = *parsed;
    const machine::Machine device = machine::cpu(3);
    const stitch::Plan plan = stitch::plan(graph, device);
    const schedule::TaskGraph tasks = schedule::build(graph, plan, device);
    auto program = std::make_shared<Program>(
        assemble(graph, plan, tasks,
                 codegen::emit(graph, plan, tasks, kernels::tile_library(device)), "cpu"));
    auto loaded = load_cpu(program);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    executable = *loaded;
    ASSERT_TRUE(write_obk(path("good.obk"), *executable, graph, "every row").ok());
    good = read_file(path("good.obk")).value();
  }
  static void TearDownTestSuite() {
    executable.reset();
    fs::remove_all(folder);
  }
  static std::string path(const std::string& name) { return (folder / name).string(); }

  static Result<Compiled> parse(const std::string& bytes, bool check_weights = true) {
    auto owner = std::make_shared<std::string>(bytes);
    // Aligned as a mapping is.
    auto memory = std::make_shared<Tensor>(
        Tensor::allocate({DType::u8, {static_cast<int64_t>(bytes.size()) + 1}}));
    memcpy(memory->mutable_data(), bytes.data(), bytes.size());
    return parse_obk(memory->data(), bytes.size(), memory, "damaged.obk", check_weights);
  }
  static void expect_refused(const std::string& bytes, const std::string& word) {
    const auto read = parse(bytes);
    ASSERT_FALSE(read.ok()) << word;
    EXPECT_EQ(read.error().code, Code::kBadModel);
    EXPECT_NE(read.error().text().find(word), std::string::npos) << read.error().text();
    EXPECT_FALSE(read.error().hint.empty());
  }
  template <typename T>
  static T number(const std::string& bytes, size_t at) {
    T value;
    memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }
  template <typename T>
  static std::string with(std::string bytes, size_t at, T value) {
    memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  }
  /// Hashes of sections and header made right again, so that the damage behind them is reached.
  static std::string resealed(std::string bytes) {
    for (size_t kind = 0; kind + 1 < kSections; ++kind) {
      const size_t entry = kHeader + kind * kEntry;
      const uint64_t offset = number<uint64_t>(bytes, entry + 8),
                     length = number<uint64_t>(bytes, entry + 16);
      if (offset > bytes.size() || length > bytes.size() - offset) continue;
      const Hash hash = hash_bytes(bytes.data() + offset, length);
      bytes = with(with(bytes, entry + 24, hash.high), entry + 32, hash.low);
    }
    const Hash hash = hash_bytes(bytes.data(), kHeaderHash);
    return with(with(bytes, kHeaderHash, hash.high), kHeaderHash + 8, hash.low);
  }

  static inline fs::path folder;
  static inline graph::Graph graph;
  static inline std::shared_ptr<const Executable> executable;
  static inline std::string good;
};

std::vector<Tensor> answers(const Executable& executable, const Tensor& x) {
  auto context = executable.context(2);
  EXPECT_TRUE(context.ok());
  std::vector<Tensor> out;
  std::vector<void*> to;
  for (const Port& port : executable.program().outputs)
    out.push_back(Tensor::allocate(port.type)), to.push_back(out.back().mutable_data());
  EXPECT_TRUE((*context)->run(std::vector<const void*>{x.data()}, to).ok());
  return out;
}

// What a program without barriers passes on and where copies lie.
TEST_F(Obk, ADataflowProgramIsReadAsWritten) {
  const machine::Machine device = machine::cpu(3);
  const machine::Strategy strategy{.sync = machine::Sync::kDataflow};
  const auto early = passes::copy_early_pieces(graph::decoder_step(
      DType::f16, {.width = 64, .heads = 2, .size = 32, .keys = 24, .inner = 128, .layers = 1}));
  ASSERT_TRUE(early.ok());
  const stitch::Plan plan = stitch::plan(*early, device, strategy);
  const schedule::TaskGraph tasks = schedule::build(*early, plan, device, strategy);
  auto program = std::make_shared<Program>(
      assemble(*early, plan, tasks,
               codegen::emit(*early, plan, tasks, kernels::tile_library(device)), "cpu"));
  ASSERT_TRUE(program->dataflow);
  auto loaded = load_cpu(program);
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  ASSERT_TRUE(write_obk(path("dataflow.obk"), **loaded, *early, "every row").ok());
  const std::string bytes = read_file(path("dataflow.obk")).value();
  const auto read = parse(bytes);
  ASSERT_TRUE(read.ok()) << read.error().text();
  const Program& again = *read->program;
  EXPECT_TRUE(again.dataflow);
  EXPECT_EQ(again.smem_copies.count, program->smem_copies.count);
  ASSERT_EQ(again.works.size(), program->works.size());
  size_t gathers = 0;
  for (size_t w = 0; w < again.works.size(); ++w) {
    const WorkRecord &wrote = program->works[w], &has = again.works[w];
    ASSERT_EQ(has.operands.size(), wrote.operands.size());
    for (size_t k = 0; k < has.operands.size(); ++k)
      EXPECT_EQ(has.operands[k].smem_copy, wrote.operands[k].smem_copy);
    ASSERT_EQ(has.gathers.size(), wrote.gathers.size());
    for (size_t k = 0; k < has.gathers.size(); ++k, ++gathers)
      EXPECT_EQ(has.gathers[k], wrote.gathers[k]);
  }
  EXPECT_GT(gathers, 0u);
}

// In which order works of a CPU begin, and behind which others: an order that leaves a work out,
// has one twice or in front of what it follows, or names what is not there is refused.
TEST_F(Obk, TheOrderOfWorks) {
  const auto beside = graph::parse(R"(graph "g" {
  in %0 "x": f32[8,32]
  %1: f32[8,32] = Softmax(%0) {axis = -1}
  %2: f32[8,32] = Softmax(%0) {axis = 0}
  %3: f32[8,32] = Add(%1, %2)
  %4: f32[8,32] = Softmax(%3) {axis = 0}
  out %4 "y"
})");
  ASSERT_TRUE(beside.ok()) << beside.error().text();
  const machine::Machine device = machine::cpu(2);
  stitch::Options apart;
  apart.stitch = false;
  const stitch::Plan plan = stitch::plan(*beside, device, {}, apart);
  const schedule::TaskGraph tasks = schedule::build(*beside, plan, device);
  auto program = std::make_shared<Program>(
      assemble(*beside, plan, tasks,
               codegen::emit(*beside, plan, tasks, kernels::tile_library(device)), "cpu"));
  ASSERT_EQ(program->works.size(), 4u);
  program->dispatch = {
      {.kernel = 1, .position = 0, .reason = "a"},
      {.kernel = 0, .position = 1, .lane = 1, .priority = -1, .reason = "b"},
      {.kernel = 2, .position = 2, .predecessors = {0, 1}, .reason = "c", .early = false},
      {.kernel = 3, .position = 3, .predecessors = {2}, .reason = "d"}};
  auto loaded = load_cpu(program);
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  ASSERT_TRUE(write_obk(path("order.obk"), **loaded, *beside, "every row").ok());
  const std::string bytes = read_file(path("order.obk")).value();
  const auto read = parse(bytes);
  ASSERT_TRUE(read.ok()) << read.error().text();
  ASSERT_EQ(read->program->dispatch.size(), 4u);
  for (size_t k = 0; k < 4; ++k) {
    const schedule::Dispatched &wrote = program->dispatch[k], &has = read->program->dispatch[k];
    EXPECT_EQ(has.kernel, wrote.kernel);
    EXPECT_EQ(has.position, wrote.position);
    EXPECT_EQ(has.predecessors, wrote.predecessors);
    EXPECT_EQ(has.early, wrote.early);
  }
  // Each: kernel, lane, priority, early (1 byte), reason (8 + 1), predecessors (8, 4 each).
  const size_t last = number<uint64_t>(bytes, kHeader + 8) + number<uint64_t>(bytes, kHeader + 16);
  const size_t first = last - 30 - 30 - 38 - 34, second = first + 30, third = second + 30,
               fourth = third + 38;
  const auto said = [&](size_t where, int32_t value) {
    const auto damaged = parse(resealed(with(bytes, where, value)));
    return damaged.ok() ? std::string("nothing") : damaged.error().text();
  };
  ASSERT_EQ(number<int32_t>(bytes, first), 1);
  ASSERT_EQ(number<int32_t>(bytes, fourth), 3);
  EXPECT_NE(said(first, 4).find("kernel 4 is not in"), std::string::npos) << said(first, 4);
  EXPECT_NE(said(second, 1).find("launched twice"), std::string::npos) << said(second, 1);
  EXPECT_NE(said(third + 30, 2).find("follows kernel 2, which is not launched before it"),
            std::string::npos)
      << said(third + 30, 2);
  EXPECT_NE(said(first + 12, 2).find("start of the next kernel 2 is not in"), std::string::npos)
      << said(first + 12, 2);
  EXPECT_NE(said(third + 30, -1).find("predecessor -1"), std::string::npos) << said(third + 30, -1);
  EXPECT_NE(said(fourth + 30, 3).find("follows kernel 3"), std::string::npos)
      << said(fourth + 30, 3);
  const auto shorter = parse(resealed(with(bytes, first - 8, int64_t{3})));
  ASSERT_FALSE(shorter.ok());
  EXPECT_NE(shorter.error().text().find("leaves kernels out"), std::string::npos)
      << shorter.error().text();
}

// Which outputs take inputs' memory, and that each input is taken once, by its own type.
TEST_F(Obk, OutputsInPlaceOfInputs) {
  const auto step = graph::parse(R"(graph "g" {
  in %0 "x": f32[4,2]
  in %1 "past": f32[8,2]
  in %2 "row": i64[1,1]
  in %3 "new": f32[1,2]
  %4: f32[8,2] = ScatterND(%1, %2, %3)
  %5: f32[4,2] = Neg(%0)
  %6: f32[8,2] = Neg(%4)
  out %4 "now" in_place_of "past"
  out %5 "y" in_place_of "x"
  out %6 "z"
})");
  ASSERT_TRUE(step.ok()) << step.error().text();
  const machine::Machine device = machine::cpu(2);
  const stitch::Plan plan = stitch::plan(*step, device);
  const schedule::TaskGraph tasks = schedule::build(*step, plan, device);
  auto loaded = load_cpu(std::make_shared<Program>(
      assemble(*step, plan, tasks, codegen::emit(*step, plan, tasks, kernels::tile_library(device)),
               "cpu")));
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  ASSERT_TRUE(write_obk(path("step.obk"), **loaded, *step, "every row").ok());
  const std::string bytes = read_file(path("step.obk")).value();
  const auto read = parse(bytes);
  ASSERT_TRUE(read.ok()) << read.error().text();
  const std::vector<Port>& ports = read->program->outputs;
  ASSERT_EQ(ports.size(), 3u);
  EXPECT_EQ(ports[0].in_place_of, 1);
  EXPECT_TRUE(ports[0].written_in_place());
  EXPECT_EQ(ports[1].in_place_of, 0);
  EXPECT_TRUE(ports[1].staged);
  EXPECT_EQ(ports[2].in_place_of, -1);
  const size_t last = number<uint64_t>(bytes, kHeader + 8) + number<uint64_t>(bytes, kHeader + 16);
  const auto said = [&](size_t port, int32_t input) {
    const auto damaged = parse(resealed(with(bytes, last - 5 * (3 - port), input)));
    return damaged.ok() ? std::string("nothing") : damaged.error().text();
  };
  EXPECT_NE(said(2, 1).find("two outputs in place of one input"), std::string::npos) << said(2, 1);
  EXPECT_NE(said(0, 0).find("an input of another type"), std::string::npos) << said(0, 0);
  EXPECT_NE(said(0, 4).find("input in place"), std::string::npos) << said(0, 4);
}

TEST_F(Obk, WhatIsWrittenIsReadAgain) {
  auto file = open_obk(path("good.obk"), true);
  ASSERT_TRUE(file.ok()) << file.error().text();
  auto again = load_cpu(file->program);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ((*again)->report().carried, static_cast<int>(file->program->bodies.size()));
  Tensor x = Tensor::allocate(graph.type(graph.inputs()[0]));
  for (int64_t k = 0; k < x.count(); ++k)
    x.set_double(k, static_cast<double>(k * 13 % 41 - 20) / 16);
  const auto wanted = answers(*executable, x), got = answers(**again, x);
  for (size_t k = 0; k < wanted.size(); ++k)
    EXPECT_EQ(0, memcmp(wanted[k].data(), got[k].data(), wanted[k].bytes())) << "output " << k;
}

// What is known of bodies travels beside their texts; traits that cannot be so, or that do not suit
// the works, are refused.
TEST_F(Obk, TraitsOfBodies) {
  auto file = open_obk(path("good.obk"), true);
  ASSERT_TRUE(file.ok()) << file.error().text();
  const auto &wrote = executable->program().bodies, &has = file->program->bodies;
  ASSERT_EQ(has.size(), wrote.size());
  for (size_t k = 0; k < has.size(); ++k) {
    EXPECT_EQ(has[k].traits, wrote[k].traits) << to_string(wrote[k].traits);
    EXPECT_EQ(has[k].hash, wrote[k].hash);
  }
  size_t at = number<uint64_t>(good, kHeader + 2 * kEntry + 8) + 8;  // the first body
  for (int text = 0; text < 2; ++text) at += 8 + number<uint64_t>(good, at);
  ASSERT_EQ(number<int64_t>(good, at), wrote[0].traits.operands);
  const auto refused = [&](size_t index, int64_t value, const std::string& word) {
    expect_refused(resealed(with(good, at + 8 * index, value)), word);
  };
  refused(0, wrote[0].traits.operands + 1, "its body takes");
  refused(0, -1, "operands -1 is not in");
  refused(1, wrote[0].traits.params + 1, "its body takes");
  refused(2, 4, "form 4 is not in");
  refused(2, 1, "a grid alone");
  refused(2, 2, "a form of its own");
  refused(2, 3, "a cluster alone");
  refused(3, 3, "waits 3 is not in");
  refused(4, 64, "tiles 64 is not in");
  refused(5, 2, "a grid alone");
  refused(5, 33, "ctas_per_sm 33 is not in");
  refused(6, 0, "cluster 0 is not in");
  refused(6, 2, "a cluster alone");
  refused(7, 2, "gemm 2 is not in");
  refused(8, 2, "async_rows 2 is not in");
}

// The prediction travels in the file: what takes microseconds runs on its caller's thread, unless
// all are wanted.
TEST_F(Obk, SmallProgramsTakeNoThreads) {
  const auto threads = [] {
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  };
  auto file = open_obk(path("good.obk"), true);
  ASSERT_TRUE(file.ok()) << file.error().text();
  for (const bool every_thread : {false, true}) {
    LoadOptions options;
    options.every_thread = every_thread;
    auto loaded = load_cpu(file->program, options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    const auto before = threads();
    auto context = (*loaded)->context(3);
    ASSERT_TRUE(context.ok());
    EXPECT_EQ(threads() - before, every_thread ? 2 : 0);
  }
}

TEST_F(Obk, TheGraphInsideIsTheGraph) {
  auto file = open_obk(path("good.obk"), true);
  ASSERT_TRUE(file.ok());
  auto inside = file->graph();
  ASSERT_TRUE(inside.ok()) << inside.error().text();
  EXPECT_EQ(graph::print(*inside, {.all_data = true}), graph::print(graph, {.all_data = true}));
}

TEST_F(Obk, PackedWeightsAreStoredOnce) {
  auto file = open_obk(path("good.obk"), true);
  ASSERT_TRUE(file.ok());
  ASSERT_GE(file->program->packings.size(), 1u);
  EXPECT_EQ(file->graph_packings.size(), file->program->packings.size())
      << "weights that only packed bytes tell";
  EXPECT_EQ(file->graph_weights.size() + file->graph_packings.size(),
            graph::collect_weights(graph).size());
}

TEST_F(Obk, EqualProgramsGiveEqualBytes) {
  ASSERT_TRUE(write_obk(path("second.obk"), *executable, graph, "every row").ok());
  EXPECT_EQ(good, read_file(path("second.obk")).value());
  auto file = open_obk(path("second.obk"));
  auto loaded = load_cpu(file->program);
  ASSERT_TRUE(loaded.ok());
  ASSERT_TRUE(write_obk(path("third.obk"), **loaded, *file->graph(), "every row").ok());
  EXPECT_EQ(good, read_file(path("third.obk")).value()) << "of a program that came out of a file";
}

TEST_F(Obk, TruncatedAnywhere) {
  for (size_t size = 0; size < good.size(); size += size < 400 ? 1 : 977)
    EXPECT_FALSE(parse(good.substr(0, size)).ok()) << size;
  expect_refused(good.substr(0, 100), "ends early");
  expect_refused(good.substr(0, good.size() - 64), "it says that it has");
  expect_refused(good + "more", "it says that it has");
}

TEST_F(Obk, AnyChangedByteIsNoticed) {
  // Padding between sections and between weights says nothing: elsewhere every bit counts.
  std::mt19937 random(3);
  int accepted = 0;
  for (int trial = 0; trial < 400; ++trial) {
    std::string bytes = good;
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    accepted += parse(bytes).ok();
  }
  EXPECT_LT(accepted, 30) << "more than the padding's share";
  for (size_t at = 0; at < kHeaderHash + 16; ++at)
    EXPECT_FALSE(parse(with(good, at, static_cast<char>(good[at] ^ 4))).ok())
        << "header byte " << at;
}

TEST_F(Obk, NamesWhatIsWrong) {
  expect_refused("", "ends early");
  expect_refused(std::string(4096, 'x'), "no compiled file");
  expect_refused(with(good, 4, kObkFormat + 1),
                 fmt::format("version {}, but this program reads {}", kObkFormat + 1, kObkFormat));
  expect_refused(with(good, 4, uint32_t{0}), "format version 0");
  expect_refused(with(good, 16, uint32_t{99}), "99 sections");
  expect_refused(with(good, kHeaderHash, uint64_t{1}), "checksum of its header");
  const size_t tables = number<uint64_t>(good, kHeader + 8);
  expect_refused(with(good, tables + 40, uint64_t{77}), "checksum of section 0");
  const size_t weights = number<uint64_t>(good, kHeader + 4 * kEntry + 8);
  expect_refused(with(good, weights, uint8_t{0xee}), "checksum of weight 0");
}

TEST_F(Obk, LyingSizesAreRefusedBehindRightChecksums) {
  for (size_t kind = 0; kind < kSections; ++kind) {
    const size_t entry = kHeader + kind * kEntry;
    expect_refused(resealed(with(good, entry + 8, uint64_t{1} << 60)), "lies outside");
    expect_refused(resealed(with(good, entry + 16, uint64_t{1} << 63)), "lies outside");
    expect_refused(resealed(with(good, entry + 8, number<uint64_t>(good, entry + 8) + 1)),
                   "lies outside");
    expect_refused(resealed(with(good, entry, uint32_t{7})), "lies outside");
  }
  const size_t tables = number<uint64_t>(good, kHeader + 8);
  expect_refused(resealed(with(good, tables, uint64_t{1} << 61)), "more entries than it has bytes");
  // where a weight is
  expect_refused(resealed(with(good, tables + 8, int64_t{1} << 40)), "does not lie in the weights");
  expect_refused(resealed(with(good, tables + 8, int64_t{-64})), "does not lie in the weights");
  // how large it is
  expect_refused(resealed(with(good, tables + 16, int64_t{1} << 40)),
                 "does not lie in the weights");
}

TEST_F(Obk, TablesMayHoldAnythingWithoutACrash) {
  // Every eight bytes of the tables and of the graph in turn become large, small and negative, with
  // checksums that fit.
  for (size_t kind : {size_t{0}, size_t{1}, size_t{2}}) {
    const size_t entry = kHeader + kind * kEntry;
    const size_t begin = number<uint64_t>(good, entry + 8),
                 size = std::min<size_t>(number<uint64_t>(good, entry + 16), 6000);
    for (size_t at = begin; at + 8 <= begin + size; at += 5) {
      for (uint64_t value : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 62, uint64_t{0x7fffffff}}) {
        const auto read = parse(resealed(with(good, at, value)));
        if (read.ok()) (void)read->graph();
      }
    }
  }
}

/// A file whose only packed weight tells extents that are small each; their product is its 1024
/// elements modulo 2^64.
std::string with_a_recipe_that_wraps(const std::string& file, const PackRecipe& is) {
  const PackRecipe wraps = {.n = 1857509888, .k = 1986179906, .groups = 5};
  const auto words = [](const PackRecipe& r) {
    std::string out;
    for (const int64_t number : {r.n, r.k, r.row, r.column, r.offset, r.outputs, r.inputs, r.height,
                                 r.width, r.groups, r.tile, r.half})
      out.append(reinterpret_cast<const char*>(&number), sizeof number);
    return out;
  };
  std::string out = file;
  const std::string from = words(is), to = words(wraps);
  const size_t at = out.find(from);
  EXPECT_NE(at, std::string::npos);
  return out.replace(at, from.size(), to);
}

// Whoever believes such a recipe packs 10^19 elements into 4 KB when the file is compiled again.
TEST_F(Obk, ARecipeWhoseProductWrapsIsRefused) {
  auto one = graph::parse(
      fmt::format("graph \"g\" {{\n  in %0 \"x\": f32[4,16]\n  const %1 \"w\": f32[16,64] = [{}]\n"
                  "  %2 \"y\": f32[4,64] = MatMul(%0, %1)\n  out %2 \"y\"\n}}",
                  fmt::join(std::vector<int>(1024, 1), ", ")));
  ASSERT_TRUE(one.ok()) << one.error().text();
  const machine::Machine device = machine::cpu(1);
  const stitch::Plan plan = stitch::plan(*one, device);
  const schedule::TaskGraph tasks = schedule::build(*one, plan, device);
  auto program = std::make_shared<Program>(assemble(
      *one, plan, tasks, codegen::emit(*one, plan, tasks, kernels::tile_library(device)), "cpu"));
  ASSERT_EQ(program->packings.size(), 1u);
  auto loaded = load_cpu(program);
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  ASSERT_TRUE(write_obk(path("one.obk"), **loaded, *one, "").ok());
  const std::string good_one = read_file(path("one.obk")).value();
  ASSERT_TRUE(parse(good_one).ok());
  const std::string bad = resealed(with_a_recipe_that_wraps(good_one, program->packings[0].recipe));
  if (const char* keep = getenv("OBELISK_KEEP_CASE")) {
    ASSERT_TRUE(write_file(keep, bad).ok());  // for tests/fuzz/corpus/obk
  }
  expect_refused(bad, "a packed weight is not what f32[16,64] packs to");
}

TEST_F(Obk, FailsWholly) {
  const Status failed = write_obk(path("no/such/folder.obk"), *executable, graph, "");
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().text().find("no/such/folder.obk"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("no")));
  EXPECT_NE(open_obk(path("nowhere.obk")).error().text().find("nowhere.obk"), std::string::npos);
}

// ---- packing ------------------------------------------------------------------------------------
class Packings : public testing::TestWithParam<std::tuple<machine::Family, DType>> {};

TEST_P(Packings, TellTheirSources) {
  const auto [family, dtype] = GetParam();
  const kernels::TileLibrary& tiles = kernels::tile_library({.family = family});
  using Kind = PackRecipe::Kind;
  const std::vector<std::pair<PackRecipe, Shape>> cases = {
      {{.kind = Kind::kProduct, .n = 150, .k = 37, .row = 150, .column = 1}, {37, 150}},
      {{.kind = Kind::kProduct, .n = 37, .k = 150, .row = 1, .column = 150}, {37, 150}},
      {{.kind = Kind::kProduct, .n = 150, .k = 137, .row = 150, .column = 1, .tile = 48},
       {137, 150}},
      {{.kind = Kind::kConv,
        .outputs = 70,
        .inputs = 9,
        .height = 3,
        .width = 2,
        .groups = 2,
        .tile = 32},
       {140, 9, 3, 2}},
      {{.kind = Kind::kProduct, .n = 300, .k = 37, .row = 300, .column = 1, .tile = 64, .half = 32},
       {37, 300}},
      {{.kind = Kind::kProduct, .n = 36, .k = 20, .row = 1, .column = 20, .half = 18}, {36, 20}},
      {{.kind = Kind::kProduct, .n = 1, .k = 5, .row = 1, .column = 1}, {5, 1}},
      {{.kind = Kind::kProduct, .n = 64, .k = 32, .row = -64, .column = 1, .offset = 31 * 64},
       {32, 64}},
      {{.kind = Kind::kConv, .outputs = 70, .inputs = 9, .height = 3, .width = 2, .groups = 2},
       {140, 9, 3, 2}},
      {{.kind = Kind::kDepthwise, .outputs = 70, .inputs = 1, .height = 3, .width = 3},
       {70, 1, 3, 3}},
  };
  for (const auto& [recipe, shape] : cases) {
    const Type type{dtype, shape};
    const auto bytes = packed_bytes(tiles, recipe, type);
    if (!bytes) continue;  // no tile of this machine takes it
    Tensor source = Tensor::allocate(type);
    for (int64_t k = 0; k < source.count(); ++k)
      source.set_double(k, static_cast<double>((k * 7919) % 2003 - 1000) / 32);
    EXPECT_TRUE(can_unpack(tiles, recipe, type)) << to_string(type);
    const Tensor packed = pack(tiles, recipe, source);
    EXPECT_EQ(packed.bytes(), *bytes);
    const Tensor again = unpack(tiles, recipe, type, packed);
    EXPECT_EQ(0, memcmp(source.data(), again.data(), source.bytes())) << to_string(type);
  }
  // A part of the source, and one element many times, cannot be told.
  EXPECT_FALSE(can_unpack(tiles, {.kind = Kind::kProduct, .n = 16, .k = 16, .row = 32, .column = 1},
                          {dtype, {16, 32}}));
  EXPECT_FALSE(can_unpack(tiles, {.kind = Kind::kProduct, .n = 16, .k = 2, .row = 16, .column = 0},
                          {dtype, {2, 16}}));
  // Recipes of a damaged file.
  EXPECT_FALSE(packed_bytes(
      tiles, {.kind = Kind::kProduct, .n = 7, .k = 4, .row = 7, .column = 1, .half = 3},
      {dtype, {4, 7}}));
  EXPECT_FALSE(packed_bytes(
      tiles, {.kind = Kind::kProduct, .n = 8, .k = 4, .row = 8, .column = 1, .half = 5},
      {dtype, {4, 8}}));
  EXPECT_FALSE(packed_bytes(
      tiles, {.kind = Kind::kProduct, .n = int64_t{1} << 40, .k = 4, .row = 1, .column = 1},
      {dtype, {4, 4}}));
  EXPECT_FALSE(packed_bytes(
      tiles, {.kind = Kind::kProduct, .n = 4, .k = 4, .row = 4, .column = 1, .offset = 1},
      {dtype, {4, 4}}));
  EXPECT_FALSE(packed_bytes(
      tiles, {.kind = Kind::kProduct, .n = 4, .k = 4, .row = 4, .column = 1, .tile = INT64_MAX},
      {dtype, {4, 4}}));
  EXPECT_FALSE(packed_bytes(tiles, {.kind = Kind::kProduct, .n = 4, .k = 4, .row = -4, .column = 1},
                            {dtype, {4, 4}}));
  // Extents that are small each: their product is 16384 modulo 2^64, and would be written.
  const PackRecipe wraps = {.kind = Kind::kProduct, .n = 132726784, .k = 1376067625, .groups = 101};
  EXPECT_FALSE(packed_bytes(tiles, wraps, {dtype, {16384}}));
  EXPECT_FALSE(can_unpack(tiles, wraps, {dtype, {16384}}));
  EXPECT_FALSE(
      packed_bytes(tiles, {.kind = Kind::kProduct, .n = 1 << 16, .k = 1 << 16}, {dtype, {16384}}));
  EXPECT_FALSE(packed_bytes(
      tiles, {.kind = Kind::kConv, .outputs = 4, .inputs = 4, .height = 1, .width = 2, .groups = 1},
      {dtype, {4, 4, 1, 1}}));
}

INSTANTIATE_TEST_SUITE_P(
    Machines, Packings,
    testing::Combine(testing::Values(machine::Family::kCpu, machine::Family::kCuda),
                     testing::Values(DType::f32, DType::f16, DType::bf16, DType::f64)));

}  // namespace
}  // namespace obelisk::runtime
