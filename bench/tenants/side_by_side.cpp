// Copies of one compiled program side by side, without a server, each in a context and on a stream
// of its own: how long a round of one run of each takes, by how many there are, and which kernels
// take longer beside others.
//
//   side_by_side FILE.obk [--most 8] [--runs 20] [--turns 15] [--one-copy] [--together] [--kernels]
//                [--other OTHER.obk] [--urgent]
//
// FILE.obk is compiled for a part of the multiprocessors: obelisk compile m.onnx --sms 16
// --dispatch waves -o FILE.obk. Inputs and outputs lie in the GPU's memory. Each copy has weights
// of its own; with --one-copy all read the same. With --together a round is one launch
// (Context::run_together_on), on the stream of the first copy. With --other all but the first copy
// are of another program; with --urgent the first one's stream has the highest priority. Prints one
// line of JSON, times in microseconds:
//
//   round_us    by number of copies: the median of --turns means of --runs rounds
//   run_us      of single runs of the first copy, alone and (_beside) while the others run again
//               and again: from the launch to the end of the wait for it
//   same_bits   whether all answers have the bits of the first copy's alone (not with --other)
//   kernels     with --kernels, medians of --turns, of the first copy alone and (_beside) while the
//               others run: `us` from the begin of a kernel's first task to the end of its last
//               one, `task_us` the mean of its tasks, `gap_us` from the end of the kernels that
//               began earlier, negative where they overlap
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "common.h"
#include "gpu_memory.h"
#include "runtime/obk.h"
#include "runtime/runtime.h"

namespace {

namespace runtime = obelisk::runtime;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

template <typename T>
T must(obelisk::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().text());
  return std::move(*result);
}
void must(const obelisk::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().text());
}

/// Floats from 0.25 to 0.5 of either sign; integers 0 and 1, which are indices of anything.
Bytes some_numbers(const obelisk::Type& type) {
  std::mt19937 random(7);
  obelisk::Tensor made = obelisk::Tensor::allocate(type);
  const bool floats = obelisk::is_float(type.dtype);
  for (int64_t k = 0; k < made.count(); ++k) {
    const uint32_t word = random();
    if (floats)
      made.set_double(k, (word & 1 ? 1 : -1) * (0.25 + (word >> 8) * 0x1p-26));
    else
      made.set_int(k, word & 1);
  }
  const auto* from = static_cast<const std::byte*>(made.data());
  return {from, from + made.bytes()};
}

