/// serve/variants.h — the programs of one model, by batch and width: made from its file, on
/// whatever thread asks.
///
///   open      the file, mapped; what comes in and goes out; whether requests can be joined
///   compile   one program: import for a batch, all steps for a width, verification
///   measure   how long a run takes on so many slots
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "serve/device.h"
#include "serve/engine.h"
#include "serve/times.h"

namespace obelisk::serve {

struct ProgramOptions {
  std::string compiler, cache;
  bool verify = true;
  double verify_seconds = 10;
};

/// Machine code for a batch, and what a run of it is bound by.
struct Program {
  int batch = 1, width = 1;  // width: slots that it was made for, all of a CPU
  std::shared_ptr<const runtime::Executable> executable;
  Bound bound = Bound::kCompute;
  std::vector<Tensor> sample;  // inputs that it can be run with, to warm up and to measure
};

class Programs {
 public:
  /// Errors: those of reading and importing; kUsage where the batch dimension is none of the
  /// model's, or not every input and output begins with it.
  static Result<std::unique_ptr<Programs>> open(const ModelConfig& config,
                                                std::shared_ptr<const Device> device,
                                                const ProgramOptions& options);

  const std::vector<PortInfo>& inputs() const { return inputs_; }
  const std::vector<PortInfo>& outputs() const { return outputs_; }
  bool joins() const { return joins_; }  // requests can share a launch
  std::vector<int> batches() const;      // to be compiled, ascending: 1, 2, 4, ..., max_batch
  /// That each batch is compiled for, the one that serves first in front. Of a batch-invariant
  /// model none narrower than a gang of workers (machine.h), where there are wider ones.
  std::vector<int> widths() const;
  /// Of all its programs, on the device.
  Weights& device_weights() const { return *device_weights_; }

  /// `interrupted` is asked now and then; `admits` once it is known what the program takes and
  /// before its code is compiled. Errors: those of the compiler and of `admits`; kInterrupted.
  using Admits = std::function<Status(const runtime::Program&)>;
  Result<Program> compile(int batch, int width, const std::function<bool()>& interrupted,
                          const Admits& admits = {}) const;
  /// None will be compiled any more: gives back the model's file and what all programs were made
  /// from. Not while compile() runs.
  void close();

 private:
  Programs() = default;
  Result<compiler::Compilation> lower(int batch, int width, const std::string& to,
                                      const std::function<bool()>& interrupted,
                                      const Admits& admits = {}) const;
  ModelConfig config_;
  ProgramOptions options_;
  std::shared_ptr<const Device> device_;
  std::shared_ptr<Weights> device_weights_;
  compiler::Network network_;
  std::shared_ptr<runtime::WeightPool> weights_ =
      std::make_shared<runtime::WeightPool>();  // of all batches
  std::optional<runtime::Compiled> compiled_;   // of a compiled file
  std::vector<PortInfo> inputs_, outputs_;
  bool joins_ = false;
};

/// What some runs took, one after the other while nothing else was asked of the machine.
struct Measured {
  Time usual{0}, mean{0};  // the median; a mean that is far above it tells of a busy machine
  Time segment = kNever;   // the longest between two moments at which it could have given way, the
                           // median of runs; kNever: it cannot, or takes so little that it need not
};

/// A program on so many slots, with the seats that its runs take.
class Variant {
 public:
  /// `key`: by which its times are kept.
  Variant(Program program, int width, std::string key, std::shared_ptr<const Device> device)
      : program_(std::move(program)),
        width_(width),
        key_(std::move(key)),
        device_(std::move(device)) {}
  const std::string& key() const { return key_; }
  const Program& program() const { return program_; }
  int batch() const { return program_.batch; }
  int width() const { return width_; }
  /// One that nobody else has. Errors: kMemory, kDevice.
  Result<std::unique_ptr<Seat>> take();
  void give_back(std::unique_ptr<Seat> seat);
  /// Some runs, for about so long; the first is not counted.
  Result<Measured> measure(Time budget);
  /// At least so many seats are there, and have run once, so that no request waits for memory or
  /// for the driver's first sight of a program; fewer where there is no memory for them.
  Status prepare(int seats);

 private:
  /// What a run of the sample reads and writes.
  struct Sample {
    std::vector<const void*> in;
    std::vector<void*> out;
    std::vector<Tensor> outputs;
  };
  Sample sample() const;
  Program program_;
  int width_;
  std::string key_;
  std::shared_ptr<const Device> device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Seat>> free_;
};

}  // namespace obelisk::serve
