/// runtime/test/run_program.h — a graph as a program on virtual SMs of this machine, beside the
/// interpreter. For tests only (it speaks googletest).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "runtime/runtime.h"

namespace obelisk::runtime {

/// Of floats: normal, times `scale` and about `shift`.
inline Tensor random_tensor(const Type& type, std::mt19937& random, double scale = 1,
                            double shift = 0) {
  Tensor tensor = Tensor::allocate(type);
  std::normal_distribution<double> normal(0, 1);
  std::uniform_int_distribution<int> small(0, 5);
  for (int64_t k = 0; k < type.count(); ++k) {
    if (is_float(type.dtype))
      tensor.set_double(k, shift + normal(random) * scale);
    else
      tensor.set_int(k, type.dtype == DType::b1 ? small(random) & 1 : small(random));
  }
  return tensor;
}

/// The CPU's tiles under bodies as GPUs have them: rows in vectors, shapes as constants.
inline const kernels::TileLibrary& vector_tiles() {
  static const kernels::TileLibrary tiles = [] {
    kernels::TileLibrary library = kernels::kCpuTiles;
    library.vectors = true;
    library.gemm.packs_batches = true;
    return library;
  }();
  return tiles;
}

struct Run {
  std::vector<Tensor> outputs;
  stitch::Plan plan;
};

inline Run run_program(const graph::Graph& graph, const std::vector<Tensor>& inputs, int sms,
                       bool stitching, bool tiles, bool vectors = false, Bytes min_grid_bytes = {},
                       bool dataflow = false) {
  Run run;
  const machine::Machine device = machine::cpu(sms);
  const machine::Strategy strategy{
      .sync = dataflow ? machine::Sync::kDataflow : machine::Sync::kBarrier,
      .min_grid_bytes = min_grid_bytes};
  stitch::Options options;
  options.stitch = stitching, options.tiles = tiles;
  run.plan = stitch::plan(graph, device, strategy, options);
  Status verified = stitch::verify(graph, run.plan);
  EXPECT_TRUE(verified.ok()) << (verified.ok() ? "" : verified.error().text());
  schedule::TaskGraph tasks = schedule::build(graph, run.plan, device, strategy);
  EXPECT_EQ(tasks.dataflow, dataflow);
  Status valid = schedule::validate(graph, run.plan, tasks);
  EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().text());
  const Status shadow = schedule::shadow_run(graph, run.plan, tasks);
  EXPECT_TRUE(shadow.ok()) << (shadow.ok() ? "" : shadow.error().text());
  codegen::Source source =
      codegen::emit(graph, run.plan, tasks, vectors ? vector_tiles() : kernels::kCpuTiles);
  auto program =
      std::make_shared<Program>(assemble(graph, run.plan, tasks, std::move(source), "cpu"));
  if (getenv("OBELISK_SHOW"))
    for (const codegen::BodyText& body : program->bodies) fmt::print("{}\n", body.text);
  LoadOptions load;
  load.every_thread = true;  // these programs are small, and barriers are what is tested
  auto executable = load_cpu(program, load);
  if (!executable.ok()) {
    ADD_FAILURE() << executable.error().text();
    return run;
  }
  auto context = (*executable)->context(std::min(sms, 4));
  EXPECT_TRUE(context.ok());
  std::vector<const void*> in;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  std::vector<void*> out;
  for (const Port& port : program->outputs) {
    run.outputs.push_back(Tensor::allocate(port.type));
    out.push_back(run.outputs.back().mutable_data());
  }
  // A later run finds what the first one left in the arena, which would hide a read that comes too
  // early: all runs give the same bits.
  std::vector<Tensor> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    Status status = (*context)->run(in, out);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
    if (repeat == 0)
      for (const Tensor& output : run.outputs) {
        first.push_back(Tensor::allocate(output.type()));
        std::memcpy(first.back().mutable_data(), output.data(), output.bytes());
      }
  }
  for (size_t k = 0; k < first.size(); ++k)
    EXPECT_EQ(std::memcmp(first[k].data(), run.outputs[k].data(), first[k].bytes()), 0)
        << "output " << k << " of the first run is not that of the third";
  return run;
}

inline std::vector<Tensor> random_inputs(const graph::Graph& graph) {
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (graph::ValueId v : graph.inputs()) inputs.push_back(random_tensor(graph.type(v), random));
  return inputs;
}

/// Floats within the tolerance, absolute and of the wanted value; all else equal.
inline void expect_outputs(const Run& got, const std::vector<Tensor>& wanted,
                           const std::string& what, double tolerance = 1e-4) {
  ASSERT_EQ(got.outputs.size(), wanted.size());
  for (size_t o = 0; o < wanted.size(); ++o) {
    const Tensor& w = wanted[o];
    const Tensor& g = got.outputs[o];
    for (int64_t k = 0; k < w.count(); ++k) {
      if (is_float(w.dtype())) {
        const double a = g.get_double(k), b = w.get_double(k);
        if (std::isnan(a) && std::isnan(b)) continue;
        ASSERT_NEAR(a, b, tolerance + tolerance * std::fabs(b))
            << what << " output " << o << " element " << k;
      } else {
        ASSERT_EQ(g.get_int(k), w.get_int(k)) << what << " output " << o << " element " << k;
      }
    }
  }
}

/// `after` is what runs, and means `graph`.
inline void expect_same(const graph::Graph& graph, const graph::Graph& after,
                        const std::string& what, double tolerance = 1e-4) {
  const std::vector<Tensor> inputs = random_inputs(graph);
  auto wanted = graph::interpret(graph, inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.error().text();
  for (int sms : {1, 2, 7}) {
    // vectors: shapes are in the text, so each count is compiled anew
    for (int mode = 0; mode < (sms == 7 ? 4 : 3); ++mode) {
      const Run got = run_program(after, inputs, sms, mode != 1, mode != 2, mode == 3);
      expect_outputs(got, *wanted, fmt::format("{} sms {} mode {}", what, sms, mode), tolerance);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

/// Bodies that all are one function of a test.
struct OneBody : BodyLibrary {
  explicit OneBody(ObkBody body) : body(body) {}
  Status add(std::span<const codegen::BodyText* const>) override { return ok_status(); }
  ObkBody find(const Hash&) const override { return body; }
  size_t count() const override { return 1; }
  ObkBody body;
};

}  // namespace obelisk::runtime
