/// serve/window.h — what the scheduler sees: requests that wait, programs that run, what every
/// tenant has had.
///
/// Plain data with a few verbs. It knows no threads and no clock: its owner says what
/// happened and when. The same calls in the same order leave the same window.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "serve/policy.h"
#include "serve/request.h"
#include "serve/times.h"

namespace obelisk::serve {

/// A request as far as the scheduler cares.
struct Job {
  uint64_t key = 0;
  int model = 0, tenant = 0, priority = 0, rows = 1;
  Time arrival{0};
  Time deadline = kNever;  // a point, not a budget; kNever: none
};

/// Requests of one model, tenant and priority, all with a deadline or all without, most urgent
/// first.
struct Flow {
  int model = 0, tenant = 0, priority = 0;
  bool bounded = false;
  struct Waiting {
    Time due;  // due_of()
    Job job;
    bool operator<(const Waiting& other) const {
      return due != other.due ? due < other.due : job.key < other.job.key;
    }
  };
  std::set<Waiting> waiting;
  Time served{0};  // when a program of it was started last, or when it began to wait after having
                   // been empty
};

/// By what a flow is ordered: the deadline, or what stands for it; of policies that know no
/// deadlines the arrival.
Time due_of(const Job& job, const Policy& policy);

struct Tenant {
  double weight = 1;
  double used = 0;  // slot-nanoseconds over the weight, of what was started; never behind who waits
  int waiting = 0;
  /// Until when it wants more than it has: for Policy::patience, or until its deadline, since a
  /// request of it was refused for load.
  Time wanted = -kNever;
  double ratio = 1;  // measured over predicted, of late
  bool demoted = false;
};

/// Why something was decided; to_string() tells it to people.
enum class Why : uint8_t {
  kInTurn,    // first in the policy's order, the whole machine to itself
  kBeside,    // first in the policy's order, beside others
  kWidest,    // nobody else has work for the slots
  kShared,    // as wide as the others that wait leave room
  kWidened,   // wider than its part, for its deadline
  kOverlaps,  // beside programs that have the slots: on slots that become free it would be late
  kPassed,    // the deadline passed
  kHopeless,  // it would have passed before an answer
  kQueueFull,
  kTooShort,  // no program of the model is that quick, even alone
  kLoad,      // what is ahead of it makes it late
  kNoProgram,
  kWithin,  // within a run that gives way to it: on slots that become free it would be late. Last,
            // for records have the numbers
};
std::string to_string(Why why);

/// A program to be started now.
struct Start {
  int machine = 0, model = 0, variant = 0;  // variant: into the model's times
  int slots = 0;                            // that it occupies
  int rows = 0;
  Time predicted{0}, slack{0};  // slack: of its most urgent request, by that prediction
  Why why = Why::kInTurn;
  bool held = false;  // it waited for partners before
  // Of one that overlaps, which has no slots: how many its program fills, and by what it makes
  // those longer that run on its machine.
  int beside = 0;
  Time delay{0};
  // Of one that runs within another, which gives it slots and goes on behind it: the run that it is
  // in, 0: none; slots that it borrows; the longest until it begins.
  uint64_t within = 0;
  int borrows = 0;
  Time wait{0};
  int launch = 0;  // starts with the same number, above 0, share a launch
  std::vector<Job> jobs;
};

/// Slot-nanoseconds that one of its requests has of it.
double slot_time(const Start& start, const Job& job);

/// A request that is not going to run.
struct GiveUp {
  Job job;
  Why why = Why::kPassed;
};

struct Decisions {
  std::vector<Start> starts;
  std::vector<GiveUp> given_up;
  Time wake = kNever;  // decide again then, if nothing happens before
};

/// A program that runs.
struct Running {
  uint64_t id = 0;
  int machine = 0, model = 0, variant = 0, slots = 0,
      tenant = 0;  // tenant: of its most urgent request
  int requests = 0;
  Time started{0}, predicted{0};
  int beside = 0;                    // as of its start
  std::vector<Time> deadlines = {};  // of its requests that have one
  int priority = 0;                  // the most urgent of its requests'
  // As of its start; `within` becomes 0 where that run ends first, and leaves it slots.
  uint64_t within = 0;
  int borrows = 0;
  Time wait{0};
  bool shares = false;  // a launch: then it gives way to nobody
  Time paused{0};       // that runs within it took; `predicted` has it, too
  double slower = 1;    // Window::slower as of its start: `predicted` has it, too
};

class Window {
 public:
  Window(int machines, int slots)
      : slots_(slots),
        free_(static_cast<size_t>(machines), slots),
        ended_(static_cast<size_t>(machines), -kNever) {}

