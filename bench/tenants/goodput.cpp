// Goodput of obelisk::Server: the highest rate at which nearly all requests of several models are
// answered before their deadlines, by policy, on the same programs.
//
//   goodput NAME=MODEL... [--inputs DIR] [--target cuda] [--precision fp16] [--max-batch 4]
//           [--batch-dimension batch] [--policies vliw,batch,edf,streams,fifo,time]
//           [--arrivals poisson,burst:1.5,burst:2,azure] [--factors 5,3,10,2] [--share 0.99]
//           [--seconds 1.5] [--warm 0.2] [--tolerance 0.05] [--budget 300] [--submitters 1]
//           [--seed 1] [--cache DIR] [--workers N] [--widths 132,66] [--on-device] [--pinned]
//           [--rates 4000,6000] [--overload 1.2] [--requests FILE.csv]
//
// Behind a policy's name what differs from its server's defaults: knobs of the policy and
// keep_warm (us), keep_warm_bytes, pooled_streams, priorities, batch (the largest), as in
// vliw:overlap=8:keep_warm=200. --rates: these points, in place of a search.
//
// A deadline is a factor of the model's solo time: the median round trip of an answer while nobody
// else asks, by the widest program. Models are asked in inverse proportion to it, so that each is
// the same load; of azure a power law comes on top. Arrivals are those of `obelisk simulate`, of a
// fixed seed: another rate stretches them.
//
// A rate at which less than the share is in time is tried once more. No rate is tried at which a
// point has so few requests that a single late one is more than the share allows. Cells share what
// is left of the budget: none takes more than twice its part.
//
// Open loop: threads submit at the times of arrival and wait for no answer. A deadline counts from
// the time of arrival, not from when a thread came to submit. In time is what the client has by
// then, by its own clock; refused and given up is not. The server's record of each answer (when it
// was taken, started and answered) is held against the client's clock, its counters against the
// client's counts.
//
// Output: JSON, a line each, as it is known: `machine`, `model`, `point` (one rate for some
// seconds), `cell` (the highest rate of a policy), `overload` (a point of each policy at --overload
// times the highest rate that any of them reached), `end`.
// --requests: a line each request of each point, in microseconds, to see why some were late.
// Inputs are DIR/NAME.PORT.bin; without DIR, random numbers, and ones where integers are wanted.
#include <malloc.h>
#include <obelisk/obelisk.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "common.h"
#include "gpu_memory.h"
#include "serve/serve.h"
#include "serve/simulate.h"

