// obelisk simulate: the scheduler under a virtual clock.
//
// A trace is lines of JSON, in the order of time:
//   {"time_us": 12.5, "model": "resnet50", "deadline_us": 546, "tenant": "a", "rows": 1,
//   "priority": 0}
// `deadline_us` counts from arrival. All but time and model may be left out: no deadline, the
// model's own tenant, one row. Times of programs are a file like bench/results/h200_tenants.json.
#include <algorithm>
#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <map>

#include "flags.h"
#include "serve/serve.h"
#include "serve/simulate.h"
#include "simulate.h"

namespace obelisk::cli {
namespace {

using serve::Time;

Error usage(std::string message, std::string hint = "") {
  return Error{Code::kUsage, "cli", std::move(message), "", std::move(hint)};
}

Time micros(double us) { return Time(static_cast<int64_t>(std::llround(us * 1000))); }

/// Numbers by a number as text: {"66": 188}.
std::map<int, double> numbers(const Json& model, const char* key) {
  std::map<int, double> out;
  if (model.contains(key))
    for (const auto& [name, value] : model.at(key).items())
      out[std::stoi(name)] = value.get<double>();
  return out;
}

/// Between given points by a straight line, beyond the last in proportion.
double between(const std::map<int, double>& points, int at) {
  const auto above = points.lower_bound(at);
  if (above == points.end()) return points.rbegin()->second * at / points.rbegin()->first;
  if (above->first == at || above == points.begin()) return above->second;
  const auto below = std::prev(above);
  return below->second +
         (above->second - below->second) * (at - below->first) / (above->first - below->first);
}

Result<serve::SimulatedMachine> read_times(const std::string& path,
                                           const std::vector<std::string>& tenants) {
  TRY(const std::string text, read_file(path));
  const Json all = Json::parse(text, nullptr, false);
  if (all.is_discarded()) return usage(fmt::format("'{}' is not JSON", path));
  try {
    serve::SimulatedMachine machine{all.value("device", "?"), all.at("slots").get<int>(), {}};
    if (machine.slots < 1)
      return usage(fmt::format("'{}': a machine of {} slots", path, machine.slots));
    const auto add = [&](const std::string& name, const Json& model) {
      serve::SimulatedModel made{.name = name};
      made.times.bound = model.value("bound", "compute") == "memory" ? serve::Bound::kMemory
                                                                     : serve::Bound::kCompute;
      const std::map<int, double> alone = numbers(model, "alone"),
                                  beside = numbers(model, "beside");
      const double whole = alone.at(machine.slots);
      made.times.variants.push_back({1, machine.slots, micros(whole), micros(whole)});
      for (const auto& [width, us] : beside)
        made.times.variants.push_back(
            {1, width, micros(alone.contains(width) ? alone.at(width) : us), micros(us)});
      if (std::map<int, double> batch = numbers(model, "batch"); !batch.empty()) {
        batch[1] = whole;
        for (int b = 2; b <= batch.rbegin()->first; b *= 2)
          made.times.variants.push_back(
              {b, machine.slots, micros(between(batch, b)), micros(between(batch, b))});
      }
      if (model.contains("batches"))  // by width: also of programs for fewer slots
        for (const auto& [width, times] : model.at("batches").items())
          for (const auto& [batch, us] : times.items())
            made.times.variants.push_back({std::stoi(batch), std::stoi(width),
                                           micros(us.get<double>()), micros(us.get<double>())});
      if (std::map<int, double> streams = numbers(model, "streams"); !streams.empty()) {
        streams[1] = whole;
        for (int k = 1; k <= 8; ++k) made.times.streams.push_back(micros(between(streams, k)));
      }
      if (const double segment = model.value("segment", 0.0); segment > 0)
        for (serve::VariantTime& variant : made.times.variants) variant.segment = micros(segment);
      machine.models.push_back(std::move(made));
    };
    if (tenants.empty())
      for (const auto& [name, model] : all.at("models").items()) add(name, model);
    for (const std::string& name : tenants) {
      const size_t colon =
          name.find(':');  // "second:resnet50": the same network again, with weights of its own
      const std::string network = colon == std::string::npos ? name : name.substr(colon + 1);
      if (!all.at("models").contains(network))
        return usage(fmt::format("'{}' has no times of '{}'", path, network));
      add(name.substr(0, colon), all.at("models").at(network));
    }
    return machine;
  } catch (const std::exception& wrong) {
    return usage(fmt::format("'{}': {}", path, wrong.what()),
                 "a file like bench/results/h200_tenants.json");
  }
}

Result<std::vector<serve::Arrival>> read_trace(const std::string& path,
                                               const serve::SimulatedMachine& machine,
                                               std::vector<std::string>& tenants) {
  std::ifstream file(path);
  if (!file) return usage(fmt::format("'{}' cannot be read", path));
  std::map<std::string, int> models, tenant_of;
  for (const auto& model : machine.models) {
    models[model.name] = static_cast<int>(models.size());
    tenant_of.try_emplace(model.name, static_cast<int>(tenant_of.size())),
        tenants.push_back(model.name);
  }
  std::vector<serve::Arrival> arrivals;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    const auto wrong = [&](const std::string& why) {
      return usage(fmt::format("'{}' line {}: {}", path, number, why));
    };
    const Json one = Json::parse(line, nullptr, false);
    if (one.is_discarded() || !one.is_object()) return wrong("not an object of JSON");
    try {
      serve::Arrival arrival{.at = micros(one.at("time_us").get<double>())};
      const auto model = models.find(one.at("model").get<std::string>());
      if (model == models.end())
        return wrong(fmt::format("there are no times of '{}'", one.at("model").get<std::string>()));
      arrival.model = model->second;
      if (one.contains("deadline_us")) arrival.budget = micros(one.at("deadline_us").get<double>());
      arrival.rows = one.value("rows", 1), arrival.priority = one.value("priority", 0);
      if (one.contains("tenant")) {
        const auto [at, fresh] = tenant_of.try_emplace(one.at("tenant").get<std::string>(),
                                                       static_cast<int>(tenants.size()));
        if (fresh) tenants.push_back(at->first);
        arrival.tenant = at->second;
      }
      if (arrival.at < Time(0) || (!arrivals.empty() && arrival.at < arrivals.back().at))
        return wrong("earlier than the line before");
      if (arrival.rows < 1) return wrong("rows below 1");
      arrivals.push_back(arrival);
    } catch (const std::exception& bad) {
      return wrong(bad.what());
    }
  }
  return arrivals;
}

Status write_trace(const std::string& path, const serve::SimulatedMachine& machine,
                   const std::vector<serve::Arrival>& arrivals) {
  std::ofstream file(path);
  for (const serve::Arrival& one : arrivals)
    file << fmt::format("{{\"time_us\": {:.3f}, \"model\": \"{}\", \"deadline_us\": {:.3f}}}\n",
                        static_cast<double>(one.at.count()) / 1000,
                        machine.models[static_cast<size_t>(one.model)].name,
                        static_cast<double>(one.budget.count()) / 1000);
  if (!file.flush()) return usage(fmt::format("'{}' cannot be written", path));
  return ok_status();
}

Json json_of(const serve::Attainment& of) {
  return {{"name", of.name},
          {"asked", of.asked},
          {"in_time", of.in_time},
          {"share", of.share()},
          {"share_of_taken", of.share_of_taken()},
          {"refused", of.refused},
          {"given_up", of.given_up},
          {"answered", of.answered},
          {"p50_us", of.p50_us},
          {"p99_us", of.p99_us},
          {"slot_share", of.slot_share}};
}

Json json_of(const serve::SimulationReport& report, const std::string& policy) {
  Json json = {{"policy", policy},
               {"asked_per_s", report.asked_per_s},
               {"goodput_per_s", report.goodput_per_s},
               {"busy", report.busy},
               {"launches", report.launches},
               {"joined", report.joined},
               {"within", report.within},
               {"seconds", report.seconds},
               {"all", json_of(report.all)}};
  for (const serve::Attainment& tenant : report.tenants) json["tenants"].push_back(json_of(tenant));
  return json;
}

std::string text_of(const serve::SimulationReport& report, const std::string& policy) {
  std::string text = fmt::format(
      "{}: {:.0f} requests/s, {:.0f} of them answered in time ({:.2f} %), slots busy {:.0f} %, {} "
      "launches{}\n",
      policy, report.asked_per_s, report.goodput_per_s, 100 * report.all.share(), 100 * report.busy,
      report.launches,
      report.within > 0 ? fmt::format(", {} of them within others", report.within) : "");
  text += fmt::format("  {:14} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10}\n", "", "asked", "in time",
                      "refused", "given up", "p50 us", "p99 us");
  std::vector<serve::Attainment> rows = report.tenants;
  rows.push_back(report.all);
  for (const serve::Attainment& of : rows)
    text += fmt::format(
        "  {:14} {:>9} {:>8.2f}% {:>8.2f}% {:>8.2f}% {:>10.0f} {:>10.0f}\n", of.name, of.asked,
        100 * of.share(),
        of.asked ? 100.0 * static_cast<double>(of.refused) / static_cast<double>(of.asked) : 0,
        of.asked ? 100.0 * static_cast<double>(of.given_up) / static_cast<double>(of.asked) : 0,
        of.p50_us, of.p99_us);
  return text;
}

/// The highest rate at which such a share is in time, to two in a hundred.
double highest_rate(const serve::SimulatedMachine& machine, serve::Workload workload,
                    const serve::SimulationOptions& options, double share) {
  const auto reaches = [&](double rate) {
    workload.rate = rate;
    return serve::simulate(machine, serve::generate(machine, workload), options).all.share() >=
           share;
  };
  double low = 0, high = 100;
  while (reaches(high) && high < 1e8) low = high, high *= 2;
  while (high - low > 0.02 * high) {
    const double middle = (low + high) / 2;
    (reaches(middle) ? low : high) = middle;
    if (high < 1) break;
  }
  return low;
}

}  // namespace

