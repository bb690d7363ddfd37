// Tenants of one architecture, each with weights and memory of its own, through obelisk::Server:
// how long a round of one answer each takes, and whether the answers have the bits of those alone.
//
//   tenants MODEL... --inputs DIR [--tenants 8] [--target cuda] [--policy vliw] [--widths 16]
//           [--seconds 2] [--on-device] [--instances]
//
// Tenant k has the model k modulo their number. DIR has its inputs, as bytes: k.NAME.bin. One line
// of JSON: `alone_us` one answer while nobody else asks, `round_us` a round of which every answer
// is waited for before the next begins, `back_to_back_us` a round while the next ones wait already.
// `closed`: each tenant has one request under way, asked by a thread of its own, for --seconds;
// medians of the times to an answer and answers of each tenant, the fastest and the slowest of
// them, and their ratios. `memory`: what the server counts of all models, what of the GPU is taken
// by whomever, and how much more than before they were loaded. `load_s`: until all answer.
// tenants super-kernels, tenants mixes: see super_kernels.cpp and mixes.cpp.
// --on-device: inputs lie in the GPU's memory; else they are copied there, and the time counts.
#include <obelisk/obelisk.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "common.h"
#include "gpu_memory.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Wanted {
  std::vector<std::string> models;
  std::string inputs, target = "cuda", policy = "vliw";
  std::vector<int> widths;
  int tenants = 8, workers = 0;
  double seconds = 2;
  bool on_device = false, instances = false;
};

Wanted read(int argc, char** argv) {
  Wanted wanted;
  for (Words words(argc, argv); words.next();) {
    const std::string word = words.word();
    const auto value = [&] { return words.value(); };
    if (word == "--inputs")
      wanted.inputs = value();
    else if (word == "--target")
      wanted.target = value();
    else if (word == "--policy")
      wanted.policy = value();
    else if (word == "--widths")
      wanted.widths = numbers(value());
    else if (word == "--tenants")
      wanted.tenants = std::stoi(value());
    else if (word == "--workers")
      wanted.workers = std::stoi(value());
    else if (word == "--seconds")
      wanted.seconds = std::stod(value());
    else if (word == "--instances")
      wanted.instances = true;
    else if (word == "--on-device")
      wanted.on_device = true;
    else if (word.starts_with("--"))
      throw std::invalid_argument("there is no flag " + word);
    else
      wanted.models.push_back(word);
  }
  if (wanted.models.empty() || wanted.inputs.empty() || wanted.tenants < 1)
    throw std::invalid_argument("models, --inputs and at least one tenant are wanted");
  return wanted;
}

struct Tenant {
  std::string name;
  std::vector<obelisk::Input> inputs;
  std::vector<Bytes> memory;  // of the inputs, and what they are on the host
  std::vector<Bytes> alone;   // its answer when nobody else asks
};

std::vector<Bytes> answer(const obelisk::Response& response) {
  if (!response.ok()) throw std::runtime_error("no answer: " + response.error());
  return outputs_of(response);
}

class Bench {
 public:
  explicit Bench(const Wanted& wanted)
      : wanted_(wanted),
        server_({.target = wanted.target,
                 .widths = wanted.widths,
                 .instances = wanted.instances,
                 .workers = wanted.workers,
                 .policy = wanted.policy,
                 .verify = false}) {}

