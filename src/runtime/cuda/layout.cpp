#include "runtime/cuda/layout.h"

#include <algorithm>
#include <map>

#include "machine/costs_cuda.h"

namespace obelisk::runtime::cuda {

namespace {

using namespace machine::thresholds;

int64_t ring_bytes(int64_t pages, int64_t page_bytes = obk::kRingPageBytes) {
  return pages ? aligned(pages * (page_bytes + obk::kPageBarBytes)) : 0;
}

constexpr int32_t kOwnOfTables =
    1024;  // shared memory of their own that kernels with a table have beside

}  // namespace

Result<Shape> shape_of(const WorkRecord& work, bool mapped, int64_t room) {
  Shape shape{.tile = work.scratch - work.row_scratch, .row = work.row_scratch};
  shape.words =
      OBK_WORK_WORDS + static_cast<int64_t>(work.params.size() + work.operands.size()) + mapped;
  if (!work.gathers.empty())
    shape.words += shape.words % 2 + 2 * static_cast<int64_t>(work.gathers.size());
  const auto refuse = [&](const std::string& what) {
    return Error{Code::kUnsupported, "runtime", what, work.label, "compile with --target cpu"};
  };
  if (shape.words > 0xffff)
    return refuse(
        fmt::format("a body takes {} parameters, a GPU's table holds 65535", shape.words));
  if (shape.bytes() > room)
    return refuse(fmt::format("a task wants {} of shared memory, a multiprocessor has {}",
                              to_string(Bytes{shape.bytes()}), to_string(Bytes{room})));
  return shape;
}

std::vector<int64_t> small_weights(const Program& program, const WorkRecord& work) {
  std::vector<int64_t> lines(work.operands.size(), 0);
  int64_t left = kMostSoon;
  for (size_t k = 0; k < work.operands.size() && program.dataflow; ++k) {
    const Place& place = work.operands[k];
    if (place.kind != BufferKind::kWeight ||
        program.weights[static_cast<size_t>(place.index)].empty())
      continue;
    const bool packed =
        std::any_of(program.packings.begin(), program.packings.end(),
                    [&](const Packing& packing) { return packing.weight == place.index; });
    const int64_t all =
        (program.weights[static_cast<size_t>(place.index)].bytes() + kLine - 1) / kLine;
    if (packed || all * kLine > left) continue;
    lines[k] = all, left -= all * kLine;
  }
  return lines;
}

Launch lay_out(std::vector<Shape*> shapes, int64_t room, bool has_ring, int blocks,
               const Program* dataflow, int64_t soon) {
  Launch launch;
  const int64_t smem_copies = dataflow ? dataflow->smem_copies.count : 0,
                page_bytes = dataflow ? obk::kDataflowPageBytes : obk::kRingPageBytes;
  room -= aligned(smem_copies) + obk::kDataflowSoon * soon;
  int64_t least = 0, words = 0;
  bool streams = false;
  for (const Shape* shape : shapes) {
    least = std::max(least, shape->scratch());
    words = std::max(words, aligned(shape->words * 8));
    streams = streams || shape->streams;
  }
  launch.block_bytes = static_cast<int32_t>(words), launch.streams = streams;
  words *= blocks;
  if (has_ring && streams)
    launch.ring_pages = static_cast<int32_t>(
        std::clamp<int64_t>((room - least - words - kAlign) / (page_bytes + obk::kPageBarBytes), 0,
                            dataflow ? kMostDataflowRingPages : kMostRingPages));
  launch.scratch_at = static_cast<int32_t>(ring_bytes(launch.ring_pages, page_bytes));
  const int64_t left = room - words - launch.scratch_at;
  int64_t scratch = 0;
  for (Shape* shape : shapes) {
    shape->groups = kWarps;
    while (shape->groups > 1 && shape->scratch() > left) --shape->groups;
    scratch = std::max(scratch, shape->scratch());
  }
  launch.block_at = static_cast<int32_t>(launch.scratch_at + scratch);
  launch.smem_copies_at = static_cast<int32_t>(launch.block_at + words);
  launch.soon_at = static_cast<int32_t>(launch.smem_copies_at + aligned(smem_copies)),
  launch.soon_bytes = static_cast<int32_t>(soon);
  launch.shared = static_cast<int32_t>(launch.soon_at + obk::kDataflowSoon * soon);
  return launch;
}

void spread_out(std::vector<Launch>& launches, const Program& program, int64_t room) {
  std::map<int, int> kernels;
  for (const Launch& launch : launches) ++kernels[launch.wave];
  for (Launch& launch : launches) {
    const bool long_tasks =
        program.works[launch.work].task_nanos >= machine::cuda_costs::kShortTaskNanos;
    if (kernels[launch.wave] == 1 && launch.tasks <= static_cast<int>(program.lists.size()) &&
        long_tasks)
      launch.shared =
          std::max(launch.shared,
                   static_cast<int32_t>(room / 2 + kAlign +
                                        (launch.pipelined_gemm || launch.grid ? kOwnOfTables : 0)));
  }
}

}  // namespace obelisk::runtime::cuda
