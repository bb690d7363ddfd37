/// ops/expand_steps.h — an Expander with the few words that expansions are written in.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace obelisk::ops {

class Steps {
 public:
  using Value = Expander::Value;
  explicit Steps(Expander& expander) : expander_(expander) {}

  Value in(int index) { return expander_.input(index); }
  DType dtype(Value value) const { return expander_.type(value).dtype; }
  Shape shape(Value value) const { return expander_.type(value).shape; }

  Value add(Op op, std::vector<Value> inputs, Attrs attrs = {}) {
    return expander_.add(op, std::move(inputs), std::move(attrs));
  }
  std::vector<Value> add_all(Op op, std::vector<Value> inputs, Attrs attrs, int outputs) {
    return expander_.add_all(op, std::move(inputs), std::move(attrs), outputs);
  }
  Value operator()(Op op, Value x) { return add(op, {x}); }
  Value operator()(Op op, Value x, Value y) { return add(op, {x, y}); }
  Value operator()(Op op, Value x, double y) { return add(op, {x, scalar(dtype(x), y)}); }

  Value constant(Tensor tensor) { return expander_.constant(std::move(tensor)); }
  Value scalar(DType dtype, double value) { return constant(tensor_of(dtype, {}, {value})); }
  Value ints(const std::vector<int64_t>& values) { return constant(tensor_of(values)); }

  /// The value itself when it has the type already.
  Value cast(Value x, DType to) {
    if (dtype(x) == to) return x;
    Attrs attrs = Attrs().set("to", number_of_dtype(to));
    if (dtype(x) == DType::f32 && is_half(to)) attrs.set("loose", int64_t{1});  // ops/convert.h
    return add(Op::Cast, {x}, std::move(attrs));
  }
  /// f16 and bf16 into f32, in which composite ops compute.
  Value widen(Value x) { return is_half(dtype(x)) ? cast(x, DType::f32) : x; }
  /// The operand of a product whose other operand was widened from `own`: stored in it, so that
  /// both are 16 bits wide where the product reads them.
  Value stored_as(Value x, DType own) { return is_half(own) ? widen(cast(x, own)) : x; }
  Value reduce(Op op, Value x, const std::vector<int64_t>& axes, bool keep = true) {
    return add(op, {x, ints(axes)},
               Attrs().set("keepdims", int64_t{keep}).set("noop_with_empty_axes", int64_t{1}));
  }
  Value reshape(Value x, const Shape& to) {
    if (shape(x) == to) return x;
    return add(Op::Reshape, {x, ints(to)}, Attrs().set("allowzero", int64_t{1}));
  }
  Value where(Value condition, Value yes, Value no) { return add(Op::Where, {condition, yes, no}); }

 private:
  Expander& expander_;
};

}  // namespace obelisk::ops
