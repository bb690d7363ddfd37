#include "ops/matmul.h"

#include <algorithm>
#include <cmath>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/gemm.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

constexpr DTypeSet kProductTypes =
    kFloats | dtype_set({DType::i32, DType::i64, DType::u32, DType::u64});

/// Offsets of each batch entry's matrix, in matrices.
std::vector<int64_t> batch_offsets(const Shape& batch, const Shape& operand) {
  const Shape own(operand.begin(), operand.end() - 2);
  const size_t skip = batch.size() - own.size();
  const Shape strides = row_major_strides(own);
  std::vector<int64_t> offsets;
  for_each_point(batch, [&](const std::vector<int64_t>& at) {
    int64_t offset = 0;
    for (size_t d = 0; d < own.size(); ++d)
      if (own[d] != 1) offset += at[skip + d] * strides[d];
    offsets.push_back(offset);
  });
  return offsets;
}

/// c = a * b modulo 2^64.
std::vector<int64_t> multiply_ints(const Product& product, const std::vector<int64_t>& a,
                                   const std::vector<int64_t>& b) {
  const int64_t m = product.m, n = product.n, k = product.k;
  const auto a_at = batch_offsets(product.batch, product.a);
  const auto b_at = batch_offsets(product.batch, product.b);
  std::vector<uint64_t> c(a_at.size() * m * n, 0);
  for (size_t batch = 0; batch < a_at.size(); ++batch)
    for (int64_t row = 0; row < m; ++row)
      for (int64_t inner = 0; inner < k; ++inner) {
        const auto left = static_cast<uint64_t>(a[(a_at[batch] * m + row) * k + inner]);
        const int64_t* right = b.data() + (b_at[batch] * k + inner) * n;
        uint64_t* out = c.data() + (batch * m + row) * n;
        for (int64_t column = 0; column < n; ++column)
          out[column] += left * static_cast<uint64_t>(right[column]);
      }
  return {c.begin(), c.end()};
}

struct GemmShape {
  int64_t m, n, k;
  bool trans_a, trans_b;
};
GemmShape gemm_shape(const Call& call) {
  GemmShape shape{};
  shape.trans_a = call.attrs.get_int("transA", 0) != 0;
  shape.trans_b = call.attrs.get_int("transB", 0) != 0;
  shape.m = call.in(0).shape[shape.trans_a ? 1 : 0];
  shape.k = call.in(0).shape[shape.trans_a ? 0 : 1];
  shape.n = call.in(1).shape[shape.trans_b ? 0 : 1];
  return shape;
}

bool is_whole(double value) { return std::fabs(value) < 0x1p63 && value == std::trunc(value); }

}  // namespace

Shape Product::output() const {
  Shape shape = batch;
  if (!a_vector) shape.push_back(m);
  if (!b_vector) shape.push_back(n);
  return shape;
}

Result<Product> product_of(const Call& call, int a, int b) {
  Product product;
  product.a = call.in(a).shape;
  product.b = call.in(b).shape;
  if (product.a.empty() || product.b.empty()) {
    return bad_call(call,
                    fmt::format("operands {} and {}; a scalar has no rows", to_string(product.a),
                                to_string(product.b)),
                    "use Mul to scale");
  }
  product.a_vector = product.a.size() == 1;
  product.b_vector = product.b.size() == 1;
  if (product.a_vector) product.a.insert(product.a.begin(), 1);
  if (product.b_vector) product.b.push_back(1);
  product.m = product.a[product.a.size() - 2];
  product.k = product.a.back();
  product.n = product.b.back();
  const int64_t k = product.b[product.b.size() - 2];
  auto batch = broadcast(Shape(product.a.begin(), product.a.end() - 2),
                         Shape(product.b.begin(), product.b.end() - 2));
  if (product.k != k || !batch) {
    return bad_call(call,
                    fmt::format("operands {} and {} do not multiply", to_string(call.in(a).shape),
                                to_string(call.in(b).shape)),
                    "columns of A must equal rows of B, and leading dimensions must broadcast");
  }
  product.batch = *batch;
  return product;
}

