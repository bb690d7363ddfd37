// obelisk bench: how long one answer takes, alone or beside another runtime.
//
// Both sides run in short alternating rounds of one go, so that what the machine does otherwise
// hits both alike. A round rests until the other side's workers have stopped spinning, and is timed
// answer by answer.
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/npy.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "helpers.h"
#include "peer.h"
#include "runner.h"

namespace obelisk::cli {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr double kRoundSeconds = 0.2;
constexpr auto kRest = std::chrono::milliseconds(5);  // our workers spin 0.5 ms after a run
// A side is noisy when its answers scatter: half of them lie further than this share from the
// median, or a tenth is this much slower.
constexpr double kQuietDeviation = 0.05, kQuietTail = 1.25;
constexpr size_t kFewInRound = 3;
constexpr int kDeviceRounds = 4;  // the sides in turn
// Device times of a side: as many as --seconds allow, each of which takes 5 ms at most where a run
// takes less. Of long runs fewer will do (chosen).
constexpr double kDeviceSeconds = 5e-3, kLongRunSeconds = 20e-3;
constexpr int kFewestDeviceTimes = 8, kFewestOfLongRuns = 4, kMostDeviceTimes = 100;
constexpr size_t kFewRuns = 5;  // nothing can be said of fewer

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Latencies {
  std::vector<double> us;

  /// The first answer of a round finds cold caches and sleeping workers; it only counts where a
  /// round holds few.
  void add_round(const std::vector<double>& round) {
    us.insert(us.end(), round.begin() + (round.size() > kFewInRound ? 1 : 0), round.end());
  }
  double quantile(double share) const {
    std::vector<double> sorted = us;
    std::sort(sorted.begin(), sorted.end());
    const double rank = std::ceil(share * static_cast<double>(sorted.size()));
    return sorted[std::max<size_t>(static_cast<size_t>(rank), 1) - 1];
  }
  bool noisy() const {
    if (us.size() < kFewRuns) return true;
    const double median = quantile(0.5);
    Latencies away;
    for (double one : us) away.us.push_back(std::abs(one - median));
    return away.quantile(0.5) > kQuietDeviation * median || quantile(0.9) > kQuietTail * median;
  }
  Json json() const {
    return {{"median", quantile(0.5)},
            {"p90", quantile(0.9)},
            {"p99", quantile(0.99)},
            {"min", quantile(0)}};
  }
};

/// A side of the comparison. `round` adds what it measured in about `seconds`.
struct Side {
  std::string name, version;
  Latencies latencies;
  Latencies device_us;  // of a GPU: means of answers in a row, without the host's part
  virtual ~Side() = default;
  virtual Status round(double seconds, bool keep) = 0;
  /// After the rounds, kDeviceRounds times: adds to device_us where there is a GPU, a share of what
  /// can be measured in `seconds`.
  virtual Status time_device(double /*seconds*/) { return ok_status(); }
};

struct Ours : Side {
  Runner& runner;
  std::vector<Tensor> in;
  std::vector<Tensor> out;

