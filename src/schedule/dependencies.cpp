#include "schedule/dependencies.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "schedule/assign_tasks.h"
#include "schedule/schedule.h"
#include "schedule/storage_box.h"

namespace obelisk::schedule {
namespace {

Error refused(std::string text) {
  return Error{Code::kBuild, "schedule", "the dependencies are refused: " + std::move(text), "",
               "this is a defect of Obelisk; please report it with the model"};
}

/// What a work reads or stores of a storage; or of a buffer that has no value, partial statistics.
struct Touch {
  int work = 0, buffer = -1;
  ValueId value = graph::kNone;  // kNone: all of the buffer
  StorageBox box;
};
struct Touches {
  std::vector<Touch> reads, stores;
};

Result<Touches> touches_of(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks) {
  Touches out;
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Work& work = tasks.works[w];
    const stitch::Group& group = plan.groups[work.group];
    const int number = static_cast<int>(w);
    const WorkAccesses accesses = accesses_of(graph, plan, work);
    for (const WorkAccess& access : accesses.reads) {
      TRY(StorageBox box, storage_box(graph, plan, access.value));
      out.reads.push_back({number, work.buffers[access.slot], access.value, std::move(box)});
    }
    for (const WorkAccess& access : accesses.stores) {
      TRY(StorageBox box, storage_box(graph, plan, access.value));
      out.stores.push_back({number, work.buffers[access.slot], access.value, std::move(box)});
    }
    if (group.kind != stitch::GroupKind::kProduct) continue;
    if (group.product.statistics.of_partials)
      out.reads.push_back({number, work.buffers[work.read_partials(group)], graph::kNone, {}});
    if (group.partials != graph::kNone)
      out.stores.push_back({number, work.buffers[work.left_partials(group)], graph::kNone, {}});
  }
  return out;
}

/// Whether a store gives a read some of its elements.
bool gives(const Touch& store, const Touch& read) {
  if (store.value == graph::kNone || read.value == graph::kNone)
    return store.value == read.value && store.buffer == read.buffer;
  return shared_volume(store.box, read.box) > 0;
}

using ByPlace = std::map<std::pair<ValueId, int>, std::vector<const Touch*>>;
std::pair<ValueId, int> place_of(const Touch& touch) {
  return touch.value == graph::kNone ? std::pair(graph::kNone, touch.buffer)
                                     : std::pair(touch.box.storage, -1);
}

bool share_bytes(const Buffer& a, const Buffer& b) {
  return a.offset < b.offset + b.room() && b.offset < a.offset + a.room();
}

/// Whether every work of `first` leads to every one of `then`.
bool all_precede(const Reachability& reaches, const std::vector<int>& first,
                 const std::vector<int>& then, std::pair<int, int>& missing) {
  for (const int from : first)
    for (const int to : then)
      if (!reaches(from, to)) {
        missing = {from, to};
        return false;
      }
  return true;
}

std::string named(const Buffer& buffer) {
  return buffer.value == graph::kNone ? "a buffer of gangs or statistics"
                                      : fmt::format("value %{}", buffer.value);
}

/// By input: the work that writes an output where it lies.
std::map<ValueId, int> overwriters(const stitch::Plan& plan, const TaskGraph& tasks) {
  std::map<ValueId, int> out;
  for (size_t w = 0; w < tasks.works.size(); ++w)
    if (const ValueId old = plan.groups[tasks.works[w].group].in_place_of; old != graph::kNone)
      out[old] = static_cast<int>(w);
  return out;
}

using Edges = std::map<std::pair<int, int>, Dependency>;  // by to, from
Result<Dependencies> from_edges(int works, const Edges& edges) {
  Dependencies made{Dag(works), {}};
  for (const auto& [key, edge] : edges) {
    made.dag.add(edge.from, edge.to);
    made.edges.push_back(edge);
  }
  TRY_STATUS([&]() -> Status {
    TRY(const auto order, topological_order(made.dag));
    (void)order;
    return ok_status();
  }());
  return made;
}

Result<Edges> value_edges(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks) {
  TRY(const Touches touches, touches_of(graph, plan, tasks));
  ByPlace stores;
  for (const Touch& store : touches.stores) stores[place_of(store)].push_back(&store);
  Edges edges;
  for (const Touch& read : touches.reads)
    for (const Touch* store : stores[place_of(read)])
      if (store->work != read.work && gives(*store, read))
        edges.try_emplace({read.work, store->work},
                          Dependency{store->work, read.work, Dependency::Why::kValue, read.buffer});
  const std::map<ValueId, int> writers = overwriters(plan, tasks);
  for (const Touch& read : touches.reads)
    if (const auto writer = writers.find(read.box.storage); writer != writers.end())
      edges.try_emplace({writer->second, read.work},
                        Dependency{read.work, writer->second, Dependency::Why::kReuse,
                                   tasks.works[writer->second].buffers.back()});
  return edges;
}

}  // namespace