  int run() {
    load();
    for (Tenant& tenant : tenants_) tenant.alone = answer(submit(tenant).get());
    const double alone = quantile(alone_us(), 0.5);
    int rounds = 0, differ = 0;
    std::vector<double> round_us;
    const auto begun = Clock::now();
    while (round_us.size() < 20 || (us(Clock::now() - begun) < wanted_.seconds * 4e5)) {
      const auto start = Clock::now();
      std::vector<obelisk::Reply> replies;
      for (Tenant& tenant : tenants_) replies.push_back(submit(tenant));
      std::vector<obelisk::Response> responses;
      for (const obelisk::Reply& reply : replies) responses.push_back(reply.get());
      round_us.push_back(us(Clock::now() - start)), ++rounds;
      for (size_t k = 0; k < tenants_.size(); ++k)
        differ += answer(responses[k]) != tenants_[k].alone;
    }
    const double packed = back_to_back(quantile(round_us, 0.5));
    const Closed closed = closed_loop();
    const int moved = beside_nan();
    const double beside = partners();
    std::printf("{\"policy\": \"%s\", \"widths\": [", wanted_.policy.c_str());
    for (size_t k = 0; k < wanted_.widths.size(); ++k)
      std::printf("%s%d", k ? ", " : "", wanted_.widths[k]);
    std::printf(
        "], \"tenants\": %d, \"inputs\": \"%s\", \"alone_us\": %.1f, \"round_us\": %.1f, "
        "\"round_p90_us\": %.1f, \"back_to_back_us\": %.1f, \"rounds\": %d, "
        "\"answers_that_differ\": %d, \"moved_by_nan\": %s, \"partners\": %.2f, "
        "\"in_a_launch\": %.2f, \"load_s\": %.1f, ",
        wanted_.tenants, wanted_.on_device ? "device" : "host", alone, quantile(round_us, 0.5),
        quantile(round_us, 0.9), packed, rounds, differ,
        moved < 0 ? "null" : std::to_string(moved).c_str(), beside, in_a_launch_, load_s_);
    const auto [fast, slow] = std::minmax_element(closed.median_us.begin(), closed.median_us.end());
    const auto [fewest, most] = std::minmax_element(closed.answers.begin(), closed.answers.end());
    std::printf(
        "\"closed\": {\"seconds\": %.2f, \"answers\": %ld, \"per_s\": %.1f, \"median_us_fastest\": "
        "%.1f, \"median_us_slowest\": %.1f, \"median_ratio\": %.4f, \"answers_fewest\": %ld, "
        "\"answers_most\": %ld, \"answers_ratio\": %.4f}, ",
        closed.seconds, std::accumulate(closed.answers.begin(), closed.answers.end(), 0L),
        static_cast<double>(std::accumulate(closed.answers.begin(), closed.answers.end(), 0L)) /
            closed.seconds,
        *fast, *slow, *slow / *fast, *fewest, *most,
        static_cast<double>(*most) / static_cast<double>(std::max(*fewest, 1L)));
    int64_t served = 0;
    for (const obelisk::ServedModel& model : server_.models()) served += model.memory_bytes;
    std::printf("\"memory\": {\"models_mib\": %.3f, ", static_cast<double>(served) / 0x1p20);
    if (gpu_)
      std::printf("\"gpu_mib\": %.1f, \"gpu_mib_of_tenants\": %.1f}}\n",
                  static_cast<double>(gpu_->taken()) / 0x1p20,
                  static_cast<double>(loaded_ - before_) / 0x1p20);
    else
      std::printf("\"gpu_mib\": null, \"gpu_mib_of_tenants\": null}}\n");
    return differ + std::max(moved, 0) > 0 ? 1 : 0;
  }

 private:
  void load() {
    if (wanted_.target != "cpu") {
      gpu_.emplace(wanted_.target.size() > 5 ? std::stoi(wanted_.target.substr(5)) : 0);
      before_ = gpu_->taken();
    }
    const auto begun = Clock::now();
    for (int k = 0; k < wanted_.tenants; ++k) {
      const std::string& model = wanted_.models[static_cast<size_t>(k) % wanted_.models.size()];
      server_.add("t" + std::to_string(k), model, {.queue_limit = 1 << 20});
    }
    tenants_.resize(static_cast<size_t>(wanted_.tenants));
    for (size_t k = 0; k < tenants_.size(); ++k) {
      Tenant& tenant = tenants_[k];
      tenant.name = "t" + std::to_string(k);
      server_.wait(tenant.name);
    }
    load_s_ = us(Clock::now() - begun) / 1e6;
    if (gpu_) loaded_ = gpu_->taken();
    for (const obelisk::ServedModel& model : server_.models()) {
      Tenant& tenant = tenants_[std::stoul(model.name.substr(1))];
      for (const obelisk::Port& port : model.inputs)
        tenant.memory.push_back(
            read_file(wanted_.inputs + "/" + model.name.substr(1) + "." + port.name + ".bin"));
      for (size_t k = 0; k < model.inputs.size(); ++k)
        tenant.inputs.push_back(input(model.inputs[k], tenant.memory[k]));
    }
  }
  /// An input that submit() does not copy: the tenants outlive their requests.
  obelisk::Input input(const obelisk::Port& port, const Bytes& bytes) {
    const bool there = gpu_ && wanted_.on_device;
    const std::span<const std::byte> at = there ? gpu_->copy_of(bytes) : std::span(bytes);
    return {port.name,
            port.element,
            port.shape,
            at,
            std::shared_ptr<const void>(at.data(), [](const void*) {}),
            there};
  }
  obelisk::Reply submit(Tenant& tenant) { return server_.submit(tenant.name, tenant.inputs); }

  std::vector<double> alone_us() {
    std::vector<double> took;
    for (int turn = 0; turn < 20; ++turn)
      for (Tenant& tenant : tenants_) {
        const auto start = Clock::now();
        if (!submit(tenant).get().ok()) throw std::runtime_error("an answer failed");
        took.push_back(us(Clock::now() - start));
      }
    return took;
  }

