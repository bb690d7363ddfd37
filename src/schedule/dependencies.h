/// schedule/dependencies.h — the true predecessors of every work, and the check that there are
/// enough of them.
///
///   in   Graph, Plan, TaskGraph with an arena that was assigned
///   out  Dependencies: a Dag, and why each of its edges is there
///
/// By values: a work follows the works that store an element that it reads; values are compared as
/// boxes of a storage (storage_box.h); and one that overwrites an input, for an output that takes
/// its memory, follows all that read the input. By reuse of memory: a work that writes to bytes of
/// the arena follows all that used them for another buffer. Waves say which of two buffers came
/// first, and nothing else.
#pragma once

#include "schedule/dag.h"
#include "schedule/task_graph.h"

namespace obelisk::schedule {

struct Dependency {
  enum class Why : uint8_t {
    kValue,  // `to` reads what `from` stores
    kReuse,  // `to` writes where `from` used another buffer
  };
  int from = 0, to = 0;
  Why why = Why::kValue;
  int buffer = -1;  // kValue: through which it goes; kReuse: that `to` writes
};
std::string_view to_string(Dependency::Why why);

struct Dependencies {
  Dag dag;
  std::vector<Dependency>
      edges;  // each pair once, by `to`, then `from`; a value is a better reason than reuse
};

/// Buffers of the arena with the works that use and that write them, each ascending.
struct BufferUse {
  int buffer = 0;
  std::vector<int> users, writers;
  bool lasts = false;  // from run to run: it shares its bytes with nobody
};
std::vector<BufferUse> arena_uses(const Graph& graph, const stitch::Plan& plan,
                                  const TaskGraph& tasks);

/// Only what values require; then also what reuse of the arena requires. Errors: kBuild, of
/// storage_box.
Result<Dependencies> value_dependencies(const Graph& graph, const stitch::Plan& plan,
                                        const TaskGraph& tasks);
Result<Dependencies> true_dependencies(const Graph& graph, const stitch::Plan& plan,
                                       const TaskGraph& tasks);

/// Whether the order is enough for the table, whatever waves it has: every read follows its writes,
/// and of two buffers that share bytes all uses of one precede all uses of the other. Errors:
/// kBuild, naming works and value.
Status validate_order(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks,
                      const Dag& dag);

/// Places the arena anew for works that are kernels of a graph and run as soon as what they follow
/// has ended (memory_order.h): little more memory than the sequential plan takes, by reuse that
/// hardly lengthens the longest path. Waves become those of the order with the edges of reuse, and
/// lists follow them. `adds_edges` false: bytes are reused only where values order the works.
/// Errors: kBuild, of value_dependencies.
Status place_by_order(const Graph& graph, const stitch::Plan& plan, const machine::Machine& machine,
                      TaskGraph& tasks, bool adds_edges = true);

/// Works with their predecessors, of the edges that no longer path makes needless, as text.
std::string print(const Dependencies& dependencies);

}  // namespace obelisk::schedule
