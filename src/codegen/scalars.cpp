#include "codegen/scalars.h"

#include <cmath>

#include "kernels/kernels.h"

namespace obelisk::codegen {

using ops::Expr;
using ops::Exprs;
using ops::Scalar;

std::string storage_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "double";
    case DType::f32:
      return "float";
    case DType::i64:
      return "int64_t";
    case DType::i32:
      return "int32_t";
    case DType::i16:
      return "int16_t";
    case DType::i8:
      return "int8_t";
    case DType::u64:
      return "uint64_t";
    case DType::u32:
      return "uint32_t";
    case DType::u16:
      return "uint16_t";
    case DType::u8:
      return "uint8_t";
    default:
      return fmt::format("obk::{}", to_string(dtype));
  }
}

std::string tile_type(int32_t type) {
  switch (type) {
    case kObkF64:
      return "kObkF64";
    case kObkF32:
      return "kObkF32";
    case kObkTf32:
      return "kObkTf32";
    case kObkF16:
      return "kObkF16";
    case kObkBf16:
      return "kObkBf16";
    default:
      return "";
  }
}

std::string arithmetic_name(DType dtype) {
  const DType type = ops::compute_type(dtype);
  return type == DType::b1 ? "bool" : storage_name(type);
}

std::string real_literal(DType dtype, double value) {
  if (std::isnan(value)) return "NAN";
  if (std::isinf(value)) return value > 0 ? "INFINITY" : "-INFINITY";
  const std::string digits = fmt::format("{:a}", value);
  return "(" + digits + (dtype == DType::f64 ? "" : "f") + ")";
}

std::string constant_text(const Expr& expr) {
  if (is_float(expr.dtype)) return real_literal(expr.dtype, expr.real);
  if (expr.dtype == DType::b1) return expr.integer ? "true" : "false";
  return fmt::format("(({}){})", arithmetic_name(expr.dtype),
                     expr.integer == INT64_MIN
                         ? "INT64_MIN"
                         : std::to_string(expr.integer) + (expr.dtype == DType::u64 ? "u" : ""));
}

