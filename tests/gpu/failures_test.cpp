// What a context says when the device fails: waits that never end, an address where no memory is;
// and that it stays an error, of this context, of others and of new ones, until all are destroyed
// and the process ends by itself. A GPU's context does not recover, so each case has a process of
// its own (base/test/apart.h). Skipped where no GPU is.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <regex>

#include "base/test/apart.h"
#include "graph/test_decoder.h"
#include "passes/passes.h"
#include "programs.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/nvrtc.h"

namespace obelisk::runtime::cuda {
namespace {

// Clocks that a wait may take, a quarter of a second: other processes may have the GPU meanwhile.
#define APART(name) APART_OF(name, "500000000")
#define APART_OF(name, clocks)                                                                  \
  TEST(Failures, name) {                                                                        \
    if (auto gpu = open_gpu(0); !gpu.ok()) GTEST_SKIP() << gpu.error().text();                  \
    if (auto found = find_nvrtc(); !found.ok()) GTEST_SKIP() << found.error().text();           \
    if (getenv("OBELISK_GPU_FEW")) GTEST_SKIP() << "a tool reports every trap";                 \
    EXPECT_TRUE(passes_apart("Failures.DISABLED_" #name, {"OBELISK_WATCHDOG_CLOCKS=" clocks})); \
  }                                                                                             \
  TEST(Failures, DISABLED_##name)

std::vector<Tensor> inputs_of(const Program& program) {
  std::mt19937 random(7);
  std::vector<Tensor> inputs;
  for (const Port& port : program.inputs) inputs.push_back(random_tensor(port.type, random));
  return inputs;
}

graph::Graph chain() {
  auto parsed = graph::parse(kChain);
  CHECK(parsed.ok(), "{}", parsed.error().text());
  return std::move(*parsed);
}

/// Ports in the GPU's memory, for runs on a stream.
struct OnDevice {
  std::vector<Memory> memory;
  std::vector<const void*> in;
  std::vector<void*> out;
  explicit OnDevice(const Program& program)
      : memory(program.inputs.size() + program.outputs.size()) {
    size_t at = 0;
    for (const Tensor& tensor : inputs_of(program)) {
      Status filled = memory[at].fill(tensor.data(), tensor.bytes(), "an input");
      EXPECT_TRUE(filled.ok()) << filled.error().text();
      in.push_back(reinterpret_cast<const void*>(memory[at++].at()));
    }
    for (const Port& port : program.outputs) {
      Status reserved = memory[at].reserve(port.type.bytes(), "an output");
      EXPECT_TRUE(reserved.ok()) << reserved.error().text();
      out.push_back(reinterpret_cast<void*>(memory[at++].at()));
    }
  }
};

void expect_device_error(const Status& status, const char* what) {
  ASSERT_FALSE(status.ok()) << what;
  EXPECT_EQ(status.error().code, Code::kDevice) << what << ": " << status.error().text();
  EXPECT_NE(status.error().message.find("CUDA_ERROR_"), std::string::npos)
      << what << ": " << status.error().text();
}
template <typename T>
Status status_of(const Result<T>& result) {
  return result.ok() ? ok_status() : Status(result.error());
}

/// A program whose run fails, a context of it, and others that were there before: one that has run
/// on the host's arrays, so that it has staging, one that never ran.
struct Broken {
  std::shared_ptr<Program> program;
  std::shared_ptr<const Executable> executable, sound;
  std::unique_ptr<Context> context, ran, fresh;
  std::vector<Tensor> inputs;
  std::unique_ptr<OnDevice> ports;

  /// `damage`: to the tables of a program that is right.
  Broken(const graph::Graph& graph, const std::string& granularity, bool tiles,
         const std::function<void(Program&)>& damage) {
    EXPECT_TRUE(first_gpu().ok());
    const std::shared_ptr<Program> right = program_of(graph, granularity, tiles);
    program = std::make_shared<Program>(*right);
    damage(*program);
    const auto load = [](const std::shared_ptr<Program>& of) {
      auto loaded = load_cuda(of, {.cache_dir = "off", .watchdog = true});
      CHECK(loaded.ok(), "{}", loaded.error().text());
      return *loaded;
    };
    const auto make = [](const Executable& of) {
      auto made = of.context();
      CHECK(made.ok(), "{}", made.error().text());
      return std::move(*made);
    };
    executable = load(program), sound = load(right);
    context = make(*executable), ran = make(*sound), fresh = make(*sound);
    inputs = inputs_of(*program);
    ports = std::make_unique<OnDevice>(*program);
    auto first = run(*ran, *right, inputs);
    EXPECT_TRUE(first.ok()) << first.error().text();
  }

  /// After a run has failed with `error`.
  void expect_errors_that_stay(const Error& error) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(status_of(run(*context, *program, inputs)).error().text(), error.text());
      EXPECT_EQ(context->run_on(ports->in, ports->out, nullptr).error().text(), error.text());
      EXPECT_EQ(status_of(context->device_us(2)).error().text(), error.text());
      EXPECT_EQ(status_of(context->task_times()).error().text(), error.text());
    }
    expect_device_error(status_of(run(*ran, *program, inputs)), "another context that has run");
    expect_device_error(ran->run(ports->in, ports->out), "the same again, the GPU's memory");
    expect_device_error(fresh->run(ports->in, ports->out),
                        "a context that never ran, the GPU's memory");
    auto made = executable->context();
    expect_device_error(status_of(made), "a new context");
    auto loaded = load_cuda(program, {.cache_dir = "off", .watchdog = true});
    if (loaded.ok())
      expect_device_error(status_of((*loaded)->context()),
                          "a context of a program that was loaded anew");
    else
      expect_device_error(status_of(loaded), "a program that was loaded anew");
    fmt::print("{{\"test\": \"a device error stays\", \"error\": \"{}\"}}\n", error.message);
    executable.reset(), context.reset(), sound.reset(), fresh.reset(), ran.reset(), ports.reset();
  }
};

/// A task of the last wave, as if there were one more: its SM comes to a barrier that no other ever
/// reaches.
struct Late {
  int sm = 0;
  size_t task = 0;
  std::string label;
  void operator()(Program& program) {
    size_t before = 0;
    for (auto& list : program.lists) {
      if (!list.empty() && static_cast<int>(list.back().wave) == program.waves - 1) {
        ++list.back().wave;
        task = before + list.size() - 1, label = program.works[list.back().work].label;
        return;
      }
      before += list.size(), ++sm;
    }
    CHECK(false, "no list has a task of wave {}", program.waves - 1);
  }
};

APART(AWaitForABarrierIsNamed) {
  Late late;
  Broken broken(chain(), "mono", false, std::ref(late));
  const Program& program = *broken.program;
  ASSERT_GE(program.waves, 2);
  const Status status = status_of(run(*broken.context, program, broken.inputs));
  expect_device_error(status, "the run");
  const std::string& message = status.error().message;
  const std::string begin = fmt::format("SM {} waits for the grid barrier at 0x", late.sm);
  EXPECT_EQ(message.substr(0, begin.size()), begin) << message;
  const size_t ctas = program.lists.size(), waves = static_cast<size_t>(program.waves);
  const std::string wanted =
      fmt::format(" before task {} (wave {}, '{}'): it wants {}, has {} (", late.task, waves,
                  late.label, waves * ctas, (waves - 1) * ctas + 1);
  EXPECT_NE(message.find(wanted), std::string::npos) << message << "\nwanted: " << wanted;
  EXPECT_NE(status.error().hint.find("does not recover"), std::string::npos)
      << status.error().text();
  broken.expect_errors_that_stay(status.error());
}

// A task of milliseconds and a watchdog of microseconds: what others wait for is named, too.
// The GPU goes on for a while after the trap: the task takes longer than that.
APART_OF(ATaskThatOthersWaitForIsNamed, "20000") {
  constexpr const char* kLong = R"(graph "g" {
  in %0 "x": f32[1,1048576]
  in %1 "w": f32[1048576,16]
  in %2 "v": f32[16,16]
  %3: f32[1,16] = MatMul(%0, %1) "long"
  %4: f32[1,16] = MatMul(%3, %2) "short"
  out %4 "y"
})";
  auto parsed = graph::parse(kLong);
  ASSERT_TRUE(parsed.ok());
  const std::shared_ptr<Program> program = program_of(*parsed, "mono", false);
  ASSERT_GE(program->waves, 2);
  auto loaded = load_cuda(program, {.cache_dir = "off", .watchdog = true});
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  auto context = (*loaded)->context();
  ASSERT_TRUE(context.ok()) << context.error().text();
  const Status status = status_of(run(**context, *program, inputs_of(*program)));
  expect_device_error(status, "the run");
  const std::regex wanted(
      "SM [0-9]+ waits for the grid barrier at .*; SM [0-9]+ is in task [0-9]+ \\(wave 0, "
      "'long'\\) \\(.*");
  EXPECT_TRUE(std::regex_match(status.error().message, wanted)) << status.error().message;
}

// One SM's list is empty, so that what it would give to all never comes.
APART(AWaitForAValueIsNamed) {
  auto early = passes::copy_early_pieces(graph::decoder_step(DType::f16));
  ASSERT_TRUE(early.ok());
  auto graph = passes::merge_gates(std::move(*early));
  ASSERT_TRUE(graph.ok());
  size_t silent = 0;
  Broken broken(*graph, "mono", true, [&](Program& program) {
    CHECK(program.dataflow, "the decoder's token is no dataflow program");
    const auto longest =
        std::max_element(program.lists.begin(), program.lists.end(),
                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
    longest->clear(), silent = static_cast<size_t>(longest - program.lists.begin());
  });
  const Status status = status_of(run(*broken.context, *broken.program, broken.inputs));
  expect_device_error(status, "the run");
  const std::string& message = status.error().message;
  std::smatch found;
  const std::regex wanted(
      "SM ([0-9]+) waits for a value that other SMs give at 0x[0-9a-f]+ before task ([0-9]+) "
      "\\(wave [0-9]+, '[^']*'\\): it wants 1, has 0 \\(.*CUDA_ERROR_.*");
  ASSERT_TRUE(std::regex_match(message, found, wanted)) << message;
  const size_t sm = std::stoul(found[1]), task = std::stoul(found[2]);
  EXPECT_NE(sm, silent) << "it has no task";
  size_t from = 0;
  for (size_t k = 0; k < sm && k < broken.program->lists.size(); ++k)
    from += broken.program->lists[k].size();
  ASSERT_LT(sm, broken.program->lists.size());
  EXPECT_TRUE(from <= task && task < from + broken.program->lists[sm].size())
      << "task " << task << " is another SM's than " << sm;
  broken.expect_errors_that_stay(status.error());
}

/// A place in the workspace that lies far behind it.
void lose_a_place(Program& program) {
  for (WorkRecord& work : program.works)
    for (Place& place : work.operands)
      if (place.kind == BufferKind::kArena) return void(place.index += int64_t{1} << 40);
  CHECK(false, "no work reads or writes the workspace");
}

APART(AnAddressOfNoMemoryInOneKernel) {
  Broken broken(chain(), "mono", false, lose_a_place);
  const Status status = status_of(run(*broken.context, *broken.program, broken.inputs));
  expect_device_error(status, "the run");
  broken.expect_errors_that_stay(status.error());
}

// On the caller's stream the run itself returns before it fails: who comes next is told, and by
// whatever call.
APART(AnAddressOfNoMemoryOnAStream) {
  Broken broken(chain(), "stitch", false, lose_a_place);
  const Driver& d = **load_driver();
  Handle stream = nullptr;
  ASSERT_EQ(d.StreamCreate(&stream, kStreamNonBlocking), 0);
  const Status begun = broken.context->run_on(broken.ports->in, broken.ports->out, stream);
  if (!begun.ok())
    expect_device_error(begun, "the run, where the kernel failed before the last call returned");
  EXPECT_NE(d.StreamSynchronize(stream), 0);
  const Status status = broken.context->run_on(broken.ports->in, broken.ports->out, stream);
  expect_device_error(status, "the run after it");
  if (status.ok()) return;
  broken.expect_errors_that_stay(status.error());
  d.StreamDestroy(stream);
}

}  // namespace
}  // namespace obelisk::runtime::cuda
