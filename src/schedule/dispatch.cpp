#include "schedule/dispatch.h"

#include <algorithm>
#include <set>

#include "machine/machine.h"
#include "schedule/dispatch_lanes.h"

namespace obelisk::schedule {
namespace {

/// Kernels that launch nothing leave the order; their successors follow their predecessors.
Dag without_free(const Dag& dag, const std::vector<Kernel>& kernels,
                 const std::vector<int>& order) {
  if (std::all_of(kernels.begin(), kernels.end(),
                  [](const Kernel& kernel) { return kernel.launches; }))
    return dag;
  Dag left(dag.size());
  std::vector<std::set<int>> stands_for(
      dag.size());  // of a free kernel: those that launch something before it
  for (const int v : order) {
    std::set<int> before;
    for (const int p : dag.before[v]) {
      if (kernels[p].launches)
        before.insert(p);
      else
        before.insert(stands_for[p].begin(), stands_for[p].end());
    }
    if (!kernels[v].launches)
      stands_for[v] = std::move(before);
    else
      for (const int p : before) left.add(p, v);
  }
  return left;
}

/// The order that a policy or --launch-order names, without kernels that launch nothing.
Result<std::vector<int>> order_of(const std::string& name, const Dag& dag,
                                  const std::vector<Kernel>& kernels, const std::vector<int>& waves,
                                  const DispatchOptions& options) {
  std::vector<int> order;
  if (name == "opara") {
    order = order_opara(dag, kernels, nullptr, options.rules);
  } else if (name == "critical") {
    std::vector<Kernel> with_nodes = kernels;  // a step along a path costs a node of the graph, too
    for (Kernel& each : with_nodes) each.demand.nanos += options.node_nanos;
    order = order_critical(dag, with_nodes, options.sms);
  } else if (name.starts_with("random:")) {
    order = order_random(dag, std::stoull(name.substr(7)));
  } else {
    order = sorted_topologically(dag);
  }
  if (name == "waves")
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return waves[a] < waves[b]; });
  std::erase_if(order, [&](int kernel) { return !kernels[kernel].launches; });
  return order;
}

const char* opara_reason(const DispatchRules& rules) {
  if (!rules.demand) return rules.classes ? "; of its class ready first" : "; ready first";
  return rules.classes ? "; of its class the least demand of those ready"
                       : "; the least demand of those ready";
}

/// Edges, priorities and reasons of an order of the kernels that launch something, and of their
/// lanes. `dag`: without the other kernels; `waves`: of the policy of that name, which leads its
/// edges from wave to wave; the others' lead along the partial order and the lanes.
Result<Dispatch> place(const std::string& policy, const std::string& launch_order, const Dag& all,
                       const Dag& dag, const std::vector<int>& topological,
                       const std::vector<Kernel>& kernels, const std::vector<int>& order,
                       const Lanes& lanes, const std::vector<int>* waves,
                       const DispatchOptions& options) {
  Dispatch made;
  made.policy = policy, made.launch_order = launch_order, made.lanes = lanes.count;
  // As few edges as say all of it.
  Dag edges(dag.size());
  std::vector<double> nanos(dag.size(), 0);
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches) nanos[v] = kernels[v].demand.nanos + options.node_nanos;
  if (waves) {
    std::vector<std::vector<int>> by_wave;
    for (const int kernel : order) {
      by_wave.resize(std::max<size_t>(by_wave.size(), static_cast<size_t>((*waves)[kernel]) + 1));
      by_wave[(*waves)[kernel]].push_back(kernel);
    }
    std::erase_if(by_wave, [](const auto& wave) { return wave.empty(); });
    for (size_t k = 1; k < by_wave.size(); ++k)
      for (const int from : by_wave[k - 1])
        for (const int to : by_wave[k]) edges.add(from, to);
  } else {
    Dag whole = dag;
    std::vector<int> last(lanes.count, -1);
    for (const int kernel : order) {
      int& before = last[lanes.lane[kernel]];
      if (before >= 0) whole.add(before, kernel);
      before = kernel;
    }
    TRY(const Reachability leads, Reachability::make(whole));
    edges = transitive_reduction(whole, leads);
  }
  const LongestPaths paths = longest_paths(all, topological, nanos);
  made.critical_nanos = paths.critical;

  // Priorities: kernels of one depth compete; the first of them in the order goes first.
  std::vector<int> depth(dag.size(), 0), ahead;
  int position = 0;
  for (const int kernel : order) {
    for (const int before : dag.before[kernel])
      depth[kernel] = std::max(depth[kernel], depth[before] + 1);
    ahead.resize(std::max<size_t>(ahead.size(), static_cast<size_t>(depth[kernel]) + 1), 0);
    const int rank = ahead[depth[kernel]]++;
    Dispatched placed{kernel, position++, lanes.lane[kernel], 0, edges.before[kernel], ""};
    const bool ranked = !waves && policy != "sequential";
    if (ranked && options.rules.priorities)
      placed.priority = std::min(rank - (options.priorities - 1), 0);
    const Kernel& of = kernels[kernel];
    placed.reason = fmt::format("{}-bound ({})", to_string(of.kind), of.why_kind);
    if (made.launch_order == "critical")
      placed.reason += fmt::format("; {:.1f} of {:.1f} us of the longest path are left",
                                   paths.from[kernel] / 1000, paths.critical / 1000);
    if (made.launch_order == "opara") placed.reason += opara_reason(options.rules);
    if (waves)
      placed.reason += fmt::format("; wave {}", (*waves)[kernel]);
    else if (ranked)
      placed.reason += fmt::format("; number {} of depth {}", rank, depth[kernel]);
    made.kernels.push_back(std::move(placed));
  }
  TRY_STATUS(validate_dispatch(all, kernels, made));
  made.predicted_nanos = predict(made.kernels, kernels, options);
  return made;
}

