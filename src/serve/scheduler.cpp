#include "serve/scheduler.h"

#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "base/check.h"

namespace obelisk::serve {
namespace {

constexpr Time kLongAgo = -kNever;

using Place = std::set<Flow::Waiting>::const_iterator;

Time scaled(Time time, double by) {
  return Time(static_cast<int64_t>(static_cast<double>(time.count()) * by));
}

/// Runs of a variant that so many rows take: more than one only where no larger batch is there yet.
int passes(const VariantTime& variant, int rows) {
  return (rows + variant.batch - 1) / variant.batch;
}

int largest(const ModelTimes& model) {
  int most = 0;
  for (const VariantTime& variant : model.variants) most = std::max(most, variant.batch);
  return most;
}

/// Whether a request of so many rows may go to a variant.
bool holds(const ModelTimes& model, const VariantTime& variant, int rows) {
  return variant.batch >= std::min(rows, largest(model));
}

/// The smallest batch that holds a request.
int smallest(const ModelTimes& model, int rows) {
  int least = 0;
  for (const VariantTime& variant : model.variants)
    if (holds(model, variant, rows) && (least == 0 || variant.batch < least)) least = variant.batch;
  return least;
}

/// By what programs are slowed down that fill so many slots of a machine that has `slots`.
double crowded(int fill, int slots) {
  return std::max(static_cast<double>(fill) / static_cast<double>(slots), 1.0);
}

/// What a run takes: beside others where it leaves room for them, else as of late.
Time usual(const VariantTime& variant) { return std::max(variant.alone, variant.beside); }

/// Whether a narrower program of the same batch is no slower: then the slots are wasted on it.
bool wasteful(const ModelTimes& model, const VariantTime& variant) {
  return std::any_of(model.variants.begin(), model.variants.end(), [&](const VariantTime& other) {
    return other.batch == variant.batch && other.width < variant.width &&
           usual(other) <= usual(variant);
  });
}

/// The longest until a run gives way to a request of a priority; nothing: it does not. It does so
/// to one at a time, and who runs within another to nobody.
std::optional<Time> gives_way(const Times& times, const Policy& policy, const Running& run,
                              int priority) {
  const auto& variants = times.models[static_cast<size_t>(run.model)].variants;
  if (policy.kind != PolicyKind::kVliw || !policy.segments || run.slots == 0 || run.shares ||
      priority > run.priority || static_cast<size_t>(run.variant) >= variants.size())
    return std::nullopt;
  const VariantTime& variant = variants[static_cast<size_t>(run.variant)];
  if (variant.segment == kNever) return std::nullopt;
  // Its parts are as much longer than alone as it is.
  return scaled(variant.segment, static_cast<double>(usual(variant).count()) /
                                     static_cast<double>(std::max(variant.alone, Time(1)).count()));
}

/// Slot-time of the program that takes least of it.
Time least_of_slots(const ModelTimes& model, int rows) {
  Time least = kNever;
  for (const VariantTime& variant : model.variants)
    if (holds(model, variant, rows))
      least = std::min(least, usual(variant) * passes(variant, rows) * variant.width);
  return least == kNever ? Time(0) : least;
}

/// What may run within a run from now on: no deadline is missed for that which the run, or one of
/// `waiting`, who may wait for its slots and get them in the order of their deadlines, is going to
/// meet, and in all it stands still for no longer than it runs itself, or for Policy::patience.
Time room_in(const Running& run, const Times& times, Time now, const Policy& policy,
             std::vector<const Job*> waiting, int slots) {
  Time room = std::max(run.predicted - run.paused, policy.patience) - run.paused;
  const Time end = std::max(run.started + run.predicted, now);
  const auto keep = [&](Time deadline) {
    if (end <= deadline) room = std::min(room, deadline - end);
  };
  for (const Time deadline : run.deadlines) keep(deadline);
  std::ranges::sort(waiting, {}, &Job::deadline);
  Time before{0};  // all slots, for those that go first
  for (const Job* job : waiting) {
    const Time takes =
        scaled(quickest(times.models[static_cast<size_t>(job->model)], job->rows), policy.margin);
    keep(job->deadline - takes), keep(job->deadline - takes - before);
    before += least_of_slots(times.models[static_cast<size_t>(job->model)], job->rows) / slots;
  }
  return room;
}

/// Decisions as they are made: what is taken of each flow, what is left of each machine.
class Deciding {
 public:
  Deciding(const Window& window, const Times& times, Time now, const Policy& policy)
      : window_(window), times_(times), now_(now), policy_(policy) {
    flows_.resize(window.flows().size());
    for (size_t f = 0; f < flows_.size(); ++f) {
      const Flow& flow = window.flows()[f];
      if (!flow.waiting.empty()) active_.push_back(f);
      flows_[f].next = flow.waiting.begin();
    }
    for (int m = 0; m < window.machines(); ++m)
      free_.push_back(std::max(window.left(m), 0)), programs_.push_back(0);
    for (const Running& run : window.running()) ++programs_[static_cast<size_t>(run.machine)];
    for (const size_t f : active_) flows_[f].skipped = model_of(f).away > Time(0);
  }

  Decisions decide() {
    give_up();
    switch (policy_.kind) {
      case PolicyKind::kVliw:
        vliw();
        break;
      default:
        one_by_one();
    }
    for (const size_t f : active_)
      if (waits(f) && head(f).deadline != kNever) wake(head(f).deadline - last_chance(f) + Time(1));
    return std::move(made_);
  }

 private:
  bool waits(size_t f) const { return flows_[f].next != window_.flows()[f].waiting.end(); }
  const Job& head(size_t f) const { return flows_[f].next->job; }
  Time due(size_t f) const { return flows_[f].next->due; }
  const ModelTimes& model(int number) const { return times_.models[static_cast<size_t>(number)]; }
  const ModelTimes& model_of(size_t f) const { return model(window_.flows()[f].model); }
  const Tenant& tenant_of(size_t f) const {
    return window_.tenants()[static_cast<size_t>(window_.flows()[f].tenant)];
  }
  void wake(Time at) {
    if (at > now_) made_.wake = std::min(made_.wake, at);
  }

  /// Before the deadline of a flow's head, when it is given up.
  Time last_chance(size_t f) const {
    return policy_.drop == Drop::kHopeless ? quickest(model_of(f), head(f).rows) : Time(0);
  }

  void give_up() {
    for (const size_t f : active_)
      while (waits(f) && head(f).deadline != kNever && now_ + last_chance(f) > head(f).deadline) {
        made_.given_up.push_back(
            {head(f), now_ > head(f).deadline ? Why::kPassed : Why::kHopeless});
        ++flows_[f].next;
      }
  }

  // ---- the simple policies: a program at a time, or some, each with the whole machine ----