namespace {

using Clock = std::chrono::steady_clock;
using Nanos = std::chrono::nanoseconds;
namespace serve = obelisk::serve;

constexpr double kGiveUp = 20;  // seconds that the last answers of a point are waited for
/// A submitter is late where more than this share of the requests was submitted after more than
/// this part of the time that they had.
constexpr double kLateShare = 0.01, kLatePart = 0.1;

// ---- what is wanted ----

struct Wanted {
  std::vector<std::pair<std::string, std::string>> models;
  std::string inputs, target = "cuda", precision = "keep", batch_dimension, cache, requests;
  std::vector<std::string> policies = {"vliw", "batch", "edf", "streams", "fifo", "time"};
  std::vector<std::string> arrivals = {"poisson", "burst:1.5", "burst:2", "azure"};
  std::vector<double> factors = {5, 3, 10, 2};
  std::vector<int> widths;
  int max_batch = 1, workers = 0, submitters = 1, most_points = 14;
  double share = 0.99, seconds = 1.5, warm = 0.2, tolerance = 0.05, budget = 300, overload = 1.2;
  uint64_t seed = 1;
  bool on_device = false, pinned = false;
  std::vector<double> rates;
};

Wanted read(int argc, char** argv) {
  Wanted wanted;
  for (Words words(argc, argv); words.next();) {
    const std::string word = words.word();
    const auto value = [&] { return words.value(); };
    const auto number = [&] { return std::stod(value()); };
    const auto whole = [&] { return std::stoi(value()); };
    if (word == "--inputs")
      wanted.inputs = value();
    else if (word == "--target")
      wanted.target = value();
    else if (word == "--precision")
      wanted.precision = value();
    else if (word == "--batch-dimension")
      wanted.batch_dimension = value();
    else if (word == "--max-batch")
      wanted.max_batch = whole();
    else if (word == "--policies")
      wanted.policies = split(value());
    else if (word == "--arrivals")
      wanted.arrivals = split(value());
    else if (word == "--cache")
      wanted.cache = value();
    else if (word == "--requests")
      wanted.requests = value();
    else if (word == "--workers")
      wanted.workers = whole();
    else if (word == "--submitters")
      wanted.submitters = std::max(whole(), 1);
    else if (word == "--points")
      wanted.most_points = whole();
    else if (word == "--share")
      wanted.share = number();
    else if (word == "--seconds")
      wanted.seconds = number();
    else if (word == "--warm")
      wanted.warm = number();
    else if (word == "--tolerance")
      wanted.tolerance = number();
    else if (word == "--budget")
      wanted.budget = number();
    else if (word == "--overload")
      wanted.overload = number();
    else if (word == "--seed")
      wanted.seed = static_cast<uint64_t>(std::stoull(value()));
    else if (word == "--on-device")
      wanted.on_device = true;
    else if (word == "--pinned")
      wanted.pinned = true;
    else if (word == "--rates") {
      for (const std::string& each : split(value())) wanted.rates.push_back(std::stod(each));
    } else if (word == "--factors") {
      wanted.factors.clear();
      for (const std::string& each : split(value())) wanted.factors.push_back(std::stod(each));
    } else if (word == "--widths") {
      wanted.widths = numbers(value());
    } else if (word.starts_with("--"))
      throw std::invalid_argument("there is no flag " + word);
    else if (const size_t at = word.find('='); at != std::string::npos)
      wanted.models.emplace_back(word.substr(0, at), word.substr(at + 1));
    else
      throw std::invalid_argument("'" + word + "' is no NAME=MODEL");
  }
  if (wanted.models.empty()) throw std::invalid_argument("models are wanted, NAME=MODEL");
  if (wanted.seconds <= 0 || wanted.warm < 0 || wanted.tolerance <= 0)
    throw std::invalid_argument("--seconds and --tolerance are above 0");
  if (wanted.on_device && wanted.max_batch > 1)
    throw std::invalid_argument(
        "--on-device is for --max-batch 1: requests that are joined come "
        "from the host's memory");
  return wanted;
}

/// poisson, burst:SIGMA, azure.
serve::Workload workload_of(const std::string& name) {
  serve::Workload workload;
  if (name == "poisson") {
    workload.kind = serve::Workload::Kind::kPoisson;
  } else if (name == "azure") {
    workload.kind = serve::Workload::Kind::kAzure;
  } else if (name.starts_with("burst:")) {
    workload.kind = serve::Workload::Kind::kBurst;
    workload.sigma = std::stod(name.substr(6));
  } else {
    throw std::invalid_argument("there are no arrivals '" + name + "': poisson, burst:1.5, azure");
  }
  return workload;
}

// ---- text ----

[[gnu::format(printf, 1, 2)]] std::string text(const char* form, ...) {
  va_list words;
  va_start(words, form);
  char* made = nullptr;
  const int length = vasprintf(&made, form, words);
  va_end(words);
  std::string out(made, static_cast<size_t>(std::max(length, 0)));
  std::free(made);
  return out;
}
void tell(const std::string& line) { std::printf("%s\n", line.c_str()), std::fflush(stdout); }
void progress(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

// ---- models ----

struct Model {
  std::string name, path;
  double solo_us = 0;
  std::string solo_variant;
  std::vector<obelisk::Input> inputs;
  std::vector<Bytes> memory;
};

/// Numbers in [-1, 1) of f32, ones of integers, zeros of anything else.
Bytes generated(const obelisk::Port& port, const std::vector<int64_t>& shape, uint64_t seed) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const auto fill = [&](auto one, const auto& next) {
    Bytes bytes(static_cast<size_t>(count) * sizeof one);
    for (int64_t k = 0; k < count; ++k) {
      one = next();
      std::memcpy(bytes.data() + static_cast<size_t>(k) * sizeof one, &one, sizeof one);
    }
    return bytes;
  };
  uint64_t state = seed * 2654435761 + 1;
  switch (port.element) {
    case obelisk::Element::f32:
      return fill(0.0F, [&] {
        state = state * 6364136223846793005 + 1442695040888963407;
        return static_cast<float>(static_cast<double>(state >> 40) * 0x1p-23 - 1);
      });
    case obelisk::Element::i64:
      return fill(int64_t{1}, [] { return int64_t{1}; });
    case obelisk::Element::i32:
      return fill(int32_t{1}, [] { return int32_t{1}; });
    default:
      throw std::runtime_error("input '" + port.name + "' is neither f32, i64 nor i32: --inputs");
  }
}

// ---- a point: one rate for some seconds ----

/// What became of a request, as the client saw it and as the server told it.
struct Ask {
  int model = 0;
  Nanos at{0}, budget{0};           // of arrival, from the point's beginning; to the deadline
  Nanos submitted{0}, took{-1};     // on the client's clock; took: from arrival to the answer
  Nanos started{-1}, answered{-1};  // by the server's record, from when it was taken
  obelisk::Outcome outcome = obelisk::Outcome::kNotReady;
  std::optional<Nanos> slack;  // that was left when it was started, as predicted
  int rows = 0, partners = 0;
  std::string variant, reason;  // why it was started so, or refused; only for --requests
  std::atomic<bool> done{false};
};

struct Counts {
  int64_t sent = 0, in_time = 0, late = 0, given_up = 0, refused = 0, failed = 0;
  double fraction() const {
    return sent ? static_cast<double>(in_time) / static_cast<double>(sent) : 0;
  }
  double of_admitted() const {
    return sent > refused ? static_cast<double>(in_time) / static_cast<double>(sent - refused) : 1;
  }
};

struct Point {
  double rate = 0, asked_per_s = 0, seconds = 0;
  bool cut = false, valid = true;
  Counts all;
  std::vector<Counts> models;
  int64_t warm_sent = 0, in_time_by_record = 0, verdicts_differ = 0;
  bool counts_agree = true;
  std::string disagreement;
  double late_p50 = 0, late_p99 = 0, late_max = 0, late_share = 0;
  double delivery_p50 = 0, delivery_p99 = 0, delivery_max = 0;
  double took_p50 = 0, took_p99 = 0, waited_p50 = 0, ran_p50 = 0, rows = 0, partners = 0;
};

/// Asks of one point, shared with callbacks that may come after it was given up.
struct Asks {
  explicit Asks(size_t count) : each(count) {}
  std::vector<Ask> each;
  Clock::time_point begun;
  std::atomic<int64_t> answered{0}, missed{0};
};

struct Served {
  std::string policy;  // with what differs from the defaults
  std::optional<obelisk::Server> server;
  bool is(const std::string& name) const { return policy.substr(0, policy.find(':')) == name; }
};

/// What stands behind a policy's name, taken out of it: what is not the scheduler's.
struct Settings {
  std::string policy;
  int keep_warm = 0, batch = 0;
  int64_t keep_warm_bytes = obelisk::ServerOptions().keep_warm_bytes;
  bool pooled_streams = true, priorities = true;
};
Settings settings_of(const std::string& text) {
  Settings made;
  for (const std::string& part : split(text, ':')) {
    const size_t at = part.find('=');
    const std::string name = part.substr(0, at);
    const auto value = [&] {
      return at == std::string::npos ? 0 : std::stoll(part.substr(at + 1));
    };
    if (name == "keep_warm")
      made.keep_warm = static_cast<int>(value());
    else if (name == "keep_warm_bytes")
      made.keep_warm_bytes = value();
    else if (name == "batch" && at != std::string::npos)
      made.batch = static_cast<int>(value());
    else if (name == "pooled_streams")
      made.pooled_streams = value() != 0;
    else if (name == "priorities")
      made.priorities = value() != 0;
    else
      made.policy += (made.policy.empty() ? "" : ":") + part;
  }
  return made;
}

class Bench {
 public:
  explicit Bench(Wanted wanted) : wanted_(std::move(wanted)), begun_(Clock::now()) {}

