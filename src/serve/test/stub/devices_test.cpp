// The engine on both of its devices: the CPU's workers, and a GPU whose driver computes nothing
// (api/test/stub/driver.c) but copies, counts memory and tells what is in flight. Answers here are
// what a program copies: an input, a weight. Those of the GPU are skipped without a device
// compiler.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "frontends/onnx/test/make_model.h"
#include "serve/record.h"
#include "serve/serve.h"
#include "serve/variants.h"

extern "C" {
void stub_allow(size_t bytes);
size_t stub_taken(void);
size_t stub_mapped(void);
size_t stub_pinned(void);
void stub_run_us(unsigned us);
int stub_most_in_flight(void);
int stub_launches(void);
int stub_calls(void);
void stub_forget_words(int how);
int stub_forgotten(void);
void stub_fail(int code);
int stub_memsets(int beside);
int stub_launches_of(int priority);
void stub_watch(const void* from);
int stub_copied_from_watched(void);
int cuMemHostAlloc(void** at, size_t bytes, unsigned flags);
int cuMemFreeHost(void* at);
}

namespace obelisk::serve {
namespace {

namespace fs = std::filesystem;
namespace make = frontends::onnx::make;
using namespace std::chrono_literals;

constexpr int kColumns = 64;

std::vector<float> weights_of(int rows, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows) * kColumns);
  for (float& value : values) value = normal(random);
  return values;
}

/// y = x · x, and x again.
std::string joined_network() {
  return make::model(
      make::graph({make::node("Mul", {"x", "x"}, {"y"}), make::node("Identity", {"x"}, {"same"})},
                  {make::value("x", make::kFloat, {"batch", std::to_string(kColumns)})},
                  {make::value("y", make::kFloat, {"batch", std::to_string(kColumns)}),
                   make::value("same", make::kFloat, {"batch", std::to_string(kColumns)})}));
}

/// y = x · w, x again, and w.
std::string network(int rows, uint32_t seed) {
  const std::string count = std::to_string(rows), columns = std::to_string(kColumns);
  return make::model(
      make::graph({make::node("Mul", {"x", "w"}, {"y"}), make::node("Identity", {"x"}, {"same"}),
                   make::node("Identity", {"w"}, {"weights"})},
                  {make::value("x", make::kFloat, {"1", columns})},
                  {make::value("y", make::kFloat, {count, columns}),
                   make::value("same", make::kFloat, {"1", columns}),
                   make::value("weights", make::kFloat, {count, columns})},
                  {make::floats("w", {rows, kColumns}, weights_of(rows, seed))}));
}

class Devices : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("obelisk-devices-test-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    if (on_gpu() && !runtime::find_device_compiler().ok())
      GTEST_SKIP() << "there is no device compiler";
  }
  void TearDown() override {
    stub_fail(0), stub_run_us(0), stub_allow(static_cast<size_t>(-1));
    fs::remove_all(folder_);
    EXPECT_EQ(stub_taken(), 0u) << "memory of a GPU is left";
    EXPECT_EQ(stub_pinned(), 0u) << "pinned memory is left";
  }
  static bool on_gpu() { return GetParam() == "gpu"; }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }
  std::shared_ptr<const Device> device(std::vector<int> widths = {132, 16}, bool instances = false,
                                       std::optional<bool> spin = {}) const {
    if (!on_gpu()) return cpu_device(3, folder_.string(), instances);
    auto made = gpu_device({.instances = instances, .widths = std::move(widths), .spin = spin});
    EXPECT_TRUE(made.ok()) << made.error().text();
    return made.value();
  }
  std::unique_ptr<Engine> engine(EngineOptions options = {}, const std::string& policy = "vliw") {
    if (!options.device) options.device = device();
    const Time gather = options.policy.gather;
    options.policy = policy_named(policy).value(), options.policy.gather = gather;
    options.verify = false, options.cache = (folder_ / "cache").string();
    return make_engine(std::move(options));
  }
  static void wait_for(const Engine& engine, const std::string& name) {
    for (int k = 0; k < 6000; ++k) {
      const auto info = engine.model(name);
      ASSERT_TRUE(info);
      ASSERT_NE(info->state, ModelState::kFailed) << info->reason;
      if (info->state == ModelState::kReady) return;
      std::this_thread::sleep_for(10ms);
    }
    FAIL() << name << " is not ready";
  }
  fs::path folder_;
};

