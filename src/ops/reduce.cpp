#include "ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/arrays.h"
#include "ops/expand_steps.h"

namespace obelisk::ops {
namespace {

bool is_folded(const std::vector<int64_t>& axes, size_t d) {
  return std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d));
}

Shape folded_shape(const Shape& shape, const std::vector<int64_t>& axes, bool keep) {
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!is_folded(axes, d))
      out.push_back(shape[d]);
    else if (keep)
      out.push_back(1);
  }
  return out;
}

bool keeps(const Call& call) { return call.attrs.get_int("keepdims", 1) != 0; }
bool is_max(const Call& call) { return call.op == Op::ArgMax; }

int64_t arg_axis(const Call& call) {
  return *normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank());
}

}  // namespace

Result<std::vector<int64_t>> reduced_axes(const Call& call) {
  const int64_t rank = call.in(0).rank();
  std::vector<int64_t> axes;
  if (call.has(1)) {
    TRY(axes, call.ints(1, "the axes"));
    for (int64_t& axis : axes) {
      TRY(axis, normalize_axis(call, axis, rank));
    }
    std::sort(axes.begin(), axes.end());
    if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) {
      return bad_call(call, "an axis is named twice");
    }
  }
  if (axes.empty() && !call.attrs.get_int("noop_with_empty_axes", 0)) {
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), 0);
  }
  return axes;
}

Result<Types> infer_reduce_of(const Call& call, DTypeSet set) {
  TRY_STATUS(check_dtype(call, 0, set));
  TRY(std::vector<int64_t> axes, reduced_axes(call));
  return Types{{call.in(0).dtype, folded_shape(call.in(0).shape, axes, keeps(call))}};
}

Result<Types> infer_arg(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kNumbers));
  const Shape& shape = call.in(0).shape;
  TRY(int64_t axis, normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank()));
  if (shape[axis] == 0 && element_count(folded_shape(shape, {axis}, false)) > 0) {
    return bad_call(call, fmt::format("axis {} of {} is empty", axis, to_string(shape)));
  }
  return Types{{DType::i64, folded_shape(shape, {axis}, keeps(call))}};
}

std::optional<Loop> loop_reduce(const Call& call, int) {
  const Type& in = call.in(0);
  const std::vector<int64_t> axes = *reduced_axes(call);
  const DType own = compute_type(in.dtype);
  const bool real = is_float(own), keep = keeps(call);
  Loop loop;
  Exprs& e = loop.exprs;
  loop.domain = call.out().shape;
  loop.parallel = static_cast<int>(loop.domain.size());
  std::vector<ExprId> at;
  int out_slot = 0;
  for (int d = 0; d < in.rank(); ++d) {
    if (is_folded(axes, d)) {
      out_slot += keep;
      at.push_back(e.coord(static_cast<int>(loop.domain.size()), in.shape[d]));
      loop.domain.push_back(in.shape[d]);
    } else {
      at.push_back(e.coord(out_slot++, in.shape[d]));
    }
  }
  const ExprId x = e.load(0, in.dtype, std::move(at)), acc = e.acc(own);
  // Roots and logarithms of integers are taken in f64 and truncated back.
  auto wide = [&](ExprId value) { return real ? value : e.cast(value, DType::f64); };
  auto back = [&](ExprId value) { return real ? value : e.cast(value, own); };
  loop.body = x;
  loop.combine = Combine::kSum;
  switch (call.op) {
    case Op::ReduceSum:
      break;
    case Op::ReduceMean: {
      double count = 1;
      for (int64_t axis : axes) count *= static_cast<double>(in.shape[axis]);
      loop.finish = e.div(acc, e.constant(own, count));
      break;
    }
    case Op::ReduceMax:
      loop.combine = own == DType::b1 ? Combine::kAny : Combine::kMax;
      break;
    case Op::ReduceMin:
      loop.combine = own == DType::b1 ? Combine::kAll : Combine::kMin;
      break;
    case Op::ReduceProd:
      loop.combine = Combine::kProd;
      break;
    case Op::ReduceL1:
      loop.body = e.unary(Scalar::kAbs, x);
      break;
    case Op::ReduceL2:
      loop.body = e.mul(x, x);
      loop.finish = back(e.unary(Scalar::kSqrt, wide(acc)));
      break;
    case Op::ReduceSumSquare:
      loop.body = e.mul(x, x);
      break;
    case Op::ReduceLogSum:
      loop.finish = back(e.unary(Scalar::kLog, wide(acc)));
      break;
    default:
      CHECK(false, "{} is not a reduction", to_string(call.op));
  }
  return loop;
}

