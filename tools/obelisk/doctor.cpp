// obelisk doctor: is everything here that Obelisk needs, and if not, which command mends it.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "flags.h"
#include "helpers.h"

namespace obelisk::cli {
namespace {

namespace fs = std::filesystem;

struct Finding {
  std::string name;
  bool ok = true;
  std::string text, mend;
  Code essential = Code::kOk;  // the exit code when this is a problem; kOk: works without it
  bool wanted = true;          // false: only some flag needs it
};

/// The value of "KEY   : value" in a file of /proc, or nothing.
std::string proc_value(const char* file, const std::string& key) {
  auto text = read_file(file);
  if (!text.ok()) return "";
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

Finding cpu() {
  const std::string flags = " " + proc_value("/proc/cpuinfo", "flags") + " ";
  std::string features;
  for (const char* name :
       {"avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile"})
    if (flags.find(fmt::format(" {} ", name)) != std::string::npos)
      features += fmt::format(" {}", name);
  Finding found{"cpu", true,
                fmt::format("{};{}; {} cores", host_cpu(), features.empty() ? " no AVX2" : features,
                            machine::cpu().sms)};
#if !defined(__x86_64__)
  found.text += "; not an x86-64: products run in plain C++";
#endif
  return found;
}

Finding memory() {
  const double available = atof(proc_value("/proc/meminfo", "MemAvailable").c_str()) / 1e6,
               total = atof(proc_value("/proc/meminfo", "MemTotal").c_str()) / 1e6;
  Finding found{"memory", available >= 1,
                fmt::format("{:.1f} of {:.1f} GB are free", available, total)};
  if (!found.ok)
    found.mend = "end other programs: compiling needs up to three times the model's size";
  return found;
}

Finding compiler(const Flags& flags) {
  const auto path = runtime::find_compiler(flags.compiler);
  if (!path.ok())
    return {"compiler", false, path.error().message, "apt-get install g++", Code::kBuild};
  std::vector<std::string> words = runtime::compiler_words(*path);
  words.push_back("--version");
  auto process = Process::start(words, false);
  const std::string said = process.ok() ? process->read_all() : "";
  if (said.empty())
    return {"compiler", false, *path + " does not start", "apt-get install --reinstall g++",
            Code::kBuild};
  return {"compiler", true, *path + ": " + said.substr(0, said.find('\n'))};
}

Finding cache_folder(const Flags& flags) {
  const std::string folder = runtime::cache_folder(flags.cache);
  if (folder.empty())
    return {"cache", false, "off: every compile builds all bodies anew",
            "unset OBELISK_CACHE, or set it to a folder"};
  std::error_code failed;
  if (const auto opened = PrivateFolder::open(folder); !opened.ok())
    return {"cache", false, opened.error().message, opened.error().hint + ", or set OBELISK_CACHE"};
  const fs::space_info space = fs::space(folder, failed);
  const double free = failed ? 0 : static_cast<double>(space.available) / 1e9;
  if (!failed && free < 0.1)
    return {"cache", false, fmt::format("{}: {:.2f} GB of the disk are free", folder, free),
            "obelisk cache clear"};
  return {"cache", true, fmt::format("{}: {:.0f} GB of the disk are free", folder, free)};
}

/// The whole way, on a graph that takes a moment: compiled without the cache, loaded, run and
/// compared with the reference.
Finding pipeline(const Flags& flags) {
  compiler::Network network;
  auto graph = graph::parse(
      "graph \"doctor\" {\n  in %0 \"x\": f32[4,8]\n  in %1 \"w\": f32[8,4]\n  %2: f32[4,4] = "
      "MatMul(%0, %1)\n  %3 \"y\": f32[4,4] = Tanh(%2)\n  out %3 \"y\"\n}\n");
  CHECK(graph.ok(), "{}", graph.error().text());
  network.graph = std::move(*graph);
  compiler::Options options;
  options.load.compiler = flags.compiler;
  options.load.cache_dir = "off";
  options.interrupted = interrupted;
  compiler::Compilation compilation;
  if (const Status status = compiler::compile(network, options, compilation); !status.ok()) {
    const Error& error = status.error();
    return {
        "program", false, error.message, error.hint,
        error.code == Code::kBuild || error.code == Code::kUsage ? Code::kBuild : Code::kDevice};
  }
  double seconds = 0;
  for (const auto& timing : compilation.timings) seconds += timing.seconds;
  return {"program", true,
          fmt::format("a small network compiled, ran and agreed with the reference in {:.1f} s",
                      seconds)};
}

/// The GPU: its driver, then the compiler of device code. The CPU target works without both.
std::vector<Finding> gpu() {
  std::vector<Finding> found;
  const auto first = runtime::describe_gpu(0);
  if (first.ok()) {
    found.push_back(
        {"gpu", true,
         fmt::format("{} ({}, {} multiprocessors), {} of {} free, driver for CUDA {}.{}",
                     first->name, first->architecture, first->sms,
                     to_string(Bytes{first->free_bytes}), to_string(Bytes{first->total_bytes}),
                     first->driver_version / 1000, first->driver_version % 1000 / 10)});
  } else {
    found.push_back({"gpu", false, first.error().message + "; models run on the CPU",
                     first.error().hint.find("cpu") != std::string::npos
                         ? "install NVIDIA's driver, 525 or later: apt-get install nvidia-driver"
                         : first.error().hint});
  }
  const auto compiler = runtime::find_device_compiler();
  if (compiler.ok())
    found.push_back({"nvrtc", true, *compiler});
  else
    found.push_back({"nvrtc", false, compiler.error().message + "; compiled files run without it",
                     compiler.error().hint});
  return found;
}

/// A small network as one kernel on the GPU, and what it answers.
Finding gpu_program() {
  compiler::Network network;
  auto graph = graph::parse(
      "graph \"doctor\" {\n  in %0 \"x\": f32[64,96]\n  in %1 \"y\": f32[96]\n  %2: f32[64,96] = "
      "Add(%0, %1)\n  %3 \"z\": f32[64,96] = Tanh(%2)\n  out %3 \"z\"\n}\n");
  CHECK(graph.ok(), "{}", graph.error().text());
  network.graph = std::move(*graph);
  compiler::Options options;
  const auto first = runtime::describe_gpu(0);
  options.target = first->architecture, options.sms = first->sms,
  options.granularity = machine::Granularity::kMono;
  options.load.cache_dir = "off";
  options.load.watchdog = true;
  options.interrupted = interrupted;
  compiler::Compilation compilation;
  if (const Status status = compiler::compile(network, options, compilation); !status.ok())
    return {"gpu program", false, status.error().message, status.error().hint};
  return {"gpu program", true, "a small network ran as one kernel and agreed with the reference"};
}

/// What --emit sass needs.
Finding disassembler() {
  const std::string tool = find_disassembler();
  if (!tool.empty()) return {"nvdisasm", true, tool};
  return {"nvdisasm",
          false,
          "not found; compile --emit sass wants it",
          pip_install("nvidia-cuda-nvdisasm") + ", or OBELISK_NVDISASM=PATH of one",
          Code::kOk,
          false};
}

/// What Python says; empty where it fails.
std::string said_by(const std::string& python, const std::string& text) {
  auto process = Process::start({python, "-c", text}, false);
  std::string said = process.ok() ? process->read_all() : "";
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return said;
}

/// What bench --against torch needs. Its version is read, for starting it takes seconds.
Finding torch() {
  const std::string python = find_python();
  const std::string version = python.empty() ? "" : said_by(python, R"(
import importlib.metadata, importlib.util
try:
    print(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    print("of an unknown version" if importlib.util.find_spec("torch") else "")
)");
  if (!version.empty()) return {"torch", true, fmt::format("{} in {}", version, python)};
  return {"torch",
          false,
          (python.empty() ? "no Python was found" : python + " has no PyTorch") +
              "; bench --against torch wants it",
          pip_install("torch") + ", or OBELISK_PYTHON=PATH of a Python with it",
          Code::kOk,
          false};
}

Finding peer() {
  const std::string python = find_python();
  const std::string mend = "scripts/build.sh, or OBELISK_PYTHON=PATH of a Python with onnxruntime";
  if (python.empty())
    return {"onnxruntime", false,
            "no Python was found; bench and verify cannot compare with ONNX Runtime", mend};
  const std::string version = said_by(python, "import onnxruntime; print(onnxruntime.__version__)");
  if (version.empty())
    return {"onnxruntime", false,
            python + " has no onnxruntime; bench and verify cannot compare with it", mend};
  return {"onnxruntime", true, fmt::format("{} in {}", version, python)};
}

}  // namespace

int doctor(const Flags& flags) {
  std::vector<Finding> findings = {cpu(), memory(), compiler(flags), cache_folder(flags)};
  if (findings[2].ok) findings.push_back(pipeline(flags));
  for (Finding& one : gpu()) findings.push_back(std::move(one));
  if (findings.back().ok && findings[findings.size() - 2].ok) findings.push_back(gpu_program());
  if (interrupted()) return fail(flags, Error{Code::kInterrupted, "cli", "interrupted"});
  for (const auto& other : {disassembler, peer, torch}) findings.push_back(other());
  Json list = Json::array();
  std::string text;
  int code = 0;
  for (const Finding& one : findings) {
    const bool essential = one.essential != Code::kOk;
    if (!one.ok && essential && code == 0) code = static_cast<int>(one.essential);
    list.push_back({{"name", one.name},
                    {"ok", one.ok},
                    {"essential", essential},
                    {"text", one.text},
                    {"mend", one.mend}});
    const char* state = one.ok ? "ok" : one.wanted ? "problem" : "absent";
    text += fmt::format("{:<8} {:<12} {}\n", state, one.name, one.text);
    if (!one.ok && !one.mend.empty()) text += fmt::format("{:21} try: {}\n", "", one.mend);
  }
  answer(flags, {{"ok", code == 0}, {"version", OBELISK_VERSION}, {"findings", list}}, text);
  return code;
}

}  // namespace obelisk::cli