void add_simulate(CLI::App& verb, SimulateFlags& flags) {
  verb.add_option("trace", flags.trace, "lines of JSON: time_us, model, deadline_us, ...");
  verb.add_option("--times", flags.times,
                  "how long programs take (bench/results/h200_tenants.json)");
  verb.add_option("--replay", flags.replay, "the record of an engine: decide again, and compare");
  verb.add_option("--policy", flags.policies,
                  "fifo, time, streams, edf, batch, vliw, or several, or all")
      ->delimiter(',');
  verb.add_option("--without", flags.without,
                  "parts of vliw that are left out: batches, narrow, foresee, hold, reserve, "
                  "instances, overlap, segments, pace, shares, admission, promise")
      ->delimiter(',');
  verb.add_option("--gpus", flags.gpus, "machines like the one of the times")
      ->check(CLI::Range(1, 1024));
  verb.add_option("--generate", flags.generate, "make the trace: poisson, burst, azure")
      ->check(CLI::IsMember({"poisson", "burst", "azure"}));
  verb.add_option("--models", flags.models,
                  "of the times; NAME:MODEL gives a model once more, with weights of its own")
      ->delimiter(',');
  verb.add_option("--rate", flags.rate, "requests per second that are generated")
      ->check(CLI::PositiveNumber);
  verb.add_option("--requests", flags.requests, "how many")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000'000}));
  verb.add_option("--sigma", flags.sigma, "burst: of the logarithm of gaps (1.5, 2)")
      ->check(CLI::Range(0.0, 5.0));
  verb.add_option("--deadline", flags.deadline,
                  "times the time alone; without it one of 2, 3, 5, 10 each request")
      ->check(CLI::PositiveNumber);
  verb.add_option("--seed", flags.seed, "of what is generated");
  verb.add_option("--noise", flags.noise, "of durations: sigma of their logarithm")
      ->check(CLI::Range(0.0, 2.0));
  verb.add_option("--drift", flags.drift,
                  "of durations of all runs of a machine together, as where it is shared: sigma of "
                  "the logarithm of what changes within half a second")
      ->check(CLI::Range(0.0, 2.0));
  verb.add_option("--goodput", flags.goodput,
                  "find the highest rate at which such a share of the requests is in time (0.99)")
      ->check(CLI::Range(0.01, 1.0));
  verb.add_option("-o,--output", flags.output, "write the generated trace, and do not simulate");
}