std::vector<int32_t> expand_reduce_log_sum_exp(const Call& call, Expander& expander) {
  Steps s(expander);
  const std::vector<int64_t> axes = *reduced_axes(call);
  const DType own = call.in(0).dtype;
  auto x = is_float(own) ? s.widen(s.in(0)) : s.cast(s.in(0), DType::f64);
  const auto raw = s.reduce(Op::ReduceMax, x, axes);
  const auto top = s.where(s(Op::IsInf, raw), s.scalar(s.dtype(raw), 0), raw);
  const auto sum = s.reduce(Op::ReduceSum, s(Op::Exp, s(Op::Sub, x, top)), axes);
  const auto result = s(Op::Add, s(Op::Log, sum), top);
  return {s.cast(s.reshape(result, call.out().shape), own)};
}

std::vector<int32_t> expand_arg(const Call& call, Expander& expander) {
  Steps s(expander);
  const int64_t axis = arg_axis(call), extent = call.in(0).shape[axis];
  const bool last = call.attrs.get_int("select_last_index", 0) != 0;
  const auto x = s.in(0);
  const auto best = s.reduce(is_max(call) ? Op::ReduceMax : Op::ReduceMin, x, {axis});
  auto hit = s(Op::Equal, x, best);
  if (is_float(call.in(0).dtype)) hit = s(Op::Or, hit, s(Op::IsNaN, x));
  std::vector<int64_t> positions(extent);
  std::iota(positions.begin(), positions.end(), 0);
  Shape along(call.in(0).rank(), 1);
  along[axis] = extent;
  const auto index = s.constant(tensor_of(positions).reshaped(along));
  const auto never = s.scalar(DType::i64, last ? -1 : static_cast<double>(extent));
  const auto found = s.where(hit, index, never);
  return {s.reduce(last ? Op::ReduceMax : Op::ReduceMin, found, {axis}, keeps(call))};
}

namespace {

double fold_reals(const Call& call, const double* x, const std::vector<int64_t>& step) {
  const double count = static_cast<double>(step.size());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double product = 1, low = kInfinity, high = -kInfinity;
  Total sum(call.sums), absolute(call.sums), square(call.sums);
  bool nan = false;
  for (int64_t offset : step) {
    const double value = x[offset];
    sum += value;
    product *= value;
    absolute += std::fabs(value);
    square += value * value;
    low = std::min(low, value);
    high = std::max(high, value);
    nan |= std::isnan(value);
  }
  switch (call.op) {
    case Op::ReduceSum:
      return sum.value();
    case Op::ReduceMean:
      return sum.value() / count;
    case Op::ReduceMax:
      return nan ? std::nan("") : high;
    case Op::ReduceMin:
      return nan ? std::nan("") : low;
    case Op::ReduceProd:
      return product;
    case Op::ReduceL1:
      return absolute.value();
    case Op::ReduceL2:
      return std::sqrt(square.value());
    case Op::ReduceSumSquare:
      return square.value();
    case Op::ReduceLogSum:
      return std::log(sum.value());
    case Op::ReduceLogSumExp: {
      if (nan) return std::nan("");
      if (std::isinf(high)) return high;
      Total scaled(call.sums);
      for (int64_t offset : step) scaled += std::exp(x[offset] - high);
      return high + std::log(scaled.value());
    }
    default:
      CHECK(false, "{} is not a reduction", to_string(call.op));
      return 0;
  }
}

int64_t narrowed(DType dtype, int64_t value) {
  uint64_t element = 0;
  set_int(&element, dtype, 0, value);
  return get_int(&element, dtype, 0);
}

int64_t fold_ints(const Call& call, const int64_t* x, const std::vector<int64_t>& step) {
  const DType dtype = call.in(0).dtype;
  const bool is_u64 = dtype == DType::u64;
  const bool maximum = call.op == Op::ReduceMax || call.op == Op::ReduceLogSumExp;
  uint64_t sum = 0, product = 1, absolute = 0, square = 0;
  int64_t best = 0;
  for (size_t n = 0; n < step.size(); ++n) {
    const int64_t value = x[step[n]];
    const auto word = static_cast<uint64_t>(value);
    sum += word;
    product *= word;
    absolute += is_signed(dtype) && value < 0 ? -word : word;
    square += word * word;
    const bool above = is_u64 ? word > static_cast<uint64_t>(best) : value > best;
    if (n == 0 || (value != best && above == maximum)) best = value;
  }
  if (step.empty()) {  // of the type's range, the end that loses against everything
    const int width = bits(dtype);
    const uint64_t ones = ~uint64_t{0} >> (64 - width);
    if (dtype == DType::b1)
      best = !maximum;
    else if (is_signed(dtype))
      best = maximum ? -1 - static_cast<int64_t>(ones >> 1) : static_cast<int64_t>(ones >> 1);
    else
      best = maximum ? 0 : static_cast<int64_t>(ones);
  }
  auto real = [&](uint64_t total) {
    const int64_t kept = narrowed(dtype, static_cast<int64_t>(total));
    return is_u64 ? static_cast<double>(total) : static_cast<double>(kept);
  };
  auto truncated = [&](double value) {
    if (is_u64 && value >= 0 && value < 0x1p64)
      return static_cast<int64_t>(static_cast<uint64_t>(value));
    // What no integer of 64 bits holds becomes the lowest, as on x86.
    return std::abs(value) < 0x1p63 ? static_cast<int64_t>(value)
                                    : std::numeric_limits<int64_t>::min();
  };
  switch (call.op) {
    case Op::ReduceSum:
      return static_cast<int64_t>(sum);
    case Op::ReduceMean: {
      if (step.empty()) return 0;
      const auto count = static_cast<int64_t>(step.size());
      return is_u64 ? static_cast<int64_t>(sum / static_cast<uint64_t>(count))
                    : narrowed(dtype, static_cast<int64_t>(sum)) / count;
    }
    case Op::ReduceMax:
    case Op::ReduceMin:
      return best;
    case Op::ReduceProd:
      return static_cast<int64_t>(product);
    case Op::ReduceL1:
      return static_cast<int64_t>(absolute);
    case Op::ReduceSumSquare:
      return static_cast<int64_t>(square);
    case Op::ReduceL2:
      return truncated(std::sqrt(real(square)));
    case Op::ReduceLogSum:
      return truncated(std::log(real(sum)));
    case Op::ReduceLogSumExp: {
      double scaled = 0;
      for (int64_t offset : step) scaled += std::exp(real(x[offset]) - real(best));
      return truncated(std::log(scaled) + real(best));
    }
    default:
      CHECK(false, "{} is not a reduction", to_string(call.op));
      return 0;
  }
}

}  // namespace

