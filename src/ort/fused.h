/// ort/fused.h — a part as one node of a session: a program for each shape that comes.
///
/// Threads  compute() may be called from any number of threads: each run takes a context of its
/// own. Memory   weights are copied once, for all programs; what ONNX Runtime holds of them it may
/// drop.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "obelisk/obelisk.h"
#include "ort/graph.h"

namespace obelisk::ort {

class Fused {
 public:
  Fused(Part part, const CompileOptions& options);

  /// Compiles for the shapes that the part's inputs have. Failure.
  void compile();
  /// The order in which the session gives inputs and wants outputs. kUsage for a name that is not
  /// the part's.
  void set_order(std::vector<std::string> inputs, std::vector<std::string> outputs);
  void compute(const Api& api, KernelContext* session);
  const Part& part() const { return part_; }

 private:
  using Shapes = std::vector<std::vector<int64_t>>;  // of the inputs, in the part's order
  struct Program {
    explicit Program(Model compiled) : model(std::move(compiled)) {}
    const Model model;
    std::mutex mutex;  // guards `idle`
    std::vector<std::unique_ptr<Context>> idle;
  };
  std::shared_ptr<Program> program_for(const Shapes& shapes);
  void run(const Api& api, KernelContext* session, Program& program, Context& context) const;

  Part part_;
  CompileOptions options_;
  std::vector<std::vector<std::byte>> weights_;  // that part_.memory looks into
  std::vector<size_t> inputs_;                   // the session's place of each of the part's inputs
  std::vector<size_t> outputs_;                  // and outputs
  std::mutex mutex_;                             // guards `programs_`
  std::list<std::pair<Shapes, std::shared_ptr<Program>>> programs_;  // the last used first
};

}  // namespace obelisk::ort