  /// The variant of the widest programs for so many rows: the smallest batch that holds them.
  int whole(const ModelTimes& model, int rows) const {
    int best = -1;
    for (size_t v = 0; v < model.variants.size(); ++v) {
      const VariantTime& variant = model.variants[v];
      if (!holds(model, variant, rows)) continue;
      if (best < 0) best = static_cast<int>(v);
      const VariantTime& chosen = model.variants[static_cast<size_t>(best)];
      if (variant.batch < chosen.batch ||
          (variant.batch == chosen.batch &&
           std::pair(usual(variant), variant.width) < std::pair(usual(chosen), chosen.width)))
        best = static_cast<int>(v);
    }
    return best;
  }

  bool before(size_t a, size_t b) const {
    if (policy_.kind == PolicyKind::kTime) {
      // The flow after the one that had its turn.
      const size_t n = flows_.size(), last = static_cast<size_t>(last_turn_ + 1);
      return (a + n - last) % n < (b + n - last) % n;
    }
    return due(a) != due(b) ? due(a) < due(b) : head(a).key < head(b).key;
  }

  void one_by_one() {
    last_turn_ = window_.last_flow();
    const bool side_by_side = policy_.kind == PolicyKind::kStreams;
    while (true) {
      int machine = -1;
      for (int m = 0; m < window_.machines(); ++m) {
        const bool room = side_by_side ? programs_[static_cast<size_t>(m)] < policy_.streams
                                       : programs_[static_cast<size_t>(m)] == 0;
        if (room && (machine < 0 ||
                     programs_[static_cast<size_t>(m)] < programs_[static_cast<size_t>(machine)]))
          machine = m;
      }
      if (machine < 0) return;
      int chosen = -1;
      for (const size_t f : active_)
        if (waits(f) && !flows_[f].skipped &&
            (chosen < 0 || before(f, static_cast<size_t>(chosen))))
          chosen = static_cast<int>(f);
      if (chosen < 0) return;
      const auto f = static_cast<size_t>(chosen);
      Start start{.machine = machine,
                  .model = window_.flows()[f].model,
                  .slots = side_by_side ? 0 : window_.slots(),
                  .why = side_by_side ? Why::kBeside : Why::kInTurn};
      start.jobs.push_back(head(f)), start.rows = head(f).rows;
      ++flows_[f].next;
      if (policy_.kind == PolicyKind::kBatch) join(start, largest(model(start.model)), kLongAgo);
      start.variant = whole(model(start.model), start.rows);
      if (start.variant < 0) {  // no program yet
        --flows_[f].next;
        flows_[f].skipped = true;
        continue;
      }
      last_turn_ = chosen;
      const ModelTimes& timed = model(start.model);
      const VariantTime& variant = timed.variants[static_cast<size_t>(start.variant)];
      start.predicted = variant.alone;
      const auto beside = static_cast<size_t>(programs_[static_cast<size_t>(machine)]);
      if (side_by_side && !timed.streams.empty())
        start.predicted = timed.streams[std::min(beside, timed.streams.size() - 1)];
      if (side_by_side && timed.streams.empty())
        start.predicted *= static_cast<int64_t>(beside) + 1;
      start.predicted *= passes(variant, start.rows);
      begin(std::move(start));
    }
  }

  /// The rest of the flows' heads that fit into the batch and whose deadline is not before `end`,
  /// most urgent first.
  void join(Start& start, int batch, Time end) {
    while (start.rows < batch) {
      int chosen = -1;
      for (const size_t f : active_) {
        if (window_.flows()[f].model != start.model || !waits(f) ||
            start.rows + head(f).rows > batch)
          continue;
        if (head(f).deadline < end) continue;
        if (chosen < 0 || due(f) < due(static_cast<size_t>(chosen))) chosen = static_cast<int>(f);
      }
      if (chosen < 0) return;
      start.jobs.push_back(head(static_cast<size_t>(chosen))), start.rows += start.jobs.back().rows;
      ++flows_[static_cast<size_t>(chosen)].next;
    }
  }

  void begin(Start start) {
    free_[static_cast<size_t>(start.machine)] -= start.slots;
    ++programs_[static_cast<size_t>(start.machine)];
    Time first = kNever;
    for (const Job& job : start.jobs) first = std::min(first, job.deadline);
    start.slack = first == kNever ? kNever : first - now_ - start.wait - start.predicted;
    made_.starts.push_back(std::move(start));
  }

  // ---- vliw ----

  /// What is expected of a run, beside others where it leaves room for them.
  Time expected(size_t f, const VariantTime& variant) const {
    return scaled(usual(variant) * passes(variant, head(f).rows),
                  std::max(tenant_of(f).ratio, 1.0));
  }

  /// The same while nothing else runs.
  Time alone(size_t f, const VariantTime& variant) const {
    return scaled(variant.alone * passes(variant, head(f).rows), std::max(tenant_of(f).ratio, 1.0));
  }

  /// Flows of tenants whose program runs for far longer than it should, or whose programs did so of
  /// late.
  void find_stragglers() {
    std::vector<bool> straggles(window_.tenants().size());
    for (size_t t = 0; t < straggles.size(); ++t) straggles[t] = window_.tenants()[t].demoted;
    for (const Running& run : window_.running())
      if (now_ - run.started - run.wait > scaled(run.predicted, policy_.straggler))
        straggles[static_cast<size_t>(run.tenant)] = true;
    for (const size_t f : active_)
      flows_[f].straggling = straggles[static_cast<size_t>(window_.flows()[f].tenant)];
  }

  /// Smaller comes first.
  struct Rank {
    int standing, priority, bin;
    int shorter;  // bins of powers of two, too: times that were measured alike are alike
    int clash;
    Time due;
    auto operator<=>(const Rank&) const = default;
  };
  Rank rank(size_t f, int machine) const {
    const Flow& flow = window_.flows()[f];
    const Time quick = quickest(model_of(f), head(f).rows);
    int standing = 1;
    if (used_[static_cast<size_t>(flow.tenant)] - least_used_ > share_slack()) standing = 2;
    if (flows_[f].straggling) standing = 3;
    if (now_ - flow.served > policy_.patience) standing = 0;
    const Time slack = std::max(due(f) - now_ - quick, Time(0));
    const int bin = std::bit_width(static_cast<uint64_t>(slack.count()) >> 14);
    const auto& [of_memory, of_arithmetic] = bound_[static_cast<size_t>(machine)];
    const int clash = (of_memory - of_arithmetic) * (model_of(f).bound == Bound::kMemory ? 1 : -1);
    const int shorter = -static_cast<int>(std::bit_width(static_cast<uint64_t>(quick.count())));
    return {standing, flow.priority, bin, shorter, clash > 0 ? 1 : 0, due(f)};
  }

  /// Slot-nanoseconds that a tenant may be ahead of another.
  double share_slack() const {
    return policy_.shares ? static_cast<double>(policy_.share_slack.count()) * window_.slots() *
                                window_.machines()
                          : INFINITY;
  }

