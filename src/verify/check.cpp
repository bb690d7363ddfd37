#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "verify/rows.h"

namespace obelisk::verify {
namespace {

using Clock = std::chrono::steady_clock;

/// What the reference needs to interpret some rows of the outputs twice.
struct Needs {
  double seconds = 0;  // by estimates of a core's rates
  double bytes = 0;
};

Needs needs_of(const Graph& graph, const std::vector<Rows>& rows) {
  constexpr double kFlopsPerSecond = 8e9, kSecondsPerElement = 40e-9;
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const Demand demand(graph, rows);
  return {2 * (demand.flops() / (kFlopsPerSecond * cores) + demand.elements() * kSecondsPerElement),
          demand.peak_bytes()};
}

double half_the_memory() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(sysconf(_SC_PAGE_SIZE)) / 2;
}

bool are_all(const std::vector<Rows>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const Rows& of) { return of.all(); });
}

/// As many rows of the outputs as are estimated to need no more than that; none: not a single one.
std::vector<Rows> rows_in(const Graph& graph, double seconds) {
  const auto fit = [&, memory = half_the_memory()](const std::vector<Rows>& rows) {
    const Needs needs = needs_of(graph, rows);
    return needs.seconds <= seconds && needs.bytes <= memory;
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
  return best;
}

std::string why_not(const Needs& needs, double seconds) {
  return needs.bytes > half_the_memory()
             ? fmt::format("the reference needs {} of memory for one row",
                           to_string(Bytes{static_cast<int64_t>(needs.bytes)}))
             : fmt::format(
                   "the reference takes about {:.2g} s for one row, more than the {:g} s "
                   "that it was given",
                   needs.seconds, seconds);
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

/// The reference of those rows, or why there is none. `until`: when it gives up.
Result<Reference> reference_of(const Graph& graph, std::span<const Tensor> inputs,
                               const Options& options, std::vector<Rows> rows,
                               Clock::time_point until) {
  Reference made;
  made.rows = std::move(rows);
  bool stopped = false, late = false;
  const auto probe = [&](graph::NodeId, std::span<const Tensor>) {
    late = Clock::now() > until;
    return !late && keep_on(options, stopped);
  };
  const auto interpret = [&](const Graph& of,
                             graph::Interpretation how) -> Result<std::vector<Tensor>> {
    how.probe = probe;
    return are_all(made.rows) ? graph::interpret(of, inputs, how)
                              : Demand(of, made.rows).interpret(inputs, how);
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
    if (!std::isfinite(options.seconds)) return status.error();
    made.why_not = "the reference gives no answer to generated inputs: " + status.error().message;
  } else if (late) {
    made.why_not =
        fmt::format("the reference took longer than the {:g} s that it was given", options.seconds);
  }
  return made;
}

Result<Reference> reference(const Graph& graph, std::span<const Tensor> inputs,
                            const Options& options) {
  const std::vector<Rows> all(graph.outputs().size());
  if (!std::isfinite(options.seconds))
    return reference_of(graph, inputs, options, all, Clock::time_point::max());
  constexpr double kPatience = 2;  // estimates are of a machine that does nothing else
  constexpr double kPilotShare =
      0.06;  // of the time, for few rows, which measure the machine's rates
  const Clock::time_point start = Clock::now();
  const auto until = start + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(kPatience * options.seconds));
  std::vector<Rows> rows = rows_in(graph, kPilotShare * options.seconds);
  if (rows.empty()) {
    rows = spread_rows(graph, 1);
    const Needs needs = needs_of(graph, rows);
    if (needs.seconds > options.seconds || needs.bytes > half_the_memory()) {
      Reference none;
      none.why_not = why_not(needs, options.seconds);
      return none;
    }
  }
  const double estimated = needs_of(graph, rows).seconds;
  TRY(Reference pilot, reference_of(graph, inputs, options, rows, until));
  if (!pilot.why_not.empty() || are_all(pilot.rows)) return pilot;
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  const double slower = std::max(1.0, took / estimated);
  rows = rows_in(graph, (options.seconds - took) / slower);
  if (needs_of(graph, rows.empty() ? pilot.rows : rows).seconds <= estimated) return pilot;
  TRY(Reference made, reference_of(graph, inputs, options, rows, until));
  // Late all the same: what the few rows say is known.
  return made.why_not.empty() ? std::move(made) : std::move(pilot);
}

Result<Report> check(const Graph& graph, const runtime::Executable& executable,
                     const Options& options) {
  const std::vector<Tensor> inputs = generate_inputs(graph, options.seed);
  TRY(const std::vector<Tensor> got, run(executable, inputs, options.threads));
  TRY(const Reference known, reference(graph, inputs, options));
  return compare_outputs(graph, got, known, options.precision);
}

}  // namespace obelisk::verify
