/// compile.h — the compiler as a list of steps, from a model file's contents to a program that
/// runs.
///
/// Start with compile.cpp: it reads as the table of contents. Each step can be stopped at (`to`),
/// explained (`explain`) and timed; passes can be left out by name (`disabled`). An interrupt is
/// noticed between steps, and inside the long ones.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dispatch.h"
#include "frontends/frontends.h"
#include "granularity.h"
#include "host_tail.h"
#include "passes/passes.h"
#include "runtime/runtime.h"
#include "verify/verify.h"

namespace obelisk::compiler {

/// What is compiled: a model as it was read, or a graph (from text, or out of a compiled file).
struct Network {
  std::optional<frontends::onnx::Model> model;
  std::optional<graph::Graph> graph;
};

/// The machine that a target's name means.
struct FoundMachine {
  std::string target = "cpu";  // what Options takes: "cpu" or a GPU's architecture
  std::string name;            // the GPU's, empty without one
  int gpu = 0, sms = 0;        // which one; workers that tables are made for
};
/// `name`: "cpu"; "cuda" or "cuda:N", a GPU of this machine; "auto", the first GPU where its driver
/// and the device compiler are, else the CPU; or an architecture, "sm_90a", of a GPU that need not
/// be here. `sms` 0: as many as it has; of a CPU `threads`. Errors: kDevice where a GPU is asked
/// for and none is here.
Result<FoundMachine> find_machine(const std::string& name, int sms, int threads);

struct Options {
  frontends::ImportOptions import;
  passes::Options passes;
  std::string target = "cpu";              // or a GPU's architecture, "sm_90a"
  std::optional<Granularity> granularity;  // of a GPU; nothing: the quickest
  int sms = 0;                             // virtual SMs; 0: one a core, or as many as the GPU has
  int threads = 0;                         // workers when verifying
  stitch::Options stitch;
  runtime::LoadOptions load;
  std::shared_ptr<runtime::WeightPool>
      weights;  // of a CPU: programs of other batches of the same network leave theirs there
  bool verify = true;
  verify::Options verification;
  std::set<std::string> disabled;  // passes left out
  bool check_tables =
      false;  // a shadow run of every table (schedule/shadow_run.h), beside what is always checked
  /// Of a graph of kernels, or of works on a CPU: their order and lanes (sms and priorities follow
  /// from the machine); of one kernel the policy alone, as machine::Placement. No policy: `auto` on
  /// a CPU, and where the program is loaded on its GPU, so that it is measured, else `waves`.
  schedule::DispatchOptions dispatch{.policy = ""};
  std::vector<schedule::Dispatched> dispatch_from;  // the same, given: by position
  bool orders_kernels() const {
    const bool has_lanes =
        !dispatch.launch_order.empty() || dispatch.streams > 0 || dispatch.search_seconds > 0;
    return dispatch.policy.empty() ? has_lanes || !dispatch_from.empty()
                                   : dispatch.policy != "waves" || !dispatch_from.empty();
  }
  bool wants_dispatch = false;  // Compilation::dispatching also where waves are what runs
  bool batch_invariant =
      false;  // of a GPU: a row has the same bits in a program of any batch (a core's have anyway)
  machine::GemmTile gemm_tile;  // of a GPU: of pipelined GEMMs, where they can have it
  bool host_tail = false;       // nodes whose shapes depend on data may run on the host, after the
                                // program: Compilation::tail
  std::string to;               // the last step; empty: all
  std::set<std::string> explain;  // steps whose decisions are kept in Compilation::explanations
  std::function<void(std::string_view step, double done)> progress;
  std::function<bool()> interrupted;
  /// Asked of each program before its code is compiled; an error ends the compilation.
  std::function<Status(const runtime::Program&)> admits;
};

/// What the steps from the machine's passes on made for one strategy.
struct Lowered {
  machine::Strategy strategy;
  graph::Graph graph;  // after the passes
  stitch::Plan plan;
  schedule::TaskGraph tasks;
  /// The table before its memory was planned on the partial order (schedule::place_by_order), which
  /// adds edges: what waves have. Nothing where no other dispatch was asked for.
  std::optional<schedule::TaskGraph> tasks_in_waves;
  codegen::Source source;
  std::shared_ptr<const runtime::Program> program;
  std::optional<Dispatching> dispatching;  // of kernels or works that were ordered
};

/// What the steps made; complete up to where they went. Where a granularity was left open: for the
/// strategy that was chosen.
struct Compilation : Lowered {
  frontends::ImportReport import_report;
  passes::Precision precision = passes::Precision::kKeep;  // that was asked for
  graph::Graph imported;  // before any pass: what answers are judged by
  std::shared_ptr<const runtime::Executable> executable;
  std::shared_ptr<const HostTail> tail;  // what follows the program's answers, where it is allowed
  std::optional<Choice> choice;          // of granularity, when it was left open
  std::optional<verify::Report> verification;

  struct Timing {
    std::string step;
    double seconds;
  };
  std::vector<Timing> timings;
  struct Explanation {
    std::string step, text;
  };
  std::vector<Explanation> explanations;
  bool stopped = false;  // at Options::to
  std::string text;      // the text form of what that step made
};

/// A program whose every stored value is there after a run: the groups, tasks and bodies of a
/// compilation, with an arena in which no buffers share bytes. Its last output is that arena.
/// Errors: kUnsupported of a dataflow program; those of loading.
struct Unshared {
  std::shared_ptr<const runtime::Executable> executable;
  schedule::TaskGraph tasks;
};
Result<Unshared> unshare(const Compilation& made, const Options& options);
/// The stored values, from the outputs of its run.
std::map<graph::ValueId, Tensor> stored_values(const Compilation& made, const Unshared& unshared,
                                               std::span<const Tensor> outputs);

/// Runs the steps. On an error the compilation holds what was made before it, and every unsupported
/// node. Errors: kUsage for unknown names of steps or passes, kInterrupted, and those of the steps.
Status compile(const Network& network, const Options& options, Compilation& compilation);

/// Names in order: what `to` and `explain` take.
std::vector<std::string> step_names();

}  // namespace obelisk::compiler
