#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "verify/rows.h"

namespace obelisk::verify {
namespace {

/// As many rows of the outputs as the reference can be expected to interpret twice in that time and
/// in half of the machine's memory. `why_not`: why not a single one.
std::vector<Rows> rows_in(const Graph& graph, double seconds, std::string& why_not) {
  // Estimates of one core's rates; a wrong guess is held by the clock.
  constexpr double kFlopsPerSecond = 8e9, kSecondsPerElement = 40e-9;
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<double>(sysconf(_SC_PAGE_SIZE)) / 2;
  double needs = 0, bytes = 0;
  const auto fit = [&](const std::vector<Rows>& rows) {
    const Demand demand(graph, rows);
    needs =
        2 * (demand.flops() / (kFlopsPerSecond * cores) + demand.elements() * kSecondsPerElement);
    bytes = demand.peak_bytes();
    return needs <= seconds && bytes <= memory;
  };
  std::vector<Rows> all(graph.outputs().size());
  if (fit(all)) return all;
  int64_t most = 1;
  for (ValueId v : graph.outputs())
    for (int64_t extent : graph.type(v).shape) most = std::max(most, extent);
  std::vector<Rows> best;
  for (int64_t count = 1; count < most; count *= 2) {
    std::vector<Rows> rows = spread_rows(graph, count);
    if (!fit(rows)) break;
    best = std::move(rows);
  }
  if (!best.empty()) return best;
  why_not = bytes > memory
                ? fmt::format("the reference needs {} of memory for one row",
                              to_string(Bytes{static_cast<int64_t>(bytes)}))
                : fmt::format(
                      "the reference takes about {:.2g} s for one row, more than the {:g} s "
                      "that it was given",
                      needs, seconds);
  return all;
}

}  // namespace

Error interrupted() { return Error{Code::kInterrupted, "verify", "interrupted"}; }

bool keep_on(const Options& options, bool& stopped) {
  return !(stopped = options.interrupted && options.interrupted());
}

graph::Interpretation rounding_as(Precision precision) {
  graph::Interpretation how;
  how.sums = precision == Precision::kTf32 ? ops::Sums::kTf32 : ops::Sums::kFloat;
  return how;
}

Result<std::vector<Tensor>> run(const runtime::Executable& executable,
                                std::span<const Tensor> inputs, int threads) {
  const runtime::Program& program = executable.program();
  TRY(const auto context, executable.context(threads));
  std::vector<const void*> in;
  for (const Tensor& input : inputs) in.push_back(input.data());
  std::vector<Tensor> outputs;
  std::vector<void*> out;
  for (const runtime::Port& port : program.outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  TRY_STATUS(context->run(in, out));
  return outputs;
}

Result<Graph> in_arithmetic(const Graph& graph, Precision precision) {
  if (precision == Precision::kKeep) return graph;
  return passes::convert_precision(graph, precision);
}

Result<Reference> reference(const Graph& graph, std::span<const Tensor> inputs,
                            const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const bool bounded = std::isfinite(options.seconds);
  Reference made;
  made.rows.resize(graph.outputs().size());
  if (bounded) made.rows = rows_in(graph, options.seconds, made.why_not);
  if (!made.why_not.empty()) return made;
  bool stopped = false, late = false;
  const auto probe = [&](graph::NodeId, std::span<const Tensor>) {
    // Predictions are of a machine that does nothing else.
    constexpr double kPatience = 2;
    const double passed = std::chrono::duration<double>(Clock::now() - start).count();
    late = bounded && passed > kPatience * options.seconds;
    return !late && keep_on(options, stopped);
  };
  const auto interpret = [&](const Graph& of,
                             graph::Interpretation how) -> Result<std::vector<Tensor>> {
    how.probe = probe;
    const bool all = std::all_of(made.rows.begin(), made.rows.end(),
                                 [](const Rows& rows) { return rows.all(); });
    return all ? graph::interpret(of, inputs, how) : Demand(of, made.rows).interpret(inputs, how);
  };
  const auto both = [&]() -> Status {
    TRY(made.wanted, interpret(graph, {.exact = true}));
    if (late || stopped) return ok_status();
    TRY(const Graph program, in_arithmetic(graph, options.precision));
    TRY(made.rounded, interpret(program, rounding_as(options.precision)));
    return ok_status();
  };
  const Status status = both();
  if (stopped) return interrupted();
  if (!status.ok()) {
    if (!bounded) return status.error();
    made.why_not = "the reference gives no answer to generated inputs: " + status.error().message;
  } else if (late) {
    made.why_not =
        fmt::format("the reference took longer than the {:g} s that it was given", options.seconds);
  }
  return made;
}

Result<Report> check(const Graph& graph, const runtime::Executable& executable,
                     const Options& options) {
  const std::vector<Tensor> inputs = generate_inputs(graph, options.seed);
  TRY(const std::vector<Tensor> got, run(executable, inputs, options.threads));
  TRY(const Reference known, reference(graph, inputs, options));
  return compare_outputs(graph, got, known, options.precision);
}

}  // namespace obelisk::verify
