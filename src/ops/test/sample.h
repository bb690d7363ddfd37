/// ops/test/sample.h — one use of an op with its inputs, and the check that the row's columns agree
/// about it.
#pragma once

#include <string>
#include <vector>

#include "ops/ops.h"

namespace obelisk::ops::test {

struct Sample {
  Op op;
  Attrs attrs = {};
  std::vector<Tensor> inputs = {};  // an empty tensor is an absent input
  int outputs = 1;
};
std::string describe(const Sample& sample);

/// The answer of the row's reference. A test failure, and no tensors, when the call does not infer.
std::vector<Tensor> run_reference(const Sample& sample);

/// The answer of the row's loops; of its expansion, run through loops, where it has none; nothing
/// where it has neither.
std::vector<Tensor> run_loops(const Sample& sample);

/// The answer of the row's expansion alone; nothing where it declines.
std::vector<Tensor> run_expansion(const Sample& sample);

/// Fails when infer, reference, loop and expansion do not agree within the row's tolerance, or when
/// the reference gives other answers with its floats widened to f64 than their rounding explains.
void check(const Sample& sample);

/// Fails at the first element that is off by more than the tolerance, with its coordinate and both
/// values.
void expect_near(const Tensor& got, const Tensor& want, Tolerance limit, const std::string& what);

/// Deterministic values. Floats lie in [-3, 3], most of them; with `wild` there are NaN, infinities
/// and zeros of both signs. Integers cover their range when wild and are small otherwise.
Tensor random_tensor(DType dtype, Shape shape, int seed, bool wild = false);

/// A tensor of f64 values rounded into a type.
Tensor tensor(DType dtype, Shape shape, const std::vector<double>& values);

}  // namespace obelisk::ops::test
