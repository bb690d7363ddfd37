#include "flags.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace obelisk::cli {
namespace {

std::atomic<int> interrupts{0};

void on_interrupt(int) {
  if (interrupts.fetch_add(1) > 0) _exit(static_cast<int>(Code::kInterrupted));
}

std::string_view word(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kUsage:
      return "usage";
    case Code::kBadModel:
      return "bad model";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kBuild:
      return "build";
    case Code::kAccuracy:
      return "accuracy";
    case Code::kMemory:
      return "memory";
    case Code::kDevice:
      return "device";
    case Code::kInterrupted:
      return "interrupted";
  }
  return "error";
}

/// What is wrong with a target's name and, on a line of its own, the way out; nothing of a right
/// one.
std::string wrong_target(const std::string& name) {
  for (const char* known : {"auto", "cpu", "reference", "cuda"})
    if (name == known) return "";
  if (name.starts_with("cuda:") && name.size() > 5 && name.size() < 9 &&
      name.find_first_not_of("0123456789", 5) == std::string::npos)
    return "";
  const auto architecture = machine::gpu(name);
  if (architecture.ok()) return "";
  const bool of_gpu = name.starts_with("sm_");
  return fmt::format("there is no target '{}'\n{}{}", name,
                     of_gpu ? "" : "auto, cpu, reference, cuda, cuda:N, or one of the ",
                     architecture.error().hint);
}

/// The same of granularities: a list, for bench.
std::string wrong_granularity(const std::string& names) {
  std::istringstream list(names);
  bool known = !names.empty();
  for (std::string name; std::getline(list, name, ',');)
    known = known && compiler::parse_wanted_granularity(name).ok();
  return known ? ""
               : fmt::format(
                     "there is no granularity '{}'\nop, stitch, mono or auto; of bench also some "
                     "of them: op,stitch,mono",
                     names);
}

/// The same of dispatches.
std::string wrong_dispatch(const std::string& names) {
  constexpr std::string_view kKnown[] = {"waves", "sequential", "nimble",
                                         "opara", "critical",   "auto"};
  std::istringstream list(names);
  bool known = !names.empty();
  for (std::string name; std::getline(list, name, ',');)
    known = known && std::ranges::find(kKnown, name) != std::end(kKnown);
  return known ? ""
               : fmt::format(
                     "there is no dispatch '{}'\nwaves, sequential, nimble, opara, critical "
                     "or auto; of bench also some of them: waves,opara,critical",
                     names);
}

