/// obelisk/model.h — a compiled model: made from a network's file, or opened from a compiled one.
///
///   obelisk::Model model = obelisk::Model::compile("m.onnx", {.dimensions = {{"batch", 1}}});
///   model.save("m.obk");
///   obelisk::Model again = obelisk::Model::open("m.obk");
///
/// A Model is immutable and cheap to copy: copies share one program. Any number of threads may use
/// it at once, each through a Context of its own (context.h).
/// Errors  Failure (error.h) by every function here; nothing half made stays behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "obelisk/error.h"
#include "obelisk/port.h"

namespace obelisk {

class Context;

/// What comparing with the reference found, on generated inputs. Of an opened file only `rows` is
/// known.
struct Verification {
  double max_abs = 0;    // the largest difference
  double max_rel = 0;    // relative to the scale of the output it is in
  double tolerance = 0;  // what that output was allowed, relative to its scale
  double rounding = 0;  // what the model's arithmetic costs the reference itself, on the same scale
  std::string rows;     // that were compared: "every row", "3 of 128 rows of 'y'"
  bool before = false;  // it was found by an earlier run, and kept in the cache
};

struct CompileOptions {
  std::map<std::string, std::vector<int64_t>> shapes;  // by input
  std::map<std::string, int64_t> dimensions;           // by symbolic dimension
  std::map<std::string, std::vector<int64_t>> values;  // of inputs that shapes depend on
  /// By output: an input of the same type whose memory it takes, such as a cache that a step
  /// updates. bind_output() may then be given what bind_input() was (context.h). kUsage for names
  /// that the model lacks, for other types, for two outputs of one input, and of a graph as text,
  /// which says it itself.
  std::map<std::string, std::string> in_place;
  /// "cpu"; "cuda" or "cuda:1", a GPU of this machine; "auto", a GPU where one and its compiler
  /// are, else the CPU; or an architecture, "sm_90a", of a GPU that need not be here: such a model
  /// can be saved, not run. kDevice where no such GPU is.
  std::string target = "cpu";
  /// Of a GPU: "mono" (one kernel), "stitch" (a graph of stitched kernels), "op" (a kernel an op),
  /// "auto" (the quickest).
  std::string granularity = "auto";
  /// Of a graph of kernels ("stitch", "op"): which of them may run beside which. "waves", every
  /// kernel after all of the wave before; "sequential"; "nimble" and "opara", lanes by these
  /// papers; "critical", by the longest remaining path; "auto", the quickest, measured on a
  /// machine with the GPU and kept in the cache, predicted elsewhere. On a CPU the same of its
  /// works. Empty: "auto" on a CPU and on a machine with the GPU, else "waves".
  std::string dispatch;
  double search_seconds = 0;  // of "auto": for a search over orders, lanes and kernels
                              // for fewer SMs, whose result is kept
  int64_t memory_limit = 0;   // bytes of the GPU's memory for weights and all Contexts; 0: what
                              // there is. kMemory beyond it
  bool batch_invariant =
      false;              // on a GPU a row has the same bits in models of any batch, and is slower
  bool watchdog = false;  // a GPU that waits for two seconds stops, and the failure says for what
  /// "keep" the model's arithmetic, or "fp32", "tf32" (products round what they multiply to 10 bits
  /// of mantissa), "fp16", "bf16"; inputs and outputs keep their types.
  std::string precision = "keep";
  int threads = 0;      // workers that verifying runs on; 0: one a core
  int virtual_sms = 0;  // that the tables are made for; 0: one a worker
  bool verify = true;   // compare with the reference: kAccuracy when it is too far off; once for a
                        // program, the cache keeps it
  double verify_seconds = 10;  // that the reference may take: with less than all rows take it looks
                               // at some; 0: as long as it wants
  std::string compiler;        // the C++ compiler for bodies; empty: found on the PATH
  std::string cache;           // folder of the object cache; empty: the user's; "off": none
  std::string folder;  // of bytes: where the model's external data lies; empty: there is none
  /// Of bytes: external data that lies in memory, by location. It is the caller's to keep,
  /// unchanged, for as long as the model lives: what needs no other layout is used where it is.
  std::map<std::string, std::span<const std::byte>> memory;
  /// Nodes whose shapes depend on data (NonZero, NonMaxSuppression, Unique, an If or Loop by a
  /// value), and all that reads them, run on the host after the program, by the reference. Extents
  /// of such outputs are -1: Context::output_shape has them after a run. false: kUnsupported.
  bool host_tail = true;
  std::function<void(const std::string& step, double done)> progress;  // done in [0, 1]
  std::function<bool()> interrupted;  // asked now and then; true ends with kInterrupted
};

struct OpenOptions {
  /// A compiled file carries machine code and is trusted as a program is. `portable` does not run
  /// that code: all checksums are looked at, and the graph inside is compiled again.
  bool portable = false;
  int gpu = 0;               // of a GPU's model: which one
  int64_t memory_limit = 0;  // as above
  bool watchdog = false;
  std::string compiler, cache;  // as above, where something has to be compiled
};

class Model {
 public:
  // Moving copies, so that a moved-from Model is one still.
  Model(const Model&) = default;
  Model& operator=(const Model&) = default;
  ~Model() = default;

  /// Compiles a network (.onnx, or a graph as text, .ir).
  static Model compile(const std::string& path, const CompileOptions& options = {});
  /// The same of an .onnx file's bytes, which are copied.
  static Model compile(std::span<const std::byte> file, const CompileOptions& options = {});
  /// Opens a compiled file (.obk). It stays mapped as long as the model lives.
  static Model open(const std::string& path, const OpenOptions& options = {});
  /// The same of its bytes, which are copied.
  static Model open(std::span<const std::byte> file, const OpenOptions& options = {});

  /// Writes the compiled file, whole or not at all. kUnsupported where a part runs on the host.
  void save(const std::string& path) const;
  /// The bytes that save() writes.
  std::vector<std::byte> save() const;

  const std::string& name() const noexcept;
  std::span<const Port> inputs() const noexcept;
  std::span<const Port> outputs() const noexcept;
  /// Names are unique among the inputs, and among the outputs. kUsage for a name that is not there.
  const Port& input(const std::string& name) const;
  const Port& output(const std::string& name) const;

  /// "cpu", or the GPU's architecture; and which GPU, -1 of a CPU.
  const std::string& target() const noexcept;
  int gpu() const noexcept;
  int64_t workspace_bytes() const noexcept;  // that each Context takes, besides inputs and outputs
  /// Empty where the answers were not compared with the reference; then `unverified` says why.
  const std::optional<Verification>& verification() const noexcept;
  const std::string& unverified() const noexcept;
  /// Ops that run by their slow reference, on one worker, and allocate while they do; mostly none.
  /// Those of a host tail too.
  std::span<const std::string> slow_ops() const noexcept;

 private:
  friend class Context;
  struct State;
  explicit Model(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace obelisk
