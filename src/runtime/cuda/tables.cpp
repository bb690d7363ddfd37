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

namespace {

class TableMaker {
 public:
  TableMaker(const Program& program, bool one_kernel, int64_t room)
      : program_(program), one_kernel_(one_kernel), room_(room), by_work_(program.works.size()) {}

  Result<Tables> run() {
    TRY_STATUS(has_device_code(program_));
    TRY(const machine::Machine machine, machine::gpu(program_.target));
    has_ring_ = machine.features.tma;
    for (const WorkRecord& work : program_.works) TRY_STATUS(add_block(work));
    TRY_STATUS(add_tasks());
    TRY_STATUS(one_kernel_ ? launch_all() : launch_each());
    say_groups();
    return std::move(tables_);
  }

 private:
  /// What a work's tasks find of it: its head, parameters, operands by name, what it gathers.
  Status add_block(const WorkRecord& work) {
    int64_t map = 0;
    if (one_kernel_) {
      TRY(map, async_rows(program_, work, tables_));
    }
    TRY(const Shape shape, shape_of(work, map != 0, room_));
    shapes_.push_back(shape);
    block_of_.push_back(static_cast<int64_t>(tables_.blocks.size()) * 8);
    if (block_of_.back() >> (OBK_FRESH_AT - OBK_BLOCK_AT) != 0)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("its tables take {}, a GPU's kernels find the first 4 GiB",
                               to_string(Bytes{block_of_.back()})),
                   work.label, "compile with --target cpu"};
    const ObkWork head = {.body = work.body,
                          .params = static_cast<int32_t>(work.params.size()),
                          .operands = static_cast<int32_t>(work.operands.size()) + (map != 0),
                          .row_scratch = work.row_scratch,
                          .gathers = static_cast<int32_t>(work.gathers.size())};
    uint64_t words[OBK_WORK_WORDS];
    memcpy(words, &head, sizeof head);
    tables_.blocks.insert(tables_.blocks.end(), words, words + OBK_WORK_WORDS);
    for (int64_t param : work.params) tables_.blocks.push_back(static_cast<uint64_t>(param));
    const std::vector<int64_t> small = small_weights(program_, work);
    soon_ = std::max(soon_, std::accumulate(small.begin(), small.end(), int64_t{0}) * kLine);
    for (const Place& place : work.operands) {
      uint64_t word = static_cast<uint64_t>(place.index);
      if (place.smem_copy >= 0 && program_.dataflow) {
        tables_.blocks.push_back(static_cast<uint64_t>(place.smem_copy) | OBK_SMEM_COPY);
        continue;
      }
      if (place.kind == BufferKind::kInput) word |= OBK_PORT;
      if (place.kind == BufferKind::kOutput) word = (word + program_.inputs.size()) | OBK_PORT;
      if (place.kind == BufferKind::kArena) word |= OBK_ARENA;
      if (place.kind == BufferKind::kWeight)
        tables_.weight_words.push_back({static_cast<int64_t>(tables_.blocks.size()),
                                        small[static_cast<size_t>(&place - work.operands.data())]});
      tables_.blocks.push_back(word);
    }
    if (map != 0) tables_.blocks.push_back(static_cast<uint64_t>(map) | OBK_ARENA);
    if (tables_.blocks.size() % 2) tables_.blocks.push_back(0);
    return add_gathers(work);
  }

