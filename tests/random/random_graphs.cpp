// Very many random graphs on the CPU: each pass alone, then programs for several machines, compared
// with the interpreter.
//
//   random_graphs --from 1 --count 1000 [--configs passes,1,2,7,132] [--batch 200] [--steps MOST]
//                 [--type f16] [--found FOLDER] [--seconds S]
//   random_graphs --graphs PATH [--configs ...]    a text, or all of a folder (*.ir), with @random
//                                                  for weights
//
// Configurations: a number of SMs, "op" before it for an op a body, "less" for some passes left
// out, "vectors" for bodies as GPUs have them, "stitch", "mono" or "gpuop" for a GPU's own bodies
// and tables by their twin (twin_library.h), with "tables_" before these only what checks tables;
// "passes". Bodies of a batch are compiled as one text, those of equal text once for all batches.
// Programs run in a process of their own, so that one that breaks it is a failure like others. Each
// failure is a line, and with --found a shrunk graph; the last line has counts. Exit status 1:
// something failed.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "cases.h"
#include "graph/shrink.h"
#include "graph/test_texts.h"
#include "kernels/tile_library.h"
#include "twin_library.h"

namespace obelisk::random_graphs {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Config {
  std::string name;
  int sms = 7;
  bool stitch = true, vectors = false;
  std::optional<machine::Granularity> granularity;  // of a GPU, by its twin
  bool runs = true, less = false;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::optional<Config> config_of(const std::string& name) {
  Config config{.name = name};
  std::string_view rest = name;
  const auto begins = [&](std::string_view word) {
    const bool found = rest.starts_with(word);
    if (found) rest.remove_prefix(word.size());
    return found;
  };
  if (begins("tables_")) config.runs = false;
  if (begins("op"))
    config.stitch = false;
  else if (begins("less"))
    config.less = true;
  else if (begins("vectors"))
    config.vectors = true;
  else if (begins("stitch"))
    config.granularity = machine::Granularity::kStitch;
  else if (begins("mono"))
    config.granularity = machine::Granularity::kMono;
  else if (begins("gpuop"))
    config.granularity = machine::Granularity::kOp;
  config.sms = atoi(std::string(rest).c_str());
  return config.sms > 0 ? std::optional(config) : std::nullopt;
}

/// The CPU's tiles under bodies as GPUs have them: rows in vectors, shapes as constants.
const kernels::TileLibrary& vector_tiles() {
  static const kernels::TileLibrary tiles = [] {
    kernels::TileLibrary library = kernels::kCpuTiles;
    library.vectors = true;
    library.gemm.packs_batches = true;
    return library;
  }();
  return tiles;
}

struct Spent {
  double graphs = 0, passes = 0, plans = 0, compiler = 0, runs = 0;
};
Spent spent;

/// A program, or why there is none. `seed`: which passes are left out, where some are; of one
/// kernel which dispatch it has.
std::string program_of(const graph::Graph& graph, uint64_t seed, const Config& config,
                       std::shared_ptr<const runtime::Program>& program) {
  try {
    compiler::Options options;
    options.sms = config.sms, options.verify = false, options.check_tables = true,
    options.to = "schedule";
    options.stitch.stitch = config.stitch;
    if (config.granularity)
      options.target = "sm_90a", options.granularity = config.granularity,
      options.to = config.runs ? "assemble" : "schedule";
    if (config.granularity == machine::Granularity::kMono)
      options.dispatch.policy = schedule::kPolicies[seed % std::size(schedule::kPolicies)];
    if (config.runs) options.disabled = {"dataflow"};  // which the twin does not run
    graph::Random random(seed);
    for (const passes::Pass& pass : passes::table())
      if (config.less && random.chance(30)) options.disabled.insert(std::string(pass.name));
    compiler::Network network;
    network.graph = graph;
    compiler::Compilation made;
    if (const Status status = compiler::compile(network, options, made); !status.ok())
      return status.error().text();
    if (!config.runs) return "";
    if (made.program) return program = made.program, "";
    program = std::make_shared<runtime::Program>(
        runtime::assemble(made.graph, made.plan, made.tasks,
                          codegen::emit(made.graph, made.plan, made.tasks,
                                        config.vectors ? vector_tiles() : kernels::kCpuTiles),
                          "cpu"));
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Each pass by itself, beside the graph.
std::string passes_keep(const Case& one) {
  const std::string before = graph::print(one.graph);
  for (const passes::Pass& pass : passes::table()) {
    try {
      const auto after = pass.run(one.graph);
      if (!after.ok()) return fmt::format("{}: {}", pass.name, after.error().text());
      if (graph::print(*after) == before) continue;
      if (const Status sound = graph::verify(*after); !sound.ok())
        return fmt::format("{}: {}", pass.name, sound.error().text());
      const auto got = graph::interpret(*after, one.inputs, {.exact = true});
      if (!got.ok()) return fmt::format("{}: {}", pass.name, got.error().text());
      if (std::string wrong = difference(one, *got); !wrong.empty())
        return fmt::format("{}: {}", pass.name, wrong);
    } catch (const std::exception& error) {
      return fmt::format("{}: {}", pass.name, error.what());
    }
  }
  return "";
}

struct Libraries {
  std::unique_ptr<runtime::BodyLibrary> cores;
  std::unique_ptr<TwinLibrary> twin;

  Status add(const runtime::Program& program) { return add(std::vector{&program}); }
  Status add(const std::vector<const runtime::Program*>& programs) {
    std::vector<const codegen::BodyText*> of_cores, of_gpus;
    for (const runtime::Program* program : programs)
      for (const codegen::BodyText& body : program->bodies)
        (program->on_gpu() ? of_gpus : of_cores).push_back(&body);
    TRY_STATUS(cores->add(of_cores));
    if (of_gpus.empty()) return ok_status();
    if (!twin) {
      TRY(twin, TwinLibrary::create());
    }
    return twin->add(of_gpus);
  }
  size_t count() const { return (cores ? cores->count() : 0) + (twin ? twin->count() : 0); }
};

/// Runs a program in this process; what is wrong, or nothing.
std::string run_and_compare(std::shared_ptr<const runtime::Program> program, const Case& one,
                            const Libraries& libraries) {
  std::vector<Tensor> got;
  if (program->on_gpu()) {
    const std::vector<Tensor>* runs[] = {&one.other_inputs, &one.inputs};
    if (std::string wrong = run_twin(*program, *libraries.twin, runs, got); !wrong.empty())
      return wrong;
    return difference(one, got);
  }
  runtime::LoadOptions load;
  load.library = libraries.cores.get(), load.every_thread = true;
  auto executable = runtime::load_cpu(std::move(program), load);
  if (!executable.ok()) return executable.error().text();
  if (std::string wrong = run(**executable, one, got); !wrong.empty()) return wrong;
  return difference(one, got);
}

struct Job {
  size_t of = 0;  // which case
  const Config* config = nullptr;
  std::shared_ptr<const runtime::Program> program;
  std::string failed;
};

/// Runs jobs in children: one that dies took a job along, and the next goes on behind it.
void run_apart(std::vector<Job>& jobs, const std::vector<Case>& cases, const Libraries& libraries) {
  constexpr size_t kText = 400;
  constexpr unsigned kMost = 300;  // seconds
  struct Shared {
    size_t at;  // the job that runs
    char text[][kText];
  };
  const size_t bytes = sizeof(Shared) + jobs.size() * kText;
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(shared != MAP_FAILED, "no {} bytes to share with a child", bytes);
  for (size_t from = 0; from < jobs.size();) {
    shared->at = from;
    fflush(nullptr);
    const pid_t child = fork();
    CHECK(child >= 0, "no child: {}", strerror(errno));
    if (child == 0) {
      for (size_t k = from; k < jobs.size(); ++k) {
        shared->at = k;
        if (!jobs[k].program) continue;
        alarm(kMost);  // a task that never ends, also on a machine that is busy with others
        std::string wrong;
        try {
          wrong = run_and_compare(jobs[k].program, cases[jobs[k].of], libraries);
        } catch (const std::exception& error) {
          wrong = error.what();
        }
        strncpy(shared->text[k], wrong.c_str(), kText - 1);
      }
      shared->at = jobs.size();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (shared->at < jobs.size()) {
      snprintf(shared->text[shared->at], kText, "the process ended: %s",
               WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "by itself");
      from = shared->at + 1;
    } else {
      from = jobs.size();
    }
  }
  for (size_t k = 0; k < jobs.size(); ++k)
    if (jobs[k].failed.empty()) jobs[k].failed = shared->text[k];
  munmap(shared, bytes);
}

/// What is wrong with a graph as it stands, compiled alone; nothing with one whose reference fails.
/// `plans`: the compiler alone is asked.
std::string alone(const graph::Graph& graph, uint64_t seed, const Config* config, bool plans) {
  if (config && plans) {
    std::shared_ptr<const runtime::Program> program;
    return program_of(graph, seed, *config, program);
  }
  std::vector<Case> cases;
  cases.push_back(case_of(graph, seed));
  if (!cases[0].failed.empty()) return "";
  for (const Tensor& wanted : cases[0].wanted)
    for (int64_t k = 0; k < wanted.count(); ++k)
      if (!std::isfinite(wanted.get_double(k))) return "";
  if (!config) return passes_keep(cases[0]);
  std::vector<Job> jobs(1);
  jobs[0].config = config;
  jobs[0].failed = program_of(graph, seed, *config, jobs[0].program);
  if (!jobs[0].failed.empty() || !jobs[0].program) return jobs[0].failed;
  if (jobs[0].program->on_gpu() && !beyond_twin(*jobs[0].program).empty()) return "";
  // The twin's common part is compiled once for all.
  static Libraries kept;
  if (kept.count() > 2000) kept = {};
  if (!kept.cores) kept.cores = runtime::BodyLibrary::create({"-O0"});
  if (const Status added = kept.add(*jobs[0].program); !added.ok()) return added.error().text();
  run_apart(jobs, cases, kept);
  return jobs[0].failed;
}

struct Settings {
  uint64_t from = 1, count = 300;
  size_t batch = 200;
  int shrinks = 10, steps = 40;
  double seconds = 1e9;
  std::string found, optimise = "-O0";
  std::optional<DType> type;  // of all floats; else as the seed says
  std::vector<std::string> files;
  std::vector<std::string> names = {"passes", "1", "2", "7", "132"};
};

void keep_shrunk(const Case& one, const Config* config, const std::string& wrong,
                 const Settings& settings) {
  // The same kind of failure, not any.
  const std::string kind = wrong.substr(0, wrong.find_first_of(":'"));
  std::shared_ptr<const runtime::Program> program;
  const bool plans = config && !program_of(one.graph, one.seed, *config, program).empty();
  const auto fails = [&](const graph::Graph& graph) {
    const std::string now = alone(graph, one.seed, config, plans);
    return !now.empty() && now.substr(0, now.find_first_of(":'")) == kind;
  };
  const std::string config_name = config ? config->name : "passes",
                    path = fmt::format("{}/{}_{}.ir", settings.found, config_name, one.seed);
  if (!fails(one.graph)) {
    fmt::print("seed {}: {} fails in its batch and not alone\n", one.seed, config_name);
    return;
  }
  const graph::Graph small = graph::shrink(one.graph, fails, plans ? 3000 : 300);
  std::error_code ignored;
  std::filesystem::create_directories(settings.found, ignored);
  std::string text = graph::text_with_random_weights(small);
  const auto again = graph::parse_random(text, 1);
  if (!again.ok() || !fails(*again)) text = graph::print(small, {.all_data = true});
  const Status written =
      write_file(path, fmt::format("// seed {}, {}: {}\n{}", one.seed, config_name,
                                   alone(small, one.seed, config, plans), text));
  fmt::print("seed {}: {}\n", one.seed, written.ok() ? path : written.error().text());
}

int run_all(const Settings& settings) {
  std::vector<Config> configs;
  bool with_passes = false;
  for (const std::string& name : settings.names) {
    const auto config = config_of(name);
    if (config)
      configs.push_back(*config);
    else if (name == "passes")
      with_passes = true;
    else
      return fmt::print(stderr,
                        "no configuration is called '{}': passes, or a number of SMs, with op or "
                        "vectors before it\n",
                        name),
             2;
  }
  Libraries library;
  library.cores = runtime::BodyLibrary::create({settings.optimise});
  const auto start = Clock::now();
  std::map<std::string, std::pair<uint64_t, uint64_t>>
      counts;                              // by configuration: graphs, failures
  std::map<std::string, uint64_t> beyond;  // programs that the twin cannot run, by why
  uint64_t graphs = 0, bodies_seen = 0, nodes = 0;
  int shrunk = 0;
  uint64_t next = settings.from;
  const uint64_t end = settings.files.empty() ? settings.from + settings.count
                                              : settings.from + settings.files.size();
  while (next < end && since(start) < settings.seconds) {
    std::vector<Case> cases;
    auto at = Clock::now();
    for (; cases.size() < settings.batch && next < end; ++next) {
      if (!settings.files.empty()) {
        const std::string& file = settings.files[next - settings.from];
        const auto text = read_file(file);
        if (!text.ok()) return fmt::print(stderr, "{}\n", text.error().text()), 2;
        auto graph = graph::parse_random(*text, 1);
        if (!graph.ok()) return fmt::print(stderr, "{}: {}\n", file, graph.error().text()), 2;
        fmt::print("seed {} stands for {}\n", next, file);
        cases.push_back(case_of(std::move(*graph), next));
        continue;
      }
      graph::RandomOptions options = options_of(next, settings.steps);
      options.dtype = settings.type.value_or(options.dtype);
      cases.push_back(case_of(graph::random_graph(next, options), next));
    }
    spent.graphs += since(at), at = Clock::now();
    graphs += cases.size();
    const auto failed = [&](const Case& one, const Config* config, const std::string& wrong) {
      const std::string name = config ? config->name : "passes";
      ++counts[name].second;
      fmt::print("FAILED seed {}, {}: {}\n", one.seed, name, wrong);
      fflush(stdout);
      if (settings.found.empty() || shrunk >= settings.shrinks) return;
      ++shrunk;
      // In a child: a step towards a smaller graph may break the compiler, or keep it busy for
      // ever.
      fflush(nullptr);
      const pid_t child = fork();
      CHECK(child >= 0, "no child: {}", strerror(errno));
      if (child == 0) {
        alarm(300);
        keep_shrunk(one, config, wrong, settings);
        fflush(stdout);
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (status != 0)
        fmt::print("seed {}: it was not shrunk: the process ended: {}\n", one.seed,
                   WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "by itself");
      fflush(stdout);
    };
    std::set<size_t> given_up;  // told once a graph
    for (size_t k = 0; k < cases.size(); ++k) {
      nodes += cases[k].graph.order().size();
      if (!cases[k].failed.empty())
        failed(cases[k], nullptr, "the graph: " + cases[k].failed), given_up.insert(k);
    }
    if (with_passes)
      for (size_t k = 0; k < cases.size(); ++k) {
        if (given_up.count(k)) continue;
        ++counts["passes"].first;
        if (std::string wrong = passes_keep(cases[k]); !wrong.empty())
          failed(cases[k], nullptr, wrong);
      }
    spent.passes += since(at), at = Clock::now();
    std::vector<Job> jobs;
    std::vector<const runtime::Program*> programs;
    for (size_t k = 0; k < cases.size(); ++k)
      for (const Config& config : configs) {
        if (given_up.count(k)) continue;
        Job job{.of = k, .config = &config};
        job.failed = program_of(cases[k].graph, cases[k].seed, config, job.program);
        if (const std::string why =
                job.program && job.program->on_gpu() ? beyond_twin(*job.program) : "";
            !why.empty()) {
          ++beyond[why];
          continue;
        }
        if (job.program)
          programs.push_back(job.program.get()), bodies_seen += job.program->bodies.size();
        jobs.push_back(std::move(job));
      }
    spent.plans += since(at), at = Clock::now();
    if (const Status added = library.add(programs); !added.ok()) {
      fmt::print("FAILED seeds {} to {}: {}\n", cases.front().seed, cases.back().seed,
                 added.error().text());
      ++counts["compiler"].second;
      continue;
    }
    spent.compiler += since(at), at = Clock::now();
    run_apart(jobs, cases, library);
    spent.runs += since(at);
    std::set<size_t> told;
    for (const Job& job : jobs) {
      ++counts[job.config->name].first;
      if (job.failed.empty()) continue;
      if (told.insert(job.of).second)
        failed(cases[job.of], job.config, job.failed);
      else
        ++counts[job.config->name].second;
    }
    if (settings.count > settings.batch) {
      fmt::print(
          "{} graphs, {:.0f} s: graphs {:.1f}, passes {:.1f}, plans {:.1f}, compiler {:.1f}, runs "
          "{:.1f} s; {} of {} bodies compiled\n",
          graphs, since(start), spent.graphs, spent.passes, spent.plans, spent.compiler, spent.runs,
          library.count(), bodies_seen);
      fflush(stdout);
    }
  }
  uint64_t wrong = 0;
  fmt::print(
      "seeds {} to {}, {} nodes, {} distinct bodies of {}, {:.0f} s (graphs {:.1f}, passes {:.1f}, "
      "plans {:.1f}, compiler {:.1f}, runs {:.1f})",
      settings.from, next - 1, nodes, library.count(), bodies_seen, since(start), spent.graphs,
      spent.passes, spent.plans, spent.compiler, spent.runs);
  for (const auto& [name, count] : counts) {
    fmt::print("; {}: {} graphs, {} failed", name, count.first, count.second);
    wrong += count.second;
  }
  for (const auto& [why, count] : beyond) fmt::print("; not run, {}: {}", why, count);
  fmt::print("\n");
  return wrong > 0 ? 1 : 0;
}

/// In the order of their names.
std::vector<std::string> texts_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".ir") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

int main_of(int count, char** words) {
  Settings settings;
  if (const char* wished = getenv("OBELISK_GRAPHS")) settings.count = strtoull(wished, nullptr, 10);
  for (int k = 1; k + 1 < count; k += 2) {
    const std::string word = words[k], value = words[k + 1];
    if (word == "--from")
      settings.from = strtoull(value.c_str(), nullptr, 10);
    else if (word == "--count")
      settings.count = strtoull(value.c_str(), nullptr, 10);
    else if (word == "--batch")
      settings.batch = strtoull(value.c_str(), nullptr, 10);
    else if (word == "--configs")
      settings.names = split(value);
    else if (word == "--found")
      settings.found = value;
    else if (word == "--steps")
      settings.steps = atoi(value.c_str());
    else if (word == "--type") {
      settings.type = parse_dtype(value);
      if (!settings.type) return fmt::print(stderr, "no type is called '{}'\n", value), 2;
    } else if (word == "--show") {  // the graph of one seed, as text; --steps stands before
      const uint64_t seed = strtoull(value.c_str(), nullptr, 10);
      fmt::print("{}", graph::print(graph::random_graph(seed, options_of(seed, settings.steps)),
                                    {.all_data = true}));
      return 0;
    } else if (word == "--shrinks")
      settings.shrinks = atoi(value.c_str());
    else if (word == "--seconds")
      settings.seconds = atof(value.c_str());
    else if (word == "--graphs")
      settings.files = texts_of(value);
    else if (word == "--optimise")
      settings.optimise = value;
    else
      return fmt::print(stderr, "unknown: {}\n", word), 2;
  }
  if (count % 2 == 0) return fmt::print(stderr, "'{}' wants a value\n", words[count - 1]), 2;
  return run_all(settings);
}

}  // namespace
}  // namespace obelisk::random_graphs

int main(int count, char** words) { return obelisk::random_graphs::main_of(count, words); }
