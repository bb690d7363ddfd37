// Two models side by side without a server: each in a context of its own, on a stream of its own
// (of a CPU: in a thread of its own), beside each of them alone.
//
//   streams A B [--target cuda] [--runs 10] [--turns 30]
//
// Inputs and outputs lie in the GPU's memory. One line of JSON: `a_us`, `b_us` and `both_us`, a run
// of one and of both, each the median of --turns, in turn, of --runs that follow one another; and
// whether the answers side by side have the bits of those alone.
#include <obelisk/obelisk.h>

#include <cstdio>
#include <optional>
#include <random>
#include <thread>

#include "common.h"
#include "gpu_memory.h"

namespace {

using Clock = std::chrono::steady_clock;

/// Numbers from 0.25 to 0.5, of either sign.
Bytes some_numbers(const obelisk::Port& port) {
  std::mt19937 random(7);
  Bytes bytes(port.bytes);
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    uint32_t word = random();
    word = port.element == obelisk::Element::f16 ? (word & 0x83ff83ffu) | 0x34003400u
                                                 : (word & 0x807fffffu) | 0x3e800000u;
    std::memcpy(&bytes[at], &word, sizeof word);
  }
  return bytes;
}

class Side {
 public:
  Side(const std::string& file, const std::string& target)
      : model_(obelisk::Model::compile(file, {.target = target,
                                              .granularity = "stitch",
                                              .dispatch = target == "cpu" ? "" : "sequential",
                                              .threads = 1,
                                              .verify = false})),
        context_(model_, target == "cpu" ? 1 : 0) {
    if (target == "cpu") {
      for (const obelisk::Port& port : model_.inputs()) {
        const Bytes numbers = some_numbers(port);
        std::copy(numbers.begin(), numbers.end(), context_.input_bytes(port.name).begin());
      }
      return;
    }
    gpu_.emplace(model_.gpu());
    stream_ = gpu_->stream();
    for (const obelisk::Port& port : model_.inputs())
      context_.bind_input(port.name, gpu_->copy_of(some_numbers(port)));
    for (const obelisk::Port& port : model_.outputs()) {
      const auto at = gpu_->copy_of(Bytes(port.bytes));
      outputs_.push_back({const_cast<std::byte*>(at.data()), at.size()});
      context_.bind_output(port.name, outputs_.back());
    }
  }
  void begin(int runs) {
    if (gpu_)
      for (int k = 0; k < runs; ++k) context_.run_on(stream_);
    else
      thread_ = std::thread([this, runs] {
        for (int k = 0; k < runs; ++k) context_.run();
      });
  }
  /// One run; false of a CPU, whose thread has all of them.
  bool next() {
    if (gpu_) context_.run_on(stream_);
    return gpu_.has_value();
  }
  void wait() {
    if (thread_.joinable()) thread_.join();
    if (gpu_) context_.wait();
  }
  Bytes answer() {
    Bytes all;
    size_t k = 0;
    for (const obelisk::Port& port : model_.outputs()) {
      const Bytes one = gpu_ ? gpu_->read(outputs_[k++]) : copy(context_.output_bytes(port.name));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  static Bytes copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }
  obelisk::Model model_;
  obelisk::Context context_;
  std::optional<GpuMemory> gpu_;
  std::vector<std::span<std::byte>> outputs_;
  void* stream_ = nullptr;
  std::thread thread_;
};

double alone(Side& side, int runs) {
  const auto start = Clock::now();
  side.begin(runs);
  side.wait();
  return us(Clock::now() - start) / runs;
}

/// Runs of both are given in turn, so that neither stream is ahead.
double both(Side& a, Side& b, int runs) {
  const auto start = Clock::now();
  for (int k = 0; k < runs; ++k)
    if (!a.next() || !b.next()) {
      a.begin(runs), b.begin(runs);
      break;
    }
  a.wait(), b.wait();
  return us(Clock::now() - start) / runs;
}

int measure(int argc, char** argv) {
  std::vector<std::string> models;
  std::string target = "cuda";
  int runs = 10, turns = 30;
  for (Words words(argc, argv); words.next();) {
    const std::string word = words.word();
    const auto value = [&] { return words.value(); };
    if (word == "--target")
      target = value();
    else if (word == "--runs")
      runs = std::stoi(value());
    else if (word == "--turns")
      turns = std::stoi(value());
    else if (word.starts_with("--"))
      throw std::invalid_argument("there is no flag " + word);
    else
      models.push_back(word);
  }
  if (models.size() != 2 || runs < 1 || turns < 1)
    throw std::invalid_argument("two models are wanted, and at least one run and turn");
  Side a(models[0], target), b(models[1], target);
  std::vector<double> a_us, b_us, both_us;
  alone(a, 3), alone(b, 3);
  const Bytes a_alone = a.answer(), b_alone = b.answer();
  both(a, b, 3);
  bool same = true;
  for (int turn = 0; turn < turns; ++turn) {
    a_us.push_back(alone(a, runs)), b_us.push_back(alone(b, runs));
    same = same && a.answer() == a_alone && b.answer() == b_alone;
    both_us.push_back(both(a, b, runs));
    same = same && a.answer() == a_alone && b.answer() == b_alone;
  }
  std::printf(
      "{\"a_us\": %.3f, \"b_us\": %.3f, \"both_us\": %.3f, \"same_bits\": %s, \"runs\": %d, "
      "\"turns\": %d}\n",
      quantile(a_us, 0.5), quantile(b_us, 0.5), quantile(both_us, 0.5), same ? "true" : "false",
      runs, turns);
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return exit_of("streams", measure, argc, argv); }
