/// graph/compare.h — are these answers those? The first bad value by output and coordinate, and the
/// largest errors.
///
///   in   got and wanted, tensor by tensor of equal shapes; the wanted ones may be of a wider type
///   out  a Comparison; `text()` says it in a line
///
/// A value is good when |got - want| <= absolute + relative * |want|, where `want` is first rounded
/// to the type of `got` if that makes it infinite or NaN. NaN equals NaN, an infinity only itself.
/// Integers and booleans are compared exactly unless the tolerance allows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/base.h"
#include "ops/ops.h"

namespace obelisk::graph {

struct Comparison {
  bool ok = true;
  int64_t bad_values = 0;
  double max_abs = 0;  // over all finite pairs
  double max_rel = 0;  // over those with |want| above the absolute tolerance
  // The first bad value; kept when !ok.
  int output = -1;
  std::string name;  // of the output
  Shape coordinate;
  double got = 0, want = 0;
  std::string reason;  // instead of a value: "f32[2] instead of f32[3]"

  /// "output 'y' at [0,3]: got 1.5, wanted 1.25; 2 bad values, max abs 0.25, max rel 0.2"
  std::string text() const;
};

/// One tolerance for all, or one per output. `names` may be empty.
Comparison compare(std::span<const Tensor> got, std::span<const Tensor> want,
                   std::span<const ops::Tolerance> tolerances,
                   std::span<const std::string> names = {});

}  // namespace obelisk::graph
