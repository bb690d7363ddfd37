// Tensors of other libraries as inputs and outputs: on the CPU, what is refused, and in a GPU's
// memory on a stream of the caller's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "obelisk/dlpack.h"
#include "obelisk/obelisk.h"

namespace {

namespace fs = std::filesystem;
using obelisk::bind_input;
using obelisk::bind_output;
using obelisk::Context;
using obelisk::Failure;
using obelisk::FailureKind;
using obelisk::Model;

constexpr int64_t kRows = 9, kColumns = 24;

class Tensors : public testing::Test {
 protected:
  Tensors()
      : folder_(fs::temp_directory_path() / ("obelisk-dlpack-test-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    std::ofstream(path("net.ir")) << R"(graph "net" {
  in %0 "x": f32[9,24]
  in %1 "keep": b1[9,1]
  const %2: f32[] = 0
  %3: f32[9,24] = Where(%1, %0, %2)
  %4 "p": f32[9,24] = Softmax(%3) {axis = -1}
  out %4 "p"
})";
  }
  ~Tensors() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  Model model(const std::string& target) const {
    return Model::compile(
        path("net.ir"),
        {.target = target, .granularity = "mono", .watchdog = true, .verify = false});
  }

 private:
  fs::path folder_;
};

/// A DLTensor and what it points to.
struct Tensor {
  std::vector<int64_t> shape, strides;
  DLTensor t = {};
  Tensor(void* data, std::vector<int64_t> extents, DLDataType type, DLDeviceType device = kDLCPU,
         int id = 0)
      : shape(std::move(extents)) {
    t.data = data, t.device = {device, id}, t.ndim = static_cast<int>(shape.size()), t.dtype = type,
    t.shape = shape.data();
  }
  Tensor& strided(std::vector<int64_t> by) {
    strides = std::move(by), t.strides = strides.data();
    return *this;
  }
};
constexpr DLDataType kF32 = {kDLFloat, 32, 1}, kU8 = {kDLUInt, 8, 1}, kBool = {6, 8, 1};

struct Numbers {
  std::vector<float> x = std::vector<float>(kRows * kColumns);
  std::vector<uint8_t> keep = std::vector<uint8_t>(kRows);
  explicit Numbers(int seed) {
    for (float& value : x) value = static_cast<float>(++seed * 29 % 83 - 41) / 32;
    for (uint8_t& value : keep) value = ++seed % 3 != 0;
  }
};

std::vector<float> answers(const Model& model, const Numbers& numbers) {
  Context context(model);
  std::copy(numbers.x.begin(), numbers.x.end(), context.input<float>("x").begin());
  memcpy(context.input_bytes("keep").data(), numbers.keep.data(), numbers.keep.size());
  context.run();
  const auto p = context.output<float>("p");
  return {p.begin(), p.end()};
}

void expect_refused(const std::string& why, const std::function<void()>& bind) {
  try {
    bind();
    ADD_FAILURE() << "bound; expected: " << why;
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.kind(), FailureKind::kUsage) << failure.what();
    EXPECT_NE(std::string(failure.what()).find(why), std::string::npos) << failure.what();
  }
}

TEST_F(Tensors, AreReadAndWrittenInPlace) {
  const Model net = model("cpu");
  EXPECT_EQ(net.target(), "cpu");
  EXPECT_EQ(net.gpu(), -1);
  Numbers numbers(1);
  std::vector<float> wanted = answers(net, numbers), p(4 + kRows * kColumns, -1);
  Context context(net);
  Tensor x(numbers.x.data(), {kRows, kColumns}, kF32), keep(numbers.keep.data(), {kRows, 1}, kBool),
      out(p.data(), {kRows, kColumns}, kF32);
  out.t.byte_offset = 16;
  bind_input(context, "x", x.strided({kColumns, 1}).t);
  bind_input(context, "keep",
             keep.strided({1, 77}).t);  // nothing is one step along a dimension of one
  bind_output(context, "p", out.t);
  context.run();
  EXPECT_EQ(std::vector<float>(p.begin() + 4, p.end()), wanted);
  EXPECT_EQ(p[3], -1);
  const Numbers other(5);  // into the same memory
  std::copy(other.x.begin(), other.x.end(), numbers.x.begin());
  std::copy(other.keep.begin(), other.keep.end(), numbers.keep.begin());
  wanted = answers(net, other);
  context.run();
  EXPECT_EQ(std::vector<float>(p.begin() + 4, p.end()), wanted);
}

TEST_F(Tensors, OfAnotherKindAreRefused) {
  const Model net = model("cpu");
  Context context(net);
  Numbers numbers(1);
  const auto refused = [&](const std::string& why, const char* port, const Tensor& tensor) {
    expect_refused(why, [&] { bind_input(context, port, tensor.t); });
  };
  refused("code 2 with 16 bits", "x",
          Tensor(numbers.x.data(), {kRows, kColumns}, {kDLFloat, 16, 1}));
  refused("4 lanes", "x", Tensor(numbers.x.data(), {kRows, kColumns}, {kDLFloat, 32, 4}));
  refused("the shape [9,24], the tensor has [24,9]", "x",
          Tensor(numbers.x.data(), {kColumns, kRows}, kF32));
  refused("the tensor has [216]", "x", Tensor(numbers.x.data(), {kRows * kColumns}, kF32));
  refused("strides [1,9]", "x",
          Tensor(numbers.x.data(), {kRows, kColumns}, kF32).strided({1, kRows}));
  refused("kind 4", "x", Tensor(numbers.x.data(), {kRows, kColumns}, kF32, kDLOpenCL));
  refused("the model runs on the CPU", "x",
          Tensor(numbers.x.data(), {kRows, kColumns}, kF32, kDLCUDA));
  refused("no memory", "x", Tensor(nullptr, {kRows, kColumns}, kF32));
  refused("no input 'y'", "y", Tensor(numbers.x.data(), {kRows, kColumns}, kF32));
  refused("it wants b1", "keep", Tensor(numbers.keep.data(), {kRows, 1}, {kDLInt, 8, 1}));
  EXPECT_NO_THROW(bind_input(context, "keep", Tensor(numbers.keep.data(), {kRows, 1}, kU8).t));
  try {
    context.run_on(nullptr);
    ADD_FAILURE() << "a CPU has no streams";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.kind(), FailureKind::kUnsupported) << failure.what();
  }
}

