#include "serve/scheduler.h"

#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "base/check.h"
#include "serve/plan.h"

namespace obelisk::serve {
namespace {

constexpr Time kLongAgo = -kNever;

using Place = std::set<Flow::Waiting>::const_iterator;

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
                  window_.slower(window_.flows()[f].tenant, policy_));
  }

  /// The same while nothing else runs.
  Time alone(size_t f, const VariantTime& variant) const {
    return scaled(variant.alone * passes(variant, head(f).rows),
                  window_.slower(window_.flows()[f].tenant, policy_));
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
  bool half_over(size_t f) const {
    return now_ - head(f).arrival > (head(f).deadline - head(f).arrival) / 2;
  }
  bool is_promised(size_t f) const { return window_.flows()[f].bounded && policy_.admit_by_load; }
  Rank rank(size_t f, int machine) const {
    const Flow& flow = window_.flows()[f];
    const Time quick = quickest(model_of(f), head(f).rows);
    // Whose deadline was promised at admission keeps its place: who may come was decided there.
    const bool promised = is_promised(f);
    int standing = 1;
    if (!promised &&
        used_[static_cast<size_t>(flow.tenant)] - least_used_ > share_slack(window_, policy_))
      standing = 2;
    if (flows_[f].straggling) standing = 3;
    if (!promised && now_ - flow.served > policy_.patience) standing = 0;
    const Time slack = std::max(due(f) - now_ - quick, Time(0));
    const int bin = std::bit_width(static_cast<uint64_t>(slack.count()) >> 14);
    const auto& [of_memory, of_arithmetic] = bound_[static_cast<size_t>(machine)];
    const int clash = (of_memory - of_arithmetic) * (model_of(f).bound == Bound::kMemory ? 1 : -1);
    const int shorter = -static_cast<int>(std::bit_width(static_cast<uint64_t>(quick.count())));
    return {standing, flow.priority, bin, shorter, clash > 0 ? 1 : 0, due(f)};
  }

  void vliw() {
    left_.assign(times_.models.size(), 0);
    for (const size_t f : active_)  // models whose weights are away get no slots
      if (const int m = window_.flows()[f].model; model(m).away == Time(0))
        left_[static_cast<size_t>(m)] = window_.waiting_of(m);
    for (const GiveUp& given : made_.given_up)
      if (model(given.job.model).away == Time(0)) --left_[static_cast<size_t>(given.job.model)];
    runs_.assign(left_.size(), 0);
    for (const Running& run : window_.running())
      runs_[static_cast<size_t>(run.model)] += run.slots > 0;
    for (size_t m = 0; m < left_.size(); ++m) claims_ += launches_of(m);
    if (policy_.foresee)
      for (size_t m = 0; m < left_.size(); ++m)
        if (const Time gap = window_.gap(static_cast<int>(m)); gap != kNever)
          rates_.push_back({static_cast<int>(m),
                            1 / std::max(static_cast<double>(gap.count()), 1.0),
                            joins(policy_) ? largest(model(static_cast<int>(m))) : 1});
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
      const std::optional<Within> way = cut ? way_within(f) : std::nullopt;
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
  std::optional<Within> way_within(size_t f) {
    const ModelTimes& timed = model_of(f);
    const Job& job = head(f);
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
      if (least == kNever || takes > room_in(window_, run, now_, policy_) ||
          now_ + scaled(*wait, policy_.margin) + takes > job.deadline ||
          (best && *wait + least >= best->wait + best->takes) ||
          plan().makes_late({.leaves = &job, .run = run.id, .delay = takes}))
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
    start_now(std::move(start));
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
    if (plan().makes_late({.leaves = &head(f), .machine = machine, .delay = delay})) return false;
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
    start_now(std::move(start));
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
          (policy_.reserve || at.standing == 0 ||
           (is_promised(f) ? half_over(f) : most_used - used > share_slack(window_, policy_))))
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
    // Flows that gather have their slots already; two of one model may be one launch.
    const int free = free_[static_cast<size_t>(machine)],
              others = std::max(claims_ - launches_of(m) - gathering_, 0) +
                       beside_own(timed, policy_, left_[m], window_.slots());
    const int share = policy_.narrow ? free / (1 + others + coming(f)) : window_.slots(),
              least = narrowest(timed);
    if (least > free) return false;
    if (waits_for_own(f, m, machine)) return false;
    const Room room{.share = std::max(share, least),
                    .crowded = share < least,
                    .rows = policy_.batches ? std::max(left_[m], head(f).rows) : head(f).rows};
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
        if (chosen < 0) {
          chosen = static_cast<int>(v);
          continue;
        }
        const VariantTime& best = timed.variants[static_cast<size_t>(chosen)];
        if (better(timed, variant, expected(f, variant), best, expected(f, best), room))
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
                .why = others <= 0                  ? Why::kWidest
                       : variant.width > room.share ? Why::kWidened
                                                    : Why::kShared,
                .held = flows_[f].held};
    start.jobs.push_back(head(f)), start.rows = head(f).rows;
    ++flows_[f].next;
    if (policy_.batches) join(start, variant.batch, now_ + time);
    start_now(std::move(start));
    return true;
  }

  /// The requests of a start wait no more, and its tenants have had its slots.
  void start_now(Start start) {
    const auto m = static_cast<size_t>(start.model);
    claims_ -= launches_of(m);
    left_[m] -= static_cast<int>(start.jobs.size()), runs_[m] += start.slots > 0;
    claims_ += launches_of(m);
    for (const Job& job : start.jobs)
      used_[static_cast<size_t>(job.tenant)] +=
          slot_time(start, job) / window_.tenants()[static_cast<size_t>(job.tenant)].weight;
    begin(std::move(start));
  }

  /// f(machine, end, slots) of each run of a model that has slots, just started ones among them.
  template <typename F>
  void each_run_of(size_t m, F&& f) const {
    for (const Running& run : window_.running())
      if (run.model == static_cast<int>(m) && run.slots > 0)
        f(run.machine, std::max(run.started + run.predicted, now_), run.slots);
    for (const Start& start : made_.starts)
      if (start.model == static_cast<int>(m) && start.slots > 0)
        f(start.machine, now_ + start.predicted, start.slots);
  }

  /// Whether a model's batches follow one another and each machine runs one: the next one wants no
  /// slots beside them.
  bool follows_runs(size_t m) const {
    return runs_[m] >= window_.machines() && follows(times_.models[m], policy_, window_.slots());
  }

  /// Whether a flow's head waits for the first run of its model on this machine to end: it does
  /// while a batch of all that wait would still be in time behind it, even if the run takes a
  /// quarter longer. Started now it would get the few slots that are left, and so would the next.
  bool waits_for_own(size_t f, size_t m, int machine) {
    const ModelTimes& timed = times_.models[m];
    if (runs_[m] == 0 || !follows(timed, policy_, window_.slots())) return false;
    Time end = kNever;
    int width = 0;
    each_run_of(m, [&](int of, Time at, int slots) {
      if (of == machine && at < end) end = at, width = slots;
    });
    if (end == kNever) return false;
    if (head(f).deadline == kNever) return true;
    const int batch = smallest(timed, std::max(left_[m], head(f).rows));
    Time takes = kNever;
    for (const VariantTime& variant : timed.variants)
      if (variant.batch == batch && variant.width <= width)
        takes = std::min(takes, expected(f, variant));
    const Time longer = (end - now_) / 4;
    if (takes == kNever || end + longer + scaled(takes, policy_.margin) > head(f).deadline)
      return false;
    wake(head(f).deadline - scaled(takes, policy_.margin) - (end - now_));
    return true;
  }

  /// Launches of a model's requests that nobody took yet, and that want slots beside what runs.
  int launches_of(size_t m) const {
    return left_[m] == 0 || follows_runs(m) ? 0 : launches(times_.models[m], policy_, left_[m]);
  }

  /// Launches of requests that are likely to come while a program of this one runs, by how often
  /// they came of late: they want slots, too. Its own model's batches can follow it.
  int coming(size_t f) const {
    if (!policy_.foresee) return 0;
    const auto runs = static_cast<double>(quickest(model_of(f), head(f).rows).count());
    constexpr double kUnlikely = 0.02;
    double likely = 0;
    for (const auto& [number, rate, together] : rates_) {
      const double requests = runs * rate;
      if (together > 1 && follows_runs(static_cast<size_t>(number))) continue;
      if (together > 1 && number == window_.flows()[f].model)
        likely +=
            follows(model_of(f), policy_, window_.slots()) ? 0 : std::floor(requests / together);
      else
        likely += requests <= 1 ? requests : std::max(requests / together, 1.0);
    }
    return static_cast<int>(std::ceil(likely - kUnlikely));
  }

  static int narrowest(const ModelTimes& timed) {
    int width = 0;
    for (const VariantTime& variant : timed.variants)
      width = width == 0 ? variant.width : std::min(width, variant.width);
    return width;
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

  /// As of the beginning of these decisions.
  Plan& plan() {
    if (!plan_) plan_.emplace(window_, times_, now_, policy_);
    return *plan_;
  }

  const Window& window_;
  const Times& times_;
  const Time now_;
  const Policy& policy_;
  std::optional<Plan> plan_;
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
  std::vector<int> runs_;           // by model: that have slots, just started ones among them
  int claims_ = 0;                  // launches of all models
  struct Rate {
    int model;
    double requests;  // a nanosecond that are likely to come
    int together;     // of them in one launch
  };
  std::vector<Rate> rates_;  // by model that had some
  int gathering_ = 0;        // flows that do
  int code_ = -1;            // of_code_ is of
  std::vector<bool> of_code_;
  std::optional<bool> comes_;  // another_comes() of that code
  std::vector<double> used_;   // by tenant
  double least_used_ = 0;
  std::vector<std::pair<int, int>> bound_;       // by machine: runs by what they are bound by
  std::vector<std::pair<Rank, size_t>> ranked_;  // of place_one
  Decisions made_;
};

}  // namespace

Decisions decide(const Window& window, const Times& times, Time now, const Policy& policy) {
  if (window.waiting() == 0) return {};
  return Deciding(window, times, now, policy).decide();
}

}  // namespace obelisk::serve
