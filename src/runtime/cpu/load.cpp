#include <sched.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/parallel.h"
#include "kernels/kernels.h"
#include "machine/costs_cpu.h"
#include "runtime/cpu/jitter.h"
#include "runtime/cpu/objects.h"
#include "runtime/cpu/profile.h"
#include "runtime/cpu/workers.h"
#include "runtime/runtime.h"

namespace obelisk::runtime {
namespace {

/// How many of at most `most` threads pay: the predicted time of the lists that they share, and a
/// barrier a wave.
int threads_that_pay(const Program& program, int most) {
  using machine::cpu_costs::kBusyBarrierNanos;
  using machine::cpu_costs::kHandOverNanos;
  double best = 0;
  int chosen = 1;
  bool predicted = false;
  for (int threads = 1; threads <= most; ++threads) {
    std::vector<double> busy(static_cast<size_t>(std::max(program.waves, 1)) * threads, 0);
    for (size_t sm = 0; sm < program.lists.size(); ++sm)
      for (const ObkTask& task : program.lists[sm]) {
        const double nanos = program.works[task.work].task_nanos;
        busy[task.wave * threads + sm % threads] += nanos, predicted |= nanos > 0;
      }
    double total = threads > 1 ? kHandOverNanos + kBusyBarrierNanos * program.waves : 0;
    for (int wave = 0; wave < program.waves; ++wave)
      total +=
          *std::max_element(busy.begin() + wave * threads, busy.begin() + (wave + 1) * threads);
    if (threads == 1 || total < best) best = total, chosen = threads;
    if (threads >= 16) threads += threads / 4;  // many cores: look at fewer counts
  }
  return predicted ? chosen : most;
}

class CpuExecutable;

/// Workers run virtual SMs: worker t runs the lists of SMs t, t + workers, ..., wave by wave. Who
/// is done with a wave's tasks takes those of others: a core that the system gave to somebody else
/// does not hold up the wave. Answers do not depend on who runs what.
class CpuContext : public Context {
 public:
  CpuContext(std::shared_ptr<const CpuExecutable> executable, int threads);
  ~CpuContext() override;
  Status run(std::span<const void* const> inputs, std::span<void* const> outputs) override;

 private:
  void run_worker(int worker);
  void run_task(const ObkTask& task, ObkWorker& self);
  /// A call of an op's reference: all but the addresses is made once.
  struct CustomCall {
    ops::Call call;
    std::vector<Tensor> inputs, outputs;
    std::vector<const Tensor*> pointers;
  };
  void prepare(const CustomRecord& custom);
  Status run_custom(const WorkRecord& work, void* const* operands);
  void* resolve(const Place& place) const;

  std::shared_ptr<const CpuExecutable> executable_;
  Tensor arena_;
  std::vector<Tensor> scratch_;              // by worker
  std::vector<std::vector<ObkTask>> tasks_;  // by worker, ascending waves
  std::vector<std::vector<size_t>> ends_;    // by worker: end of each wave in tasks_
  std::vector<bool> overlaps_;  // by work: of a program that flows, whether some of its tasks write
                                // the same places
  std::mutex one_at_a_time_;    // of those
  struct alignas(64) Taken {
    std::atomic<size_t> next;
  };
  std::vector<std::vector<Taken>> taken_;  // by worker, then wave: the next task that nobody took
  std::vector<void*> operands_;            // all works', flattened
  std::vector<std::unique_ptr<CustomCall>> customs_;
  std::vector<size_t> first_;  // by work
  struct Bound {
    size_t slot;
    BufferKind kind;
    int64_t index;
  };
  std::vector<Bound> bound_;  // operands that change from run to run
  std::span<const void* const> inputs_;
  std::span<void* const> outputs_;
  std::vector<Status> failures_;  // by worker
  std::function<void(int)> body_;
  std::unique_ptr<cpu::Profile> profile_;  // none, but for OBELISK_PROFILE
  std::unique_ptr<cpu::Jitter> jitter_;    // none, but for OBELISK_JITTER
  std::unique_ptr<cpu::SpinBarrier> barrier_;
  std::unique_ptr<cpu::Workers> workers_;  // last: ends before what it uses
};

class CpuExecutable : public Executable, public std::enable_shared_from_this<CpuExecutable> {
 public:
  CpuExecutable(std::shared_ptr<const Program> program,
                std::vector<std::unique_ptr<cpu::Object>> objects, LoadReport report,
                bool every_thread)
      : program_(std::move(program)),
        objects_(std::move(objects)),
        report_(std::move(report)),
        every_thread_(every_thread) {}
  const Program& program() const override { return *program_; }
  const LoadReport& report() const override { return report_; }
  Result<std::unique_ptr<Context>> context(int threads) const override {
    const int limit =
        std::min(program_->sms, std::max(threads > 0 ? threads : cores_we_may_use(), 1));
    const int chosen = every_thread_ ? limit : threads_that_pay(*program_, limit);
    return std::unique_ptr<Context>(new CpuContext(shared_from_this(), chosen));
  }
  std::vector<std::string> objects() const override {
    std::vector<std::string> bytes;
    for (const auto& object : objects_) bytes.push_back(object->bytes());
    return bytes;
  }
  ObkBody body(int index) const { return objects_[index]->body(); }

