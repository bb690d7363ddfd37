/// granularity.h — how a GPU's program is launched, when the user leaves it open: each way is
/// measured where a GPU is, and predicted from the task table where none is.
///
///   op      a kernel for each op, in a graph: nothing stitched, no epilogues
///   stitch  a kernel for each stitched group, in a graph whose kernels overlap
///   mono    the whole network as one kernel
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace obelisk::compiler {

using machine::Granularity;

/// What --granularity takes: a granularity of a GPU, or "auto", which leaves it open: nothing.
/// Errors: kUsage with the names that there are.
Result<std::optional<Granularity>> parse_wanted_granularity(const std::string& name);

/// What the schedule made for one granularity, loaded.
struct Candidate {
  Granularity granularity = Granularity::kMono;
  std::shared_ptr<const runtime::Executable> executable;
  double us = 0;        // device time of a run, or its prediction
  std::string refused;  // why it cannot be; then there is no executable
};

struct Choice {
  std::vector<Candidate> candidates;
  size_t chosen = 0;
  bool measured = false;
  /// "mono: 61.2 us, the least of op 190.3, stitch 80.1 (measured)"
  std::string text() const;
};

/// Microseconds that a phase of the program costs beside its tasks.
double phase_us(const runtime::Program& program);

/// Microseconds of a run by the table: each wave's busiest SM, and what a phase costs.
double predicted_us(const runtime::Program& program);

/// Fills in times and chooses. `inputs` for measuring are generated once. Errors: that of the first
/// candidate, when all are refused.
Result<Choice> choose_granularity(std::vector<Candidate> candidates,
                                  const std::function<std::vector<Tensor>()>& inputs);

using Load = std::function<Result<std::shared_ptr<const runtime::Executable>>(
    const std::shared_ptr<const runtime::Program>&)>;

/// Loads programs of one network, each of another granularity: the candidates, in their order. One
/// that the GPU or a limit does not allow is refused, and so is one whose code cannot be built,
/// with a warning in the log. Errors: kMemory or kBuild where none is left, and other ones of
/// loading.
Result<std::vector<Candidate>> load_candidates(
    const std::vector<std::shared_ptr<const runtime::Program>>& programs, const Load& load);

}  // namespace obelisk::compiler