std::vector<double> multiply(const Product& product, const std::vector<double>& a,
                             const std::vector<double>& b, Sums sums) {
  const int64_t m = product.m, n = product.n, k = product.k;
  const auto a_at = batch_offsets(product.batch, product.a);
  const auto b_at = batch_offsets(product.batch, product.b);
  const auto batches = static_cast<int64_t>(a_at.size());
  std::vector<double> c(batches * m * n);
  if (c.empty()) return c;
  const int64_t b_matrices = element_count(Shape(product.b.begin(), product.b.end() - 2));
  const int64_t a_matrices = element_count(Shape(product.a.begin(), product.a.end() - 2));
  if (b_matrices == 1 && a_matrices == batches) {  // one B for all: the batch is more rows
    gemm_on_threads(batches * m, n, k, a.data(), k, b.data(), n, c.data(), n, sums);
    return c;
  }
  if (batches == 1) {
    gemm_on_threads(m, n, k, a.data(), k, b.data(), n, c.data(), n, sums);
    return c;
  }
  const int64_t grain = 1 + (int64_t{1} << 18) / std::max<int64_t>(m * n * k, 1);
  parallel_for(batches, grain, [&](int64_t begin, int64_t end) {
    for (int64_t batch = begin; batch < end; ++batch)
      gemm(m, n, k, a.data() + a_at[batch] * m * k, k, b.data() + b_at[batch] * k * n, n,
           c.data() + batch * m * n, n, sums);
  });
  return c;
}

// ---- MatMul -------------------------------------------------------------------------------------

Result<Types> infer_matmul(const Call& call) {
  TRY(const DType dtype, common_dtype(call, kProductTypes));
  TRY(const Product product, product_of(call, 0, 1));
  return Types{{dtype, product.output()}};
}

Cost cost_matmul(const Call& call) {
  Cost cost = cost_move(call);
  const double k = static_cast<double>(call.in(0).shape.back());
  cost.flops = {2 * k * static_cast<double>(call.out().count())};
  return cost;
}

std::optional<Loop> loop_matmul(const Call& call, int) {
  const Product product = *product_of(call, 0, 1);
  Shape domain = product.output();
  const int parallel = static_cast<int>(domain.size());
  domain.push_back(product.k);
  LoopStart start = start_loop(domain, parallel);
  Exprs& exprs = start.loop.exprs;
  const int batch_rank = static_cast<int>(product.batch.size());
  const ExprId k = start.coords.back(), zero = exprs.integer(0);
  const ExprId row = product.a_vector ? zero : start.coords[batch_rank];
  const ExprId column = product.b_vector ? zero : start.coords[parallel - 1];
  auto operand = [&](int input, const Shape& shape, bool vector, ExprId first, ExprId second) {
    std::vector<ExprId> at;
    const size_t leading = shape.size() - 2;
    for (size_t d = 0; d < leading; ++d)
      at.push_back(shape[d] == 1 ? zero : start.coords[batch_rank - leading + d]);
    if (vector) {
      at.push_back(k);
    } else {
      at.push_back(first);
      at.push_back(second);
    }
    return exprs.load(input, call.in(input).dtype, std::move(at));
  };
  start.loop.body = exprs.mul(operand(0, product.a, product.a_vector, row, k),
                              operand(1, product.b, product.b_vector, k, column));
  start.loop.combine = Combine::kSum;
  return std::move(start.loop);
}

Status reference_matmul(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  TRY(const Product product, product_of(call, 0, 1));
  if (is_float(outputs[0].dtype())) {
    write_reals(outputs[0],
                multiply(product, read_reals(*inputs[0]), read_reals(*inputs[1]), call.sums));
  } else {
    write_ints(outputs[0], multiply_ints(product, read_ints(*inputs[0]), read_ints(*inputs[1])));
  }
  return ok_status();
}

// ---- Gemm ---------------------------------------------------------------------------------------

Result<Types> infer_gemm(const Call& call) {
  TRY(const DType dtype, common_dtype(call, kProductTypes));
  if (call.in(0).rank() != 2 || call.in(1).rank() != 2) {
    return bad_call(call,
                    fmt::format("A {} and B {} must be matrices", to_string(call.in(0).shape),
                                to_string(call.in(1).shape)),
                    "MatMul takes other ranks");
  }
  const GemmShape shape = gemm_shape(call);
  const int64_t k = call.in(1).shape[shape.trans_b ? 1 : 0];
  if (shape.k != k) {
    return bad_call(call, fmt::format("A {} and B {} do not multiply with transA={} transB={}",
                                      to_string(call.in(0).shape), to_string(call.in(1).shape),
                                      int{shape.trans_a}, int{shape.trans_b}));
  }
  const Shape output{shape.m, shape.n};
  if (call.has(2) && broadcast(call.in(2).shape, output) != output) {
    return bad_call(call, fmt::format("C {} does not broadcast to {}", to_string(call.in(2).shape),
                                      to_string(output)));
  }
  return Types{{dtype, output}};
}

Cost cost_gemm(const Call& call) {
  Cost cost = cost_move(call);
  const GemmShape shape = gemm_shape(call);
  cost.flops = {2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                static_cast<double>(shape.k)};
  return cost;
}

