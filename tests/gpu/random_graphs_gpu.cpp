// Very many random graphs on a GPU: compiled for it, run, compared with the interpreter. Without a
// GPU they are compiled.
//
//   random_graphs_gpu --from 1 --count 10000 [--granularity stitch,mono] [--merge 8] [--steps MOST]
//   [--processes 16] [--seconds 540] [--most 150]
//
// A few graphs stand side by side in a program, for the device compiler reads its headers once a
// program (OBELISK_DEVICE_OPTIONS=--Ofast-compile=max is quicker, with other machine code than
// users get, so slow that other SMs wait for seconds: the watchdog waits twenty here, or what
// OBELISK_WATCHDOG_CLOCKS says); those of a program that is wrong are tried again, each by itself.
// Processes have a context each: a kernel that ends one is a failure like others, and so is a
// program that takes more than --most seconds to compile or to run. What was done is told to stderr
// twice a minute, and each program that is wrong as soon as it is seen. Programs that have not
// ended ten seconds after --seconds are ended: the last line says how many, for one of them may be
// one that hangs. Each failure is a line, the last line has counts and how far it got within the
// seconds. Exit status 1: something failed. Nothing is read or written but the device compiler.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "../random/cases.h"

namespace obelisk::random_graphs {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  uint64_t from = 1, count = 1000;
  int merge = 8, processes = 0, sms = 0, steps = 40;
  double seconds = 1e9, most = 150;
  std::vector<std::string> granularities = {"stitch", "mono"};
};

enum class Outcome {
  kRight,
  kCompiled,
  kRefused,
  kWrong,
  kBroken
};  // kRefused: not compiled; kBroken: the process's context may be gone

/// What processes share.
struct Shared {
  static constexpr int kMost = 4096, kProcesses = 256;
  std::atomic<uint64_t> next, ran[4], compiled[4], programs[4];  // by granularity: graphs, programs
  std::atomic<uint64_t> making_ms, compiling_ms, running_ms;     // of all processes together
  std::atomic<int> suspects;
  struct Suspect {
    uint64_t first;
    int count, granularity;
    char text[300];
  } list[kMost];
  struct Now {  // of a process
    uint64_t first;
    int count, granularity;         // 0: none
    std::atomic<int64_t> since;     // seconds of the steady clock
    std::atomic<const char*> does;  // a literal, at the same address in each process
  } now[kProcesses];

  void suspect(uint64_t first, int count, int granularity, const std::string& name,
               const std::string& text) {
    const int slot = suspects++;
    if (slot >= kMost) return;
    list[slot].first = first, list[slot].count = count, list[slot].granularity = granularity;
    snprintf(list[slot].text, sizeof list[slot].text, "%s", text.c_str());
    fmt::print(stderr, "suspect: {} graphs from seed {}, {}: {}\n", count, first, name,
               list[slot].text);
  }
};
Shared* shared;

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
}
void tell(Shared::Now& now, const char* does) { now.since = seconds_now(), now.does = does; }

/// Adds the milliseconds of a scope to a sum.
class Timed {
 public:
  explicit Timed(std::atomic<uint64_t>& sum) : sum_(sum) {}
  ~Timed() {
    sum_ += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun_).count());
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::atomic<uint64_t>& sum_;
  const Clock::time_point begun_ = Clock::now();
};

struct Tried {
  Outcome outcome = Outcome::kRight;
  std::string text;
};

/// How the kernels of a graph are ordered: of each seed another way.
schedule::DispatchOptions dispatch_of(uint64_t seed) {
  constexpr const char* kPolicies[] = {"waves", "sequential", "nimble", "opara", "critical"};
  schedule::DispatchOptions how{.policy = kPolicies[seed % std::size(kPolicies)]};
  const bool ordered = how.policy != "waves" && how.policy != "sequential";
  if (ordered && seed / std::size(kPolicies) % 2 == 1)
    how.launch_order = fmt::format("random:{}", seed);
  return how;
}