  Ours(Runner& runner, const std::vector<Tensor>& in, const std::string& dispatch)
      : runner(runner), in(in), out(runner.allocate_outputs()) {
    name = "obelisk", version = OBELISK_VERSION;
    if (const runtime::DeviceReport* device = report())
      name += fmt::format(" {}", to_string(device->granularity));
    if (!dispatch.empty()) name += " " + dispatch;
    // As a caller has it who keeps what is updated: in one memory, of this side alone.
    for (size_t k = 0; k < runner.outputs.size(); ++k) {
      if (!runner.outputs[k].written_in_place()) continue;
      Tensor& old = this->in[static_cast<size_t>(runner.outputs[k].in_place_of)];
      if (old.bytes() > 0)
        std::memcpy(out[k].mutable_data(), old.data(), static_cast<size_t>(old.bytes()));
      old = out[k];
    }
  }
  const runtime::DeviceReport* report() const {
    return runner.executable ? runner.executable->device() : nullptr;
  }
  Status time_device(double seconds) override {
    if (!report()) return ok_status();
    const double each = std::max(kDeviceSeconds, latencies.quantile(0) * 1e-6);
    const int fewest = each < kLongRunSeconds ? kFewestDeviceTimes : kFewestOfLongRuns;
    const int count =
        static_cast<int>(std::clamp<double>(seconds / each, fewest, kMostDeviceTimes));
    TRY(const std::vector<double> times, runner.context->device_us(count / kDeviceRounds));
    device_us.us.insert(device_us.us.end(), times.begin(), times.end());
    return ok_status();
  }
  Status round(double seconds, bool keep) override {
    std::vector<double> us;
    const auto start = Clock::now();
    do {
      const auto before = Clock::now();
      TRY_STATUS(runner.run(in, out));
      us.push_back(seconds_since(before) * 1e6);
    } while (seconds_since(start) < seconds && !interrupted());
    if (keep) latencies.add_round(us);
    return ok_status();
  }
};

/// A peer in a Python process, spoken to in lines of JSON. One process may be several sides.
struct Peer {
  Process process;
  std::string what;  // its name in errors

  Result<Json> ask(const Json& question) {
    std::string line;
    if (!process.write_line(question.dump()) || !process.read_line(line))
      return Error{Code::kUsage, "cli", fmt::format("the process of {} has ended", what), "",
                   "obelisk doctor"};
    Json answer = Json::parse(line, nullptr, false);
    if (answer.is_discarded())
      return Error{Code::kUsage, "cli", fmt::format("{}'s helper said '{}'", what, line)};
    if (answer.contains("error"))
      return Error{Code::kUsage, "cli", answer["error"], "", answer.value("hint", "")};
    return answer;
  }
};

/// ONNX Runtime gets the same arrays and the same number of threads.
struct OnnxRuntime : Side {
  Peer peer;

  explicit OnnxRuntime(Process process) : peer{std::move(process), "ONNX Runtime"} {}
  Status round(double seconds, bool keep) override {
    TRY(const Json answer, peer.ask({{"round", seconds}}));
    if (keep) latencies.add_round(answer["latencies_us"].get<std::vector<double>>());
    return ok_status();
  }
};

/// One way of PyTorch on the GPU: eager, a graph of it, torch.compile, max-autotune.
struct Torch : Side {
  std::shared_ptr<Peer> peer;
  std::string way;

