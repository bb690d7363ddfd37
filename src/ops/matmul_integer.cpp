#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/gemm.h"
#include "ops/matmul.h"
#include "ops/moves.h"
#include "ops/quantized_product.h"

namespace obelisk::ops {
namespace {

constexpr DTypeSet kBytes = dtype_set({DType::i8, DType::u8});
constexpr DTypeSet kScales = dtype_set({DType::f32, DType::f16, DType::bf16});

// Where the quantised forms keep what: -1 where a form has no such input.
struct Slots {
  int a, a_scale, a_zero, b, b_scale, b_zero;
};
constexpr Slots kInteger{0, -1, 2, 1, -1, 3};
constexpr Slots kLinear{0, 1, 2, 3, 4, 5};
constexpr int kOutScale = 6, kOutZero = 7;

int rank_of(const Shape& shape) { return static_cast<int>(shape.size()); }

/// A parameter of A varies along rows, one of B along columns, and neither along k.
Result<Shape> parameter_of_a(const Call& call, const Product& product, int input) {
  const int rank = rank_of(product.a);
  return aligned_parameter(call, input, "the parameter of A", product.a, rank - 2, {rank - 1});
}
Result<Shape> parameter_of_b(const Call& call, const Product& product, int input) {
  const int rank = rank_of(product.b);
  return aligned_parameter(call, input, "the parameter of B", product.b, rank - 1, {rank - 2});
}

Result<Product> check_parameters(const Call& call, const Slots& slots) {
  TRY(Product product, product_of(call, slots.a, slots.b));
  for (int input : {slots.a_scale, slots.a_zero}) {
    if (input < 0 || !call.has(input)) continue;
    if (auto shape = parameter_of_a(call, product, input); !shape.ok()) return shape.error();
  }
  for (int input : {slots.b_scale, slots.b_zero}) {
    if (input < 0 || !call.has(input)) continue;
    if (auto shape = parameter_of_b(call, product, input); !shape.ok()) return shape.error();
  }
  return product;
}

/// The sum over k of (a - zero) * (b - zero), with the coordinates of both operands.
struct Sum {
  LoopStart start;
  std::vector<ExprId> a_at, b_at;
};
Sum start_sum(const Call& call, const Product& product, const Slots& slots) {
  Shape domain = product.output();
  const int parallel = rank_of(domain);
  domain.push_back(product.k);
  Sum sum{start_loop(domain, parallel), {}, {}};
  Exprs& exprs = sum.start.loop.exprs;
  const auto& coords = sum.start.coords;
  const int batch_rank = rank_of(product.batch);
  const ExprId k = coords.back(), zero = exprs.integer(0);
  auto leading = [&](const Shape& shape) {
    std::vector<ExprId> at;
    for (int d = 0; d < rank_of(shape) - 2; ++d)
      at.push_back(shape[d] == 1 ? zero : coords[batch_rank - (rank_of(shape) - 2) + d]);
    return at;
  };
  sum.a_at = leading(product.a);
  sum.a_at.push_back(product.a_vector ? zero : coords[batch_rank]);
  sum.a_at.push_back(k);
  sum.b_at = leading(product.b);
  sum.b_at.push_back(k);
  sum.b_at.push_back(product.b_vector ? zero : coords[parallel - 1]);

  auto operand = [&](int input, int zero_point, const std::vector<ExprId>& at, bool vector,
                     bool is_a) {
    std::vector<ExprId> own = vector ? std::vector<ExprId>{k} : at;
    const DType type = product_type(call.in(input).dtype);
    ExprId value = exprs.cast(exprs.load(input, call.in(input).dtype, std::move(own)), type);
    if (!call.has(zero_point)) return value;
    const Shape aligned = is_a ? *parameter_of_a(call, product, zero_point)
                               : *parameter_of_b(call, product, zero_point);
    const ExprId point = load_parameter(exprs, call, zero_point, aligned, at);
    return exprs.sub(value, exprs.cast(point, type));
  };
  ExprId a = operand(slots.a, slots.a_zero, sum.a_at, product.a_vector, true);
  ExprId b = operand(slots.b, slots.b_zero, sum.b_at, product.b_vector, false);
  const DType a_type = product_type(call.in(slots.a).dtype);
  if (a_type != product_type(call.in(slots.b).dtype)) {  // one side an integer, the other a float
    a = exprs.cast(a, DType::f32);
    b = exprs.cast(b, DType::f32);
  }
  sum.start.loop.body = exprs.mul(a, b);
  sum.start.loop.combine = Combine::kSum;
  return sum;
}

/// The same sum in doubles, exact while it stays under 2^53.
Result<std::vector<double>> sum_in_doubles(const Call& call, const Product& product,
                                           const Slots& slots,
                                           std::span<const Tensor* const> inputs) {
  std::vector<double> a = read_reals(*inputs[slots.a]), b = read_reals(*inputs[slots.b]);
  if (call.has(slots.a_zero)) {
    TRY(const Shape aligned, parameter_of_a(call, product, slots.a_zero));
    subtract_parameter(a, product.a, *inputs[slots.a_zero], aligned);
  }
  if (call.has(slots.b_zero)) {
    TRY(const Shape aligned, parameter_of_b(call, product, slots.b_zero));
    subtract_parameter(b, product.b, *inputs[slots.b_zero], aligned);
  }
  return multiply(product, a, b);
}

}  // namespace

// ---- MatMulInteger ------------------------------------------------------------------------------

Result<Types> infer_matmul_integer(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kBytes));
  TRY_STATUS(check_dtype(call, 1, kBytes));
  TRY(const Product product, check_parameters(call, kInteger));
  return Types{{DType::i32, product.output()}};
}