/// "boxes f32[1,8,4], scores f32[1,80,8]"
std::string inputs_of(const frontends::Unsupported& node) {
  std::vector<std::string> words;
  for (size_t k = 0; k < node.types.size(); ++k) {
    if (node.inputs[k].empty()) continue;  // an optional one that is not given
    const std::string& shape = node.shapes[k];
    const bool known = node.types[k] != "?";
    words.push_back(fmt::format("{} {}", node.inputs[k], known ? node.types[k] + shape : "?"));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

/// "NonMaxSuppression, opset 11"
std::string op_of(const frontends::Unsupported& node) {
  const std::string op = node.domain.empty() ? node.op : node.domain + "." + node.op;
  return node.opset > 0 ? fmt::format("{}, opset {}", op, node.opset) : op;
}

/// What --emit dispatch wrote.
Result<std::vector<schedule::Dispatched>> dispatch_from_file(const std::string& file) {
  const auto wrong = [&](const std::string& what) {
    return Error{Code::kUsage, "cli", fmt::format("'{}' is no dispatch: {}", file, what), "",
                 "--emit dispatch -d DIR writes DIR/dispatch.json"};
  };
  std::ifstream in(file);
  const Json json = Json::parse(in, nullptr, false);
  if (!json.is_array() || json.empty()) return wrong("it is not a JSON list of kernels");
  std::vector<schedule::Dispatched> kernels;
  for (const Json& each : json) {
    constexpr int64_t kMost = 1 << 20;
    const auto small = [](const Json& number) {
      return number.is_number_integer() && number.get<int64_t>() < kMost &&
             number.get<int64_t>() > -kMost;
    };
    const auto whole = [&](const char* name) {
      return each.is_object() && each.contains(name) && small(each[name]);
    };
    if (!whole("kernel") || !whole("position") || !whole("lane") || !whole("priority") ||
        !each.contains("predecessors") || !each["predecessors"].is_array())
      return wrong(fmt::format("entry {} lacks kernel, position, lane, priority or predecessors",
                               kernels.size()));
    schedule::Dispatched one{each["kernel"].get<int>(), each["position"].get<int>(),
                             each["lane"].get<int>(), each["priority"].get<int>()};
    for (const Json& before : each["predecessors"]) {
      if (!small(before))
        return wrong(fmt::format("entry {} has a predecessor that is no kernel", kernels.size()));
      one.predecessors.push_back(before.get<int>());
    }
    if (each.contains("early") && each["early"].is_boolean()) one.early = each["early"].get<bool>();
    if (each.contains("reason") && each["reason"].is_string())
      one.reason = each["reason"].get<std::string>();
    kernels.push_back(std::move(one));
  }
  return kernels;
}

}  // namespace

bool interrupted() { return interrupts.load(std::memory_order_relaxed) > 0; }

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void add_json(CLI::App& verb, Flags& flags) {
  verb.add_flag("--json", flags.json, "the answer as one JSON document on standard output");
}

void add_model(CLI::App& verb, Flags& flags) {
  verb.add_option("model", flags.file, "a model: .onnx, .obk, or a graph as text (.ir)")
      ->required();
  verb.add_option("--shape", flags.shapes,
                  "bind a shape or a dimension: NAME=2x128, batch=2 (again for more)")
      ->take_all();
  verb.add_option("--in-place", flags.in_place,
                  "an output takes the memory of an input, of which it may be an update: "
                  "OUTPUT=INPUT (again for more)")
      ->take_all();
  add_json(verb, flags);
}

void add_machine(CLI::App& verb, Flags& flags) {
  verb.add_option("--target", flags.target,
                  "cpu, cuda, cuda:N, reference (the interpreter), auto (a GPU where one is), or "
                  "an architecture to compile for: sm_90a, sm_89, sm_80")
      ->check(CLI::Validator(wrong_target, "TARGET"));
  verb.add_option("--granularity", flags.granularity,
                  "of a GPU: op (a kernel an op), stitch (a kernel a group), mono (one kernel), "
                  "auto (the quickest)")
      ->check(CLI::Validator(wrong_granularity, "NAME"));
  verb.add_option("--dispatch", flags.dispatch,
                  "of a graph of kernels, or of a CPU's works: waves, sequential, nimble, opara, "
                  "critical, auto (the quickest: measured, predicted where no GPU is); otherwise "
                  "auto on a CPU and on a machine with the GPU, else waves")
      ->check(CLI::Validator(wrong_dispatch, "NAME"));
  verb.add_option(
      "--launch-order", flags.launch_order,
      "of such a graph: topological, opara, critical, random:SEED; otherwise --dispatch's own");
  verb.add_option("--streams", flags.streams,
                  "of such a graph: lanes at most; 0: as many as --dispatch wants")
      ->check(CLI::Range(0, 1024));
  verb.add_option("--search-seconds", flags.search_seconds,
                  "of --dispatch auto: seconds for a search that begins with the quickest")
      ->check(CLI::Range(0.0, 86400.0));
  verb.add_option("--dispatch-from", flags.dispatch_from,
                  "of such a graph: what --emit dispatch wrote, a file, in place of --dispatch")
      ->check(CLI::ExistingFile);
  verb.add_option("--memory-limit", flags.memory_limit,
                  "MiB of a GPU's memory that a program may take; 0: what there is")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  verb.add_flag("--watchdog", flags.watchdog,
                "a GPU that waits for two seconds stops and says for what");
  verb.add_flag("--gangs,!--no-gangs", flags.gangs,
                "on a GPU: the steps of a recurrent layer in one phase, by a gang of "
                "multiprocessors; --no-gangs unrolls them");
  verb.add_option("--precision", flags.precision,
                  "keep the model's arithmetic, or change it; tf32: f32 whose products round what "
                  "they multiply to 10 bits of mantissa")
      ->check(CLI::IsMember({"keep", "fp32", "tf32", "fp16", "bf16"}));
  verb.add_flag("--batch-invariant", flags.batch_invariant,
                "on a GPU: a row has the same bits in programs of any batch; slower (on a CPU it "
                "has anyway)");
  verb.add_option("--threads", flags.threads,
                  "the most workers, small programs take fewer; 0: one a core")
      ->check(CLI::Range(0, 1024));
  verb.add_option("--sms", flags.sms, "virtual SMs that the table is made for; 0: one a worker")
      ->check(CLI::Range(0, 4096));
  verb.add_option("--gemm-tile", flags.gemm_tile,
                  "on a GPU: ROWSxCOLUMNS of pipelined GEMMs' tiles, where they can have them, in "
                  "place of those predicted to be quickest");
  verb.add_option("--compiler", flags.compiler, "the C++ compiler that builds bodies");
  verb.add_option("--cache", flags.cache, "folder of the object cache, or off");
  verb.add_flag("--check-tables", flags.check_tables,
                "run the task tables with tags in place of numbers first: every read must find the "
                "element that the graph means");
  verb.add_option("--disable", flags.disabled, "passes to leave out, by name")->delimiter(',');
}

void add_inputs(CLI::App& verb, Flags& flags) {
  verb.add_option("--input", flags.inputs, "NAME=F.npy (again for more)")->take_all();
  verb.add_option("--inputs", flags.archives, "F.npz with arrays by input name")->take_all();
  verb.add_option("--seed", flags.seed, "generate the inputs that are not given");
}

void add_verify(CLI::App& verb, Flags& flags, double seconds) {
  verb.add_option_function<std::string>(
          "--verify", [&flags](const std::string& mode) { flags.verify = mode == "on"; },
          "compare what is compiled with the reference on generated inputs, once for a program "
          "(default: on)")
      ->check(CLI::IsMember({"on", "off"}));
  verb.add_option_function<double>(
          "--verify-seconds", [&flags](double given) { flags.verify_seconds = given; },
          fmt::format("that the reference may take; with less than all rows take it looks at some; "
                      "0: as long as it wants (default: {:g})",
                      seconds))
      ->check(CLI::Range(0.0, 1e6));
  verb.preparse_callback(
      [&flags, seconds](size_t) { flags.verify = true, flags.verify_seconds = seconds; });
}

void add_steps(CLI::App& verb, Flags& flags) {
  verb.add_option("--to", flags.to, "stop after a step and print what it made");
  verb.add_option("--explain", flags.explain, "print the decisions of steps")->delimiter(',');
}

/// "128x96".
Result<machine::GemmTile> gemm_tile_of(const std::string& text) {
  machine::GemmTile tile;
  int end = 0;
  if (sscanf(text.c_str(), "%5" SCNd64 "x%5" SCNd64 "%n", &tile.rows, &tile.columns, &end) != 2 ||
      static_cast<size_t>(end) != text.size() || tile.rows < 1 || tile.columns < 1)
    return Error{Code::kUsage, "cli", "--gemm-tile " + text + " is no tile", "",
                 "rows and columns: 128x96"};
  return tile;
}

Result<compiler::FoundMachine> machine_from(const Flags& flags) {
  return compiler::find_machine(flags.target == "reference" ? "cpu" : flags.target, flags.sms,
                                flags.threads);
}

Result<compiler::Options> options_from(const Flags& flags) {
  compiler::Options options;
  TRY(const compiler::FoundMachine machine, machine_from(flags));
  options.target = machine.target;
  options.sms = machine.sms;
  if (const size_t comma = flags.granularity.find(','); comma != std::string::npos)
    return Error{Code::kUsage, "cli", "only bench takes several granularities", "",
                 "--granularity " + flags.granularity.substr(0, comma)};
  for (const auto& [flag, names] :
       {std::pair("--dispatch", &flags.dispatch), std::pair("--launch-order", &flags.launch_order)})
    if (const size_t comma = names->find(','); comma != std::string::npos)
      return Error{Code::kUsage, "cli", fmt::format("only bench takes several of {}", flag), "",
                   fmt::format("{} {}", flag, names->substr(0, comma))};
  TRY(options.granularity, compiler::parse_wanted_granularity(flags.granularity));
  if (flags.granularity != "auto" && (flags.target == "cpu" || flags.target == "reference"))
    return Error{Code::kUsage, "cli",
                 fmt::format("--granularity {} is of GPUs, the target is {}", flags.granularity,
                             flags.target),
                 "", "leave it out, or --target cuda; sm_90a compiles without a GPU"};
  options.load.gpu = machine.gpu;
  options.load.memory_limit = Bytes{flags.memory_limit << 20};
  options.dispatch.policy = flags.dispatch, options.dispatch.launch_order = flags.launch_order,
  options.dispatch.streams = flags.streams;
  options.dispatch.search_seconds = flags.search_seconds;
  options.wants_dispatch = flags.wants_lanes;
  if (!flags.dispatch_from.empty()) {
    if (!flags.dispatch.empty())
      return Error{Code::kUsage, "cli", "--dispatch and --dispatch-from say two things", "",
                   "one of them"};
    TRY(options.dispatch_from, dispatch_from_file(flags.dispatch_from));
  }
  options.load.watchdog = flags.watchdog;
  options.stitch.gangs = flags.gangs;
  options.threads = flags.threads;
  options.load.compiler = flags.compiler;
  options.load.cache_dir = flags.cache;
  options.batch_invariant = flags.batch_invariant, options.check_tables = flags.check_tables;
  if (!flags.gemm_tile.empty()) {
    TRY(options.gemm_tile, gemm_tile_of(flags.gemm_tile));
  }
  options.disabled.insert(flags.disabled.begin(), flags.disabled.end());
  options.explain.insert(flags.explain.begin(), flags.explain.end());
  options.to = flags.to;
  options.interrupted = interrupted;
  if (flags.seed) options.verification.seed = *flags.seed;
  options.verify = flags.verify;
  if (flags.verify_seconds > 0) options.verification.seconds = flags.verify_seconds;
  const auto precision = passes::parse_precision(flags.precision);
  CHECK(precision.has_value(), "--precision {} passed the flag's check", flags.precision);
  options.passes.precision = *precision;
  return options;
}

void answer(const Flags& flags, const Json& json, const std::string& text) {
  const std::string out =
      flags.json ? json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : text;
  fwrite(out.data(), 1, out.size(), stdout);
  fflush(stdout);
}

int fail(const Flags& flags, const Error& error, const frontends::ImportReport* report) {
  const int code = static_cast<int>(error.code);
  const size_t unsupported = report ? report->unsupported.size() : 0;
  std::string out;
  if (unsupported > 0) {
    const frontends::Unsupported& first = report->unsupported[0];
    out = fmt::format("error[O{}] {}: node \"{}\" ({}): {}\n", code, word(error.code), first.node,
                      op_of(first), first.reason);
    const std::string inputs = inputs_of(first);
    if (!inputs.empty()) out += fmt::format("  inputs  {}\n", inputs);
    out += fmt::format("  in      {}\n", flags.file);
    if (!first.hint.empty()) out += "  try     " + first.hint + "\n";
    if (unsupported > 1) {
      out += fmt::format("  also    {} more unsupported node{}:\n", unsupported - 1,
                         unsupported > 2 ? "s" : "");
      for (size_t k = 1; k < std::min<size_t>(unsupported, 9); ++k)
        out += fmt::format("          \"{}\" ({}): {}\n", report->unsupported[k].node,
                           report->unsupported[k].op, report->unsupported[k].reason);
      if (unsupported > 9)
        out += fmt::format("          all of them: obelisk check {}\n", flags.file);
    }
  } else {
    out = fmt::format("error[O{}] {}: ", code, word(error.code));
    const bool named = error.message.find("'" + error.node + "'") != std::string::npos;
    if (!error.node.empty() && !named) out += fmt::format("node \"{}\": ", error.node);
    out += fmt::format("{}\n", error.message);
    std::string place = error.room;
    if (!flags.file.empty() && error.message.find(flags.file) == std::string::npos)
      place += "      in  " + flags.file;
    if (!place.empty()) out += "  from    " + place + "\n";
    if (!error.hint.empty()) out += "  try     " + error.hint + "\n";
  }
  fwrite(out.data(), 1, out.size(), stderr);
  if (flags.json) {
    Json json = {{"ok", false},
                 {"error",
                  {{"code", code},
                   {"kind", word(error.code)},
                   {"room", error.room},
                   {"message", error.message},
                   {"node", error.node},
                   {"hint", error.hint}}}};
    if (unsupported > 0) json["unsupported"] = json_of(*report);
    answer(flags, json, "");
  }
  return code;
}

void tell_what_the_cpu_ignores(const Flags& flags, const compiler::Options& options) {
  if (flags.target == "auto" && options.target == "cpu" && flags.granularity != "auto")
    fmt::print(stderr,
               "note: --granularity {} is of GPUs; there is none here that can be compiled for, so "
               "the target is cpu (--target cuda makes this an error)\n",
               flags.granularity);
}

Json json_of(const frontends::ImportReport& report) {
  Json list = Json::array();
  for (const frontends::Unsupported& one : report.unsupported)
    list.push_back({{"node", one.node},
                    {"op", one.op},
                    {"domain", one.domain},
                    {"types", one.types},
                    {"shapes", one.shapes},
                    {"reason", one.reason},
                    {"hint", one.hint}});
  return list;
}

Json json_of(const runtime::DeviceReport& report) {
  Json kernels = Json::array(), functions = Json::array();
  for (const runtime::KernelReport& each : report.kernels) {
    if (each.launches > 0)
      kernels.push_back({{"name", each.name},
                         {"launches", each.launches},
                         {"registers", each.registers},
                         {"spill_bytes", each.spill_bytes},
                         {"smem_bytes", each.smem_bytes}});
    else if (each.registers == 0)  // the assembler says it of kernels alone
      functions.push_back({{"name", each.name}, {"spill_bytes", each.spill_bytes}});
  }
  return {{"granularity", to_string(report.granularity)},
          {"launches", report.launches},
          {"phases", report.phases},
          {"barriers", report.barriers},
          {"overlaps", report.overlaps},
          {"cubin_bytes", report.cubin_bytes},
          {"bytes_streamed", report.bytes_streamed},
          {"kernels", kernels},
          {"functions", functions},
          {"warnings", report.warnings}};
}

Json port_json(const std::string& name, const Type& type) {
  return {{"name", name}, {"type", std::string(to_string(type.dtype))}, {"shape", type.shape}};
}

Json port_json(const frontends::PortDescription& port) {
  Json shape = Json::array();
  for (const std::string& dimension : port.shape) {
    const bool number = dimension.find_first_not_of("0123456789") == std::string::npos;
    const bool short_enough = !dimension.empty() && dimension.size() < 19;  // of an int64
    shape.push_back(number && short_enough ? Json(std::stoll(dimension)) : Json(dimension));
  }
  return {{"name", port.name}, {"type", port.type}, {"shape", shape}};
}

int64_t peak_rss_bytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

std::string host_cpu() {
  const auto text = read_file("/proc/cpuinfo");
  if (!text.ok()) return "cpu";
  const size_t at = text->find("model name");
  if (at == std::string::npos) return "cpu";
  const size_t colon = text->find(':', at);
  return text->substr(colon + 2, text->find('\n', colon) - colon - 2);
}

}  // namespace obelisk::cli