  void vliw() {
    left_.assign(times_.models.size(), 0);
    for (const size_t f : active_)  // models whose weights are away get no slots
      if (const int m = window_.flows()[f].model; model(m).away == Time(0))
        left_[static_cast<size_t>(m)] = window_.waiting_of(m);
    for (const GiveUp& given : made_.given_up)
      if (model(given.job.model).away == Time(0)) --left_[static_cast<size_t>(given.job.model)];
    for (const int left : left_) claims_ += left;
    if (policy_.foresee)
      for (size_t m = 0; m < left_.size(); ++m)
        if (const Time gap = window_.gap(static_cast<int>(m)); gap != kNever)
          rate_ += 1 / std::max(static_cast<double>(gap.count()), 1.0);
    for (const Tenant& tenant : window_.tenants()) used_.push_back(tenant.used);
    find_stragglers();
    bound_.assign(free_.size(), {0, 0});
    for (const Running& run : window_.running()) {
      auto& [of_memory, of_arithmetic] = bound_[static_cast<size_t>(run.machine)];
      ++(model(run.model).bound == Bound::kMemory ? of_memory : of_arithmetic);
    }
    reserved_.assign(free_.size(), {kNever, 0});
    for (const bool may_hold : {true, false}) {
      while (place_one(may_hold)) {
      }
      for (const size_t f : active_)
        if (flows_[f].held && flows_[f].gathers.width == 0)
          flows_[f].skipped = false;  // slots are left over: no reason to hold
    }
    if (policy_.instances)
      while (stop_gathering())
        while (place_one(false)) {
        }
    while (overlap())  // who stood behind those may have room
      while (place_one(false)) {
      }
    for (const size_t f : active_)
      if (flows_[f].gathers.width > 0) wake(flows_[f].gathers.until);
    if (policy_.instances) share_launches();
  }

  // ---- vliw: programs beside those that have the slots, or within them ----

  /// Whether more wait than the head of a flow whose deadlines are before this one's: a run that
  /// gave way to it would end later for them all, and only heads are looked at.
  bool passes_a_queue(size_t f) const {
    return std::ranges::any_of(active_, [&](size_t other) {
      if (!window_.flows()[other].bounded) return false;
      const auto& waiting = window_.flows()[other].waiting;
      const auto head = flows_[other].next;
      return head != waiting.end() && head->due < due(f) && std::next(head) != waiting.end() &&
             std::next(head)->due < due(f);
    });
  }

  /// What is too late for slots that become free starts at once within a program that has some and
  /// gives way, or else beside them all, where it is in time so and makes nobody late. Most urgent
  /// first; those that can wait keep the slots that they wait for. Whether any started.
  bool overlap() {
    const bool cut =
        std::any_of(window_.running().begin(), window_.running().end(), [&](const Running& run) {
          return gives_way(times_, policy_, run, run.priority).has_value();
        });
    if (policy_.overlap == 0 && !cut) return false;
    bool neglected = false;  // somebody is: slots that become free are not for those beside
    std::vector<size_t> urgent;
    for (const size_t f : active_) {
      if (!waits(f) || model_of(f).away > Time(0) || flows_[f].gathers.width > 0) continue;
      neglected |= now_ - window_.flows()[f].served > policy_.patience;
      if (head(f).deadline != kNever) urgent.push_back(f);
    }
    if (neglected && !cut) return false;
    std::sort(urgent.begin(), urgent.end(), [&](size_t a, size_t b) {
      return due(a) != due(b) ? due(a) < due(b) : head(a).key < head(b).key;
    });
    ends_.assign(free_.size(), {});
    std::vector<int> fill(free_.size(), 0), beside(free_.size(), 0);
    const auto note = [&](int machine, Time end, int slots, int aside) {
      const auto m = static_cast<size_t>(machine);
      ends_[m].emplace_back(end, slots + aside);
      fill[m] += slots + aside, beside[m] += aside > 0;
    };
    for (const Running& run : window_.running()) {
      Time end = run.started + run.predicted;
      if (const Start* guest = within(run)) end += guest->delay;
      note(run.machine, std::max(end, now_), run.slots, run.beside);
    }
    for (const Start& start : made_.starts)
      note(start.machine, now_ + start.predicted, start.slots, start.beside);
    for (size_t m = 0; m < free_.size(); ++m) {
      ends_[m].emplace_back(
          now_, free_[m] > 0 ? free_[m] : std::min(window_.left(static_cast<int>(m)), 0));
      std::sort(ends_[m].begin(), ends_[m].end());
    }
    bool any = false;
    for (const size_t f : urgent) {
      const std::optional<Within> way = cut && !passes_a_queue(f) ? way_within(f) : std::nullopt;
      if (const auto later = slots_later(f);
          later && !better_beside(f, *later) && (!way || now_ < way->last)) {
        if (way) wake(way->last);
        take_slots(*later);
        continue;
      }
      if (way) {
        start_within(f, *way);
        flows_[f].skipped = false, any = true;
        continue;
      }
      if (neglected) continue;
      size_t m = free_.size();
      for (size_t other = 0; other < free_.size(); ++other)
        if (beside[other] < policy_.overlap && reserved_[other].at == kNever &&
            (m == free_.size() || fill[other] < fill[m]))
          m = other;
      if (m == free_.size()) continue;
      const int before = fill[m];
      if (start_beside(f, static_cast<int>(m), fill[m])) {
        ++beside[m];
        free_[m] = std::max(free_[m] - (fill[m] - before), 0);
        flows_[f].skipped = false, any = true;
      }
    }
    return any;
  }

  /// A run that a flow's head could be within, by which of the model's programs.
  struct Within {
    const Running* run = nullptr;
    int variant = -1;
    Time wait{0}, takes{0};
    Time last{0};  // from then on it does not rely on slots that are to become free: half of its
                   // time is over, or one part of the run later it would be too late for this
  };
  /// What was started within a run just now.
  const Start* within(const Running& run) const {
    for (const Start& start : made_.starts)
      if (start.within == run.id) return &start;
    return nullptr;
  }
  /// The program that ends first: the run stands still meanwhile, so that all its slots are there
  /// for it. Of those that end about then, the narrowest.
  std::optional<Within> way_within(size_t f) const {
    const ModelTimes& timed = model_of(f);
    const Job& job = head(f);
    std::vector<const Job*> others;  // the first of each flow, but for this one
    for (const size_t other : active_) {
      if (!window_.flows()[other].bounded || !waits(other)) continue;
      const Place first = other == f ? std::next(flows_[f].next) : flows_[other].next;
      if (first != window_.flows()[other].waiting.end()) others.push_back(&first->job);
    }
    std::optional<Within> best;
    for (const Running& run : window_.running()) {
      const auto wait = gives_way(times_, policy_, run, window_.flows()[f].priority);
      const auto inside = [&](const Running& other) { return other.within == run.id; };
      if (!wait || within(run) ||
          std::any_of(window_.running().begin(), window_.running().end(), inside))
        continue;
      const auto suits = [&](const VariantTime& variant) {
        return variant.width <= run.slots && holds(timed, variant, job.rows) &&
               variant.batch == smallest(timed, job.rows);
      };
      Time least = kNever;
      for (const VariantTime& variant : timed.variants)
        if (suits(variant)) least = std::min(least, expected(f, variant));
      const Time takes = scaled(least, policy_.margin);
      if (least == kNever || takes > room_in(run, times_, now_, policy_, others, window_.slots()) ||
          now_ + scaled(*wait, policy_.margin) + takes > job.deadline ||
          (best && *wait + least >= best->wait + best->takes))
        continue;
      int chosen = -1;
      for (size_t v = 0; v < timed.variants.size(); ++v)
        if (const VariantTime& variant = timed.variants[v];
            suits(variant) && expected(f, variant) <= takes &&
            (chosen < 0 || variant.width < timed.variants[static_cast<size_t>(chosen)].width))
          chosen = static_cast<int>(v);
      best = Within{&run, chosen, *wait, expected(f, timed.variants[static_cast<size_t>(chosen)]),
                    std::min(job.deadline - scaled(2 * *wait, policy_.margin) - takes,
                             job.deadline - (job.deadline - job.arrival) / 2)};
    }
    return best;
  }