Request ask(const std::string& model, const std::vector<float>& x) {
  auto keep = std::make_shared<std::vector<float>>(x);
  Request made{.model = model};
  made.inputs.push_back({"x",
                         DType::f32,
                         {static_cast<int64_t>(x.size()) / kColumns, kColumns},
                         std::as_bytes(std::span(*keep))});
  made.keep = keep;
  return made;
}
std::future<Answer> send(Engine& engine, Request request, RequestKey* key = nullptr) {
  auto promise = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = promise->get_future();
  const RequestKey made = engine.submit(
      std::move(request), [promise](Answer answer) { promise->set_value(std::move(answer)); });
  if (key) *key = made;
  return answer;
}
bool holds(const Answer& answer, const std::string& output, const std::vector<float>& wanted) {
  for (const OutputView& view : answer.outputs)
    if (view.name == output)
      return view.bytes.size() == wanted.size() * sizeof(float) &&
             std::memcmp(view.bytes.data(), wanted.data(), view.bytes.size()) == 0;
  return false;
}
std::vector<float> row(uint32_t seed, int rows = 1) { return weights_of(rows, seed); }

TEST_P(Devices, EachAnswerIsOfItsOwnInputsAndWeights) {
  auto engine = this->engine();
  constexpr int kModels = 3, kRows = 8;
  for (int m = 0; m < kModels; ++m)
    engine->add({.name = "m" + std::to_string(m),
                 .path = write("m" + std::to_string(m), network(kRows, m))});
  engine->add({.name = "joined",
               .path = write("joined", joined_network()),
               .batch_dimension = "batch",
               .max_batch = 4});
  for (const ModelInfo& info : engine->models()) wait_for(*engine, info.config.name);
  stub_run_us(200);
  std::atomic<int> beside{0};
  const auto round = [&](uint32_t caller) {
    std::mt19937 random(caller);
    for (uint32_t k = 0; k < 40; ++k) {
      struct Sent {
        int model;
        std::vector<float> x;
        std::future<Answer> answer;
      };
      std::vector<Sent> sent;
      for (int each = 0; each < 4; ++each) {
        const int model = static_cast<int>(random() % (kModels + 1));
        const int rows = model == kModels ? 1 + static_cast<int>(random() % 2) : 1;
        std::vector<float> x = row(random(), rows);
        if (random() % 8 == 0) x[0] = std::numeric_limits<float>::quiet_NaN();
        Request request = ask(model == kModels ? "joined" : "m" + std::to_string(model), x);
        request.trace = true;
        sent.push_back({model, x, send(*engine, std::move(request))});
      }
      for (Sent& one : sent) {
        const Answer answer = one.answer.get();
        ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
        ASSERT_TRUE(holds(answer, "same", one.x)) << "another request's input";
        EXPECT_NE(answer.trace->variant.find(on_gpu() ? "of 132 SMs" : "of 3 workers"),
                  std::string::npos)
            << answer.trace->variant;
        beside += !answer.trace->partners.empty();
        if (one.model == kModels) continue;
        ASSERT_TRUE(holds(answer, "weights", weights_of(kRows, one.model)))
            << "another model's weights";
      }
    }
  };
  // Programs for fewer SMs, which run beside others, are compiled while the first ones answer.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  do {
    std::vector<std::thread> callers;
    for (uint32_t caller = 0; caller < 4; ++caller) callers.emplace_back(round, caller);
    for (std::thread& caller : callers) caller.join();
  } while (beside == 0 && !HasFailure() && std::chrono::steady_clock::now() < until);
  EXPECT_GT(beside, 0) << "nothing ran beside anything";
}

