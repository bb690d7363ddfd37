/// runtime/program.h — a compiled network as data: what an .obk file holds and what a machine needs
/// to run it.
#pragma once

#include <string>
#include <vector>

#include "codegen/codegen.h"

namespace obelisk::runtime {

using schedule::BufferKind;

/// Where an operand's bytes are.
struct Place {
  BufferKind kind = BufferKind::kArena;
  int64_t index = 0;       // input, output or weight number; the byte offset for the arena
  int64_t smem_copy = -1;  // of a dataflow program: where a worker's own copy lies in its
                           // scratchpad memory; else -1
};

/// A value of a dataflow program (schedule/dataflow.h) that workers give to all: words of 32
/// bits, each with one beside it that says when it is there, of which every worker that reads the
/// value makes a copy.
struct Gather {
  int64_t from = 0, smem_copy = 0,
          words = 0;   // byte offsets into the arena and the copies; an even number of words
  int32_t number = 0;  // of the value, from 0
  bool operator==(const Gather&) const = default;
};

/// One work as the runtime sees it.
struct WorkRecord {
  int32_t body = -1;        // into Program::bodies
  int32_t custom = -1;      // into Program::customs, when body is -1
  int64_t scratch = 0;      // scratchpad memory that a task needs, in bytes
  int64_t row_scratch = 0;  // the part of it, at the end, that each row in flight needs for itself
  std::vector<int64_t> params;
  std::vector<Place> operands;
  std::vector<Gather> gathers;  // what must be there before a task of it runs
  std::string label;            // the node that it is anchored at, for people
  double floor_nanos = 0;       // what its bytes and operations take at least on all SMs
  double task_nanos = 0;        // predicted, of one of its tasks
};

/// An op without a loop form, run by its reference on one worker. Constants that decide shapes are
/// kept.
struct CustomRecord {
  ops::Op op;
  ops::Attrs attrs;
  std::vector<int> inputs;  // operand of the work by input, -1 where absent
  std::vector<Type> input_types;
  std::vector<int> outputs;  // operand of the work by output, -1 where not asked for
  std::vector<Type> output_types;
  std::string name;
};

/// How a weight becomes the bytes that the tile library streams. The numbers are those of kernels'
/// packing functions.
struct PackRecipe {
  enum class Kind : uint8_t { kProduct, kConv, kDepthwise };
  Kind kind = Kind::kProduct;
  int64_t n = 0, k = 0, row = 0, column = 0,
          offset = 0;  // kProduct: B [k, n] in the source, strides in elements
  int64_t
      outputs = 0,
      inputs = 0, height = 0, width = 0,
      groups =
          1;  // convolutions, of one group; kProduct: `groups` matrices, `outputs` elements apart
  int64_t tile =
      0;  // columns or channels that are packed together, for machines that stream them; 0: all
  int64_t half = 0;  // kProduct: columns of a tile from either half of B, side by side; 0: columns
                     // as they stand
  auto operator<=>(const PackRecipe&) const = default;
};

/// A packed weight and what it was packed from.
struct Packing {
  int weight = 0;  // into Program::weights
  PackRecipe recipe;
  Type type;      // of the source
  Tensor source;  // empty when it came out of a file: unpack() gives it back
};

struct Port {
  std::string name;
  Type type;
  /// Of an output that takes the memory of an input: which one; else -1. A run may be given one
  /// address for both. Given two, it copies the input to the output first and leaves the input
  /// alone.
  int in_place_of = -1;
  /// Then: works write all of it elsewhere than the input, of which they still read; a run that is
  /// given one address for both goes through memory of its context.
  bool staged = false;
  bool written_in_place() const { return in_place_of >= 0 && !staged; }
};

struct Program {
  std::string name;
  std::string target;  // "cpu", or a GPU's architecture: "sm_90a"
  std::string precision =
      "keep";  // what --precision asked for: "tf32" is in the bodies and in no type
  machine::Granularity granularity = machine::Granularity::kThreads;
  int sms = 1;
  bool on_gpu() const { return target.starts_with("sm_"); }
  std::vector<Port> inputs, outputs;
  std::vector<codegen::BodyText> bodies;
  std::vector<WorkRecord> works;
  std::vector<CustomRecord> customs;
  std::vector<std::vector<ObkTask>> lists;  // by virtual SM
  int waves = 0;
  bool dataflow = false;  // no barrier stands between waves: workers wait for what they gather
  Bytes smem_copies;      // then: of a worker's scratchpad memory, for copies
  std::vector<schedule::Dispatched> dispatch;  // of a graph of kernels, or of works on a CPU: their
                                               // order, edges and priorities; empty: those of waves
  Bytes arena, scratch;         // workspace of a context; scratchpad memory of a worker
  std::vector<Tensor> weights;  // views of the model file where nothing was packed
  std::vector<Packing> packings;
  /// Outputs that no work writes: copies of an input or a weight.
  struct Copy {
    int output;
    Place from;
  };
  std::vector<Copy> copies;
  /// Machine code by body (of a GPU: one for all), of a file, and what it needs; empty: bodies are
  /// compiled from their text.
  std::vector<std::string> objects;
  std::string objects_need;
  int64_t task_count() const;
};

/// What one run reads of weights and inputs and writes of outputs, in bytes. Of a weight of which
/// works read a few rows, as of a table of words, no more than what their floors say.
int64_t bytes_of_a_run(const Program& program);

class WeightPool;

/// Tables, bodies and packed weights of a program for the machine whose tiles the source was
/// emitted for. `pool`: weights that it holds are not made again. Errors: none for users; a table
/// that the validator refuses is a Bug.
Program assemble(const graph::Graph& graph, const stitch::Plan& plan,
                 const schedule::TaskGraph& tasks, codegen::Source source,
                 const std::string& target, WeightPool* pool = nullptr);

/// The same program by a table that differs from its own only in the waves of works and in where
/// buffers lie in the arena (schedule::place_by_order): bodies, parameters and weights stay. Of a
/// GPU's program.
Program with_table(Program program, const stitch::Plan& plan, const schedule::TaskGraph& tasks);

}  // namespace obelisk::runtime
