#include "schedule/memory_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <set>

#include "machine/machine.h"

namespace obelisk::schedule {
namespace {

constexpr int kPackings = 32;  // tried for one schedule

/// When works run.
struct Times {
  std::vector<int64_t> begin, end;
};

/// The buffers that each work uses.
using BuffersOf = std::vector<std::vector<int>>;

/// How many bytes are live: those of buffers of which a user has begun and not all have ended.
class Live {
 public:
  Live(const std::vector<Used>& all, const BuffersOf& used)
      : all_(all), used_(used), begun_(all.size(), 0), ended_(all.size(), 0) {}
  int64_t bytes() const { return bytes_; }
  void begin(int work) {
    for (const int b : used_[work])
      if (begun_[b]++ == 0) bytes_ += all_[b].size;
  }
  void end(int work) {
    for (const int b : used_[work])
      if (++ended_[b] == users(b)) bytes_ -= all_[b].size;
  }
  void undo_begin(int work) {
    for (const int b : used_[work])
      if (--begun_[b] == 0) bytes_ -= all_[b].size;
  }
  void undo_end(int work) {
    for (const int b : used_[work])
      if (ended_[b]-- == users(b)) bytes_ += all_[b].size;
  }

 private:
  int users(int b) const { return static_cast<int>(all_[b].users.size()); }
  const std::vector<Used>& all_;
  const BuffersOf& used_;
  std::vector<int> begun_, ended_;  // how many users
  int64_t bytes_ = 0;
};

/// The most bytes that are live where works run one after another.
int64_t peak_of(const std::vector<int>& order, Live live) {
  int64_t peak = 0;
  for (const int work : order) {
    live.begin(work);
    peak = std::max(peak, live.bytes());
    live.end(work);
  }
  return peak;
}

/// A list schedule in which live bytes never exceed a bound: of the works that are ready the most
/// urgent begin first, but none after which what is left could not run one by one, in `order`,
/// within the bound (a safe state, as of the banker's algorithm). It ends where the peak of `order`
/// is within the bound.
class BoundedSchedule {
 public:
  BoundedSchedule(const Dag& dag, const std::vector<int>& order, int64_t bound, Live nothing)
      : dag_(dag), order_(order), bound_(bound), live_(std::move(nothing)), place_(order.size()) {
    for (size_t k = 0; k < order.size(); ++k) place_[order[k]] = k;
  }

  Times run(const std::vector<int64_t>& nanos, const std::vector<int64_t>& urgency) {
    Times times{std::vector<int64_t>(order_.size(), -1), std::vector<int64_t>(order_.size(), -1)};
    std::vector<int> waits = indegrees(dag_);
    std::set<std::pair<int64_t, size_t>> ready;  // the most urgent first, of equals by `order`
    const auto release = [&](int work) { ready.insert({-urgency[work], place_[work]}); };
    for (const int work : order_)
      if (waits[work] == 0) release(work);
    std::set<std::pair<int64_t, int>> running;  // by end
    for (int64_t now = 0; !ready.empty() || !running.empty();) {
      for (auto at = ready.begin(); at != ready.end();) {
        const int work = order_[at->second];
        if (!safe(work, times.begin, running)) {
          ++at;
          continue;
        }
        live_.begin(work);
        times.begin[work] = now, times.end[work] = now + nanos[work];
        running.insert({times.end[work], work});
        at = ready.erase(at);
      }
      while (first_ < order_.size() && times.begin[order_[first_]] >= 0) ++first_;
      CHECK(!running.empty(), "no work fits into {} bytes", bound_);
      now = running.begin()->first;
      while (!running.empty() && running.begin()->first == now) {
        const int work = running.begin()->second;
        running.erase(running.begin());
        live_.end(work);
        for (const int next : dag_.after[work])
          if (--waits[next] == 0) release(next);
      }
    }
    return times;
  }

