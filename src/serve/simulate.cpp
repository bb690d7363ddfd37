#include "serve/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "base/check.h"

namespace obelisk::serve {
namespace {

/// splitmix64: the same numbers everywhere, which the standard's distributions do not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  double exponential() { return -std::log(uniform()); }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform()); }
  /// Mean 1, Marsaglia and Tsang; below shape 1 by the usual boost.
  double gamma(double shape) {
    const double at_least = shape < 1 ? shape + 1 : shape, d = at_least - 1.0 / 3,
                 c = 1 / std::sqrt(9 * d);
    while (true) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v <= 0 || std::log(uniform()) >= x * x / 2 + d - d * v + d * std::log(v)) continue;
      return d * v * (shape < 1 ? std::pow(uniform(), 1 / shape) : 1) / shape;
    }
  }

 private:
  uint64_t state_;
};

/// A run on a machine, as it is in truth.
struct Live {
  uint64_t id = 0;
  int machine = 0, slots = 0, beside = 0;
  Time started{0}, alone{0}, all_busy{0};
  const std::vector<Time>* streams = nullptr;
  double factor = 1;  // noise, stragglers, passes
  double done = 0;    // of 1
  double per_ns = 0;  // rate now
  double end = 0;     // ns, at that rate
  std::vector<Job> jobs;
  double cut = 0;           // parts of a run that gives way between them, as shares of it; 0: none
  double stops = INFINITY;  // `done` at which it stands still for who waits for that
  bool still = false;       // it does
  Time paused{0};           // how long it did
  uint64_t within = 0;      // the run that it is in, or waits for
  int borrows = 0;          // slots of it
  bool waits = false;
  Time began{0};  // when it did not wait any more
  int fills() const { return waits || still ? 0 : slots + beside + borrows; }
};

class Machines {
 public:
  Machines(int machines, int slots, double drift, uint64_t seed)
      : slots_(slots),
        drift_(drift),
        random_(seed),
        at_(static_cast<size_t>(machines), 0),
        pace_(static_cast<size_t>(machines)),
        by_machine_(static_cast<size_t>(machines)) {}

  void start(Live live, double now) {
    const auto m = static_cast<size_t>(live.machine);
    progress(m, now);
    live.began = live.started, live.waits = live.within > 0;
    if (live.waits) {
      Live* const host = find(m, live.within);
      CHECK(host && host->cut > 0, "a run is to be within one that does not give way");
      host->stops = (std::floor(host->done / host->cut) + 1) * host->cut;
    }
    by_machine_[m].push_back(std::move(live));
    rates(m, now);
  }
  /// The earliest end; infinity without one.
  double next_end() const {
    double end = INFINITY;
    for (const auto& lives : by_machine_)
      for (const Live& live : lives) end = std::min(end, live.end);
    return end;
  }
  /// Those that have ended by now, in the order of their numbers.
  std::vector<Live> ended(double now) {
    std::vector<Live> out;
    for (size_t m = 0; m < by_machine_.size(); ++m) {
      std::vector<Live>& lives = by_machine_[m];
      const auto over = [&](const Live& live) { return live.end <= now; };
      if (std::none_of(lives.begin(), lives.end(), over)) continue;
      progress(m, now);
      for (Live& live : lives) {
        const bool stops = over(live) && live.stops < 1;
        if (stops) live.still = true, live.end = INFINITY;
        for (Live& other : lives) {
          if (other.within == live.id && other.waits && (stops || over(live)))
            other.waits = false, other.began = Time(static_cast<int64_t>(now));
          if (other.within == live.id && over(live))
            other.within = 0, other.slots = other.borrows, other.borrows = 0;
          if (other.id == live.within && over(live))
            other.still = false, other.stops = INFINITY,
            other.paused += Time(static_cast<int64_t>(now)) - live.began;
        }
      }
      for (Live& live : lives)
        if (over(live)) out.push_back(std::move(live));
      std::erase_if(lives, over);
      rates(m, now);
    }
    std::sort(out.begin(), out.end(), [](const Live& a, const Live& b) { return a.id < b.id; });
    return out;
  }

