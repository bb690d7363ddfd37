/// verify/verify.h — the door of `verify`: compares what a program answers with what the network
/// means.
///
///   in   the graph as it was imported, a loaded program
///   out  Report: the largest difference, the tolerance, and the first value that is too far off
///
/// The reference is the interpreter with every float in f64. The same interpreter in the
/// program's arithmetic says what rounding costs this network on these inputs, and a program may be
/// off by a small multiple of that (compare.cpp has the rule). Inputs are generated from a seed
/// (generate_inputs.cpp says how integers find their range). Where time is bounded, the elements
/// that some rows of the outputs depend on are interpreted, and no others (demand.cpp).
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

namespace obelisk::verify {

using graph::Graph;
using graph::ValueId;
using passes::Precision;

struct Options {
  uint64_t seed = 0;
  int threads = 0;
  Precision precision = Precision::kKeep;  // that the program was made with
  // of the reference; with less time than all rows take it interprets some
  double seconds = std::numeric_limits<double>::infinity();
  std::function<bool()> interrupted;
};

/// Rows of an output: its elements at some coordinates of one dimension.
struct Rows {
  size_t dim = 0;
  int64_t of = 1;           // the dimension's extent
  std::vector<int64_t> at;  // ascending; empty: all
  bool all() const { return at.empty(); }
};

/// What a graph answers, interpreted twice: by what it means, and in a program's arithmetic, whose
/// distance is what rounding costs.
struct Reference {
  std::vector<Tensor> wanted;   // by output, floats in f64; of some rows only where `rows` says so
  std::vector<Tensor> rounded;  // the same in the program's types, with its sums in f32
  std::vector<Rows> rows;
  std::string why_not;                         // not empty: there is no answer, for this reason
  std::string text(const Graph& graph) const;  // "every row", "3 of 128 rows of 'y'"
};

/// What arithmetic leads to a value; of the graph that says what is rounded.
struct Nature {
  double unit = 0;         // unit roundoff of the narrowest
  double cap = 0;          // the loosest tolerance that is ever taken, relative to the scale
  bool exact = false;      // values are moved, selected and compared, and nothing is rounded
  bool quantized = false;  // a tie of a quantizer leads here, and decides a whole step of it
  bool from_floats = false;
};

/// The first element, in row-major order, that is too far off.
struct Difference {
  std::string output;    // name of the output, or of the value when bisecting
  std::string node, op;  // what computes it; empty for an input that is passed on
  Shape coordinate;
  double got = 0, wanted = 0, allowed = 0;
  // "'y' [0,3] (node 'first/Relu', Relu): got 1.5, wanted 1.25, allowed difference 0.0001"
  std::string text() const;
};

/// The same of one output: what Report has of all.
struct OfOutput {
  std::string name;
  bool ok = true;
  double max_abs = 0, max_rel = 0, tolerance = 0, rounding = 0;
};

struct Report {
  bool ok = true;
  std::string against = "reference";
  Precision precision = Precision::kKeep;  // of the program
  std::string rows = "every row";          // that were compared; empty: none
  std::string why_not;                     // then
  double max_abs = 0;
  double max_rel = 0;  // relative to the scale of the output where it is
  double used = -1;    // the largest share of its tolerance that an output uses up
  // of that output, relative to its scale
  double tolerance = 0;
  double rounding = 0;  // the same of what the program's arithmetic costs the reference
  double ill = 0;       // rounding, where it is so large that the tolerance is capped; else 0
  std::vector<OfOutput> outputs;  // each that was compared
  std::optional<Difference> bad;
  std::string note;     // of a bisection: what else is known of where it goes wrong
  bool before = false;  // found by an earlier run, and kept (record.cpp)
  std::string text() const;
  Error error() const;  // kAccuracy
};

/// Inputs in the order of the graph's. Deterministic by seed on every machine. Floats are normal(0,
/// 1); integers that become indices stay inside of what they index; masks are 0 and 1.
std::vector<Tensor> generate_inputs(const Graph& graph, uint64_t seed);

/// The graph in the arithmetic of a precision: what `rounded` interprets.
Result<Graph> in_arithmetic(const Graph& graph, Precision precision);

/// Of each value of a graph.
std::vector<Nature> natures(const Graph& graph, Precision precision = Precision::kKeep);

/// Compares one value. `rounded`: what the reference answers in the program's arithmetic.
void compare(const Tensor& got, const Tensor& wanted, const Tensor& rounded, const Nature& nature,
             const std::string& name, Report& report);

/// All outputs of a graph; fills in the nodes' names.
Result<Report> compare_outputs(const Graph& graph, std::span<const Tensor> got,
                               const Reference& reference, Precision precision = Precision::kKeep);

/// Runs the program once. Errors: those of the runtime.
Result<std::vector<Tensor>> run(const runtime::Executable& executable,
                                std::span<const Tensor> inputs, int threads = 0);

/// Errors: kInterrupted; those of the interpreter, where time is not bounded. Where it is, what
/// keeps the reference from an answer is Reference::why_not.
Result<Reference> reference(const Graph& graph, std::span<const Tensor> inputs,
                            const Options& options = {});

/// Where the verification of a program is kept: a file of the object cache, named by the hash of
/// all that decides the program's answers and what they are compared with. Empty where there is no
/// cache.
std::string place_of_record(const std::string& cache, const Graph& graph,
                            const runtime::Executable& executable, const Options& options);
/// What an earlier run found, if it had as much time as `options` give or compared every row.
std::optional<Report> recall(const std::string& place, const Options& options);
/// Keeps a report that is ok. A cache that cannot be written is none.
void remember(const std::string& place, const Report& report, const Options& options);

/// Runs the program on generated inputs and compares.
Result<Report> check(const Graph& graph, const runtime::Executable& executable,
                     const Options& options = {});

/// Finds the node whose value is the first to be too far off. `compile` makes a program of the same
/// graph with more outputs; `boundaries` are the values that are stored anyway, which are looked at
/// first, so that fusion stays what it was. `program` is the one that is asked about, `stored` what
/// it leaves of each stored value when no buffers share bytes. Where it answers what `graph` means,
/// but not what `imported` does, the first of `passes` that changes the meaning is named.
struct Bisection {
  const Graph& graph;  // after the passes
  const Graph* imported = nullptr;
  std::vector<passes::Pass> passes;
  Precision precision = Precision::kKeep;  // of the passes
  std::shared_ptr<const runtime::Executable> program;
  std::vector<ValueId> boundaries;
  // values that its body keeps to itself
  std::function<std::vector<ValueId>(ValueId boundary)> inside;
  std::function<Result<std::shared_ptr<const runtime::Executable>>(const Graph& graph)> compile;
  std::function<Result<std::map<ValueId, Tensor>>(std::span<const Tensor> inputs)> stored;
  std::function<std::string(ValueId value)> group;  // that computes it, in words
};
Result<Report> bisect(const Bisection& bisection, const Options& options = {});

}  // namespace obelisk::verify
