#include "ops/elementwise.h"

#include <cmath>
#include <numbers>

namespace obelisk::ops {

Result<Types> infer_map_of(const Call& call, DTypeSet set) {
  TRY(DType dtype, common_dtype(call, set));
  TRY(Shape shape, common_shape(call));
  return Types{{dtype, std::move(shape)}};
}

Result<Types> infer_clip(const Call& call) {
  TRY_STATUS(common_dtype(call, kNumbers));
  for (int bound : {1, 2}) {
    if (call.has(bound) && call.in(bound).count() != 1) {
      return bad_call(call, fmt::format("the {} bound is {}, wanted a scalar",
                                        bound == 1 ? "lower" : "upper", to_string(call.in(bound))));
    }
  }
  return Types{call.in(0)};
}

Result<Types> infer_pow(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kNumbers));
  TRY_STATUS(check_dtype(call, 1, kNumbers));
  TRY(Shape shape, common_shape(call));
  return Types{{call.in(0).dtype, std::move(shape)}};
}

Result<Types> infer_prelu(const Call& call) {
  TRY_STATUS(common_dtype(call, kNumbers));
  TRY(Shape shape, common_shape(call));
  if (shape != call.in(0).shape) {
    return bad_call(call, fmt::format("the slope {} does not broadcast to the input {}",
                                      to_string(call.in(1).shape), to_string(call.in(0).shape)));
  }
  return Types{call.in(0)};
}

Result<Types> infer_swiglu(const Call& call) {
  TRY_STATUS(common_dtype(call, kFloats));
  if (call.in(0).shape != call.in(1).shape)
    return bad_call(call, fmt::format("the gate is {}, but what it scales {}",
                                      to_string(call.in(0).shape), to_string(call.in(1).shape)));
  return Types{call.in(0)};
}

namespace {

/// Builds the body of a map op from the values of its inputs.
struct MapBody {
  const Call& call;
  Exprs& e;
  DType dtype;  // of input 0, in which constants are made
  const std::vector<ExprId>& in;

  ExprId c(double value) { return e.constant(dtype, value); }
  ExprId attr(std::string_view name, double otherwise) {
    return c(call.attrs.get_float(name, otherwise));
  }
  ExprId f(Scalar scalar, ExprId x) { return e.unary(scalar, x); }
  ExprId f(Scalar scalar, ExprId x, ExprId y) { return e.binary(scalar, x, y); }
  ExprId below(ExprId x, double bound) { return e.lt(x, c(bound)); }
  ExprId between(ExprId x, double low, double high) {
    return f(Scalar::kMax, c(low), f(Scalar::kMin, c(high), x));
  }
  ExprId chain(Scalar scalar) {
    ExprId value = in[0];
    for (size_t input = 1; input < in.size(); ++input) value = f(scalar, value, in[input]);
    return value;
  }

