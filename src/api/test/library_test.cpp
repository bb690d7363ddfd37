// The library as its users see it: compile, save, open, run from many threads, and what it says
// when something is wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "allocations.h"
#include "obelisk/obelisk.h"

namespace {

namespace fs = std::filesystem;
using obelisk::Context;
using obelisk::Failure;
using obelisk::FailureKind;
using obelisk::Model;

/// A softmax of a product, so that products, reductions and several waves take part; 40 x 24
/// weights.
std::string network() {
  std::string weights;
  for (int k = 0; k < 40 * 24; ++k)
    weights += (k ? ", " : "") + std::to_string((k * 37 % 101 - 50) / 64.0);
  return R"(graph "net" {
  in %0 "x": f32[9,40]
  const %1 "w": f32[40,24] = [)" +
         weights + R"(]
  in %2 "b": f32[24]
  %3: f32[9,24] = MatMul(%0, %1)
  %4: f32[9,24] = Add(%3, %2)
  %5 "p": f32[9,24] = Softmax(%4) {axis = -1}
  out %5 "p"
  out %4 "sum"
})";
}

class Library : public testing::Test {
 protected:
  Library() : folder(fs::temp_directory_path() / ("obelisk-api-test-" + std::to_string(getpid()))) {
    fs::create_directories(folder);
    write("net.ir", network());
  }
  ~Library() override { fs::remove_all(folder); }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  Model model(bool verify = false) const {
    return Model::compile(path("net.ir"), {.virtual_sms = 7, .verify = verify});
  }
  fs::path folder;
};

void fill(Context& context, int seed) {
  for (const char* name : {"x", "b"}) {
    int k = seed;
    for (float& value : context.input<float>(name))
      value = static_cast<float>(++k * 29 % 83 - 41) / 32;
  }
}

std::vector<float> answers(Context& context) {
  context.run();
  const auto p = context.output<float>("p");
  return {p.begin(), p.end()};
}

template <typename Function>
void expect_failure(FailureKind kind, const std::string& word, Function function) {
  try {
    function();
    ADD_FAILURE() << "nothing was thrown; expected: " << word;
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.kind(), kind) << failure.what();
    EXPECT_NE(std::string(failure.what()).find(word), std::string::npos) << failure.what();
  }
}

TEST_F(Library, APrecisionIsKeptByTheFile) {
  const Model exact = model(true);
  const Model tf32 =
      Model::compile(path("net.ir"), {.precision = "tf32", .virtual_sms = 7, .verify = true});
  EXPECT_GT(tf32.verification()->tolerance, exact.verification()->tolerance);
  EXPECT_GT(tf32.verification()->max_rel, 4 * exact.verification()->max_rel);
  tf32.save(path("tf32.obk"));
  const auto of = [](const Model& model) {
    Context context(model);
    fill(context, 3);
    for (float& value : context.input<float>("x")) value *= 1.0009f;  // no number of ten bits
    return answers(context);
  };
  const std::vector<float> rounded = of(tf32);
  EXPECT_NE(rounded, of(exact));
  for (const bool portable : {false, true})
    EXPECT_EQ(rounded, of(Model::open(path("tf32.obk"), {.portable = portable}))) << portable;
  expect_failure(FailureKind::kUsage, "tf16",
                 [&] { Model::compile(path("net.ir"), {.precision = "tf16"}); });
}

TEST_F(Library, CompilesVerifiesAndRuns) {
  const Model net = model(true);
  EXPECT_EQ(net.name(), "net");
  ASSERT_EQ(net.inputs().size(), 2u);
  EXPECT_EQ(net.input("x").shape, (std::vector<int64_t>{9, 40}));
  EXPECT_EQ(net.output("p").bytes, 9u * 24 * 4);
  EXPECT_EQ(obelisk::element_name(net.output("p").element), "f32");
  ASSERT_TRUE(net.verification());
  EXPECT_LE(net.verification()->max_rel, net.verification()->tolerance);
  EXPECT_GT(net.verification()->rounding, 0);
  EXPECT_EQ(net.verification()->rows, "every row");
  EXPECT_TRUE(model(true).verification()->before);  // the cache keeps it
  EXPECT_TRUE(net.unverified().empty());
  EXPECT_TRUE(net.slow_ops().empty());
  Context context(net);
  fill(context, 1);
  const std::vector<float> p = answers(context);
  for (int row = 0; row < 9; ++row) {
    float sum = 0;
    for (int column = 0; column < 24; ++column) sum += p[row * 24 + column];
    EXPECT_NEAR(sum, 1, 1e-5) << "row " << row;
  }
}

