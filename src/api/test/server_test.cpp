// Many models in one process, as a user sees them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "obelisk/obelisk.h"

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using obelisk::Outcome;

std::string network(int width, int columns, int seed) {
  std::string weights;
  for (int k = 0; k < width * columns; ++k)
    weights += (k ? ", " : "") + std::to_string(((k + seed) * 37 % 101 - 50) / 64.0);
  const std::string w = std::to_string(width), c = std::to_string(columns);
  return "graph \"net\" {\n  in %0 \"x\": f32[3," + w + "]\n  const %1 \"w\": f32[" + w + "," + c +
         "] = [" + weights + "]\n  %2: f32[3," + c + "] = MatMul(%0, %1)\n  %3 \"p\": f32[3," + c +
         "] = Softmax(%2) {axis = -1}\n  out %3 \"p\"\n}\n";
}

class ServerTest : public testing::Test {
 protected:
  ServerTest()
      : folder(fs::temp_directory_path() / ("obelisk-server-test-" + std::to_string(getpid()))) {
    fs::create_directories(folder);
  }
  ~ServerTest() override { fs::remove_all(folder); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  }
  fs::path folder;
};

std::vector<float> values(int count, int seed) {
  std::vector<float> all;
  for (int k = 0; k < count; ++k)
    all.push_back(static_cast<float>((k * 31 + seed * 17) % 97 - 48) / 32);
  return all;
}

TEST_F(ServerTest, AnswersOfAMixAreThoseOfEachModelAlone) {
  struct One {
    std::string name, path;
    int width, columns;
  };
  std::vector<One> models;
  for (int m = 0; m < 3; ++m) models.push_back({"m" + std::to_string(m), "", 16 + 8 * m, 5 + m});
  for (One& model : models)
    model.path = write(model.name + ".ir", network(model.width, model.columns, model.width));
  std::vector<std::vector<std::vector<float>>> alone;
  for (const One& model : models) {
    obelisk::Context context(obelisk::Model::compile(model.path, {.threads = 2, .verify = false}),
                             1);
    alone.emplace_back();
    for (int seed = 0; seed < 8; ++seed) {
      std::ranges::copy(values(3 * model.width, seed), context.input<float>("x").begin());
      context.run();
      const auto p = context.output<float>("p");
      alone.back().emplace_back(p.begin(), p.end());
    }
  }
  obelisk::Server server({.workers = 2});
  for (const One& model : models) server.add(model.name, model.path);
  for (const One& model : models) server.wait(model.name);
  for (const obelisk::ServedModel& model : server.models()) {
    ASSERT_EQ(model.inputs.size(), 1u);
    EXPECT_EQ(model.inputs[0].bytes, static_cast<size_t>(model.inputs[0].count) * sizeof(float));
    EXPECT_EQ(model.inputs[0].count % 3, 0);
    EXPECT_GT(model.inputs[0].count, 0);
  }
  std::vector<std::thread> callers;
  std::atomic<int> same{0}, called{0};
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&, caller] {
      std::vector<std::pair<obelisk::Reply, const std::vector<float>*>> replies;
      for (int k = 0; k < 200; ++k) {
        const size_t m = static_cast<size_t>(k * 7 + caller) % models.size();
        const int seed = (k + caller) % 8;
        replies.emplace_back(server.submit(models[m].name,
                                           {obelisk::input("x", values(3 * models[m].width, seed),
                                                           {3, models[m].width})},
                                           {.client = "c" + std::to_string(caller), .trace = true},
                                           [&](obelisk::Response) { ++called; }),
                             &alone[m][static_cast<size_t>(seed)]);
      }
      for (const auto& [reply, wanted] : replies) {
        const obelisk::Response response = reply.get();
        ASSERT_TRUE(response.ok()) << response.error();
        const auto p = response.output<float>("p");
        ASSERT_EQ(p.size(), wanted->size());
        same += std::memcmp(p.data(), wanted->data(), p.size_bytes()) == 0;
        ASSERT_TRUE(response.trace());
        EXPECT_GE(response.trace()->answered, response.trace()->started);
        EXPECT_GE(response.trace()->lane, 0);
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(same, 600);
  uint64_t answered = 0;
  for (const obelisk::ServedModel& model : server.models()) answered += model.answered;
  EXPECT_EQ(answered, 600u);
  server.drain();
  for (int k = 0; k < 1000 && called < 600; ++k) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(called, 600);
}

TEST_F(ServerTest, SaysWhatIsWrong) {
  EXPECT_THROW(obelisk::Server({.policy = "best"}), obelisk::Failure);
  obelisk::Server server({.workers = 1});
  server.add("net", write("net.ir", network(16, 5, 1)), {.queue_limit = 2});
  server.add("broken", write("broken.ir", "graph {"));
  server.wait("net");
  try {
    server.wait("broken");
    FAIL() << "it was loaded";
  } catch (const obelisk::Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("'broken' could not be loaded"), std::string::npos)
        << failure.what();
  }
  EXPECT_THROW(server.wait("nobody"), obelisk::Failure);
  const auto x = values(48, 1);
  const auto ask = [&](const std::string& model, const obelisk::SubmitOptions& options = {}) {
    return server.submit(model, {obelisk::input("x", x, {3, 16})}, options).get();
  };
  EXPECT_EQ(ask("nobody").outcome(), Outcome::kNotFound);
  EXPECT_EQ(ask("broken").outcome(), Outcome::kNotReady);
  EXPECT_EQ(ask("net", {.deadline = 1ns}).outcome(), Outcome::kRejected);
  EXPECT_EQ(server.submit("net", {obelisk::input("x", x, {1, 48})}).get().outcome(),
            Outcome::kBadRequest);
  const obelisk::Response good = ask("net");
  ASSERT_TRUE(good.ok()) << good.error();
  EXPECT_FALSE(good.trace());
  EXPECT_THROW(good.output<float>("q"), obelisk::Failure);
  EXPECT_THROW(good.output<int64_t>("p"), obelisk::Failure);
  EXPECT_THROW(ask("nobody").output<float>("p"), obelisk::Failure);
  server.remove("net");
  for (int k = 0; k < 2000 && server.models().size() > 1; ++k) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(ask("net").outcome(), Outcome::kNotFound);
}