/// Compiles cases side by side, runs them and compares each.
Tried try_together(std::span<const Case> cases, const std::string& granularity, int sms,
                   Shared::Now& now) {
  tell(now, "compiling");
  compiler::Compilation made;
  try {
    const Timed timed(shared->compiling_ms);
    compiler::Options options;
    options.target = "sm_90a", options.granularity = machine::parse_granularity(granularity),
    options.verify = false, options.check_tables = true, options.sms = sms;
    if (options.granularity != machine::Granularity::kMono)
      options.dispatch = dispatch_of((cases[0].seed - 1) / 8);  // as of those beside it
    if (const auto gpu = runtime::describe_gpu(0); gpu.ok())
      options.target = gpu->architecture, options.sms = gpu->sms;
    options.load.cache_dir = "off", options.load.watchdog = true, options.load.jobs = 1;
    compiler::Network network;
    network.graph = cases.size() == 1 ? cases[0].graph : together(cases);
    if (const Status status = compiler::compile(network, options, made); !status.ok())
      return {Outcome::kRefused, status.error().text()};
  } catch (const std::exception& error) {
    return {Outcome::kRefused, error.what()};
  }
  tell(now, "running");
  const Timed timed(shared->running_ms);
  auto context = made.executable->context();
  if (!context.ok())
    return context.error().code == Code::kDevice ? Tried{Outcome::kCompiled, ""}
                                                 : Tried{Outcome::kBroken, context.error().text()};
  std::vector<Tensor> outputs;
  std::vector<void*> out;
  for (const runtime::Port& port : made.program->outputs) {
    outputs.push_back(Tensor::allocate(port.type));
    out.push_back(outputs.back().mutable_data());
  }
  for (const bool other :
       {true, false, false}) {  // what a run leaves behind is not read by the next
    std::vector<const void*> in;
    for (const Case& one : cases)
      for (const Tensor& tensor : other ? one.other_inputs : one.inputs)
        in.push_back(tensor.data());
    for (Tensor& output : outputs)
      memset(output.mutable_data(), 0x7b, static_cast<size_t>(output.bytes()));
    if (const Status ran = (*context)->run(in, out); !ran.ok())
      return {Outcome::kBroken, ran.error().text()};
    if (other) continue;
    size_t at = 0;
    std::string wrong;
    for (const Case& one : cases) {
      if (std::string text = difference(one, std::span(outputs).subspan(at, one.wanted.size()));
          !text.empty() && wrong.empty())
        wrong = fmt::format("seed {}: {}", one.seed, text);
      at += one.wanted.size();
    }
    if (!wrong.empty()) return {Outcome::kWrong, wrong};
  }
  return {};
}

std::vector<Case> cases_of(uint64_t first, int count, int steps) {
  const Timed timed(shared->making_ms);
  std::vector<Case> cases;
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
    Case one = case_of(graph::random_graph(seed, options_of(seed, steps)), seed);
    if (one.failed.empty())
      cases.push_back(std::move(one));
    else
      fmt::print("FAILED seed {}: {}\n", one.seed, one.failed);
  }
  return cases;
}

/// A process: takes programs until there are no more, its context is gone, or time is up.
void work(const Settings& settings, Clock::time_point end, Shared::Now& now) {
  double longest = 0;
  for (;;) {
    const auto start = Clock::now();
    if (std::chrono::duration<double>(end - start).count() < 1.2 * longest) return;
    const uint64_t at = shared->next++ * static_cast<uint64_t>(settings.merge);
    if (at >= settings.count) return;
    const int count = static_cast<int>(
        std::min<uint64_t>(static_cast<uint64_t>(settings.merge), settings.count - at));
    const std::vector<Case> cases = cases_of(settings.from + at, count, settings.steps);
    if (cases.empty()) continue;
    for (size_t g = 0; g < settings.granularities.size(); ++g) {
      tell(now, "beginning");
      now.first = settings.from + at, now.granularity = static_cast<int>(g), now.count = count;
      const Tried tried = try_together(cases, settings.granularities[g], settings.sms, now);
      now.count = 0;
      shared->ran[g] +=
          tried.outcome == Outcome::kRight || tried.outcome == Outcome::kWrong ? cases.size() : 0;
      shared->compiled[g] += tried.outcome == Outcome::kCompiled ? cases.size() : 0;
      ++shared->programs[g];
      if (tried.text.empty()) continue;
      shared->suspect(settings.from + at, count, static_cast<int>(g), settings.granularities[g],
                      tried.text);
      if (tried.outcome == Outcome::kBroken) _exit(3);
    }
    longest = std::max(longest, std::chrono::duration<double>(Clock::now() - start).count());
  }
}