TEST_F(Library, FilesSayWhetherTheirAnswersWereCompared) {
  model(true).save(path("compared.obk"));
  const Model compared = Model::open(path("compared.obk"));
  ASSERT_TRUE(compared.verification());
  EXPECT_EQ(compared.verification()->rows, "every row");
  const Model off = Model::compile(path("net.ir"), {.verify = false});
  EXPECT_FALSE(off.verification());
  EXPECT_EQ(off.unverified(), "verify = false");
  off.save(path("off.obk"));
  const Model opened = Model::open(path("off.obk"));
  EXPECT_FALSE(opened.verification());
  EXPECT_FALSE(opened.unverified().empty());
}

TEST_F(Library, SavedModelsAnswerTheSameBits) {
  const Model net = model();
  Context first(net);
  fill(first, 3);
  const std::vector<float> wanted = answers(first);
  net.save(path("net.obk"));
  for (const bool portable : {false, true}) {
    const Model again = Model::open(path("net.obk"), {.portable = portable});
    Context context(again, 2);
    fill(context, 3);
    EXPECT_EQ(wanted, answers(context)) << (portable ? "portable" : "with its machine code");
    again.save(path("again.obk"));
    EXPECT_EQ(fs::file_size(path("net.obk")), fs::file_size(path("again.obk")));
  }
}

TEST_F(Library, ThreadsShareAModel) {
  const Model net = model();
  constexpr int kThreads = 6, kRounds = 40;
  std::vector<std::vector<float>> wanted(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    Context alone(net, 1);
    fill(alone, t);
    wanted[t] = answers(alone);
  }
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Context context(net, 1 + t % 3);  // a Model is copied, a Context is this thread's own
      for (int round = 0; round < kRounds; ++round) {
        fill(context, t);
        wrong[t] += answers(context) != wanted[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
}

TEST_F(Library, ARunAllocatesNothingAfterTheFirst) {
  if (!can_count_allocations()) GTEST_SKIP() << "a sanitizer's malloc cannot be counted";
  const size_t before_any = allocation_count();
  const Model net = model();
  ASSERT_GT(allocation_count(), before_any) << "the counter does not count";
  for (const int threads : {1, 2, 5}) {
    Context context(net, threads);
    fill(context, 5);
    context.run();
    const size_t before = allocation_count();
    for (int round = 0; round < 50; ++round) context.run();
    EXPECT_EQ(allocation_count() - before, 0u) << threads << " threads";
  }
}

TEST_F(Library, UsesTheCallersMemory) {
  const Model net = model();
  Context own(net), bound(net);
  fill(own, 9);
  const std::vector<float> wanted = answers(own);
  const auto x = own.input<float>("x"), b = own.input<float>("b");
  const std::vector<float> mine(x.begin(), x.end());
  std::vector<float> p(9 * 24, -1);
  bound.bind_input("x", std::as_bytes(std::span(mine)));
  std::copy(b.begin(), b.end(), bound.input<float>("b").begin());
  bound.bind_output("p", std::as_writable_bytes(std::span(p)));
  bound.run();
  EXPECT_EQ(p, wanted);
  EXPECT_EQ(static_cast<const void*>(bound.output<float>("p").data()), p.data());
}

TEST_F(Library, WhatWasMovedFromSaysSo) {
  const Model made = model();
  Context context(made);
  Context other(std::move(context));
  // NOLINTBEGIN(bugprone-use-after-move): that is what is tested
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { context.run(); }, [&] { context.model(); }, [&] { context.input<float>("x"); },
           [&] { context.output_bytes("p"); }, [&] { context.bind_input("x", {}); },
           [&] { context.bind_output("p", {}); }, [&] { context.run_on(nullptr); },
           [&] { context.wait(); }}) {
    try {
      use();
      ADD_FAILURE() << "it did not fail";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), FailureKind::kUsage);
      EXPECT_NE(failure.message().find("moved from"), std::string::npos);
    }
  }
  other.run();
  context = std::move(other);
  context.run();
  Model first = made;
  const Model second(std::move(first));
  EXPECT_EQ(first.name(), second.name());
  EXPECT_EQ(first.inputs().size(), 2u);
  // NOLINTEND(bugprone-use-after-move)
}