 private:
  /// Whether `work` fits now, and what has not begun still fits one by one. Behind its place in the
  /// order nothing changes.
  bool safe(int work, const std::vector<int64_t>& begin,
            const std::set<std::pair<int64_t, int>>& running) {
    live_.begin(work);
    bool fits = live_.bytes() <= bound_;
    if (fits && place_[work] > first_) {
      std::vector<int> ran{work};
      for (const auto& [end, other] : running) live_.end(other);
      live_.end(work);
      for (size_t k = first_; k < place_[work] && fits; ++k) {
        const int other = order_[k];
        if (begin[other] >= 0) continue;
        live_.begin(other);
        fits = live_.bytes() <= bound_;
        live_.end(other);
        ran.push_back(other);
      }
      for (const int other : ran) live_.undo_end(other), live_.undo_begin(other);
      for (const auto& [end, other] : running) live_.undo_end(other);
    } else {
      live_.undo_begin(work);
    }
    return fits;
  }

  const Dag& dag_;
  const std::vector<int>& order_;
  int64_t bound_;
  Live live_;
  std::vector<size_t> place_;  // in `order`
  size_t first_ = 0;           // of the order: all before it have begun
};

/// The other way round: begins are ends.
Times turned(const Times& times) {
  const int64_t last =
      times.end.empty() ? 0 : *std::max_element(times.end.begin(), times.end.end());
  Times out = times;
  for (size_t w = 0; w < times.end.size(); ++w)
    out.begin[w] = last - times.end[w], out.end[w] = last - times.begin[w];
  return out;
}

/// Offsets of buffers that are live from `first` to `last`: by first fit, largest first, again and
/// again with what came to lie on top placed before all others. The best of kPackings.
int64_t pack(std::vector<Used>& all, const std::vector<int64_t>& first,
             const std::vector<int64_t>& last, int64_t align) {
  const auto room = [&](size_t b) { return (all[b].size + align - 1) / align * align; };
  std::vector<std::vector<size_t>> beside(all.size());  // live at the same time
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = 0; b < all.size(); ++b)
      if (a != b && first[a] < last[b] && first[b] < last[a]) beside[a].push_back(b);
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a].size > all[b].size; });
  int64_t best = -1;
  for (int turn = 0; turn < kPackings; ++turn) {
    std::vector<int64_t> offset(all.size(), -1);
    int64_t end = 0;
    size_t top = 0;  // in the order
    for (size_t k = 0; k < order.size(); ++k) {
      std::vector<std::pair<int64_t, int64_t>> taken;
      for (const size_t other : beside[order[k]])
        if (offset[other] >= 0) taken.push_back({offset[other], offset[other] + room(other)});
      std::sort(taken.begin(), taken.end());
      int64_t at = 0;
      for (const auto& [low, high] : taken) {
        if (at + room(order[k]) <= low) break;
        at = std::max(at, high);
      }
      offset[order[k]] = at;
      if (at + room(order[k]) > end) end = at + room(order[k]), top = k;
    }
    if (best < 0 || end < best) {
      best = end;
      for (size_t b = 0; b < all.size(); ++b) all[b].offset = offset[b];
    }
    if (order.empty()) break;
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top),
                order.begin() + static_cast<std::ptrdiff_t>(top) + 1);
  }
  return std::max<int64_t>(best, 0);
}

/// Where buffers lie, and in which order they use the same bytes, under one schedule.
class Sharing {
 public:
  Sharing(const Dag& dag, const BuffersOf& used, const Times& times, std::vector<Used> all,
          int64_t align)
      : dag_(dag), used_(used), all_(std::move(all)), earlier_(all_.size()), writes_(dag.size()) {
    std::vector<int64_t> first(all_.size(), std::numeric_limits<int64_t>::max());
    std::vector<int64_t> last(all_.size(), -1);
    for (size_t b = 0; b < all_.size(); ++b) {
      for (const int user : all_[b].users) {
        first[b] = std::min(first[b], times.begin[user]);
        last[b] = std::max(last[b], times.end[user]);
      }
      for (const int writer : all_[b].writers) writes_[writer].push_back(static_cast<int>(b));
    }
    bytes_ = pack(all_, first, last, align);
    for (size_t b = 0; b < all_.size(); ++b)
      for (size_t a = 0; a < all_.size(); ++a)
        if (a != b && last[a] <= first[b] && all_[a].offset < all_[b].offset + all_[b].size &&
            all_[b].offset < all_[a].offset + all_[a].size)
          earlier_[b].push_back(static_cast<int>(a));
    by_begin_.resize(dag.size());
    std::iota(by_begin_.begin(), by_begin_.end(), 0);
    std::stable_sort(by_begin_.begin(), by_begin_.end(),
                     [&](int a, int b) { return times.begin[a] < times.begin[b]; });
  }