std::string scalar_text(const Exprs& exprs, const Expr& expr, const std::string args[3],
                        bool narrow) {
  const DType type = ops::compute_type(exprs[expr.args[0]].dtype);
  const bool real = is_float(type);
  const std::string name = narrow && type == DType::i64 ? "int" : arithmetic_name(type);
  const std::string &x = args[0], &y = args[1];
  auto call = [&](std::string_view function) { return fmt::format("obk::{}({})", function, x); };
  auto call2 = [&](std::string_view function) {
    return fmt::format("obk::{}({}, {})", function, x, y);
  };
  auto infix = [&](std::string_view op) {
    return real || type == DType::b1 ? fmt::format("({} {} {})", x, op, y)
                                     : fmt::format("({})({} {} {})", name, x, op, y);
  };
  switch (expr.scalar) {
    case Scalar::kCoord:
    case Scalar::kConst:
    case Scalar::kLoad:
    case Scalar::kAcc:
      break;
    case Scalar::kNeg:
      return real ? fmt::format("(-{})", x) : fmt::format("({})(0 - {})", name, x);
    case Scalar::kAbs:
      return call("absolute");
    case Scalar::kSign:
      return call("sign_of");
    case Scalar::kFloor:
      return real ? call("floor_of") : x;
    case Scalar::kCeil:
      return real ? call("ceil_of") : x;
    case Scalar::kRound:
      return real ? call("round_of") : x;
    case Scalar::kTrunc:
      return real ? call("trunc_of") : x;
    case Scalar::kSqrt:
      return call("sqrt_of");
    case Scalar::kRsqrt:
      return fmt::format("({} / obk::sqrt_of({}))", real_literal(type, 1), x);
    case Scalar::kRecip:
      return fmt::format("({} / {})", real_literal(type, 1), x);
    case Scalar::kExp:
      return call("exp_of");
    case Scalar::kLog:
      return call("log_of");
    case Scalar::kLog1p:
      return call("log1p_of");
    case Scalar::kExpm1:
      return call("expm1_of");
    case Scalar::kErf:
      return call("erf_of");
    case Scalar::kSin:
      return call("sin_of");
    case Scalar::kCos:
      return call("cos_of");
    case Scalar::kTan:
      return call("tan_of");
    case Scalar::kAsin:
      return call("asin_of");
    case Scalar::kAcos:
      return call("acos_of");
    case Scalar::kAtan:
      return call("atan_of");
    case Scalar::kSinh:
      return call("sinh_of");
    case Scalar::kCosh:
      return call("cosh_of");
    case Scalar::kTanh:
      return call("tanh_of");
    case Scalar::kAsinh:
      return call("asinh_of");
    case Scalar::kAcosh:
      return call("acosh_of");
    case Scalar::kAtanh:
      return call("atanh_of");
    case Scalar::kSigmoid:
      return call("sigmoid_of");
    case Scalar::kNot:
      return fmt::format("(!{})", x);
    case Scalar::kBitNot:
      return fmt::format("({})(~{})", name, x);
    case Scalar::kIsNan:
      return real ? fmt::format("({} != {})", x, x) : "false";
    case Scalar::kIsInf:
      return real ? fmt::format("(obk::absolute({}) == INFINITY)", x) : "false";
    case Scalar::kCast:
    case Scalar::kCastSat: {
      const DType to = expr.dtype, to_compute = ops::compute_type(to);
      if (to == DType::b1) return fmt::format("({} != 0)", x);
      if (is_float(to)) {
        if (to == to_compute) return fmt::format("({}){}", arithmetic_name(to), x);
        const bool saturates = expr.scalar == Scalar::kCastSat && is_low_float(to);
        return fmt::format("obk::{}_{}((float){})", saturates ? "saturate" : "round", to_string(to),
                           x);
      }
      if (bits(to) < 8) {  // wrap to the narrow width, in the byte that holds it
        const std::string byte = arithmetic_name(to);
        const std::string value =
            real ? fmt::format("obk::to_int<{}>({})", byte, x) : fmt::format("({}){}", byte, x);
        return is_signed(to) ? fmt::format("(int8_t)((int8_t)((uint8_t){} << {}) >> {})", value,
                                           8 - bits(to), 8 - bits(to))
                             : fmt::format("(uint8_t)({} & {})", value, (1 << bits(to)) - 1);
      }
      if (real)
        return type == DType::f32 && to == DType::i32
                   ? call("to_i32")
                   : fmt::format("obk::to_int<{}>({})", arithmetic_name(to), x);
      return fmt::format("({}){}", arithmetic_name(to), x);
    }
    case Scalar::kAdd:
      return infix("+");
    case Scalar::kSub:
      return infix("-");
    case Scalar::kMul:
      return bits(type) == 16 && !real
                 ? fmt::format("({})((uint32_t){} * (uint32_t){})", name, x, y)
                 : infix("*");
    case Scalar::kDiv:
      return real ? infix("/") : call2("quotient");
    case Scalar::kMod:
      return call2("modulo");
    case Scalar::kFmod:
      return real ? call2("fmod_of") : call2("remainder_c");
    case Scalar::kPow:
      return real ? call2("pow_of") : call2("power_int");
    case Scalar::kMin:
      return call2("minimum");
    case Scalar::kMax:
      return call2("maximum");
    case Scalar::kAtan2:
      return call2("atan2_of");
    case Scalar::kLt:
      return fmt::format("({} < {})", x, y);
    case Scalar::kLe:
      return fmt::format("({} <= {})", x, y);
    case Scalar::kEq:
      return fmt::format("({} == {})", x, y);
    case Scalar::kAnd:
      return fmt::format("({} & {})", x, y);
    case Scalar::kOr:
      return fmt::format("({} | {})", x, y);
    case Scalar::kXor:
      return fmt::format("({} != {})", x, y);
    case Scalar::kBitAnd:
      return infix("&");
    case Scalar::kBitOr:
      return infix("|");
    case Scalar::kBitXor:
      return infix("^");
    case Scalar::kShl:
      return call2("shift_left");
    case Scalar::kShr:
      return call2("shift_right");
    case Scalar::kSelect:
      return fmt::format("({} ? {} : {})", x, y, args[2]);
  }
  CHECK(false, "{} is a leaf", ops::to_string(expr.scalar));
  return "";
}

}  // namespace obelisk::codegen
