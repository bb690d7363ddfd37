// The engine with programs of the CPU: answers of any mix equal those of a model alone, bit for
// bit; who fails, fails alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "base/database.h"
#include "frontends/onnx/test/make_model.h"
#include "serve/record.h"
#include "serve/serve.h"
#include "serve/times_store.h"
#include "serve/variants.h"

namespace obelisk::serve {
namespace {

namespace fs = std::filesystem;
namespace make = frontends::onnx::make;
using namespace std::chrono_literals;

/// Two layers and a softmax over rows of `width`; all weights follow from `seed`.
std::string network(int width, int classes, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3F);
  const auto weights = [&](int count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  };
  return make::model(
      make::graph({make::node("MatMul", {"x", "a"}, {"h"}), make::node("Relu", {"h"}, {"r"}),
                   make::node("MatMul", {"r", "b"}, {"l"}),
                   make::node("Softmax", {"l"}, {"p"}, {make::attr("axis", -1)})},
                  {make::value("x", make::kFloat, {"batch", std::to_string(width)})},
                  {make::value("p", make::kFloat, {"batch", std::to_string(classes)})},
                  {make::floats("a", {width, 48}, weights(width * 48)),
                   make::floats("b", {48, classes}, weights(48 * classes))}));
}

/// Answers as they come.
class Answers {
 public:
  Done next() {
    const size_t place = [&] {
      std::lock_guard lock(mutex_);
      answers_.emplace_back(), counts_.push_back(0);
      return answers_.size() - 1;
    }();
    return [this, place](Answer answer) {
      std::lock_guard lock(mutex_);
      answers_[place] = std::move(answer), ++counts_[place], ++came_;
      changed_.notify_all();
    };
  }
  /// All of them, once each.
  std::vector<Answer> all() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 60s, [this] { return came_ >= answers_.size(); }));
    for (const int count : counts_) EXPECT_EQ(count, 1);
    return std::move(answers_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Answer> answers_;
  std::vector<int> counts_;
  size_t came_ = 0;
};

Request request(const std::string& model, const std::string& port, Type type, const void* bytes) {
  auto keep = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(type.bytes()));
  std::memcpy(keep->data(), bytes, keep->size());
  Request made;
  made.model = model;
  made.inputs.push_back({port, type.dtype, type.shape, *keep});
  made.keep = keep;
  return made;
}