  int64_t bytes() const { return bytes_; }
  std::vector<Used>& all() { return all_; }

  /// The longest path that ends with each work: by the Dag, and from all users of bytes to those
  /// that write there for another buffer.
  std::vector<int64_t> paths(const std::vector<int64_t>& nanos) const {
    std::vector<int64_t> until(dag_.size(), 0), done(all_.size(), 0);
    for (const int work : by_begin_) {
      int64_t longest = 0;
      for (const int before : dag_.before[work]) longest = std::max(longest, until[before]);
      for (const int b : writes_[work])
        for (const int a : earlier_[b]) longest = std::max(longest, done[a]);
      until[work] = longest + nanos[work];
      for (const int b : used_[work]) done[b] = std::max(done[b], until[work]);
    }
    return until;
  }

 private:
  const Dag& dag_;
  const BuffersOf& used_;
  std::vector<Used> all_;
  std::vector<std::vector<int>> earlier_;  // by buffer: those that had some of its bytes before it
  std::vector<std::vector<int>> writes_;   // by work
  std::vector<int> by_begin_;
  int64_t bytes_ = 0;
};

int64_t longest_of(const std::vector<int64_t>& paths) {
  return paths.empty() ? 0 : *std::max_element(paths.begin(), paths.end());
}

}  // namespace

MemoryOrder place_in_order(const Dag& dag, const std::vector<double>& nanos, std::vector<Used>& all,
                           int64_t align) {
  // Whole nanoseconds, so that begins and ends compare alike in both directions of time.
  std::vector<int64_t> takes;
  for (const double each : nanos) takes.push_back(std::max<int64_t>(std::llround(each), 1));
  BuffersOf used(dag.size());
  for (size_t b = 0; b < all.size(); ++b)
    for (const int user : all[b].users) used[user].push_back(static_cast<int>(b));

  const std::vector<int> order = sorted_topologically(dag);
  const std::vector<int> turned_order(order.rbegin(), order.rend());
  Dag turned_dag = dag;
  std::swap(turned_dag.before, turned_dag.after);
  std::vector<int64_t> left(dag.size(), 0);  // the longest path that begins with each work
  for (const int work : turned_order) {
    for (const int next : dag.after[work]) left[work] = std::max(left[work], left[next]);
    left[work] += takes[work];
  }
  const double limit =
      machine::thresholds::kLongerForMemory * static_cast<double>(longest_of(left));

  MemoryOrder made;
  Times one_by_one{std::vector<int64_t>(order.size()), std::vector<int64_t>(order.size())};
  for (size_t k = 0; k < order.size(); ++k)
    one_by_one.begin[order[k]] = static_cast<int64_t>(k),
    one_by_one.end[order[k]] = static_cast<int64_t>(k) + 1;
  made.sequential = Sharing(dag, used, one_by_one, all, align).bytes();

  const Live nothing(all, used);
  const int64_t least = peak_of(order, nothing);
  int64_t most = 0;
  for (const Used& one : all) most += one.size;
  bool found = false;
  const auto consider = [&](const Times& times) {
    Sharing sharing(dag, used, times, all, align);
    const int64_t critical = longest_of(sharing.paths(takes));
    if (static_cast<double>(critical) > limit || (found && sharing.bytes() >= made.bytes)) return;
    found = true;
    made.bytes = sharing.bytes(), made.critical = static_cast<double>(critical);
    const std::vector<int64_t> chains = sharing.paths(std::vector<int64_t>(dag.size(), 1));
    made.waves = static_cast<int>(longest_of(chains));
    made.wave.clear();
    for (const int64_t chain : chains) made.wave.push_back(static_cast<int>(chain) - 1);
    all = std::move(sharing.all());
  };
  for (const double bound : machine::thresholds::kMemoryBounds) {
    const int64_t bytes =
        bound > 0 ? static_cast<int64_t>(bound * static_cast<double>(least)) : most;
    const Times forth = BoundedSchedule(dag, order, bytes, nothing).run(takes, left);
    // The other way round, the latest first: works are no earlier than what follows them needs.
    const Times back =
        turned(BoundedSchedule(turned_dag, turned_order, bytes, nothing).run(takes, forth.end));
    consider(forth), consider(back);
    if (found) break;
  }
  return made;
}

}  // namespace obelisk::schedule
