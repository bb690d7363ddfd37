#include "ops/dtype_set.h"

namespace obelisk::ops {

std::string to_string(DTypeSet set) {
  std::string text;
  for (int dtype = 0; dtype < kDTypes; ++dtype) {
    if (!contains(set, static_cast<DType>(dtype))) continue;
    if (!text.empty()) text += ' ';
    text += to_string(static_cast<DType>(dtype));
  }
  return text;
}

Status check_dtype(const Call& call, int input, DTypeSet set) {
  if (contains(set, call.in(input).dtype)) return ok_status();
  return bad_call(call,
                  fmt::format("input {} is {}, but it takes {}", input,
                              to_string(call.in(input).dtype), to_string(set)),
                  "cast it first");
}

Result<DType> common_dtype(const Call& call, DTypeSet set) {
  int first = -1;
  for (int input = 0; input < call.arity(); ++input) {
    if (!call.has(input)) continue;
    TRY_STATUS(check_dtype(call, input, set));
    if (first < 0) first = input;
    if (call.in(input).dtype != call.in(first).dtype) {
      return bad_call(
          call,
          fmt::format("input {} is {}, but input {} is {}", input, to_string(call.in(input).dtype),
                      first, to_string(call.in(first).dtype)),
          "the inputs share one type; cast one of them");
    }
  }
  if (first < 0) return bad_call(call, "no input is there");
  return call.in(first).dtype;
}

Result<Shape> common_shape(const Call& call) {
  Shape shape;
  for (int input = 0; input < call.arity(); ++input) {
    if (!call.has(input)) continue;
    auto wider = broadcast(shape, call.in(input).shape);
    if (!wider) {
      return bad_call(call, fmt::format("input {} is {}, which does not broadcast with {}", input,
                                        to_string(call.in(input).shape), to_string(shape)));
    }
    shape = std::move(*wider);
  }
  return shape;
}

}  // namespace obelisk::ops
