/// verify/verify.h — the door of `verify`: is what the machine answers what the network means?
///
///   in   the graph as it was imported, a loaded program
///   out  Report: the largest difference, the tolerance, and the first value that is too far off
///
/// The judge is the interpreter with every float carried in f64. Inputs are generated from a seed
/// (generate_inputs.cpp says how integers find their range). The rule of compare.cpp: an output may
/// be off by its tolerance times its own scale, the largest magnitude that the reference gives for
/// it; the tolerance is that of the narrowest arithmetic that leads to it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "runtime/runtime.h"

namespace obelisk::verify {

using graph::Graph;
using graph::ValueId;

/// What a program computes in: a type, of which products may round their operands to 10 bits of mantissa.
struct Arithmetic {
  DType dtype;
  bool tf32 = false;
  Arithmetic(DType type, bool rounds = false) : dtype(type), tf32(rounds) {}
  std::string text() const { return tf32 ? "tf32" : std::string(to_string(dtype)); }
};

struct Options {
  uint64_t seed = 0;
  int threads = 0;
  // what the program computes in, where it is not what the graph says
  std::optional<Arithmetic> arithmetic;
  std::function<bool()> interrupted;
};

/// The first element, in row-major order, that is too far off.
struct Difference {
  std::string output;      // name of the output, or of the value when bisecting
  std::string node, op;    // what computes it; empty for an input that is passed on
  Shape coordinate;
  double got = 0, wanted = 0, allowed = 0;
  // "'y' [0,3] (node 'first/Relu', Relu): got 1.5, wanted 1.25, allowed 0.0001"
  std::string text() const;
};

struct Report {
  bool ok = true;
  std::string against = "reference";
  std::optional<Arithmetic> arithmetic;  // of the program, where it is not the graph's
  double max_abs = 0;
  double max_rel = 0;      // relative to the scale of the output where it is
  // of the output with the largest share of it used up, relative to its scale
  double tolerance = 0;
  std::optional<Difference> bad;
  std::string text() const;
  Error error() const;     // kAccuracy
};

/// Inputs in the order of the graph's. Deterministic by seed on every machine. Floats are normal(0,
/// 1); integers that become indices stay inside of what they index; masks are 0 and 1.
std::vector<Tensor> generate_inputs(const Graph& graph, uint64_t seed);

/// The tolerance of a value, relative to its scale, by the narrowest arithmetic among what leads to
/// it.
std::vector<double> tolerances(const Graph& graph, std::span<const ValueId> values,
                               std::optional<Arithmetic> arithmetic = {});

/// Compares one value. `from_floats`: an integer that was computed from floats, which may be one
/// off, or fall to the other side of a tie now and then.
void compare(const Tensor& got, const Tensor& wanted, double tolerance, bool from_floats,
             const std::string& name, Report& report);

/// All outputs of a graph; fills in the nodes' names.
/// `arithmetic`: Options::arithmetic.
Report compare_outputs(const Graph& graph, std::span<const Tensor> got,
                       std::span<const Tensor> wanted,
                       std::optional<Arithmetic> arithmetic = {});

/// Runs the program once. Errors: those of the runtime.
Result<std::vector<Tensor>> run(const runtime::Executable& executable,
                                std::span<const Tensor> inputs, int threads = 0);

Result<std::vector<Tensor>> reference(const Graph& graph, std::span<const Tensor> inputs,
                                      const Options& options = {});

Result<Report> check(const Graph& graph, const runtime::Executable& executable,
                     const Options& options = {});

/// Finds the node whose value is the first to be too far off. `compile` makes a program of the same
/// graph with more outputs; `boundaries` are the values that are stored anyway, which are looked at
/// first, so that fusion stays what it was.
struct Bisection {
  const Graph& graph;
  std::vector<ValueId> boundaries;
  // values that its body keeps to itself
  std::function<std::vector<ValueId>(ValueId boundary)> inside;
  std::function<Result<std::shared_ptr<const runtime::Executable>>(const Graph& graph)> compile;
};
Result<Report> bisect(const Bisection& bisection, const Options& options = {});

}  // namespace obelisk::verify