std::vector<float> floats_of(const Answer& answer, size_t output = 0) {
  const auto bytes = answer.outputs.at(output).bytes;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class EngineTest : public testing::Test {
 protected:
  EngineTest()
      : folder(fs::temp_directory_path() / ("obelisk-serve-test-" + std::to_string(getpid()))) {
    fs::create_directories(folder);
  }
  ~EngineTest() override { fs::remove_all(folder); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return (folder / name).string();
  }
  std::unique_ptr<Engine> engine(const std::string& policy = "vliw",
                                 std::optional<std::chrono::microseconds> hand_over = {},
                                 int workers = 3) const {
    EngineOptions options;
    options.hand_over = hand_over;
    options.workers = workers, options.policy = policy_named(policy).value();
    options.verify_seconds = 1, options.cache = (folder / "cache").string();
    return make_engine(std::move(options));
  }
  static ModelState wait_for(const Engine& engine, const std::string& name) {
    for (int k = 0; k < 6000; ++k) {
      const auto info = engine.model(name);
      if (info && info->state != ModelState::kLoading) return info->state;
      std::this_thread::sleep_for(10ms);
    }
    return ModelState::kLoading;
  }
  /// "net", whose batches are 1, 2 and 4.
  void add_batched(Engine& engine) const {
    engine.add({.name = "net",
                .path = write("net.onnx", network(16, 5, 1)),
                .batch_dimension = "batch",
                .max_batch = 4});
  }
  fs::path folder;
};

TEST_F(EngineTest, AnswersAndSaysWhatHappened) {
  auto engine = this->engine();
  add_batched(*engine);
  ASSERT_EQ(wait_for(*engine, "net"), ModelState::kReady) << engine->model("net")->reason;
  const auto info = engine->model("net");
  ASSERT_EQ(info->inputs.size(), 1u);
  EXPECT_EQ(info->inputs[0].shape, (Shape{-1, 16}));
  EXPECT_EQ(info->outputs[0].shape, (Shape{-1, 5}));
  std::vector<float> x(3 * 16, 0.5F);
  Answers answers;
  Request asked = request("net", "x", {DType::f32, {3, 16}}, x.data());
  asked.trace = true, asked.deadline = 10s;
  engine->submit(std::move(asked), answers.next());
  const Answer answer = std::move(answers.all()[0]);
  ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
  ASSERT_EQ(answer.outputs.size(), 1u);
  EXPECT_EQ(answer.outputs[0].shape, (Shape{3, 5}));
  const std::vector<float> p = floats_of(answer);
  for (int row = 0; row < 3; ++row) {
    float sum = 0;
    for (int k = 0; k < 5; ++k) sum += p[static_cast<size_t>(row * 5 + k)];
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  ASSERT_TRUE(answer.trace);
  EXPECT_EQ(answer.trace->batch_rows, 3);
  EXPECT_GE(answer.trace->ran, answer.trace->queued);
  EXPECT_FALSE(answer.trace->reason.empty());
}

/// Models with their inputs, and what each answers when nobody else is there.
struct Known {
  std::string name, port;
  DType dtype;
  Shape row;                                  // of one row
  std::vector<std::vector<std::byte>> rows;   // inputs, row by row
  std::vector<std::vector<std::byte>> alone;  // answers of each
};

/// Joins rows of a model's inputs to a request.
Request ask(const Known& model, const std::vector<size_t>& rows) {
  std::vector<std::byte> bytes;
  for (const size_t row : rows)
    bytes.insert(bytes.end(), model.rows[row].begin(), model.rows[row].end());
  Shape shape = model.row;
  shape.insert(shape.begin(), static_cast<int64_t>(rows.size()));
  return request(model.name, model.port, {model.dtype, shape}, bytes.data());
}

void expect_alone(const Known& model, const std::vector<size_t>& rows, const Answer& answer) {
  ASSERT_EQ(answer.outcome, Outcome::kOk) << (answer.error ? answer.error->text() : "");
  std::vector<std::byte> wanted;
  for (const size_t row : rows)
    wanted.insert(wanted.end(), model.alone[row].begin(), model.alone[row].end());
  ASSERT_EQ(answer.outputs.size(), 1u);
  ASSERT_EQ(answer.outputs[0].bytes.size(), wanted.size());
  ASSERT_EQ(std::memcmp(answer.outputs[0].bytes.data(), wanted.data(), wanted.size()), 0)
      << model.name << ": other bits than alone";
}

/// The answers of the models one row after the other, by an engine that has nothing else to do.
void answer_alone(Engine& engine, std::vector<Known>& models) {
  for (Known& model : models)
    for (size_t row = 0; row < model.rows.size(); ++row) {
      Answers one;
      engine.submit(ask(model, {row}), one.next());
      const Answer answer = std::move(one.all()[0]);
      ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
      model.alone.emplace_back(answer.outputs[0].bytes.begin(), answer.outputs[0].bytes.end());
    }
}

Known known(const std::string& name, int width, uint32_t seed) {
  Known model{name, "x", DType::f32, {width}, {}, {}};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int row = 0; row < 12; ++row) {
    std::vector<std::byte> bytes(static_cast<size_t>(width) * sizeof(float));
    for (int k = 0; k < width; ++k) {
      const float value =
          row == 11 && k == 0 ? std::numeric_limits<float>::quiet_NaN() : normal(random);
      std::memcpy(bytes.data() + static_cast<size_t>(k) * sizeof(float), &value, sizeof value);
    }
    model.rows.push_back(std::move(bytes));
  }
  return model;
}

/// Until every batch of a model is there.
void wait_for_batches(Engine& engine, const Known& model, int batch) {
  std::vector<size_t> rows(static_cast<size_t>(batch), 0);
  for (int k = 0; k < 3000; ++k) {
    Answers one;
    Request request = ask(model, rows);
    request.trace = true;
    engine.submit(std::move(request), one.next());
    const Answer answer = std::move(one.all()[0]);
    ASSERT_EQ(answer.outcome, Outcome::kOk);
    if (answer.trace->variant.starts_with("batch " + std::to_string(batch))) return;
    std::this_thread::sleep_for(10ms);
  }
  FAIL() << "no batch of " << batch;
}

class Policies : public EngineTest, public testing::WithParamInterface<const char*> {};

/// Requests of four callers, mixed at random: 1,000 of three models, or as many as the environment
/// variable OBELISK_MIXES says of eight.
struct Mixes {
  static constexpr int kCallers = 4;
  int each = 250;  // caller
  std::vector<Known> models = {known("small", 16, 1), known("wide", 96, 2), known("other", 16, 3)};
  Mixes() {
    const char* wished = getenv("OBELISK_MIXES");
    if (!wished) return;
    each = (atoi(wished) + kCallers - 1) / kCallers;
    for (const int width : {24, 32, 48, 64, 80})
      models.push_back(
          known("of " + std::to_string(width), width, static_cast<uint32_t>(models.size() + 1)));
  }
};

TEST_P(Policies, AnyMixAnswersAsEachModelAlone) {
  auto engine = this->engine(GetParam(), 0us);  // requests wait, so that some are joined
  Mixes mixes;
  std::vector<Known>& models = mixes.models;
  for (size_t m = 0; m < models.size(); ++m)
    engine->add(
        {.name = models[m].name,
         .path = write(models[m].name, network(static_cast<int>(models[m].row[0]),
                                               5 + static_cast<int>(m), static_cast<uint32_t>(m))),
         .batch_dimension = "batch",
         .max_batch = 4});
  for (const Known& model : models)
    ASSERT_EQ(wait_for(*engine, model.name), ModelState::kReady)
        << engine->model(model.name)->reason;
  answer_alone(*engine, models);
  for (const Known& model : models) wait_for_batches(*engine, model, 4);
  // Four callers at once.
  constexpr int kCallers = Mixes::kCallers;
  struct Asked {
    size_t model;
    std::vector<size_t> rows;
  };
  std::vector<std::thread> callers;
  std::array<Answers, kCallers> answers;
  std::array<std::vector<Asked>, kCallers> asked;
  for (size_t caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&, caller] {
      std::mt19937 random(static_cast<uint32_t>(caller));
      for (int k = 0; k < mixes.each; ++k) {
        Asked one{random() % models.size(), {}};
        for (size_t rows = random() % 4 ? 1 : 1 + random() % 4; one.rows.size() < rows;)
          one.rows.push_back(random() % 12);
        Request request = ask(models[one.model], one.rows);
        request.trace = random() % 2, request.tenant = random() % 2 ? "a" : "";
        if (random() % 2) request.deadline = 20s;
        asked[caller].push_back(one);
        engine->submit(std::move(request), answers[caller].next());
        if (random() % 8 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      }
    });
  for (std::thread& caller : callers) caller.join();
  int joined = 0;
  for (size_t caller = 0; caller < kCallers; ++caller) {
    const std::vector<Answer> got = answers[caller].all();
    for (size_t k = 0; k < got.size(); ++k) {
      expect_alone(models[asked[caller][k].model], asked[caller][k].rows, got[k]);
      if (testing::Test::HasFatalFailure()) return;
      joined +=
          got[k].trace && got[k].trace->batch_rows > static_cast<int>(asked[caller][k].rows.size());
    }
  }
  if (GetParam() == std::string("vliw") || GetParam() == std::string("batch")) {
    EXPECT_GT(joined, 0) << "no two requests shared a launch";
  }
  uint64_t ok = 0;
  for (const ModelInfo& info : engine->models()) {
    ok += info.counts.ok;
    EXPECT_EQ(info.counts.waiting, 0);
  }
  EXPECT_GE(ok, static_cast<uint64_t>(kCallers * mixes.each));
}

INSTANTIATE_TEST_SUITE_P(Engine, Policies,
                         testing::Values("vliw", "fifo", "time", "streams", "edf", "batch"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(EngineTest, AShortRunStaysWithTheThreadThatSubmits) {
  std::vector<std::vector<std::byte>> bits;
  for (const auto hand_over : {0us, std::chrono::microseconds(1h)}) {
    // One worker: a program that measures quicker on several is nothing for a single thread.
    auto engine = this->engine("vliw", hand_over, 1);
    engine->add({.name = "net",
                 .path = write("net.onnx", network(16, 5, 1)),
                 .batch_dimension = "batch",
                 .max_batch = 4});
    ASSERT_EQ(wait_for(*engine, "net"), ModelState::kReady) << engine->model("net")->reason;
    const Known model = known("net", 16, 1);
    Answers answers;
    std::atomic<int> here = 0;
    for (size_t row = 0; row < 8; ++row) {
      std::atomic<bool> came = false;
      const auto me = std::this_thread::get_id();
      engine->submit(ask(model, {row}), [&, done = answers.next()](Answer answer) {
        here += std::this_thread::get_id() == me;
        done(std::move(answer));
        came = true;
      });
      for (int k = 0; k < 6000 && !came; ++k) std::this_thread::sleep_for(10ms);
      ASSERT_TRUE(came);
    }
    EXPECT_EQ(here > 0, hand_over > 0us) << here;
    std::vector<std::byte> all;
    for (const Answer& answer : answers.all()) {
      ASSERT_EQ(answer.outcome, Outcome::kOk);
      all.insert(all.end(), answer.outputs[0].bytes.begin(), answer.outputs[0].bytes.end());
    }
    bits.push_back(std::move(all));
  }
  EXPECT_EQ(bits[0], bits[1]);
}

TEST_F(EngineTest, SaysHowManyProgramsAreStillToCome) {
  auto engine = this->engine();
  add_batched(*engine);
  ASSERT_EQ(wait_for(*engine, "net"), ModelState::kReady) << engine->model("net")->reason;
  int before = 2;  // batches of 2 and of 4
  for (int k = 0; k < 6000 && before > 0; ++k) {
    const int now = engine->model("net")->to_come;
    ASSERT_LE(now, before);
    before = now;
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(before, 0);
  EXPECT_GE(engine->model("net")->programs, 3);
  EXPECT_EQ(engine->model("net")->reason, "");
}

TEST_F(EngineTest, ModelsComeAndGoWhileOthersAnswer) {
  auto engine = this->engine();
  std::vector<Known> models = {known("stays", 16, 1)};
  engine->add({.name = "stays",
               .path = write("stays", network(16, 5, 0)),
               .batch_dimension = "batch",
               .max_batch = 4});
  ASSERT_EQ(wait_for(*engine, "stays"), ModelState::kReady);
  answer_alone(*engine, models);
  const std::string guest = write("guest", network(32, 7, 9)),
                    other = write("other", network(32, 7, 10));
  Known comes = known("guest", 32, 5);
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::thread load([&] {
    std::mt19937 random(4);
    while (!stop) {
      Answers one;
      const std::vector<size_t> rows = {random() % 12};
      engine->submit(ask(models[0], rows), one.next());
      const Answer answer = std::move(one.all()[0]);
      expect_alone(models[0], rows, answer);
      ++answered;
    }
  });
  std::vector<std::vector<std::byte>> first, second;
  for (int turn = 0; turn < 3; ++turn) {
    comes.alone.clear();
    engine->add({.name = "guest", .path = guest, .batch_dimension = "batch", .max_batch = 2});
    ASSERT_EQ(wait_for(*engine, "guest"), ModelState::kReady) << engine->model("guest")->reason;
    std::vector<Known> guests = {comes};
    answer_alone(*engine, guests);
    if (turn == 0) first = guests[0].alone;
    EXPECT_EQ(guests[0].alone, first);
    // Another network of that name takes its place; requests are answered all the while.
    engine->add({.name = "guest", .path = other, .batch_dimension = "batch", .max_batch = 2});
    bool replaced = false;
    const auto late = std::chrono::steady_clock::now() + 120s;
    while (!replaced && std::chrono::steady_clock::now() < late) {
      Answers one;
      engine->submit(ask(comes, {0}), one.next());
      const Answer answer = std::move(one.all()[0]);
      ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
      replaced = std::memcmp(answer.outputs[0].bytes.data(), first[0].data(), first[0].size()) != 0;
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(replaced) << engine->model("guest")->reason;
    Answers last;
    for (int k = 0; k < 20; ++k)
      engine->submit(ask(comes, {static_cast<size_t>(k % 11)}), last.next());
    engine->remove("guest");
    for (const Answer& answer : last.all())
      EXPECT_EQ(answer.outcome, Outcome::kOk) << "what was taken is answered";
    for (int k = 0; k < 1000 && engine->model("guest"); ++k) std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(engine->model("guest"));
    Answers gone;
    engine->submit(ask(comes, {0}), gone.next());
    EXPECT_EQ(gone.all()[0].outcome, Outcome::kNotFound);
  }
  stop = true;
  load.join();
  EXPECT_GT(answered, 0);
}

TEST_F(EngineTest, WhoFailsFailsAlone) {
  EngineOptions options;
  options.workers = 2, options.policy = policy_named("batch").value();
  std::atomic<int> joined{0};
  options.check = [&](const Request& request) -> Status {
    if (request.id == "bad") return Error{Code::kUsage, "test", "not this one"};
    if (request.id == "throws") throw std::runtime_error("nor this one");
    return ok_status();
  };
  auto engine = make_engine(std::move(options));
  engine->add({.name = "net",
               .path = write("net", network(16, 5, 1)),
               .batch_dimension = "batch",
               .max_batch = 8});
  ASSERT_EQ(wait_for(*engine, "net"), ModelState::kReady) << engine->model("net")->reason;
  std::vector<Known> models = {known("net", 16, 2)};
  answer_alone(*engine, models);
  wait_for_batches(*engine, models[0], 8);
  const ModelCounts before = engine->model("net")->counts;
  for (int round = 0; round < 30; ++round) {
    Answers answers;
    for (size_t k = 0; k < 16; ++k) {
      Request request = ask(models[0], {k % 12});
      request.id = k % 5 == 3 ? "bad" : "good", request.trace = true;
      engine->submit(std::move(request), answers.next());
    }
    const std::vector<Answer> all = answers.all();
    for (size_t k = 0; k < 16; ++k) {
      if (k % 5 != 3) {
        expect_alone(models[0], {k % 12}, all[k]);
        continue;
      }
      ASSERT_EQ(all[k].outcome, Outcome::kFailed);
      EXPECT_NE(all[k].error->text().find("not this one"), std::string::npos);
      joined += all[k].trace->batch_rows > 1;
    }
  }
  const ModelCounts counts = engine->model("net")->counts;
  Answers thrown;
  Request throws = ask(models[0], {0});
  throws.id = "throws";
  engine->submit(std::move(throws), thrown.next());
  const Answer answer = std::move(thrown.all()[0]);
  EXPECT_EQ(answer.outcome, Outcome::kFailed);
  EXPECT_NE(answer.error->text().find("nor this one"), std::string::npos);
  EXPECT_EQ(counts.failed, 90u);
  EXPECT_EQ(counts.ok - before.ok, 30u * 13);
}

TEST_F(EngineTest, WeightsAreKeptOnceWhateverTheBatches) {
  const ModelConfig config{.name = "net",
                           .path = write("net", network(96, 5, 1)),
                           .batch_dimension = "batch",
                           .max_batch = 8};
  const auto programs = Programs::open(config, cpu_device(2), {.verify = false});
  ASSERT_TRUE(programs.ok()) << programs.error().text();
  EXPECT_EQ((*programs)->batches(), (std::vector<int>{1, 2, 4, 8}));
  std::set<const void*> first;
  for (const int batch : (*programs)->batches()) {
    const auto program = (*programs)->compile(batch, 2, {});
    ASSERT_TRUE(program.ok()) << program.error().text();
    std::set<const void*> weights;
    for (const Tensor& weight : program->executable->program().weights)
      if (!weight.empty()) weights.insert(weight.data());
    if (batch == 1) first = weights;
    EXPECT_FALSE(weights.empty());
    EXPECT_EQ(weights, first) << "batch " << batch;
  }
}

/// Bytes of memory that this process has.
int64_t resident_bytes() {
  int64_t all = 0, here = 0;
  std::ifstream("/proc/self/statm") >> all >> here;
  return here * sysconf(_SC_PAGESIZE);
}

TEST_F(EngineTest, ReleasedWeightsTakeNoMemoryOfTheProcessAndComeBackAsTheyWere) {
  constexpr int kWidth = 1 << 18;  // 48 MiB of weights in the product
  const auto device = cpu_device(1, folder.string());
  const auto programs = Programs::open(
      {.name = "net", .path = write("net", network(kWidth, 5, 1)), .dimensions = {{"batch", 1}}},
      device, {.cache = (folder / "cache").string(), .verify = false});
  ASSERT_TRUE(programs.ok()) << programs.error().text();
  const auto program = (*programs)->compile(1, 1, {});
  ASSERT_TRUE(program.ok()) << program.error().text();
  Weights& weights = (*programs)->device_weights();
  ASSERT_TRUE(weights.keep(*program->executable).ok());
  const auto hash = [&] {
    Hash all;
    for (const Tensor& weight : program->executable->program().weights)
      if (!weight.empty())
        all = hash_text(to_string(all) +
                        to_string(hash_bytes(weight.data(), static_cast<size_t>(weight.bytes()))));
    return to_string(all);
  };
  const std::string before = hash();
  EXPECT_GE(weights.bytes(), int64_t{kWidth} * 48 * 4);
  for (int turn = 0; turn < 2; ++turn) {
    const int64_t had = resident_bytes();
    const Status released = weights.release();
    ASSERT_TRUE(released.ok()) << released.error().text();
    EXPECT_LE(resident_bytes(), had - weights.bytes() / 10 * 9);
    ASSERT_TRUE(weights.restore().ok());
    EXPECT_GE(resident_bytes(), had - weights.bytes() / 10);
    EXPECT_EQ(hash(), before);
  }
}

TEST_F(EngineTest, TimesAreKeptForTheNextProcess) {
  const std::string cache = (folder / "cache").string();
  const std::string key = TimesStore::key_of(hash_text("program"), 1, 2, "a");
  EXPECT_NE(key, TimesStore::key_of(hash_text("program"), 2, 2, "a"));
  EXPECT_NE(key, TimesStore::key_of(hash_text("another"), 1, 2, "a"));
  EXPECT_NE(key, TimesStore::key_of(hash_text("program"), 1, 2, "b"));
  {
    TimesStore store(cache);
    ASSERT_TRUE(store.open());
    EXPECT_FALSE(store.find(key));
    store.keep({key, "net", 1, 1, {5us, 7us}});
    store.keep({key, "net", 1, 1, {5us, 8us, 2us}});
  }
  TimesStore again(cache);
  ASSERT_TRUE(again.find(key));
  EXPECT_EQ(again.find(key)->alone, 5us);
  EXPECT_EQ(again.find(key)->beside, 8us);
  EXPECT_EQ(again.find(key)->segment, 2us);
  TimesStore none("");
  none.keep({key, "net", 1, 1, {5us, 5us}});
  EXPECT_FALSE(none.find(key));
  std::ofstream(folder / "cache" / "times.sqlite", std::ios::trunc)
      << "something that is no database, and long enough not to be taken for an empty one";
  TimesStore broken(cache);
  EXPECT_FALSE(broken.find(key));
}

TEST_F(EngineTest, ATimeThatWasMeasuredOnABusyMachineIsCorrected) {
  const std::string path = write("net", network(16, 5, 1));
  const auto run = [&](int requests) {
    auto engine = this->engine();
    engine->add({.name = "net", .path = path, .batch_dimension = "batch"});
    EXPECT_EQ(wait_for(*engine, "net"), ModelState::kReady) << engine->model("net")->reason;
    std::vector<float> x(16, 0.5F);
    for (int k = 0; k < requests; ++k) {
      Answers one;
      engine->submit(request("net", "x", {DType::f32, {1, 16}}, x.data()), one.next());
      EXPECT_EQ(one.all()[0].outcome, Outcome::kOk);
    }
  };
  const auto least = [&] {
    const Database times((folder / "cache").string(), "times.sqlite", "", "times");
    Statement select(times, "SELECT MIN(alone_ns) FROM times_2");
    EXPECT_TRUE(select.row());
    return select.integer(0);
  };
  run(1);
  {
    const Database times((folder / "cache").string(), "times.sqlite", "", "times");
    Statement(times, "UPDATE times_2 SET alone_ns = 1000000000, beside_ns = 1000000000").run();
  }
  ASSERT_EQ(least(), 1'000'000'000);
  run(100);
  EXPECT_LT(least(), 500'000'000);
}

TEST_F(EngineTest, ModelsBeyondTheMemoryLimitAreRefused) {
  EngineOptions options;
  options.workers = 2, options.verify = false, options.memory_limit = 64 << 10;
  auto engine = make_engine(std::move(options));
  engine->add(
      {.name = "fits", .path = write("fits", network(96, 5, 1)), .batch_dimension = "batch"});
  ASSERT_EQ(wait_for(*engine, "fits"), ModelState::kReady) << engine->model("fits")->reason;
  const int64_t used = engine->model("fits")->memory_bytes;
  EXPECT_GT(used, 96 * 48 * 4);
  engine->add(
      {.name = "beyond", .path = write("beyond", network(400, 5, 2)), .batch_dimension = "batch"});
  EXPECT_EQ(wait_for(*engine, "beyond"), ModelState::kFailed);
  EXPECT_NE(engine->model("beyond")->reason.find("the limit of all models is 64.0 KiB"),
            std::string::npos)
      << engine->model("beyond")->reason;
  engine->add({.name = "own",
               .path = write("own", network(96, 5, 3)),
               .batch_dimension = "batch",
               .memory_limit = 16 << 10});
  EXPECT_EQ(wait_for(*engine, "own"), ModelState::kFailed);
  EXPECT_NE(engine->model("own")->reason.find("its own limit is 16.0 KiB"), std::string::npos)
      << engine->model("own")->reason;
  engine->remove("fits");
  for (int k = 0; k < 1000 && engine->model("fits"); ++k) std::this_thread::sleep_for(1ms);
  engine->add(
      {.name = "fits again", .path = write("fits", network(96, 5, 1)), .batch_dimension = "batch"});
  EXPECT_EQ(wait_for(*engine, "fits again"), ModelState::kReady) << "memory comes back";
  EXPECT_EQ(engine->model("fits again")->memory_bytes, used) << "to the byte";
}

TEST_F(EngineTest, WhatCanNeverFitIsNotCompiled) {
  const std::string called = (folder / "called").string(),
                    compiler =
                        write("compiler", "#!/bin/sh\necho >>'" + called + "'\nexec c++ \"$@\"\n");
  fs::permissions(compiler, fs::perms::owner_all);
  EngineOptions options;
  options.workers = 2, options.verify = false, options.memory_limit = 64 << 10;
  options.compiler = compiler;
  auto engine = make_engine(std::move(options));
  engine->add(
      {.name = "beyond", .path = write("beyond", network(400, 5, 2)), .batch_dimension = "batch"});
  EXPECT_EQ(wait_for(*engine, "beyond"), ModelState::kFailed);
  EXPECT_FALSE(fs::exists(called)) << engine->model("beyond")->reason;
  engine->add(
      {.name = "fits", .path = write("fits", network(96, 5, 1)), .batch_dimension = "batch"});
  EXPECT_EQ(wait_for(*engine, "fits"), ModelState::kReady) << engine->model("fits")->reason;
  EXPECT_TRUE(fs::exists(called)) << "so it would have been seen";
}

TEST_F(EngineTest, RefusesWithReasons) {
  auto engine = this->engine();
  const std::string path = write("net", network(16, 5, 1));
  engine->add(
      {.name = "net", .path = path, .batch_dimension = "batch", .max_batch = 2, .queue_limit = 4});
  engine->add({.name = "broken", .path = write("broken", "no model")});
  engine->add({.name = "absent", .path = path + ".absent"});
  engine->add({.name = "unbound", .path = path});
  engine->add({.name = "misnamed", .path = path, .batch_dimension = "rows", .max_batch = 2});
  ASSERT_EQ(wait_for(*engine, "net"), ModelState::kReady);
  for (const char* name : {"broken", "absent", "unbound", "misnamed"}) {
    EXPECT_EQ(wait_for(*engine, name), ModelState::kFailed) << name;
    EXPECT_FALSE(engine->model(name)->reason.empty());
  }
  EXPECT_NE(engine->model("misnamed")->reason.find("its dimensions: batch"), std::string::npos)
      << engine->model("misnamed")->reason;
  const std::vector<float> x(16 * 3, 1.0F);
  const auto outcome = [&](Request request, const std::string& text) {
    Answers one;
    engine->submit(std::move(request), one.next());
    const Answer answer = std::move(one.all()[0]);
    EXPECT_TRUE(answer.error && answer.error->text().find(text) != std::string::npos)
        << (answer.error ? answer.error->text() : "no error");
    return answer.outcome;
  };
  EXPECT_EQ(outcome(request("net", "y", {DType::f32, {1, 16}}, x.data()),
                    "input 'x' (f32[-1,16]) is not given"),
            Outcome::kBadRequest);
  EXPECT_EQ(outcome(request("net", "x", {DType::i32, {1, 16}}, x.data()),
                    "is f32[-1,16], but i32[1,16] was given"),
            Outcome::kBadRequest);
  EXPECT_EQ(outcome(request("net", "x", {DType::f32, {1, 8}}, x.data()), "[1,8]"),
            Outcome::kBadRequest);
  EXPECT_EQ(outcome(request("net", "x", {DType::f32, {3, 16}}, x.data()), "3 rows, from 1 to 2"),
            Outcome::kBadRequest);
  Request cut = request("net", "x", {DType::f32, {1, 16}}, x.data());
  cut.inputs[0].bytes = cut.inputs[0].bytes.first(60);
  EXPECT_EQ(outcome(std::move(cut), "takes 64 bytes, but 60 came"), Outcome::kBadRequest);
  Request no_output = request("net", "x", {DType::f32, {1, 16}}, x.data());
  no_output.outputs = {"q"};
  EXPECT_EQ(outcome(std::move(no_output), "no output 'q'"), Outcome::kBadRequest);
  EXPECT_EQ(outcome(request("nobody", "x", {DType::f32, {1, 16}}, x.data()), "no model 'nobody'"),
            Outcome::kNotFound);
  EXPECT_EQ(outcome(request("broken", "x", {DType::f32, {1, 16}}, x.data()), "could not be loaded"),
            Outcome::kNotReady);
  Request hurried = request("net", "x", {DType::f32, {1, 16}}, x.data());
  hurried.deadline = 1ns;
  EXPECT_EQ(outcome(std::move(hurried), "no program of the model is that quick"),
            Outcome::kRejected);
  engine->drain();
  EXPECT_EQ(outcome(request("net", "x", {DType::f32, {1, 16}}, x.data()), "takes no more requests"),
            Outcome::kRejected);
}

TEST_F(EngineTest, CancelsWhatWaitsAndEndsInOrder) {
  Answers answers;
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  {
    EngineOptions options;
    options.workers = 2, options.policy = policy_named("fifo").value();
    // Runs stand still until the gate is opened, so that all others wait.
    options.check = [&](const Request&) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return open; });
      return ok_status();
    };
    auto engine = make_engine(std::move(options));
    engine->add({.name = "net",
                 .path = write("net", network(16, 5, 1)),
                 .batch_dimension = "batch",
                 .max_batch = 1});
    ASSERT_EQ(wait_for(*engine, "net"), ModelState::kReady);
    const std::vector<float> x(16, 1.0F);
    std::vector<RequestKey> keys;
    for (int k = 0; k < 101; ++k)
      keys.push_back(
          engine->submit(request("net", "x", {DType::f32, {1, 16}}, x.data()), answers.next()));
    for (size_t k = 1; k < keys.size(); k += 2) engine->cancel(keys[k]);
    engine->cancel(keys[1]), engine->cancel(1'000'000);  // twice, and nobody's
    engine->cancel(keys[0]);                             // it runs
    EXPECT_EQ(engine->model("net")->counts.cancelled, 50u);
    EXPECT_EQ(engine->model("net")->counts.waiting, 50);
    std::thread later([&] {
      std::this_thread::sleep_for(50ms);
      std::lock_guard lock(mutex);
      open = true;
      changed.notify_all();
    });
    engine.reset();  // who still waits is told; what runs ends
    later.join();
  }
  const std::vector<Answer> all = answers.all();
  EXPECT_EQ(all[0].outcome, Outcome::kOk);
  for (size_t k = 1; k < all.size(); ++k) EXPECT_EQ(all[k].outcome, Outcome::kCancelled) << k;
}

// ---- runs that give way ----

/// Products of 256 rows, one after the other: many tasks, none of them long.
std::string long_network(int layers, uint32_t seed) {
  constexpr int kSize = 256;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1.0F / 16);
  std::vector<std::string> nodes, values;
  for (int k = 0; k < layers; ++k) {
    const std::string in = k == 0 ? "x" : "h" + std::to_string(k);
    const std::string out = k + 1 == layers ? "p" : "h" + std::to_string(k + 1);
    nodes.push_back(make::node("MatMul", {in, "w" + std::to_string(k)}, {out}));
    std::vector<float> weights(kSize * kSize);
    for (float& weight : weights) weight = normal(random);
    values.push_back(make::floats("w" + std::to_string(k), {kSize, kSize}, weights));
  }
  return make::model(make::graph(nodes, {make::value("x", make::kFloat, {"256", "256"})},
                                 {make::value("p", make::kFloat, {"256", "256"})}, values));
}

/// "long" and "net", on workers that serve one program at a time. A request that has a name stands
/// still before its run until it may go on.
class GiveWayTest : public EngineTest {
 protected:
  /// Both are served once, then again with times that leave no doubt: "long" takes a second on any
  /// number of workers and gives way after a millisecond, "net" takes 20 us.
  void start(int workers, int layers) {
    serve(workers, layers);
    made.reset();
    const Database times((folder / "cache").string(), "times.sqlite", "", "times");
    Statement(times,
              "UPDATE times_2 SET alone_ns = 1000000000, beside_ns = 1000000000, segment_ns = "
              "1000000 WHERE model = 'long'")
        .run();
    Statement(times, "UPDATE times_2 SET alone_ns = 20000, beside_ns = 20000 WHERE model = 'net'")
        .run();
    serve(workers, layers);
    models = {known("net", 16, 1), known("long", 256 * 256, 2)};
    models[1].rows.resize(1);
    for (Known& model : models)
      for (size_t row = 0; row < model.rows.size(); ++row) {
        Answers one;
        made->submit(asked(model.name, row), one.next());
        const Answer answer = std::move(one.all()[0]);
        ASSERT_EQ(answer.outcome, Outcome::kOk) << answer.error->text();
        model.alone.emplace_back(answer.outputs[0].bytes.begin(), answer.outputs[0].bytes.end());
      }
  }
  void serve(int workers, int layers) {
    EngineOptions options;
    options.workers = workers, options.verify = false, options.hand_over = 0us;
    options.policy = policy_named("vliw:foresee=0:narrow=0:promise=0").value();
    options.cache = (folder / "cache").string(), options.record = (folder / "record").string();
    options.check = [this](const Request& request) -> Status {
      if (request.id.empty()) return ok_status();
      std::unique_lock lock(mutex_);
      ran_.push_back(request.id);
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_.contains(request.id); });
      if (request.id == "fails") return Error{Code::kUsage, "test", "not this one"};
      return ok_status();
    };
    made = make_engine(std::move(options));
    made->add(
        {.name = "net", .path = write("net.onnx", network(16, 5, 1)), .batch_dimension = "batch"});
    made->add({.name = "long", .path = write("long.onnx", long_network(layers, 3))});
    for (const char* name : {"net", "long"})
      ASSERT_EQ(wait_for(*made, name), ModelState::kReady) << made->model(name)->reason;
  }
  Request asked(const std::string& model, size_t row, const std::string& id = "") {
    Request request = model == "long" ? serve::request("long", "x", {DType::f32, {256, 256}},
                                                       models[1].rows[row].data())
                                      : ask(models[0], {row});
    request.id = id, request.trace = true;
    return request;
  }
  void open(const std::string& id) {
    std::lock_guard lock(mutex_);
    open_.insert(id);
    changed_.notify_all();
  }
  /// Until a request's run has begun.
  void wait_for_run(const std::string& id) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, 60s, [&] {
      return std::find(ran_.begin(), ran_.end(), id) != ran_.end();
    })) << id;
  }
  /// Notes in which order answers come.
  Done noted(const std::string& id, Done done) {
    return [this, id, done = std::move(done)](Answer answer) {
      {
        std::lock_guard lock(mutex_);
        order_.push_back(id);
      }
      done(std::move(answer));
    };
  }
  void expect_replays() {
    made.reset();
    std::ifstream file(folder / "record");
    const auto again = replay(file);
    ASSERT_TRUE(again.ok()) << again.error().text();
    EXPECT_EQ(again->difference, "");
  }

  std::vector<Known> models;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> ran_, order_;
  std::set<std::string> open_;
  std::unique_ptr<Engine> made;  // last: its threads use what stands above
};