  /// Each tenant has three requests under way all the time.
  double back_to_back(double round) {
    constexpr int kAhead = 3;
    const int rounds =
        std::clamp(static_cast<int>(wanted_.seconds * 4e5 / std::max(round, 1.0)), 20, 20000);
    std::vector<obelisk::Reply> under_way(tenants_.size() * kAhead);
    const auto start = Clock::now();
    for (int k = 0; k < rounds + kAhead; ++k)
      for (size_t t = 0; t < tenants_.size(); ++t) {
        obelisk::Reply& place = under_way[t * kAhead + static_cast<size_t>(k % kAhead)];
        if (k >= kAhead && !place.get().ok()) throw std::runtime_error("an answer failed");
        if (k < rounds) place = submit(tenants_[t]);
      }
    return us(Clock::now() - start) / rounds;
  }

  struct Closed {
    double seconds = 0;
    std::vector<double> median_us;  // by tenant
    std::vector<long> answers;
  };
  /// A thread for each tenant asks, waits for the answer, and asks again.
  Closed closed_loop() {
    Closed closed;
    closed.median_us.resize(tenants_.size()), closed.answers.resize(tenants_.size());
    std::atomic<bool> failed{false};
    std::vector<std::thread> threads;
    const auto start = Clock::now() + std::chrono::milliseconds(20);
    const auto end = start + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(wanted_.seconds));
    for (size_t t = 0; t < tenants_.size(); ++t)
      threads.emplace_back([&, t] {
        std::vector<double> took;
        std::this_thread::sleep_until(start);
        for (auto asked = start; asked < end && !failed;) {
          asked = Clock::now();
          if (!submit(tenants_[t]).get().ok()) failed = true;
          const auto got = Clock::now();
          if (got <= end || took.empty()) took.push_back(us(got - asked));
        }
        closed.answers[t] = static_cast<long>(took.size());
        closed.median_us[t] = quantile(std::move(took), 0.5);
      });
    for (std::thread& thread : threads) thread.join();
    if (failed) throw std::runtime_error("an answer failed");
    closed.seconds = wanted_.seconds;
    return closed;
  }

  /// Tenants whose answers are others while the first one's inputs are not numbers; -1: it takes no
  /// floats.
  int beside_nan() {
    Tenant& first = tenants_[0];
    std::vector<Bytes> memory = first.memory;
    std::vector<obelisk::Input> inputs;
    bool floats = false;
    for (const obelisk::ServedModel& model : server_.models()) {
      if (model.name != first.name) continue;
      for (size_t k = 0; k < model.inputs.size(); ++k) {
        if (model.inputs[k].element == obelisk::Element::f32) {
          const float nan = std::numeric_limits<float>::quiet_NaN();
          for (size_t at = 0; at + sizeof nan <= memory[k].size(); at += sizeof nan)
            std::memcpy(memory[k].data() + at, &nan, sizeof nan);
          floats = true;
        }
        inputs.push_back(input(model.inputs[k], memory[k]));
      }
    }
    if (!floats) return -1;
    int moved = 0;
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<obelisk::Reply> replies = {server_.submit(first.name, inputs)};
      for (size_t k = 1; k < tenants_.size(); ++k) replies.push_back(submit(tenants_[k]));
      for (size_t k = 0; k < replies.size(); ++k) {
        const auto got = answer(replies[k].get());
        moved += k > 0 && got != tenants_[k].alone;
      }
    }
    return moved + (answer(submit(first).get()) != first.alone ? 1 : 0);
  }

  /// Programs that ran beside one, and runs that shared its launch, in rounds.
  double partners() {
    constexpr int kRounds = 50;
    double count = 0, answers = 0;
    for (int round = -kRounds; round < kRounds; ++round) {  // the first ones show how they come
      std::vector<obelisk::Reply> replies;
      for (Tenant& tenant : tenants_)
        replies.push_back(server_.submit(tenant.name, tenant.inputs, {.trace = true}));
      for (const obelisk::Reply& reply : replies) {
        const obelisk::Response response = reply.get();
        if (!response.trace() || round < 0) continue;
        ++answers, count += static_cast<double>(response.trace()->partners.size());
        const std::string& reason = response.trace()->reason;
        constexpr std::string_view kShared = "in one launch with ";
        const size_t at = reason.find(kShared);
        in_a_launch_ +=
            at == std::string::npos ? 1 : 1 + std::stod(reason.substr(at + kShared.size()));
      }
    }
    in_a_launch_ /= answers;
    return count / answers;
  }

  const Wanted wanted_;
  double in_a_launch_ = 0;  // runs that share the launch of an answer
  double load_s_ = 0;
  int64_t before_ = 0, loaded_ = 0;  // taken of the GPU, without and with the tenants' programs
  std::optional<GpuMemory> gpu_;
  std::vector<Tenant> tenants_;
  obelisk::Server server_;  // last: ends before what its requests read
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string first = argc > 1 ? argv[1] : "";
    if (first == "super-kernels") return super_kernels(argc - 1, argv + 1);
    if (first == "mixes") return mixes(argc - 1, argv + 1);
    return Bench(read(argc, argv)).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tenants: %s\n", error.what());
    return 2;
  }
}