  void start_within(size_t f, const Within& way) {
    Start start{.machine = way.run->machine,
                .model = window_.flows()[f].model,
                .variant = way.variant,
                .predicted = way.takes,
                .why = Why::kWithin,
                .delay = way.takes,
                .within = way.run->id,
                .wait = way.wait};
    start.borrows = variant_of(start).width;
    start.jobs.push_back(head(f)), start.rows = head(f).rows;
    ++flows_[f].next;
    take(start);
    begin(std::move(start));
  }

  /// Slots that are or become free, `width` of those of the first `count` ends.
  struct Later {
    size_t machine = 0, count = 0;
    int width = 0;
    Time at{0};
  };
  /// On which of them a flow's head is in time.
  std::optional<Later> slots_later(size_t f) const {
    for (size_t m = 0; m < ends_.size(); ++m) {
      const auto& ends = ends_[m];
      int free = 0;
      for (size_t k = 0; k < ends.size(); ++k) {
        free += ends[k].second;
        int width = 0;
        for (const VariantTime& variant : model_of(f).variants)
          if (variant.width <= free && holds(model_of(f), variant, head(f).rows) &&
              ends[k].first + scaled(expected(f, variant), policy_.margin) <= head(f).deadline)
            width = width == 0 ? variant.width : std::min(width, variant.width);
        if (width > 0) return Later{m, k + 1, width, ends[k].first};
      }
    }
    return std::nullopt;
  }
  void take_slots(const Later& later) {
    auto& ends = ends_[later.machine];
    int width = later.width;
    for (size_t of = later.count; of-- > 0 && width > 0;) {
      const int taken = std::clamp(ends[of].second, 0, width);
      ends[of].second -= taken, width -= taken;
    }
  }
  /// Whether what could wait costs the others less by starting at once than it would wait.
  bool better_beside(size_t f, const Later& later) const {
    if (!policy_.eager) return false;
    Time least = kNever;
    for (const VariantTime& variant : model_of(f).variants)
      if (holds(model_of(f), variant, head(f).rows)) least = std::min(least, delay_by(f, variant));
    return later.at - now_ > least;
  }
  /// By what a run makes those longer beside which it is.
  Time delay_by(size_t f, const VariantTime& variant) const {
    return scaled(expected(f, variant), static_cast<double>(variant.width) / window_.slots());
  }

  /// `fill`: slots of the machine that programs fill, more than there are where some overlap. All
  /// take longer by what there are too few.
  bool start_beside(size_t f, int machine, int& fill) {
    const ModelTimes& timed = model_of(f);
    int chosen = -1;
    Time least = kNever;
    for (size_t v = 0; v < timed.variants.size(); ++v) {
      const VariantTime& variant = timed.variants[v];
      if (!holds(timed, variant, head(f).rows) || variant.batch != smallest(timed, head(f).rows))
        continue;
      const double crowd = crowded(fill + variant.width, window_.slots());
      const Time time = scaled(expected(f, variant), crowd);
      if (time < least) least = time, chosen = static_cast<int>(v);
    }
    if (chosen < 0 || now_ + scaled(least, policy_.margin) > head(f).deadline) return false;
    const VariantTime& variant = timed.variants[static_cast<size_t>(chosen)];
    const Time delay = delay_by(f, variant);
    for (const Running& run : window_.running()) {
      if (run.machine != machine) continue;
      const Time end = std::max(run.started + run.predicted, now_);
      for (const Time deadline : run.deadlines)
        if (end <= deadline && end + delay > deadline) return false;
    }
    for (const Start& start : made_.starts)
      if (start.machine == machine && start.slack >= Time(0) && start.slack < delay) return false;
    Start start{.machine = machine,
                .model = window_.flows()[f].model,
                .variant = chosen,
                .predicted = least,
                .why = Why::kOverlaps,
                .beside = variant.width,
                .delay = delay};
    start.jobs.push_back(head(f)), start.rows = head(f).rows;
    ++flows_[f].next;
    for (Start& other : made_.starts)
      if (other.machine == machine) {
        other.predicted += delay;
        if (other.slack != kNever) other.slack -= delay;
      }
    fill += variant.width;
    take(start);
    begin(std::move(start));
    return true;
  }

  /// Starts of one code on one machine become one launch.
  void share_launches() {
    int launches = 0;
    for (size_t k = 0; k < made_.starts.size(); ++k) {
      Start& first = made_.starts[k];
      if (first.launch > 0 || !shares(first)) continue;
      for (size_t other = k + 1; other < made_.starts.size(); ++other) {
        Start& start = made_.starts[other];
        if (start.machine != first.machine || !shares(start) || code(start) != code(first))
          continue;
        if (first.launch == 0) first.launch = ++launches;
        start.launch = first.launch;
      }
    }
  }
  const VariantTime& variant_of(const Start& start) const {
    return model(start.model).variants[static_cast<size_t>(start.variant)];
  }
  int code(int model_number, int variant) const {
    return model(model_number).variants[static_cast<size_t>(variant)].code;
  }
  int code(const Start& start) const { return code(start.model, start.variant); }
  bool shares(const Start& start) const {
    return code(start) >= 0 && start.beside == 0 && start.within == 0 &&
           passes(variant_of(start), start.rows) == 1;
  }