 private:
  Live* find(size_t m, uint64_t id) {
    for (Live& live : by_machine_[m])
      if (live.id == id) return &live;
    return nullptr;
  }
  void progress(size_t m, double now) {
    for (Live& live : by_machine_[m]) live.done += live.per_ns * (now - at_[m]);
    at_[m] = now;
  }
  /// Of an Ornstein-Uhlenbeck process.
  double pace(size_t m, double now) {
    if (drift_ <= 0) return 1;
    constexpr double kNanos = 5e8;  // within which it is another
    Pace& pace = pace_[m];
    const double same = std::exp((pace.at - now) / kNanos);
    pace.log = same * pace.log + drift_ * std::sqrt(1 - same * same) * random_.normal();
    pace.at = now;
    return std::exp(pace.log);
  }
  void rates(size_t m, double now) {
    std::vector<Live>& lives = by_machine_[m];
    const double slower = pace(m, now);
    int busy = 0;
    for (const Live& live : lives) busy += live.fills();
    // Programs that fill more slots than there are share them.
    const double crowd = std::max(static_cast<double>(busy) / slots_, 1.0);
    for (Live& live : lives) {
      double nanos = 0;
      if (live.waits || live.still) {
        live.per_ns = 0, live.end = INFINITY;
        continue;
      }
      const int own = live.fills();
      if (own == 0) {  // whole programs on streams
        const size_t together = lives.size() - 1;
        nanos = live.streams->empty()
                    ? static_cast<double>(live.alone.count()) * static_cast<double>(together + 1)
                    : static_cast<double>(
                          (*live.streams)[std::min(together, live.streams->size() - 1)].count());
      } else {
        const double others =
            slots_ > own ? std::min(static_cast<double>(busy - own) / (slots_ - own), 1.0) : 0;
        nanos = (static_cast<double>(live.alone.count()) +
                 static_cast<double>((live.all_busy - live.alone).count()) * others) *
                crowd;
      }
      live.per_ns = 1 / std::max(nanos * live.factor * slower, 1.0);
      const double until = std::min(1.0, live.stops);
      live.end = std::ceil(now + std::max(until - live.done, 0.0) / live.per_ns - 1e-6);
    }
  }
  struct Pace {
    double at = -1e12, log = 0;
  };
  int slots_;
  double drift_;
  Random random_;
  std::vector<double> at_;  // by machine: up to when `done` is right
  std::vector<Pace> pace_;
  std::vector<std::vector<Live>> by_machine_;
};

double percentile(std::vector<int64_t>& values, double share) {
  if (values.empty()) return 0;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(*at) / 1000;
}

}  // namespace