  int run() {
    for (const auto& [name, path] : wanted_.models) models_.push_back({name, path});
    for (const std::string& arrivals : wanted_.arrivals) workload_of(arrivals);
    open_servers();
    if ((wanted_.on_device || wanted_.pinned) && wanted_.target != "cpu")
      gpu_.emplace(wanted_.target.size() > 5 ? std::stoi(wanted_.target.substr(5)) : 0);
    measure_solo();
    auto cells = static_cast<int>(wanted_.arrivals.size() * wanted_.factors.size() *
                                  wanted_.policies.size());
    for (const std::string& arrivals : wanted_.arrivals)
      for (const double factor : wanted_.factors) {
        highest_ = 0;
        for (const std::string& policy : wanted_.policies) {
          cell_ends_ = since() + 2 * (wanted_.budget - since()) / cells--;
          if (over())
            ++left_out_;
          else
            cell(arrivals, factor, policy);
        }
        if (highest_ == 0 || wanted_.overload <= 0) continue;
        for (const std::string& policy : wanted_.policies)
          if (!over())
            tried(arrivals, factor, policy, wanted_.overload * highest_, "overload", true);
      }
    tell(
        text("{\"kind\": \"end\", \"seconds\": %.1f, \"points\": %d, \"invalid\": %d, "
             "\"counts_that_differ\": %d, \"cells_left_out\": %d}",
             since(), points_, invalid_, differ_, left_out_));
    return differ_ > 0 ? 1 : 0;
  }

 private:
  double since() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  bool over() const { return since() > wanted_.budget; }

  obelisk::Server& server(const std::string& policy) {
    for (Served& served : servers_)
      if (served.policy == policy) return *served.server;
    throw std::logic_error("no server of " + policy);
  }

  // ---- before anything is measured ----