TEST_F(GiveWayTest, HowLongARunTakesToGiveWayIsMeasured) {
  serve(2, 60);
  made.reset();
  const Database times((folder / "cache").string(), "times.sqlite", "", "times");
  Statement select(times, "SELECT model, alone_ns, segment_ns FROM times_2 WHERE width = 1");
  std::map<std::string, std::pair<int64_t, int64_t>> found;
  while (select.row()) found[select.text(0)] = {select.integer(1), select.integer(2)};
  ASSERT_EQ(found.size(), 2u);
  const auto [alone, segment] = found["long"];
  EXPECT_GT(segment, 0);
  EXPECT_LT(segment, alone);
  EXPECT_EQ(found["net"].second, kNever.count()) << "so short that nobody need be within it";
}

TEST_F(GiveWayTest, AnUrgentRequestIsAnsweredWithinALongRun) {
  for (const int workers : {1, 2}) {
    start(workers, 60);
    Answers answers;
    open("urgent");
    made->submit(asked("long", 0, "long"), noted("long", answers.next()));
    wait_for_run("long");
    Request urgent = asked("net", 3, "urgent");
    urgent.deadline = 100ms;
    made->submit(std::move(urgent), noted("urgent", answers.next()));
    open("long");
    const std::vector<Answer> all = answers.all();
    EXPECT_EQ(order_, (std::vector<std::string>{"urgent", "long"}));
    expect_alone(models[0], {3}, all[1]);
    ASSERT_EQ(all[0].outcome, Outcome::kOk);
    EXPECT_EQ(std::memcmp(all[0].outputs[0].bytes.data(), models[1].alone[0].data(),
                          models[1].alone[0].size()),
              0)
        << "other bits than alone";
    EXPECT_EQ(all[1].trace->reason, to_string(Why::kWithin));
    EXPECT_EQ(all[1].trace->partners, std::vector<std::string>{"long"});
    EXPECT_NE(all[0].trace->reason.find("it gave way 1 time"), std::string::npos)
        << all[0].trace->reason;
    expect_replays();
    order_.clear(), ran_.clear(), open_.clear();
  }
}