  /// The most urgent that was not looked at yet and has room; false when there is none.
  bool place_one(bool may_hold) {
    int machine = 0;
    for (size_t m = 1; m < free_.size(); ++m)
      if (free_[m] > free_[static_cast<size_t>(machine)]) machine = static_cast<int>(m);
    if (free_[static_cast<size_t>(machine)] == 0) return false;
    least_used_ = INFINITY;
    double most_used = 0;
    for (const size_t f : active_) {
      if (!waits(f)) continue;
      const double used = used_[static_cast<size_t>(window_.flows()[f].tenant)];
      least_used_ = std::min(least_used_, used), most_used = std::max(most_used, used);
    }
    ranked_.clear();
    for (const size_t f : active_)
      if (waits(f) && !flows_[f].skipped) ranked_.push_back({rank(f, machine), f});
    std::sort(ranked_.begin(), ranked_.end());  // of equals the flow of the lowest number
    // A flow that finds no room leaves the others' ranks as they are; slots may be kept for it.
    const int free = free_[static_cast<size_t>(machine)];
    for (const auto& [at, f] : ranked_) {
      if (start_on(f, machine, may_hold)) return true;
      flows_[f].skipped = true;
      const double used = used_[static_cast<size_t>(window_.flows()[f].tenant)];
      if (!flows_[f].held &&
          (policy_.reserve || at.standing == 0 || most_used - used > share_slack()))
        reserve(f, machine);
      if (free_[static_cast<size_t>(machine)] != free) return true;
    }
    return false;
  }

  /// Programs that may be started now on a machine: they leave alone what is reserved.
  bool fits(int machine, const VariantTime& variant, Time end) const {
    const Reserved& kept = reserved_[static_cast<size_t>(machine)];
    return variant.width <= free_[static_cast<size_t>(machine)] &&
           (end <= kept.at || variant.width <= kept.beside);
  }

  bool start_on(size_t f, int machine, bool may_hold) {
    const ModelTimes& timed = model_of(f);
    const auto m = static_cast<size_t>(window_.flows()[f].model);
    const int free = free_[static_cast<size_t>(machine)], others = claims_ - 1 - gathering_;
    const int share = policy_.narrow ? free / (1 + others + coming(f)) : window_.slots(),
              least = narrowest(timed);
    if (least > free) return false;
    const int room = std::max(share, least);
    const int rows = policy_.batches ? std::max(left_[m], head(f).rows) : head(f).rows;
    int chosen = -1;
    // Rather with a margin; and where nothing else runs, what was learnt beside others keeps no
    // short deadline from being tried.
    struct Try {
      double margin = 1;
      bool alone = false;
    };
    Time time{0};
    for (const Try& each : {Try{policy_.margin}, Try{}, Try{1, true}}) {
      if (each.alone && programs_[static_cast<size_t>(machine)] > 0) break;
      const auto takes = [&](const VariantTime& variant) {
        return each.alone ? alone(f, variant) : expected(f, variant);
      };
      for (size_t v = 0; v < timed.variants.size(); ++v) {
        const VariantTime& variant = timed.variants[v];
        const Time end = now_ + scaled(takes(variant), each.margin);
        if (!holds(timed, variant, head(f).rows) ||
            (!policy_.batches && variant.batch != smallest(timed, head(f).rows)))
          continue;
        if (policy_.narrow ? wasteful(timed, variant) : variant.width != window_.slots()) continue;
        if (!fits(machine, variant, end) || (head(f).deadline != kNever && end > head(f).deadline))
          continue;
        if (chosen < 0 || better(f, variant, timed.variants[static_cast<size_t>(chosen)], room,
                                 share < least, rows))
          chosen = static_cast<int>(v);
      }
      if (chosen < 0) continue;
      time = takes(timed.variants[static_cast<size_t>(chosen)]);
      break;
    }
    if (chosen < 0) return false;
    const VariantTime& variant = timed.variants[static_cast<size_t>(chosen)];
    if ((may_hold && others > 0 && waits_for_partner(f, m, variant)) ||
        waits_for_instances(f, variant, machine)) {
      flows_[f].held = true;
      return false;
    }
    Start start{.machine = machine,
                .model = static_cast<int>(m),
                .variant = chosen,
                .slots = variant.width,
                .predicted = time,
                .why = others <= 0            ? Why::kWidest
                       : variant.width > room ? Why::kWidened
                                              : Why::kShared,
                .held = flows_[f].held};
    start.jobs.push_back(head(f)), start.rows = head(f).rows;
    ++flows_[f].next;
    if (policy_.batches) join(start, variant.batch, now_ + time);
    take(start);
    begin(std::move(start));
    return true;
  }

  /// The requests of a start wait no more, and its tenants have had its slots.
  void take(const Start& start) {
    const int taken = static_cast<int>(start.jobs.size());
    left_[static_cast<size_t>(start.model)] -= taken, claims_ -= taken;
    for (const Job& job : start.jobs)
      used_[static_cast<size_t>(job.tenant)] +=
          slot_time(start, job) / window_.tenants()[static_cast<size_t>(job.tenant)].weight;
  }

  /// Requests that are likely to come while a program of this one runs, by how often they came of
  /// late: they want slots, too.
  int coming(size_t f) const {
    if (!policy_.foresee) return 0;
    const auto runs = static_cast<double>(quickest(model_of(f), head(f).rows).count());
    constexpr double kUnlikely = 0.02;
    return static_cast<int>(std::ceil(runs * rate_ - kUnlikely));
  }

  static int narrowest(const ModelTimes& timed) {
    int width = 0;
    for (const VariantTime& variant : timed.variants)
      width = width == 0 ? variant.width : std::min(width, variant.width);
    return width;
  }

  /// Both are in time. Where there is room for all, a width within the own part of it, the widest
  /// such; of wider ones the narrowest. Where there is not, and between equals, what takes least of
  /// the machine for a row.
  bool better(size_t f, const VariantTime& a, const VariantTime& b, int room, bool crowded,
              int rows) const {
    if (a.width != b.width && !crowded) {
      const bool a_within = a.width <= room, b_within = b.width <= room;
      if (a_within != b_within) return a_within;
      return a_within ? a.width > b.width : a.width < b.width;
    }
    const auto cost = [&](const VariantTime& variant) {
      return static_cast<double>(expected(f, variant).count()) * variant.width /
             std::min(variant.batch, rows);
    };
    const double a_cost = cost(a), b_cost = cost(b);
    return a_cost != b_cost ? a_cost < b_cost : a.batch < b.batch;
  }

  /// Whether the next request of the model may well come before this one has to be started, and
  /// shares its launch.
  bool waits_for_partner(size_t f, size_t m, const VariantTime& variant) const {
    if (!policy_.hold || !policy_.batches || left_[m] >= largest(model_of(f)) ||
        head(f).deadline == kNever)
      return false;
    const Time gap = window_.gap(static_cast<int>(m));
    if (gap == kNever) return false;
    for (const VariantTime& larger : model_of(f).variants)
      if (larger.batch > left_[m] && larger.width == variant.width)
        return now_ + gap + scaled(expected(f, larger), policy_.margin) < head(f).deadline;
    return false;
  }