Result<Dispatch> dispatch_one(const std::string& policy, const Dag& all,
                              const std::vector<Kernel>& kernels, const std::vector<int>& waves,
                              const DispatchOptions& options) {
  TRY(const std::vector<int> topological, topological_order(all));
  const Dag dag = without_free(all, kernels, topological);
  const std::string launch_order = !options.launch_order.empty() ? options.launch_order
                                   : policy == "opara" || policy == "critical" || policy == "waves"
                                       ? policy
                                       : "topological";
  TRY(const std::vector<int> order, order_of(launch_order, all, kernels, waves, options));
  // Lanes. `waves`: as many as its widest wave has kernels; a kernel's lane is its place in the
  // wave.
  Lanes lanes;
  if (policy == "waves") {
    std::vector<int> many;
    lanes.lane.assign(dag.size(), 0);
    for (const int kernel : order) {
      many.resize(std::max<size_t>(many.size(), static_cast<size_t>(waves[kernel]) + 1), 0);
      lanes.lane[kernel] = many[waves[kernel]]++;
      lanes.count = std::max(lanes.count, many[waves[kernel]]);
    }
  } else if (policy == "sequential") {
    lanes = allocate_sequential(dag);
  } else if (policy == "opara") {
    lanes = allocate_opara(dag, topological);
  } else {
    TRY(const Reachability reaches, Reachability::make(dag));
    lanes = allocate_nimble(dag, reaches);
  }
  if (policy != "waves") {
    number_lanes(order, lanes);
    bound_lanes(order, options.streams, lanes);
  }
  return place(policy, launch_order, all, dag, topological, kernels, order, lanes,
               policy == "waves" ? &waves : nullptr, options);
}

}  // namespace

std::string_view to_string(KernelClass kind) {
  return kind == KernelClass::kCompute ? "compute" : "memory";
}

bool asks_for_less(const Demand& a, const Demand& b) {
  return std::tie(a.shared_bytes, a.threads, a.registers, a.blocks) <
         std::tie(b.shared_bytes, b.threads, b.registers, b.blocks);
}

KernelClass class_of_op(std::string_view op) {
  for (const std::string_view compute :
       {"MatMul", "Gemm", "Conv", "ConvTranspose", "Attention", "Recurrence", "LSTM", "GRU", "RNN",
        "Einsum", "product", "conv", "attention", "block"})
    if (op == compute) return KernelClass::kCompute;
  return KernelClass::kMemory;
}

Classified classify(double flops, double bytes, double ridge, std::string_view op) {
  if (flops <= 0 || bytes <= 0 || ridge <= 0)
    return {class_of_op(op), fmt::format("by the table, {}", op)};
  const double intensity = flops / bytes;
  return {intensity > ridge ? KernelClass::kCompute : KernelClass::kMemory,
          fmt::format("{:.1f} operations a byte, the ridge is at {:.1f}", intensity, ridge)};
}