TEST_F(GiveWayTest, WhatRunsWithinARunEndsWhateverIsAskedOfTheEngine) {
  start(1, 60);
  Answers answers;
  open("long");
  made->submit(asked("long", 0, "long"), noted("long", answers.next()));
  wait_for_run("long");
  Request urgent = asked("net", 3, "urgent");
  urgent.deadline = 100ms;
  const RequestKey key = made->submit(std::move(urgent), noted("urgent", answers.next()));
  wait_for_run("urgent");  // and stands still, and with it the run that it is in
  const RequestKey waits = made->submit(asked("net", 4), noted("waits", answers.next()));
  made->cancel(key);
  made->cancel(waits);
  made->remove("net"), made->remove("long");
  EXPECT_EQ(made->model("net")->state, ModelState::kUnloading);
  EXPECT_EQ(made->model("long")->state, ModelState::kUnloading);
  made->drain();
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    open("urgent");
  });
  expect_replays();  // ends the engine: what runs ends before
  later.join();
  EXPECT_EQ(order_, (std::vector<std::string>{"waits", "urgent", "long"}));
  const std::vector<Answer> all = answers.all();
  EXPECT_EQ(all[0].outcome, Outcome::kOk);
  expect_alone(models[0], {3}, all[1]);
  EXPECT_EQ(all[2].outcome, Outcome::kCancelled);
}

