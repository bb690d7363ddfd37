#include "schedule/memory_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "machine/machine.h"
#include "schedule/places.h"

namespace obelisk::schedule {
namespace {

using machine::thresholds::kPackings;
using machine::thresholds::kTurns;

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

/// A list schedule in which live bytes never exceed a bound: while a worker is free, of the works
/// that are ready the most urgent begin, but none after which what is left could not run one by
/// one, in `order`, within the bound (a safe state, as of the banker's algorithm). It ends where
/// the peak of `order` is within the bound.
class BoundedSchedule {
 public:
  BoundedSchedule(const Dag& dag, const std::vector<int>& order, int64_t bound, Live nothing)
      : dag_(dag), order_(order), bound_(bound), live_(std::move(nothing)), place_(order.size()) {
    for (size_t k = 0; k < order.size(); ++k) place_[order[k]] = k;
  }

  Times run(const std::vector<int64_t>& nanos, const std::vector<Need>& needs, int64_t workers,
            const std::vector<int64_t>& urgency) {
    Times times{std::vector<int64_t>(order_.size(), -1), std::vector<int64_t>(order_.size(), -1)};
    std::vector<int> waits = indegrees(dag_);
    std::set<std::pair<int64_t, size_t>> ready;  // the most urgent first, of equals by `order`
    const auto release = [&](int work) { ready.insert({-urgency[work], place_[work]}); };
    for (const int work : order_)
      if (waits[work] == 0) release(work);
    std::set<std::pair<int64_t, int>> running;  // by end
    int64_t free = workers;  // below 0: the last to begin has fewer than it could take
    for (int64_t now = 0; !ready.empty() || !running.empty();) {
      for (auto at = ready.begin(); at != ready.end() && free > 0;) {
        const int work = order_[at->second];
        if (!safe(work, times.begin, running)) {
          ++at;
          continue;
        }
        live_.begin(work);
        free -= needs[work].workers;
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
        free += needs[work].workers;
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

/// The order that the Dag alone has: whether all users of one buffer lead to all writers of
/// another.
class ByValues {
 public:
  ByValues(const Dag& dag, const std::vector<Used>& all) : all_(all) {
    const auto reaches = Reachability::make(dag);
    CHECK(reaches.ok());
    for (const Used& one : all) {
      std::vector<uint64_t> bits(reaches->words(), one.users.empty() ? 0 : ~uint64_t{0});
      for (const int user : one.users)
        for (int k = 0; k < reaches->words(); ++k) bits[k] &= reaches->row(user)[k];
      after_.push_back(std::move(bits));
    }
  }
  bool precedes(size_t a, size_t b) const {
    return std::all_of(all_[b].writers.begin(), all_[b].writers.end(),
                       [&](int work) { return (after_[a][work / 64] >> (work % 64) & 1) != 0; });
  }

 private:
  const std::vector<Used>& all_;
  std::vector<std::vector<uint64_t>> after_;  // by buffer, works that all of its users lead to
};

/// Of each buffer those that the Dag alone does not keep apart from it, with how long after the
/// last use of one the first of the other comes: below 0, they may not share bytes.
struct Neighbour {
  size_t buffer = 0;
  int64_t gap = 0;
};
using Neighbours = std::vector<std::vector<Neighbour>>;

/// Offsets within `most` bytes, largest buffer first, each where those that have its bytes before
/// and after it are farthest from it in time: an edge of reuse that waits for nobody costs nothing.
/// Where not all lie within `most`, again: what lay on top goes before all others, and every
/// kTurns turns gaps count as equal from half as long on, so that buffers lie lower. Gives the
/// bytes of all, more than `most` where kPackings were not enough.
int64_t pack(std::vector<Used>& all, const Neighbours& near, int64_t longest, int64_t most,
             int64_t align) {
  const auto room = [&](size_t b) { return (all[b].size + align - 1) / align * align; };
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a].size > all[b].size; });
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int turn = 0; turn < kPackings && best > most; ++turn) {
    std::vector<int64_t> offset(all.size(), -1);
    std::vector<int64_t> breaks{0};  // offsets at which a buffer begins or ends, ascending
    const int64_t enough = longest >> (turn / kTurns);
    int64_t end = 0;
    size_t top = 0;  // in the order
    for (size_t k = 0; k < order.size(); ++k) {
      const size_t mine = order[k];
      const auto index = [&](int64_t at) {
        return static_cast<size_t>(std::lower_bound(breaks.begin(), breaks.end(), at) -
                                   breaks.begin());
      };
      std::vector<int64_t> least(breaks.size(), enough);  // gap to those between two breaks
      for (const auto& [other, gap] : near[mine]) {
        if (offset[other] < 0 || gap >= enough) continue;
        const size_t to = index(offset[other] + room(other));
        for (size_t at = index(offset[other]); at < to; ++at) least[at] = std::min(least[at], gap);
      }
      int64_t at = -1, widest = -1, lowest = -1;
      for (size_t from = 0; from < breaks.size(); ++from) {
        int64_t narrowest = enough;
        for (size_t to = from; to < breaks.size() && breaks[to] < breaks[from] + room(mine); ++to)
          narrowest = std::min(narrowest, least[to]);
        if (narrowest < 0) continue;
        if (lowest < 0) lowest = breaks[from];
        if (narrowest > widest && breaks[from] + room(mine) <= most)
          widest = narrowest, at = breaks[from];
      }
      if (at < 0) at = lowest;
      offset[mine] = at;
      if (at + room(mine) > end) end = at + room(mine), top = k;
      for (const int64_t edge : {at, at + room(mine)})
        if (const size_t place = index(edge); place == breaks.size() || breaks[place] != edge)
          breaks.insert(breaks.begin() + static_cast<std::ptrdiff_t>(place), edge);
    }
    if (end < best) {
      best = end;
      for (size_t b = 0; b < all.size(); ++b) all[b].offset = offset[b];
    }
    if (order.empty()) break;
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top),
                order.begin() + static_cast<std::ptrdiff_t>(top) + 1);
  }
  return best;
}