std::string_view to_string(Dependency::Why why) {
  return why == Dependency::Why::kValue ? "value" : "reuse";
}

std::vector<BufferUse> arena_uses(const Graph& graph, const stitch::Plan& plan,
                                  const TaskGraph& tasks) {
  std::vector<BufferUse> uses;
  std::vector<int> use_of(tasks.buffers.size(), -1);
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    if (tasks.buffers[b].kind != BufferKind::kArena) continue;
    use_of[b] = static_cast<int>(uses.size());
    uses.push_back({static_cast<int>(b), {}, {}});
  }
  const auto add = [&](std::vector<int>& to, int work) {
    if (to.empty() || to.back() != work) to.push_back(work);
  };
  for (size_t w = 0; w < tasks.works.size(); ++w) {
    const Work& work = tasks.works[w];
    const stitch::Group& group = plan.groups[work.group];
    const int number = static_cast<int>(w);
    for (const int b : work.buffers)
      if (use_of[b] >= 0) add(uses[use_of[b]].users, number);
    for (const WorkAccess& access : accesses_of(graph, plan, work).stores)
      if (const int use = use_of[work.buffers[access.slot]]; use >= 0)
        add(uses[use].writers, number);
    if (group.kind == stitch::GroupKind::kProduct && group.partials != graph::kNone)
      if (const int use = use_of[work.buffers[work.left_partials(group)]]; use >= 0)
        add(uses[use].writers, number);
  }
  // What no work is known to write lasts from run to run: its users write it. Readers of a value
  // without elements follow nobody for it: they count as those that write it, too.
  for (BufferUse& use : uses) {
    const ValueId value = tasks.buffers[use.buffer].value;
    if (use.writers.empty())
      use.writers = use.users, use.lasts = true;
    else if (value != graph::kNone && graph.type(value).count() == 0)
      use.writers = use.users;
  }
  return uses;
}

Result<Dependencies> value_dependencies(const Graph& graph, const stitch::Plan& plan,
                                        const TaskGraph& tasks) {
  TRY(const Edges edges, value_edges(graph, plan, tasks));
  return from_edges(static_cast<int>(tasks.works.size()), edges);
}

Result<Dependencies> true_dependencies(const Graph& graph, const stitch::Plan& plan,
                                       const TaskGraph& tasks) {
  TRY(Edges edges, value_edges(graph, plan, tasks));
  const std::vector<BufferUse> uses = arena_uses(graph, plan, tasks);
  for (const BufferUse& first : uses)
    for (const BufferUse& then : uses) {
      const Buffer &earlier = tasks.buffers[first.buffer], &later = tasks.buffers[then.buffer];
      if (earlier.last >= later.first || !share_bytes(earlier, later)) continue;
      for (const int from : first.users)
        for (const int to : then.writers)
          edges.try_emplace({to, from}, Dependency{from, to, Dependency::Why::kReuse, then.buffer});
    }
  return from_edges(static_cast<int>(tasks.works.size()), edges);
}

