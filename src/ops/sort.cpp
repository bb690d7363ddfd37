#include "ops/sort.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/arrays.h"
#include "ops/moves.h"

namespace obelisk::ops {

namespace {

// A tensor as [outer, extent, inner] around an axis.
struct Lines {
  int64_t outer, extent, inner;
};
Lines lines_of(const Shape& shape, int64_t axis) {
  const int a = static_cast<int>(axis);
  if (shape[axis] == 0) return {0, 0, 0};  // whatever the other extents are
  return {product(shape, 0, a), shape[axis], product(shape, a + 1, static_cast<int>(shape.size()))};
}

bool less(const Tensor& tensor, int64_t a, int64_t b) {
  if (is_float(tensor.dtype())) {
    const double x = tensor.get_double(a), y = tensor.get_double(b);
    return x < y || (std::isnan(y) && !std::isnan(x));
  }
  const int64_t x = tensor.get_int(a), y = tensor.get_int(b);
  return is_signed(tensor.dtype()) ? x < y : static_cast<uint64_t>(x) < static_cast<uint64_t>(y);
}

// ---- TopK ---------------------------------------------------------------------------------------

struct Top {
  int64_t axis, k;
};
Result<Top> top_of(const Call& call) {
  Top top;
  TRY(top.axis, normalize_axis(call, call.attrs.get_int("axis", -1), call.in(0).rank()));
  TRY(auto k, call.ints(1, "K"));
  const int64_t extent = call.in(0).shape[top.axis];
  if (k.size() != 1 || k[0] < 0 || k[0] > extent) {
    return bad_call(call, fmt::format("K = {} of axis {}, which has extent {}",
                                      k.empty() ? 0 : k[0], top.axis, extent));
  }
  top.k = k[0];
  return top;
}

}  // namespace

Result<Types> infer_top_k(const Call& call) {
  TRY(const Top top, top_of(call));
  Shape shape = call.in(0).shape;
  shape[top.axis] = top.k;
  return Types{{call.in(0).dtype, shape}, {DType::i64, shape}};
}

Status reference_top_k(const Call& call, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs) {
  TRY(const Top top, top_of(call));
  const Tensor& from = *inputs[0];
  const bool largest = call.attrs.get_int("largest", 1) != 0;
  const Lines lines = lines_of(from.shape(), top.axis);
  // The extent of an axis beside an empty one may be of any size.
  if (top.k == 0 || lines.outer * lines.inner == 0) return ok_status();
  std::vector<int64_t> order(lines.extent);
  const bool wants_indices = outputs.size() > 1 && !outputs[1].empty();
  with_units(from, outputs[0], [&](auto units) {
    for (int64_t line = 0; line < lines.outer * lines.inner; ++line) {
      const int64_t outer = line / lines.inner, inner = line % lines.inner;
      const int64_t base = outer * lines.extent * lines.inner + inner;
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + top.k, order.end(),
                        [&](int64_t a, int64_t b) {
                          const int64_t x = base + a * lines.inner, y = base + b * lines.inner;
                          if (less(from, x, y)) return !largest;
                          if (less(from, y, x)) return largest;
                          return a < b;
                        });
      for (int64_t rank = 0; rank < top.k; ++rank) {
        const int64_t target = (outer * top.k + rank) * lines.inner + inner;
        units.put(target, units.get(base + order[rank] * lines.inner));
        if (wants_indices) outputs[1].set_int(target, order[rank]);
      }
    }
  });
  return ok_status();
}

// ---- CumSum, CumProd ----------------------------------------------------------------------------

namespace {

// A tensor of rank 1 has but one axis, so that its number need not be known.
Result<int64_t> cumulative_axis(const Call& call) {
  if (call.in(0).rank() == 1 && !call.constant(1)) return int64_t{0};
  TRY(auto axis, call.ints(1, "axis"));
  if (axis.size() != 1) return bad_call(call, fmt::format("{} axes", axis.size()));
  return normalize_axis(call, axis[0], call.in(0).rank());
}

template <typename Value, typename Get, typename Put, typename Join>
void accumulate(const Call& call, const Lines& lines, Value start, Get&& get, Put&& put,
                Join&& join) {
  const bool exclusive = call.attrs.get_int("exclusive", 0) != 0;
  const bool reverse = call.attrs.get_int("reverse", 0) != 0;
  for (int64_t line = 0; line < lines.outer * lines.inner; ++line) {
    const int64_t base = line / lines.inner * lines.extent * lines.inner + line % lines.inner;
    Value sum = start;
    for (int64_t i = 0; i < lines.extent; ++i) {
      const int64_t at = base + (reverse ? lines.extent - 1 - i : i) * lines.inner;
      const Value next = join(sum, get(at));
      put(at, exclusive ? sum : next);
      sum = next;
    }
  }
}

Status reference_cumulative(const Call& call, const Tensor& from, Tensor& to, bool product) {
  TRY(const int64_t axis, cumulative_axis(call));
  const Lines lines = lines_of(from.shape(), axis);
  if (is_float(from.dtype())) {
    accumulate(
        call, lines, product ? 1.0 : 0.0, [&](int64_t at) { return from.get_double(at); },
        [&](int64_t at, double value) { to.set_double(at, value); },
        [&](double x, double y) { return stored(product ? x * y : x + y, DType::f32, call.sums); });
  } else {
    accumulate(
        call, lines, uint64_t{product},
        [&](int64_t at) { return static_cast<uint64_t>(from.get_int(at)); },
        [&](int64_t at, uint64_t value) { to.set_int(at, static_cast<int64_t>(value)); },
        [&](uint64_t x, uint64_t y) { return product ? x * y : x + y; });
  }
  return ok_status();
}

}  // namespace

Result<Types> infer_cumulative(const Call& call) {
  TRY_STATUS(cumulative_axis(call));
  return Types{call.in(0)};
}

std::optional<Loop> loop_cumulative(const Call& call, int) {
  constexpr int64_t kLongest =
      256;  // 32 times the work of a scan at that length, all of it in parallel
  const Type& from = call.in(0);
  const int64_t axis = cumulative_axis(call).value();
  if (from.shape[axis] > kLongest) return std::nullopt;
  Shape domain = from.shape;
  domain.push_back(from.shape[axis]);
  auto start = start_loop(domain, from.rank());
  auto& exprs = start.loop.exprs;
  const ExprId here = start.coords[axis], summed = start.coords.back();
  const bool exclusive = call.attrs.get_int("exclusive", 0) != 0;
  const bool reverse = call.attrs.get_int("reverse", 0) != 0;
  const ExprId first = reverse ? here : summed, second = reverse ? summed : here;
  const ExprId counts = exclusive ? exprs.lt(first, second) : exprs.le(first, second);
  std::vector<ExprId> at(start.coords.begin(), start.coords.end() - 1);
  at[axis] = summed;
  const DType type = compute_type(from.dtype);
  const bool product = call.op == Op::CumProd;
  const ExprId one = type == DType::i64 ? exprs.integer(1) : exprs.constant(type, 1);
  start.loop.body =
      exprs.load(0, from.dtype, std::move(at), counts, product ? one : zero_of(exprs, from.dtype));
  start.loop.combine = product ? Combine::kProd : Combine::kSum;
  return start.loop;
}

Status reference_cum_sum(const Call& call, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs) {
  return reference_cumulative(call, *inputs[0], outputs[0], false);
}

Status reference_cum_prod(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs) {
  return reference_cumulative(call, *inputs[0], outputs[0], true);
}

}  // namespace obelisk::ops
