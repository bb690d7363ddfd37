// Works that begin as soon as those that they follow have ended: random orders on threads, each
// task once, none before what it follows; what sleeps is woken.
#include "runtime/cpu/ready_works.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "runtime/cpu/workers.h"

namespace obelisk::runtime::cpu {
namespace {

/// Works with edges and tasks at random; each has a task at least.
struct Works {
  std::vector<std::vector<int>> before, tasks;
  Works(std::mt19937& random, int works, int workers, int edges) {
    before.resize(static_cast<size_t>(works));
    for (int k = 0; k < edges; ++k) {
      const int a = static_cast<int>(random() % works), b = static_cast<int>(random() % works);
      std::vector<int>& of = before[static_cast<size_t>(std::max(a, b))];
      if (a != b && std::find(of.begin(), of.end(), std::min(a, b)) == of.end())
        of.push_back(std::min(a, b));
    }
    for (int w = 0; w < works; ++w) {
      std::vector<int>& lists = tasks.emplace_back(workers, 0);
      for (int& list : lists) list = random() % 3 ? 0 : static_cast<int>(random() % 4);
      lists[random() % static_cast<size_t>(workers)] += 1;
    }
  }
};

TEST(ReadyWorks, FirstOnesOwnThenTheFirstOfOthers) {
  // 0 and 1 follow nobody, 2 follows both; worker 1 has tasks of 1 and 2 alone.
  ReadyWorks ready({{}, {}, {0, 1}}, {{2, 0}, {1, 1}, {0, 1}});
  for (int run = 0; run < 2; ++run) {
    ready.begin();
    EXPECT_EQ(ready.find(0), 0);
    EXPECT_EQ(ready.find(1), 1);
    EXPECT_EQ(ready.take(1, 1), 0);
    EXPECT_EQ(ready.take(1, 1), -1);
    EXPECT_EQ(ready.find(1), 0) << "nothing of its own is ready";
    EXPECT_EQ(ready.take(0, 1), -1);
    EXPECT_EQ(ready.take(0, 0), 0);
    EXPECT_EQ(ready.take(0, 0), 1);
    EXPECT_EQ(ready.find(1), 1) << "a task of it lies in worker 0's list";
    EXPECT_EQ(ready.take(1, 0), 2);
    EXPECT_EQ(ready.find(0), -1);
    ready.done(0, 2), ready.done(1, 1);
    EXPECT_EQ(ready.find(1), -1) << "one task of work 1 is not done";
    ready.done(1, 1);
    EXPECT_FALSE(ready.ended());
    EXPECT_EQ(ready.find(0), 2);
    EXPECT_EQ(ready.take(2, 1), 1);
    ready.done(2, 1);
    EXPECT_TRUE(ready.ended());
    ready.sleep();  // nobody would wake it
  }
}

TEST(ReadyWorks, NothingBeginsBeforeWhatItFollowsHasEnded) {
  std::mt19937 random(5);
  for (int turn = 0; turn < 40; ++turn) {
    const int workers = 1 + static_cast<int>(random() % 8);
    const int works = 1 + static_cast<int>(random() % 150);
    const Works of(random, works, workers, static_cast<int>(random() % (2 * works + 1)));
    ReadyWorks ready(of.before, of.tasks);
    Workers threads(workers);
    // Written by tasks without any other order than that of the works: a race is seen by
    // ThreadSanitizer, a stale number by the sums.
    std::vector<std::vector<int64_t>> wrote(works);
    for (int run = 0; run < 3; ++run) {
      std::vector<std::vector<int>> first(works);  // number of a work's first task in each list
      std::vector<int> ends(workers, 0);
      for (int w = 0; w < works; ++w) {
        int64_t all = 0;
        for (int t = 0; t < workers; ++t)
          first[w].push_back(ends[t]), ends[t] += of.tasks[w][t], all += of.tasks[w][t];
        wrote[w].assign(all, -1);
      }
      std::atomic<int> early{0}, tasks{0};
      ready.begin();
      const std::function<void(int)> body = [&](int worker) {
        while (!ready.ended()) {
          const int work = ready.find(worker);
          if (work < 0) {
            ready.sleep();
            continue;
          }
          for (int turn = 0; turn < workers; ++turn) {
            const int owner = (worker + turn) % workers;
            for (int at; (at = ready.take(work, owner)) >= 0;) {
              for (const int before : of.before[work])
                for (const int64_t each : wrote[before])
                  if (each != run) ++early;
              int64_t slot = at - first[work][owner];
              for (int t = 0; t < owner; ++t) slot += of.tasks[work][t];
              int64_t& place = wrote[work][static_cast<size_t>(slot)];
              if (place != -1) ++early;  // a task that was taken twice
              place = run, ++tasks;
              std::this_thread::yield();  // so that others take the next
              ready.done(work, 1);
            }
          }
        }
      };
      threads.run(body);
      EXPECT_EQ(early, 0);
      int64_t all = 0;
      for (const auto& each : wrote) all += static_cast<int64_t>(each.size());
      EXPECT_EQ(tasks, all);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace obelisk::runtime::cpu
