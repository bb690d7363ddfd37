/// obelisk/runner.h — something that answers inputs with outputs: the program on the CPU, or the
/// interpreter.
#pragma once

#include "source.h"

namespace obelisk::cli {

/// What is known of a program's answers before it gives one.
struct Verified {
  std::optional<verify::Report> report;  // of what was compiled
  std::string rows;                      // that were compared; empty: none
  std::string why_not;                   // then
  std::string text() const;  // "verified on every row: max |err| ...", "not verified: --verify off"
  Json json() const;
};

struct Runner {
  std::string target;  // "cpu" or "reference"
  std::vector<runtime::Port> inputs, outputs;
  compiler::Compilation compilation;  // of a model or a graph
  Verified verified;
  std::shared_ptr<const runtime::Executable> executable;  // unless the interpreter runs
  std::unique_ptr<runtime::Context> context;

  /// Outputs are allocated by the caller once and written by every run.
  Status run(const std::vector<Tensor>& in, std::vector<Tensor>& out);
  std::vector<Tensor> allocate_outputs() const;
};

/// The graph that answers are judged by: the model's, or the one that a compiled file carries.
Result<graph::Graph> graph_of(const Runner& runner, const Source& source);

/// Compiles what has to be compiled. Without a host compiler the interpreter runs, and a line on
/// stderr says so (target auto). On an error `report` holds all nodes that cannot be run. `silent`:
/// no progress is shown, as where several are made at once.
Result<std::unique_ptr<Runner>> make_runner(const Flags& flags, const Source& source,
                                            frontends::ImportReport& report, bool silent = false);

/// The same network as `like`, whose kernels are a graph with lanes, compiled by flags that differ
/// in --dispatch (one with lanes) and --launch-order alone: nothing is compiled again. Weights are
/// in `weights`, which many such runners share.
Result<std::unique_ptr<Runner>> make_reordered(const Flags& flags, const Runner& like,
                                               std::shared_ptr<runtime::DeviceWeights> weights);

}  // namespace obelisk::cli