class Copy {
 public:
  Copy(std::shared_ptr<const runtime::Executable> executable, const runtime::Program& program,
       bool urgent)
      : context_(must(executable->context())), executable_(std::move(executable)) {
    for (const runtime::Port& port : program.inputs)
      inputs_.push_back(gpu_.copy_of(some_numbers(port.type)).data());
    for (const runtime::Port& port : program.outputs) {
      const auto bytes = static_cast<size_t>(obelisk::Tensor::allocate(port.type).bytes());
      spans_.push_back(gpu_.copy_of(Bytes(bytes)));
      outputs_.push_back(const_cast<std::byte*>(spans_.back().data()));
    }
    stream_ = gpu_.stream(urgent);
  }
  void begin() { must(context_->run_on(inputs_, outputs_, stream_)); }
  void begin(std::span<const runtime::SharedRun> runs) {
    must(context_->run_together_on(runs, stream_));
  }
  runtime::SharedRun shared_run() { return {context_.get(), inputs_, outputs_}; }
  void wait() { must(context_->wait()); }
  std::vector<runtime::TaskTime> task_times() { return must(context_->task_times()); }
  Bytes answer() {
    Bytes all;
    for (const auto& span : spans_) {
      const Bytes one = gpu_.read(span);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  GpuMemory gpu_{0};
  std::unique_ptr<runtime::Context> context_;
  std::shared_ptr<const runtime::Executable> executable_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::vector<std::span<const std::byte>> spans_;
  void* stream_ = nullptr;
};

using Copies = std::vector<std::unique_ptr<Copy>>;

double round_us(Copies& copies, size_t count, int runs, bool together) {
  std::vector<runtime::SharedRun> shared;
  for (size_t k = 0; k < count; ++k) shared.push_back(copies[k]->shared_run());
  const auto start = Clock::now();
  for (int run = 0; run < runs; ++run) {
    if (together)
      copies[0]->begin(shared);
    else
      for (size_t k = 0; k < count; ++k) copies[k]->begin();
  }
  for (size_t k = 0; k < count; ++k) copies[k]->wait();
  return us(Clock::now() - start) / runs;
}

struct Kernel {
  double from = 0, to = 0, busy = 0;
  int tasks = 0;
};

std::map<int, Kernel> kernels_of(const std::vector<runtime::TaskTime>& times) {
  std::map<int, Kernel> all;
  for (const runtime::TaskTime& time : times) {
    auto& kernel = all.try_emplace(time.work, Kernel{time.start_us, time.end_us}).first->second;
    kernel.from = std::min(kernel.from, time.start_us),
    kernel.to = std::max(kernel.to, time.end_us);
    kernel.busy += time.end_us - time.start_us, ++kernel.tasks;
  }
  return all;
}

/// While one is there all copies but the first run again and again.
class Others {
 public:
  Others(Copies& copies, bool run) : errors_(copies.size()) {
    for (size_t k = 1; run && k < copies.size(); ++k)
      threads_.emplace_back([&copies, this, k](const std::stop_token& stop) {
        constexpr int kAhead = 8;  // runs that are given at once, so that the GPU always has one
        try {
          while (!stop.stop_requested()) {
            for (int run = 0; run < kAhead; ++run) copies[k]->begin();
            copies[k]->wait();
          }
        } catch (const std::exception& error) {
          errors_[k] = error.what();
        }
      });
  }
  void end() {
    threads_.clear();
    for (const std::string& error : errors_)
      if (!error.empty()) throw std::runtime_error(error);
  }

 private:
  std::vector<std::string> errors_;
  std::vector<std::jthread> threads_;  // stop and end first
};

/// Of single runs of the first copy.
Json run_us(Copies& copies, bool beside) {
  constexpr int kRuns = 2000, kWarm = 200;
  Others others(copies, beside);
  std::vector<double> all;
  for (int run = 0; run < kWarm + kRuns; ++run) {
    const auto start = Clock::now();
    copies[0]->begin();
    copies[0]->wait();
    if (run >= kWarm) all.push_back(us(Clock::now() - start));
  }
  others.end();
  return {{"p50", quantile(all, 0.5)}, {"p90", quantile(all, 0.9)}, {"p99", quantile(all, 0.99)}};
}

/// Of the first copy, while the others run again and again.
Json kernels(Copies& copies, const runtime::Program& program, int turns) {
  Json rows = Json::array();
  std::map<int, std::map<std::string, std::vector<double>>> values;
  for (const bool beside : {false, true}) {
    Others others(copies, beside);
    for (int turn = 0; turn < turns; ++turn) {
      const std::map<int, Kernel> all = kernels_of(copies[0]->task_times());
      std::vector<std::pair<int, Kernel>> order(all.begin(), all.end());
      std::sort(order.begin(), order.end(),
                [](const auto& a, const auto& b) { return a.second.from < b.second.from; });
      double before = 0;
      for (const auto& [work, kernel] : order) {
        auto& of = values[work];
        const std::string suffix = beside ? "_beside" : "";
        of["us" + suffix].push_back(kernel.to - kernel.from);
        of["task_us" + suffix].push_back(kernel.busy / kernel.tasks);
        of["gap_us" + suffix].push_back(kernel.from - before);
        before = std::max(before, kernel.to);
      }
    }
    others.end();
  }
  for (const auto& [work, of] : values) {
    Json row = {{"kernel", work}, {"label", program.works[static_cast<size_t>(work)].label}};
    for (const auto& [name, all] : of) row[name] = quantile(all, 0.5);
    rows.push_back(std::move(row));
  }
  return rows;
}

int measure(int argc, char** argv) {
  std::string file, other;
  size_t most = 8;
  int runs = 20, turns = 15;
  bool one_copy = false, together = false, by_kernel = false, urgent = false;
  for (Words words(argc, argv); words.next();) {
    const std::string word = words.word();
    if (word == "--most")
      most = static_cast<size_t>(words.count());
    else if (word == "--runs")
      runs = words.count();
    else if (word == "--turns")
      turns = words.count();
    else if (word == "--one-copy")
      one_copy = true;
    else if (word == "--together")
      together = true;
    else if (word == "--kernels")
      by_kernel = true;
    else if (word == "--other")
      other = words.value();
    else if (word == "--urgent")
      urgent = true;
    else if (word.starts_with("--"))
      throw std::invalid_argument("there is no flag " + word);
    else if (!file.empty())
      throw std::invalid_argument("one compiled file is wanted, not " + file + " and " + word);
    else
      file = word;
  }
  if (together && !other.empty())
    throw std::invalid_argument("--together is for copies of one program");
  if (together && by_kernel)
    throw std::invalid_argument("--kernels are those of runs that have a launch each");
  if (file.empty())
    throw std::invalid_argument("a file is wanted: obelisk compile m.onnx --sms 16 -o FILE.obk");
  const runtime::Compiled compiled = must(runtime::open_obk(file));
  const runtime::Compiled of_others = must(runtime::open_obk(other.empty() ? file : other));
  std::shared_ptr<const runtime::Executable> executable;
  Copies copies;
  runtime::LoadOptions options;
  options.instances = together;
  for (size_t k = 0; k < most; ++k) {
    const runtime::Compiled& from = k == 0 ? compiled : of_others;
    if (!executable || !one_copy || (k == 1 && !other.empty()))
      executable = must(runtime::load_cuda(from.program, options));
    copies.push_back(std::make_unique<Copy>(executable, *from.program, urgent && k == 0));
  }
  round_us(copies, 1, 3, together);
  const Bytes alone = copies[0]->answer();
  std::vector<size_t> counts = {1};
  for (size_t n = 2; n <= most; n += 2) counts.push_back(n);
  if (counts.back() < most) counts.push_back(most);
  std::map<size_t, std::vector<double>> times;
  round_us(copies, most, 3, together);
  bool same = true;
  for (int turn = 0; turn < turns; ++turn)
    for (const size_t count : counts) {
      times[count].push_back(round_us(copies, count, runs, together));
      for (size_t k = 0; other.empty() && k < count; ++k)
        same = same && copies[k]->answer() == alone;
    }
  Json out = {{"file", file}, {"one_copy", one_copy}, {"together", together}, {"same_bits", same}};
  for (const auto& [count, all] : times)
    out["round_us"][std::to_string(count)] = quantile(all, 0.5);
  if (!together) out["run_us"] = run_us(copies, false), out["run_us_beside"] = run_us(copies, true);
  if (!other.empty()) out["other"] = other, out["urgent"] = urgent;
  if (by_kernel) out["kernels"] = kernels(copies, *compiled.program, turns);
  std::printf("%s\n", out.dump().c_str());
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return exit_of("side_by_side", measure, argc, argv); }
