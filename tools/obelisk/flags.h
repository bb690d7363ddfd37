/// obelisk/flags.h — what the verbs share: flags, the file they work on, answers as text or JSON,
/// errors for people.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compile.h"

namespace CLI {
class App;
}

namespace obelisk::cli {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string file;
  std::vector<std::string> shapes;    // NAME=2x128, dimension=2
  std::vector<std::string> in_place;  // OUTPUT=INPUT
  std::vector<std::string> inputs;    // NAME=F.npy
  std::vector<std::string> archives;  // F.npz
  std::optional<uint64_t> seed;
  std::string target = "auto";
  std::string granularity = "auto";
  int64_t memory_limit = 0;  // MiB of a GPU's memory
  bool watchdog = false, gangs = true, batch_invariant = false, check_tables = false;
  std::string emit, folder;  // compile: texts to write, and where
  std::string trace;         // profile: a file for Perfetto
  bool host_tail = false;    // run: nodes whose shapes depend on data run on the host
  bool wants_lanes = false;  // profile: of a graph of kernels, also where waves are what runs
  std::string precision = "keep";
  std::string compiler, cache;
  std::vector<std::string> disabled, explain;
  std::string to;
  int sms = 0, threads = 0;
  std::string gemm_tile;
  std::string dispatch, launch_order, dispatch_from;  // of a graph of kernels
  int streams = 0;
  double search_seconds = 0;  // of --dispatch auto
  std::string against;        // bench, verify: the other side, or empty
  double seconds = 3;         // bench: how long the rounds go on
  std::string onnx;           // inspect: where to write the graph for viewers
  bool json = false, portable = false;
  bool verify = false;        // run, bench, compile: what is compiled
  double verify_seconds = 0;  // that the reference may take; 0: as long as it wants
};

/// The flags that say what is compiled and how; `json` is on every verb.
void add_json(CLI::App& verb, Flags& flags);
void add_model(CLI::App& verb, Flags& flags);
void add_machine(CLI::App& verb, Flags& flags);
void add_inputs(CLI::App& verb, Flags& flags);
/// --verify and --verify-seconds, which is `seconds` where it is not given.
void add_verify(CLI::App& verb, Flags& flags, double seconds);
void add_steps(CLI::App& verb, Flags& flags);  // --to, --explain

/// The machine that --target means ("reference": the CPU's). Errors: kUsage for a name that is
/// none, kDevice where a GPU is asked for and none is here.
Result<compiler::FoundMachine> machine_from(const Flags& flags);

/// Options of the compiler from the flags. Errors: kUsage, kUnsupported, kDevice.
Result<compiler::Options> options_from(const Flags& flags);

/// A line on stderr where --granularity was given and --target auto fell to the CPU, which has
/// none.
void tell_what_the_cpu_ignores(const Flags& flags, const compiler::Options& options);

/// Whether Ctrl-C was pressed. install() puts the handler in place; a second Ctrl-C ends at once.
bool interrupted();
void install_interrupt_handler();

/// Prints the answer: `json` as one document on stdout when --json, else `text`.
void answer(const Flags& flags, const Json& json, const std::string& text);

/// Prints an error to stderr (and to stdout as JSON when --json) in the form
///   error[O3] unsupported: node "find/NonZero" (NonZero): its output's size depends on data
///     inputs  f32[4]      in  model.onnx
///     try     ...
///     also    1 more unsupported node: obelisk check model.onnx
/// and returns the exit code.
int fail(const Flags& flags, const Error& error, const frontends::ImportReport* report = nullptr);

Json json_of(const frontends::ImportReport& report);
/// Of a program for a GPU: "granularity", "launches", "phases", "barriers", "cubin_bytes";
/// "kernels", those that are launched; "functions" that they call, of which the assembler says
/// less; "warnings".
Json json_of(const runtime::DeviceReport& report);
Json port_json(const std::string& name, const Type& type);
/// The same of a port whose shape may have symbols: [1, "batch", "?"].
Json port_json(const frontends::PortDescription& port);
int64_t peak_rss_bytes();
std::string host_cpu();

/// A verb's body throws nothing; what it returns is the exit code.
int check(const Flags& flags);
int run(const Flags& flags, const std::string& output_dir);
int compile(const Flags& flags, const std::string& output);
int bench(const Flags& flags);
int profile(const Flags& flags);
int verify(const Flags& flags, bool bisect);
int inspect(const Flags& flags);
/// `measure`: where the program can run here, one run is timed.
int report(const Flags& flags, const std::string& output, bool measure);
int cache(const Flags& flags, bool clear);
int doctor(const Flags& flags);
int batch(const Flags& flags,
          const std::function<int(std::vector<std::string>)>& command);  // words to exit code

}  // namespace obelisk::cli
