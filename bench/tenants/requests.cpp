// What a request costs the host: tenants of one tiny network, through obelisk::Server, so that
// nearly all of the time is the server's own.
//
//   requests [--tenants 8] [--requests 100000] [--target cpu] [--workers 0] [--policy vliw]
//            [--widths 16] [--instances] [--ways rounds,clients,ahead] [--columns 64]
//
//   rounds   one thread asks every tenant and waits for all answers, again and again
//   clients  a thread for each tenant, which asks, waits for the answer, and asks again
//   ahead    one thread; each tenant has three requests under way all the time
//
// A line of JSON for each way: `per_s` requests, `us` of them on the clock, `cpu_us` of processor
// time (of all threads, polling included), `switches` times that a thread went to sleep, each of a
// request; `in_a_launch` runs that shared a launch. Where there is no GPU, --target cuda runs over
// the tests' driver that computes nothing: LD_LIBRARY_PATH=build/stub.
#include <obelisk/obelisk.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "common.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Wanted {
  obelisk::ServerOptions server{.target = "cpu", .verify = false};
  std::string ways = "rounds,clients,ahead";
  int tenants = 8, columns = 64;
  long requests = 100'000;
};

Wanted read(int argc, char** argv) {
  Wanted wanted;
  for (Words words(argc, argv); words.next();) {
    const std::string word = words.word();
    const auto value = [&] { return words.value(); };
    if (word == "--target")
      wanted.server.target = value();
    else if (word == "--policy")
      wanted.server.policy = value();
    else if (word == "--widths")
      wanted.server.widths = numbers(value());
    else if (word == "--workers")
      wanted.server.workers = std::stoi(value());
    else if (word == "--instances")
      wanted.server.instances = true;
    else if (word == "--tenants")
      wanted.tenants = std::stoi(value());
    else if (word == "--columns")
      wanted.columns = std::stoi(value());
    else if (word == "--requests")
      wanted.requests = std::stol(value());
    else if (word == "--ways")
      wanted.ways = value();
    else
      throw std::invalid_argument("there is no flag " + word);
  }
  if (wanted.tenants < 1 || wanted.columns < 1 || wanted.requests < wanted.tenants)
    throw std::invalid_argument("at least one tenant, one column and a request of each are wanted");
  return wanted;
}

/// y = x · w, with weights of the tenant's own.
std::string network(int columns, uint32_t seed) {
  std::mt19937 random(seed);
  const std::string type = "f32[" + std::to_string(columns) + "]";
  std::string text =
      "graph \"g\" {\n  in %0 \"x\": " + type + "\n  const %1 \"w\": " + type + " = [";
  for (int k = 0; k < columns; ++k)
    text += (k ? ", " : "") + std::to_string(static_cast<double>(random() % 64) / 8 + 1);
  return text + "]\n  %2 \"y\": " + type + " = Mul(%0, %1)\n  out %2 \"y\"\n}\n";
}

class Bench {
 public:
  explicit Bench(const Wanted& wanted)
      : wanted_(wanted),
        folder_(std::filesystem::temp_directory_path() /
                ("obelisk-requests-" + std::to_string(getpid()))),
        x_(static_cast<size_t>(wanted.columns), 1.5F),
        server_(wanted.server) {
    std::filesystem::create_directories(folder_);
    for (int k = 0; k < wanted.tenants; ++k) {
      const std::string path = folder_ / (std::to_string(k) + ".ir");
      std::ofstream(path) << network(wanted.columns, static_cast<uint32_t>(k));
      names_.push_back("t" + std::to_string(k));
      server_.add(names_.back(), path, {.queue_limit = 1 << 20});
      server_.wait(names_.back());
    }
    for (int left = 1; left > 0; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      left = 0;
      for (const obelisk::ServedModel& model : server_.models()) left += model.to_come;
    }
  }
  ~Bench() { std::filesystem::remove_all(folder_); }

