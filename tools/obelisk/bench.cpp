// obelisk bench: how long one answer takes, alone or beside another runtime.
//
// Both sides run in short alternating rounds of one go, so that what the machine does otherwise hits both alike. A round rests
// until the other side's workers have stopped spinning, and is timed answer by answer.
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "base/npy.h"
#include "base/progress.h"
#include "process.h"
#include "runner.h"

namespace obelisk::cli {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr double kRoundSeconds = 0.2;
constexpr auto kRest = std::chrono::milliseconds(5);  // our workers spin 0.5 ms after a run
// A side is noisy when its answers scatter: half of them lie further than this share from the median, or a tenth is this much slower.
constexpr double kQuietDeviation = 0.05, kQuietTail = 1.25;
constexpr size_t kFewInRound = 3;
constexpr size_t kFewRuns = 5;  // nothing can be said of fewer

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Latencies {
  std::vector<double> us;

  /// The first answer of a round finds cold caches and sleeping workers; it only counts where a round holds few.
  void add_round(const std::vector<double>& round) { us.insert(us.end(), round.begin() + (round.size() > kFewInRound ? 1 : 0), round.end()); }
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
  Json json() const { return {{"median", quantile(0.5)}, {"p90", quantile(0.9)}, {"p99", quantile(0.99)}, {"min", quantile(0)}}; }
};

/// A side of the comparison. `round` adds what it measured in about `seconds`.
struct Side {
  std::string name, version;
  Latencies latencies;
  virtual ~Side() = default;
  virtual Status round(double seconds, bool keep) = 0;
};

struct Ours : Side {
  Runner& runner;
  const std::vector<Tensor>& in;
  std::vector<Tensor> out;

  Ours(Runner& runner, const std::vector<Tensor>& in) : runner(runner), in(in), out(runner.allocate_outputs()) {
    name = "obelisk", version = OBELISK_VERSION;
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

/// ONNX Runtime in a Python process: it gets the same arrays and the same number of threads.
struct OnnxRuntime : Side {
  Process process;

  explicit OnnxRuntime(Process process) : process(std::move(process)) {}
  Result<Json> ask(const Json& question) {
    std::string line;
    if (!process.write_line(question.dump()) || !process.read_line(line))
      return Error{Code::kUsage, "cli", "the process of ONNX Runtime has ended", "", "obelisk doctor"};
    Json answer = Json::parse(line, nullptr, false);
    if (answer.is_discarded()) return Error{Code::kUsage, "cli", fmt::format("ONNX Runtime's helper said '{}'", line)};
    if (answer.contains("error")) return Error{Code::kUsage, "cli", answer["error"], "", answer.value("hint", "")};
    return answer;
  }
  Status round(double seconds, bool keep) override {
    TRY(const Json answer, ask({{"round", seconds}}));
    if (keep) latencies.add_round(answer["latencies_us"].get<std::vector<double>>());
    return ok_status();
  }
};

struct TemporaryFolder {
  std::string path;
  TemporaryFolder() {
    const char* base = getenv("TMPDIR");
    std::string pattern = std::string(base && *base ? base : "/tmp") + "/obelisk-XXXXXX";
    if (mkdtemp(pattern.data())) path = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

Result<std::unique_ptr<Side>> start_onnxruntime(const Flags& flags, const Source& source, const Runner& runner,
                                                const std::vector<Tensor>& in) {
  if (source.kind != FileKind::kModel)
    return Error{Code::kUsage, "cli", "ONNX Runtime needs the .onnx file", "", "bench the model that this was made from"};
  const std::string python = find_python();
  if (python.empty())
    return Error{Code::kUsage, "cli", "no Python for ONNX Runtime was found", "", "scripts/setup.sh, or OBELISK_PYTHON=PATH"};
  const TemporaryFolder folder;
  NamedTensors arrays = source.given;  // also those that became constants
  for (size_t k = 0; k < in.size(); ++k) arrays[runner.inputs[k].name] = in[k];
  Json inputs = Json::array();
  for (const auto& [name, tensor] : arrays) {
    const std::string file = fmt::format("{}/{}.npy", folder.path, inputs.size());
    TRY_STATUS(write_npy(file, tensor));
    inputs.push_back({{"name", name}, {"type", std::string(to_string(tensor.type().dtype))}, {"file", file}});
  }
  const int threads = flags.threads > 0 ? flags.threads : target::cpu().sms;
  TRY(Process process, Process::start({python, OBELISK_SOURCE_DIR "/scripts/bench_onnxruntime.py"}));
  auto side = std::make_unique<OnnxRuntime>(std::move(process));
  TRY(const Json answer, side->ask({{"model", fs::absolute(flags.file).string()}, {"threads", threads}, {"inputs", inputs}}));
  side->name = "onnxruntime", side->version = answer["version"];
  return std::unique_ptr<Side>(std::move(side));
}

/// First answers of each side are thrown away: memory is touched for the first time, clocks rise. Then who begins alternates, too.
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
  return fmt::format("{:<24}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}{:>8}{:>9.2f}\n", side.name + " " + side.version, l.quantile(0.5),
                     l.quantile(0.9), l.quantile(0.99), l.quantile(0), l.us.size(), ratio);
}

}  // namespace

int bench(const Flags& flags) {
  auto source = open_source(flags);
  if (!source.ok()) return fail(flags, source.error());
  frontends::ImportReport report;
  auto runner = make_runner(flags, *source, report);
  if (!runner.ok()) return fail(flags, runner.error(), &report);
  auto in = feeds(flags, *source, (*runner)->inputs, [&] { return graph_of(**runner, *source); });
  if (!in.ok()) return fail(flags, in.error());
  std::unique_ptr<Side> peer;
  if (!flags.against.empty()) {
    auto started = start_onnxruntime(flags, *source, **runner, *in);
    if (!started.ok()) return fail(flags, interrupted() ? Error{Code::kInterrupted, "cli", "interrupted"} : started.error());
    peer = std::move(*started);
  }
  Ours ours(**runner, *in);
  std::vector<Side*> sides = {&ours};
  if (peer) sides.push_back(peer.get());
  if (Status status = alternate(sides, flags.seconds); !status.ok())
    return fail(flags, interrupted() ? Error{Code::kInterrupted, "cli", "interrupted"} : status.error());

  const double median = ours.latencies.quantile(0.5);
  bool noisy = ours.latencies.noisy();
  Json against = Json::array();
  std::string text = fmt::format("{:<24}{:>12}{:>12}{:>12}{:>12}{:>8}{:>9}\n", "us", "median", "p90", "p99", "min", "runs", "speedup");
  text += row(ours, 1);
  if (peer) {
    const double speedup = peer->latencies.quantile(0.5) / median;  // ours over theirs: above 1 we are faster
    noisy = noisy || peer->latencies.noisy();
    against.push_back({{"name", peer->name}, {"version", peer->version}, {"latency_us", peer->latencies.json()}, {"speedup", speedup}});
    text += row(*peer, 1 / speedup);
  }
  text += fmt::format("{} on {}{}\n", (*runner)->target, host_cpu(), noisy ? "; noisy: the answers scatter, so trust none of this much" : "");
  answer(flags, {{"target", (*runner)->target}, {"device", host_cpu()}, {"runs", ours.latencies.us.size()},
                 {"latency_us", ours.latencies.json()}, {"noisy", noisy}, {"against", against}}, text);
  return 0;
}

}  // namespace obelisk::cli
