/// schedule/dispatch.h — in which order kernels are launched, and which of them share a lane (a
/// stream).
///
///   in   a Dag of kernels, what each needs of the machine, a policy
///   out  Dispatch: position, lane, priority, class and reason of each kernel, and the edges of a
///   graph of them
///
/// Opara (IEEE Transactions on Computers 74(1), 2025) gives allocate_opara, its algorithm 1, and
/// order_opara, its algorithm 2. Nimble (NeurIPS'20) gives allocate_nimble. `critical` is ours. A
/// kernel that launches nothing is free: it is released the moment it is ready.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "machine/machine.h"
#include "schedule/dag.h"

namespace obelisk::schedule {

enum class KernelClass : uint8_t { kCompute, kMemory };
std::string_view to_string(KernelClass kind);

/// What a kernel needs. Registers are a thread's, shared memory and threads a block's.
struct Demand {
  int64_t shared_bytes = 0;
  int threads = 0, registers = 0;
  int64_t blocks = 0;
  double nanos = 0;  // predicted, alone on the machine
};
/// The order in which algorithm 2 takes kernels: by shared memory, threads and registers of a
/// block, as the paper lists them; then by blocks.
bool asks_for_less(const Demand& a, const Demand& b);

struct Kernel {
  std::string name;
  Demand demand;
  KernelClass kind = KernelClass::kMemory;
  std::string why_kind;  // what decided the class
  bool launches = true;
};

/// The class of a kernel from what it moves and computes: compute-bound where it has more
/// operations for a byte than the machine does while it moves one (its ridge). Where either is not
/// known (0), by a table of ops: `op` is its name in the graph. Says which of the two decided.
struct Classified {
  KernelClass kind = KernelClass::kMemory;
  std::string why;
};
Classified classify(double flops, double bytes, double ridge, std::string_view op);
/// The table: products, convolutions, attention and recurrences are compute-bound, all else
/// memory-bound.
KernelClass class_of_op(std::string_view op);

/// What an allocation or an order did, counted in elements of lists and edges that it looked at.
struct Steps {
  int64_t count = 0;
};

/// Lanes by kernel, 0 and up; each is a chain of the partial order.
struct Lanes {
  std::vector<int> lane;
  int count = 0;
};
/// Algorithm 1: each kernel, in topological order, takes the lane of the first predecessor that has
/// not passed its lane on, else a new one. O(kernels + edges).
Lanes allocate_opara(const Dag& dag, const std::vector<int>& topological, Steps* steps = nullptr);
/// Nimble's: a maximum matching of the transitive reduction gives chains, a second one joins chains
/// of which one ends before another begins.
Lanes allocate_nimble(const Dag& dag, const Reachability& reaches);
/// One lane for all.
Lanes allocate_sequential(const Dag& dag);

/// Rules that can be left out, to see what each of them is worth.
struct DispatchRules {
  bool classes = true;     // algorithm 2 has a list for each class; else one list
  bool demand = true;      // of a list the least demand goes first; else what was ready first
  bool priorities = true;  // nodes of the graph have priorities; else none has
  bool early = true;       // `auto` tries which kernels start early; else all do
  bool operator==(const DispatchRules&) const = default;
};

/// Algorithm 2: of the kernels that are ready, the lists of memory-bound and compute-bound ones in
/// turns, memory-bound first, where both have some; of the list the kernel that needs least, of
/// equals the one that was ready first.
std::vector<int> order_opara(const Dag& dag, const std::vector<Kernel>& kernels,
                             Steps* steps = nullptr, const DispatchRules& rules = {});
/// Of those ready, by the longest remaining path; among those within a tenth of the longest, first
/// what fits into the free SMs of a machine with `sms` of them on which kernels begin as soon as
/// they may, then what is of the other class than the kernel before.
std::vector<int> order_critical(const Dag& dag, const std::vector<Kernel>& kernels, int sms);
/// Some topological order, by `seed`.
std::vector<int> order_random(const Dag& dag, uint64_t seed);

/// What `auto` chooses among. The first stays unless another is predicted or measured to take less
/// than thresholds::kWorthLeaving of its time.
inline constexpr const char* kPolicies[] = {"waves", "sequential", "nimble", "opara", "critical"};

/// The words of the command line. `launch_order` empty: the policy's own.
struct DispatchOptions {
  std::string policy = "waves";   // waves, sequential, nimble, opara, critical, auto
  std::string launch_order = "";  // topological, opara, critical, random:SEED
  int streams = 0;                // lanes at most; 0: as many as the policy wants
  double search_seconds = 0;      // of `auto`: for a local search that begins with its choice
  int sms = 1;                    // of the machine
  int priorities = 6;             // levels that the machine tells apart
  double node_nanos = 0;          // from a kernel's end to the start of one that follows it
  double edge_nanos = 0;          // of each edge of the graph, beside all else
  DispatchRules rules;
  bool operator==(const DispatchOptions&) const = default;
};
/// Errors: kUsage with the names that exist.
Status check_options(const DispatchOptions& options);

/// One kernel's place.
struct Dispatched {
  int kernel = 0, position = 0, lane = 0;
  int priority = 0;               // 0 for the last, below it for what goes first
  std::vector<int> predecessors;  // kernels that the graph's edges name
  std::string reason;
  bool early = true;  // whether those that follow may start, and wait, when this one begins; else
                      // when its tiles are computed. On a GPU that overlaps kernels
};
struct Dispatch {
  std::string policy, launch_order;
  std::string reason;  // of `auto`: what was chosen, over what
  int lanes = 0;
  std::vector<Dispatched> kernels;  // by position; kernels that launch nothing are none
  double predicted_nanos = 0;
  double critical_nanos = 0;  // the longest path
};

/// `waves`: by kernel; what the policy of that name goes by. `auto` compares with `in_waves`, where
/// waves have a memory plan, and so a partial order, of their own. Errors: kUsage of the options,
/// kBuild for a cycle.
Result<Dispatch> dispatch(const Dag& dag, const std::vector<Kernel>& kernels,
                          const std::vector<int>& waves, const DispatchOptions& options,
                          const Dispatch* in_waves = nullptr);

/// Of an order of the kernels that launch something, and of their lanes (-1: of the others), in
/// whatever way they came to be. Errors: kBuild where the order is none of the dag's.
Result<Dispatch> dispatch_as(const std::string& policy, const Dag& dag,
                             const std::vector<Kernel>& kernels, const std::vector<int>& order,
                             Lanes lanes, const DispatchOptions& options);

/// A kernel that has started and waits for its predecessors begins sooner when they end, and keeps
/// room from kernels of other lanes until then. Sets Dispatched::early where every kernel that
/// follows takes at most `most` of the machine's room with its blocks: 1 everywhere, 0 nowhere.
void start_early(Dispatch& dispatch, const std::vector<Kernel>& kernels,
                 const machine::Machine& machine, double most);

/// Whether each kernel that launches something is there once, behind all that it follows, positions
/// are 0 and up, no lane leaves its order, and the edges lead wherever the partial order does.
/// Errors: kBuild, naming the kernel.
Status validate_dispatch(const Dag& dag, const std::vector<Kernel>& kernels,
                         const Dispatch& dispatch);

/// Nanoseconds until all have ended, where each begins options.node_nanos after its predecessors
/// have ended: those of lower position take as many of options.sms SMs as they have blocks, the
/// others what is left. The graph's edges are passed one after another, each in options.edge_nanos.
double predict(const std::vector<Dispatched>& by_position, const std::vector<Kernel>& kernels,
               const DispatchOptions& options);

/// As text, a line a kernel, and as JSON: a list of objects with kernel, position, lane, priority,
/// class, demand, predecessors, reason, early.
std::string print(const Dispatch& dispatch, const std::vector<Kernel>& kernels);
std::string print_json(const Dispatch& dispatch, const std::vector<Kernel>& kernels);

}  // namespace obelisk::schedule