TEST_F(Tensors, TargetsAndGranularitiesAreNamed) {
  for (const char* none : {"cuda:", "cuda:x", "cudas", "gpu", "sm_1"})
    expect_refused("", [&] { model(none); });
  expect_refused("no granularity 'kernel'", [&] {
    Model::compile(path("net.ir"), {.granularity = "kernel", .verify = false});
  });
}

/// The driver's functions that a caller with memory of its own on a GPU calls.
struct Driver {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  template <typename... Args>
  int call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
    return function ? function(args...) : -1;
  }
  bool enter() const {
    void* context = nullptr;
    return library && call("cuInit", 0u) == 0 &&
           call("cuDevicePrimaryCtxRetain", &context, 0) == 0 &&
           call("cuCtxSetCurrent", context) == 0;
  }
  void* memory(size_t bytes) const {
    unsigned long long at = 0;
    EXPECT_EQ(call("cuMemAlloc_v2", &at, bytes), 0);
    return reinterpret_cast<void*>(at);
  }
  void copy_in(void* to, const void* from, size_t bytes, void* stream) const {
    EXPECT_EQ(
        call("cuMemcpyHtoDAsync_v2", reinterpret_cast<unsigned long long>(to), from, bytes, stream),
        0);
  }
  void copy_out(void* to, const void* from, size_t bytes, void* stream) const {
    EXPECT_EQ(
        call("cuMemcpyDtoHAsync_v2", to, reinterpret_cast<unsigned long long>(from), bytes, stream),
        0);
    EXPECT_EQ(call("cuStreamSynchronize", stream), 0);
  }
};

TEST_F(Tensors, OfAGpuAreUsedInPlaceOnTheCallersStream) {
  const Driver driver;
  if (!driver.enter()) {
    expect_refused("", [&] {
      try {
        model("cuda");
      } catch (const Failure& failure) {
        EXPECT_EQ(failure.kind(), FailureKind::kDevice) << failure.what();
        throw Failure(FailureKind::kUsage, "", "", "", "");
      }
    });
    GTEST_SKIP() << "no GPU is here";
  }
  const Model net = model("cuda:0");
  EXPECT_EQ(net.gpu(), 0);
  EXPECT_EQ(net.target().substr(0, 3), "sm_");
  void* stream = nullptr;
  ASSERT_EQ(driver.call("cuStreamCreate", &stream, 1u), 0);
  constexpr size_t kBytes = kRows * kColumns * 4;
  void *x_at = driver.memory(kBytes), *keep_at = driver.memory(kRows),
       *p_at = driver.memory(kBytes + 16);
  Tensor x(x_at, {kRows, kColumns}, kF32, kDLCUDA), keep(keep_at, {kRows, 1}, kU8, kDLCUDA),
      out(p_at, {kRows, kColumns}, kF32, kDLCUDA);
  out.t.byte_offset = 16;
  Context context(net);
  bind_input(context, "x", x.t), bind_input(context, "keep", keep.t);
  expect_refused("output 'p' is bound to no memory", [&] { context.run_on(stream); });
  bind_output(context, "p", out.t);
  for (int seed = 1; seed < 6; ++seed) {
    const Numbers numbers(seed);
    const std::vector<float> wanted = answers(net, numbers);  // by the host's memory
    driver.copy_in(x_at, numbers.x.data(), kBytes, stream),
        driver.copy_in(keep_at, numbers.keep.data(), kRows, stream);
    context.run_on(stream);
    std::vector<float> p(kRows * kColumns, -1);
    driver.copy_out(p.data(), static_cast<char*>(p_at) + 16, kBytes, stream);
    EXPECT_EQ(p, wanted) << seed;
    context.run();  // and without a stream, in the same memory
    driver.copy_out(p.data(), static_cast<char*>(p_at) + 16, kBytes, stream);
    EXPECT_EQ(p, wanted) << seed;
  }
  expect_refused("GPU 1, the model runs on GPU 0", [&] {
    bind_input(context, "x", Tensor(x_at, {kRows, kColumns}, kF32, kDLCUDA, 1).t);
  });
  Numbers numbers(1);
  bind_input(context, "x", Tensor(numbers.x.data(), {kRows, kColumns}, kF32).t);
  expect_refused("'x' is not in the GPU's memory", [&] { context.run_on(stream); });
  out.t.byte_offset = 4;
  bind_input(context, "x", x.t), bind_output(context, "p", out.t);
  expect_refused("no multiple of 16", [&] { context.run_on(stream); });
  try {
    Model::compile(path("net.ir"),
                   {.target = "cuda", .granularity = "mono", .memory_limit = 512, .verify = false});
    ADD_FAILURE() << "the limit was not kept";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.kind(), FailureKind::kMemory) << failure.what();
  }
  net.save(path("net.obk"));
  for (const bool portable : {false, true}) {
    const Model again = Model::open(path("net.obk"), {.portable = portable});
    EXPECT_EQ(again.gpu(), 0);
    EXPECT_EQ(answers(again, numbers), answers(net, numbers)) << portable;
  }
}

}  // namespace