// Requests of models of one architecture that wait together are one launch, each with its own
// weights and inputs; one that fails takes no other with it.
TEST_P(Devices, ModelsOfOneCodeShareALaunch) {
  constexpr int kModels = 3, kRows = 8, kRounds = 30;
  EngineOptions options;
  options.device = device({16}, true);
  options.record = (folder_ / "record").string();
  options.policy.gather = 2ms;  // callers here are slow, and runs long
  options.check = [](const Request& request) -> Status {
    if (request.id != "bad") return ok_status();
    return Error{Code::kUsage, "test", "a bad request"};
  };
  auto engine = this->engine(std::move(options));
  for (int m = 0; m < kModels; ++m) {
    const std::string name = "m" + std::to_string(m);
    engine->add({.name = name, .path = write(name, network(kRows, static_cast<uint32_t>(m)))});
    wait_for(*engine, name);
  }
  stub_run_us(10'000);
  int together = 0, saved = 0, answered = 0, failed = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::this_thread::sleep_for(5ms);  // a round is told from the next
    std::vector<std::future<Answer>> answers;
    for (uint32_t k = 0; k < kModels; ++k) {
      Request request = ask("m" + std::to_string(k), row(100 * round + k));
      request.trace = true;
      if (round % 3 == 2 && k == 1) request.id = "bad";
      answers.push_back(send(*engine, std::move(request)));
    }
    for (uint32_t k = 0; k < kModels; ++k) {
      const Answer answer = answers[k].get();
      if (round % 3 == 2 && k == 1) {
        EXPECT_EQ(answer.outcome, Outcome::kFailed);
        ++failed;
        continue;
      }
      ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
      EXPECT_TRUE(holds(answer, "same", row(100 * round + k)));
      EXPECT_TRUE(holds(answer, "weights", weights_of(kRows, k)));
      ++answered;
      const bool shared = answer.trace->reason.find("in one launch with") != std::string::npos;
      together += shared;
      if (round % 3 != 2) saved += shared;
    }
  }
  EXPECT_EQ(failed, kRounds / 3);
  EXPECT_GT(together, answered / 4) << "of " << answered;
  if (on_gpu()) {
    EXPECT_LE(stub_launches(), answered - saved / 2) << "two or three were one launch";
  }
  engine.reset();
  std::ifstream file(folder_ / "record");
  const auto again = replay(file);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(again->difference, "");
}

TEST_P(Devices, IdleModelsLeaveAndComeBackWithTheSameWeights) {
  constexpr int kRows = 4096;  // weights of a megabyte, in two shapes
  constexpr int kModels = 4;
  EngineOptions options;
  const std::string record = (folder_ / "record").string();
  options.memory_limit = 5 << 20;  // two of the four
  options.record = record, options.device = device({132});
  auto engine = this->engine(std::move(options));
  for (int m = 0; m < kModels; ++m) {
    engine->add({.name = "m" + std::to_string(m),
                 .path = write("m" + std::to_string(m), network(kRows, m))});
    wait_for(*engine, "m" + std::to_string(m));
  }
  const auto resident = [&] {
    int count = 0;
    for (const ModelInfo& info : engine->models()) count += info.weights_here;
    return count;
  };
  EXPECT_EQ(resident(), 2);
  size_t most = 0;
  for (int k = 0; k < 40; ++k) {
    const int m = k < 12 ? k % kModels : static_cast<int>(row(k)[0] * 100) & 3;
    const Answer answer = send(*engine, ask("m" + std::to_string(m), row(k))).get();
    ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
    EXPECT_TRUE(holds(answer, "weights", weights_of(kRows, m))) << "run " << k << " of model " << m;
    EXPECT_TRUE(holds(answer, "same", row(k)));
    EXPECT_LE(resident(), 2);
    most = std::max(most, stub_mapped());
  }
  if (on_gpu()) {
    EXPECT_GT(most, size_t{1} << 20);
    EXPECT_LE(most, size_t{5} << 20);
    EXPECT_GE(stub_pinned(), size_t{2} << 20) << "weights that are away are in pinned memory";
  }
  // All at once, so that some wait for weights while others run.
  std::vector<std::future<Answer>> answers;
  for (int k = 0; k < 64; ++k)
    answers.push_back(send(*engine, ask("m" + std::to_string(k % kModels), row(k))));
  for (int k = 0; k < 64; ++k) {
    const Answer answer = answers[static_cast<size_t>(k)].get();
    ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
    EXPECT_TRUE(holds(answer, "weights", weights_of(kRows, k % kModels)));
  }
  engine.reset();
  std::ifstream file(record);
  const auto again = replay(file);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(again->difference, "");
}

