// Works on a CPU that begin as soon as those that they follow have ended: for every order, arena,
// number of virtual SMs and threads the bits of the sequential one, with delays, between contexts
// and when interrupted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "graph/test_texts.h"
#include "runtime/test/run_program.h"

namespace obelisk::runtime {
namespace {

// Branches of products, norms and reductions, which sums join; twice, one behind the other, and
// one that is longer than the others.
constexpr const char* kBranches = R"(graph "branches" {
  in %0 "x": f32[12,64]
  const %1: f32[64,64] = @random
  const %2: f32[64,64] = @random
  const %3: f32[64,64] = @random
  const %4: i64[1] = [-1]
  %5: f32[12,64] = MatMul(%0, %1)
  %6: f32[12,64] = MatMul(%0, %2)
  %7: f32[12,64] = Softmax(%6) {axis = -1}
  %8: f32[12,64] = Exp(%0)
  %9: f32[12,1] = ReduceMax(%8, %4) {keepdims = 1}
  %10: f32[12,64] = MatMul(%7, %3)
  %11: f32[12,64] = Add(%5, %10)
  %12: f32[12,64] = Add(%11, %9)
  %13: f32[12,64] = MatMul(%12, %1)
  %14: f32[12,64] = Tanh(%12)
  %15: f32[12,64] = Softmax(%12) {axis = 0}
  %16: f32[12,64] = MatMul(%14, %2)
  %17: f32[12,64] = MatMul(%16, %3)
  %18: f32[12,64] = Mul(%15, %13)
  %19: f32[12,64] = Add(%17, %18)
  %20: f32[12,64] = MatMul(%0, %3)
  %21: f32[12,64] = MatMul(%20, %3)
  %22: f32[12,64] = MatMul(%21, %2)
  %23: f32[12,64] = MatMul(%22, %1)
  out %19 "y"
  out %7 "scores"
  out %23 "beside"
})";

graph::Graph branches() {
  auto graph = graph::parse_random(kBranches, 0.25);
  CHECK(graph.ok(), "{}", graph.error().text());
  return std::move(*graph);
}

struct Order {
  std::string policy = "waves", launch_order = "";
  bool placed = false;  // the arena is made for the order, not for waves
  bool of_gpu = false;  // a table and bodies as a GPU of 132 multiprocessors has them
};

struct Made {
  std::shared_ptr<Program> program;
  schedule::Dag dag;
};

Made program_of(const graph::Graph& graph, int sms, const Order& order) {
  machine::Machine device = machine::cpu(sms);
  machine::Strategy strategy;
  stitch::Options apart;
  apart.stitch = false;  // an op a work
  if (order.of_gpu) {
    device = *machine::device("sm_90a", sms);
    strategy = machine::strategy_for(device, {.granularity = machine::Granularity::kOp});
    apart.tiles = false;  // those of tensor cores are none of a core's
  }
  const stitch::Plan plan = stitch::plan(graph, device, strategy, apart);
  schedule::TaskGraph tasks = schedule::build(graph, plan, device, strategy);
  EXPECT_EQ(tasks.lists.size(), static_cast<size_t>(sms));
  if (order.placed) {
    const Status placed = schedule::place_by_order(graph, plan, device, tasks);
    CHECK(placed.ok(), "{}", placed.error().text());
  }
  for (const Status& sound :
       {schedule::validate(graph, plan, tasks), schedule::shadow_run(graph, plan, tasks)})
    CHECK(sound.ok(), "{}", sound.error().text());
  for (schedule::Work& work : tasks.works)  // on a core a table has the tasks of all
    if (work.rectangles()) work.form = schedule::TaskList{};
  auto source =
      codegen::emit(graph, plan, tasks, order.of_gpu ? vector_tiles() : kernels::kCpuTiles);
  Made made{std::make_shared<Program>(assemble(graph, plan, tasks, std::move(source), "cpu")),
            schedule::Dag()};
  if (order.policy == "waves") return made;
  auto dependencies = schedule::true_dependencies(graph, plan, tasks);
  CHECK(dependencies.ok(), "{}", dependencies.error().text());
  made.dag = dependencies->dag;
  std::vector<schedule::Kernel> kernels(tasks.works.size());
  std::vector<int> waves;
  for (const schedule::Work& work : tasks.works) waves.push_back(work.wave);
  for (const auto& list : tasks.lists)
    for (const ObkTask& task : list) ++kernels[task.work].demand.blocks;
  for (schedule::Kernel& each : kernels) each.launches = each.demand.blocks > 0;
  auto placed =
      schedule::dispatch(made.dag, kernels, waves,
                         {.policy = order.policy, .launch_order = order.launch_order, .sms = sms});
  CHECK(placed.ok(), "{}", placed.error().text());
  made.program->dispatch = std::move(placed->kernels);
  return made;
}