Status validate_order(const Graph& graph, const stitch::Plan& plan, const TaskGraph& tasks,
                      const Dag& dag) {
  if (dag.size() != static_cast<int>(tasks.works.size()))
    return refused(fmt::format("they are of {} works, of {}", dag.size(), tasks.works.size()));
  TRY(const Reachability reaches, Reachability::make(dag));
  TRY(const Touches touches, touches_of(graph, plan, tasks));
  ByPlace stores;
  for (const Touch& store : touches.stores) stores[place_of(store)].push_back(&store);
  for (const Touch& read : touches.reads)
    for (const Touch* store : stores[place_of(read)]) {
      if (!gives(*store, read)) continue;
      if (store->work == read.work || !reaches(store->work, read.work))
        return refused(
            fmt::format("work {} reads {} but does not follow work {}, which stores it", read.work,
                        read.value == graph::kNone ? "partial statistics"
                                                   : fmt::format("value %{}", read.value),
                        store->work));
    }
  const std::map<ValueId, int> writers = overwriters(plan, tasks);
  for (const Touch& read : touches.reads) {
    const auto writer = writers.find(read.box.storage);
    if (writer == writers.end() || reaches(read.work, writer->second)) continue;
    return refused(
        fmt::format("work {} overwrites input %{} but does not follow work {}, which "
                    "reads it",
                    writer->second, writer->first, read.work));
  }
  const std::vector<BufferUse> uses = arena_uses(graph, plan, tasks);
  for (size_t a = 0; a < uses.size(); ++a)
    for (size_t b = a + 1; b < uses.size(); ++b) {
      const Buffer &mine = tasks.buffers[uses[a].buffer], &other = tasks.buffers[uses[b].buffer];
      std::pair<int, int> forth, back;
      if (!share_bytes(mine, other)) continue;
      if (uses[a].lasts || uses[b].lasts)
        return refused(fmt::format("{} and {} share bytes, but one lasts from run to run",
                                   named(mine), named(other)));
      if (all_precede(reaches, uses[a].users, uses[b].users, forth) ||
          all_precede(reaches, uses[b].users, uses[a].users, back))
        continue;
      // In the direction of the waves, where they have one.
      const auto missing = other.last < mine.first ? back : forth;
      return refused(fmt::format("{} and {} share bytes, but work {} does not follow work {}",
                                 named(mine), named(other), missing.second, missing.first));
    }
  return ok_status();
}

Status place_by_order(const Graph& graph, const stitch::Plan& plan, const machine::Machine& machine,
                      TaskGraph& tasks, bool adds_edges) {
  constexpr int64_t kAlign = 64;  // bytes, as elsewhere in the arena
  TRY(Dependencies values, value_dependencies(graph, plan, tasks));
  Dag& dag = values.dag;
  // What a group is said to follow goes first, even where no coordinate meets an element of it.
  for (int work = 0; work < dag.size(); ++work)
    for (const int before : plan.groups[tasks.works[work].group].after) dag.add(before, work);
  TRY_STATUS(topological_order(dag));
  std::vector<Need> needs = kernel_needs(plan, tasks, machine);
  for (Need& each : needs) each.nanos += machine.costs.graph_node;  // a step along a path costs one
  const std::vector<BufferUse> uses = arena_uses(graph, plan, tasks);
  std::vector<Used> all;
  std::vector<int> everybody(dag.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  for (const BufferUse& use : uses)
    all.push_back({.size = tasks.buffers[use.buffer].room().count,
                   .users = use.lasts ? everybody : use.users,
                   .writers = use.lasts ? everybody : use.writers});
  const MemoryOrder order =
      place_in_order(dag, needs, static_cast<int64_t>(tasks.lists.size()), all, kAlign, adds_edges);

  tasks.arena = {order.bytes}, tasks.arena_one_by_one = {order.sequential};
  tasks.waves = order.waves;
  for (size_t w = 0; w < tasks.works.size(); ++w) tasks.works[w].wave = order.wave[w];
  for (size_t k = 0; k < uses.size(); ++k) {
    Buffer& buffer = tasks.buffers[uses[k].buffer];
    buffer.offset = {all[k].offset};
    buffer.first = order.waves, buffer.last = -1;
    for (const int user : all[k].users) {
      buffer.first = std::min(buffer.first, order.wave[user]);
      buffer.last = std::max(buffer.last, order.wave[user]);
    }
  }
  assign_tasks(plan, {.workers = static_cast<int>(tasks.lists.size())}, tasks);
  return ok_status();
}

std::string print(const Dependencies& dependencies) {
  const auto reaches = Reachability::make(dependencies.dag);
  CHECK(reaches.ok());
  const Dag reduced = transitive_reduction(dependencies.dag, *reaches);
  std::string out = fmt::format("{} works, {} dependencies, {} of them not implied by others\n",
                                reduced.size(), dependencies.dag.edges(), reduced.edges());
  std::map<std::pair<int, int>, const Dependency*> of;
  for (const Dependency& edge : dependencies.edges) of[{edge.to, edge.from}] = &edge;
  for (int work = 0; work < reduced.size(); ++work) {
    out += fmt::format("work {} follows", work);
    for (const int before : reduced.before[work])
      out += fmt::format(" {} ({})", before, to_string(of[{work, before}]->why));
    out += reduced.before[work].empty() ? " nobody\n" : "\n";
  }
  return out;
}

}  // namespace obelisk::schedule
