#include "runtime/cpu/ready_works.h"

#include <bit>

#include "base/base.h"

namespace obelisk::runtime::cpu {

ReadyWorks::ReadyWorks(const std::vector<std::vector<int>>& before,
                       const std::vector<std::vector<int>>& tasks)
    : workers_(tasks.empty() ? 0 : static_cast<int>(tasks.front().size())),
      works_(before.size()),
      part_of_(before.size() * static_cast<size_t>(workers_), -1),
      ready_((before.size() + 63) / 64) {
  CHECK(tasks.size() == before.size());
  const int count = static_cast<int>(before.size());
  int parts = 0;
  for (const auto& of_work : tasks)
    for (const int each : of_work) parts += each > 0 ? 1 : 0;
  parts_ = std::vector<Part>(static_cast<size_t>(parts));
  std::vector<int> ends(static_cast<size_t>(workers_), 0);
  int part = 0;
  for (int w = 0; w < count; ++w) {
    Work& work = works_[w];
    work.first_waits = static_cast<int>(before[w].size());
    for (const int each : before[w]) {
      CHECK(each >= 0 && each < w, "work {} follows work {}, which does not stand before it", w,
            each);
      works_[each].after.push_back(w);
    }
    for (int worker = 0; worker < workers_; ++worker) {
      const int mine = tasks[w][worker];
      if (mine == 0) continue;
      part_of_[w * workers_ + worker] = part;
      parts_[part].begin = ends[worker], parts_[part].end = ends[worker] += mine;
      ++part, ++work.lists, work.tasks += mine;
    }
    CHECK(work.tasks > 0, "work {} has no tasks", w);
  }
  for (const Work& work : works_) last_works_ += work.after.empty() ? 1 : 0;
}

void ReadyWorks::begin() {
  constexpr auto kRelaxed = std::memory_order_relaxed;  // the start of the workers releases it
  for (auto& word : ready_) word.store(0, kRelaxed);
  for (size_t w = 0; w < works_.size(); ++w) {
    Work& work = works_[w];
    work.waits.store(work.first_waits, kRelaxed), work.left.store(work.tasks, kRelaxed);
    work.open.store(work.lists, kRelaxed);
    if (work.first_waits == 0) ready_[w / 64].fetch_or(uint64_t{1} << (w % 64), kRelaxed);
  }
  for (Part& part : parts_) part.next.store(part.begin, kRelaxed);
  left_.store(last_works_, kRelaxed);
}

bool ReadyWorks::has_tasks(int work, int owner) const {
  const int part = part_of_[work * workers_ + owner];
  return part >= 0 && parts_[part].next.load(std::memory_order_relaxed) < parts_[part].end;
}

int ReadyWorks::find(int worker) const {
  int first = -1;
  for (size_t k = 0; k < ready_.size(); ++k)
    for (uint64_t word = ready_[k].load(std::memory_order_acquire); word != 0; word &= word - 1) {
      const int work = static_cast<int>(k) * 64 + std::countr_zero(word);
      if (has_tasks(work, worker)) return work;
      if (first < 0 && works_[work].open.load(std::memory_order_relaxed) > 0) first = work;
    }
  return first;
}

int ReadyWorks::take(int work, int owner) {
  if (!has_tasks(work, owner)) return -1;
  Part& part = parts_[part_of_[work * workers_ + owner]];
  const int at = part.next.fetch_add(1, std::memory_order_relaxed);
  if (at >= part.end) return -1;
  if (at + 1 == part.end && works_[work].open.fetch_sub(1, std::memory_order_relaxed) == 1)
    ready_[work / 64].fetch_and(~(uint64_t{1} << (work % 64)), std::memory_order_relaxed);
  return at;
}

void ReadyWorks::done(int work, int tasks) {
  if (tasks == 0 || works_[work].left.fetch_sub(tasks, std::memory_order_acq_rel) != tasks) return;
  bool news = works_[work].after.empty() && left_.fetch_sub(1, std::memory_order_seq_cst) == 1;
  for (const int next : works_[work].after)
    if (works_[next].waits.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      ready_[next / 64].fetch_or(uint64_t{1} << (next % 64), std::memory_order_seq_cst);
      news = true;
    }
  if (news) wake();
}

void ReadyWorks::wake() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  news_.fetch_add(1, std::memory_order_seq_cst);
  news_.notify_all();
}

bool ReadyWorks::anything() const {
  if (left_.load(std::memory_order_seq_cst) == 0) return true;
  for (const auto& word : ready_)
    if (word.load(std::memory_order_seq_cst) != 0) return true;
  return false;
}

void ReadyWorks::sleep() {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = news_.load(std::memory_order_seq_cst);
  if (!anything()) news_.wait(seen, std::memory_order_seq_cst);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace obelisk::runtime::cpu