SimulationReport simulate(const SimulatedMachine& machine, const std::vector<Arrival>& arrivals,
                          const SimulationOptions& options) {
  const auto wall = std::chrono::steady_clock::now();
  Window window(options.machines, machine.slots);
  Machines truth(options.machines, machine.slots, options.drift, options.seed + 1);
  Times times;
  SimulationReport report;
  for (const SimulatedModel& model : machine.models) times.models.push_back(model.times);
  if (options.tenants.empty()) {
    for (const SimulatedModel& model : machine.models)
      window.add_tenant(model.weight), report.tenants.push_back({.name = model.name});
  } else {
    for (size_t t = 0; t < options.tenants.size(); ++t)
      window.add_tenant(options.tenants[t]),
          report.tenants.push_back({.name = "tenant " + std::to_string(t)});
  }
  std::optional<Recorder> recorder;
  if (options.record) {
    recorder.emplace(*options.record, options.machines, machine.slots, options.policy);
    for (const Tenant& tenant : window.tenants()) recorder->tenant(tenant.weight);
    for (size_t m = 0; m < times.models.size(); ++m)
      recorder->times(static_cast<int>(m), times.models[m]);
  }
  std::vector<std::vector<int64_t>> latencies(report.tenants.size());
  std::vector<double> had(report.tenants.size(), 0);
  Random random(options.seed);
  std::deque<Arrival> following;  // by time
  const auto ended = [&](const Job& job, Time at, bool answered, Why why) {
    Attainment& of = report.tenants[static_cast<size_t>(job.tenant)];
    if (answered) {
      ++of.answered, of.in_time += at <= job.deadline;
      latencies[static_cast<size_t>(job.tenant)].push_back((at - job.arrival).count());
    }
    if (options.ended) options.ended(job.key, at, answered, why);
    if (options.follows)
      if (auto again = options.follows(job, at)) {
        again->at = std::max(again->at, at);
        const auto later = [](Time time, const Arrival& other) { return time < other.at; };
        following.insert(std::upper_bound(following.begin(), following.end(), again->at, later),
                         *again);
      }
  };
  size_t next = 0;
  uint64_t key = 0;
  const auto comes = [&] {
    return std::min(next < arrivals.size() ? arrivals[next].at : kNever,
                    following.empty() ? kNever : following.front().at);
  };
  double busy = 0;
  Time now{0}, wake = kNever;
  while (true) {
    const double end = truth.next_end();
    Time at = std::min(comes(), wake);
    if (end < static_cast<double>(at.count())) at = Time(static_cast<int64_t>(end));
    if (at == kNever) break;
    now = std::max(now, at);
    for (Live& live : truth.ended(static_cast<double>(now.count()))) {
      const Time took = now - live.began, waited = live.began - live.started;
      window.finish(live.id, took, options.policy, waited);
      if (recorder) recorder->finish(live.id, took, waited);
      busy += static_cast<double>(took.count()) * (live.slots > 0 ? live.slots : 0);
      int rows = 0;
      for (const Job& job : live.jobs) rows += job.rows;
      for (const Job& job : live.jobs) {
        had[static_cast<size_t>(job.tenant)] += static_cast<double>((took - live.paused).count()) *
                                                std::max({live.slots, live.borrows, 1}) * job.rows /
                                                rows;
        ended(job, now, true, Why::kInTurn);
      }
    }
    while (comes() <= now) {
      const bool follows = next == arrivals.size() || arrivals[next].at > comes();
      const Arrival arrival = follows ? following.front() : arrivals[next];
      if (follows)
        following.pop_front();
      else
        ++next;
      const Job job{.key = ++key,
                    .model = arrival.model,
                    .tenant = arrival.tenant >= 0 ? arrival.tenant : arrival.model,
                    .priority = arrival.priority,
                    .rows = arrival.rows,
                    .arrival = arrival.at,
                    .deadline = arrival.budget == kNever ? kNever : arrival.at + arrival.budget};
      Attainment& of = report.tenants[static_cast<size_t>(job.tenant)];
      ++of.asked;
      const Admission admission =
          admit(window, times, now, options.policy, job, options.queue_limit);
      if (recorder) recorder->ask(now, options.queue_limit, job, admission);
      if (admission.taken) {
        window.arrive(job, options.policy);
      } else {
        if (admission.why == Why::kLoad) window.refuse(job, options.policy);
        ++of.refused;
        ended(job, now, false, admission.why);
      }
    }
    Decisions decisions = decide(window, times, now, options.policy);
    if (recorder) recorder->decide(now, decisions);
    if (options.decided) options.decided(window, decisions, now);
    uint64_t run = window.apply(decisions, options.policy, now);
    wake = decisions.wake;
    for (const GiveUp& given : decisions.given_up) {
      ++report.tenants[static_cast<size_t>(given.job.tenant)].given_up;
      ended(given.job, now, false, given.why);
    }
    std::map<int, size_t> together;
    const auto count = [&](size_t runs) {
      if (report.groups.size() <= runs) report.groups.resize(runs + 1, 0);
      ++report.groups[runs];
    };
    std::map<int, double> factors;  // by shared launch: its slowest run is its end
    std::vector<std::pair<int, Live>> begun;
    for (Start& start : decisions.starts) {
      if (start.launch > 0)
        ++together[start.launch];
      else
        count(1);
      const ModelTimes& model = times.models[static_cast<size_t>(start.model)];
      const VariantTime& variant = model.variants[static_cast<size_t>(start.variant)];
      const auto tenant = static_cast<size_t>(start.jobs.front().tenant);
      Live live{.id = run++,
                .machine = start.machine,
                .slots = start.slots,
                .beside = start.beside,
                .started = now,
                .alone = variant.alone,
                .all_busy = variant.beside,
                .streams = &model.streams};
      live.factor = (start.rows + variant.batch - 1) / variant.batch;
      live.within = start.within, live.borrows = start.borrows;
      if (variant.segment != kNever)
        live.cut = static_cast<double>(variant.segment.count()) /
                   static_cast<double>(std::max(variant.alone, Time(1)).count()) / live.factor;
      report.within += start.within > 0;
      if (options.noise > 0) live.factor *= std::exp(options.noise * random.normal());
      if (tenant < options.slower.size()) live.factor *= options.slower[tenant];
      ++report.launches, report.wide_launches += start.slots == machine.slots;
      if (start.jobs.size() > 1) report.joined += static_cast<int64_t>(start.jobs.size());
      live.jobs = std::move(start.jobs);
      if (start.launch > 0) factors[start.launch] = std::max(factors[start.launch], live.factor);
      begun.emplace_back(start.launch, std::move(live));
    }
    for (auto& [launch, live] : begun) {
      if (launch > 0) live.factor = factors[launch];
      truth.start(std::move(live), static_cast<double>(now.count()));
    }
    for (const auto& [launch, runs] : together) count(runs);
  }
  report.ended = now, report.all.name = "all";
  std::vector<int64_t> all;
  double had_all = 0;
  for (const double one : had) had_all += one;
  for (size_t t = 0; t < report.tenants.size(); ++t) {
    Attainment& of = report.tenants[t];
    all.insert(all.end(), latencies[t].begin(), latencies[t].end());
    of.p50_us = percentile(latencies[t], 0.5), of.p99_us = percentile(latencies[t], 0.99);
    of.slot_share = had_all > 0 ? had[t] / had_all : 0;
    report.all.asked += of.asked, report.all.refused += of.refused,
        report.all.given_up += of.given_up;
    report.all.answered += of.answered, report.all.in_time += of.in_time;
  }
  report.all.slot_share = 1;
  report.all.p50_us = percentile(all, 0.5), report.all.p99_us = percentile(all, 0.99);
  const double over =
      arrivals.empty() ? 0
                       : static_cast<double>(std::max(arrivals.back().at, Time(1)).count()) / 1e9;
  if (over > 0)
    report.asked_per_s = static_cast<double>(report.all.asked) / over,
    report.goodput_per_s = static_cast<double>(report.all.in_time) / over;
  if (now > Time(0))
    report.busy = busy / static_cast<double>(now.count()) / machine.slots / options.machines;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count();
  return report;
}

