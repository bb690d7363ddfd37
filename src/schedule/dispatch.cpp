#include "schedule/dispatch.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <random>
#include <set>

namespace obelisk::schedule {
namespace {

Error refused(std::string text) {
  return Error{Code::kBuild, "schedule", "the dispatch is refused: " + std::move(text), "",
               "this is a defect of Obelisk; please report it with the model"};
}

std::vector<int> indegrees(const Dag& dag) {
  std::vector<int> waits(dag.size());
  for (int v = 0; v < dag.size(); ++v) waits[v] = static_cast<int>(dag.before[v].size());
  return waits;
}

std::vector<int> sorted_topologically(const Dag& dag) {
  auto order = topological_order(dag);
  CHECK(order.ok(), "a cycle came through: {}", order.error().text());
  return *order;
}

/// A maximum matching of a bipartite graph by augmenting paths: for each right side its left one,
/// or -1.
std::vector<int> maximum_matching(const std::vector<std::vector<int>>& edges) {
  const int count = static_cast<int>(edges.size());
  std::vector<int> match(count, -1), seen(count, -1), next(count), came(count);
  for (int root = 0; root < count; ++root) {
    // Depth first without recursion: `came` is the right side through which a left one was reached.
    std::vector<int> path{root};
    next[root] = 0;
    while (!path.empty()) {
      const int left = path.back();
      if (next[left] == static_cast<int>(edges[left].size())) {
        path.pop_back();
        continue;
      }
      const int right = edges[left][next[left]++];
      if (seen[right] == root) continue;
      seen[right] = root, came[left] = right;
      if (match[right] >= 0) {
        next[match[right]] = 0;
        path.push_back(match[right]);
        continue;
      }
      for (const int each : path) match[came[each]] = each;
      break;
    }
  }
  return match;
}

/// Chains that a matching makes: of each element its chain, and of each chain its first and last
/// element.
struct Chains {
  std::vector<int> chain;
  std::vector<std::pair<int, int>> ends;
};
Chains chains_of(const std::vector<int>& match) {
  const int count = static_cast<int>(match.size());
  std::vector<bool> passes_on(count, false);
  for (const int left : match)
    if (left >= 0) passes_on[left] = true;
  Chains chains{std::vector<int>(count, -1), {}};
  for (int last = 0; last < count; ++last) {
    if (passes_on[last]) continue;
    int at = last;
    for (;; at = match[at]) {
      chains.chain[at] = static_cast<int>(chains.ends.size());
      if (match[at] < 0) break;
    }
    chains.ends.push_back({at, last});
  }
  return chains;
}

/// Lanes in the order of their first kernel; a kernel that `order` lacks may have none, -1.
void number_lanes(const std::vector<int>& order, Lanes& lanes) {
  std::vector<int> number(lanes.count, -1);
  int next = 0;
  for (const int kernel : order)
    if (int& mine = number[lanes.lane[kernel]]; mine < 0) mine = next++;
  for (int& lane : lanes.lane) lane = number[lane];
  lanes.count = next;
}

/// At most `most` lanes: chains, by when they begin, go behind a lane that has ended by then, else
/// beside the fewest kernels.
void bound_lanes(const std::vector<int>& order, int most, Lanes& lanes) {
  if (most <= 0 || lanes.count <= most) return;
  std::vector<int> last(lanes.count, -1), many(lanes.count, 0), first(lanes.count, -1),
      to(lanes.count, -1);
  for (size_t k = 0; k < order.size(); ++k) {
    const int lane = lanes.lane[order[k]];
    if (first[lane] < 0) first[lane] = static_cast<int>(k);
    last[lane] = static_cast<int>(k), ++many[lane];
  }
  std::vector<int> end(most, -1), count(most, 0), by_begin(lanes.count);
  std::iota(by_begin.begin(), by_begin.end(), 0);
  std::sort(by_begin.begin(), by_begin.end(), [&](int a, int b) { return first[a] < first[b]; });
  for (const int chain : by_begin) {
    int best = 0;
    for (int lane = 1; lane < most; ++lane) {
      const auto worth = [&](int of) {
        return std::tuple(end[of] >= first[chain], count[of], end[of]);
      };
      if (worth(lane) < worth(best)) best = lane;
    }
    to[chain] = best, end[best] = std::max(end[best], last[chain]), count[best] += many[chain];
  }
  for (int& lane : lanes.lane)
    if (lane >= 0) lane = to[lane];
  lanes.count = most;
}

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

std::string demand_text(const Demand& demand) {
  return fmt::format("{} blocks of {} threads, {} registers, {} bytes shared, {:.1f} us",
                     demand.blocks, demand.threads, demand.registers, demand.shared_bytes,
                     demand.nanos / 1000);
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + "\"";
}

/// The order that a policy or --launch-order asks for, without kernels that launch nothing.
Result<std::vector<int>> order_of(const std::string& name, const Dag& dag,
                                  const std::vector<Kernel>& kernels, const std::vector<int>& waves,
                                  const DispatchOptions& options) {
  std::vector<int> order;
  if (name == "opara") {
    order = order_opara(dag, kernels);
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

Result<Dispatch> dispatch_one(const std::string& policy, const Dag& all,
                              const std::vector<Kernel>& kernels, const std::vector<int>& waves,
                              const DispatchOptions& options) {
  TRY(const std::vector<int> topological, topological_order(all));
  const Dag dag = without_free(all, kernels, topological);
  TRY(const Reachability reaches, Reachability::make(dag));
  Dispatch made;
  made.policy = policy;
  made.launch_order = !options.launch_order.empty() ? options.launch_order
                      : policy == "opara" || policy == "critical" || policy == "waves"
                          ? policy
                          : "topological";
  TRY(const std::vector<int> order, order_of(made.launch_order, all, kernels, waves, options));

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
  } else {
    lanes = policy == "opara" ? allocate_opara(dag, topological) : allocate_nimble(dag, reaches);
  }
  if (policy != "waves") {
    number_lanes(order, lanes);
    bound_lanes(order, options.streams, lanes);
  }
  made.lanes = lanes.count;

  // The graph's edges: the order's, and from kernel to kernel of a lane, as few as say all of it.
  Dag edges(dag.size());
  std::vector<double> nanos(dag.size(), 0);
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches) nanos[v] = kernels[v].demand.nanos + options.node_nanos;
  if (policy == "waves") {
    std::vector<std::vector<int>> by_wave;
    for (const int kernel : order) {
      by_wave.resize(std::max<size_t>(by_wave.size(), static_cast<size_t>(waves[kernel]) + 1));
      by_wave[waves[kernel]].push_back(kernel);
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
    const bool ranked = policy != "waves" && policy != "sequential";
    if (ranked) placed.priority = std::min(rank - (options.priorities - 1), 0);
    const Kernel& of = kernels[kernel];
    placed.reason = fmt::format("{}-bound ({})", to_string(of.kind), of.why_kind);
    if (made.launch_order == "critical")
      placed.reason += fmt::format("; {:.1f} of {:.1f} us of the longest path are left",
                                   paths.from[kernel] / 1000, paths.critical / 1000);
    if (made.launch_order == "opara")
      placed.reason += "; of its class the least demand of those ready";
    if (policy == "waves")
      placed.reason += fmt::format("; wave {}", waves[kernel]);
    else if (ranked)
      placed.reason += fmt::format("; number {} of depth {}", rank, depth[kernel]);
    made.kernels.push_back(std::move(placed));
  }
  TRY_STATUS(validate_dispatch(all, kernels, made));
  made.predicted_nanos = predict(made.kernels, kernels, options);
  return made;
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

Lanes allocate_opara(const Dag& dag, const std::vector<int>& topological, Steps* steps) {
  Lanes lanes{std::vector<int>(dag.size(), -1), 0};
  std::vector<bool> flag(dag.size(), false);  // whether a kernel has passed its lane on
  Steps counted;
  for (const int v : topological) {
    ++counted.count;
    for (const int p : dag.before[v]) {
      ++counted.count;
      if (flag[p]) continue;
      lanes.lane[v] = lanes.lane[p];
      flag[p] = true;
      break;
    }
    if (lanes.lane[v] < 0) lanes.lane[v] = lanes.count++;
  }
  if (steps) steps->count += counted.count;
  return lanes;
}

Lanes allocate_nimble(const Dag& dag, const Reachability& reaches) {
  const Chains chains = chains_of(maximum_matching(transitive_reduction(dag, reaches).after));
  // A chain may go on with one that begins where a path from its end leads.
  std::vector<std::vector<int>> follows(chains.ends.size());
  for (size_t a = 0; a < chains.ends.size(); ++a)
    for (size_t b = 0; b < chains.ends.size(); ++b)
      if (reaches(chains.ends[a].second, chains.ends[b].first))
        follows[a].push_back(static_cast<int>(b));
  const Chains joined = chains_of(maximum_matching(follows));
  Lanes lanes{std::vector<int>(dag.size()), static_cast<int>(joined.ends.size())};
  for (int v = 0; v < dag.size(); ++v) lanes.lane[v] = joined.chain[chains.chain[v]];
  return lanes;
}

Lanes allocate_sequential(const Dag& dag) {
  return {std::vector<int>(dag.size(), 0), dag.size() > 0 ? 1 : 0};
}

std::vector<int> order_opara(const Dag& dag, const std::vector<Kernel>& kernels, Steps* steps) {
  struct Ready {
    const Demand* demand;
    int since, kernel;
    bool operator<(const Ready& other) const {  // the least is on top
      if (asks_for_less(*other.demand, *demand)) return true;
      return !asks_for_less(*demand, *other.demand) && since > other.since;
    }
  };
  std::priority_queue<Ready> lists[2];  // L_mem, L_comp
  std::vector<int> waits = indegrees(dag), order, free;
  Steps counted;
  int since = 0;
  const auto release = [&](int kernel) {
    if (!kernels[kernel].launches)
      free.push_back(kernel);
    else
      lists[kernels[kernel].kind == KernelClass::kMemory ? 0 : 1].push(
          {&kernels[kernel].demand, since++, kernel});
  };
  const auto launch = [&](int kernel) {
    order.push_back(kernel);
    ++counted.count;
    for (const int next : dag.after[kernel]) {
      ++counted.count;
      if (--waits[next] == 0) release(next);
    }
  };
  const auto launch_free = [&] {
    for (size_t k = 0; k < free.size(); ++k) launch(free[k]);
    free.clear();
  };
  for (int v = 0; v < dag.size(); ++v)
    if (dag.before[v].empty()) release(v);
  launch_free();
  for (int turn = 0; !lists[0].empty() || !lists[1].empty();) {
    const int list = lists[turn].empty() ? 1 - turn : turn;
    const int kernel = lists[list].top().kernel;
    lists[list].pop();
    turn = 1 - list;
    launch(kernel);
    launch_free();
  }
  if (steps) steps->count += counted.count;
  return order;
}

std::vector<int> order_critical(const Dag& dag, const std::vector<Kernel>& kernels, int sms) {
  constexpr double kNear = 0.9;  // of the longest remaining path: as urgent
  constexpr size_t kMost = 16;   // of the most urgent that are compared
  std::vector<double> nanos(dag.size(), 0);
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches) nanos[v] = kernels[v].demand.nanos;
  const LongestPaths paths = longest_paths(dag, sorted_topologically(dag), nanos);
  const auto later = [&](int a, int b) {
    return std::pair(paths.from[a], -a) < std::pair(paths.from[b], -b);
  };
  std::priority_queue<int, std::vector<int>, decltype(later)> ready(later);
  // The machine as it would be: whose predecessors have not ended is no candidate while another is.
  using Event = std::pair<double, int>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> running;
  std::vector<int> waits = indegrees(dag), order;
  double now = 0;
  int64_t taken = 0;
  const auto width = [&](int kernel) {
    return std::min<int64_t>(std::max<int64_t>(kernels[kernel].demand.blocks, 1), sms);
  };
  std::optional<KernelClass> before;
  std::vector<int> free;
  const auto release = [&](int kernel) {
    (kernels[kernel].launches ? void(ready.push(kernel)) : free.push_back(kernel));
  };
  const auto end = [&](int kernel) {
    for (const int next : dag.after[kernel])
      if (--waits[next] == 0) release(next);
  };
  const auto pass_free = [&] {
    for (size_t k = 0; k < free.size(); ++k) order.push_back(free[k]), end(free[k]);
    free.clear();
  };
  for (int v = 0; v < dag.size(); ++v)
    if (waits[v] == 0 && dag.before[v].empty()) release(v);
  pass_free();
  while (!ready.empty() || !running.empty()) {
    // Time goes on when nothing is ready, or no SM is free.
    if (ready.empty() || (taken >= sms && !running.empty())) {
      const auto [at, kernel] = running.top();
      running.pop();
      now = at, taken -= width(kernel);
      end(kernel);
      pass_free();
      continue;
    }
    std::vector<int> urgent;
    const double longest = paths.from[ready.top()];
    while (!ready.empty() && urgent.size() < kMost && paths.from[ready.top()] >= kNear * longest)
      urgent.push_back(ready.top()), ready.pop();
    const auto worth = [&](int kernel) {
      return std::tuple(taken + width(kernel) > sms, before && kernels[kernel].kind == *before);
    };
    size_t best = 0;
    for (size_t k = 1; k < urgent.size(); ++k)
      if (worth(urgent[k]) < worth(urgent[best])) best = k;
    const int kernel = urgent[best];
    for (const int other : urgent)
      if (other != kernel) ready.push(other);
    order.push_back(kernel);
    before = kernels[kernel].kind;
    taken += width(kernel);
    running.push({now + nanos[kernel], kernel});
  }
  return order;
}

std::vector<int> order_random(const Dag& dag, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> waits = indegrees(dag), ready, order;
  for (int v = 0; v < dag.size(); ++v)
    if (waits[v] == 0) ready.push_back(v);
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const int kernel = ready.back();
    ready.pop_back();
    order.push_back(kernel);
    for (const int next : dag.after[kernel])
      if (--waits[next] == 0) ready.push_back(next);
  }
  return order;
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
  return ok_status();
}

Result<Dispatch> dispatch(const Dag& dag, const std::vector<Kernel>& kernels,
                          const std::vector<int>& waves, const DispatchOptions& options) {
  TRY_STATUS(check_options(options));
  CHECK(kernels.size() == static_cast<size_t>(dag.size()) && waves.size() == kernels.size());
  if (options.policy != "auto") return dispatch_one(options.policy, dag, kernels, waves, options);
  std::optional<Dispatch> best, kept;
  std::string others;
  for (const char* policy : kPolicies) {
    DispatchOptions with = options;
    if (std::string_view(policy) == "waves") with.launch_order.clear(), with.streams = 0;
    TRY(Dispatch made, dispatch_one(policy, dag, kernels, waves, with));
    others +=
        fmt::format("{}{} {:.1f}", others.empty() ? "" : ", ", policy, made.predicted_nanos / 1000);
    if (!best)
      best = made, kept = made;
    else if (made.predicted_nanos < kept->predicted_nanos * kWorthLeaving &&
             made.predicted_nanos < best->predicted_nanos)
      best = std::move(made);
  }
  best->reason = fmt::format("{}, by the prediction (us): {}", best->policy, others);
  return std::move(*best);
}

Status validate_dispatch(const Dag& dag, const std::vector<Kernel>& kernels,
                         const Dispatch& dispatch) {
  Dag edges(dag.size());
  std::vector<int> place(dag.size(), -1);
  for (size_t k = 0; k < dispatch.kernels.size(); ++k) {
    const Dispatched& each = dispatch.kernels[k];
    if (each.kernel < 0 || each.kernel >= dag.size())
      return refused(fmt::format("it has kernel {} of {}", each.kernel, dag.size()));
    if (each.position != static_cast<int>(k))
      return refused(
          fmt::format("kernel {} has position {} instead of {}", each.kernel, each.position, k));
    if (place[each.kernel] >= 0) return refused(fmt::format("it has kernel {} twice", each.kernel));
    if (!kernels[each.kernel].launches)
      return refused(fmt::format("kernel {} launches nothing", each.kernel));
    if (each.lane < 0 || each.lane >= dispatch.lanes)
      return refused(
          fmt::format("kernel {} has lane {} of {}", each.kernel, each.lane, dispatch.lanes));
    for (const int before : each.predecessors) {
      if (before < 0 || before >= dag.size() || place[before] < 0)
        return refused(fmt::format("kernel {} follows kernel {}, which is not launched before it",
                                   each.kernel, before));
      edges.add(before, each.kernel);
    }
    place[each.kernel] = static_cast<int>(k);
  }
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches && place[v] < 0) return refused(fmt::format("it lacks kernel {}", v));
  // A kernel that launches nothing stands for its predecessors.
  for (int v = 0; v < dag.size(); ++v)
    if (!kernels[v].launches)
      for (const int before : dag.before[v]) edges.add(before, v);
  for (int v = 0; v < dag.size(); ++v)
    if (kernels[v].launches)
      for (const int before : dag.before[v])
        if (!kernels[before].launches) edges.add(before, v);
  TRY(const Reachability reaches, Reachability::make(edges));
  for (int v = 0; v < dag.size(); ++v)
    for (const int before : dag.before[v])
      if (!reaches(before, v))
        return refused(
            fmt::format("no edges lead from kernel {} to kernel {}, which follows it", before, v));
  std::vector<int> last(dispatch.lanes, -1);
  for (const Dispatched& each : dispatch.kernels) {
    if (last[each.lane] >= 0 && !reaches(last[each.lane], each.kernel))
      return refused(fmt::format("kernel {} does not follow kernel {}, before it in lane {}",
                                 each.kernel, last[each.lane], each.lane));
    last[each.lane] = each.kernel;
  }
  return ok_status();
}

double predict(const std::vector<Dispatched>& by_position, const std::vector<Kernel>& kernels,
               const DispatchOptions& options) {
  struct Active {
    int position;
    double width, left;  // SMs that it fills; of its work, in nanoseconds of that many
  };
  std::vector<int> position_of(kernels.size(), -1), waits(by_position.size());
  std::vector<std::vector<int>> next(by_position.size());
  size_t edges = 0;
  for (size_t k = 0; k < by_position.size(); ++k)
    position_of[by_position[k].kernel] = static_cast<int>(k);
  for (size_t k = 0; k < by_position.size(); ++k) {
    waits[k] = static_cast<int>(by_position[k].predecessors.size());
    edges += by_position[k].predecessors.size();
    for (const int before : by_position[k].predecessors)
      next[position_of[before]].push_back(static_cast<int>(k));
  }
  std::vector<Active> active;                    // by position
  std::vector<std::pair<double, int>> starting;  // when, and which: by time
  double now = 0;
  const auto begin = [&](int position) {
    const Demand& demand = kernels[by_position[position].kernel].demand;
    const double width =
        static_cast<double>(std::min<int64_t>(std::max<int64_t>(demand.blocks, 1), options.sms));
    const auto at = std::find_if(active.begin(), active.end(),
                                 [&](const Active& each) { return each.position > position; });
    active.insert(at, {position, width, std::max(demand.nanos, 1.0)});
  };
  const auto release = [&](int position) {  // later ones start later: the vector stays in order
    starting.emplace_back(now + options.node_nanos, position);
  };
  for (size_t k = 0; k < waits.size(); ++k)
    if (waits[k] == 0) release(static_cast<int>(k));
  for (size_t started = 0; started < starting.size() || !active.empty();) {
    for (; started < starting.size() && starting[started].first <= now; ++started)
      begin(starting[started].second);
    double free = options.sms, soonest = -1;
    if (started < starting.size()) soonest = starting[started].first - now;
    std::vector<double> rate;
    for (const Active& each : active) {
      const double got = std::min(free, each.width);
      free -= got;
      rate.push_back(got / each.width);
      if (got > 0 && (soonest < 0 || each.left / rate.back() < soonest))
        soonest = each.left / rate.back();
    }
    now += soonest;
    std::vector<Active> left;
    std::vector<int> ended;
    for (size_t k = 0; k < active.size(); ++k) {
      active[k].left -= soonest * rate[k];
      if (active[k].left < 1e-6)
        ended.push_back(active[k].position);
      else
        left.push_back(active[k]);
    }
    active = std::move(left);
    for (const int position : ended)
      for (const int each : next[position])
        if (--waits[each] == 0) release(each);
  }
  return now + options.edge_nanos * static_cast<double>(edges);
}

std::string print(const Dispatch& dispatch, const std::vector<Kernel>& kernels) {
  std::string out = fmt::format(
      "{} kernels in {} lanes, dispatch {}, launch order {}: about {:.1f} us, the longest path "
      "{:.1f}\n",
      dispatch.kernels.size(), dispatch.lanes, dispatch.policy, dispatch.launch_order,
      dispatch.predicted_nanos / 1000, dispatch.critical_nanos / 1000);
  if (!dispatch.reason.empty()) out += "chosen: " + dispatch.reason + "\n";
  for (const Dispatched& each : dispatch.kernels)
    out += fmt::format(
        "{} kernel {} {}: lane {}, priority {}, {}; after {}; {}\n", each.position, each.kernel,
        kernels[each.kernel].name, each.lane, each.priority,
        demand_text(kernels[each.kernel].demand),
        each.predecessors.empty() ? "nobody" : fmt::format("{}", fmt::join(each.predecessors, " ")),
        each.reason);
  return out;
}

std::string print_json(const Dispatch& dispatch, const std::vector<Kernel>& kernels) {
  std::string out = "[";
  for (const Dispatched& each : dispatch.kernels) {
    const Kernel& of = kernels[each.kernel];
    out += fmt::format(
        "{}\n{{\"kernel\": {}, \"name\": {}, \"position\": {}, \"lane\": {}, \"priority\": {}, "
        "\"class\": \"{}\", "
        "\"demand\": {{\"blocks\": {}, \"threads\": {}, \"registers\": {}, \"shared_bytes\": {}, "
        "\"nanos\": {:.0f}}}, "
        "\"predecessors\": [{}], \"reason\": {}}}",
        each.position == 0 ? "" : ",", each.kernel, json_text(of.name), each.position, each.lane,
        each.priority, to_string(of.kind), of.demand.blocks, of.demand.threads, of.demand.registers,
        of.demand.shared_bytes, of.demand.nanos, fmt::join(each.predecessors, ", "),
        json_text(each.reason));
  }
  return out + "\n]\n";
}

}  // namespace obelisk::schedule