  // ---- what happens ----
  int add_tenant(double weight);
  void arrive(const Job& job, const Policy& policy);
  /// It was not taken, for the work ahead of it: its tenant wants more than it has.
  void refuse(const Job& job, const Policy& policy);
  /// Takes a request that waits out again; nothing when it does not wait.
  std::optional<Job> cancel(uint64_t key);
  std::vector<Job> cancel_model(int model);
  /// Does what was decided. Returns the number of the first start; the others follow.
  uint64_t apply(const Decisions& decisions, const Policy& policy, Time now);
  /// `took`: how long it ran, with what ran within it; `waited`: before, for another to give way.
  /// Measured times move what is known of its tenant.
  void finish(uint64_t run, Time took, const Policy& policy, Time waited = Time(0));
  /// A model is gone, and nothing of it waits or runs: what was learnt of it is not the next one's
  /// that gets its number.
  void forget(int model);

  // ---- what is ----
  int machines() const { return static_cast<int>(free_.size()); }
  int slots() const { return slots_; }
  int free(int machine) const { return free_[static_cast<size_t>(machine)]; }
  /// Of these, what programs that overlap leave: they have the slots that become free.
  int left(int machine) const;
  const std::vector<Flow>& flows() const { return flows_; }
  const std::vector<Tenant>& tenants() const { return tenants_; }
  const std::vector<Running>& running() const { return running_; }
  /// When a run of a machine ended last.
  Time ended(int machine) const { return ended_[static_cast<size_t>(machine)]; }
  int waiting() const { return waiting_; }
  int waiting_of(int model) const {
    return static_cast<size_t>(model) < by_model_.size() ? by_model_[static_cast<size_t>(model)]
                                                         : 0;
  }
  int running_of(int model) const;
  /// Between two requests of a model, of late; kNever before the second.
  Time gap(int model) const {
    return static_cast<size_t>(model) < gaps_.size() ? gaps_[static_cast<size_t>(model)].mean
                                                     : kNever;
  }
  /// Some of the requests that came last, of models that are still there, the newest last.
  struct Arrived {
    Time at{0};
    int model = -1;
  };
  const std::deque<Arrived>& arrived() const { return arrived_; }
  /// What admission adds to the end that is predicted for a request which waits for so long and
  /// then takes so long: caution times the standard deviation of as many runs, one behind the
  /// other.
  Time allowance(int model, Time waits, Time takes, const Policy& policy) const;
  /// Of a model that nothing is known of. It rises where more of those that were admitted missed
  /// their deadline than Policy::promise allows, and falls with those that did not.
  static constexpr double kFirstCaution = 3;  // chosen: less refuses less and misses more at first
  double caution(int model, const Policy& policy) const {
    if (policy.promise <= 0 || policy.promise >= 1) return 0;
    return static_cast<size_t>(model) < caution_.size() ? caution_[static_cast<size_t>(model)]
                                                        : kFirstCaution;
  }
  /// How much longer than predicted a tenant's run is expected to take: as its own did of late, or
  /// those of all (Policy::pace), whichever is more. At least 1.
  double slower(int tenant, const Policy& policy) const {
    const double own = std::max(tenants_[static_cast<size_t>(tenant)].ratio, 1.0);
    return policy.pace ? std::max(own, pace_) : own;
  }
  /// What that tenant has had that has had least of those that want more, or, if asked for, that
  /// wait; -1: there is none.
  double least_used(Time now, bool that_wait) const;
  int last_flow() const { return last_flow_; }  // that was started, for turns

 private:
  void left(const Job& job);
  void come(const Job& job);
  void forget_pace();
  void judge(int model, bool in_time, const Policy& policy);
  static void move_ratio(Tenant& tenant, double ratio, const Policy& policy);
  int slots_;
  std::vector<int> free_;
  std::vector<Time> ended_;  // by machine
  std::vector<Flow> flows_;
  std::map<std::tuple<int, int, int, bool>, int> flow_of_;
  std::vector<Tenant> tenants_;
  std::vector<Running> running_;
  std::vector<int> by_model_;
  struct Gap {
    Time last = -kNever, mean = kNever;
  };
  std::vector<Gap> gaps_;        // by model
  std::vector<double> caution_;  // by model
  /// Requests with a deadline in one run of a model, of late.
  std::vector<double> together_;
  // Of runs that took longer than predicted for their tenant, the mean square of by how much, of
  // late; the others count as none.
  double longer_ = kFirstSpread * kFirstSpread / 2;
  static constexpr double kFirstSpread = 0.1;
  double pace_ = 1;                        // measured over predicted, of all runs of late
  static constexpr double kOfPace = 0.25;  // chosen: of a few runs, some tens of milliseconds each
  std::deque<Arrived> arrived_;
  uint64_t next_run_ = 1;
  int waiting_ = 0, last_flow_ = -1;
};

}  // namespace obelisk::serve