Status reference_reduce(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  TRY(std::vector<int64_t> axes, reduced_axes(call));
  const Fold fold(inputs[0]->shape(), axes);
  Tensor& out = outputs[0];
  if (is_float(out.dtype())) {
    const std::vector<double> x = read_reals(*inputs[0]);
    for (int64_t o = 0; o < fold.outer; ++o)
      out.set_double(o, fold_reals(call, x.data() + fold.base[o], fold.step));
  } else {
    const std::vector<int64_t> x = read_ints(*inputs[0]);
    for (int64_t o = 0; o < fold.outer; ++o)
      out.set_int(o, fold_ints(call, x.data() + fold.base[o], fold.step));
  }
  return ok_status();
}

Status reference_arg(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs) {
  const Tensor& in = *inputs[0];
  const Fold fold(in.shape(), {arg_axis(call)});
  const bool last = call.attrs.get_int("select_last_index", 0) != 0, maximum = is_max(call);
  const bool real = is_float(in.dtype()), is_u64 = in.dtype() == DType::u64;
  // Below 0: the first element loses against the second.
  auto order = [&](int64_t a, int64_t b) -> int {
    if (real) {
      const double x = in.get_double(a), y = in.get_double(b);
      if (std::isnan(x) || std::isnan(y)) return std::isnan(x) - std::isnan(y);
      return maximum ? (x > y) - (x < y) : (x < y) - (x > y);
    }
    const int64_t x = in.get_int(a), y = in.get_int(b);
    const auto ux = static_cast<uint64_t>(x), uy = static_cast<uint64_t>(y);
    const int sign = is_u64 ? (ux > uy) - (ux < uy) : (x > y) - (x < y);
    return maximum ? sign : -sign;
  };
  for (int64_t o = 0; o < fold.outer; ++o) {
    int64_t best = 0;
    for (int64_t n = 1; n < fold.inner; ++n) {
      const int found = order(fold.base[o] + fold.step[n], fold.base[o] + fold.step[best]);
      if (found > 0 || (found == 0 && last)) best = n;
    }
    outputs[0].set_int(o, best);
  }
  return ok_status();
}

}  // namespace obelisk::ops