namespace {

Status replay(const Flags& flags, const std::string& path) {
  std::ifstream file(path);
  if (!file) return usage(fmt::format("'{}' cannot be read", path));
  TRY(const serve::Replay report, serve::replay(file));
  answer(flags,
         {{"lines", report.lines},
          {"requests", report.asked},
          {"decisions", report.decisions},
          {"same", report.difference.empty()},
          {"difference", report.difference}},
         fmt::format("{} requests, {} decisions: {}\n", report.asked, report.decisions,
                     report.difference.empty() ? "the same again" : report.difference));
  if (report.difference.empty()) return ok_status();
  return Error{Code::kAccuracy, "serve", "other decisions than were recorded: " + report.difference,
               "", "a record replays with the version that wrote it"};
}

}  // namespace

int simulate(const Flags& flags, const SimulateFlags& wanted) {
  const auto done = [&]() -> Status {
    if (!wanted.replay.empty()) return replay(flags, wanted.replay);
    if (wanted.times.empty())
      return usage("--times is needed: how long programs take",
                   "--times bench/results/h200_tenants.json");
    if (!wanted.trace.empty() && !std::ifstream(wanted.trace))
      return usage(fmt::format("'{}' cannot be read", wanted.trace));
    TRY(const serve::SimulatedMachine machine, read_times(wanted.times, wanted.models));
    if (wanted.trace.empty() == wanted.generate.empty())
      return usage("either a trace or --generate is needed");
    if (wanted.goodput > 0 && wanted.generate.empty())
      return usage("--goodput needs --generate: a trace has one rate");
    serve::Workload workload{.rate = wanted.rate,
                             .requests = wanted.requests,
                             .sigma = wanted.sigma,
                             .slack_factor = wanted.deadline,
                             .seed = wanted.seed};
    workload.kind = wanted.generate == "burst"   ? serve::Workload::Kind::kBurst
                    : wanted.generate == "azure" ? serve::Workload::Kind::kAzure
                                                 : serve::Workload::Kind::kPoisson;
    std::vector<serve::Arrival> arrivals;
    std::vector<std::string> tenants;
    if (!wanted.trace.empty()) {
      TRY(arrivals, read_trace(wanted.trace, machine, tenants));
    } else if (wanted.goodput <= 0) {
      arrivals = serve::generate(machine, workload);
    }
    if (!wanted.output.empty()) return write_trace(wanted.output, machine, arrivals);
    std::vector<std::string> names = wanted.policies;
    if (names.size() == 1 && names[0] == "all") names = serve::policy_names();
    Json json = Json::array();
    std::string text;
    for (const std::string& name : names) {
      serve::SimulationOptions options{.machines = wanted.gpus,
                                       .noise = wanted.noise,
                                       .drift = wanted.drift,
                                       .seed = wanted.seed};
      TRY(options.policy, serve::policy_named(name));
      for (const std::string& part : wanted.without) {
        const std::map<std::string, bool*> parts = {
            {"batches", &options.policy.batches},     {"narrow", &options.policy.narrow},
            {"foresee", &options.policy.foresee},     {"hold", &options.policy.hold},
            {"reserve", &options.policy.reserve},     {"shares", &options.policy.shares},
            {"instances", &options.policy.instances}, {"segments", &options.policy.segments},
            {"pace", &options.policy.pace},           {"admission", &options.policy.admit_by_load}};
        const auto at = parts.find(part);
        if (part == "promise")
          options.policy.promise = 0;
        else if (part == "overlap")
          options.policy.overlap = 0;
        else if (at == parts.end())
          return usage(
              fmt::format("the scheduler has no part '{}'", part),
              "batches, narrow, foresee, hold, reserve, instances, overlap, segments, pace, "
              "shares, admission, promise");
        else
          *at->second = false;
      }
      if (wanted.goodput > 0) {
        const double rate = highest_rate(machine, workload, options, wanted.goodput);
        json.push_back({{"policy", name},
                        {"workload", wanted.generate},
                        {"share", wanted.goodput},
                        {"rate_per_s", rate}});
        text += fmt::format("{:8} {:>8.0f} requests/s with {:.1f} % in time\n", name, rate,
                            100 * wanted.goodput);
        continue;
      }
      if (tenants.size() > machine.models.size()) options.tenants.assign(tenants.size(), 1.0);
      serve::SimulationReport report = serve::simulate(machine, arrivals, options);
      for (size_t t = 0; t < tenants.size() && t < report.tenants.size(); ++t)
        report.tenants[t].name = tenants[t];
      json.push_back(json_of(report, name));
      text += text_of(report, name);
    }
    answer(flags,
           {{"device", machine.device},
            {"slots", machine.slots},
            {"machines", wanted.gpus},
            {"policies", json}},
           text);
    return ok_status();
  }();
  return done.ok() ? 0 : fail(flags, done.error());
}

}  // namespace obelisk::cli
