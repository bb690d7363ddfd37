#include "serve/record.h"

#include <istream>
#include <ostream>
#include <sstream>

namespace obelisk::serve {
namespace {

/// Of records. 4: plans know no batches, and requests of a model count one by one where widths are
/// chosen. 3: predictions do not follow what all runs took of late, and admission begins with
/// less caution. 2: no run gives way to another. 1: models are not forgotten, and who gathers for a
/// shared launch waits by its gaps.
constexpr int kVersion = 5;

std::string text_of(const Job& job) {
  return fmt::format("{} {} {} {} {} {} {}", job.key, job.model, job.tenant, job.priority, job.rows,
                     job.arrival.count(), job.deadline.count());
}

std::string text_of(const Admission& admission) {
  if (admission.taken) return "taken";
  return fmt::format("refused {} {}", static_cast<int>(admission.why),
                     admission.retry_after ? admission.retry_after->count() : -1);
}

std::string text_of(const Policy& p) {
  return fmt::format(
      "{} {} {} {} {:d} {:d} {:d} {:d} {:d} {:d} {} {} {} {} {} {} {:d} {} {} {:d} {:d} {:d}",
      to_string(p.kind), static_cast<int>(p.drop), p.admit_by_load ? 1 : 0, p.streams, p.batches,
      p.narrow, p.foresee, p.hold, p.reserve, p.shares, p.margin, p.straggler, p.patience.count(),
      p.share_slack.count(), p.best_effort.count(), p.promise, p.instances, p.gather.count(),
      p.overlap, p.eager, p.segments, p.pace);
}

bool read(std::istream& in, Time& time) {
  int64_t nanos = 0;
  if (!(in >> nanos)) return false;
  time = Time(nanos);
  return true;
}

bool read(std::istream& in, Policy& p) {
  std::string name;
  int drop = 0;
  if (!(in >> name)) return false;
  auto known = policy_named(name);
  if (!known.ok()) return false;
  p = *known;
  in >> drop >> p.admit_by_load >> p.streams >> p.batches >> p.narrow >> p.foresee >> p.hold >>
      p.reserve >> p.shares >> p.margin >> p.straggler;
  p.drop = static_cast<Drop>(drop);
  if (!in || !read(in, p.patience) || !read(in, p.share_slack) || !read(in, p.best_effort) ||
      !(in >> p.promise))
    return false;
  p.segments = p.pace = false;
  // Records of before launches were shared end here.
  if (!(in >> p.instances)) return p.instances = false, p.overlap = 0, true;
  if (!read(in, p.gather)) return false;
  if (!(in >> p.overlap)) return p.overlap = 0, true;  // those of before programs overlapped
  if (!(in >> p.eager)) return p.eager = false, true;
  if (!(in >> p.segments)) return p.segments = false, true;
  if (!(in >> p.pace)) p.pace = false;
  return true;
}

bool read(std::istream& in, Job& job) {
  return (in >> job.key >> job.model >> job.tenant >> job.priority >> job.rows) && job.model >= 0 &&
         job.tenant >= 0 && job.rows > 0 && read(in, job.arrival) && read(in, job.deadline);
}

bool read(std::istream& in, ModelTimes& times) {
  std::string word;
  if (!(in >> word)) return false;
  times.bound = word == "memory" ? Bound::kMemory : Bound::kCompute;
  while (in >> word && word != "|") {
    if (long long away = 0; std::sscanf(word.c_str(), "away:%lld", &away) == 1) {
      times.away = Time(away);
      continue;
    }
    VariantTime variant;
    long long alone = 0, beside = 0, segment = kNever.count();
    if (std::sscanf(word.c_str(), "%d:%d:%lld:%lld:%d:%lld", &variant.batch, &variant.width, &alone,
                    &beside, &variant.code, &segment) < 4 ||
        variant.batch < 1 || variant.width < 1)
      return false;
    variant.alone = Time(alone), variant.beside = Time(beside), variant.segment = Time(segment);
    times.variants.push_back(variant);
  }
  for (int64_t nanos = 0; in >> nanos;) times.streams.emplace_back(nanos);
  return true;
}

}  // namespace

std::string text_of(const Decisions& decisions) {
  std::string text;
  for (const GiveUp& given : decisions.given_up)
    text += fmt::format("give up {} {}; ", given.job.key, static_cast<int>(given.why));
  for (const Start& start : decisions.starts) {
    text += fmt::format("start {} {} {} {} {}", start.machine, start.model, start.variant,
                        start.slots, static_cast<int>(start.why));
    if (start.within > 0) text += fmt::format(" within:{}", start.within);
    if (start.launch > 0) text += fmt::format(" launch:{}", start.launch);
    for (const Job& job : start.jobs) text += fmt::format(" {}", job.key);
    text += "; ";
  }
  return text +
         (decisions.wake == kNever ? "no wake" : fmt::format("wake {}", decisions.wake.count()));
}

Recorder::Recorder(std::ostream& out, int machines, int slots, const Policy& policy) : out_(out) {
  out_ << fmt::format("version {}\nmachine {} {}\npolicy {}\n", kVersion, machines, slots,
                      text_of(policy));
}
void Recorder::tenant(double weight) { out_ << fmt::format("tenant {}\n", weight); }
void Recorder::times(int model, const ModelTimes& times) {
  std::string text =
      fmt::format("times {} {}", model, times.bound == Bound::kMemory ? "memory" : "compute");
  for (const VariantTime& variant : times.variants) {
    text += fmt::format(" {}:{}:{}:{}", variant.batch, variant.width, variant.alone.count(),
                        variant.beside.count());
    if (variant.code >= 0 || variant.segment != kNever) text += fmt::format(":{}", variant.code);
    if (variant.segment != kNever) text += fmt::format(":{}", variant.segment.count());
  }
  if (times.away > Time(0)) text += fmt::format(" away:{}", times.away.count());
  text += " |";
  for (const Time time : times.streams) text += fmt::format(" {}", time.count());
  out_ << text << '\n';
}
void Recorder::ask(Time now, int queue_limit, const Job& job, const Admission& admission) {
  out_ << fmt::format("ask {} {} {} = {}\n", now.count(), queue_limit, text_of(job),
                      text_of(admission));
}
void Recorder::forget(int model) { out_ << fmt::format("forget {}\n", model); }
void Recorder::cancel(uint64_t key) { out_ << fmt::format("cancel {}\n", key); }
void Recorder::finish(uint64_t run, Time took, Time waited) {
  out_ << fmt::format("finish {} {}{}\n", run, took.count(),
                      waited > Time(0) ? fmt::format(" {}", waited.count()) : "");
}
void Recorder::decide(Time now, const Decisions& decisions) {
  out_ << fmt::format("decide {} = {}\n", now.count(), text_of(decisions));
}

Result<Replay> replay(std::istream& in) {
  Replay report;
  Policy policy;
  Times times;
  std::optional<Window> window;
  const auto wrong = [&](const std::string& why) {
    return Error{Code::kUsage, "serve",
                 fmt::format("line {} of the record: {}", report.lines, why)};
  };
  int tenants = 0, version = 1;
  for (std::string line; std::getline(in, line);) {
    ++report.lines;
    const size_t equals = line.find(" = ");
    std::istringstream words(line.substr(0, equals));
    const std::string said = equals == std::string::npos ? "" : line.substr(equals + 3);
    std::string verb, found;
    Time now{0};
    words >> verb;
    if (verb == "version") {
      if (!(words >> version) || version < 1 || version > kVersion)
        return wrong(fmt::format("a version that is not known here, where it is {}", kVersion));
      continue;
    }
    if (verb == "machine") {
      int machines = 0, slots = 0;
      if (!(words >> machines >> slots) || machines < 1 || machines > 4096 || slots < 1 ||
          slots > 65536)
        return wrong("no machine");
      window.emplace(machines, slots);
      continue;
    }
    if (!window) return wrong("it does not begin with a machine");
    if (verb == "policy") {
      if (!read(words, policy)) return wrong("no policy");
    } else if (verb == "tenant") {
      double weight = 1;
      if (!(words >> weight)) return wrong("no weight");
      window->add_tenant(weight), ++tenants;
    } else if (verb == "times") {
      int model = -1;
      ModelTimes of;
      if (!(words >> model) || model < 0 || model > 65536 || !read(words, of))
        return wrong("no times");
      if (times.models.size() <= static_cast<size_t>(model))
        times.models.resize(static_cast<size_t>(model) + 1);
      times.models[static_cast<size_t>(model)] = std::move(of);
    } else if (verb == "ask") {
      int limit = 0;
      Job job;
      if (!read(words, now) || !(words >> limit) || !read(words, job)) return wrong("no request");
      if (static_cast<size_t>(job.model) >= times.models.size() || job.tenant >= tenants)
        return wrong("a model or tenant that was not told of");
      const Admission admission = admit(*window, times, now, policy, job, limit);
      found = text_of(admission), ++report.asked;
      if (admission.taken) window->arrive(job, policy);
      if (admission.why == Why::kLoad) window->refuse(job, policy);
    } else if (verb == "cancel") {
      uint64_t key = 0;
      if (!(words >> key)) return wrong("no request");
      window->cancel(key);
    } else if (verb == "forget") {
      int model = -1;
      if (!(words >> model) || model < 0 || static_cast<size_t>(model) >= times.models.size() ||
          window->waiting_of(model) > 0 || window->running_of(model) > 0)
        return wrong("no model that is gone");
      window->forget(model);
    } else if (verb == "finish") {
      uint64_t run = 0;
      Time took{0}, waited{0};
      const auto runs = [&](const Running& one) { return one.id == run; };
      if (!(words >> run) || !read(words, took) ||
          std::none_of(window->running().begin(), window->running().end(), runs))
        return wrong("no run");
      read(words, waited);
      window->finish(run, took, policy, waited);
    } else if (verb == "decide") {
      if (!read(words, now)) return wrong("no time");
      const Decisions decisions = decide(*window, times, now, policy);
      found = text_of(decisions), ++report.decisions;
      window->apply(decisions, policy, now);
    } else {
      return wrong(fmt::format("'{}' is no verb", verb));
    }
    if (found == said || (equals == std::string::npos && found.empty())) continue;
    report.difference = fmt::format("line {}: recorded '{}', now '{}'", report.lines, said, found);
    if (version != kVersion)
      report.difference +=
          fmt::format(" (the record has version {}, this program {})", version, kVersion);
    return report;
  }
  return report;
}

}  // namespace obelisk::serve