TEST_P(Devices, CancelledBeforeItIsLaunchedItDoesNotRun) {
  auto engine = this->engine({}, "fifo");
  std::promise<void> open;
  engine->add({.name = "net", .path = write("net", network(8, 1))});
  wait_for(*engine, "net");
  for (int k = 0; on_gpu() && k < 3000 && engine->model("net")->programs < 2; ++k)
    std::this_thread::sleep_for(10ms);
  stub_run_us(20'000);
  std::vector<RequestKey> keys(20);
  std::vector<std::future<Answer>> answers;
  for (RequestKey& key : keys) answers.push_back(send(*engine, ask("net", row(1)), &key));
  for (size_t k = 10; k < keys.size(); ++k) engine->cancel(keys[k]);
  int ok = 0, cancelled = 0;
  for (auto& answer : answers) {
    const Outcome outcome = answer.get().outcome;
    ok += outcome == Outcome::kOk, cancelled += outcome == Outcome::kCancelled;
  }
  EXPECT_EQ(ok + cancelled, 20);
  EXPECT_GE(ok, 10);
  EXPECT_EQ(engine->model("net")->counts.cancelled, static_cast<uint64_t>(cancelled));
  if (!on_gpu()) return;
  EXPECT_GT(cancelled, 0) << "runs of 20 ms, one at a time";
  EXPECT_EQ(stub_launches(), ok);
}

INSTANTIATE_TEST_SUITE_P(Engine, Devices, testing::Values("cpu", "gpu"),
                         [](const auto& info) { return info.param; });

class Gpu : public Devices {};
INSTANTIATE_TEST_SUITE_P(Engine, Gpu, testing::Values("gpu"),
                         [](const auto& info) { return info.param; });

TEST_P(Gpu, LanesRunSideBySideAndWithinTheMachine) {
  EngineOptions options;
  options.device = device({66, 16});
  auto engine = this->engine(std::move(options));
  for (int m = 0; m < 2; ++m) {
    const std::string name = "m" + std::to_string(m);
    engine->add({.name = name, .path = write(name, network(8, m))});
    wait_for(*engine, name);
  }
  for (int k = 0; k < 3000 && engine->model("m0")->programs + engine->model("m1")->programs < 4;
       ++k)
    std::this_thread::sleep_for(10ms);
  stub_run_us(5'000);
  std::vector<std::future<Answer>> answers;
  for (int k = 0; k < 48; ++k) {
    Request request = ask("m" + std::to_string(k % 2), row(k));
    request.trace = true;
    answers.push_back(send(*engine, std::move(request)));
  }
  std::set<int> lanes;
  std::set<std::string> variants;
  for (auto& one : answers) {
    const Answer answer = one.get();
    ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
    lanes.insert(answer.trace->lane), variants.insert(answer.trace->variant);
  }
  EXPECT_GE(stub_most_in_flight(), 4);
  EXPECT_LE(stub_most_in_flight(), 8) << "132 SMs in lanes of 16";
  EXPECT_TRUE(variants.contains("batch 1, 16 of 132 SMs"));
  EXPECT_GT(lanes.size(), 3u);
}

// A thread that waits for a run polls a word that the GPU writes; where none comes in time it
// sleeps until the run has ended.
TEST_P(Gpu, WaitingThreadsSpinAndThenSleep) {
  for (const int forgets : {0, 1, 2}) {
    auto made = gpu_device({.widths = {66}, .spin = true});
    ASSERT_TRUE(made.ok()) << made.error().text();
    EngineOptions options;
    options.device = made.value();
    auto engine = this->engine(std::move(options));
    engine->add({.name = "m", .path = write("m", network(8, 1))});
    wait_for(*engine, "m");
    stub_forget_words(forgets);
    stub_run_us(500);
    std::vector<std::future<Answer>> answers;
    for (int k = 0; k < 20; ++k) answers.push_back(send(*engine, ask("m", row(k))));
    for (auto& one : answers) {
      const Answer answer = one.get();
      EXPECT_EQ(answer.outcome, Outcome::kOk) << (answer.error ? answer.error->text() : "");
    }
    EXPECT_EQ(stub_launches(), 20);
    EXPECT_EQ(stub_forgotten(), forgets ? 20 : 0);
    engine.reset();
    stub_forget_words(0);
  }
}

// A GPU that would be idle while requests come gets some work, but not beside a run.
TEST_P(Gpu, AnIdleGpuIsKeptWarmWhileRequestsCome) {
  EngineOptions options;
  options.device = device({132});
  options.keep_warm = 100us;
  auto engine = this->engine(std::move(options));
  engine->add({.name = "m", .path = write("m", network(8, 1))});
  wait_for(*engine, "m");
  const int before = stub_memsets(0), beside = stub_memsets(1);
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(stub_memsets(0), before) << "nobody has asked for anything";
  EXPECT_EQ(send(*engine, ask("m", row(1))).get().outcome, Outcome::kOk);
  for (int k = 0; k < 10'000 && stub_memsets(0) < before + 5; ++k)
    std::this_thread::sleep_for(100us);
  EXPECT_GE(stub_memsets(0), before + 5);
  stub_run_us(20'000);
  const int more = stub_memsets(1);
  for (int k = 0; k < 5; ++k)
    EXPECT_EQ(send(*engine, ask("m", row(k))).get().outcome, Outcome::kOk);
  // A beat may have been under way when a run began, and a run of 20 ms is 200 times the pause.
  EXPECT_LE(stub_memsets(1) - more, 5);
  EXPECT_EQ(more, beside);
  engine.reset();
}

// Of runs that want the same SMs those with less slack go first; other policies, and runs without a
// deadline, have all one priority.
TEST_P(Gpu, RunsWithLittleSlackHaveStreamsOfAHigherPriority) {
  struct Case {
    std::string policy;
    bool priorities;
    std::optional<std::chrono::nanoseconds> deadline;
    std::chrono::nanoseconds urgent;
    int priority;
  };
  for (const Case& each :
       {Case{"vliw", true, 20s, 1ms, -2}, Case{"vliw", true, 20s, 1min, -5},
        Case{"vliw", true, 3600s, 1ms, 0}, Case{"vliw", true, {}, 1ms, 0},
        Case{"vliw", false, 20s, 1min, 0}, Case{"streams", true, 20s, 1min, 0}}) {
    auto made = gpu_device({.widths = {132}, .priorities = each.priorities});
    ASSERT_TRUE(made.ok()) << made.error().text();
    EngineOptions options;
    options.device = made.value();
    options.urgent = each.urgent, options.relaxed = 10min;
    auto engine = this->engine(std::move(options), each.policy);
    engine->add({.name = "m", .path = write("m", network(8, 1))});
    wait_for(*engine, "m");
    const std::vector<int> all = {0, -2, -5};
    std::vector<int> before;
    for (const int priority : all) before.push_back(stub_launches_of(priority));
    Request request = ask("m", row(1));
    request.deadline = each.deadline;
    EXPECT_EQ(send(*engine, std::move(request)).get().outcome, Outcome::kOk);
    for (size_t k = 0; k < all.size(); ++k)
      EXPECT_EQ(stub_launches_of(all[k]) - before[k], all[k] == each.priority)
          << each.policy << ", priority " << all[k];
  }
}

// What lies in page-locked memory is copied to the GPU from there.
TEST_P(Gpu, PinnedInputsAreNotCopiedOnTheHost) {
  auto engine = this->engine();
  engine->add({.name = "m", .path = write("m", network(8, 1))});
  wait_for(*engine, "m");
  void* memory = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&memory, kColumns * sizeof(float), 0), 0);
  const std::vector<float> x = row(7);
  std::memcpy(memory, x.data(), kColumns * sizeof(float));
  for (const bool pinned : {true, false}) {
    stub_watch(memory);
    Request request = ask("m", x);
    request.inputs[0].bytes = {static_cast<const std::byte*>(memory), kColumns * sizeof(float)};
    request.inputs[0].pinned = pinned;
    const Answer answer = send(*engine, std::move(request)).get();
    ASSERT_EQ(answer.outcome, Outcome::kOk);
    EXPECT_TRUE(holds(answer, "same", x));
    EXPECT_EQ(stub_copied_from_watched(), pinned ? 1 : 0);
  }
  stub_watch(nullptr);
  // Memory that is said to be pinned and is not is copied on the host first.
  Request request = ask("m", x);
  auto plain = std::make_shared<std::vector<float>>(kColumns + 16, 0.0F);
  auto* at = plain->data();
  while (reinterpret_cast<uintptr_t>(at) % 64 != 0) ++at;
  std::copy(x.begin(), x.end(), at);
  request.keep = plain, request.inputs[0].pinned = true;
  request.inputs[0].bytes = std::as_bytes(std::span(at, kColumns));
  EXPECT_TRUE(holds(send(*engine, std::move(request)).get(), "same", x));
  engine.reset();
  cuMemFreeHost(memory);
}

// A run is six calls of the driver: its context is entered and left, inputs in, the launch, outputs
// out, a word behind them; and one for each output that is an input or a weight, of which there are
// two here. A launch of several runs, whose inputs lie side by side, takes the six once.
TEST_P(Gpu, ALaunchTakesSixCallsOfTheDriverHoweverManyShareIt) {
  constexpr int kModels = 4, kRounds = 20;
  for (const bool instances : {false, true}) {
    EngineOptions options;
    options.device = device({16}, instances, true);
    options.policy.gather = 5ms;
    auto engine = this->engine(std::move(options));
    for (int m = 0; m < kModels; ++m) {
      const std::string name = "m" + std::to_string(m);
      engine->add({.name = name, .path = write(name, network(8, static_cast<uint32_t>(m)))});
      wait_for(*engine, name);
    }
    const auto rounds = [&](int count) {
      for (int round = 0; round < count; ++round) {
        std::this_thread::sleep_for(10ms);  // a round is told from the next
        std::vector<std::future<Answer>> answers;
        for (int m = 0; m < kModels; ++m)
          answers.push_back(send(*engine, ask("m" + std::to_string(m), row(10 * round + m))));
        for (int m = 0; m < kModels; ++m) {
          const Answer answer = answers[static_cast<size_t>(m)].get();
          ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
          EXPECT_TRUE(holds(answer, "same", row(10 * round + m)));
          EXPECT_TRUE(holds(answer, "weights", weights_of(8, static_cast<uint32_t>(m))));
        }
      }
    };
    stub_run_us(1'000);
    rounds(5);
    stub_run_us(1'000);
    rounds(kRounds);
    const int launches = stub_launches(), calls = stub_calls();
    if (instances) {
      EXPECT_LE(launches, kRounds * kModels / 2);
      // One more where other models share it than did before.
      EXPECT_LE(calls, 7 * launches + 2 * kRounds * kModels);
    } else {
      EXPECT_EQ(launches, kRounds * kModels);
      EXPECT_EQ(calls, (6 + 2) * launches);
    }
    engine.reset();
  }
}

TEST_P(Gpu, WeightsAreThereOnceWhateverTheWidths) {
  const ModelConfig config{.name = "net", .path = write("net", network(4096, 1))};
  size_t one = 0;
  for (const std::vector<int>& widths : {std::vector<int>{132}, {132, 66, 33, 16}}) {
    const auto gpu = device(widths);
    const auto programs =
        Programs::open(config, gpu, {.cache = (folder_ / "cache").string(), .verify = false});
    ASSERT_TRUE(programs.ok()) << programs.error().text();
    std::vector<std::unique_ptr<Variant>> variants;
    for (const int width : widths) {
      auto program = (*programs)->compile(1, width, {});
      ASSERT_TRUE(program.ok()) << program.error().text();
      EXPECT_EQ(program->executable->program().sms, width);
      variants.push_back(std::make_unique<Variant>(std::move(*program), width, "", gpu));
      ASSERT_TRUE(variants.back()->measure(Time(0)).ok());
    }
    EXPECT_GE(stub_mapped(), size_t{4096} * kColumns * sizeof(float));
    if (widths.size() == 1) one = stub_mapped();
    EXPECT_EQ(stub_mapped(), one) << widths.size() << " widths";
  }
}

/// y [batch, 1]: sums of long rows. By default a GPU's programs make them of parts where that
/// leaves more workers something to do: by batch and width.
std::string long_sums() {
  constexpr int64_t kLong = 1 << 17;
  const std::string columns = std::to_string(kLong);
  return make::model(make::graph({make::node("ReduceSum", {"x", "axis"}, {"y"})},
                                 {make::value("x", make::kFloat, {"batch", columns})},
                                 {make::value("y", make::kFloat, {"batch", "1"})},
                                 {make::ints("axis", {1})}));
}

TEST_P(Gpu, BatchInvarianceReachesTheProgramsOfAllBatchesAndWidths) {
  ModelConfig config{.name = "sums",
                     .path = write("sums", long_sums()),
                     .batch_dimension = "batch",
                     .max_batch = 16};
  const auto gpu = device({132, 16});
  for (const bool invariant : {false, true}) {
    config.batch_invariant = invariant;
    const auto programs =
        Programs::open(config, gpu, {.cache = (folder_ / "cache").string(), .verify = false});
    ASSERT_TRUE(programs.ok()) << programs.error().text();
    std::set<size_t> kernels;
    for (const int batch : (*programs)->batches())
      for (const int width : (*programs)->widths()) {
        const auto program = (*programs)->compile(batch, width, {});
        ASSERT_TRUE(program.ok()) << program.error().text();
        EXPECT_EQ(program->executable->program().sms, width);
        kernels.insert(program->executable->program().works.size());
      }
    EXPECT_EQ(kernels, invariant ? std::set<size_t>{1} : (std::set<size_t>{1, 2}));
  }
}

TEST_P(Gpu, BatchInvariantModelsHaveNoProgramsNarrowerThanAGang) {
  const std::string path = write("sums", long_sums());
  const auto widths_of = [&](const std::vector<int>& widths, bool invariant) {
    const auto programs = Programs::open(
        {.name = "sums", .path = path, .dimensions = {{"batch", 1}}, .batch_invariant = invariant},
        device(widths), {.verify = false});
    EXPECT_TRUE(programs.ok()) << programs.error().text();
    return (*programs)->widths();
  };
  EXPECT_EQ(widths_of({58, 29, 14, 7}, false), (std::vector<int>{58, 29, 14, 7}));
  EXPECT_EQ(widths_of({58, 29, 14, 7}, true), (std::vector<int>{58, 29, 14}));
  EXPECT_EQ(widths_of({4, 2}, true), std::vector<int>{4});
}

TEST_P(Gpu, BatchInvariantModelsHaveOneGranularity) {
  EngineOptions options;
  options.batch_invariant = true;
  auto engine = this->engine(std::move(options));
  engine->add({.name = "net", .path = write("net", network(8, 1)), .granularity = "auto"});
  for (int k = 0; k < 6000 && engine->model("net")->state == ModelState::kLoading; ++k)
    std::this_thread::sleep_for(10ms);
  const auto info = engine->model("net");
  EXPECT_EQ(info->state, ModelState::kFailed);
  EXPECT_NE(info->reason.find("batch-invariant model have one granularity"), std::string::npos)
      << info->reason;
  engine->add({.name = "other", .path = write("other", network(8, 1)), .granularity = "mono"});
  wait_for(*engine, "other");
  EXPECT_TRUE(engine->model("other")->config.batch_invariant);
}

TEST_P(Gpu, AfterAnErrorOfTheDeviceNothingRunsThereAndItIsSaid) {
  auto engine = this->engine({}, "fifo");
  engine->add({.name = "net", .path = write("net", network(8, 1))});
  engine->add({.name = "other", .path = write("other", network(8, 2))});
  wait_for(*engine, "net"), wait_for(*engine, "other");
  ASSERT_EQ(send(*engine, ask("net", row(1))).get().outcome, Outcome::kOk);
  stub_run_us(20'000);
  std::vector<std::future<Answer>> answers;
  for (int k = 0; k < 6; ++k)
    answers.push_back(send(*engine, ask(k % 2 ? "other" : "net", row(k))));
  stub_fail(700);
  int failed = 0;
  for (auto& one : answers) {
    const Answer answer = one.get();
    if (answer.outcome == Outcome::kOk) continue;
    ++failed;
    EXPECT_TRUE(answer.outcome == Outcome::kFailed) << static_cast<int>(answer.outcome);
    EXPECT_EQ(answer.error->code, Code::kDevice) << answer.error->text();
  }
  EXPECT_GE(failed, 5);
  stub_fail(0);  // the GPU's context does not recover, whatever the driver says later
  for (const char* name : {"net", "other"}) {
    const Answer refused = send(*engine, ask(name, row(1))).get();
    EXPECT_EQ(refused.outcome, Outcome::kRejected);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->code, Code::kDevice);
    EXPECT_NE(engine->model(name)->reason.find("CUDA_ERROR"), std::string::npos);
  }
}

// The engine reports it once, before it answers any request with the error.
TEST_P(Gpu, AnErrorOfTheDeviceIsToldOnceAndFirst) {
  std::atomic<int> told = 0, failed_before = 0, failed = 0;
  EngineOptions options;
  options.lost = [&](const Error& error) {
    EXPECT_EQ(error.code, Code::kDevice);
    ++told, failed_before += failed;
  };
  auto engine = this->engine(std::move(options), "fifo");
  engine->add({.name = "net", .path = write("net", network(8, 1))});
  wait_for(*engine, "net");
  stub_run_us(10'000);
  std::vector<std::promise<void>> answered(4);
  for (std::promise<void>& one : answered)
    engine->submit(ask("net", row(1)), [&](Answer answer) {
      failed += answer.outcome == Outcome::kFailed;
      one.set_value();
    });
  stub_fail(700);
  for (std::promise<void>& one : answered) one.get_future().wait();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(failed_before, 0);
  EXPECT_GE(failed, 3);
}

TEST_P(Gpu, WithoutMemoryForAnotherRunARequestFailsAlone) {
  EngineOptions options;
  options.device = device({16});
  auto engine = this->engine(std::move(options));
  engine->add({.name = "net", .path = write("net", network(8, 1))});
  wait_for(*engine, "net");
  stub_run_us(20'000);
  stub_allow(stub_taken());
  std::vector<std::future<Answer>> answers;
  for (int k = 0; k < 4; ++k) answers.push_back(send(*engine, ask("net", row(k))));
  int ok = 0;
  for (auto& one : answers) {
    const Answer answer = one.get();
    ok += answer.outcome == Outcome::kOk;
    if (answer.outcome == Outcome::kOk) continue;
    EXPECT_EQ(answer.error->code, Code::kMemory);
  }
  EXPECT_GE(ok, 1);
  stub_allow(static_cast<size_t>(-1));
  for (int k = 0; k < 4; ++k)
    EXPECT_EQ(send(*engine, ask("net", row(k))).get().outcome, Outcome::kOk);
}

TEST_P(Gpu, WhereTheGpuHasLessMemoryThanItSaidWeightsMakeRoomAllTheSame) {
  constexpr int kRows = 4096, kModels = 4;
  EngineOptions options;
  options.device = device({132});
  auto engine = this->engine(std::move(options));
  engine->add({.name = "m0", .path = write("m0", network(kRows, 0))});
  wait_for(*engine, "m0");
  stub_allow(stub_taken() * 5 / 2);  // of 80 GB that the driver tells of
  for (int m = 1; m < kModels; ++m) {
    const std::string name = "m" + std::to_string(m);
    engine->add({.name = name, .path = write(name, network(kRows, m))});
    wait_for(*engine, name);
  }
  for (int k = 0; k < 24; ++k) {
    const int m = k % kModels;
    const Answer answer = send(*engine, ask("m" + std::to_string(m), row(k))).get();
    ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
    EXPECT_TRUE(holds(answer, "weights", weights_of(kRows, m))) << "run " << k;
  }
  // What can never fit is said, and the others go on.
  stub_allow(stub_taken());
  engine->add({.name = "large", .path = write("large", network(8 * kRows, 9))});
  for (int k = 0; k < 6000 && engine->model("large")->state == ModelState::kLoading; ++k)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(engine->model("large")->state, ModelState::kFailed);
  EXPECT_NE(engine->model("large")->reason.find("the limit of all models"), std::string::npos)
      << engine->model("large")->reason;
  EXPECT_EQ(send(*engine, ask("m0", row(1))).get().outcome, Outcome::kOk);
}

}  // namespace
}  // namespace obelisk::serve