/// The server reads copies: nobody who cuts a file ends the process.
TEST_F(ServerTest, FilesThatAreCut) {
  const std::string compiled = (folder / "net.obk").string();
  obelisk::Model::compile(write("net.ir", network(192, 96, 1)), {.threads = 1, .verify = false})
      .save(compiled);
  std::string whole;
  {
    std::ifstream file(compiled, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(file), {});
  }
  obelisk::Server server({.workers = 1});
  server.add("net", compiled);
  server.wait("net");
  const auto x = values(3 * 192, 1);
  const auto ask = [&] {
    const auto response = server.submit("net", {obelisk::input("x", x, {3, 192})}).get();
    if (!response.ok()) throw std::runtime_error(response.error());
    const auto p = response.output<float>("p");
    return std::vector<float>(p.begin(), p.end());
  };
  const auto before = ask();
  fs::resize_file(compiled, 512);
  EXPECT_EQ(ask(), before) << "it serves from a copy";
  server.add("short", compiled);
  EXPECT_THROW(server.wait("short"), obelisk::Failure);
  for (int turn = 0; turn < 20; ++turn) {
    const std::string name = "t" + std::to_string(turn), path = write(name + ".obk", whole);
    server.add(name, path);
    std::this_thread::sleep_for(std::chrono::microseconds(50 * turn));
    fs::resize_file(path, whole.size() / 3);
    try {
      server.wait(name);
    } catch (const obelisk::Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find("could not be loaded"), std::string::npos);
    }
  }
  EXPECT_EQ(ask(), before);
}

TEST_F(ServerTest, EndsWithAnAnswerForEachRequest) {
  std::vector<obelisk::Reply> replies;
  {
    obelisk::Server server({.workers = 1, .policy = "fifo"});
    server.add("net", write("net.ir", network(32, 64, 1)), {.queue_limit = 5000});
    server.wait("net");
    const auto x = values(96, 1);
    for (int k = 0; k < 1000; ++k)
      replies.push_back(server.submit("net", {obelisk::input("x", x, {3, 32})}));
    for (int k = 0; k < 1000; k += 3) replies[static_cast<size_t>(k)].cancel();
  }
  for (const obelisk::Reply& reply : replies) {
    ASSERT_TRUE(reply.ready());
    const Outcome outcome = reply.get().outcome();
    EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kCancelled);
  }
  replies[0].cancel();  // the server is gone
}

}  // namespace