Status check_options(const DispatchOptions& options) {
  const auto known = [](const std::string& name, std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!known(options.policy, {"waves", "sequential", "nimble", "opara", "critical", "auto"}))
    return Error{Code::kUsage, "schedule", fmt::format("there is no dispatch '{}'", options.policy),
                 "", "waves, sequential, nimble, opara, critical, auto"};
  const std::string& order = options.launch_order;
  const bool random = order.starts_with("random:") && order.size() > 7 && order.size() < 26 &&
                      order.find_first_not_of("0123456789", 7) == std::string::npos;
  if (!order.empty() && !random && !known(order, {"topological", "opara", "critical"}))
    return Error{Code::kUsage, "schedule", fmt::format("there is no launch order '{}'", order), "",
                 "topological, opara, critical, random:SEED"};
  if (options.policy == "waves" && (!order.empty() || options.streams > 0))
    return Error{Code::kUsage, "schedule",
                 "the dispatch waves has neither lanes nor an order of its own", "",
                 "--dispatch opara, nimble or critical with --launch-order and --streams"};
  if (options.search_seconds > 0 && options.policy != "auto")
    return Error{Code::kUsage, "schedule",
                 fmt::format("the dispatch {} is not searched for", options.policy), "",
                 "--dispatch auto with --search-seconds"};
  return ok_status();
}

Result<Dispatch> dispatch_as(const std::string& policy, const Dag& dag,
                             const std::vector<Kernel>& kernels, const std::vector<int>& order,
                             Lanes lanes, const DispatchOptions& options) {
  TRY(const std::vector<int> topological, topological_order(dag));
  number_lanes(order, lanes);
  return place(policy, policy, dag, without_free(dag, kernels, topological), topological, kernels,
               order, lanes, nullptr, options);
}

void start_early(Dispatch& dispatch, const std::vector<Kernel>& kernels,
                 const machine::Machine& machine, double most) {
  constexpr double kThreads = 2048, kRegisters = 65536;  // of an SM
  const auto room = [&](const Demand& demand) {
    const double block =
        std::max({static_cast<double>(demand.shared_bytes) /
                      static_cast<double>(std::max<int64_t>(machine.scratchpad.count, 1)),
                  demand.threads / kThreads, demand.threads * demand.registers / kRegisters});
    return std::min(static_cast<double>(demand.blocks) * block / std::max(machine.sms, 1), 1.0);
  };
  std::vector<bool> early(kernels.size(), true);
  for (const Dispatched& each : dispatch.kernels)
    if (room(kernels[each.kernel].demand) > most)
      for (const int before : each.predecessors) early[before] = false;
  for (Dispatched& each : dispatch.kernels) each.early = early[each.kernel];
}

Result<Dispatch> dispatch(const Dag& dag, const std::vector<Kernel>& kernels,
                          const std::vector<int>& waves, const DispatchOptions& options,
                          const Dispatch* in_waves) {
  TRY_STATUS(check_options(options));
  CHECK(kernels.size() == static_cast<size_t>(dag.size()) && waves.size() == kernels.size());
  if (options.policy != "auto") return dispatch_one(options.policy, dag, kernels, waves, options);
  std::optional<Dispatch> best, kept;
  std::string others;
  for (const char* policy : kPolicies) {
    DispatchOptions with = options;
    const bool plainest = std::string_view(policy) == "waves";
    if (plainest) with.launch_order.clear(), with.streams = 0;
    TRY(Dispatch made, plainest && in_waves ? Result<Dispatch>(*in_waves)
                                            : dispatch_one(policy, dag, kernels, waves, with));
    others +=
        fmt::format("{}{} {:.1f}", others.empty() ? "" : ", ", policy, made.predicted_nanos / 1000);
    if (!best)
      best = made, kept = made;
    else if (made.predicted_nanos < kept->predicted_nanos * machine::thresholds::kWorthLeaving &&
             made.predicted_nanos < best->predicted_nanos)
      best = std::move(made);
  }
  best->reason = fmt::format("{}, by the prediction (us): {}", best->policy, others);
  return std::move(*best);
}

}  // namespace obelisk::schedule