std::optional<Loop> loop_matmul_integer(const Call& call, int) {
  const Product product = *product_of(call, 0, 1);
  return std::move(start_sum(call, product, kInteger).start.loop);
}

Status reference_matmul_integer(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  TRY(const Product product, product_of(call, 0, 1));
  TRY(const std::vector<double> sums, sum_in_doubles(call, product, kInteger, inputs));
  std::vector<int64_t> wrapped(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) wrapped[i] = static_cast<int64_t>(sums[i]);
  write_ints(outputs[0], wrapped);
  return ok_status();
}

// ---- QLinearMatMul ------------------------------------------------------------------------------

Result<Types> infer_qlinear_matmul(const Call& call) {
  for (int input : {kLinear.a, kLinear.b, kOutZero})
    TRY_STATUS(check_dtype(call, input, kBytes | kFloats8));
  TRY(const Product product, check_parameters(call, kLinear));
  if (call.in(kOutScale).count() != 1 || call.in(kOutZero).count() != 1) {
    return unsupported_call(call, "the output's scale or zero point is not a single element",
                            "quantise the output per tensor");
  }
  return Types{{call.in(kOutZero).dtype, product.output()}};
}

Cost cost_qlinear_matmul(const Call& call) {
  Cost cost = cost_move(call);
  const double k = static_cast<double>(call.in(kLinear.a).shape.back());
  cost.flops = {2 * k * static_cast<double>(call.out().count())};
  return cost;
}

std::optional<Loop> loop_qlinear_matmul(const Call& call, int) {
  const Product product = *product_of(call, kLinear.a, kLinear.b);
  Sum sum = start_sum(call, product, kLinear);
  Exprs& exprs = sum.start.loop.exprs;
  auto scale = [&](int input, const Shape& aligned, const std::vector<ExprId>& at) {
    return exprs.cast(load_parameter(exprs, call, input, aligned, at), DType::f32);
  };
  const ExprId a =
      scale(kLinear.a_scale, *parameter_of_a(call, product, kLinear.a_scale), sum.a_at);
  const ExprId b =
      scale(kLinear.b_scale, *parameter_of_b(call, product, kLinear.b_scale), sum.b_at);
  const ExprId y = scale(kOutScale, {}, {});
  const ExprId zero = load_parameter(exprs, call, kOutZero, {}, {});
  const DType type = exprs[sum.start.loop.body].dtype;
  sum.start.loop.finish =
      quantize(exprs, exprs.acc(type), exprs.div(exprs.mul(a, b), y), zero, call.out().dtype);
  return std::move(sum.start.loop);
}

Status reference_qlinear_matmul(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  TRY(const Product product, product_of(call, kLinear.a, kLinear.b));
  TRY(const std::vector<double> sums, sum_in_doubles(call, product, kLinear, inputs));
  // Scales seen from the output: rows of A, columns of B, both with the promoted axes.
  Shape full = product.batch;
  full.push_back(product.m);
  full.push_back(product.n);
  TRY(const Shape a_aligned, parameter_of_a(call, product, kLinear.a_scale));
  TRY(const Shape b_aligned, parameter_of_b(call, product, kLinear.b_scale));
  const Tensor a_scale = inputs[kLinear.a_scale]->reshaped(a_aligned);
  const Tensor b_scale = inputs[kLinear.b_scale]->reshaped(b_aligned);
  const Tensor* scales[] = {&a_scale, &b_scale};
  const double y_scale = inputs[kOutScale]->get_double(0);
  const double zero = inputs[kOutZero]->get_double(0);
  Tensor& out = outputs[0];
  const DType dtype = call.out().dtype;
  Broadcast(full, scales).each([&](int64_t element, const int64_t* offsets) {
    const double scale = a_scale.get_double(offsets[0]) * b_scale.get_double(offsets[1]) / y_scale;
    const double value = quantize(sums[element] * scale, zero, dtype);
    if (is_low_float(out.dtype())) {
      set_double_saturating(out.mutable_data(), out.dtype(), element, value);
    } else {
      out.set_double(element, value);
    }
  });
  return ok_status();
}

}  // namespace obelisk::ops