TEST_F(Library, MemoryIsBoundAndUnbound) {
  const Model made = model();
  Context context(made);
  std::vector<float> x(9 * 40, 1), p(9 * 24);
  context.bind_input("x", std::as_bytes(std::span(x)));
  context.bind_output("p", std::as_writable_bytes(std::span(p)));
  context.run();
  EXPECT_EQ(context.output<float>("p").data(), p.data());
  context.unbind_input("x");
  context.unbind_output("p");
  EXPECT_EQ(context.input<float>("x")[0], 0.0f);
  p.assign(p.size(), -1);
  context.run();
  EXPECT_EQ(p[0], -1) << "an output that is bound no more was written";
  EXPECT_NEAR(context.output<float>("p")[0], 1.0f / 24, 1e-6);
}

TEST_F(Library, BytesAreAFile) {
  const Model made = model();
  const std::vector<std::byte> bytes = made.save();
  made.save(path("net.obk"));
  EXPECT_EQ(bytes.size(), fs::file_size(path("net.obk")));
  const Model again = Model::open(bytes), portable = Model::open(bytes, {.portable = true});
  for (const Model& each : {again, portable}) {
    Context context(each);
    fill(context, 3);
    context.run();
    Context other(made);
    fill(other, 3);
    other.run();
    EXPECT_EQ(context.output<float>("p")[5], other.output<float>("p")[5]);
  }
  EXPECT_THROW(Model::compile(std::span(bytes).first(10)), Failure);
}

