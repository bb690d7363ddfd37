// Resize with a filter of many taps, as a gather and a weighted sum along each axis.
#include <algorithm>
#include <cmath>

#include "ops/expand.h"
#include "ops/expand_steps.h"
#include "ops/resize.h"

namespace obelisk::ops {

namespace {

// Per output coordinate of an axis, the neighbours and their weights, all with one count. A tap of
// weight 0 reads what another reads, so that a NaN far away stays there.
struct TapTable {
  int64_t count = 0;
  Tensor indices;  // [to, count]
  Tensor weights;  // [to, count, 1, 1, ...] of the type of arithmetic
  Tensor outside;  // [to, 1, 1, ...] b1, where the extrapolation value stands; empty: nowhere
};

TapTable tap_table(const ResizePlan& plan, const ResizeAxis& axis, DType dtype, int axes_after) {
  std::vector<Taps> all;
  TapTable table;
  for (int64_t x = 0; x < axis.to; ++x) {
    Taps taps = resize_taps(plan, axis, axis.place(x));
    while (taps.weights.size() > 1 && taps.weights.back() == 0) taps.weights.pop_back();
    table.count = std::max<int64_t>(table.count, static_cast<int64_t>(taps.weights.size()));
    all.push_back(std::move(taps));
  }
  Shape weights{axis.to, table.count}, outside{axis.to};
  weights.insert(weights.end(), axes_after, 1);
  outside.insert(outside.end(), axes_after, 1);
  table.indices = Tensor::allocate({DType::i64, {axis.to, table.count}});
  table.weights = Tensor::allocate({dtype, weights});
  if (axis.crops) table.outside = Tensor::allocate({DType::b1, outside});
  for (int64_t x = 0; x < axis.to; ++x) {
    const Taps& taps = all[x];
    int64_t nonzero = 0;
    while (nonzero + 1 < static_cast<int64_t>(taps.weights.size()) && taps.weights[nonzero] == 0)
      ++nonzero;
    for (int64_t tap = 0; tap < table.count; ++tap) {
      const bool real = tap < static_cast<int64_t>(taps.weights.size()) && taps.weights[tap] != 0;
      const int64_t source = taps.first + (real ? tap : nonzero);
      table.indices.set_int(x * table.count + tap, std::clamp<int64_t>(source, 0, axis.from - 1));
      table.weights.set_double(x * table.count + tap, real ? taps.weights[tap] : 0);
    }
    if (axis.crops) {
      const double place = axis.place(x);
      table.outside.set_int(x, place < 0 || place > static_cast<double>(axis.from - 1));
    }
  }
  return table;
}

}  // namespace

std::vector<int32_t> expand_resize(const Call& call, Expander& expander) {
  const ResizePlan plan = resize_plan(call).value();
  const Type& out = call.out();
  if (has_loop(plan) || out.count() == 0) return {};
  Steps s(expander);
  const bool whole = !is_float(out.dtype);
  const DType type =
      whole ? (bits(out.dtype) > 16 ? DType::f64 : DType::f32) : compute_type(out.dtype);
  auto x = s.cast(s.in(0), type);
  const int rank = out.rank();
  for (int d = 0; d < rank; ++d) {
    const ResizeAxis& axis = plan.axes[d];
    if (axis.same()) continue;
    const TapTable table = tap_table(plan, axis, type, rank - d - 1);
    const auto taps =
        s.add(Op::Gather, {x, s.constant(table.indices)}, Attrs().set("axis", int64_t{d}));
    const auto weighed = s(Op::Mul, taps, s.constant(table.weights));
    x = s.reduce(Op::ReduceSum, weighed, {d + 1}, false);
    if (axis.crops) x = s.where(s.constant(table.outside), s.scalar(type, plan.extrapolation), x);
  }
  if (whole) {
    const int width = bits(out.dtype);
    const double low = is_signed(out.dtype) ? -std::ldexp(1.0, width - 1) : 0;
    const double top = std::ldexp(1.0, is_signed(out.dtype) ? width - 1 : width);
    const double high = width == 64 ? std::nextafter(top, 0) : top - 1;
    x = s.add(Op::Clip, {s(Op::Round, x), s.scalar(type, low), s.scalar(type, high)});
  }
  return {s.cast(x, out.dtype)};
}

}  // namespace obelisk::ops