/// When a buffer is live.
struct Span {
  int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
};
std::vector<Span> spans_of(const std::vector<Used>& all, const Times& times) {
  std::vector<Span> spans(all.size());
  for (size_t b = 0; b < all.size(); ++b)
    for (const int user : all[b].users) {
      spans[b].first = std::min(spans[b].first, times.begin[user]);
      spans[b].last = std::max(spans[b].last, times.end[user]);
    }
  return spans;
}

/// The longest path that ends with each work: by the Dag, and from all users of bytes to those that
/// write there for another buffer.
std::vector<int64_t> paths_with_reuse(const Dag& dag, const BuffersOf& used, const Times& times,
                                      const std::vector<Used>& all,
                                      const std::vector<int64_t>& nanos) {
  const std::vector<Span> spans = spans_of(all, times);
  std::vector<std::vector<int>> earlier(all.size());  // those that had some of its bytes before it
  std::vector<std::vector<int>> writes(dag.size());
  for (size_t b = 0; b < all.size(); ++b) {
    for (const int writer : all[b].writers) writes[writer].push_back(static_cast<int>(b));
    for (size_t a = 0; a < all.size(); ++a)
      if (a != b && spans[a].last <= spans[b].first &&
          all[a].offset < all[b].offset + all[b].size &&
          all[b].offset < all[a].offset + all[a].size)
        earlier[b].push_back(static_cast<int>(a));
  }
  std::vector<int> by_begin(dag.size());
  std::iota(by_begin.begin(), by_begin.end(), 0);
  std::stable_sort(by_begin.begin(), by_begin.end(),
                   [&](int a, int b) { return times.begin[a] < times.begin[b]; });
  std::vector<int64_t> until(dag.size(), 0), done(all.size(), 0);
  for (const int work : by_begin) {
    int64_t longest = 0;
    for (const int before : dag.before[work]) longest = std::max(longest, until[before]);
    for (const int b : writes[work])
      for (const int a : earlier[b]) longest = std::max(longest, done[a]);
    until[work] = longest + nanos[work];
    for (const int b : used[work]) done[b] = std::max(done[b], until[work]);
  }
  return until;
}

