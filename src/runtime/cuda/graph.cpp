#include <algorithm>

#include "machine/machine.h"
#include "runtime/cuda/context.h"

namespace obelisk::runtime::cuda {

void CudaContext::place_shared(const Launch& launch, ObkProgram& record) {
  record.ring_pages = launch.ring_pages;
  record.scratch_at = launch.scratch_at, record.block_at = launch.block_at;
  record.block_bytes = launch.block_bytes, record.block = launch.block;
  record.smem_copies_at = launch.smem_copies_at, record.soon_at = launch.soon_at,
  record.soon_bytes = launch.soon_bytes;
}

std::vector<bool> CudaContext::early_works() const {
  std::vector<bool> early(program().works.size(), !shares_gpu(program()));
  for (const schedule::Dispatched& each : program().dispatch)
    if (!each.early) early[static_cast<size_t>(each.kernel)] = false;
  return early;
}

/// Whether a work reads or writes the caller's memory.
static bool names_ports(const WorkRecord& work) {
  return std::any_of(work.operands.begin(), work.operands.end(), [](const Place& place) {
    return place.kind == BufferKind::kInput || place.kind == BufferKind::kOutput;
  });
}

/// The parameter of a kernel whose CTAs find their rectangles by themselves.
ObkGrid CudaContext::grid(const Launch& launch, DevicePointer stamps) const {
  const Program& p = program();
  ObkGrid record = launch.rectangles;
  record.early = early_[static_cast<size_t>(launch.work)];
  record.watch = record_.watch;
  if (stamps) record.stamps = stamps + static_cast<uint64_t>(launch.first_task) * sizeof(ObkStamp);
  DevicePointer* at = record.operands;
  for (const Place& place : p.works[launch.work].operands) {
    const auto index = static_cast<size_t>(place.index);
    switch (place.kind) {
      case BufferKind::kInput:
        *at++ = ports_[index];
        break;
      case BufferKind::kOutput:
        *at++ = ports_[p.inputs.size() + index];
        break;
      case BufferKind::kWeight:
        *at++ = executable_->weights_[index];
        break;
      case BufferKind::kArena:
        *at++ = arena_.at() + static_cast<uint64_t>(place.index);
        break;
    }
  }
  return record;
}

/// The same of a product's own kernel.
Result<ObkPipelinedGemm> CudaContext::pipelined_gemm(const Launch& launch,
                                                     DevicePointer stamps) const {
  ObkPipelinedGemm record = {};
  record.grid = grid(launch, stamps), record.weights = record.grid.operands[launch.weights];
  if (launch.next >= 0) {
    const auto next = static_cast<size_t>(launch.next);
    const Tensor& weight = program().weights[next];
    const int64_t bytes = weight.empty() ? 0 : weight.bytes() + kBehindWeight;
    record.next = executable_->weights_[next];
    record.next_bytes = std::min(bytes / 16 * 16, machine::thresholds::kMostPrefetched);
    record.next_share = (record.next_bytes / launch.ctas + 127) / 128 * 128;
  }
  const RowsMap& rows = launch.rows;
  const DevicePointer a = record.grid.operands[rows.operand], b = record.weights;
  if (a != 0)  // else a port that no run has named yet
    TRY_STATUS(encode_rows(a, rows.rows, rows.pitch, rows.blocks, rows.together, rows.size,
                           rows.tf32, record.map));
  const BoxesMap& boxes = launch.boxes;
  if (boxes.together > 0 && b != 0)
    TRY_STATUS(encode_boxes(b, boxes.rows, boxes.columns, boxes.pitch, boxes.together, boxes.size,
                            boxes.tf32, record.b_map));
  return record;
}

/// The record of one launch, a kernel's parameter: an ObkProgram, ObkGrid or ObkPipelinedGemm.
Result<std::vector<std::byte>> CudaContext::record_of(const Launch& launch,
                                                      DevicePointer stamps) const {
  const auto bytes_of = [](const auto& record) {
    const auto* from = reinterpret_cast<const std::byte*>(&record);
    return std::vector<std::byte>(from, from + sizeof record);
  };
  if (launch.pipelined_gemm) {
    TRY(const ObkPipelinedGemm record, pipelined_gemm(launch, stamps));
    return bytes_of(record);
  }
  if (launch.grid) return bytes_of(grid(launch, stamps));
  ObkProgram record = record_;
  if (launch.work < 0) {
    record.stamps = stamps;
    return bytes_of(record);
  }
  record.early = early_[static_cast<size_t>(launch.work)];
  record.tasks += static_cast<uint64_t>(launch.first_task) * sizeof(ObkTask);
  record.first = 0;
  place_shared(launch, record);
  record.waves = launch.tasks;
  record.stamps = stamps ? stamps + static_cast<uint64_t>(launch.first_task) * sizeof(ObkStamp) : 0;
  return bytes_of(record);
}

KernelNode CudaContext::node_of(size_t k, void** parameters, unsigned instances) const {
  const Launch& launch = executable_->cut_.launches[k];
  // Where an SM has room for one CTA, that goes on with the next task: it need not begin again.
  const bool alone = launch.ring_pages > 0 && 2 * launch.shared > executable_->gpu_.shared_bytes;
  const int ctas = launch.pipelined_gemm ? launch.ctas
                   : alone ? std::min({launch.tasks, executable_->gpu_.sms, program().sms})
                           : launch.tasks;
  return {.function = executable_->functions_[k],
          .grid = {static_cast<unsigned>(ctas), instances, 1},
          .block = {kThreads, 1, 1},
          .shared_bytes = static_cast<unsigned>(launch.shared),
          .parameters = parameters};
}

/// A kernel a work; every kernel of a wave follows all of the wave before. Independent works are
/// parallel branches. `of_ports`, if there is one, gets the nodes that name ports in their
/// parameters.
Result<Handle> CudaContext::graph_of_kernels(DevicePointer stamps, unsigned instances,
                                             bool programmatic, GridNodes* of_ports) {
  const std::vector<Launch>& launches = executable_->cut_.launches;
  TRY(const std::vector<size_t> order, dispatch_order());
  Handle graph = nullptr;
  TRY_STATUS(check(driver_.GraphCreate(&graph, 0), "make a graph"));
  std::vector<Handle> before, now;
  std::vector<Handle> of_work(program().works.size(), nullptr);
  const auto add = [&]() -> Status {
    for (size_t place = 0; place < launches.size(); ++place) {
      const size_t k = order.empty() ? place : order[place];
      const Launch& launch = launches[k];
      if (order.empty()) {
        if (k > 0 && launches[k - 1].wave != launch.wave) before = std::move(now), now.clear();
      } else {
        before.clear();
        for (const int work : program().dispatch[place].predecessors)
          before.push_back(of_work[static_cast<size_t>(work)]);
      }
      ObkInstances named = instances_of(k, instances);
      std::vector<std::byte> record;
      if (!of_instances()) {
        TRY(record, record_of(launch, stamps));
      }
      void* parameters[] = {of_instances() ? static_cast<void*>(&named) : record.data()};
      const KernelNode node = node_of(k, parameters, instances);
      Handle made = nullptr;
      TRY_STATUS(check(driver_.GraphAddKernel(&made, graph, nullptr, 0, &node),
                       "add a kernel to the graph"));
      for (Handle previous : before) {
        const int code = programmatic ? driver_.GraphAddTypedEdges(graph, &previous, &made,
                                                                   &kProgrammaticEdge, 1)
                                      : driver_.GraphAddEdges(graph, &previous, &made, 1);
        TRY_STATUS(check(code, "add an edge to the graph"));
      }
      now.push_back(made);
      if (launch.work >= 0) of_work[static_cast<size_t>(launch.work)] = made;
      if (const int priority = order.empty() ? 0 : program().dispatch[place].priority;
          priority != 0 && driver_.GraphNodeAttribute) {
        const NodeAttribute value{priority};
        TRY_STATUS(check(driver_.GraphNodeAttribute(made, kNodePriority, &value),
                         "give a kernel its priority"));
      }
      if ((launch.grid || launch.pipelined_gemm) && names_ports(program().works[launch.work]) &&
          of_ports && !of_instances())
        of_ports->push_back({made, k});
    }
    return ok_status();
  };
  const Status added = add();
  if (added.ok()) return graph;
  driver_.GraphDestroy(graph);
  return added.error();
}

/// By place in the dispatch, if there is one: which launch.
Result<std::vector<size_t>> CudaContext::dispatch_order() const {
  const std::vector<Launch>& launches = executable_->cut_.launches;
  std::vector<size_t> order;
  for (const schedule::Dispatched& each : program().dispatch)
    for (size_t k = 0; k < launches.size(); ++k)
      if (launches[k].work == each.kernel) order.push_back(k);
  if (!order.empty() && order.size() != launches.size())
    return Error{
        Code::kBuild, "runtime",
        fmt::format("the dispatch has {} kernels, the program {}", order.size(), launches.size()),
        "", "this is a defect of Obelisk; please report it with the model"};
  return order;
}

Result<Handle> CudaContext::make_graph(DevicePointer stamps, unsigned instances) {
  // With it the priority of the stream that the graph runs on counts for nothing.
  const bool ranked =
      std::any_of(program().dispatch.begin(), program().dispatch.end(),
                  [](const schedule::Dispatched& each) { return each.priority != 0; });
  const unsigned long long flags =
      ranked && !executable_->options_.by_urgency ? kGraphNodePriorities : 0;
  const bool runs = !stamps && instances == 1;  // the one that a run launches
  const auto build = [&](bool programmatic) -> Result<Handle> {
    if (runs) grid_nodes_.clear();
    TRY(const Handle graph,
        graph_of_kernels(stamps, instances, programmatic, runs ? &grid_nodes_ : nullptr));
    Handle ready = nullptr;
    const Status made =
        check(driver_.GraphInstantiate(&ready, graph, flags), "make the graph ready");
    if (made.ok() && runs && !grid_nodes_.empty())
      plain_ = graph;  // its nodes name the kernels that learn where ports are
    else
      driver_.GraphDestroy(graph);
    if (!made.ok()) return made.error();
    return ready;
  };
  if (executable_->device()->overlaps && driver_.GraphAddTypedEdges) {
    auto overlapping = build(true);
    if (overlapping.ok()) return overlapping;
    LOG(kWarning, "runtime", "kernels of the graph do not overlap: {}",
        overlapping.error().message);
  }
  return build(false);
}

}  // namespace obelisk::runtime::cuda