 private:
  std::shared_ptr<const Program> program_;
  std::vector<std::unique_ptr<cpu::Object>> objects_;
  LoadReport report_;
  const bool every_thread_;
};

CpuContext::CpuContext(std::shared_ptr<const CpuExecutable> executable, int threads)
    : executable_(std::move(executable)) {
  const Program& program = executable_->program();
  arena_ = Tensor::allocate({DType::u8, {std::max<int64_t>(program.arena.count, 64)}});
  tasks_.resize(threads);
  ends_.resize(threads);
  for (int t = 0; t < threads; ++t) taken_.emplace_back(static_cast<size_t>(program.waves));
  // Of a program that flows, a task that several workers do for themselves is one here; those that
  // overlap, each cut as its worker reads it, write the same numbers to the same places, so one
  // waits for the other.
  std::set<std::tuple<uint32_t, int64_t, int64_t, int64_t, int64_t>> seen;
  for (int t = 0; t < threads; ++t) {
    scratch_.push_back(
        Tensor::allocate({DType::u8, {std::max<int64_t>(program.scratch.count, 64)}}));
    std::vector<ObkTask>& mine = tasks_[t];
    for (size_t sm = t; sm < program.lists.size(); sm += threads)
      for (const ObkTask& task : program.lists[sm])
        if (!program.flows || seen.emplace(task.work, task.r0, task.r1, task.c0, task.c1).second)
          mine.push_back(task);
    std::stable_sort(mine.begin(), mine.end(),
                     [](const ObkTask& a, const ObkTask& b) { return a.wave < b.wave; });
    size_t at = 0;
    for (int wave = 0; wave < program.waves; ++wave) {
      while (at < mine.size() && mine[at].wave == static_cast<uint32_t>(wave)) ++at;
      ends_[t].push_back(at);
    }
  }
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
  profile_ = cpu::Profile::if_wished(program, threads);
  jitter_ = cpu::Jitter::if_wished(threads);
  barrier_ = std::make_unique<cpu::SpinBarrier>(threads);
  workers_ = std::make_unique<cpu::Workers>(threads);
  body_ = [this](int worker) { run_worker(worker); };
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
  inputs_ = inputs, outputs_ = outputs;
  for (const Bound& bound : bound_)
    operands_[bound.slot] = bound.kind == BufferKind::kInput
                                ? const_cast<void*>(inputs[bound.index])
                                : outputs[bound.index];
  for (size_t t = 0; t < tasks_.size(); ++t)
    for (size_t wave = 0; wave < ends_[t].size(); ++wave)
      taken_[t][wave].next.store(wave == 0 ? 0 : ends_[t][wave - 1], std::memory_order_relaxed);
  workers_->run(body_);
  if (profile_) profile_->ran();
  Status first = ok_status();
  for (Status& failure : failures_)  // none is left for the next run
    if (const Status each = std::exchange(failure, ok_status()); first.ok()) first = each;
  if (!first.ok()) return first;
  for (const Program::Copy& copy : program.copies)
    memcpy(outputs[copy.output], resolve(copy.from), program.outputs[copy.output].type.bytes());
  return ok_status();
}

void CpuContext::run_task(const ObkTask& task, ObkWorker& self) {
  const WorkRecord& work = executable_->program().works[task.work];
  void* const* operands = operands_.data() + first_[task.work];
  if (jitter_) jitter_->delay(self.sm);
  const auto start = profile_ ? cpu::Profile::Clock::now() : cpu::Profile::Clock::time_point();
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
  if (profile_) profile_->worked(self.sm, task.work, cpu::Profile::Clock::now() - start);
}

void CpuContext::run_worker(int worker) {
  const Program& program = executable_->program();
  ObkWorker self{scratch_[worker].mutable_data(), scratch_[worker].bytes(), worker, program.sms,
                 obk_kernels()};
  const int workers = workers_->count();
  for (int wave = 0; wave < program.waves; ++wave) {
    for (int turn = 0; turn < workers; ++turn) {  // one's own tasks first
      const int owner = (worker + turn) % workers;
      const size_t end = ends_[owner][wave];
      std::atomic<size_t>& next = taken_[owner][wave].next;
      while (next.load(std::memory_order_relaxed) < end) {
        const size_t at = next.fetch_add(1, std::memory_order_relaxed);
        if (at < end) run_task(tasks_[owner][at], self);
      }
    }
    if (workers > 1 && wave + 1 < program.waves) {
      const auto start = profile_ ? cpu::Profile::Clock::now() : cpu::Profile::Clock::time_point();
      if (jitter_) jitter_->delay(worker);
      barrier_->wait();
      if (profile_) profile_->waited(worker, cpu::Profile::Clock::now() - start);
    }
  }
}

void CpuContext::prepare(const CustomRecord& custom) {
  customs_.push_back(std::make_unique<CustomCall>(
      CustomCall{{.op = custom.op, .attrs = custom.attrs}, {}, {}, {}}));
  CustomCall& made = *customs_.back();
  made.call.outputs = static_cast<int>(custom.outputs.size());
  made.inputs.resize(custom.inputs.size());
  made.pointers.assign(custom.inputs.size(), nullptr);
  for (size_t k = 0; k < custom.inputs.size(); ++k) {
    if (custom.inputs[k] >= 0) made.pointers[k] = &made.inputs[k];
    made.call.inputs.push_back(custom.inputs[k] >= 0 ? &custom.input_types[k] : nullptr);
    made.call.constants.push_back(made.pointers[k]);
  }
  for (const Type& type : custom.output_types) {
    made.call.results.push_back(&type);
    made.outputs.push_back(Tensor::allocate(type));
  }
}

Status CpuContext::run_custom(const WorkRecord& work, void* const* operands) {
  const CustomRecord& custom = executable_->program().customs[work.custom];
  CustomCall& made = *customs_[work.custom];
  for (size_t k = 0; k < custom.inputs.size(); ++k) {
    if (custom.inputs[k] < 0 || made.inputs[k].data() == operands[custom.inputs[k]]) continue;
    made.inputs[k] = Tensor::view(custom.input_types[k], operands[custom.inputs[k]], nullptr);
  }
  // a reference may rely on it
  for (Tensor& output : made.outputs) memset(output.mutable_data(), 0, output.bytes());
  if (Status status = ops::reference(made.call, made.pointers, made.outputs); !status.ok()) {
    Error error = status.error();
    error.node = custom.name;
    return error;
  }
  for (size_t k = 0; k < made.outputs.size(); ++k)
    if (custom.outputs[k] >= 0)
      memcpy(operands[custom.outputs[k]], made.outputs[k].data(), made.outputs[k].bytes());
  return ok_status();
}

}  // namespace

Result<std::shared_ptr<const Executable>> load_cpu(std::shared_ptr<const Program> program,
                                                   const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadReport report;
  std::vector<std::unique_ptr<cpu::Object>> objects;
  if (!program->objects.empty()) {
    auto carried = cpu::carried_objects(*program);
    if (carried.ok()) {
      objects = std::move(*carried);
      report.carried = static_cast<int>(objects.size());
    } else {
      report.not_carried = carried.error().message;
    }
  }
  if (objects.empty()) {
    TRY(objects, cpu::build_objects(program->bodies, options, report));
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::shared_ptr<const Executable>(new CpuExecutable(
      std::move(program), std::move(objects), std::move(report), options.every_thread));
}

}  // namespace obelisk::runtime