/// A field of a protobuf message: bytes, or a small number.
std::string field(int number, const std::string& bytes) {
  EXPECT_LT(bytes.size(), 128u);
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string field(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}

/// An ONNX model: active = Relu(x), found = NonZero(active), of f32[2,3].
std::string finder() {
  const auto node = [](const std::string& op, const std::string& from, const std::string& to) {
    return field(1, from) + field(2, to) + field(3, "the " + op) + field(4, op);
  };
  const auto port = [](const std::string& name, int element, std::vector<int> extents) {
    std::string shape;
    for (int each : extents) shape += field(1, each < 0 ? field(2, "n") : field(1, each));
    return field(1, name) + field(2, field(1, field(1, element) + field(2, shape)));
  };
  const std::string graph[] = {field(1, node("Relu", "x", "active")),
                               field(1, node("NonZero", "active", "found")),
                               field(2, "finder"),
                               field(11, port("x", 1, {2, 3})),
                               field(12, port("found", 7, {2, -1})),
                               field(12, port("active", 1, {2, 3}))};
  std::string all;
  for (const std::string& each : graph) all += each;
  EXPECT_LT(all.size(), 1u << 14);
  const std::string length = {static_cast<char>((all.size() & 127) | 128),
                              static_cast<char>(all.size() >> 7)};
  return field(1, 8) + field(8, field(2, 17)) + static_cast<char>(7 << 3 | 2) + length + all;
}

TEST_F(Library, ATailOfDataRunsOnTheHost) {
  const std::string bytes = finder();
  const auto file = std::as_bytes(std::span(bytes.data(), bytes.size()));
  const Model net = Model::compile(file, {.virtual_sms = 2});
  ASSERT_EQ(net.outputs().size(), 2u);
  EXPECT_EQ(net.outputs()[0].name, "found");
  EXPECT_EQ(net.output("found").shape, (std::vector<int64_t>{2, -1}));
  EXPECT_EQ(net.output("found").bytes, 0u);
  EXPECT_EQ(net.output("active").shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(net.slow_ops().size(), 1u);
  EXPECT_NE(net.slow_ops()[0].find("the NonZero"), std::string::npos) << net.slow_ops()[0];
  EXPECT_TRUE(net.verification());  // of the program

  Context context(net);
  expect_failure(FailureKind::kUsage, "depends on data", [&] { context.output_shape("found"); });
  EXPECT_TRUE(context.output<int64_t>("found").empty());
  std::vector<float> active(6);
  context.bind_output("active", std::as_writable_bytes(std::span(active)));
  for (const std::vector<float>& x :
       {std::vector<float>{1, -1, 0, 0, 2, 3}, {0, 0, 0, 0, 0, 0}, {5, 5, 5, 5, 5, 5}}) {
    std::ranges::copy(x, context.input<float>("x").begin());
    context.run();
    std::vector<int64_t> rows, columns;
    for (int k = 0; k < 6; ++k)
      if (x[k] > 0) rows.push_back(k / 3), columns.push_back(k % 3);
    EXPECT_EQ(context.output_shape("found"),
              (std::vector<int64_t>{2, static_cast<int64_t>(rows.size())}));
    rows.insert(rows.end(), columns.begin(), columns.end());
    const auto found = context.output<int64_t>("found");
    EXPECT_EQ(std::vector<int64_t>(found.begin(), found.end()), rows);
    EXPECT_EQ(active[5], x[5]);  // what the caller bound is written, and read by the host
  }
  expect_failure(FailureKind::kUsage, "depends on data",
                 [&] { context.bind_output("found", std::as_writable_bytes(std::span(active))); });
  expect_failure(FailureKind::kUnsupported, "the NonZero", [&] { context.run_on(nullptr); });
  expect_failure(FailureKind::kUnsupported, "the NonZero", [&] { net.save(path("m.obk")); });
  expect_failure(FailureKind::kUnsupported, "the NonZero",
                 [&] { Model::compile(file, {.host_tail = false}); });
}

TEST_F(Library, SaysWhatIsWrong) {
  const Model net = model();
  Context context(net);
  expect_failure(FailureKind::kUsage, "no input 'y'", [&] { context.input<float>("y"); });
  expect_failure(FailureKind::kUsage, "'x' is f32, not f64", [&] { context.input<double>("x"); });
  expect_failure(FailureKind::kUsage, "no output 'x'", [&] { context.output<float>("x"); });
  std::vector<float> few(3);
  expect_failure(FailureKind::kUsage, "takes 1440 bytes, but 12",
                 [&] { context.bind_input("x", std::as_bytes(std::span(few))); });
  std::vector<char> bytes(1441);
  const auto odd = std::as_bytes(std::span(bytes))
                       .subspan(reinterpret_cast<uintptr_t>(bytes.data()) % 2 ? 0 : 1, 1440);
  expect_failure(FailureKind::kUsage, "not aligned", [&] { context.bind_input("x", odd); });
  expect_failure(FailureKind::kUsage, "nowhere.onnx",
                 [&] { Model::compile(path("nowhere.onnx")); });
  expect_failure(FailureKind::kBadModel, "damaged", [&] {
    write("bad.obk", "OBK\x1a and then nothing that was ever written");
    Model::open(path("bad.obk"));
  });
  expect_failure(FailureKind::kUsage, "no/such/folder",
                 [&] { net.save(path("no/such/folder/m.obk")); });
  expect_failure(FailureKind::kInterrupted, "interrupted",
                 [&] { Model::compile(path("net.ir"), {.interrupted = [] { return true; }}); });
  expect_failure(FailureKind::kUsage, "cannot be run", [&] {
    Model::compile(path("net.ir"), {.compiler = "no-such-compiler", .cache = "off"});
  });
  write("bad.onnx", "no model at all");
  expect_failure(FailureKind::kBadModel, "bad.onnx", [&] { Model::compile(path("bad.onnx")); });
}

}  // namespace
