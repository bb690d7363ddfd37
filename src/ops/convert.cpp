#include "ops/convert.h"

#include <cmath>
#include <cstring>

#include "ops/arrays.h"

namespace obelisk::ops {
namespace {

Result<DType> target_dtype(const Call& call) {
  const int64_t number = call.attrs.get_int("to", 0);
  const std::optional<DType> dtype = dtype_of_number(number);
  if (dtype) return *dtype;
  return unsupported_call(call,
                          fmt::format("to = {} is not an element type that runs here", number),
                          "strings and complex numbers do not run; cast to a number");
}

/// A cast that the compiler added: it need not round before its value is stored.
bool is_loose(const Call& call) { return call.attrs.get_int("loose", 0) != 0; }

bool saturates(const Call& call) { return call.attrs.get_int("saturate", 1) != 0; }

/// A power of two as f8e8m0 keeps it, rounded from |value| as the mode says. Zero becomes the
/// smallest.
double round_to_power(double value, const std::string& mode, bool saturate) {
  if (std::isnan(value)) return value;
  constexpr double kSmallest = 0x1p-127, kLargest = 0x1p127;
  if (value <= kSmallest) return kSmallest;
  if (std::isinf(value)) return saturate ? kLargest : std::nan("");
  int exponent = 0;
  const double mantissa =
      std::frexp(value, &exponent);  // value = mantissa * 2^exponent, in [0.5, 1)
  double power = std::ldexp(0.5, exponent);
  const bool up = mode == "up" ? mantissa > 0.5 : mode == "nearest" && mantissa >= 0.75;
  if (up) power *= 2;
  if (power <= kLargest) return power;
  return saturate ? kLargest : std::nan("");
}

}  // namespace

Result<Types> infer_cast(const Call& call) {
  TRY(DType dtype, target_dtype(call));
  const std::string mode = call.attrs.get_string("round_mode", "up");
  if (dtype == DType::f8e8m0 && mode != "up" && mode != "down" && mode != "nearest") {
    return bad_call(call, fmt::format("round_mode is '{}'", mode), "it is up, down or nearest");
  }
  return Types{{dtype, call.in(0).shape}};
}

Result<Types> infer_cast_like(const Call& call) {
  return Types{{call.in(1).dtype, call.in(0).shape}};
}

Result<Types> infer_bit_cast(const Call& call) {
  TRY(DType dtype, target_dtype(call));
  if (bits(dtype) != bits(call.in(0).dtype)) {
    return bad_call(call,
                    fmt::format("{} has {} bits but {} has {}", to_string(call.in(0).dtype),
                                bits(call.in(0).dtype), to_string(dtype), bits(dtype)),
                    "both types need the same width");
  }
  return Types{{dtype, call.in(0).shape}};
}

std::optional<Loop> loop_cast(const Call& call, int) {
  const DType from = call.in(0).dtype;
  DType to = call.out().dtype;
  if (to == DType::f8e8m0 && from != to) return std::nullopt;  // its rounding modes are no scalar
  // A loose cast rounds where it is stored, which every store does.
  if (is_loose(call) && is_float(from) && is_float(to)) to = compute_type(to);
  Call first = call;
  first.inputs.resize(1);
  MapStart start = start_map(first, call.out().shape);
  Exprs& e = start.loop.exprs;
  ExprId value = start.values[0];
  // Narrow integers are reached through one that holds every value that makes sense, so that the
  // rest wraps everywhere alike.
  if (is_float(from) && is_integer(to)) {
    if (bits(to) <= 16)
      value = e.cast(value, DType::i32);
    else if (to == DType::u32)
      value = e.cast(value, DType::i64);
  }
  start.loop.body = e.cast(value, to, is_low_float(to) && saturates(call));
  return std::move(start.loop);
}

Status reference_cast(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs) {
  const Tensor& in = *inputs[0];
  Tensor& out = outputs[0];
  const DType to = call.out().dtype;
  const bool real = is_float(in.dtype()), saturate = saturates(call);
  const std::string mode = call.attrs.get_string("round_mode", "up");
  for (int64_t n = 0; n < out.count(); ++n) {
    if (call.in(0).dtype == to || (is_loose(call) && is_float(out.dtype()))) {  // infinities too
      if (in.dtype() != out.dtype()) {
        out.set_double(n, in.get_double(n));
        continue;
      }
      copy_element(out, n, in, n);
      continue;
    }
    uint64_t rounded = 0;  // one element of the type to which the call converts
    if (to == DType::f8e8m0) {
      const double value = real ? in.get_double(n) : static_cast<double>(in.get_int(n));
      set_double(&rounded, to, 0, round_to_power(value, mode, saturate));
    } else if (!real && in.dtype() == DType::u64 && is_float(to)) {
      const auto value = static_cast<uint64_t>(in.get_int(n));
      // f32 is rounded from the integer itself; narrower ones from a double, which is exact up to
      // 2^53.
      const double once = to == DType::f32 ? static_cast<float>(value) : static_cast<double>(value);
      saturate ? set_double_saturating(&rounded, to, 0, once) : set_double(&rounded, to, 0, once);
    } else if (!real && is_low_float(to) && saturate) {
      set_double_saturating(&rounded, to, 0, static_cast<double>(in.get_int(n)));
    } else if (!real) {
      set_int(&rounded, to, 0, in.get_int(n));
    } else if (saturate) {
      set_double_saturating(&rounded, to, 0, in.get_double(n));
    } else {
      set_double(&rounded, to, 0, in.get_double(n));
    }
    if (is_float(to))
      out.set_double(n, get_double(&rounded, to, 0));
    else
      out.set_int(n, get_int(&rounded, to, 0));
  }
  return ok_status();
}

Status reference_bit_cast(const Call& call, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs) {
  const DType from = call.in(0).dtype, to = call.out().dtype;
  const Tensor narrow = inputs[0]->dtype() == from ? *inputs[0] : inputs[0]->cast(from);
  Tensor cast = Tensor::allocate(call.out());
  std::memcpy(cast.mutable_data(), narrow.data(), cast.bytes());
  Tensor& out = outputs[0];
  for (int64_t n = 0; n < out.count(); ++n) {
    if (is_float(to))
      out.set_double(n, cast.get_double(n));
    else
      out.set_int(n, cast.get_int(n));
  }
  return ok_status();
}

}  // namespace obelisk::ops
