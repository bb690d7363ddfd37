#include "runtime/cuda/tables.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "runtime/cuda/check_tasks.h"
#include "runtime/cuda/launch_forms.h"
#include "runtime/cuda/row_maps.h"
#include "runtime/cuda/source.h"

namespace obelisk::runtime::cuda {

Status has_device_code(const Program& program) {
  for (const CustomRecord& custom : program.customs)
    return Error{Code::kUnsupported, "runtime",
                 fmt::format("{} has no device code", ops::to_string(custom.op)), custom.name,
                 "compile with --target cpu"};
  return ok_status();
}

Result<Tables> make_tables(const Program& program, bool one_kernel, int64_t room) {
  TRY_STATUS(has_device_code(program));
  Tables tables;
  std::vector<Shape> shapes;
  std::vector<int64_t> block_of;  // bytes
  int64_t soon = 0;
  TRY(const machine::Machine machine, machine::gpu(program.target));
  const bool has_ring = machine.features.tma;
  for (const WorkRecord& work : program.works) {
    int64_t map = 0;
    if (one_kernel) {
      TRY(map, asked_rows(program, work, tables));
    }
    TRY(const Shape shape, shape_of(work, map != 0, room));
    shapes.push_back(shape);
    block_of.push_back(static_cast<int64_t>(tables.blocks.size()) * 8);
    if (block_of.back() >> (OBK_FRESH_AT - OBK_BLOCK_AT) != 0)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("its tables take {}, a GPU's kernels find the first 4 GiB",
                               to_string(Bytes{block_of.back()})),
                   work.label, "compile with --target cpu"};
    const ObkWork head = {.body = work.body,
                          .params = static_cast<int32_t>(work.params.size()),
                          .operands = static_cast<int32_t>(work.operands.size()) + (map != 0),
                          .row_scratch = work.row_scratch,
                          .gathers = static_cast<int32_t>(work.gathers.size())};
    uint64_t words[OBK_WORK_WORDS];
    memcpy(words, &head, sizeof head);
    tables.blocks.insert(tables.blocks.end(), words, words + OBK_WORK_WORDS);
    for (int64_t param : work.params) tables.blocks.push_back(static_cast<uint64_t>(param));
    const std::vector<int64_t> small = small_weights(program, work);
    soon = std::max(soon, std::accumulate(small.begin(), small.end(), int64_t{0}) * kLine);
    for (const Place& place : work.operands) {
      uint64_t word = static_cast<uint64_t>(place.index);
      if (place.near >= 0 && program.flows) {
        tables.blocks.push_back(static_cast<uint64_t>(place.near) | OBK_NEAR);
        continue;
      }
      if (place.kind == BufferKind::kInput) word |= OBK_PORT;
      if (place.kind == BufferKind::kOutput) word = (word + program.inputs.size()) | OBK_PORT;
      if (place.kind == BufferKind::kArena) word |= OBK_ARENA;
      if (place.kind == BufferKind::kWeight)
        tables.weight_words.push_back({static_cast<int64_t>(tables.blocks.size()),
                                       small[static_cast<size_t>(&place - work.operands.data())]});
      tables.blocks.push_back(word);
    }
    if (map != 0) tables.blocks.push_back(static_cast<uint64_t>(map) | OBK_ARENA);
    if (tables.blocks.size() % 2) tables.blocks.push_back(0);
    if (work.gathers.size() > schedule::kMostGathers)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("a work gathers {} values, a GPU's table says it of {}",
                               work.gathers.size(), schedule::kMostGathers),
                   work.label, "compile with --disable flow"};
    for (const Gather& gather : work.gathers) {
      if (gather.from % obk::kGatherUnit != 0 || gather.from / obk::kGatherUnit > UINT32_MAX ||
          gather.words % 2 != 0 || gather.near % obk::kGatherUnit != 0)
        return Error{Code::kBuild, "runtime",
                     fmt::format("a given value of {} words lies at {}, its copy at {}; wanted: "
                                 "pairs of words at multiples of {}",
                                 gather.words, gather.from, gather.near, obk::kGatherUnit),
                     work.label, "compile the model again"};
      const ObkGather one = {static_cast<uint32_t>(gather.from / obk::kGatherUnit),
                             static_cast<uint32_t>(gather.near),
                             static_cast<int32_t>(gather.words / 2), 0};
      uint64_t two[2];
      memcpy(two, &one, sizeof one);
      tables.blocks.insert(tables.blocks.end(), two, two + 2);
    }
  }
  const auto with_block = [&](ObkTask task) {
    task.block = block_of[task.work] << OBK_BLOCK_AT | shapes[task.work].words;
    return task;
  };
  std::vector<std::vector<ObkTask>> by_work(program.works.size());
  for (const auto& list : program.lists) {
    tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
    std::set<int64_t> gathered;  // by tasks before
    for (const ObkTask& task : list) {
      shapes[task.work].streams |= task.weight_bytes > 0;
      if (OBK_KEEPS_KEYS(&task)) {
        TRY_STATUS(check_kept_keys(program, task));
      } else if (program.flows && (task.weight_bytes != 0 || task.weight_group != 0)) {
        TRY_STATUS(check_streamed(program, task));
      }
      (one_kernel ? tables.tasks : by_work[task.work]).push_back(with_block(task));
      if (!one_kernel) continue;
      const std::vector<Gather>& gathers = program.works[task.work].gathers;
      for (size_t k = 0; k < gathers.size(); ++k)
        if (gathered.insert(gathers[k].number).second)
          tables.tasks.back().block |= static_cast<int64_t>(uint64_t{1} << (OBK_FRESH_AT + k));
    }
  }
  tables.first.push_back(static_cast<int32_t>(tables.tasks.size()));
  if (one_kernel) {
    std::vector<Shape*> all;
    for (Shape& shape : shapes) all.push_back(&shape);
    Launch launch = lay_out(all, room, has_ring, program.flows ? obk::kFlowBlocks : 2,
                            program.flows ? &program : nullptr, soon);
    if (program.flows) launch.threads = obk::kFlowThreads;
    const auto largest = std::max_element(
        program.works.begin(), program.works.end(),
        [](const WorkRecord& a, const WorkRecord& b) { return a.scratch < b.scratch; });
    if (program.flows && launch.streams && launch.ring_pages < 2)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("its tasks want {} of shared memory beside {} of copies and two "
                               "pages of weights, a multiprocessor has {}",
                               to_string(Bytes{largest->scratch}),
                               to_string(program.near + Bytes{obk::kFlowSoon * soon}),
                               to_string(Bytes{room})),
                   largest->label, "compile with --disable flow"};
    launch.tasks = static_cast<int>(program.lists.size());
    tables.launches.push_back(launch);
  } else {
    std::vector<int> order;
    for (size_t w = 0; w < by_work.size(); ++w)
      if (!by_work[w].empty()) order.push_back(static_cast<int>(w));
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return by_work[a].front().wave < by_work[b].front().wave;
    });
    for (int w : order) {
      std::vector<ObkTask>& mine = by_work[w];
      std::sort(mine.begin(), mine.end(), [](const ObkTask& a, const ObkTask& b) {
        return std::tie(a.r0, a.c0) < std::tie(b.r0, b.c0);
      });
      Launch launch = lay_out({&shapes[w]}, room, has_ring, 1);
      launch.work = w, launch.body = program.works[w].body;
      launch.wave = static_cast<int>(mine.front().wave);
      launch.first_task = static_cast<int>(tables.tasks.size());
      launch.tasks = static_cast<int>(mine.size()), launch.block = mine.front().block;
      TRY_STATUS(deal(program, shapes[w], mine, launch));
      TRY_STATUS(stream(program, shapes[w], mine, room, launch));
      tables.tasks.insert(tables.tasks.end(), mine.begin(), mine.end());
      tables.launches.push_back(launch);
    }
    spread_out(tables.launches, program, room);
    int next = -1;
    for (size_t k = tables.launches.size(); k-- > 0;) {
      Launch& launch = tables.launches[k];
      if (!launch.product) continue;
      launch.next = next;
      next = static_cast<int>(program.works[launch.work].operands[launch.weights].index);
    }
  }
  for (size_t w = 0; w < shapes.size(); ++w) {
    ObkWork head;
    memcpy(&head, &tables.blocks[block_of[w] / 8], sizeof head);
    head.groups = shapes[w].groups;
    memcpy(&tables.blocks[block_of[w] / 8], &head, sizeof head);
  }
  return tables;
}

void place_weights(Tables& tables, const Program& program,
                   const std::vector<DevicePointer>& weights) {
  for (const auto& [at, lines] : tables.weight_words) {
    tables.blocks[at] = weights[tables.blocks[at]];
    if (lines > 0) tables.blocks[at] |= OBK_SOON | static_cast<uint64_t>(lines) << OBK_SOON_AT;
  }
  for (ObkTask& task : tables.tasks) {
    const std::vector<Place>& operands = program.works[task.work].operands;
    if (OBK_KEEPS_KEYS(&task)) continue;
    if (task.weight_bytes > 0 && !operands.empty() && operands.back().kind == BufferKind::kWeight)
      task.weights += static_cast<int64_t>(weights[operands.back().index]);
    else
      task.weight_bytes = 0;
  }
}

}  // namespace obelisk::runtime::cuda
