/// obelisk/context.h — runs a model: the memory and the workers of one user.
///
///   obelisk::Context context(model);
///   std::ranges::copy(pixels, context.input<float>("pixels").begin());
///   context.run();
///   std::span<const float> scores = context.output<float>("scores");
///
/// On a GPU  Inputs and outputs may be its memory (bind_input, bind_output, or obelisk/dlpack.h),
/// which is used in place:
///
///   context.bind_input("pixels", {device_pointer, bytes});
///   context.bind_output("scores", {other_pointer, more_bytes});
///   context.run_on(stream);      returns at once; the caller's stream has the work
///
/// Threads  A context belongs to one thread at a time. Contexts of one model run side by side.
/// Moved from  it answers no more: every function throws kUsage. It may be assigned to.
/// Memory   After the first run() a run allocates nothing, unless the model has slow_ops().
/// Numbers  The same inputs give the same bits, whatever `threads` is.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "obelisk/model.h"

namespace obelisk {

class Context {
 public:
  /// `threads`: workers, the caller among them; 0: one a core, at most one a virtual SM.
  explicit Context(Model model, int threads = 0);
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  const Model& model() const;

  /// An input's elements, to be written before run(). They keep their values from run to run, and
  /// begin as zeros. kUsage for an unknown name or another element type than the port's.
  template <typename T>
  std::span<T> input(const std::string& name) {
    const std::span<std::byte> bytes = input_memory(name, ElementOf<T>::value);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  /// An output's elements, as the last run() left them; of a bound one the caller's memory. kUsage
  /// where that is a GPU's.
  template <typename T>
  std::span<const T> output(const std::string& name) {
    const std::span<const std::byte> bytes = output_memory(name, ElementOf<T>::value);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  /// The same as bytes, for every element type.
  std::span<std::byte> input_bytes(const std::string& name);
  std::span<const std::byte> output_bytes(const std::string& name);

  /// The shape of what output() gives: the port's, or where extents depend on data those of the
  /// last run.
  std::vector<int64_t> output_shape(const std::string& name);

  /// Reads an input from, or writes an output to, the caller's memory from now on: no copy. It has
  /// the port's bytes, is aligned as its elements are, and stays valid through every run(). Inputs
  /// and outputs may not overlap, but for an output and the input that Port::in_place_of names:
  /// given one memory they are updated there (and hold neither value after a run that failed);
  /// given two, run() copies the input to the output first. Of a GPU's model it may be that GPU's
  /// memory, aligned to 16 bytes (run() says so where it is not); what lies in the host's is copied
  /// there and back. kUsage when size or alignment differ, and for an output whose size depends on
  /// data.
  void bind_input(const std::string& name, std::span<const std::byte> memory);
  void bind_output(const std::string& name, std::span<std::byte> memory);
  /// From now on the port's memory is the context's own again, which begins as zeros.
  void unbind_input(const std::string& name);
  void unbind_output(const std::string& name);

  /// Answers. Failure when an op finds its inputs out of range (an index, say).
  void run();
  /// The same on a stream of the caller's (a CUstream or cudaStream_t; null: the default one),
  /// where every input and output is bound to the GPU's memory; returns before the work is done.
  /// Runs of one context follow each other whatever streams they are given. On a stream that is
  /// being captured the run becomes a part of that CUDA graph, with memory of its own, which the
  /// model keeps: it is to live as long as the graph. A failure of the device
  /// may come with a later call: then this context does not run again. kUsage where a port is not
  /// bound to the GPU's memory, kUnsupported of a CPU's model and where a part runs on the host.
  void run_on(void* stream);
  /// Until all runs are done. Failure, kDevice, of one that failed after run_on() had returned.
  void wait();

 private:
  std::span<std::byte> input_memory(const std::string& name, Element element);
  std::span<const std::byte> output_memory(const std::string& name, Element element);
  struct State;
  State& state() const;  // kUsage when moved from
  std::unique_ptr<State> state_;
};

}  // namespace obelisk