std::shared_ptr<const Executable> loaded(std::shared_ptr<const Program> program) {
  LoadOptions load;
  load.every_thread = true;
  auto executable = load_cpu(std::move(program), load);
  CHECK(executable.ok(), "{}", executable.error().text());
  return *executable;
}

/// A context with what its runs read and write.
class Runs {
 public:
  Runs(const Executable& executable, int threads) {
    auto made = executable.context(threads);
    CHECK(made.ok());
    context = std::move(*made);
    for (const Port& port : executable.program().outputs)
      outputs.push_back(Tensor::allocate(port.type));
  }
  std::string of(const std::vector<Tensor>& inputs) {
    std::vector<const void*> in;
    std::vector<void*> out;
    for (const Tensor& each : inputs) in.push_back(each.data());
    for (Tensor& each : outputs) {
      memset(each.mutable_data(), 0xa5, static_cast<size_t>(each.bytes()));
      out.push_back(each.mutable_data());
    }
    const Status status = context->run(in, out);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
    std::string bytes;
    for (const Tensor& each : outputs)
      bytes.append(static_cast<const char*>(each.data()), static_cast<size_t>(each.bytes()));
    return bytes;
  }
  std::unique_ptr<Context> context;

 private:
  std::vector<Tensor> outputs;
};

std::vector<Tensor> inputs_of(const graph::Graph& graph, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Tensor> inputs;
  for (const graph::ValueId v : graph.inputs())
    inputs.push_back(random_tensor(graph.type(v), random));
  return inputs;
}

/// OBELISK_JITTER for the contexts made meanwhile.
struct Delays {
  explicit Delays(int seed) { setenv("OBELISK_JITTER", std::to_string(seed).c_str(), 1); }
  ~Delays() { unsetenv("OBELISK_JITTER"); }
};

const std::vector<Order> kOrders = {{"sequential"},         {"critical"},
                                    {"opara", "", true},    {"critical", "", true},
                                    {"nimble", "random:1"}, {"nimble", "random:2", true}};

TEST(Orders, HaveTheBitsOfTheSequentialOneForEveryInput) {
  const graph::Graph graph = branches();
  Runs sequential(*loaded(program_of(graph, 7, {"sequential"}).program), 1);
  std::vector<std::unique_ptr<Runs>> others;
  for (const Order& order : kOrders) {
    const Made made = program_of(graph, 7, order);
    ASSERT_GT(made.program->dispatch.size(), 15u);
    const auto executable = loaded(made.program);
    for (const int threads : {2, 7}) others.push_back(std::make_unique<Runs>(*executable, threads));
  }
  for (uint32_t turn = 0; turn < 100; ++turn) {
    const std::vector<Tensor> inputs = inputs_of(graph, turn);
    const std::string wanted = sequential.of(inputs);
    for (size_t k = 0; k < others.size(); ++k)
      ASSERT_EQ(others[k]->of(inputs), wanted) << "turn " << turn << ", context " << k;
  }
}

// A table for a CPU, and one for a GPU, whose bodies run on threads of this machine.
TEST(Orders, OfTablesFor132WorkersWithDelays) {
  const graph::Graph graph = branches();
  const std::vector<Tensor> inputs = inputs_of(graph, 3);
  for (const bool of_gpu : {false, true}) {
    const std::string wanted =
        Runs(*loaded(program_of(graph, 132, {.of_gpu = of_gpu}).program), 1).of(inputs);
    for (Order order : kOrders) {
      order.of_gpu = of_gpu;
      const auto executable = loaded(program_of(graph, 132, order).program);
      for (const int threads : {2, 3, 8, 40})
        for (const int seed : {0, 1, 2}) {
          std::optional<Delays> delays;
          if (seed > 0) delays.emplace(seed);
          Runs runs(*executable, threads);
          for (int turn = 0; turn < 3; ++turn)
            ASSERT_EQ(runs.of(inputs), wanted) << order.policy << " " << order.launch_order << ", "
                                               << threads << " threads, delays " << seed;
        }
    }
  }
}