  Torch(std::shared_ptr<Peer> peer, std::string way) : peer(std::move(peer)), way(std::move(way)) {
    name = "torch " + this->way;
  }
  Status round(double seconds, bool keep) override {
    TRY(const Json answer, peer->ask({{"round", seconds}, {"way", way}}));
    if (keep) latencies.add_round(answer["latencies_us"].get<std::vector<double>>());
    return ok_status();
  }
  Status time_device(double /*seconds*/) override {
    if (!device_us.us.empty()) return ok_status();  // the helper repeats by itself
    TRY(const Json answer, peer->ask({{"device", true}, {"way", way}}));
    device_us.us = answer["device_us"].get<std::vector<double>>();
    return ok_status();
  }
};

Result<std::unique_ptr<Side>> start_onnxruntime(const Flags& flags, const Source& source,
                                                const Runner& runner,
                                                const std::vector<Tensor>& in) {
  const std::string python = find_python();
  if (python.empty())
    return Error{Code::kUsage, "cli", "no Python for ONNX Runtime was found", "",
                 "scripts/setup.sh, or OBELISK_PYTHON=PATH"};
  TRY(const TemporaryFolder folder, TemporaryFolder::create());
  TRY(const std::string model, peer_model(flags, source, runner, folder.path()));
  NamedTensors arrays = source.given;  // also those that became constants
  for (size_t k = 0; k < in.size(); ++k) arrays[runner.inputs[k].name] = in[k];
  Json inputs = Json::array();
  for (const auto& [name, tensor] : arrays) {
    const std::string file = fmt::format("{}/{}.npy", folder.path(), inputs.size());
    TRY_STATUS(write_npy(file, tensor));
    inputs.push_back(
        {{"name", name}, {"type", std::string(to_string(tensor.type().dtype))}, {"file", file}});
  }
  const int threads = flags.threads > 0 ? flags.threads : machine::cpu().sms;
  TRY(Process process, Process::start({python, find_script("bench_onnxruntime.py")}));
  auto side = std::make_unique<OnnxRuntime>(std::move(process));
  TRY(const Json answer,
      side->peer.ask({{"model", model}, {"threads", threads}, {"inputs", inputs}}));
  side->name = "onnxruntime", side->version = answer["version"];
  return std::unique_ptr<Side>(std::move(side));
}

/// "torch": all ways; "torch=eager,compile": these.
Json ways_of_torch(const std::string& against) {
  if (against == "torch") return {"eager", "graph", "compile", "max-autotune"};
  Json ways = Json::array();
  std::istringstream list(against.substr(against.find('=') + 1));
  for (std::string name; std::getline(list, name, ',');) ways.push_back(name);
  return ways;
}

/// PyTorch runs the module that the model was exported from, in the same arithmetic.
Result<std::vector<std::unique_ptr<Side>>> start_torch(const Flags& flags) {
  const std::string python = find_python();
  if (python.empty())
    return Error{Code::kUsage, "cli", "no Python for PyTorch was found", "",
                 "OBELISK_PYTHON=PATH of a Python with it"};
  TRY(Process process, Process::start({python, find_script("torch_peer.py")}));
  auto peer = std::make_shared<Peer>(Peer{std::move(process), "PyTorch"});
  TRY(const Json answer, peer->ask({{"model", fs::absolute(flags.file).string()},
                                    {"precision", flags.precision},
                                    {"ways", ways_of_torch(flags.against)}}));
  std::vector<std::unique_ptr<Side>> sides;
  for (const Json& way : answer["ways"]) {
    sides.push_back(std::make_unique<Torch>(peer, way.get<std::string>()));
    sides.back()->version = answer["version"];
  }
  return sides;
}

/// First answers of each side are thrown away: memory is touched for the first time, clocks rise.
/// Then who begins alternates, too.
Status alternate(const std::vector<Side*>& sides, double seconds) {
  Progress progress(Progress::mode_for(stderr, false), "bench");
  const double each = std::min(kRoundSeconds, seconds / 2);
  for (Side* side : sides) TRY_STATUS(side->round(each, false));
  const auto start = Clock::now();
  for (int k = 0; k == 0 || seconds_since(start) < seconds; ++k) {
    progress.step("rounds", std::min(seconds_since(start) / seconds, 1.0));
    for (size_t s = 0; s < sides.size(); ++s) {
      std::this_thread::sleep_for(kRest);
      TRY_STATUS(sides[k % 2 ? sides.size() - 1 - s : s]->round(each, true));
      if (interrupted()) return Error{Code::kInterrupted, "cli", "interrupted"};
    }
  }
  progress.finish();
  return ok_status();
}

std::string row(const Side& side, double ratio) {
  const Latencies& l = side.latencies;
  return fmt::format("{:<36}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}{:>8}{:>9.2f}\n",
                     side.name + " " + side.version, l.quantile(0.5), l.quantile(0.9),
                     l.quantile(0.99), l.quantile(0), l.us.size(), ratio);
}

/// The device's part of a side, for machines.
Json device_json(const Ours& ours) {
  const runtime::DeviceReport& report = *ours.report();
  Json json = json_of(report);
  json.erase("kernels");
  const double median = ours.device_us.quantile(0.5);
  json["device_us"] = {{"median", median}, {"p99", ours.device_us.quantile(0.99)}};
  json["workspace_bytes"] = ours.runner.executable->program().arena.count;
  json["roof_share"] = report.roof_bytes_per_us > 0 ? static_cast<double>(report.bytes_streamed) /
                                                          median / report.roof_bytes_per_us
                                                    : 0;
  json["latency_us"] = ours.latencies.json();
  json["verified"] = ours.runner.verified.json();
  return json;
}

std::string device_table(const std::vector<std::unique_ptr<Ours>>& ours,
                         const std::vector<std::unique_ptr<Side>>& peers) {
  std::string text =
      fmt::format("\n{:<36}{:>12}{:>12}{:>10}{:>8}{:>10}{:>12}{:>12}{:>7}\n", "device us", "median",
                  "p99", "launches", "phases", "barriers", "workspace", "streamed", "roof");
  for (const auto& side : ours) {
    const Json json = device_json(*side);
    text += fmt::format("{:<36}{:>12.1f}{:>12.1f}{:>10}{:>8}{:>10}{:>12}{:>12}{:>6.0f}%\n",
                        side->name, side->device_us.quantile(0.5), side->device_us.quantile(0.99),
                        json["launches"].get<int>(), json["phases"].get<int>(),
                        json["barriers"].get<int>(), to_string(Bytes{json["workspace_bytes"]}),
                        to_string(Bytes{json["bytes_streamed"]}),
                        100 * json["roof_share"].get<double>());
  }
  for (const auto& side : peers)
    if (!side->device_us.us.empty())
      text += fmt::format("{:<36}{:>12.1f}{:>12.1f}\n", side->name, side->device_us.quantile(0.5),
                          side->device_us.quantile(0.99));
  return text;
}

/// A runner and the dispatch that it was asked for, empty where one alone was.
struct Candidate {
  std::unique_ptr<Runner> runner;
  std::string dispatch;
};

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) items.push_back(item);
  return items;
}

