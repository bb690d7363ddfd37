// Super-kernels: R programs of one network, each with weights, inputs and memory of its own, in one
// launch (Context::run_together), and the same ones one after the other.
//
//   tenants super-kernels MODEL... [--runs 1,2,4,8] [--target cuda] [--sms 0] [--precision keep]
//           [--granularity stitch] [--rotate 96] [--programs 128] [--seconds 0.2]
//           [--answers DIR] [--compile-only]
//
// Program k is of model k modulo their number, which differ in weights alone. Programs are made for
// --sms SMs, 0: for the GPU's over R. There are as many groups of R programs as take --rotate MiB
// together, or --programs in all, and turns go from one to the next: what one run left in the L2
// cache is gone when its group has its turn again.
//
// Output: a line of JSON for each R. Microseconds are medians by the host's clock, launches and the
// wait included; inputs and outputs lie in the GPU's memory. `differ`: programs whose answer in one
// launch has other bits than alone; the exit status is 1 then. DIR has inputs and answers of the
// first group: R.k.PORT.bin. --compile-only: their code is in the cache then, and nothing is
// measured.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>

#include "common.h"
#include "compile.h"
#include "gpu_memory.h"
#include "network.h"

namespace {

using namespace obelisk;
using Clock = std::chrono::steady_clock;

struct Wanted {
  std::vector<std::string> models;
  std::vector<int> runs = {1, 2, 4, 8};
  std::string target = "cuda", precision = "keep", granularity = "stitch", answers;
  int sms = 0, rotate = 96, programs = 128;
  double seconds = 0.2;
  bool compile_only = false;
};

Wanted read(int argc, char** argv) {
  Wanted wanted;
  for (Words words(argc, argv); words.next();) {
    const std::string word = words.word();
    const auto value = [&] { return words.value(); };
    if (word == "--runs")
      wanted.runs = numbers(value());
    else if (word == "--target")
      wanted.target = value();
    else if (word == "--sms")
      wanted.sms = std::stoi(value());
    else if (word == "--precision")
      wanted.precision = value();
    else if (word == "--granularity")
      wanted.granularity = value();
    else if (word == "--rotate")
      wanted.rotate = std::stoi(value());
    else if (word == "--programs")
      wanted.programs = std::stoi(value());
    else if (word == "--seconds")
      wanted.seconds = std::stod(value());
    else if (word == "--answers")
      wanted.answers = value();
    else if (word == "--compile-only")
      wanted.compile_only = true;
    else if (word.starts_with("--"))
      throw std::invalid_argument("there is no flag " + word);
    else
      wanted.models.push_back(word);
  }
  if (wanted.models.empty() || wanted.runs.empty() ||
      *std::min_element(wanted.runs.begin(), wanted.runs.end()) < 1)
    throw std::invalid_argument("models, and --runs of at least one, are wanted");
  return wanted;
}

template <typename T>
T got(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().text());
  return std::move(*result);
}
void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().text());
}

/// A program with all that it reads and writes.
struct Instance {
  std::shared_ptr<const runtime::Executable> executable;
  std::unique_ptr<runtime::Context> context;
  std::vector<Tensor> given, alone, answers;  // on the host
  std::vector<const void*> in;
  std::vector<void*> out;
};

class Bench {
 public:
  explicit Bench(Wanted wanted)
      : wanted_(std::move(wanted)), machine_(got(compiler::find_machine(wanted_.target, 0, 0))) {
    if (machine_.target != "cpu") gpu_.emplace(machine_.gpu);
  }

  int run() {
    bool failed = false;
    for (const int runs : wanted_.runs) {
      try {
        failed |= measure(runs) > 0;
      } catch (const std::exception& error) {
        failed = true;
        std::string text = error.what();
        for (char& c : text)
          if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
        std::printf("{\"runs\": %d, \"error\": \"%s\"}\n", runs, text.c_str());
      }
      std::fflush(stdout);
    }
    return failed ? 1 : 0;
  }

 private:
  using Group = std::vector<runtime::SharedRun>;

  std::vector<std::shared_ptr<const runtime::Program>> compile(int sms) const {
    std::vector<std::shared_ptr<const runtime::Program>> programs;
    for (const std::string& path : wanted_.models) {
      compiler::Options options;
      options.target = machine_.target, options.sms = sms, options.verify = false;
      options.dispatch.policy = "waves", options.load = load();
      const auto precision = passes::parse_precision(wanted_.precision);
      if (!precision) throw std::invalid_argument("there is no precision " + wanted_.precision);
      options.passes.precision = *precision;
      if (machine_.target != "cpu")
        options.granularity = got(compiler::parse_wanted_granularity(wanted_.granularity));
      compiler::Compilation made;
      check(compiler::compile(got(compiler::open_network(path)), options, made));
      programs.push_back(made.program);
    }
    return programs;
  }
  runtime::LoadOptions load() const {
    runtime::LoadOptions options;
    options.instances = true, options.gpu = machine_.gpu;
    return options;
  }

