#include "graph/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace obelisk::graph {
namespace {

Shape coordinate_of(int64_t index, const Shape& shape) {
  Shape out(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    out[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return out;
}

double rounded_to(double value, DType dtype) {
  uint64_t word = 0;
  set_double(&word, dtype, 0, value);
  return get_double(&word, dtype, 0);
}

class Comparer {
 public:
  explicit Comparer(std::span<const std::string> names) : names_(names) {}

  void shapes_differ(int output, const std::string& reason) {
    note(output);
    if (result_.bad_values == 1) result_.reason = reason;
  }

  void tensors(int output, const Tensor& got, const Tensor& want, ops::Tolerance tolerance) {
    const bool floats = is_float(got.dtype()) || is_float(want.dtype());
    for (int64_t index = 0; index < got.count(); ++index) {
      const double have = got.get_double(index);
      double wish = want.get_double(index);
      if (is_float(got.dtype()) && !std::isfinite(have)) wish = rounded_to(wish, got.dtype());
      if (std::isnan(have) && std::isnan(wish)) continue;
      if (have == wish && (floats || got.get_int(index) == want.get_int(index))) continue;
      const double error = std::fabs(have - wish);
      bool good = false;
      if (std::isfinite(have) && std::isfinite(wish)) {
        result_.max_abs = std::max(result_.max_abs, error);
        const double size = std::fabs(wish);
        if (size > tolerance.absolute) result_.max_rel = std::max(result_.max_rel, error / size);
        // Two 64-bit integers may be equal as doubles and yet differ.
        good = error > 0 ? error <= tolerance.absolute + tolerance.relative * size
                         : tolerance.absolute >= 1;
      }
      if (good) continue;
      note(output);
      if (result_.bad_values > 1) continue;
      result_.coordinate = coordinate_of(index, got.shape());
      result_.got = have;
      result_.want = want.get_double(index);
    }
  }

  Comparison result() && { return std::move(result_); }

 private:
  void note(int output) {
    result_.ok = false;
    if (++result_.bad_values > 1) return;
    result_.output = output;
    if (static_cast<size_t>(output) < names_.size()) {
      result_.name = names_[static_cast<size_t>(output)];
    }
  }

  std::span<const std::string> names_;
  Comparison result_;
};

}  // namespace

Comparison compare(std::span<const Tensor> got, std::span<const Tensor> want,
                   std::span<const ops::Tolerance> tolerances, std::span<const std::string> names) {
  CHECK(tolerances.size() == 1 || tolerances.size() == want.size(), "{} tolerances for {} outputs",
        tolerances.size(), want.size());
  Comparer comparer(names);
  for (size_t k = 0; k < std::max(got.size(), want.size()); ++k) {
    const int output = static_cast<int>(k);
    if (k >= got.size() || got[k].empty()) {
      comparer.shapes_differ(output, "nothing, but it is wanted");
    } else if (k >= want.size() || want[k].empty()) {
      comparer.shapes_differ(output, "not wanted");
    } else if (got[k].shape() != want[k].shape()) {
      comparer.shapes_differ(output, fmt::format("{} instead of {}", to_string(got[k].type()),
                                                 to_string(want[k].type())));
    } else {
      comparer.tensors(output, got[k], want[k], tolerances[tolerances.size() == 1 ? 0 : k]);
    }
  }
  return std::move(comparer).result();
}

std::string Comparison::text() const {
  const std::string errors = fmt::format("max abs {:.3g}, max rel {:.3g}", max_abs, max_rel);
  if (ok) return errors;
  const std::string where =
      name.empty() ? fmt::format("output {}", output) : fmt::format("output '{}'", name);
  if (!reason.empty()) return fmt::format("{}: {}", where, reason);
  return fmt::format("{} at {}: got {:.9g}, wanted {:.9g}; {} bad value{}, {}", where,
                     to_string(coordinate), got, want, bad_values, bad_values == 1 ? "" : "s",
                     errors);
}

}  // namespace obelisk::graph
