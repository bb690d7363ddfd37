#include "flags.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

namespace obelisk::cli {
namespace {

std::atomic<int> interrupts{0};

void on_interrupt(int) {
  if (interrupts.fetch_add(1) > 0) _exit(static_cast<int>(Code::kInterrupted));
}

std::string_view word(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kUsage: return "usage";
    case Code::kBadModel: return "bad model";
    case Code::kUnsupported: return "unsupported";
    case Code::kBuild: return "build";
    case Code::kAccuracy: return "accuracy";
    case Code::kMemory: return "memory";
    case Code::kDevice: return "device";
    case Code::kInterrupted: return "interrupted";
  }
  return "error";
}

std::string joined(const std::vector<std::string>& types, const std::vector<std::string>& shapes) {
  std::string out;
  for (size_t k = 0; k < types.size(); ++k) out += (k ? ", " : "") + types[k] + (k < shapes.size() ? shapes[k] : "");
  return out;
}

}  // namespace

bool interrupted() { return interrupts.load(std::memory_order_relaxed) > 0; }

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void add_json(CLI::App& verb, Flags& flags) { verb.add_flag("--json", flags.json, "the answer as one JSON document on standard output"); }

void add_model(CLI::App& verb, Flags& flags) {
  verb.add_option("model", flags.file, "a model: .onnx, .obk, or a graph as text (.ir)")->required();
  verb.add_option("--shape", flags.shapes, "bind a shape or a dimension: NAME=2x128, batch=2 (again for more)")->take_all();
  add_json(verb, flags);
}

void add_machine(CLI::App& verb, Flags& flags) {
  verb.add_option("--target", flags.target, "cpu, reference (the interpreter), or auto")->check(CLI::IsMember({"auto", "cpu", "reference"}));
  verb.add_option("--precision", flags.precision, "keep the model's arithmetic, or change it")->check(CLI::IsMember({"keep", "fp32", "fp16", "bf16"}));
  verb.add_option("--threads", flags.threads, "workers; 0: one a core")->check(CLI::Range(0, 1024));
  verb.add_option("--sms", flags.sms, "virtual SMs that the table is made for; 0: one a worker")->check(CLI::Range(0, 4096));
  verb.add_option("--compiler", flags.compiler, "the C++ compiler that builds bodies");
  verb.add_option("--cache", flags.cache, "folder of the object cache, or off");
  verb.add_option("--disable", flags.disabled, "passes to leave out, by name")->delimiter(',');
}

void add_inputs(CLI::App& verb, Flags& flags) {
  verb.add_option("--input", flags.inputs, "NAME=F.npy (again for more)")->take_all();
  verb.add_option("--inputs", flags.archives, "F.npz with arrays by input name")->take_all();
  verb.add_option("--seed", flags.seed, "generate the inputs that are not given");
}

Result<compiler::Options> options_from(const Flags& flags) {
  compiler::Options options;
  options.sms = flags.sms > 0 ? flags.sms : flags.threads;
  options.threads = flags.threads;
  options.load.compiler = flags.compiler;
  options.load.cache_dir = flags.cache;
  options.disabled.insert(flags.disabled.begin(), flags.disabled.end());
  options.explain.insert(flags.explain.begin(), flags.explain.end());
  options.to = flags.to;
  options.interrupted = interrupted;
  if (flags.seed) options.verification.seed = *flags.seed;
  const auto precision = passes::parse_precision(flags.precision);
  CHECK(precision.has_value(), "--precision {} passed the flag's check", flags.precision);
  options.passes.precision = *precision;
  return options;
}

void answer(const Flags& flags, const Json& json, const std::string& text) {
  const std::string out = flags.json ? json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n" : text;
  fwrite(out.data(), 1, out.size(), stdout);
  fflush(stdout);
}

int fail(const Flags& flags, const Error& error, const frontends::ImportReport* report) {
  const int code = static_cast<int>(error.code);
  const size_t unsupported = report ? report->unsupported.size() : 0;
  std::string out;
  if (unsupported > 0) {
    const frontends::Unsupported& first = report->unsupported[0];
    out = fmt::format("error[O{}] {}: node \"{}\" ({}): {}\n", code, word(error.code), first.node, first.op, first.reason);
    out += fmt::format("  inputs  {}      in  {}\n", joined(first.types, first.shapes), flags.file);
    if (!first.hint.empty()) out += "  try     " + first.hint + "\n";
    if (unsupported > 1) {
      out += fmt::format("  also    {} more unsupported node{}:\n", unsupported - 1, unsupported > 2 ? "s" : "");
      for (size_t k = 1; k < std::min<size_t>(unsupported, 9); ++k)
        out += fmt::format("          \"{}\" ({}): {}\n", report->unsupported[k].node, report->unsupported[k].op, report->unsupported[k].reason);
      if (unsupported > 9) out += fmt::format("          all of them: obelisk check {}\n", flags.file);
    }
  } else {
    out = fmt::format("error[O{}] {}: ", code, word(error.code));
    if (!error.node.empty() && error.message.find(error.node) == std::string::npos) out += fmt::format("node \"{}\": ", error.node);
    out += fmt::format("{}\n", error.message);
    std::string place = error.room;
    if (!flags.file.empty() && error.message.find(flags.file) == std::string::npos) place += "      in  " + flags.file;
    if (!place.empty()) out += "  from    " + place + "\n";
    if (!error.hint.empty()) out += "  try     " + error.hint + "\n";
  }
  fwrite(out.data(), 1, out.size(), stderr);
  if (flags.json) {
    Json json = {{"ok", false}, {"error", {{"code", code}, {"kind", word(error.code)}, {"room", error.room}, {"message", error.message}, {"node", error.node}, {"hint", error.hint}}}};
    if (unsupported > 0) json["unsupported"] = json_of(*report);
    answer(flags, json, "");
  }
  return code;
}

Json json_of(const frontends::ImportReport& report) {
  Json list = Json::array();
  for (const frontends::Unsupported& one : report.unsupported)
    list.push_back({{"node", one.node}, {"op", one.op}, {"domain", one.domain}, {"types", one.types}, {"shapes", one.shapes}, {"reason", one.reason}, {"hint", one.hint}});
  return list;
}

Json port_json(const std::string& name, const Type& type) {
  return {{"name", name}, {"type", std::string(to_string(type.dtype))}, {"shape", type.shape}};
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
