#include "runtime/cpu/context.h"

#include <sched.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/parallel.h"
#include "kernels/kernels.h"

namespace obelisk::runtime::cpu {

CpuContext::CpuContext(std::shared_ptr<const CpuExecutable> executable, int threads)
    : executable_(std::move(executable)) {
  const Program& program = executable_->program();
  arena_ = Tensor::allocate({DType::u8, {std::max<int64_t>(program.arena.count, 64)}});
  tasks_.resize(threads);
  ends_.resize(threads);
  // Of a dataflow program, a task that several workers do for themselves is one here; those that
  // overlap, each cut as its worker reads it, write the same numbers to the same places, so one
  // waits for the other.
  std::set<std::tuple<uint32_t, int64_t, int64_t, int64_t, int64_t>> seen;
  for (int t = 0; t < threads; ++t) {
    scratch_.push_back(
        Tensor::allocate({DType::u8, {std::max<int64_t>(program.scratch.count, 64)}}));
    std::vector<ObkTask>& mine = tasks_[t];
    for (size_t sm = t; sm < program.lists.size(); sm += threads)
      for (const ObkTask& task : program.lists[sm])
        if (!program.dataflow || seen.emplace(task.work, task.r0, task.r1, task.c0, task.c1).second)
          mine.push_back(task);
    std::stable_sort(mine.begin(), mine.end(),
                     [](const ObkTask& a, const ObkTask& b) { return a.wave < b.wave; });
  }
  // One worker has nobody to wait for.
  if (threads > 1 && !program.dispatch.empty())
    order_tasks();
  else
    cut_waves();
  overlaps_.assign(program.works.size(), false);
  for (auto one = seen.begin(); one != seen.end(); ++one)
    for (auto other = std::next(one);
         other != seen.end() && std::get<0>(*other) == std::get<0>(*one); ++other) {
      const auto& [work, r0, r1, c0, c1] = *one;
      const auto& [same, from, to, left, right] = *other;
      if (from < r1 && r0 < to && left < c1 && c0 < right) overlaps_[work] = true;
    }
  for (const WorkRecord& work : program.works) {
    first_.push_back(operands_.size());
    for (const Place& place : work.operands) {
      if (place.kind == BufferKind::kInput || place.kind == BufferKind::kOutput) {
        bound_.push_back({operands_.size(), place.kind, place.index});
        operands_.push_back(nullptr);
      } else {
        operands_.push_back(resolve(place));
      }
    }
  }
  for (const CustomRecord& custom : program.customs) prepare(custom);
  failures_.assign(threads, ok_status());
  profile_ = Profile::if_wished(program, threads);
  jitter_ = Jitter::if_wished(threads);
  spins_ = spins_while_waiting(threads);
  barrier_ = std::make_unique<SpinBarrier>(threads);
  workers_ = std::make_unique<Workers>(threads);
  body_ = [this](int worker) { ready_ ? run_works(worker) : run_waves(worker); };
}

void CpuContext::cut_waves() {
  const int waves = executable_->program().waves;
  for (size_t t = 0; t < tasks_.size(); ++t) {
    taken_.emplace_back(static_cast<size_t>(waves));
    size_t at = 0;
    for (int wave = 0; wave < waves; ++wave) {
      while (at < tasks_[t].size() && tasks_[t][at].wave == static_cast<uint32_t>(wave)) ++at;
      ends_[t].push_back(at);
    }
  }
}

void CpuContext::order_tasks() {
  const Program& program = executable_->program();
  std::vector<int> position(program.works.size(), -1);
  std::vector<std::vector<int>> before(program.dispatch.size());
  for (size_t k = 0; k < program.dispatch.size(); ++k) {
    position[program.dispatch[k].kernel] = static_cast<int>(k);
    for (const int each : program.dispatch[k].predecessors) before[k].push_back(position[each]);
  }
  std::vector<std::vector<int>> tasks(before.size(), std::vector<int>(tasks_.size(), 0));
  for (size_t t = 0; t < tasks_.size(); ++t) {
    std::stable_sort(tasks_[t].begin(), tasks_[t].end(), [&](const ObkTask& a, const ObkTask& b) {
      return position[a.work] < position[b.work];
    });
    for (const ObkTask& task : tasks_[t]) {
      CHECK(position[task.work] >= 0, "work {} has no place in the dispatch", task.work);
      ++tasks[position[task.work]][t];
    }
  }
  ready_ = std::make_unique<ReadyWorks>(before, tasks);
}

CpuContext::~CpuContext() {
  if (profile_) profile_->print(executable_->program());
}

void* CpuContext::resolve(const Place& place) const {
  const Program& program = executable_->program();
  switch (place.kind) {
    case BufferKind::kInput:
      return const_cast<void*>(inputs_[place.index]);
    case BufferKind::kOutput:
      return outputs_[place.index];
    case BufferKind::kWeight:
      return const_cast<void*>(program.weights[place.index].data());
    case BufferKind::kArena:
      return const_cast<std::byte*>(static_cast<const std::byte*>(arena_.data()) + place.index);
  }
  return nullptr;
}

Status CpuContext::run(std::span<const void* const> inputs, std::span<void* const> outputs) {
  const Program& program = executable_->program();
  CHECK(inputs.size() == program.inputs.size() && outputs.size() == program.outputs.size(),
        "{} inputs and {} outputs given, {} and {} needed", inputs.size(), outputs.size(),
        program.inputs.size(), program.outputs.size());
  last_inputs_.assign(inputs.begin(), inputs.end());
  last_outputs_.assign(outputs.begin(), outputs.end());
  place_ports();
  for (const Bound& bound : bound_)
    operands_[bound.slot] = bound.kind == BufferKind::kInput
                                ? const_cast<void*>(inputs_[bound.index])
                                : outputs_[bound.index];
  if (ready_) ready_->begin();
  for (size_t t = 0; t < ends_.size(); ++t)
    for (size_t wave = 0; wave < ends_[t].size(); ++wave)
      taken_[t][wave].next.store(wave == 0 ? 0 : ends_[t][wave - 1], std::memory_order_relaxed);
  workers_->run(body_);
  if (profile_) profile_->ran();
  Status first = ok_status();
  for (Status& failure : failures_)  // none is left for the next run
    if (const Status each = std::exchange(failure, ok_status()); first.ok()) first = each;
  if (!first.ok()) return first;
  for (const Program::Copy& copy : program.copies)
    memcpy(outputs_[copy.output], resolve(copy.from), program.outputs[copy.output].type.bytes());
  for (size_t k = 0; k < outputs.size(); ++k)
    if (outputs_[k] != outputs[k]) memcpy(outputs[k], outputs_[k], program.outputs[k].type.bytes());
  return ok_status();
}

/// Outputs in place of inputs: the input is where the output is, or the output is staged.
void CpuContext::place_ports() {
  const Program& program = executable_->program();
  inputs_.assign(last_inputs_.begin(), last_inputs_.end());
  outputs_.assign(last_outputs_.begin(), last_outputs_.end());
  for (size_t k = 0; k < outputs_.size(); ++k) {
    const Port& port = program.outputs[k];
    if (port.in_place_of < 0) continue;
    const void*& old = inputs_[static_cast<size_t>(port.in_place_of)];
    if (port.staged) {
      if (outputs_[k] != old) continue;
      staging_.resize(outputs_.size());
      if (staging_[k].empty()) staging_[k] = Tensor::allocate(port.type);
      outputs_[k] = staging_[k].mutable_data();
    } else {
      if (outputs_[k] != old) memcpy(outputs_[k], old, static_cast<size_t>(port.type.bytes()));
      old = outputs_[k];
    }
  }
}

Result<std::vector<TaskTime>> CpuContext::task_times() {
  if (last_outputs_.size() != executable_->program().outputs.size())
    return Error{Code::kUsage, "runtime", "there was no run whose tasks could be timed"};
  const std::vector<const void*> inputs = last_inputs_;
  const std::vector<void*> outputs = last_outputs_;
  recorded_.resize(tasks_.size());
  for (Recorded& worker : recorded_)
    worker.tasks.reserve(static_cast<size_t>(executable_->program().task_count()));
  const Status status = run(inputs, outputs);
  const std::vector<Recorded> recorded = std::exchange(recorded_, {});
  TRY_STATUS(status);
  auto first = Profile::Clock::time_point::max();
  for (const Recorded& worker : recorded)
    for (const Recorded::Task& each : worker.tasks) first = std::min(first, each.start);
  std::vector<TaskTime> times;
  for (size_t worker = 0; worker < recorded.size(); ++worker)
    for (const Recorded::Task& each : recorded[worker].tasks)
      times.push_back({static_cast<int>(each.task->work), static_cast<int>(each.task->wave),
                       static_cast<int>(worker), Nanos(each.start - first).count() / 1e3,
                       Nanos(each.end - first).count() / 1e3});
  return times;
}

void CpuContext::run_task(const ObkTask& task, ObkWorker& self) {
  const WorkRecord& work = executable_->program().works[task.work];
  void* const* operands = operands_.data() + first_[task.work];
  if (jitter_) jitter_->delay(self.sm);
  const bool timed = profile_ || !recorded_.empty();
  const auto start = timed ? Profile::Clock::now() : Profile::Clock::time_point();
  std::unique_lock<std::mutex> alone(one_at_a_time_, std::defer_lock);
  if (overlaps_[task.work]) alone.lock();
  // What is thrown here would end the process, or leave the others at the barrier for ever.
  try {
    if (work.body >= 0) {
      executable_->body(work.body)(&task, work.params.data(), operands, &self);
    } else if (Status status = run_custom(work, operands); !status.ok()) {
      failures_[self.sm] = status;
    }
  } catch (const std::bad_alloc&) {
    failures_[self.sm] = Error{Code::kMemory, "runtime", "out of memory in " + work.label, "",
                               "smaller shapes, or a machine with more memory"};
  } catch (const std::exception& bug) {
    failures_[self.sm] =
        Error{Code::kBuild, "runtime", fmt::format("{}: {}", work.label, bug.what()), "",
              "this is a defect of Obelisk; please report it with the model"};
  }
  if (!timed) return;
  const auto end = Profile::Clock::now();
  if (profile_) profile_->worked(self.sm, task.work, end - start);
  if (!recorded_.empty()) recorded_[self.sm].tasks.push_back({&task, start, end});
}

/// Between two tasks, and while others are waited for: what waits to be let in runs on worker 0.
void CpuContext::look(int worker) noexcept {
  if (!way_) return;
  if (worker > 0) {
    while (still_.load(std::memory_order_acquire) != 0) still_.wait(1, std::memory_order_acquire);
    return;
  }
  const int wanted = way_->wanted.load(std::memory_order_acquire);
  if (wanted == 0) return;
  if (wanted > 1) still_.store(1, std::memory_order_release);
  way_->work();
  if (wanted == 1) return;
  still_.store(0, std::memory_order_release);
  still_.notify_all();
}

ObkWorker CpuContext::self_of(int worker) {
  return {scratch_[worker].mutable_data(), scratch_[worker].bytes(), worker,
          executable_->program().sms, obk_kernels()};
}

void CpuContext::run_waves(int worker) {
  const Program& program = executable_->program();
  ObkWorker self = self_of(worker);
  const int workers = workers_->count();
  for (int wave = 0; wave < program.waves; ++wave) {
    for (int turn = 0; turn < workers; ++turn) {  // one's own tasks first
      const int owner = (worker + turn) % workers;
      const size_t end = ends_[owner][wave];
      std::atomic<size_t>& next = taken_[owner][wave].next;
      while (next.load(std::memory_order_relaxed) < end) {
        look(worker);
        const size_t at = next.fetch_add(1, std::memory_order_relaxed);
        if (at < end) run_task(tasks_[owner][at], self);
      }
    }
    look(worker);
    if (workers > 1 && wave + 1 < program.waves) {
      const auto start = profile_ ? Profile::Clock::now() : Profile::Clock::time_point();
      if (jitter_) jitter_->delay(worker);
      barrier_->wait([&] { look(worker); });
      if (profile_) profile_->waited(worker, Profile::Clock::now() - start);
    }
  }
}

void CpuContext::run_works(int worker) {
  ObkWorker self = self_of(worker);
  look(worker);  // once at least: the others may have ended all works before this one begins
  while (!ready_->ended()) {
    look(worker);
    if (const int work = ready_->find(worker); work >= 0)
      run_work(work, self);
    else
      wait_for_work(worker);
  }
}

/// All that is left of one's own tasks of it; where nothing is, one of another's, for the next may
/// be one's own again.
void CpuContext::run_work(int work, ObkWorker& self) {
  const int workers = workers_->count();
  int done = 0;
  for (int at; (at = ready_->take(work, self.sm)) >= 0;) {
    run_task(tasks_[self.sm][at], self);
    ++done;
    if (!way_) continue;
    // What is let in may take long: others go on with what waits for these tasks.
    ready_->done(work, std::exchange(done, 0));
    look(self.sm);
  }
  for (int turn = 1; turn < workers && done == 0; ++turn) {
    const int owner = (self.sm + turn) % workers;
    const int at = ready_->take(work, owner);
    if (at < 0) continue;
    run_task(tasks_[owner][at], self);
    ++done;
  }
  if (jitter_) jitter_->delay(self.sm);
  ready_->done(work, done);
}

void CpuContext::wait_for_work(int worker) {
  const auto start = profile_ ? Profile::Clock::now() : Profile::Clock::time_point();
  if (jitter_) jitter_->delay(worker);
  for (int spin = 0; ready_->find(worker) < 0 && !ready_->ended(); ++spin) {
    look(worker);
    if (spin < spins_)
      spin_pause();
    else
      ready_->sleep();
  }
  if (jitter_) jitter_->delay(worker);
  if (profile_) profile_->waited(worker, Profile::Clock::now() - start);
}

}  // namespace obelisk::runtime::cpu