int64_t longest_of(const std::vector<int64_t>& paths) {
  return paths.empty() ? 0 : *std::max_element(paths.begin(), paths.end());
}

/// The Dag the other way round.
Dag turned(Dag dag) {
  std::swap(dag.before, dag.after);
  return dag;
}

/// The longest path that begins with each work.
std::vector<int64_t> paths_from(const Dag& dag, const std::vector<int>& order,
                                const std::vector<int64_t>& nanos) {
  std::vector<int64_t> from(dag.size(), 0);
  for (auto work = order.rbegin(); work != order.rend(); ++work) {
    for (const int next : dag.after[*work]) from[*work] = std::max(from[*work], from[next]);
    from[*work] += nanos[*work];
  }
  return from;
}

class Planner {
 public:
  Planner(const Dag& dag, const std::vector<Need>& needs, int64_t workers, std::vector<Used>& all,
          int64_t align)
      : dag_(dag),
        turned_dag_(turned(dag)),
        needs_(needs),
        workers_(workers),
        align_(align),
        order_(sorted_topologically(dag)),
        turned_order_(order_.rbegin(), order_.rend()),
        all_(all),
        used_(dag.size()),
        by_values_(dag, all) {
    for (const Need& need : needs) nanos_.push_back(std::max<int64_t>(std::llround(need.nanos), 1));
    for (size_t b = 0; b < all.size(); ++b)
      for (const int user : all[b].users) used_[user].push_back(static_cast<int>(b));
    from_ = paths_from(dag, order_, nanos_);
  }

  MemoryOrder run(bool adds_edges) {
    one_by_one();
    by_the_dag_alone();
    const int64_t apart = made_.bytes;
    if (!adds_edges || all_.size() > machine::thresholds::kMostOrdered) return made_;
    const Live nothing(all_, used_);
    const int64_t least = peak_of(order_, nothing);
    const auto [unbounded, unbounded_back] = schedules(std::numeric_limits<int64_t>::max());
    forth_limit_ = limit_of(longest_of(unbounded.end));
    back_limit_ = limit_of(longest_of(unbounded_back.end));
    path_limit_ = limit_of(longest_of(from_));
    for (const double more : machine::thresholds::kMoreMemory) {
      most_ = static_cast<int64_t>(more * static_cast<double>(made_.sequential));
      if (apart <= most_) break;
      found_ = false;
      for (const double part : machine::thresholds::kPackedParts) {
        const auto bound = static_cast<int64_t>(part * more * static_cast<double>(least));
        const auto [forth, back] = schedules(std::max(bound, least));
        if (longest_of(forth.end) <= forth_limit_) consider(forth);
        if (longest_of(back.end) <= back_limit_) consider(back);
      }
      if (found_) break;
    }
    return made_;
  }

 private:
  static int64_t limit_of(int64_t nanos) {
    return static_cast<int64_t>(machine::thresholds::kLongerForMemory * static_cast<double>(nanos));
  }

  void one_by_one() {
    Times times{std::vector<int64_t>(order_.size()), std::vector<int64_t>(order_.size())};
    for (size_t k = 0; k < order_.size(); ++k)
      times.begin[order_[k]] = static_cast<int64_t>(k),
      times.end[order_[k]] = static_cast<int64_t>(k) + 1;
    const std::vector<Span> spans = spans_of(all_, times);
    std::vector<Used> placed = all_;
    made_.sequential = first_fit(placed, align_, [&](size_t a, size_t b) {
      return spans[a].first < spans[b].last && spans[b].first < spans[a].last;
    });
  }