  /// Whether a request waits, so that others of models whose programs have the same code start
  /// together with it: for those that are about to come (another_comes), or where more wait than
  /// there is room for, for runs that are about to end. It keeps its slots meanwhile.
  bool waits_for_instances(size_t f, const VariantTime& variant, int machine) {
    if (!policy_.instances || policy_.gather <= Time(0) || variant.code < 0 || flows_[f].gathered ||
        passes(variant, head(f).rows) > 1)
      return false;
    const Time runs = expected(f, variant);
    const std::vector<bool>& same = models_of_code(variant.code);
    int wait = 0;     // requests of the code
    bool all = true;  // of its models have one
    for (size_t m = 0; m < same.size(); ++m)
      if (same[m]) wait += left_[m], all &= left_[m] > 0;
    Time until{0};
    const int room = free_[static_cast<size_t>(machine)] / variant.width;
    if (wait - gathering_of(variant.code) > room)
      until = merges(machine, variant, same);
    else if (!all && room > 1 && another_comes(same))
      until = from_one_to_the_next(f, same, runs);
    if (now_ >= until) return false;
    if (head(f).deadline != kNever && until + scaled(runs, policy_.margin) > head(f).deadline)
      return false;
    flows_[f].gathers = {machine, variant.width, variant.code, until};
    free_[static_cast<size_t>(machine)] -= variant.width, ++gathering_;
    return true;
  }

  int gathering_of(int code) const {
    return static_cast<int>(std::count_if(active_.begin(), active_.end(), [&](size_t f) {
      return flows_[f].gathers.width > 0 && flows_[f].gathers.code == code;
    }));
  }

  /// For Policy::gather behind the last that came, and all in all for no longer than its program
  /// runs.
  Time from_one_to_the_next(size_t f, const std::vector<bool>& same, Time runs) const {
    Time last = head(f).arrival;
    for (const size_t other : active_)
      if (waits(other) && same[static_cast<size_t>(window_.flows()[other].model)])
        last = std::max(last, head(other).arrival);
    return std::min(last + policy_.gather, head(f).arrival + std::max(policy_.gather, runs));
  }

  /// For Policy::gather behind the last run that ended, where another of the code is predicted to
  /// end by then.
  Time merges(int machine, const VariantTime& variant, const std::vector<bool>& same) const {
    const Time until = window_.ended(machine) + policy_.gather;
    for (const Running& run : window_.running()) {
      const Time end = run.started + run.predicted;
      if (run.machine == machine && same[static_cast<size_t>(run.model)] &&
          code(run.model, run.variant) == variant.code && end <= until &&
          end + policy_.gather > now_)
        return until;
    }
    return Time(0);
  }

  /// By model: whether it has a program of a code.
  const std::vector<bool>& models_of_code(int code) {
    if (code_ == code) return of_code_;
    code_ = code, of_code_.assign(left_.size(), false), comes_.reset();
    for (size_t m = 0; m < left_.size(); ++m) {
      const auto& variants = model(static_cast<int>(m)).variants;
      of_code_[m] = std::any_of(variants.begin(), variants.end(),
                                [&](const VariantTime& one) { return one.code == code; });
    }
    return of_code_;
  }

  /// Whether, as often as not, another model's request has followed within Policy::gather where so
  /// many had come so close to one another as have now.
  bool another_comes(const std::vector<bool>& same) {
    if (comes_) return *comes_;
    constexpr int kLooked = 8;  // groups of requests before this one
    const auto& arrived = window_.arrived();
    std::vector<int> last(same.size(), -2);  // by model: the last group that it was of
    int size = 0, now = 0;                   // models of this group, of the newest one
    int looked = -1, reached = 0, beyond = 0;
    Time later = now_;
    for (auto at = arrived.rbegin(); at != arrived.rend() && looked < kLooked; ++at) {
      if (!same[static_cast<size_t>(at->model)]) continue;
      if (later - at->at > policy_.gather) {
        if (looked++ < 0)
          now = std::max(size, 1);
        else
          reached += size >= now, beyond += size > now;
        size = 0;
      }
      size += std::exchange(last[static_cast<size_t>(at->model)], looked) != looked;
      later = at->at;
    }
    comes_ = reached > 0 && 2 * beyond >= reached;
    return *comes_;
  }

  /// Nobody gathers any more where others want slots, or where one of the code starts. Whether any
  /// did.
  bool stop_gathering() {
    if (gathering_ == 0) return false;
    bool any = false;
    // More of a code than there is room for wait for it, too, as far as their slack allows.
    const auto of_a_gathering_code = [&](size_t f) {
      const auto& variants = model_of(f).variants;
      const Time quick = scaled(quickest(model_of(f), head(f).rows), policy_.margin);
      if (head(f).deadline != kNever && now_ + policy_.gather + quick > head(f).deadline)
        return false;
      return std::any_of(variants.begin(), variants.end(), [&](const VariantTime& one) {
        return one.code >= 0 && gathering_of(one.code) > 0;
      });
    };
    bool wanted = false;
    for (const size_t f : active_)
      wanted |= waits(f) && flows_[f].gathers.width == 0 && model_of(f).away == Time(0) &&
                !of_a_gathering_code(f);
    for (const size_t f : active_) {
      Gathers& each = flows_[f].gathers;
      if (each.width == 0) continue;
      const bool together =
          std::any_of(made_.starts.begin(), made_.starts.end(), [&](const Start& start) {
            return start.machine == each.machine && shares(start) && code(start) == each.code;
          });
      if (!wanted && !together) continue;
      free_[static_cast<size_t>(each.machine)] += each.width, --gathering_;
      each = {}, flows_[f].gathered = any = true, flows_[f].skipped = false;
    }
    return any;
  }

  /// Keeps slots of a machine for a request that can be in time on them when they become free,
  /// unless they are kept for another.
  void reserve(size_t f, int machine) {
    Reserved& kept = reserved_[static_cast<size_t>(machine)];
    if (kept.at != kNever) return;
    std::vector<std::pair<Time, int>> ends;
    for (const Running& run : window_.running())
      if (run.machine == machine)
        ends.emplace_back(std::max(run.started + run.predicted, now_), run.slots);
    for (const Start& start : made_.starts)
      if (start.machine == machine) ends.emplace_back(now_ + start.predicted, start.slots);
    std::sort(ends.begin(), ends.end());
    int free = free_[static_cast<size_t>(machine)];
    for (const auto& [at, slots] : ends) {
      free += slots;
      int width = 0;
      for (const VariantTime& variant : model_of(f).variants)
        if (variant.width <= free && holds(model_of(f), variant, head(f).rows) &&
            (head(f).deadline == kNever || at + expected(f, variant) <= head(f).deadline))
          width = width == 0 ? variant.width : std::min(width, variant.width);
      if (width == 0) continue;
      kept = {at, free - width};
      return;
    }
  }

