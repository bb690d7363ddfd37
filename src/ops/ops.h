/// ops/ops.h — the door of `ops`: the one op table, and what every op answers about itself.
///
///   infer      types of the inputs (and values, where a shape depends on them)  →  types of the
///   outputs cost       →  bytes read and written, flops loop       →  the op as loops over
///   coordinates, what fusion composes (ops/loop.h); nothing for compute and custom ops reference
///   →  the answer, slow and exact; every other implementation is judged by it
///
/// Op names, attribute names and meanings are those of the newest operator set of the exchange
/// format (default domain, version 27); the frontend rewrites older spellings, so that no other
/// room knows versions. Adding an op: one row in ops.def, its functions in the family's file; the
/// tests in ops/test/ read the table.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/base.h"
#include "ops/loop.h"

namespace obelisk::ops {

enum class Op : uint16_t {
#define OP(name, ...) name,
#include "ops/ops.def"
#undef OP
};
std::string_view to_string(Op op);
std::optional<Op> parse_op(std::string_view name);

/// What kind of work an op is. `classify` refines it per call.
enum class Kind : uint8_t {
  kMap,      // one output element from one element of each input (numpy broadcast)
  kReduce,   // folds axes
  kMove,     // copies elements to other coordinates; a view where the map is affine
  kCompute,  // matrix products, convolutions, attention: bound by arithmetic
  kCustom,   // has no loop form: sorts, scans, recurrences, scatters
};

using Attr =
    std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, Tensor>;

/// Attributes by name, ordered, so that printing and hashing are deterministic.
class Attrs {
 public:
  bool has(std::string_view name) const;
  Attrs& set(std::string name, Attr value);
  void erase(std::string_view name);
  int64_t get_int(std::string_view name, int64_t otherwise) const;
  double get_float(std::string_view name,
                   double otherwise) const;  // an int attribute is also accepted
  std::string get_string(std::string_view name, std::string_view otherwise) const;
  std::vector<int64_t> get_ints(std::string_view name, std::vector<int64_t> otherwise = {}) const;
  std::vector<double> get_floats(std::string_view name, std::vector<double> otherwise = {}) const;
  const Tensor* get_tensor(std::string_view name) const;  // nullptr when absent
  const std::map<std::string, Attr, std::less<>>& all() const { return all_; }
  bool operator==(const Attrs& other) const;

 private:
  std::map<std::string, Attr, std::less<>> all_;
};

/// What a reference adds up in. The judge of answers takes kDouble; the others show what a
/// program's own arithmetic costs: sums of products and of elements in f32, kTf32 with both
/// operands of a product rounded to 10 bits of mantissa first.
enum class Sums : uint8_t { kDouble, kFloat, kTf32 };

/// One use of an op: all that its functions may look at. Pointers are borrowed for the length of
/// the call.
struct Call {
  Op op;
  const Attrs& attrs;
  std::vector<const Type*>
      inputs;  // nullptr where an optional input is absent; may be shorter than the op's maximum
  std::vector<const Tensor*>
      constants;  // same length as inputs: the value where it is known when compiling, else nullptr
  int outputs = 1;  // how many outputs are requested
  std::vector<const Type*>
      results;  // types of the outputs; set for cost, loop and reference, empty for infer
  Sums sums = Sums::kDouble;  // of the reference

  int arity() const { return static_cast<int>(inputs.size()); }
  bool has(int input) const { return input < arity() && inputs[input] != nullptr; }
  const Type& in(int input) const { return *inputs[input]; }
  const Tensor* constant(int input) const { return has(input) ? constants[input] : nullptr; }
  const Type& out(int output = 0) const { return *results[output]; }
  /// The value of an input that must be known when compiling. Error kUnsupported when it is not
  /// ("depends on data").
  Result<std::vector<int64_t>> ints(int input, std::string_view what) const;
};

/// `flops` counts a multiply-add as two and a transcendental as one.
struct Cost {
  Bytes read, written;
  Flops flops;
};

/// How far a target may be from the reference: |got - want| <= absolute + relative * |want|, by
/// output element type; see tolerance().
enum class Accuracy : uint8_t {
  kExact,    // bit for bit: moves, integers, comparisons
  kRounded,  // one rounding: add, mul, cast
  kApprox,   // a few ulps: exp, erf, pow
  kSummed,   // grows with the length of a sum: reductions, products, norms
};
struct Tolerance {
  double absolute = 0, relative = 0;
};
Tolerance tolerance(Accuracy accuracy, DType dtype);

using Types = std::vector<Type>;
using InferFn = Result<Types> (*)(const Call&);
using CostFn = Cost (*)(const Call&);
using LoopFn = std::optional<Loop> (*)(const Call&, int output);
class Expander;  // ops/expand.h
using ExpandFn = std::vector<int32_t> (*)(const Call&, Expander&);
using ReferenceFn = Status (*)(const Call&, std::span<const Tensor* const> inputs,
                               std::span<Tensor> outputs);

/// One row of the table.
struct Row {
  Op op;
  std::string_view name;
  Kind kind;
  int min_inputs, max_inputs;  // max -1: any number
  int max_outputs;             // -1: any number
  InferFn infer;
  CostFn cost;
  LoopFn loop;  // nullptr: no loop form
  ReferenceFn reference;
  Accuracy accuracy;
  ExpandFn expand =
      nullptr;  // decomposes a composite op into simpler ones; nullptr: it is not composite
};
const Row& row(Op op);
std::span<const Row> rows();

/// Checks arity, then asks the row. Errors: kBadModel when the call contradicts the op,
/// kUnsupported when it is right but cannot run.
Result<Types> infer(const Call& call);
Cost cost(const Call& call);
std::optional<Loop> loop(const Call& call, int output = 0);

/// Runs the reference. Outputs come allocated with their types. Floating tensors may be wider than
/// infer said: when verifying, every f32/f16/bf16 tensor is f64, so an implementation reads with
/// get_double and writes with set_double of whatever type it is given. Pure moves may copy bytes,
/// because inputs and outputs always agree in type there.
Status reference(const Call& call, std::span<const Tensor* const> inputs,
                 std::span<Tensor> outputs);

/// Error of this room about a call, with the op's name in front.
Error bad_call(const Call& call, std::string message, std::string hint = "");
Error unsupported_call(const Call& call, std::string message, std::string hint = "");

/// Attributes that name an element type (`to`, `dtype`, `output_dtype`) hold its number in the
/// exchange format.
std::optional<DType> dtype_of_number(
    int64_t number);  // nothing for strings, complex numbers and unknown ones
int64_t number_of_dtype(DType dtype);

/// -1 counts from the end. Error kBadModel when outside [-rank, rank).
Result<int64_t> normalize_axis(const Call& call, int64_t axis, int64_t rank);

// ---- shared columns of the table ----------------------------------------------------------------
Cost cost_move(const Call& call);    // reads and writes every byte once, no flops
Cost cost_map(const Call& call);     // the same, one flop an element of the output
Cost cost_reduce(const Call& call);  // the same, one flop an element of the input

// ---- what tiles need to know --------------------------------------------------------------------
/// A convolution with every default filled in; one entry a spatial axis. Output o reads input o *
/// stride + k * dilation - begin.
struct ConvGeometry {
  int64_t batch = 0, inputs = 0, outputs = 0, groups = 1, group_inputs = 0, group_outputs = 0;
  Shape in, kernel, strides, dilations, begin, out;
};
Result<ConvGeometry> conv_geometry(const Call& call);

}  // namespace obelisk::ops

#include "ops/block.h"  // last, because they speak of the types above
#include "ops/expand.h"
#include "ops/scalar_values.h"