  void by_the_dag_alone() {
    std::vector<Used> placed = all_;
    const int64_t bytes = first_fit(placed, align_, [&](size_t a, size_t b) {
      return !by_values_.precedes(a, b) && !by_values_.precedes(b, a);
    });
    Times times{from_, from_};  // any that keeps the Dag; here they begin as late as they may
    for (int work = 0; work < dag_.size(); ++work) {
      times.begin[work] = longest_of(from_) - from_[work];
      times.end[work] = times.begin[work] + nanos_[work];
    }
    take(times, std::move(placed), bytes, longest_of(from_));
  }

  /// One forth, by the longest path that is left; one back from the end, which begins with what
  /// ended last there: in it works are no earlier than what follows them needs.
  std::pair<Times, Times> schedules(int64_t bound) const {
    const Live nothing(all_, used_);
    Times forth =
        BoundedSchedule(dag_, order_, bound, nothing).run(nanos_, needs_, workers_, from_);
    Times back = turned(BoundedSchedule(turned_dag_, turned_order_, bound, nothing)
                            .run(nanos_, needs_, workers_, forth.end));
    return {std::move(forth), std::move(back)};
  }

  /// The plan of a schedule, where it is within the limits and has shorter paths than the one that
  /// was found.
  void consider(const Times& times) {
    const std::vector<Span> spans = spans_of(all_, times);
    std::vector<Used> placed = all_;
    Neighbours near(all_.size());
    for (size_t a = 0; a < all_.size(); ++a)
      for (size_t b = 0; b < a; ++b) {
        const bool first = spans[a].first < spans[b].first;
        const size_t earlier = first ? a : b, later = first ? b : a;
        if (by_values_.precedes(earlier, later)) continue;
        const int64_t gap = spans[later].first - spans[earlier].last;
        near[a].push_back({b, gap}), near[b].push_back({a, gap});
      }
    const int64_t bytes = pack(placed, near, longest_of(times.end), most_, align_);
    const int64_t critical = longest_of(paths_with_reuse(dag_, used_, times, placed, nanos_));
    if (bytes > most_ || critical > path_limit_) return;
    if (found_ && static_cast<double>(critical) >= made_.critical) return;
    take(times, std::move(placed), bytes, critical);
    found_ = true;
  }

  void take(const Times& times, std::vector<Used> placed, int64_t bytes, int64_t critical) {
    const std::vector<int64_t> chains = paths_with_reuse(
        dag_, used_, times, placed, std::vector<int64_t>(static_cast<size_t>(dag_.size()), 1));
    made_.bytes = bytes, made_.critical = static_cast<double>(critical);
    made_.waves = static_cast<int>(longest_of(chains));
    made_.wave.clear();
    for (const int64_t chain : chains) made_.wave.push_back(static_cast<int>(chain) - 1);
    all_ = std::move(placed);
  }

  const Dag& dag_;
  const Dag turned_dag_;
  const std::vector<Need>& needs_;
  const int64_t workers_, align_;
  const std::vector<int> order_, turned_order_;
  std::vector<Used>& all_;
  BuffersOf used_;
  const ByValues by_values_;
  // Whole nanoseconds, so that begins and ends compare alike in both directions of time.
  std::vector<int64_t> nanos_, from_;
  int64_t most_ = 0, forth_limit_ = 0, back_limit_ = 0, path_limit_ = 0;
  bool found_ = false;
  MemoryOrder made_;
};

}  // namespace

MemoryOrder place_in_order(const Dag& dag, const std::vector<Need>& needs, int64_t workers,
                           std::vector<Used>& all, int64_t align, bool adds_edges) {
  return Planner(dag, needs, workers, all, align).run(adds_edges);
}

}  // namespace obelisk::schedule