std::vector<Arrival> generate(const SimulatedMachine& machine, const Workload& workload) {
  // A source each model, merged by time. Azure's functions: rates by a power law; of four sources
  // two come at random in clusters, one by a timer, one in bursts.
  struct Source {
    Random random;
    double gap, at;
    int style;
    double burst_ends, phase;
  };
  constexpr double kPower = 0.7,
                   kClustered =
                       4;  // exponent of the rates; coefficient of variation of clustered gaps
  constexpr double
      kOn = 0.1,
      kBurstGaps = 40;  // of a burst's period it is on; gaps of the mean rate that a period lasts
  std::vector<Source> sources;
  const size_t count = machine.models.size();
  CHECK(workload.shares.empty() || workload.shares.size() == count, "a share for each model");
  const auto weight = [&](size_t m) {
    const double share = workload.shares.empty() ? 1 : workload.shares[m];
    return workload.kind == Workload::Kind::kAzure
               ? share * std::pow(static_cast<double>(m + 1), -kPower)
               : share;
  };
  double sum = 0;
  for (size_t m = 0; m < count; ++m) sum += weight(m);
  for (size_t m = 0; m < count; ++m) {
    const double part = weight(m) / sum;
    Source source{Random(workload.seed * 1000003 + m * 7919 + 1),
                  1e9 / (workload.rate * part),
                  0,
                  static_cast<int>(m % 4),
                  0,
                  0};
    source.phase = source.random.uniform();
    source.at = source.gap * source.random.uniform();
    sources.push_back(source);
  }
  const auto advance = [&](Source& source) {
    Random& random = source.random;
    switch (workload.kind) {
      case Workload::Kind::kPoisson:
        source.at += source.gap * random.exponential();
        return;
      case Workload::Kind::kBurst:
        source.at += source.gap * std::exp(workload.sigma * random.normal() -
                                           workload.sigma * workload.sigma / 2);
        return;
      case Workload::Kind::kAzure:
        break;
    }
    if (source.style == 2) {
      source.at += source.gap;  // a timer
    } else if (source.style == 3) {
      source.at += source.gap * kOn * random.exponential();
      const double period = source.gap * kBurstGaps, in = source.at / period + source.phase;
      if (in - std::floor(in) > kOn)
        source.at = (std::floor(in) + 1 - source.phase) * period;  // off until the next begins
    } else {
      source.at += source.gap * random.gamma(1 / (kClustered * kClustered));
    }
  };
  std::vector<Arrival> arrivals;
  arrivals.reserve(static_cast<size_t>(workload.requests));
  constexpr double kFactors[] = {2, 3, 5, 10};
  for (int64_t k = 0; k < workload.requests && count > 0; ++k) {
    size_t first = 0;
    for (size_t m = 1; m < count; ++m)
      if (sources[m].at < sources[first].at) first = m;
    Source& source = sources[first];
    const double factor =
        workload.slack_factor > 0 ? workload.slack_factor : kFactors[source.random.next() % 4];
    const Time alone = quickest(machine.models[first].times, 1);
    arrivals.push_back(
        {.at = Time(static_cast<int64_t>(source.at)),
         .model = static_cast<int>(first),
         .budget = Time(static_cast<int64_t>(factor * static_cast<double>(alone.count())))});
    advance(source);
  }
  return arrivals;
}

}  // namespace obelisk::serve