pid_t child(const std::function<void()>& what) {
  fflush(nullptr);
  const pid_t made = fork();
  CHECK(made >= 0, "no child: {}", strerror(errno));
  if (made > 0) return made;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  what();
  fflush(nullptr);
  _exit(0);
}

/// Each of a wrong program's graphs by itself, in a process of its own.
int alone(const Shared::Suspect& suspect, const Settings& settings) {
  const std::string& granularity = settings.granularities[static_cast<size_t>(suspect.granularity)];
  int failures = 0;
  for (int k = 0; k < suspect.count; ++k) {
    const uint64_t seed = suspect.first + static_cast<uint64_t>(k);
    const pid_t pid = child([&] {
      const std::vector<Case> cases = cases_of(seed, 1, settings.steps);
      if (cases.empty()) return;
      Shared::Now alone{};
      const Tried tried = try_together(cases, granularity, settings.sms, alone);
      if (tried.text.empty()) return;
      fmt::print("FAILED seed {}, {}: {}\n", seed, granularity, tried.text);
      fflush(nullptr);
      _exit(1);
    });
    int status = 0;
    const auto begun = Clock::now();
    while (waitpid(pid, &status, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (Clock::now() - begun > std::chrono::duration<double>(settings.most)) kill(pid, SIGKILL);
    }
    if (WIFSIGNALED(status))
      fmt::print("FAILED seed {}, {}: the process ended: {}\n", seed, granularity,
                 strsignal(WTERMSIG(status)));
    failures += status != 0;
  }
  if (failures == 0) {
    fmt::print("FAILED seeds {} to {} side by side, {}, and none alone: {}\n", suspect.first,
               suspect.first + static_cast<uint64_t>(suspect.count) - 1, granularity, suspect.text);
    ++failures;
  }
  return failures;
}

int run_all(const Settings& settings) {
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(std::min(settings.seconds, 1e6)));
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED, "no {} bytes to share", sizeof(Shared));
  shared = new (memory) Shared();
  std::map<pid_t, int> running;  // the slot of each process
  const auto start_one = [&](int slot) {
    running[child([&] { work(settings, end, shared->now[slot]); })] = slot;
  };
  for (int slot = 0; slot < settings.processes; ++slot) start_one(slot);
  auto told = start;
  bool stopped = false;
  int not_ended = 0;
  while (!running.empty()) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0) break;
    if (pid == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const bool late = !stopped && Clock::now() > end + std::chrono::seconds(10);
      stopped = stopped || late;
      for (const auto& [process, slot] : running) {
        Shared::Now& now = shared->now[slot];
        if (late) {
          not_ended += now.count > 0;
          fmt::print(stderr, "not ended in time: {} graphs from seed {}, {}\n", now.count,
                     now.first, now.count > 0 ? now.does.load() : "making graphs");
          now.count = 0;
          kill(process, SIGKILL);
          continue;
        }
        if (now.count == 0 || static_cast<double>(seconds_now() - now.since) <= settings.most)
          continue;
        shared->suspect(now.first, now.count, now.granularity,
                        settings.granularities[static_cast<size_t>(now.granularity)],
                        fmt::format("{} for more than {:.0f} s", now.does.load(), settings.most));
        now.count = 0;
        kill(process, SIGKILL);
      }
      if (Clock::now() - told < std::chrono::seconds(30)) continue;
      told = Clock::now();
      fmt::print(stderr, "{:.0f} s:", std::chrono::duration<double>(told - start).count());
      for (size_t g = 0; g < settings.granularities.size(); ++g)
        fmt::print(stderr, " {} {} programs, {} graphs ran;", settings.granularities[g],
                   shared->programs[g].load(), shared->ran[g].load());
      fmt::print(stderr, " {} suspects\n", shared->suspects.load());
      continue;
    }
    const int slot = running[pid];
    running.erase(pid);
    if (status == 0) continue;
    Shared::Now& now = shared->now[slot];
    if (now.count > 0)
      shared->suspect(now.first, now.count, now.granularity,
                      settings.granularities[static_cast<size_t>(now.granularity)],
                      fmt::format("the process ended: {}",
                                  WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "by itself"));
    now.count = 0;
    if (Clock::now() < end) start_one(slot);  // another in its place
  }
  int failures = 0, left = 0;
  for (int k = 0; k < std::min(shared->suspects.load(), Shared::kMost); ++k) {
    const Shared::Suspect& suspect = shared->list[k];
    if (Clock::now() < end)
      failures += alone(suspect, settings);
    else
      fmt::print("FAILED seeds {} to {}, {}: {}\n", suspect.first,
                 suspect.first + static_cast<uint64_t>(suspect.count) - 1,
                 settings.granularities[static_cast<size_t>(suspect.granularity)], suspect.text),
          ++left;
  }
  const uint64_t reached =
      std::min(shared->next.load() * static_cast<uint64_t>(settings.merge), settings.count);
  fmt::print("seeds {} to {} of {}, {:.0f} s, {} processes, {} a program", settings.from,
             settings.from + reached - 1, settings.from + settings.count - 1,
             std::chrono::duration<double>(Clock::now() - start).count(), settings.processes,
             settings.merge);
  for (size_t g = 0; g < settings.granularities.size(); ++g)
    fmt::print("; {}: {} graphs ran in {} programs, {} only compiled", settings.granularities[g],
               shared->ran[g].load(), shared->programs[g].load(), shared->compiled[g].load());
  fmt::print("; {} s of all processes making graphs and references, {} compiling, {} running",
             shared->making_ms / 1000, shared->compiling_ms / 1000, shared->running_ms / 1000);
  fmt::print(
      "; {} programs had not ended, {} failed{}\n", not_ended, failures,
      left > 0 ? fmt::format(", {} programs with failures not tried graph by graph", left) : "");
  return failures + left > 0 ? 1 : 0;
}