  ExprId softplus(ExprId x);
  ExprId gelu(ExprId x);
  ExprId swish(ExprId x);
  ExprId pow(ExprId base, ExprId exponent);
  ExprId shrink(ExprId x);
  ExprId build();
};

/// log(1 + exp(x))  →  max(x, 0) + log1p(exp(-|x|)), which does not overflow
ExprId MapBody::softplus(ExprId x) {
  const ExprId tail = f(Scalar::kExp, f(Scalar::kNeg, f(Scalar::kAbs, x)));
  return e.add(f(Scalar::kMax, x, c(0)), f(Scalar::kLog1p, tail));
}

ExprId MapBody::gelu(ExprId x) {
  ExprId inner;
  if (call.attrs.get_string("approximate", "none") == "tanh") {
    const ExprId cube = e.mul(e.mul(x, x), x);
    const ExprId sum = e.add(x, e.mul(cube, c(0.044715)));
    inner = f(Scalar::kTanh, e.mul(sum, c(std::sqrt(2 / std::numbers::pi))));
  } else {
    inner = f(Scalar::kErf, e.mul(x, c(1 / std::numbers::sqrt2)));
  }
  return e.mul(e.mul(x, c(0.5)), e.add(inner, c(1)));
}

ExprId MapBody::swish(ExprId x) {
  return e.mul(x, f(Scalar::kSigmoid, e.mul(x, attr("alpha", 1))));
}

/// A float base takes the exponent into its type; an integer base meets a float exponent in f64, an
/// integer one in i64.
ExprId MapBody::pow(ExprId base, ExprId exponent) {
  const DType meeting = is_float(dtype)              ? compute_type(dtype)
                        : is_float(call.in(1).dtype) ? DType::f64
                                                     : DType::i64;
  const ExprId power = f(Scalar::kPow, e.cast(base, meeting), e.cast(exponent, meeting));
  return e.cast(power, compute_type(dtype));
}

/// Integers are shrunk in f64, because bias and lambd are floats.
ExprId MapBody::shrink(ExprId x) {
  const DType own = compute_type(dtype);
  const DType wide = is_float(dtype) ? own : DType::f64;
  const double limit = call.attrs.get_float("lambd", 0.5);
  const ExprId bias = e.constant(wide, call.attrs.get_float("bias", 0));
  const ExprId value = e.cast(x, wide);
  const ExprId inner =
      e.select(e.lt(e.constant(wide, limit), value), e.sub(value, bias), e.constant(wide, 0));
  const ExprId low = e.lt(value, e.constant(wide, -limit));
  return e.cast(e.select(low, e.add(value, bias), inner), own);
}

ExprId MapBody::build() {
  const ExprId x = in[0];
  switch (call.op) {
    case Op::Abs:
      return f(Scalar::kAbs, x);
    case Op::Neg:
      return f(Scalar::kNeg, x);
    case Op::Sign:
      return f(Scalar::kSign, x);
    case Op::Floor:
      return f(Scalar::kFloor, x);
    case Op::Ceil:
      return f(Scalar::kCeil, x);
    case Op::Round:
      return f(Scalar::kRound, x);
    case Op::Sqrt:
      return f(Scalar::kSqrt, x);
    case Op::Rsqrt:
      return f(Scalar::kRsqrt, x);
    case Op::Reciprocal:
      return f(Scalar::kRecip, x);
    case Op::Exp:
      return f(Scalar::kExp, x);
    case Op::Log:
      return f(Scalar::kLog, x);
    case Op::Sin:
      return f(Scalar::kSin, x);
    case Op::Cos:
      return f(Scalar::kCos, x);
    case Op::Tan:
      return f(Scalar::kTan, x);
    case Op::Asin:
      return f(Scalar::kAsin, x);
    case Op::Acos:
      return f(Scalar::kAcos, x);
    case Op::Atan:
      return f(Scalar::kAtan, x);
    case Op::Sinh:
      return f(Scalar::kSinh, x);
    case Op::Cosh:
      return f(Scalar::kCosh, x);
    case Op::Tanh:
      return f(Scalar::kTanh, x);
    case Op::Asinh:
      return f(Scalar::kAsinh, x);
    case Op::Acosh:
      return f(Scalar::kAcosh, x);
    case Op::Atanh:
      return f(Scalar::kAtanh, x);
    case Op::Erf:
      return f(Scalar::kErf, x);
    case Op::Sigmoid:
      return f(Scalar::kSigmoid, x);
    case Op::Relu:
      return f(Scalar::kMax, x, c(0));
    case Op::LeakyRelu:
      return e.select(below(x, 0), e.mul(x, attr("alpha", 0.01f)), x);
    case Op::PRelu:
      return e.select(below(x, 0), e.mul(x, in[1]), x);
    case Op::Elu: {
      const ExprId low = e.mul(f(Scalar::kExpm1, x), attr("alpha", 1));
      return e.select(below(x, 0), low, x);
    }
    case Op::Selu: {
      const ExprId low = e.mul(f(Scalar::kExpm1, x), attr("alpha", 1.67326319217681884765625));
      return e.mul(e.select(below(x, 0), low, x), attr("gamma", 1.05070102214813232421875));
    }
    case Op::Celu: {
      const ExprId alpha = attr("alpha", 1);
      const ExprId low = e.mul(f(Scalar::kExpm1, e.div(x, alpha)), alpha);
      return e.add(f(Scalar::kMax, x, c(0)), f(Scalar::kMin, low, c(0)));
    }
    case Op::ThresholdedRelu:
      return e.select(e.lt(attr("alpha", 1), x), x, c(0));
    case Op::HardSigmoid:
      return between(e.add(e.mul(x, attr("alpha", 0.2f)), attr("beta", 0.5)), 0, 1);
    case Op::HardSwish:
      return e.mul(x, between(e.add(e.mul(x, c(1.0 / 6)), c(0.5)), 0, 1));
    case Op::Softplus:
      return softplus(x);
    case Op::Softsign:
      return e.div(x, e.add(f(Scalar::kAbs, x), c(1)));
    case Op::Swish:
      return swish(x);
    case Op::SwiGLU:
      return e.mul(swish(x), in[1]);
    case Op::Gelu:
      return gelu(x);
    case Op::Mish:
      return e.mul(x, f(Scalar::kTanh, softplus(x)));
    case Op::Shrink:
      return shrink(x);
    case Op::Clip: {
      ExprId value = x;
      if (call.has(1)) value = f(Scalar::kMax, value, in[1]);
      if (call.has(2)) value = f(Scalar::kMin, value, in[2]);
      return value;
    }
    case Op::Add:
    case Op::Sum:
      return chain(Scalar::kAdd);
    case Op::Sub:
      return e.sub(x, in[1]);
    case Op::Mul:
      return e.mul(x, in[1]);
    case Op::Div:
      return e.div(x, in[1]);
    case Op::Mod:
      return f(call.attrs.get_int("fmod", 0) ? Scalar::kFmod : Scalar::kMod, x, in[1]);
    case Op::Pow:
      return pow(x, in[1]);
    case Op::Min:
      return chain(Scalar::kMin);
    case Op::Max:
      return chain(Scalar::kMax);
    case Op::Mean:
      return e.div(chain(Scalar::kAdd), c(static_cast<double>(in.size())));
    default:
      CHECK(false, "{} is not elementwise", to_string(call.op));
  }
  return kNoExpr;
}

}  // namespace

std::optional<Loop> loop_map(const Call& call, int) {
  Call mapped = call;
  if (call.op == Op::Clip) mapped.inputs.resize(1);  // its bounds may have more dimensions than x
  MapStart start = start_map(mapped, call.out().shape);
  Exprs& exprs = start.loop.exprs;
  if (call.op == Op::Clip) {
    for (int bound = 1; bound < call.arity(); ++bound) {
      start.values.push_back(kNoExpr);
      if (!call.has(bound)) continue;
      const Type& type = call.in(bound);
      start.values.back() =
          exprs.load(bound, type.dtype, std::vector<ExprId>(type.rank(), exprs.integer(0)));
    }
  }
  start.loop.body = MapBody{call, exprs, call.in(0).dtype, start.values}.build();
  return std::move(start.loop);
}

}  // namespace obelisk::ops