  /// A server for each policy, all of the same programs. The one that has them all is loaded first
  /// and by itself, since it measures them; the others find their times and their code on the disk.
  void open_servers() {
    std::vector<std::string> policies = wanted_.policies;
    if (std::find(policies.begin(), policies.end(), "fifo") == policies.end())
      policies.push_back("fifo");  // whose answers have the widest programs
    std::stable_partition(policies.begin(), policies.end(),
                          [](const std::string& policy) { return policy.starts_with("vliw"); });
    servers_.resize(policies.size());
    size_t first = 0;
    for (size_t k = 0; k < policies.size(); ++k) {
      servers_[k].policy = policies[k];
      const Settings settings = settings_of(policies[k]);
      servers_[k].server.emplace(
          obelisk::ServerOptions{.target = wanted_.target,
                                 .widths = servers_[k].is("vliw") ? wanted_.widths : whole(),
                                 .workers = wanted_.workers,
                                 .policy = settings.policy,
                                 .verify = false,
                                 .cache = wanted_.cache,
                                 .keep_warm_us = settings.keep_warm,
                                 .keep_warm_bytes = settings.keep_warm_bytes,
                                 .pooled_streams = settings.pooled_streams,
                                 .priorities = settings.priorities});
      if (k == 0) load(servers_[k]), first = 1;
    }
    std::vector<std::thread> loaders;
    std::mutex mutex;
    std::string failure;
    for (size_t k = first; k < servers_.size(); ++k)
      loaders.emplace_back([&, k] {
        try {
          load(servers_[k]);
        } catch (const std::exception& error) {
          std::lock_guard lock(mutex);
          failure = error.what();
        }
      });
    for (std::thread& loader : loaders) loader.join();
    if (!failure.empty()) throw std::runtime_error(failure);
    std::string line = text(
        "{\"kind\": \"machine\", \"target\": \"%s\", \"load_s\": %.1f, "
        "\"servers\": {",
        wanted_.target.c_str(), since());
    for (size_t k = 0; k < servers_.size(); ++k) {
      int programs = 0;
      int64_t memory = 0;
      for (const obelisk::ServedModel& model : servers_[k].server->models())
        programs += model.programs, memory += model.memory_bytes;
      line += text("%s\"%s\": {\"programs\": %d, \"memory_mib\": %.1f}", k ? ", " : "",
                   servers_[k].policy.c_str(), programs, static_cast<double>(memory) / 0x1p20);
    }
    tell(line + "}}");
  }

  /// Policies other than vliw know whole programs only.
  std::vector<int> whole() const {
    if (wanted_.target == "cpu" || wanted_.widths.empty()) return {};
    return {*std::max_element(wanted_.widths.begin(), wanted_.widths.end())};
  }

