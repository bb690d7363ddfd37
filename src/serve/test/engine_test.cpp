// The engine with programs of the CPU: answers of any mix equal those of a model alone, bit for bit; who fails, fails alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "frontends/onnx/test/make_model.h"
#include "serve/serve.h"

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
  return make::model(make::graph(
      {make::node("MatMul", {"x", "a"}, {"h"}), make::node("Relu", {"h"}, {"r"}), make::node("MatMul", {"r", "b"}, {"l"}),
       make::node("Softmax", {"l"}, {"p"}, {make::attr("axis", -1)})},
      {make::value("x", make::kFloat, {"batch", std::to_string(width)})}, {make::value("p", make::kFloat, {"batch", std::to_string(classes)})},
      {make::floats("a", {width, 48}, weights(width * 48)), make::floats("b", {48, classes}, weights(48 * classes))}));
}

/// Rows of a table by index: an index that is out of range is an error of the run.
std::string table(int rows) {
  std::vector<float> values;
  for (int k = 0; k < rows * 4; ++k) values.push_back(static_cast<float>(k));
  return make::model(make::graph({make::node("Gather", {"t", "i"}, {"y"})}, {make::value("i", make::kI64, {"batch", "2"})},
                                 {make::value("y", make::kFloat, {"batch", "2", "4"})}, {make::floats("t", {rows, 4}, values)}));
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
  EngineTest() : folder(fs::temp_directory_path() / ("obelisk-serve-test-" + std::to_string(getpid()))) { fs::create_directories(folder); }
  ~EngineTest() override { fs::remove_all(folder); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return (folder / name).string();
  }
  std::unique_ptr<Engine> engine(const std::string& policy = "vliw") const {
    EngineOptions options;
    options.workers = 3, options.policy = policy_named(policy).value();
    options.verify_seconds = 1;
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
  fs::path folder;
};

TEST_F(EngineTest, AnswersAndSaysWhatHappened) {
  auto engine = this->engine();
  engine->add({.name = "net", .path = write("net.onnx", network(16, 5, 1)), .batch_dimension = "batch", .max_batch = 4});
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

}  // namespace
}  // namespace obelisk::serve