TEST(Orders, EightContextsOfEightThreadsAtOnce) {
  const graph::Graph graph = branches();
  const Made made = program_of(graph, 8, {"critical", "", true});
  const auto executable = loaded(made.program);
  Runs sequential(*executable, 1);
  std::vector<std::vector<Tensor>> inputs;
  std::vector<std::string> wanted;
  for (uint32_t k = 0; k < 8; ++k)
    inputs.push_back(inputs_of(graph, k)), wanted.push_back(sequential.of(inputs.back()));
  std::vector<std::thread> users;
  std::atomic<int> right{0};
  for (size_t k = 0; k < 8; ++k)
    users.emplace_back([&, k] {
      Runs mine(*executable, 8);
      for (size_t turn = 0; turn < 20; ++turn)
        right += mine.of(inputs[(k + turn) % 8]) == wanted[(k + turn) % 8];
    });
  for (std::thread& user : users) user.join();
  EXPECT_EQ(right, 160);
}

// When tasks ran: none of a work before all of those that it follows, by the clock.
TEST(Orders, TasksRunBehindWhatTheyFollow) {
  const graph::Graph graph = branches();
  const Delays delays(4);
  const std::vector<Tensor> inputs = inputs_of(graph, 1);  // read again by task_times()
  for (const Order& order : kOrders) {
    const Made made = program_of(graph, 7, order);
    Runs runs(*loaded(made.program), 5);
    runs.of(inputs);
    const auto times = runs.context->task_times();
    ASSERT_TRUE(times.ok());
    std::vector<double> begin(made.program->works.size(), INFINITY), end(begin.size(), -INFINITY);
    ASSERT_EQ(static_cast<int64_t>(times->size()), made.program->task_count());
    for (const TaskTime& each : *times) {
      const auto work = static_cast<size_t>(each.work);
      begin[work] = std::min(begin[work], each.start_us);
      end[work] = std::max(end[work], each.end_us);
    }
    for (int work = 0; work < made.dag.size(); ++work)
      for (const int before : made.dag.before[work])
        EXPECT_LE(end[before], begin[work]) << "work " << work << " follows work " << before;
  }
}

TEST(Orders, GiveWayBetweenTasks) {
  const graph::Graph graph = branches();
  const Made made = program_of(graph, 8, {"critical", "", true});
  const auto executable = loaded(made.program);
  const std::vector<Tensor> inputs = inputs_of(graph, 1), others = inputs_of(graph, 2);
  for (const int workers : {2, 4, 8})
    for (const int wanted : {1, 2}) {
      Runs host(*executable, workers), guest(*executable, wanted);
      const std::string host_alone = host.of(inputs), guest_alone = guest.of(others);
      ASSERT_NE(host_alone, guest_alone);
      int calls = 0;
      GiveWay way;
      way.work = [&] {
        ++calls;
        EXPECT_EQ(guest.of(others), guest_alone);
      };
      ASSERT_TRUE(host.context->give_way(&way));
      EXPECT_EQ(host.of(inputs), host_alone);
      EXPECT_EQ(calls, 0) << "nobody asked";
      way.wanted = wanted;
      for (int turn = 0; turn < 5; ++turn) EXPECT_EQ(host.of(inputs), host_alone);
      EXPECT_GE(calls, 5) << "before the first task at least";
    }
}

// The run that is let in takes long. Workers that wait for tasks which the interrupted worker has
// already done go on meanwhile.
std::atomic<int> ended;
void count(const ObkTask*, const int64_t*, void* const*, ObkWorker*) { ++ended; }
TEST(Orders, OthersGoOnWhileOneWorkerGivesWay) {
  const graph::Graph graph = branches();
  const Made made = program_of(graph, 8, {"critical", "", true});
  const OneBody library(count);
  LoadOptions load;
  load.library = &library, load.every_thread = true;
  const auto executable = load_cpu(made.program, load);
  ASSERT_TRUE(executable.ok());
  Runs runs(**executable, 3);
  ended = 0;
  runs.of(inputs_of(graph, 1));
  const int all = ended;
  ASSERT_GT(all, 10);
  GiveWay way;
  runs.context->give_way(&way);
  way.work = [&] {
    way.wanted = 0;
    for (int k = 0; k < 60'000 && ended < all; ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(ended, all) << "after a minute";
  };
  for (int turn = 0; turn < 10; ++turn) {
    ended = 0, way.wanted = 1;
    runs.of(inputs_of(graph, 1));
    EXPECT_EQ(ended, all);
  }
}

}  // namespace
}  // namespace obelisk::runtime