/// The dispatches of a graph of kernels: each policy with each launch order, but those without
/// lanes, which have no order to choose, once.
std::vector<std::pair<std::string, std::string>> dispatches_of(const Flags& flags) {
  std::vector<std::pair<std::string, std::string>> all;
  std::vector<std::string> orders = items_of(flags.launch_order);
  if (orders.empty()) orders.push_back("");
  std::vector<std::string> policies = items_of(flags.dispatch);
  if (policies.empty()) policies.push_back("");
  for (const std::string& policy : policies)
    for (const std::string& order : orders) {
      const bool ordered = policy != "waves" && policy != "sequential";
      if (!ordered && orders.size() > 1 && &order != &orders.front()) continue;
      all.emplace_back(policy, ordered || orders.size() == 1 ? order : "");
    }
  return all;
}

/// A runner for each granularity and each dispatch of it that was asked for.
Result<std::vector<Candidate>> make_candidates(const Flags& flags, const Source& source,
                                               frontends::ImportReport& report) {
  struct Wanted {
    Flags flags;
    std::string dispatch;  // "": of no graph, or the only one
    bool measures() const { return flags.dispatch.empty() || flags.dispatch == "auto"; }
    bool is_reordered(const Wanted& other) const {
      return flags.granularity == other.flags.granularity &&
             flags.dispatch == other.flags.dispatch && flags.dispatch != "waves" &&
             !flags.launch_order.empty() && !other.flags.launch_order.empty();
    }
  };
  std::vector<Wanted> wanted;
  const auto dispatches = dispatches_of(flags);
  TRY(const compiler::FoundMachine machine, machine_from(flags));
  for (const std::string& granularity : items_of(flags.granularity)) {
    const bool is_graph = granularity == "op" || granularity == "stitch" || machine.target == "cpu";
    auto some = dispatches;
    if (!is_graph && dispatches.size() > 1) {  // one kernel has no order of launches
      std::erase_if(some,
                    [&](const auto& one) { return granularity != "mono" || !one.second.empty(); });
      if (some.empty()) some = {{"waves", ""}};
    }
    for (const auto& [policy, order] : some) {
      Flags one = flags;
      one.granularity = granularity, one.dispatch = policy, one.launch_order = order;
      if (!one.dispatch.empty() && one.dispatch != "auto") one.search_seconds = 0;
      wanted.push_back({std::move(one), some.size() > 1 || (is_graph && dispatches.size() > 1)
                                            ? policy + (order.empty() ? "" : " " + order)
                                            : ""});
    }
  }
  // The first tells what is wrong with the network. Dispatches given by name are then compiled in
  // parallel; one that is chosen by measurement has the machine to itself.
  std::vector<Candidate> candidates(1);
  TRY(candidates[0].runner, make_runner(wanted[0].flags, source, report));
  candidates[0].dispatch = wanted[0].dispatch;
  if (!candidates[0].runner->executable) return candidates;  // the reference
  candidates.resize(wanted.size());
  std::vector<Status> made(wanted.size(), ok_status());
  const auto make = [&](size_t k, bool silent) {
    frontends::ImportReport its_own;
    auto runner = make_runner(wanted[k].flags, source, its_own, silent);
    if (!runner.ok()) return made[k] = runner.error(), void();
    candidates[k] = {std::move(*runner), wanted[k].dispatch};
  };
  // Of dispatches that differ in the launch order alone the first is compiled.
  std::vector<size_t> like(wanted.size());
  const bool on_gpu = candidates[0].runner->executable->device() != nullptr;
  for (size_t k = 0; k < wanted.size(); ++k)
    for (like[k] = 0; like[k] < k; ++like[k])
      if (on_gpu && !wanted[k].measures() && wanted[k].is_reordered(wanted[like[k]])) break;
  for_each_on_all_cores(wanted.size(), [&](size_t k) {
    if (k > 0 && !wanted[k].measures() && like[k] == k) make(k, true);
  });
  std::vector<size_t> reordered;
  for (size_t k = 1; k < wanted.size(); ++k)
    if (like[k] != k && made[like[k]].ok()) reordered.push_back(k);
  if (!reordered.empty()) {
    TRY(const auto weights, runtime::DeviceWeights::create(machine.gpu));
    for_each_on_all_cores(reordered.size(), [&](size_t at) {
      const size_t k = reordered[at];
      auto runner = make_reordered(wanted[k].flags, *candidates[like[k]].runner, weights);
      if (!runner.ok()) return made[k] = runner.error(), void();
      candidates[k] = {std::move(*runner), wanted[k].dispatch};
    });
  }
  for (size_t k = 1; k < wanted.size(); ++k)
    if (wanted[k].measures()) make(k, false);
  for (const Status& status : made) TRY_STATUS(status);
  return candidates;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) {
    return x.type() == y.type() && memcmp(x.data(), y.data(), static_cast<size_t>(x.bytes())) == 0;
  });
}

}  // namespace

