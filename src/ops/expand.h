/// ops/expand.h — composite ops decomposed into simpler ones, as data: softmax is max, sub, exp,
/// sum, div.
///
///   in   a Call with its types, and an Expander that stands for the place where nodes are added
///   out  one value per output of the call, of exactly the call's result types
///
/// Expansion serves fusion, which composes single loops; what needs two passes over its input
/// has no loop of its own. Each function only uses ops that have a loop, or that expand further. It
/// follows the reference's meaning; arithmetic is in f32 where the call's type is narrower and the
/// standard says so (the `stash_type` of norms).
#pragma once

#include <cstdint>
#include <vector>

#include "ops/ops.h"

namespace obelisk::ops {

/// Where an expansion adds its nodes. Values are handles of the implementer, ids of a graph for
/// example.
class Expander {
 public:
  using Value = int32_t;
  static constexpr Value kAbsent = -1;

  virtual ~Expander() = default;
  virtual Value input(int index) = 0;  // of the expanded call; kAbsent for an absent optional one
  virtual Value constant(Tensor tensor) = 0;
  virtual Value add(Op op, std::vector<Value> inputs, Attrs attrs = {}) = 0;  // its first output
  /// The same with its first `outputs` outputs.
  virtual std::vector<Value> add_all(Op op, std::vector<Value> inputs, Attrs attrs,
                                     int outputs) = 0;
  virtual const Type& type(Value value) const = 0;  // valid until the next add()
};

using Expansion = std::vector<Expander::Value>;  // empty: this call is not expanded

/// Asks the row of the call's op. Empty when the op has no expansion.
Expansion expand(const Call& call, Expander& expander);

}  // namespace obelisk::ops
