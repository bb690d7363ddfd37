#include "ops/logic.h"

#include <cmath>

#include "ops/arrays.h"

namespace obelisk::ops {

Result<Types> infer_compare_of(const Call& call, DTypeSet set) {
  TRY_STATUS(common_dtype(call, set));
  TRY(Shape shape, common_shape(call));
  return Types{{DType::b1, std::move(shape)}};
}

Result<Types> infer_bit_shift(const Call& call) {
  TRY(DType dtype, common_dtype(call, kInts));
  TRY(Shape shape, common_shape(call));
  const std::string direction = call.attrs.get_string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") {
    return bad_call(call, fmt::format("direction is '{}'", direction), "it is LEFT or RIGHT");
  }
  return Types{{dtype, std::move(shape)}};
}

Result<Types> infer_where(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kBools));
  if (call.in(1).dtype != call.in(2).dtype) {
    return bad_call(call,
                    fmt::format("it chooses between {} and {}", to_string(call.in(1).dtype),
                                to_string(call.in(2).dtype)),
                    "both choices share one type; cast one of them");
  }
  TRY(Shape shape, common_shape(call));
  return Types{{call.in(1).dtype, std::move(shape)}};
}

std::optional<Loop> loop_logic(const Call& call, int) {
  MapStart start = start_map(call, call.out().shape);
  Exprs& e = start.loop.exprs;
  const std::vector<ExprId>& in = start.values;
  const ExprId x = in[0], y = in.size() > 1 ? in[1] : kNoExpr;
  ExprId& body = start.loop.body;
  switch (call.op) {
    case Op::Equal:
      body = e.eq(x, y);
      break;
    case Op::Less:
      body = e.lt(x, y);
      break;
    case Op::LessOrEqual:
      body = e.le(x, y);
      break;
    case Op::Greater:
      body = e.lt(y, x);
      break;
    case Op::GreaterOrEqual:
      body = e.le(y, x);
      break;
    case Op::And:
      body = e.both(x, y);
      break;
    case Op::Or:
      body = e.binary(Scalar::kOr, x, y);
      break;
    case Op::Xor:
      body = e.binary(Scalar::kXor, x, y);
      break;
    case Op::Not:
      body = e.unary(Scalar::kNot, x);
      break;
    case Op::BitwiseAnd:
      body = e.binary(Scalar::kBitAnd, x, y);
      break;
    case Op::BitwiseOr:
      body = e.binary(Scalar::kBitOr, x, y);
      break;
    case Op::BitwiseXor:
      body = e.binary(Scalar::kBitXor, x, y);
      break;
    case Op::BitwiseNot:
      body = e.unary(Scalar::kBitNot, x);
      break;
    case Op::BitShift: {
      const bool left = call.attrs.get_string("direction", "") == "LEFT";
      body = e.binary(left ? Scalar::kShl : Scalar::kShr, x, y);
      break;
    }
    case Op::IsNaN:
      body = e.unary(Scalar::kIsNan, x);
      break;
    case Op::IsInf: {
      const ExprId zero = e.constant(call.in(0).dtype, 0);
      body = e.unary(Scalar::kIsInf, x);
      if (!call.attrs.get_int("detect_negative", 1)) body = e.both(body, e.lt(zero, x));
      if (!call.attrs.get_int("detect_positive", 1)) body = e.both(body, e.lt(x, zero));
      break;
    }
    case Op::Where:
      body = e.select(x, in[1], in[2]);
      break;
    default:
      CHECK(false, "{} is not logic", to_string(call.op));
  }
  return std::move(start.loop);
}

namespace {

template <typename Value>
bool compare(Op op, Value x, Value y) {
  switch (op) {
    case Op::Equal:
      return x == y;
    case Op::Less:
      return x < y;
    case Op::LessOrEqual:
      return x <= y;
    case Op::Greater:
      return x > y;
    case Op::GreaterOrEqual:
      return x >= y;
    default:
      CHECK(false, "{} does not compare", to_string(op));
      return false;
  }
}

int64_t shift(const Call& call, int64_t x, int64_t by) {
  const auto places = static_cast<uint64_t>(by), value = static_cast<uint64_t>(x);
  const bool left = call.attrs.get_string("direction", "") == "LEFT";
  const bool negative = !left && is_signed(call.in(0).dtype) && x < 0;
  if (places >= static_cast<uint64_t>(bits(call.in(0).dtype))) return negative ? -1 : 0;
  if (left) return static_cast<int64_t>(value << places);
  return static_cast<int64_t>(negative ? ~(~value >> places) : value >> places);
}

int64_t integer_logic(const Call& call, int64_t x, int64_t y) {
  switch (call.op) {
    case Op::And:
      return x && y;
    case Op::Or:
      return x || y;
    case Op::Xor:
      return (x != 0) != (y != 0);
    case Op::Not:
      return x == 0;
    case Op::BitwiseAnd:
      return x & y;
    case Op::BitwiseOr:
      return x | y;
    case Op::BitwiseXor:
      return x ^ y;
    case Op::BitwiseNot:
      return ~x;
    case Op::BitShift:
      return shift(call, x, y);
    default:
      return call.in(0).dtype == DType::u64
                 ? compare(call.op, static_cast<uint64_t>(x), static_cast<uint64_t>(y))
                 : compare(call.op, x, y);
  }
}

bool real_logic(const Call& call, double x, double y) {
  switch (call.op) {
    case Op::IsNaN:
      return std::isnan(x);
    case Op::IsInf:
      return std::isinf(x) && call.attrs.get_int(x < 0 ? "detect_negative" : "detect_positive", 1);
    default:
      return compare(call.op, x, y);
  }
}

}  // namespace

Status reference_logic(const Call& call, std::span<const Tensor* const> inputs,
                       std::span<Tensor> outputs) {
  Tensor& out = outputs[0];
  const Broadcast walk(out.shape(), inputs);
  if (call.op == Op::Where) {
    walk.each([&](int64_t n, const int64_t* at) {
      const int choice = inputs[0]->get_int(at[0]) ? 1 : 2;
      copy_element(out, n, *inputs[choice], at[choice]);
    });
    return ok_status();
  }
  const bool real = is_float(inputs[0]->dtype());
  const bool unary = inputs.size() == 1;
  walk.each([&](int64_t n, const int64_t* at) {
    if (real) {
      const double y = unary ? 0 : inputs[1]->get_double(at[1]);
      out.set_int(n, real_logic(call, inputs[0]->get_double(at[0]), y));
    } else {
      const int64_t y = unary ? 0 : inputs[1]->get_int(at[1]);
      out.set_int(n, integer_logic(call, inputs[0]->get_int(at[0]), y));
    }
  });
  return ok_status();
}

}  // namespace obelisk::ops