  Status add_gathers(const WorkRecord& work) {
    if (work.gathers.size() > schedule::kMostGathers)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("a work gathers {} values, a GPU's table says it of {}",
                               work.gathers.size(), schedule::kMostGathers),
                   work.label, "compile with --disable dataflow"};
    for (const Gather& gather : work.gathers) {
      if (gather.from % obk::kGatherUnit != 0 || gather.from / obk::kGatherUnit > UINT32_MAX ||
          gather.words % 2 != 0 || gather.smem_copy % obk::kGatherUnit != 0)
        return Error{
            Code::kBuild, "runtime",
            fmt::format("a broadcast value of {} words lies at {}, its copy at {}; wanted: "
                        "pairs of words at multiples of {}",
                        gather.words, gather.from, gather.smem_copy, obk::kGatherUnit),
            work.label, "compile the model again"};
      const ObkGather one = {static_cast<uint32_t>(gather.from / obk::kGatherUnit),
                             static_cast<uint32_t>(gather.smem_copy),
                             static_cast<int32_t>(gather.words / 2), 0};
      uint64_t two[2];
      memcpy(two, &one, sizeof one);
      tables_.blocks.insert(tables_.blocks.end(), two, two + 2);
    }
    return ok_status();
  }

  /// Of one kernel list after list, each task with what it is the first of its list to gather; else
  /// work after work.
  Status add_tasks() {
    const auto with_block = [&](ObkTask task) {
      task.block = block_of_[task.work] << OBK_BLOCK_AT | shapes_[task.work].words;
      return task;
    };
    for (const auto& list : program_.lists) {
      tables_.first.push_back(static_cast<int32_t>(tables_.tasks.size()));
      std::set<int64_t> gathered;  // by tasks before
      for (const ObkTask& task : list) {
        shapes_[task.work].streams |= task.weight_bytes > 0;
        if (OBK_HAS_IN_PLACE_KV(&task)) {
          TRY_STATUS(check_in_place_kv(program_, task));
        } else if (program_.dataflow && (task.weight_bytes != 0 || task.weight_group != 0)) {
          TRY_STATUS(check_weight_range(program_, task));
        }
        (one_kernel_ ? tables_.tasks : by_work_[task.work]).push_back(with_block(task));
        if (!one_kernel_) continue;
        const std::vector<Gather>& gathers = program_.works[task.work].gathers;
        for (size_t k = 0; k < gathers.size(); ++k)
          if (gathered.insert(gathers[k].number).second)
            tables_.tasks.back().block |= static_cast<int64_t>(uint64_t{1} << (OBK_FRESH_AT + k));
      }
    }
    tables_.first.push_back(static_cast<int32_t>(tables_.tasks.size()));
    return ok_status();
  }

  /// One kernel of all works.
  Status launch_all() {
    std::vector<Shape*> all;
    for (Shape& shape : shapes_) all.push_back(&shape);
    Launch launch = lay_out(all, room_, has_ring_, program_.dataflow ? obk::kDataflowBlocks : 2,
                            program_.dataflow ? &program_ : nullptr, soon_);
    if (program_.dataflow) launch.threads = obk::kDataflowThreads;
    const auto largest = std::max_element(
        program_.works.begin(), program_.works.end(),
        [](const WorkRecord& a, const WorkRecord& b) { return a.scratch < b.scratch; });
    if (program_.dataflow && launch.streams && launch.ring_pages < 2)
      return Error{Code::kUnsupported, "runtime",
                   fmt::format("its tasks want {} of shared memory beside {} of copies and two "
                               "pages of weights, a multiprocessor has {}",
                               to_string(Bytes{largest->scratch}),
                               to_string(program_.smem_copies + Bytes{obk::kDataflowSoon * soon_}),
                               to_string(Bytes{room_})),
                   largest->label, "compile with --disable dataflow"};
    launch.tasks = static_cast<int>(program_.lists.size());
    tables_.launches.push_back(launch);
    return ok_status();
  }

  /// A kernel a work, wave after wave.
  Status launch_each() {
    std::vector<int> order;
    for (size_t w = 0; w < by_work_.size(); ++w)
      if (!by_work_[w].empty()) order.push_back(static_cast<int>(w));
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return by_work_[a].front().wave < by_work_[b].front().wave;
    });
    for (int w : order) {
      std::vector<ObkTask>& mine = by_work_[w];
      std::sort(mine.begin(), mine.end(), [](const ObkTask& a, const ObkTask& b) {
        return std::tie(a.r0, a.c0) < std::tie(b.r0, b.c0);
      });
      Launch launch = lay_out({&shapes_[w]}, room_, has_ring_, 1);
      launch.work = w, launch.body = program_.works[w].body;
      launch.wave = static_cast<int>(mine.front().wave);
      launch.first_task = static_cast<int>(tables_.tasks.size());
      launch.tasks = static_cast<int>(mine.size()), launch.block = mine.front().block;
      TRY_STATUS(lay_out_grid(program_, shapes_[w], mine, launch));
      TRY_STATUS(stream(program_, shapes_[w], mine, room_, launch));
      tables_.tasks.insert(tables_.tasks.end(), mine.begin(), mine.end());
      tables_.launches.push_back(launch);
    }
    spread_out(tables_.launches, program_, room_);
    // Programs side by side keep HBM busy for each other, and a prefetch would delay loads that a
    // kernel waits for.
    const bool prefetches = !shares_gpu(program_);
    int next = -1;
    for (size_t k = tables_.launches.size(); k-- > 0;) {
      Launch& launch = tables_.launches[k];
      if (!launch.pipelined_gemm) continue;
      if (prefetches) launch.next = next;
      const Place& b = program_.works[launch.work].operands[launch.weights];
      next = b.kind == BufferKind::kWeight ? static_cast<int>(b.index) : -1;
    }
    return ok_status();
  }

  /// How many groups of lanes a work's tasks have rows for is known when all is laid out.
  void say_groups() {
    for (size_t w = 0; w < shapes_.size(); ++w) {
      ObkWork head;
      memcpy(&head, &tables_.blocks[block_of_[w] / 8], sizeof head);
      head.groups = shapes_[w].groups;
      memcpy(&tables_.blocks[block_of_[w] / 8], &head, sizeof head);
    }
  }

  const Program& program_;
  const bool one_kernel_;
  const int64_t room_;
  bool has_ring_ = false;
  int64_t soon_ = 0;  // bytes of a task's small weights, at most
  std::vector<Shape> shapes_;
  std::vector<int64_t> block_of_;  // bytes
  std::vector<std::vector<ObkTask>> by_work_;
  Tables tables_;
};

}  // namespace

Result<Tables> make_tables(const Program& program, bool one_kernel, int64_t room) {
  return TableMaker(program, one_kernel, room).run();
}

bool shares_gpu(const Program& program) {
  const auto whole = machine::gpu(program.target, 0);
  return whole.ok() && 2 * program.sms <= whole->sms;
}

void place_weights(Tables& tables, const Program& program,
                   const std::vector<DevicePointer>& weights) {
  for (const auto& [at, lines] : tables.weight_words) {
    tables.blocks[at] = weights[tables.blocks[at]];
    if (lines > 0) tables.blocks[at] |= OBK_SOON | static_cast<uint64_t>(lines) << OBK_SOON_AT;
  }
  for (ObkTask& task : tables.tasks) {
    const std::vector<Place>& operands = program.works[task.work].operands;
    if (OBK_HAS_IN_PLACE_KV(&task)) continue;
    if (task.weight_bytes > 0 && !operands.empty() && operands.back().kind == BufferKind::kWeight)
      task.weights += static_cast<int64_t>(weights[operands.back().index]);
    else
      task.weight_bytes = 0;
  }
}

}  // namespace obelisk::runtime::cuda