std::optional<Loop> loop_gemm(const Call& call, int) {
  const GemmShape shape = gemm_shape(call);
  LoopStart start = start_loop({shape.m, shape.n, shape.k}, 2);
  Exprs& exprs = start.loop.exprs;
  const ExprId row = start.coords[0], column = start.coords[1], k = start.coords[2];
  const DType dtype = call.in(0).dtype;
  auto matrix = [&](int input, ExprId first, ExprId second, bool swap) {
    if (swap) std::swap(first, second);
    return exprs.load(input, dtype, {first, second});
  };
  start.loop.body =
      exprs.mul(matrix(0, row, k, shape.trans_a), matrix(1, k, column, shape.trans_b));
  start.loop.combine = Combine::kSum;

  const double alpha = call.attrs.get_float("alpha", 1), beta = call.attrs.get_float("beta", 1);
  ExprId result = exprs.acc(dtype), bias = kNoExpr;
  if (call.has(2) && beta != 0) {
    const Shape& c = call.in(2).shape;
    std::vector<ExprId> at;
    for (size_t d = 0; d < c.size(); ++d)
      at.push_back(c[d] == 1 ? exprs.integer(0) : start.coords[2 - c.size() + d]);
    bias = exprs.load(2, dtype, std::move(at));
  }
  // Integers are scaled in integers where the factors are whole, else in doubles and truncated.
  const bool in_doubles = !is_float(dtype) && !(is_whole(alpha) && is_whole(beta));
  const DType type = in_doubles ? DType::f64 : dtype;
  auto scaled = [&](ExprId value, double factor) {
    if (in_doubles) value = exprs.cast(value, DType::f64);
    return factor == 1 ? value : exprs.mul(value, exprs.constant(type, factor));
  };
  result = scaled(result, alpha);
  if (bias != kNoExpr) result = exprs.add(result, scaled(bias, beta));
  start.loop.finish = in_doubles ? exprs.cast(result, dtype) : result;
  return std::move(start.loop);
}

Status reference_gemm(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs) {
  const GemmShape shape = gemm_shape(call);
  const double alpha = call.attrs.get_float("alpha", 1), beta = call.attrs.get_float("beta", 1);
  const bool biased = inputs.size() > 2 && inputs[2] && beta != 0;
  const Product product{{}, shape.m, shape.n, shape.k, {shape.m, shape.k}, {shape.k, shape.n}};
  const Tensor* bias[] = {biased ? inputs[2] : nullptr};
  const Broadcast places({shape.m, shape.n}, bias);

  if (is_float(outputs[0].dtype())) {
    std::vector<double> a = read_reals(*inputs[0]), b = read_reals(*inputs[1]);
    if (shape.trans_a) a = transposed(a.data(), shape.k, shape.m);
    if (shape.trans_b) b = transposed(b.data(), shape.n, shape.k);
    std::vector<double> out = multiply(product, a, b, call.sums);
    std::vector<double> c = biased ? read_reals(*inputs[2]) : std::vector<double>(1, 0.0);
    places.each([&](int64_t element, const int64_t* offsets) {
      out[element] = alpha * out[element] + (biased ? beta * c[offsets[0]] : 0);
    });
    write_reals(outputs[0], out);
    return ok_status();
  }
  const std::vector<int64_t> a = read_ints(*inputs[0]), b = read_ints(*inputs[1]);
  auto plain = [](const std::vector<int64_t>& from, bool turn, int64_t rows, int64_t columns) {
    if (!turn) return from;
    std::vector<int64_t> to(from.size());
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        to[row * columns + column] = from[column * rows + row];
    return to;
  };
  std::vector<int64_t> out = multiply_ints(product, plain(a, shape.trans_a, shape.m, shape.k),
                                           plain(b, shape.trans_b, shape.k, shape.n));
  const std::vector<int64_t> c = biased ? read_ints(*inputs[2]) : std::vector<int64_t>(1, 0);
  const bool whole = is_whole(alpha) && is_whole(beta);
  const bool is_unsigned = outputs[0].dtype() == DType::u64;
  auto real = [&](int64_t value) {
    return is_unsigned ? static_cast<double>(static_cast<uint64_t>(value))
                       : static_cast<double>(value);
  };
  // The product wraps at the width of the type before it is scaled.
  if (!whole) {
    write_ints(outputs[0], out);
    out = read_ints(outputs[0]);
  }
  places.each([&](int64_t element, const int64_t* offsets) {
    if (whole) {
      const auto scaled =
          static_cast<uint64_t>(static_cast<int64_t>(alpha)) * static_cast<uint64_t>(out[element]);
      const auto added = static_cast<uint64_t>(static_cast<int64_t>(beta)) *
                         static_cast<uint64_t>(biased ? c[offsets[0]] : 0);
      out[element] = static_cast<int64_t>(scaled + added);
    } else {
      const double value = alpha * real(out[element]) + (biased ? beta * real(c[offsets[0]]) : 0);
      set_double(&out[element], DType::u64, 0, value);
    }
  });
  write_ints(outputs[0], out);
  return ok_status();
}

}  // namespace obelisk::ops