  std::unique_ptr<Instance> instance(const std::shared_ptr<const runtime::Program>& program,
                                     unsigned seed) {
    auto made = std::make_unique<Instance>();
    made->executable = got(runtime::load(program, load()));
    made->context = got(made->executable->context(1));
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (const runtime::Port& port : program->inputs) {
      Tensor& values = made->given.emplace_back(Tensor::allocate(port.type));
      for (int64_t k = 0; k < values.count(); ++k) values.set_double(k, uniform(random));
      made->in.push_back(placed(values));
    }
    for (const runtime::Port& port : program->outputs) {
      made->alone.push_back(Tensor::allocate(port.type));
      made->out.push_back(placed(made->answers.emplace_back(Tensor::allocate(port.type))));
    }
    check(made->context->run(made->in, made->out));
    take(*made, made->alone);
    return made;
  }
  /// Where the program finds it: on the GPU, or where it lies.
  void* placed(Tensor& values) {
    if (!gpu_) return values.mutable_data();
    const auto at = gpu_->copy_of(
        {static_cast<const std::byte*>(values.data()), static_cast<size_t>(values.bytes())});
    return const_cast<std::byte*>(at.data());
  }
  /// The answers of its last run.
  void take(const Instance& of, std::vector<Tensor>& to) {
    for (size_t k = 0; k < to.size(); ++k) {
      const auto bytes = static_cast<size_t>(to[k].bytes());
      if (gpu_)
        gpu_->read(of.out[k], {static_cast<std::byte*>(to[k].mutable_data()), bytes});
      else if (to[k].data() != of.out[k])
        std::memcpy(to[k].mutable_data(), of.out[k], bytes);
    }
  }

  int measure(int runs) {
    const int sms = wanted_.sms > 0 ? wanted_.sms : std::max(1, machine_.sms / runs);
    const auto programs = compile(sms);
    if (wanted_.compile_only) return 0;
    const int64_t bytes = runtime::bytes_of_a_run(*programs[0]);
    const int64_t rotate = int64_t{wanted_.rotate} << 20;
    const int groups = static_cast<int>(
        std::clamp<int64_t>((rotate + bytes * runs - 1) / std::max<int64_t>(bytes * runs, 1), 1,
                            std::max(1, wanted_.programs / runs)));
    std::vector<std::unique_ptr<Instance>> instances;
    std::vector<Group> all(static_cast<size_t>(groups));
    for (int k = 0; k < groups * runs; ++k) {
      auto& made = instances.emplace_back(instance(
          programs[static_cast<size_t>(k) % programs.size()], static_cast<unsigned>(k + 1)));
      all[static_cast<size_t>(k / runs)].push_back({made->context.get(), made->in, made->out});
    }
    const auto together = [](const Group& group) { check(group[0].context->run_together(group)); };
    const auto in_turn = [](const Group& group) {
      for (const runtime::SharedRun& run : group) check(run.context->run(run.inputs, run.outputs));
    };
    for (int warm = 0; warm < 2; ++warm)
      for (const Group& group : all) in_turn(group), together(group);
    std::vector<double> times[2];
    const auto begun = Clock::now();
    while (times[0].size() < 20 || us(Clock::now() - begun) < wanted_.seconds * 1e6) {
      for (const bool one_by_one : {false, true})
        for (const Group& group : all) {
          const auto start = Clock::now();
          one_by_one ? in_turn(group) : together(group);
          times[one_by_one].push_back(us(Clock::now() - start));
        }
    }
    int differ = 0;
    for (const Group& group : all) together(group);
    for (const auto& each : instances) {
      take(*each, each->answers);
      bool same = true;
      for (size_t k = 0; k < each->answers.size(); ++k)
        same &= std::memcmp(each->answers[k].data(), each->alone[k].data(),
                            static_cast<size_t>(each->alone[k].bytes())) == 0;
      differ += !same;
    }
    if (!wanted_.answers.empty()) write(instances, runs);
    std::printf(
        "{\"runs\": %d, \"sms\": %d, \"groups\": %d, \"bytes\": %lld, \"together_us\": %.2f, "
        "\"one_by_one_us\": %.2f, \"turns\": %zu, \"differ\": %d}\n",
        runs, sms, groups, static_cast<long long>(bytes * runs), quantile(times[0], 0.5),
        quantile(times[1], 0.5), times[0].size(), differ);
    return differ;
  }

  void write(const std::vector<std::unique_ptr<Instance>>& instances, int runs) const {
    std::filesystem::create_directories(wanted_.answers);
    for (int k = 0; k < runs; ++k) {
      const Instance& each = *instances[static_cast<size_t>(k)];
      const auto put = [&](const std::string& port, const Tensor& values) {
        std::ofstream(fmt::format("{}/{}.{}.{}.bin", wanted_.answers, runs, k, port),
                      std::ios::binary)
            .write(static_cast<const char*>(values.data()), values.bytes());
      };
      const runtime::Program& program = each.executable->program();
      for (size_t p = 0; p < each.given.size(); ++p) put(program.inputs[p].name, each.given[p]);
      for (size_t p = 0; p < each.answers.size(); ++p)
        put(program.outputs[p].name, each.answers[p]);
    }
  }

  const Wanted wanted_;
  const compiler::FoundMachine machine_;
  std::optional<GpuMemory> gpu_;
};

}  // namespace

int super_kernels(int argc, char** argv) { return Bench(read(argc, argv)).run(); }