int bench(const Flags& flags) {
  auto source = open_source(flags);
  if (!source.ok()) return fail(flags, source.error());
  frontends::ImportReport report;
  auto candidates = make_candidates(flags, *source, report);
  if (!candidates.ok()) return fail(flags, candidates.error(), &report);
  Runner& runner = *candidates->front().runner;
  auto in = feeds(flags, *source, runner.inputs, [&] { return graph_of(runner, *source); });
  if (!in.ok()) return fail(flags, in.error());
  std::vector<std::unique_ptr<Side>> peers;
  const auto refused = [&](const Error& error) {
    return fail(flags, interrupted() ? Error{Code::kInterrupted, "cli", "interrupted"} : error);
  };
  if (flags.against.starts_with("torch")) {
    auto started = start_torch(flags);
    if (!started.ok()) return refused(started.error());
    peers = std::move(*started);
  } else if (!flags.against.empty()) {
    auto started = start_onnxruntime(flags, *source, runner, *in);
    if (!started.ok()) return refused(started.error());
    peers.push_back(std::move(*started));
  }
  std::vector<std::unique_ptr<Ours>> ours;
  std::vector<Side*> sides;
  for (const Candidate& each : *candidates) {
    ours.push_back(std::make_unique<Ours>(*each.runner, *in, each.dispatch));
    sides.push_back(ours.back().get());
  }
  for (const auto& peer : peers) sides.push_back(peer.get());
  if (Status status = alternate(sides, flags.seconds); !status.ok()) return refused(status.error());
  for (int round = 0; round < kDeviceRounds; ++round)
    for (Side* side : sides)
      if (Status status = side->time_device(flags.seconds); !status.ok())
        return refused(status.error());

  // The first of ours is what others are compared with: by device time where there is a GPU, for
  // the host's part is much alike.
  const bool on_gpu = ours[0]->report() != nullptr;
  const auto median_of = [&](const Side& side) {
    return on_gpu && !side.device_us.us.empty() ? side.device_us.quantile(0.5)
                                                : side.latencies.quantile(0.5);
  };
  bool noisy = false;
  for (Side* side : sides) noisy = noisy || side->latencies.noisy();
  Json against = Json::array(), granularities = Json::array(), dispatches = Json::array();
  std::string text = fmt::format("{:<36}{:>12}{:>12}{:>12}{:>12}{:>8}{:>9}\n", "us", "median",
                                 "p90", "p99", "min", "runs", "speedup");
  for (size_t k = 0; k < ours.size(); ++k) {
    text += row(*ours[k], median_of(*ours[0]) / median_of(*ours[k]));
    const std::string& dispatch = (*candidates)[k].dispatch;
    if (!on_gpu) {
      if (dispatch.empty()) continue;
      dispatches.push_back({{"dispatch", dispatch},
                            {"latency_us", ours[k]->latencies.json()},
                            {"workspace_bytes", ours[k]->runner.executable->program().arena.count},
                            {"same_bits", same_bits(ours[0]->out, ours[k]->out)}});
      continue;
    }
    granularities.push_back(device_json(*ours[k]));
    if (dispatch.empty()) continue;
    granularities.back()["dispatch"] = dispatch;
    const auto first = std::ranges::find_if(ours, [&](const auto& side) {
      return side->report()->granularity == ours[k]->report()->granularity;
    });
    granularities.back()["same_bits"] = same_bits((*first)->out, ours[k]->out);
  }
  for (const auto& peer : peers) {
    // ours over theirs: above 1 we are faster
    const double speedup = median_of(*peer) / median_of(*ours[0]);
    against.push_back({{"name", peer->name},
                       {"version", peer->version},
                       {"latency_us", peer->latencies.json()},
                       {"speedup", speedup}});
    if (!peer->device_us.us.empty())
      against.back()["device_us"] = {{"median", peer->device_us.quantile(0.5)},
                                     {"p99", peer->device_us.quantile(0.99)}};
    text += row(*peer, 1 / speedup);
  }
  if (on_gpu) text += device_table(ours, peers) + "\n";
  text += fmt::format("{} on {}{}\n", runner.target, host_cpu(),
                      noisy ? "; noisy: the answers scatter, so trust none of this much" : "");
  for (const auto& side : ours)
    text += (ours.size() > 1 ? side->name + ": " : "") + side->runner.verified.text() + "\n";
  Json json = {{"target", runner.target},
               {"precision", runner.executable ? runner.executable->program().precision : "keep"},
               {"device", on_gpu ? ours[0]->report()->gpu : host_cpu()},
               {"runs", ours[0]->latencies.us.size()},
               {"latency_us", ours[0]->latencies.json()},
               {"noisy", noisy},
               {"verified", runner.verified.json()},
               {"against", against}};
  if (!dispatches.empty()) json["dispatches"] = dispatches;
  if (on_gpu) {
    Json first = device_json(*ours[0]);
    first.erase("latency_us");
    first.erase("verified");
    json.update(first);
    json["granularities"] = granularities;
  }
  answer(flags, json, text);
  return 0;
}

}  // namespace obelisk::cli