  void load(Served& served) {
    const bool batches = served.is("vliw") || served.is("batch");
    const int wanted = settings_of(served.policy).batch,
              most = wanted > 0 ? wanted : wanted_.max_batch;
    for (const Model& model : models_) {
      const bool compiled = model.path.ends_with(".obk");
      served.server->add(model.name, model.path,
                         {.batch_dimension = compiled ? std::string() : wanted_.batch_dimension,
                          .max_batch = batches && !compiled ? most : 1,
                          .precision = wanted_.precision,
                          .queue_limit = 1 << 20});
    }
    for (const Model& model : models_) served.server->wait(model.name);
    while (true) {  // programs of other batches and widths come behind the first
      const std::vector<obelisk::ServedModel> all = served.server->models();
      for (const obelisk::ServedModel& model : all)
        if (!model.reason.empty()) throw std::runtime_error(model.name + ": " + model.reason);
      if (std::all_of(all.begin(), all.end(), [](const auto& model) { return model.to_come == 0; }))
        break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    progress(text("%6.1f s  %s is loaded", since(), served.policy.c_str()));
  }

  /// One row, or whatever extents the model has; the memory lives as long as the bench.
  void make_inputs() {
    for (const obelisk::ServedModel& served : server("fifo").models()) {
      const auto found = std::find_if(models_.begin(), models_.end(),
                                      [&](const Model& m) { return m.name == served.name; });
      Model& model = *found;
      for (const obelisk::Port& port : served.inputs) {
        std::vector<int64_t> shape = port.shape;
        for (int64_t& extent : shape)
          if (extent < 0) extent = 1;
        model.memory.push_back(
            wanted_.inputs.empty()
                ? generated(port, shape, static_cast<uint64_t>(model.memory.size()))
                : read_file(wanted_.inputs + "/" + model.name + "." + port.name + ".bin"));
        const Bytes& bytes = model.memory.back();
        const std::span<const std::byte> at = !gpu_               ? std::span(bytes)
                                              : wanted_.on_device ? gpu_->copy_of(bytes)
                                                                  : gpu_->pinned_copy_of(bytes);
        model.inputs.push_back({port.name, port.element, shape, at,
                                std::shared_ptr<const void>(at.data(), [](const void*) {}),
                                gpu_.has_value() && wanted_.on_device,
                                gpu_.has_value() && !wanted_.on_device});
      }
    }
  }

  void measure_solo() {
    make_inputs();
    // Every program of every server answers some requests first.
    for (Served& served : servers_)
      for (const Model& model : models_)
        for (int turn = 0; turn < 5; ++turn)
          if (const auto got = served.server->submit(model.name, model.inputs).get(); !got.ok())
            throw std::runtime_error(served.policy + ", " + model.name + ": " + got.error());
    constexpr int kLeast = 30, kMost = 300;
    constexpr double kTime = 0.3;  // seconds of each model
    for (Model& model : models_) {
      std::vector<double> took, by_record;
      const auto begun = Clock::now();
      while (took.size() < kLeast ||
             (took.size() < kMost && us(Clock::now() - begun) < kTime * 1e6)) {
        const auto start = Clock::now();
        const obelisk::Response got =
            server("fifo").submit(model.name, model.inputs, {.trace = true}).get();
        took.push_back(us(Clock::now() - start));
        if (!got.ok() || !got.trace()) throw std::runtime_error(model.name + ": " + got.error());
        by_record.push_back(us(got.trace()->answered));
        model.solo_variant = got.trace()->variant;
      }
      model.solo_us = quantile(took, 0.5);
      tell(
          text("{\"kind\": \"model\", \"name\": \"%s\", \"solo_us\": %.1f, \"solo_p90_us\": "
               "%.1f, \"solo_by_record_us\": %.1f, \"variant\": \"%s\"}",
               model.name.c_str(), model.solo_us, quantile(took, 0.9), quantile(by_record, 0.5),
               model.solo_variant.c_str()));
      progress(text("%6.1f s  %-12s %9.1f us alone, %s", since(), model.name.c_str(), model.solo_us,
                    model.solo_variant.c_str()));
    }
    double sum = 0;
    for (const Model& model : models_) sum += 1 / model.solo_us;
    serial_ = sum * 1e6 / static_cast<double>(models_.size());
    tell(text("{\"kind\": \"serial\", \"rate\": %.1f}", serial_));
  }

  // ---- a point ----

  std::vector<serve::Arrival> arrivals_of(const std::string& name, double factor, double rate,
                                          double seconds) const {
    serve::SimulatedMachine machine{"", 1, {}};
    serve::Workload workload = workload_of(name);
    for (const Model& model : models_) {
      const serve::Time solo(static_cast<int64_t>(model.solo_us * 1e3));
      machine.models.push_back({model.name, {.variants = {{1, 1, solo, solo}}}});
      workload.shares.push_back(1 / model.solo_us);
    }
    workload.rate = rate, workload.slack_factor = factor, workload.seed = wanted_.seed;
    const serve::Time end(static_cast<int64_t>(seconds * 1e9));
    workload.requests = static_cast<int64_t>(rate * seconds * 1.2) + 100;
    std::vector<serve::Arrival> arrivals = serve::generate(machine, workload);
    while (arrivals.back().at < end) {
      workload.requests *= 2;
      arrivals = serve::generate(machine, workload);
    }
    std::erase_if(arrivals, [&](const serve::Arrival& arrival) { return arrival.at >= end; });
    return arrivals;
  }

  /// Looks at the clock; sleeps first only through long pauses, for a core that has been idle may
  /// wake milliseconds late where the host is shared.
  static void wait_until(Clock::time_point at) {
    constexpr auto kBefore = std::chrono::milliseconds(20);
    if (at - Clock::now() > 2 * kBefore) std::this_thread::sleep_until(at - kBefore);
    while (Clock::now() < at) {
    }
  }

  /// Whether no more than 1 - share of them can still be in time is known before the end; then the
  /// point is cut, after half of its time, unless it is wanted whole.
  Point point(const std::string& name, double factor, const std::string& policy, double rate,
              bool all_of_it) {
    obelisk::Server& at = server(policy);
    const double length = wanted_.warm + wanted_.seconds;
    const std::vector<serve::Arrival> arrivals = arrivals_of(name, factor, rate, length);
    const auto asks = std::make_shared<Asks>(arrivals.size());
    for (size_t k = 0; k < arrivals.size(); ++k) {
      Ask& ask = asks->each[k];
      ask.model = arrivals[k].model, ask.at = arrivals[k].at, ask.budget = arrivals[k].budget;
    }
    const Nanos warm(static_cast<int64_t>(wanted_.warm * 1e9)),
        half(static_cast<int64_t>((wanted_.warm + wanted_.seconds / 2) * 1e9));
    const auto counted = std::count_if(asks->each.begin(), asks->each.end(),
                                       [&](const Ask& ask) { return ask.at >= warm; });
    const auto allowed = static_cast<int64_t>((1 - wanted_.share) * static_cast<double>(counted));
    const std::vector<obelisk::ServedModel> before = at.models();
    std::atomic<size_t> next{0};
    std::atomic<bool> cut{false};
    const bool logs = !wanted_.requests.empty();
    asks->begun = Clock::now() + std::chrono::milliseconds(2);
    const auto submit = [&] {
      while (!cut) {
        const size_t k = next++;
        if (k >= arrivals.size()) return;
        Ask& ask = asks->each[k];
        wait_until(asks->begun + ask.at);
        if (!all_of_it && ask.at > half && asks->missed > allowed) {
          cut = true, next = arrivals.size() + 1;
          ask.at = Nanos(-1);  // never sent
          return;
        }
        ask.submitted = Clock::now() - asks->begun;
        const Nanos left = std::max<Nanos>(ask.at + ask.budget - ask.submitted, Nanos(1));
        at.submit(models_[static_cast<size_t>(ask.model)].name,
                  models_[static_cast<size_t>(ask.model)].inputs, {.deadline = left, .trace = true},
                  [asks, k, warm, logs](const obelisk::Response& got) {
                    Ask& mine = asks->each[k];
                    mine.took = Clock::now() - asks->begun - mine.at;
                    mine.outcome = got.outcome();
                    if (const auto& trace = got.trace(); trace && got.ok()) {
                      mine.started = trace->started, mine.answered = trace->answered;
                      mine.rows = trace->batch_rows;
                      mine.partners = static_cast<int>(trace->partners.size());
                      if (logs) {
                        mine.variant = trace->variant, mine.reason = trace->reason;
                        mine.slack = trace->slack;
                      }
                    } else if (logs) {
                      mine.reason = got.error();
                      std::replace(mine.reason.begin(), mine.reason.end(), '"', '\'');
                    }
                    if (mine.at >= warm && (!got.ok() || mine.took > mine.budget)) ++asks->missed;
                    mine.done.store(true, std::memory_order_release);
                    ++asks->answered;
                  });
      }
    };
    std::vector<std::thread> threads;
    for (int k = 1; k < wanted_.submitters; ++k) threads.emplace_back(submit);
    submit();
    for (std::thread& thread : threads) thread.join();
    int64_t sent = 0;
    Nanos last{0};
    for (const Ask& ask : asks->each)
      if (ask.submitted > Nanos(0)) ++sent, last = std::max(last, ask.at);
    const auto patience = Clock::now() + std::chrono::duration<double>(kGiveUp);
    while (asks->answered < sent && Clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // and its counters
    Point made = judge(*asks, warm, cut ? last : Nanos(static_cast<int64_t>(length * 1e9)));
    made.rate = rate, made.cut = cut;
    if (logs) log(*asks, name, factor, policy, rate);
    check_counters(before, at.models(), *asks, made);
    ++points_, invalid_ += !made.valid, differ_ += !made.counts_agree;
    return made;
  }

  void log(const Asks& asks, const std::string& arrivals, double factor, const std::string& policy,
           double rate) const {
    const bool first = !std::filesystem::exists(wanted_.requests);
    std::ofstream file(wanted_.requests, std::ios::app);
    if (first)
      file << "arrivals,factor,policy,rate,model,at,budget,submitted,started,answered,took,slack,"
              "outcome,rows,partners,variant,reason\n";
    for (const Ask& ask : asks.each) {
      if (ask.submitted <= Nanos(0) || !ask.done.load(std::memory_order_acquire)) continue;
      file << text("%s,%g,%s,%.0f,%s,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%s,%d,%d,%d,\"%s\",\"%s\"\n",
                   arrivals.c_str(), factor, policy.c_str(), rate,
                   models_[static_cast<size_t>(ask.model)].name.c_str(), us(ask.at), us(ask.budget),
                   us(ask.submitted), us(ask.started), us(ask.answered), us(ask.took),
                   ask.slack ? text("%.1f", us(*ask.slack)).c_str() : "",
                   static_cast<int>(ask.outcome), ask.rows, ask.partners, ask.variant.c_str(),
                   ask.reason.c_str());
    }
  }

  Point judge(const Asks& asks, Nanos warm, Nanos end) const {
    Point made;
    made.models.resize(models_.size());
    std::vector<double> late, delivery, took, waited, ran;
    int64_t behind = 0, rows = 0, partners = 0;
    for (const Ask& ask : asks.each) {
      if (ask.submitted <= Nanos(0)) continue;
      if (ask.at < warm) {
        ++made.warm_sent;
        continue;
      }
      const Nanos lateness = ask.submitted - ask.at;
      late.push_back(us(lateness));
      behind += static_cast<double>(lateness.count()) >
                kLatePart * static_cast<double>(ask.budget.count());
      const bool done = ask.done.load(std::memory_order_acquire);
      for (Counts* counts : {&made.all, &made.models[static_cast<size_t>(ask.model)]}) {
        ++counts->sent;
        if (!done)
          ++counts->failed;
        else if (ask.outcome == obelisk::Outcome::kOk)
          ++(ask.took <= ask.budget ? counts->in_time : counts->late);
        else if (ask.outcome == obelisk::Outcome::kLate)
          ++counts->late, ++counts->given_up;
        else if (ask.outcome == obelisk::Outcome::kRejected)
          ++counts->refused;
        else
          ++counts->failed;
      }
      if (!done || ask.outcome != obelisk::Outcome::kOk) continue;
      const Nanos by_record = lateness + ask.answered;
      const bool in_time = by_record <= ask.budget;
      made.in_time_by_record += in_time,
          made.verdicts_differ += in_time != (ask.took <= ask.budget);
      delivery.push_back(us(ask.took - by_record));
      took.push_back(us(ask.took)), waited.push_back(us(ask.started)),
          ran.push_back(us(ask.answered - ask.started));
      rows += ask.rows, partners += ask.partners;
    }
    made.seconds = std::max(static_cast<double>((end - warm).count()) / 1e9, 1e-9);
    made.asked_per_s = static_cast<double>(made.all.sent) / made.seconds;
    made.late_max = late.empty() ? 0 : *std::max_element(late.begin(), late.end());
    made.late_p50 = quantile(late, 0.5), made.late_p99 = quantile(late, 0.99);
    made.late_share =
        late.empty() ? 0 : static_cast<double>(behind) / static_cast<double>(late.size());
    made.valid = made.late_share <= kLateShare;
    made.delivery_max = delivery.empty() ? 0 : *std::max_element(delivery.begin(), delivery.end());
    made.delivery_p50 = quantile(delivery, 0.5), made.delivery_p99 = quantile(delivery, 0.99);
    made.took_p50 = quantile(took, 0.5), made.took_p99 = quantile(took, 0.99);
    made.waited_p50 = quantile(waited, 0.5), made.ran_p50 = quantile(ran, 0.5);
    if (!took.empty())
      made.rows = static_cast<double>(rows) / static_cast<double>(took.size()),
      made.partners = static_cast<double>(partners) / static_cast<double>(took.size());
    return made;
  }

  /// The server's counters beside the client's counts, those of the warm part included.
  void check_counters(const std::vector<obelisk::ServedModel>& before,
                      const std::vector<obelisk::ServedModel>& after, const Asks& asks,
                      Point& made) const {
    std::array<int64_t, 4> theirs{}, ours{};  // answered, late, rejected, failed and others
    for (const Ask& ask : asks.each)
      if (ask.submitted > Nanos(0))
        ++ours[!ask.done                                    ? 3
               : ask.outcome == obelisk::Outcome::kOk       ? 0
               : ask.outcome == obelisk::Outcome::kLate     ? 1
               : ask.outcome == obelisk::Outcome::kRejected ? 2
                                                            : 3];
    for (size_t m = 0; m < after.size(); ++m) {
      const auto more = [&](uint64_t obelisk::ServedModel::*count) {
        return static_cast<int64_t>(after[m].*count - before[m].*count);
      };
      theirs[0] += more(&obelisk::ServedModel::answered);
      theirs[1] += more(&obelisk::ServedModel::late);
      theirs[2] += more(&obelisk::ServedModel::rejected);
      theirs[3] += more(&obelisk::ServedModel::failed) + more(&obelisk::ServedModel::cancelled);
    }
    made.counts_agree = theirs == ours;
    if (made.counts_agree) return;
    const auto list = [](const std::array<int64_t, 4>& counts) {
      return text("%lld answered, %lld late, %lld rejected, %lld failed",
                  static_cast<long long>(counts[0]), static_cast<long long>(counts[1]),
                  static_cast<long long>(counts[2]), static_cast<long long>(counts[3]));
    };
    made.disagreement = "the server counts " + list(theirs) + ", the client " + list(ours);
  }

  // ---- a cell: the highest rate of a policy ----

  static std::string counts_of(const Counts& counts) {
    return text(
        "\"sent\": %lld, \"in_time\": %lld, \"late\": %lld, \"given_up\": %lld, "
        "\"refused\": %lld, \"failed\": %lld, \"fraction\": %.5f",
        static_cast<long long>(counts.sent), static_cast<long long>(counts.in_time),
        static_cast<long long>(counts.late), static_cast<long long>(counts.given_up),
        static_cast<long long>(counts.refused), static_cast<long long>(counts.failed),
        counts.fraction());
  }

  std::string where(const char* kind, const std::string& arrivals, double factor,
                    const std::string& policy) const {
    return text("{\"kind\": \"%s\", \"arrivals\": \"%s\", \"factor\": %g, \"policy\": \"%s\", ",
                kind, arrivals.c_str(), factor, policy.c_str());
  }

  std::string line_of(const Point& made) const {
    return text(
               "\"rate\": %.1f, \"asked_per_s\": %.1f, \"seconds\": %.3f, \"cut\": %s, "
               "\"valid\": %s, \"warm_sent\": %lld, ",
               made.rate, made.asked_per_s, made.seconds, made.cut ? "true" : "false",
               made.valid ? "true" : "false", static_cast<long long>(made.warm_sent)) +
           counts_of(made.all) +
           text(
               ", \"of_admitted\": %.5f, \"in_time_by_record\": %lld, \"verdicts_differ\": %lld, "
               "\"counts_agree\": %s%s%s%s, ",
               made.all.of_admitted(), static_cast<long long>(made.in_time_by_record),
               static_cast<long long>(made.verdicts_differ), made.counts_agree ? "true" : "false",
               made.counts_agree ? "" : ", \"disagreement\": \"", made.disagreement.c_str(),
               made.counts_agree ? "" : "\"") +
           text(
               "\"submitter_late_us\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f, "
               "\"share_late\": %.5f}, \"delivery_us\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": "
               "%.1f}, ",
               made.late_p50, made.late_p99, made.late_max, made.late_share, made.delivery_p50,
               made.delivery_p99, made.delivery_max) +
           text(
               "\"answer_us\": {\"p50\": %.1f, \"p99\": %.1f}, \"waited_p50_us\": %.1f, "
               "\"ran_p50_us\": %.1f, \"rows\": %.2f, \"partners\": %.2f",
               made.took_p50, made.took_p99, made.waited_p50, made.ran_p50, made.rows,
               made.partners);
  }

  Point tried(const std::string& arrivals, double factor, const std::string& policy, double rate,
              const char* kind, bool all_of_it) {
    const Point made = point(arrivals, factor, policy, rate, all_of_it);
    std::string line = where(kind, arrivals, factor, policy) + line_of(made);
    if (all_of_it) {
      line += ", \"models\": {";
      for (size_t m = 0; m < models_.size(); ++m)
        line += (m ? ", \"" : "\"") + models_[m].name + "\": {" + counts_of(made.models[m]) + "}";
      line += "}";
    }
    tell(line + "}");
    progress(text("%6.1f s  %-9s x%-4g %-8s %9.0f/s  %7.3f %% in time, %lld refused%s%s", since(),
                  arrivals.c_str(), factor, policy.c_str(), rate, made.all.fraction() * 100,
                  static_cast<long long>(made.all.refused), made.cut ? ", cut" : "",
                  made.valid ? "" : ", INVALID: submitted late"));
    return made;
  }

  void cell(const std::string& arrivals, double factor, const std::string& policy) {
    if (!wanted_.rates.empty()) {
      for (const double rate : wanted_.rates)
        if (!over()) tried(arrivals, factor, policy, rate, "point", true);
      return;
    }
    // From where a neighbour ended, in small steps; else from half of what one after the other
    // would be.
    const auto known = last_.find(policy);
    double rate = known != last_.end() ? known->second : serial_ / 2,
           step = known != last_.end() ? 1.25 : 1.6;
    double low = 0, high = INFINITY, asked = 0;
    constexpr int kRetries = 4;
    int tries = 0, invalid = 0, retries = 0;
    bool submitter = false, complete = false;
    // Below it one late request is more than the share allows.
    const double least = std::max(4.0, 1 / std::max(1 - wanted_.share, 1e-6)) / wanted_.seconds;
    const auto ends = [&] { return over() || since() > cell_ends_; };
    while (tries < wanted_.most_points && rate >= least && !(tries > 0 && ends())) {
      Point made = tried(arrivals, factor, policy, rate, "point", false);
      ++tries;
      const auto holds = [&] { return made.valid && made.all.fraction() >= wanted_.share; };
      invalid += !made.valid;
      // One that was disturbed, or failed, has a second chance: a pause of the host of one
      // millisecond makes a short point fail.
      if (!holds() && retries++ < kRetries && !ends()) {
        made = tried(arrivals, factor, policy, rate, "point", false), ++tries;
        invalid += !made.valid;
      }
      if (holds()) {
        low = rate, asked = made.asked_per_s;
      } else {
        high = rate, submitter = !made.valid;
      }
      if (low > 0 && high <= low * (1 + wanted_.tolerance)) {
        complete = true;
        break;
      }
      if (low == 0)
        rate = high / step, step *= 1.25;
      else if (std::isinf(high))
        rate = low * step, step *= 1.25;
      else
        rate = std::sqrt(low * high);
    }
    if (low > 0) last_[policy] = low, highest_ = std::max(highest_, low);
    tell(where("cell", arrivals, factor, policy) +
         text("\"rate\": %.1f, \"asked_per_s\": %.1f, \"fails_at\": %s, \"complete\": %s, "
              "\"bound_by\": \"%s\", \"points\": %d, \"invalid\": %d}",
              low, asked, std::isinf(high) ? "null" : text("%.1f", high).c_str(),
              complete ? "true" : "false", submitter ? "submitter" : "deadlines", tries, invalid));
    progress(text("%6.1f s  %-9s x%-4g %-8s reaches %.0f/s, %.2f of one after the other", since(),
                  arrivals.c_str(), factor, policy.c_str(), low, low / serial_));
  }

  const Wanted wanted_;
  const Clock::time_point begun_;
  std::optional<GpuMemory> gpu_;
  std::vector<Model> models_;
  double serial_ = 0;                   // requests per second, one after the other
  double cell_ends_ = 0, highest_ = 0;  // of the cell; of all policies for its arrivals and factor
  std::map<std::string, double> last_;
  int points_ = 0, invalid_ = 0, differ_ = 0, left_out_ = 0;
  std::vector<Served> servers_;  // last: end before what their requests read
};

}  // namespace

int main(int argc, char** argv) {
  // As `obelisk serve` has it: memory of answers stays with the process.
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  try {
    return Bench(read(argc, argv)).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "goodput: %s\n", error.what());
    return 2;
  }
}