  void run() {
    for (const std::string& way : split(wanted_.ways)) {
      if (way != "rounds" && way != "clients" && way != "ahead")
        throw std::invalid_argument("there is no way " + way);
      const auto ask = [&](long count) {
        if (way == "rounds") return rounds(count, 1);
        if (way == "ahead") return rounds(count, 3);
        return clients(count);
      };
      ask(wanted_.requests / 20);  // what is allocated once, is
      rusage before = {}, after = {};
      getrusage(RUSAGE_SELF, &before);
      const auto begun = Clock::now();
      const long count = ask(wanted_.requests);
      const double took = us(Clock::now() - begun);
      getrusage(RUSAGE_SELF, &after);
      const auto cpu = [](const rusage& of) {
        return static_cast<double>(of.ru_utime.tv_sec + of.ru_stime.tv_sec) * 1e6 +
               static_cast<double>(of.ru_utime.tv_usec + of.ru_stime.tv_usec);
      };
      const auto each = static_cast<double>(count);
      std::printf(
          "{\"way\": \"%s\", \"target\": \"%s\", \"policy\": \"%s\", \"instances\": %s, "
          "\"tenants\": %d, \"requests\": %ld, \"per_s\": %.0f, \"us\": %.2f, \"cpu_us\": %.2f, "
          "\"switches\": %.2f, \"in_a_launch\": %.2f}\n",
          way.c_str(), wanted_.server.target.c_str(), wanted_.server.policy.c_str(),
          wanted_.server.instances ? "true" : "false", wanted_.tenants, count, each / took * 1e6,
          took / each, (cpu(after) - cpu(before)) / each,
          static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) / each, in_a_launch(way));
      std::fflush(stdout);
    }
  }

 private:
  obelisk::Reply submit(size_t tenant, bool trace = false) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(x_));
    return server_.submit(names_[tenant],
                          {{"x",
                            obelisk::Element::f32,
                            {static_cast<int64_t>(x_.size())},
                            bytes,
                            std::shared_ptr<const void>(bytes.data(), [](const void*) {})}},
                          {.trace = trace});
  }
  static void check(const obelisk::Response& response) {
    if (!response.ok()) throw std::runtime_error("no answer: " + response.error());
  }
  long rounds(long count, size_t ahead) {
    std::vector<obelisk::Reply> under_way(names_.size() * ahead);
    const long turns = count / static_cast<long>(names_.size());
    for (long turn = 0; turn < turns + static_cast<long>(ahead); ++turn)
      for (size_t t = 0; t < names_.size(); ++t) {
        obelisk::Reply& place = under_way[t + names_.size() * (static_cast<size_t>(turn) % ahead)];
        // In a round all are asked before the first answer is waited for.
        if (turn >= static_cast<long>(ahead) && ahead > 1) check(place.get());
        if (turn < turns) place = submit(t);
        if (ahead == 1 && t + 1 == names_.size() && turn < turns)
          for (const obelisk::Reply& reply : under_way) check(reply.get());
      }
    return turns * static_cast<long>(names_.size());
  }
  long clients(long count) {
    const long each = count / static_cast<long>(names_.size());
    std::atomic<bool> failed{false};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < names_.size(); ++t)
      threads.emplace_back([&, t] {
        for (long k = 0; k < each && !failed; ++k)
          if (!submit(t).get().ok()) failed = true;
      });
    for (std::thread& thread : threads) thread.join();
    if (failed) throw std::runtime_error("an answer failed");
    return each * static_cast<long>(names_.size());
  }
  /// Runs that shared a launch, by request.
  double in_a_launch(const std::string& way) {
    constexpr int kRounds = 200;
    constexpr std::string_view kShared = "in one launch with ";
    std::atomic<int64_t> sum{0}, count{0};
    const auto counted = [&](const obelisk::Response& response) {
      check(response);
      const std::string& reason = response.trace()->reason;
      const size_t at = reason.find(kShared);
      sum += at == std::string::npos ? 1 : 1 + std::stoi(reason.substr(at + kShared.size()));
      ++count;
    };
    if (way == "clients") {
      std::vector<std::thread> threads;
      for (size_t t = 0; t < names_.size(); ++t)
        threads.emplace_back([&, t] {
          for (int k = 0; k < kRounds; ++k) counted(submit(t, true).get());
        });
      for (std::thread& thread : threads) thread.join();
    } else {
      for (int round = 0; round < kRounds; ++round) {
        std::vector<obelisk::Reply> replies;
        for (size_t t = 0; t < names_.size(); ++t) replies.push_back(submit(t, true));
        for (const obelisk::Reply& reply : replies) counted(reply.get());
      }
    }
    return static_cast<double>(sum) / static_cast<double>(count);
  }

  const Wanted wanted_;
  const std::filesystem::path folder_;
  const std::vector<float> x_;
  std::vector<std::string> names_;
  obelisk::Server server_;  // last: ends before what its requests read
};

}  // namespace

int main(int argc, char** argv) {
  try {
    Bench(read(argc, argv)).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "requests: %s\n", error.what());
    return 2;
  }
}