TEST_F(GiveWayTest, WhoIsHandedToARunThatEndsRunsBehindIt) {
  start(2, 60);
  Answers answers;
  open("urgent");
  made->submit(asked("long", 0, "fails"), noted("fails", answers.next()));
  wait_for_run("fails");
  Request urgent = asked("net", 3, "urgent");
  urgent.deadline = 100ms;
  made->submit(std::move(urgent), noted("urgent", answers.next()));
  open("fails");  // it ends before its first task
  const std::vector<Answer> all = answers.all();
  EXPECT_EQ(order_, (std::vector<std::string>{"fails", "urgent"}));
  EXPECT_EQ(all[0].outcome, Outcome::kFailed);
  expect_alone(models[0], {3}, all[1]);
  EXPECT_NE(all[1].trace->reason.find("that run ended first"), std::string::npos)
      << all[1].trace->reason;
  // The slots are there again.
  Answers after;
  made->submit(asked("long", 0), after.next());
  EXPECT_EQ(after.all()[0].outcome, Outcome::kOk);
  expect_replays();
}

TEST_F(GiveWayTest, AnyMixOfLongAndUrgentRequestsAnswersAsEachAlone) {
  start(2, 12);
  constexpr int kCallers = 3, kEach = 60;
  std::array<Answers, kCallers> answers;
  std::array<std::vector<size_t>, kCallers> rows;  // of "net"; else "long"
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < kCallers; ++caller)
    callers.emplace_back([&, caller] {
      std::mt19937 random(static_cast<uint32_t>(caller));
      for (int k = 0; k < kEach; ++k) {
        const size_t row = random() % 4 ? random() % 11 : 99;
        Request request = row == 99 ? asked("long", 0) : asked("net", row);
        if (row != 99) request.deadline = std::chrono::microseconds(5000 + random() % 50'000);
        if (row == 99 && random() % 4 == 0) request.deadline = 20s;
        rows[caller].push_back(row);
        made->submit(std::move(request), answers[caller].next());
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      }
    });
  for (std::thread& caller : callers) caller.join();
  for (size_t caller = 0; caller < kCallers; ++caller) {
    const std::vector<Answer> got = answers[caller].all();
    for (size_t k = 0; k < got.size(); ++k) {
      if (got[k].outcome == Outcome::kRejected || got[k].outcome == Outcome::kLate) continue;
      const size_t row = rows[caller][k];
      const Known& model = models[row == 99 ? 1 : 0];
      expect_alone(model, {row == 99 ? 0 : row}, got[k]);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  expect_replays();
  std::ifstream record(folder / "record");
  int within = 0;
  for (std::string line; std::getline(record, line);)
    within += line.find(" within:") != std::string::npos;
  EXPECT_GT(within, 0) << "nobody gave way";
}

// A model that gets the number of one that is gone does not inherit how that one was asked, nor
// how late its answers were.
TEST_F(EngineTest, WhatWasLearntOfAModelGoesWithIt) {
  const std::string record = (folder / "record").string();
  {
    EngineOptions options;
    options.workers = 1, options.verify = false, options.record = record;
    // Each run is longer than its prediction, so that answers are late.
    std::atomic<bool> slow{true};
    options.check = [&](const Request&) {
      if (slow) std::this_thread::sleep_for(5ms);
      return ok_status();
    };
    auto engine = make_engine(std::move(options));
    for (const char* name : {"first", "second"}) {
      engine->add(
          {.name = name, .path = write(name, network(16, 5, 1)), .batch_dimension = "batch"});
      ASSERT_EQ(wait_for(*engine, name), ModelState::kReady) << engine->model(name)->reason;
      for (int k = 0; k < 30; ++k) {
        Answers one;
        Request asked = ask(known(name, 16, 1), {0});
        asked.deadline = 3ms;
        engine->submit(std::move(asked), one.next());
        one.all();
      }
      if (!slow) break;
      engine->remove(name);
      for (int k = 0; k < 3000 && engine->model(name); ++k) std::this_thread::sleep_for(1ms);
      ASSERT_FALSE(engine->model(name));
      slow = false;
    }
  }
  // Of the second one nothing is known when its first request comes.
  std::ifstream file(record);
  bool forgotten = false;
  int asked = 0;
  for (std::string line; std::getline(file, line);) {
    if (line == "forget 0") forgotten = true;
    if (line.starts_with("ask ")) {
      if (++asked == 31) {
        EXPECT_TRUE(forgotten);
      }
    }
  }
  EXPECT_EQ(asked, 60);
  std::ifstream recorded(record);
  const auto again = replay(recorded);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(again->difference, "");
}

TEST_F(EngineTest, DropsAtTheDeadlineAndRecordsWhatReplays) {
  const std::string record = (folder / "record").string();
  {
    EngineOptions options;
    options.workers = 2, options.verify = false, options.record = record;
    auto engine = make_engine(std::move(options));
    engine->add({.name = "net",
                 .path = write("net", network(96, 5, 1)),
                 .batch_dimension = "batch",
                 .max_batch = 2});
    ASSERT_EQ(wait_for(*engine, "net"), ModelState::kReady);
    const Known model = known("net", 96, 3);
    Answers answers;
    std::mt19937 random(1);
    for (int k = 0; k < 1000; ++k) {
      Request request = ask(model, {random() % 11});
      if (random() % 2) request.deadline = std::chrono::microseconds(50 + random() % 3000);
      const RequestKey key = engine->submit(std::move(request), answers.next());
      if (random() % 9 == 0) engine->cancel(key);
    }
    for (const Answer& answer : answers.all()) {
      const bool known_outcome =
          answer.outcome == Outcome::kOk || answer.outcome == Outcome::kLate ||
          answer.outcome == Outcome::kRejected || answer.outcome == Outcome::kCancelled;
      EXPECT_TRUE(known_outcome) << static_cast<int>(answer.outcome);
    }
    const ModelCounts counts = engine->model("net")->counts;
    EXPECT_EQ(counts.ok + counts.late + counts.rejected + counts.cancelled, 1000u);
  }
  std::ifstream file(record);
  const auto again = replay(file);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(again->difference, "");
  EXPECT_EQ(again->asked, 1000);
}

}  // namespace
}  // namespace obelisk::serve
