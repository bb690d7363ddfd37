/// runtime/cpu/ready_works.h — which works of a run may begin, where works follow only those that
/// they depend on: without barriers.
///
///   in   a partial order of works, and of each work how many tasks lie in which worker's list
///   out  for an idle worker: the first work that is ready, and a task of it that nobody took
///
/// A work is ready when all tasks of all works that it follows have been done. Works that are ready
/// and have tasks that nobody took are bits of a map, in the order of their numbers. Nothing is
/// locked, and a run allocates nothing.
///
/// A worker that takes a task of a work sees what the tasks of that work's predecessors have
/// written. A worker that ends a task releases this in `left`; the last task of a work acquires all
/// of it and releases it in `waits` of the successors; the last predecessor releases it in the map,
/// from which the worker that finds the work acquires it. Every write between is a
/// read-modify-write, which continues the release sequence.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace obelisk::runtime::cpu {

class ReadyWorks {
 public:
  /// Of works that are numbered so that each stands behind those that it follows. `before`: by
  /// work; `tasks`: by work and worker, each work has some.
  ReadyWorks(const std::vector<std::vector<int>>& before,
             const std::vector<std::vector<int>>& tasks);

  /// Before each run, while no worker is at it.
  void begin();
  /// The first work of which the worker's own list has a task that nobody took; where there is
  /// none, the first of which any has. -1: none is ready now.
  int find(int worker) const;
  /// The number, in the owner's list, of a task of a work that find() gave; from now on it is the
  /// caller's. -1: others took all.
  int take(int work, int owner);
  /// So many tasks that were taken of a work have been done.
  void done(int work, int tasks);
  bool ended() const { return left_.load(std::memory_order_acquire) == 0; }
  /// Until something is ready or all has ended, or for no reason: for who found nothing for long.
  void sleep();

 private:
  bool anything() const;
  void wake();
  bool has_tasks(int work, int owner) const;

  struct alignas(64) Work {
    // Written by who ends a work that it follows (acq_rel): works that have not ended yet.
    std::atomic<int> waits;
    // Written by who did its tasks (acq_rel): those that are not done.
    std::atomic<int> left;
    // Written by who takes the last task of a list: lists with tasks that nobody took.
    std::atomic<int> open;
    int first_waits = 0, tasks = 0, lists = 0;
    std::vector<int> after;
  };
  /// A work's tasks in a worker's list.
  struct alignas(64) Part {
    std::atomic<int> next;  // that nobody took; at `end` and above: none
    int begin = 0, end = 0;
  };
  const int workers_;
  std::vector<Work> works_;
  std::vector<Part> parts_;   // those that have tasks
  std::vector<int> part_of_;  // by work and worker; -1: none
  // A bit a work, set by who ends the last that it follows (seq_cst), read by all (acquire).
  std::vector<std::atomic<uint64_t>> ready_;
  int last_works_ = 0;  // that nobody follows
  // Of those, the ones that have not ended: written by who ends one (seq_cst).
  alignas(64) std::atomic<int> left_{0};
  // Who is about to sleep counts itself and then looks once more, who has something for it to find
  // looks for sleepers after that is there: one of the two sees the other (seq_cst).
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<uint32_t> news_{0};
};

}  // namespace obelisk::runtime::cpu