  const Window& window_;
  const Times& times_;
  const Time now_;
  const Policy& policy_;
  struct Gathers {
    int machine = 0, width = 0, code = -1;  // width: of the slots that are kept for it; 0: none
    Time until{0};
  };
  struct OfFlow {
    Place next;            // the first that is neither taken nor given up
    bool skipped = false;  // not now
    // of vliw
    bool held = false, straggling = false;
    bool gathered = false;  // it waits no more for others of its code
    Gathers gathers;
  };
  std::vector<OfFlow> flows_;
  std::vector<size_t> active_;        // flows where somebody waited
  std::vector<int> free_, programs_;  // by machine
  int last_turn_ = -1;
  // of vliw
  std::vector<std::vector<std::pair<Time, int>>>
      ends_;  // by machine: slots that are free from then
  struct Reserved {
    Time at;
    int beside;
  };  // from then on; slots that are free beside it
  std::vector<Reserved> reserved_;  // by machine; kNever: none
  std::vector<int> left_;           // by model: requests that nobody took yet
  int claims_ = 0;                  // of all models
  double rate_ = 0;                 // requests that are likely to come, a nanosecond
  int gathering_ = 0;               // flows that do
  int code_ = -1;                   // of_code_ is of
  std::vector<bool> of_code_;
  std::optional<bool> comes_;  // another_comes() of that code
  std::vector<double> used_;   // by tenant
  double least_used_ = 0;
  std::vector<std::pair<int, int>> bound_;       // by machine: runs by what they are bound by
  std::vector<std::pair<Rank, size_t>> ranked_;  // of place_one
  Decisions made_;
};

}  // namespace

Time quickest(const ModelTimes& model, int rows) {
  Time best = kNever;
  for (const VariantTime& variant : model.variants)
    if (holds(model, variant, rows)) best = std::min(best, variant.alone * passes(variant, rows));
  return best;
}

Decisions decide(const Window& window, const Times& times, Time now, const Policy& policy) {
  if (window.waiting() == 0) return {};
  return Deciding(window, times, now, policy).decide();
}

namespace {

/// Slot-nanoseconds that a row of a model takes at least, in the batches that so many requests
/// make.
double cost_of_row(const ModelTimes& model, const Policy& policy, int waiting, int slots) {
  const bool batches =
      policy.kind == PolicyKind::kBatch || (policy.kind == PolicyKind::kVliw && policy.batches);
  const bool narrow = policy.kind == PolicyKind::kVliw && policy.narrow;
  double best = 0;
  for (const VariantTime& variant : model.variants) {
    if (variant.batch > 1 && (!batches || variant.batch > waiting)) continue;
    if (variant.width != slots && !narrow) continue;
    const Time time = variant.width == slots ? variant.alone : variant.beside;
    const double cost = static_cast<double>(time.count()) * variant.width / variant.batch;
    if (best == 0 || cost < best) best = cost;
  }
  return best;
}

/// Requests of a flow that are due before a time; of very many the rest is estimated.
int ahead_in(const Flow& flow, Time due) {
  constexpr int kLooked = 64;
  if (flow.waiting.empty() || flow.waiting.begin()->due > due) return 0;
  if (flow.waiting.rbegin()->due <= due) return static_cast<int>(flow.waiting.size());
  int count = 0;
  for (const Flow::Waiting& waiting : flow.waiting) {
    if (waiting.due > due) return count;
    if (++count == kLooked) break;
  }
  const double from = static_cast<double>(flow.waiting.begin()->due.count()),
               to = static_cast<double>(flow.waiting.rbegin()->due.count());
  const double part = to > from ? (static_cast<double>(due.count()) - from) / (to - from) : 1;
  return std::max(count, static_cast<int>(part * static_cast<double>(flow.waiting.size())));
}

/// When a run could end at the earliest, on slots that are free or that become free, if it were the
/// next to get them.
Time earliest_end(const Window& window, const ModelTimes& model, Time now, const Policy& policy,
                  int rows) {
  const bool narrow = policy.kind == PolicyKind::kVliw && policy.narrow;
  Time best = kNever;
  std::vector<std::pair<Time, int>> ends;
  for (int machine = 0; machine < window.machines(); ++machine) {
    ends.assign(1, {now, window.left(machine)});
    for (const Running& run : window.running())
      if (run.machine == machine)
        ends.emplace_back(std::max(run.started + scaled(run.predicted, policy.margin), now),
                          run.slots + run.beside);
    std::sort(ends.begin() + 1, ends.end());
    int free = 0;
    for (const auto& [at, slots] : ends) {
      free += slots;
      if (at >= best) break;
      for (const VariantTime& variant : model.variants)
        if (variant.width <= free && (narrow || variant.width == window.slots()) &&
            holds(model, variant, rows))
          best = std::min(best, at + variant.alone * passes(variant, rows));
    }
  }
  return best;
}

/// When a request could end that waits for others: these take so much time of slots, and leave it
/// as wide a program as all of them have.
Time end_behind(const Window& window, const ModelTimes& model, Time now, const Policy& policy,
                int rows, double ahead) {
  const Time delay(static_cast<int64_t>(ahead / window.slots() / window.machines()));
  const Time end = earliest_end(window, model, now, policy, rows) + delay + model.away;
  if (ahead == 0 || policy.kind != PolicyKind::kVliw || !policy.narrow) return end;
  Time free = kNever;
  for (int machine = 0; machine < window.machines(); ++machine)
    if (window.left(machine) > 0) free = now;
  for (const Running& run : window.running())
    free = std::min(free, std::max(run.started + scaled(run.predicted, policy.margin), now));
  const int part = window.slots() * window.machines() / (window.waiting() + 1);
  const VariantTime* chosen = nullptr;
  for (const VariantTime& variant : model.variants) {
    if (!holds(model, variant, rows) || variant.batch != smallest(model, rows)) continue;
    const bool fits = variant.width <= part, fitted = chosen && chosen->width <= part;
    if (!chosen || (fits ? !fitted || variant.width > chosen->width
                         : !fitted && variant.width < chosen->width))
      chosen = &variant;
  }
  if (!chosen || free == kNever) return end;
  return std::max(end, free + delay + model.away + usual(*chosen) * passes(*chosen, rows));
}

/// Whether a request is in time beside what has the slots, if it starts at once.
bool overlaps_in_time(const Window& window, const ModelTimes& model, Time now, const Policy& policy,
                      const Job& job) {
  if (policy.kind != PolicyKind::kVliw || policy.overlap == 0 || model.away > Time(0)) return false;
  for (int machine = 0; machine < window.machines(); ++machine) {
    int fill = 0, beside = 0;
    for (const Running& run : window.running())
      if (run.machine == machine) fill += run.slots + run.beside, beside += run.beside > 0;
    if (beside >= policy.overlap) continue;
    for (const VariantTime& variant : model.variants) {
      const double crowd = crowded(fill + variant.width, window.slots());
      if (holds(model, variant, job.rows) && variant.batch == smallest(model, job.rows) &&
          now + scaled(usual(variant) * passes(variant, job.rows),
                       crowd * std::max(policy.margin, window.caution(job.model, policy))) <=
              job.deadline)
        return true;
    }
  }
  return false;
}

/// Runs of requests that are due before a time, one after the other on as few slots as may be.
Time narrow_time_ahead(const Window& window, const Times& times, Time due) {
  Time sum{0};
  for (const Flow& flow : window.flows()) {
    const int waiting = flow.bounded ? ahead_in(flow, due) : 0;
    if (waiting == 0) continue;
    const ModelTimes& model = times.models[static_cast<size_t>(flow.model)];
    const VariantTime* narrowest = nullptr;
    for (const VariantTime& variant : model.variants)
      if (variant.batch == smallest(model, 1) && (!narrowest || variant.width < narrowest->width))
        narrowest = &variant;
    if (narrowest) sum += usual(*narrowest) * waiting;
  }
  return sum;
}

/// Whether a request is in time within a run that gives way, behind those that do so before it.
bool within_in_time(const Window& window, const Times& times, Time now, const Policy& policy,
                    const Job& job) {
  const ModelTimes& model = times.models[static_cast<size_t>(job.model)];
  if (model.away > Time(0)) return false;
  std::optional<Time> ahead;
  std::vector<const Job*> waiting;
  for (const Flow& flow : window.flows())
    if (flow.bounded && !flow.waiting.empty()) waiting.push_back(&flow.waiting.begin()->job);
  for (const Running& run : window.running()) {
    const auto wait = gives_way(times, policy, run, job.priority);
    if (!wait) continue;
    if (!ahead) ahead = narrow_time_ahead(window, times, job.deadline);
    Time before = *ahead;
    for (const Running& other : window.running())
      if (other.within == run.id)
        before += std::max(
            other.started + other.wait + scaled(other.predicted, policy.margin) - now, Time(0));
    const Time room = room_in(run, times, now, policy, waiting, window.slots()) - *ahead;
    for (const VariantTime& variant : model.variants) {
      const Time takes =
          scaled(usual(variant) * passes(variant, job.rows),
                 std::max(window.tenants()[static_cast<size_t>(job.tenant)].ratio, 1.0));
      if (variant.width <= run.slots && holds(model, variant, job.rows) &&
          variant.batch == smallest(model, job.rows) && scaled(takes, policy.margin) <= room &&
          now + before +
                  scaled(*wait + takes,
                         std::max(policy.margin, window.caution(job.model, policy))) <=
              job.deadline)
        return true;
    }
  }
  return false;
}

/// Whether a request makes late who was admitted before and is due after it: those go behind it.
/// `ahead`: slot-nanoseconds of what goes before it.
bool makes_others_late(const Window& window, const Times& times, Time now, const Policy& policy,
                       const Job& job, double ahead) {
  constexpr size_t kLooked = 64;
  struct Behind {
    Time due;
    int model;
    double cost;
  };
  std::vector<Behind> behind;
  for (const Flow& flow : window.flows()) {
    if (!flow.bounded || flow.priority > job.priority || flow.waiting.empty() ||
        flow.waiting.rbegin()->due <= job.deadline)
      continue;
    const double cost = cost_of_row(times.models[static_cast<size_t>(flow.model)], policy,
                                    window.waiting_of(flow.model), window.slots());
    auto at = flow.waiting.upper_bound({job.deadline, Job{.key = ~uint64_t{0}}});
    for (size_t k = 0; k < kLooked && at != flow.waiting.end(); ++k, ++at)
      behind.push_back({at->due, flow.model, cost});
  }
  if (behind.empty()) return false;
  std::ranges::sort(behind, {}, &Behind::due);
  behind.resize(std::min(behind.size(), kLooked));
  const double slots = window.slots() * window.machines();
  const double own = cost_of_row(times.models[static_cast<size_t>(job.model)], policy,
                                 window.waiting_of(job.model) + 1, window.slots());
  std::map<int, std::pair<Time, Time>>
      of_model;  // the end behind nearly nothing; how long it takes
  for (const Behind& each : behind) {
    const ModelTimes& model = times.models[static_cast<size_t>(each.model)];
    const auto [about, fresh] = of_model.try_emplace(each.model);
    if (fresh) about->second = {end_behind(window, model, now, policy, 1, 1), quickest(model, 1)};
    const auto& [first, takes] = about->second;
    const auto is_late = [&, first = first, takes = takes](double before) {
      const Time end = first + Time(static_cast<int64_t>(before / slots));
      const Time waits = std::max(end - now - takes, Time(0));
      return end + scaled(waits, window.caution(each.model, policy) - 1) > each.due;
    };
    if (is_late(ahead + own) && !is_late(ahead)) return true;
    ahead += each.cost;
  }
  return false;
}

}  // namespace

Admission admit(const Window& window, const Times& times, Time now, const Policy& policy,
                const Job& job, int queue_limit) {
  const ModelTimes& model = times.models[static_cast<size_t>(job.model)];
  const Time quick = quickest(model, job.rows);
  if (model.variants.empty()) return {false, Why::kNoProgram, {}};
  const bool bounded = job.deadline != kNever;
  if (bounded && policy.drop == Drop::kHopeless && job.arrival + model.away + quick > job.deadline)
    return {false, Why::kTooShort, {}};
  const bool full = window.waiting_of(job.model) >= queue_limit;
  if (!full && (!bounded || !policy.admit_by_load)) return {};
  double ahead = 0;  // slot-nanoseconds of what goes first
  for (const Flow& flow : window.flows()) {
    const int waiting = full ? static_cast<int>(flow.waiting.size()) : ahead_in(flow, job.deadline);
    if (waiting == 0) continue;
    ahead += waiting * cost_of_row(times.models[static_cast<size_t>(flow.model)], policy,
                                   window.waiting_of(flow.model), window.slots());
  }
  const Time end = end_behind(window, model, now, policy, job.rows, ahead);
  const bool by_deadline = policy.kind == PolicyKind::kEdf || policy.kind == PolicyKind::kVliw;
  if (!full && by_deadline && makes_others_late(window, times, now, policy, job, ahead))
    return {false, Why::kLoad, std::max(end - job.deadline, Time(1'000'000))};
  if (!full && ahead == 0 && overlaps_in_time(window, model, now, policy, job)) return {};
  if (!full && within_in_time(window, times, now, policy, job)) return {};
  if (full) return {false, Why::kQueueFull, std::max(end - now, Time(1'000'000))};
  // What it waits for is known less well than how long it runs itself.
  const Time waits = std::max(end - now - quick, Time(0));
  const Time late = end + scaled(waits, window.caution(job.model, policy) - 1) - job.deadline;
  if (late <= Time(0)) return {};
  return {false, Why::kLoad, late};
}

}  // namespace obelisk::serve
