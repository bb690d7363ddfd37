/// runtime/cpu/context.h — one user's memory and workers, and the runs in them.
///
///   context.cpp      binding of operands, waves or order of works, who takes which task
///   custom_ops.cpp   ops that their reference computes
#pragma once

#include <atomic>
#include <mutex>

#include "runtime/cpu/executable.h"
#include "runtime/cpu/jitter.h"
#include "runtime/cpu/profile.h"
#include "runtime/cpu/ready_works.h"
#include "runtime/cpu/workers.h"

namespace obelisk::runtime::cpu {

/// Workers run virtual SMs: worker t runs the lists of SMs t, t + workers, ..., wave by wave. Who
/// is done with a wave's tasks takes those of others: a core that the system gave to somebody else
/// does not hold up the wave. Of a program that has a dispatch, a work begins as soon as those that
/// it follows have ended, in the dispatch's order, and no barrier stands between. Answers do not
/// depend on who runs what, nor on when.
class CpuContext : public Context {
 public:
  CpuContext(std::shared_ptr<const CpuExecutable> executable, int threads);
  ~CpuContext() override;
  Status run(std::span<const void* const> inputs, std::span<void* const> outputs) override;
  bool give_way(GiveWay* way) override {
    way_ = way;
    return true;
  }
  /// `sm` is the worker here.
  Result<std::vector<TaskTime>> task_times() override;

 private:
  void cut_waves();
  void order_tasks();
  void place_ports();
  void run_waves(int worker);
  void run_works(int worker);
  void run_work(int work, ObkWorker& self);
  void wait_for_work(int worker);
  ObkWorker self_of(int worker);
  void look(int worker) noexcept;
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
  std::vector<std::vector<ObkTask>> tasks_;  // by worker: ascending waves, or positions
  std::vector<std::vector<size_t>> ends_;    // by worker: end of each wave in tasks_
  std::unique_ptr<ReadyWorks> ready_;        // by position, of a dispatch; none: waves
  std::vector<bool> overlaps_;  // by work: of a dataflow program, whether some of its tasks write
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
  /// Where this run's ports lie, once outputs have taken their places.
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::vector<Tensor> staging_;   // by output, of those that a run staged
  std::vector<Status> failures_;  // by worker
  GiveWay* way_ = nullptr;        // written between runs
  // Whether workers stand still: written by worker 0 (release), read by the others (acquire).
  alignas(64) std::atomic<int> still_{0};
  std::function<void(int)> body_;
  // The last run's ports, and of a run that records when its tasks ran, by worker; else empty.
  std::vector<const void*> last_inputs_;
  std::vector<void*> last_outputs_;
  struct alignas(64) Recorded {
    struct Task {
      const ObkTask* task;
      Profile::Clock::time_point start, end;
    };
    std::vector<Task> tasks;
  };
  std::vector<Recorded> recorded_;
  std::unique_ptr<Profile> profile_;  // none, but for OBELISK_PROFILE
  std::unique_ptr<Jitter> jitter_;    // none, but for OBELISK_JITTER
  int spins_ = 0;                     // of a worker that waits, before it sleeps
  std::unique_ptr<SpinBarrier> barrier_;
  std::unique_ptr<Workers> workers_;  // last: ends before what it uses
};

}  // namespace obelisk::runtime::cpu
