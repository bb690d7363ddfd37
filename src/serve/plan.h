/// serve/plan.h — when what waits will end, if nothing else comes.
///
///   in   Window (who waits, what runs), Times, the time, a Policy
///   out  an end for each request, as it is or with a change
///
/// List scheduling: in the order in which the scheduler prefers them, requests get the slots that
/// are free first, in the program that the scheduler would choose for them there, together with
/// those of the same model that are in time in its batch. One that cannot be in time any more takes
/// no slots. Admission asks it before it gives its word, the scheduler before it lets a program run
/// within or beside others.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "serve/program_times.h"

namespace obelisk::serve {

class Plan {
 public:
  Plan(const Window& window, const Times& times, Time now, const Policy& policy);

  /// What may be otherwise than it is.
  struct Change {
    const Job* added = nullptr;   // it waits, too
    const Job* leaves = nullptr;  // it waits no more
    uint64_t run = 0;             // it ends later by `delay`
    int machine = -1;             // all its slots become free so much later
    Time delay{0};
  };
  /// When the request that a change adds will end; kNever: the model has no program for it.
  Time end_of_added(const Change& change);
  /// Whether the change makes a request late that is in time without it, or brings one that waits
  /// nearer to its deadline than caution allows. One of lower priority than who is added counts for
  /// nothing; of runs only those of `machine` are looked at.
  bool makes_late(const Change& change);
  /// How long those take, one after the other on as few slots as may be, that are due before a time
  /// and will be late as it is.
  Time late_before(Time due);

 private:
  /// Of a model that hold so many rows.
  struct Programs {
    struct One {
      const VariantTime* variant = nullptr;
      Time alone{0}, usual{0};
    };
    const ModelTimes* model = nullptr;
    std::vector<One> all;
    int batch = 0;      // the smallest one
    int narrowest = 0;  // of it
    Time away{0}, quickest = kNever;
  };
  struct Item {
    const Job* job = nullptr;
    Time due{0};
    const Programs* programs = nullptr;
    double slower = 1;   // than predicted, of late
    bool added = false;  // by a Change
  };
  struct Free {
    Time at{0};
    int slots = 0;
  };
  struct Place {
    size_t machine = 0, entry = 0;
    Time start{0}, end = kNever;
    const Programs::One* program = nullptr;
    bool late = false;
  };
  Item item_of(const Job& job, Time due);
  static bool before(const Item& a, const Item& b);
  /// The end of each item, of what is added last.
  std::vector<Time> ends_with(const Change& change);
  const std::vector<Time>& changed(const Change& change);
  /// `others`: launches that wait beside it; `waiting`: requests of its model; behind: its model's
  /// runs, where it follows them.
  Place place(const Item& item, int others, int waiting, bool behind) const;
  Place best_of(const Item& item, Place place, int slots, const Room& room, double margin,
                bool alone) const;
  int coming(const Job& job, Time until) const;
  bool is_small(const Item& item, const Programs::One& program, Time start, int rows) const;
  void take(const Place& place);
  Time* own_end(size_t machine, int model);
  bool is_late(const Item& item, Time end, bool cautious) const;
  const std::vector<Time>& as_it_is();

  const Window& window_;
  const Times& times_;
  const Time now_;
  const Policy& policy_;
  const bool narrow_;                                 // programs side by side
  std::map<std::pair<int, int>, Programs> programs_;  // by model and rows
  std::vector<Item> items_;
  bool all_ = true;  // that waits is in items_
  std::vector<Time> as_it_is_, changed_;
  const Job* added_ = nullptr;                       // with which, and no other change, changed_ is
  std::vector<std::vector<Free>> free_;              // by machine, while a plan is made: sorted
  std::map<std::pair<size_t, int>, Time> own_ends_;  // by machine and model: own_end()
  std::vector<int> runs_;  // by model whose batches follow one another: that run, or have a place
};

}  // namespace obelisk::serve