int main_of(int count, char** words) {
  setenv("OBELISK_WATCHDOG_CLOCKS", "40000000000", 0);
  Settings settings;
  shared = new Shared();  // for --show; processes share another
  for (int k = 1; k + 1 < count; k += 2) {
    const std::string word = words[k], value = words[k + 1];
    if (word == "--from")
      settings.from = strtoull(value.c_str(), nullptr, 10);
    else if (word == "--count")
      settings.count = strtoull(value.c_str(), nullptr, 10);
    else if (word == "--merge")
      settings.merge = std::max(atoi(value.c_str()), 1);
    else if (word == "--processes")
      settings.processes = atoi(value.c_str());
    else if (word == "--steps")
      settings.steps = atoi(value.c_str());
    else if (word == "--sms")
      settings.sms = atoi(value.c_str());
    else if (word == "--most")
      settings.most = atof(value.c_str());
    else if (word == "--show") {  // the graph of a program, as text: FROM:COUNT; --steps before
      const size_t colon = value.find(':');
      const std::vector<Case> cases = cases_of(
          strtoull(value.c_str(), nullptr, 10),
          colon == std::string::npos ? 1 : atoi(value.c_str() + colon + 1), settings.steps);
      if (cases.empty()) return 1;
      fmt::print("{}", graph::print(cases.size() == 1 ? cases[0].graph : together(cases),
                                    {.all_data = true}));
      return 0;
    } else if (word == "--seconds")
      settings.seconds = atof(value.c_str());
    else if (word == "--granularity") {
      settings.granularities.clear();
      for (size_t at = 0; at < value.size();) {
        const size_t to = std::min(value.find(',', at), value.size());
        settings.granularities.push_back(value.substr(at, to - at));
        at = to + 1;
      }
    } else
      return fmt::print(stderr, "unknown: {}\n", word), 2;
  }
  if (count % 2 == 0) return fmt::print(stderr, "'{}' wants a value\n", words[count - 1]), 2;
  if (settings.granularities.empty() || settings.granularities.size() > 4)
    return fmt::print(stderr, "of op, stitch and mono\n"), 2;
  if (settings.processes <= 0)
    settings.processes = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  settings.processes = std::min(settings.processes, Shared::kProcesses);
  return run_all(settings);
}

}  // namespace
}  // namespace obelisk::random_graphs

int main(int count, char** words) { return obelisk::random_graphs::main_of(count, words); }
