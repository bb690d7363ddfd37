// tests/gpu/programs.h — graphs as programs of a GPU, and their runs, for tests.
#pragma once

#include <cstring>
#include <random>

#include "graph/graph.h"
#include "machine/machine.h"
#include "runtime/runtime.h"

namespace obelisk::runtime::cuda {

/// Sums of rows, maxima of columns, and an output that is an input.
inline constexpr const char* kChain = R"(graph "g" {
  in %0 "x": f32[128,384]
  in %1 "s": f32[384]
  const %9: i64[1] = [-1]
  %2: f32[128,384] = Mul(%0, %1)
  %3: f32[128,1] = ReduceSum(%2, %9) {keepdims = 1}
  %4: f32[128,384] = Sub(%2, %3)
  const %8: i64[1] = [0]
  %5: f32[1,384] = ReduceMax(%4, %8) {keepdims = 1}
  %6: f32[128,384] = Sub(%4, %5)
  %7: f32[128,384] = Tanh(%6)
  out %7 "z"
  out %1 "same"
})";

/// Of floats: normal, times `scale` and about `shift`.
inline Tensor random_tensor(const Type& type, std::mt19937& random, double scale = 1,
                            double shift = 0) {
  Tensor tensor = Tensor::allocate(type);
  std::normal_distribution<double> normal(0, 1);
  std::uniform_int_distribution<int> small(0, 30);
  for (int64_t k = 0; k < type.count(); ++k) {
    if (is_float(type.dtype))
      tensor.set_double(k, shift + normal(random) * scale);
    else
      tensor.set_int(k, small(random));
  }
  return tensor;
}

/// This machine's GPU, or one to compile for, or `sms` multiprocessors of it.
inline machine::Machine some_gpu(int sms = 0) {
  const auto gpu = describe_gpu(0);
  auto device = machine::gpu(gpu.ok() ? gpu->architecture : "sm_90a", sms > 0    ? sms
                                                                      : gpu.ok() ? gpu->sms
                                                                                 : 132);
  CHECK(device.ok(), "{}", device.error().text());
  return *device;
}

/// A graph planned, scheduled and emitted for a GPU. `tiles`: products by the tile library.
/// `checks`: its table by a shadow run.
inline std::shared_ptr<Program> program_by(const graph::Graph& graph,
                                           const machine::Machine& device,
                                           const machine::Strategy& strategy, bool tiles,
                                           bool checks = true) {
  stitch::Options options;
  options.stitch = strategy.stitches(), options.tiles = tiles, options.gangs = true;
  options.own_kernels = strategy.own_kernels && strategy.stitches();
  const stitch::Plan plan = stitch::plan(graph, device, strategy, options);
  const schedule::TaskGraph tasks = schedule::build(graph, plan, device, strategy);
  const Status valid = schedule::validate(graph, plan, tasks);
  CHECK(valid.ok(), "{}", valid.error().text());
  const Status shadow = checks ? schedule::shadow_run(graph, plan, tasks) : ok_status();
  CHECK(shadow.ok(), "{}", shadow.error().text());
  auto program = std::make_shared<Program>(
      assemble(graph, plan, tasks, codegen::emit(graph, plan, tasks, kernels::tile_library(device)),
               device.name));
  program->granularity = strategy.granularity;
  return program;
}

/// The same by names.
inline std::shared_ptr<Program> program_of(const graph::Graph& graph,
                                           const std::string& granularity_name, bool tiles = false,
                                           bool tf32 = false, bool own = false) {
  const machine::Machine device = some_gpu();
  const auto granularity = machine::parse_granularity(granularity_name);
  CHECK(granularity.has_value(), "{}", granularity_name);
  machine::Strategy strategy = strategy_for(device, {.granularity = *granularity, .tf32 = tf32});
  strategy.own_kernels = own;
  strategy.min_grid_bytes = {
      *granularity == machine::Granularity::kStitch && !own ? 1 : 0};  // as only long works are
  return program_by(graph, device, strategy, tiles);
}

/// A context's run on the host's arrays: outputs are poisoned first.
inline Result<std::vector<Tensor>> run(Context& context, const Program& program,
                                       const std::vector<Tensor>& inputs) {
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<Tensor> outputs;
  for (const Tensor& tensor : inputs) in.push_back(tensor.data());
  for (const Port& port : program.outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    memset(outputs.back().mutable_data(), 0x7b, static_cast<size_t>(outputs.back().bytes()));
    out.push_back(outputs.back().mutable_data());
  }
  TRY_STATUS(context.run(in, out));
  return outputs;
}

inline bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t k = 0; k < a.size(); ++k)
    if (memcmp(a[k].data(), b[k].data(), static_cast<size_t>(a[k].bytes())) != 0) return false;
  return a.size() == b.size();
}

}  // namespace obelisk::runtime::cuda
