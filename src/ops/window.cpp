#include "ops/window.h"

#include <algorithm>

namespace obelisk::ops {
namespace {

constexpr int64_t kLargest = int64_t{1}
                             << 31;  // of any extent or step, so that no product overflows

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace

Result<Shape> spatial_of(const Call& call, int input) {
  const Shape& shape = call.in(input).shape;
  if (shape.size() < 3) {
    return bad_call(
        call,
        fmt::format("input {} is {}, but it needs [N, C, spatial...]", input, to_string(shape)),
        "add the batch, channel or spatial axis with Unsqueeze");
  }
  return Shape(shape.begin() + 2, shape.end());
}

Result<Shape> spatial_attr(const Call& call, std::string_view name, size_t count, int64_t otherwise,
                           int64_t least) {
  Shape values = call.attrs.get_ints(name);
  if (values.empty()) values.assign(count, otherwise);
  if (values.size() != count) {
    return bad_call(call, fmt::format("{} has {} elements, wanted {}", name, values.size(), count));
  }
  for (int64_t value : values) {
    if (value < least || value > kLargest)
      return bad_call(call, fmt::format("{} contains {}, wanted at least {}", name, value, least));
  }
  return values;
}

Status check_bounded(const Call& call, std::initializer_list<Shape> lists) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const auto outside = [](int64_t value) { return value < -kMost || value > kMost; };
  for (const Shape& list : lists) {
    if (std::any_of(list.begin(), list.end(), outside))
      return bad_call(call, fmt::format("{}: an extent, step or pad beyond 2^30", to_string(list)));
  }
  return ok_status();
}

Result<Window> window_of(const Call& call, const Shape& in, const Shape& kernel) {
  Window window;
  const size_t rank = in.size();
  window.in = in;
  window.kernel = kernel;
  if (kernel.size() != rank) {
    return bad_call(
        call, fmt::format("a kernel {} on spatial extents {}", to_string(kernel), to_string(in)));
  }
  for (size_t axis = 0; axis < rank; ++axis) {
    if (kernel[axis] < 1 || kernel[axis] > kLargest || in[axis] > kLargest)
      return bad_call(
          call, fmt::format("a kernel {} on spatial extents {}", to_string(kernel), to_string(in)));
  }
  if (!checked_element_count(kernel))
    return bad_call(call,
                    fmt::format("a kernel {}: no integer counts its elements", to_string(kernel)));
  TRY(window.strides, spatial_attr(call, "strides", rank, 1, 1));
  TRY(window.dilations, spatial_attr(call, "dilations", rank, 1, 1));
  TRY(const Shape pads, spatial_attr(call, "pads", 2 * rank, 0, -kLargest));
  const std::string mode = call.attrs.get_string("auto_pad", "NOTSET");
  const bool ceil_mode = call.attrs.get_int("ceil_mode", 0) != 0;
  for (size_t axis = 0; axis < rank; ++axis) {
    const int64_t extent = window.extent(static_cast<int>(axis)), stride = window.strides[axis];
    int64_t begin = 0, end = 0, out = 0;
    if (mode == "NOTSET" || mode.empty()) {
      begin = pads[axis];
      end = pads[rank + axis];
      const int64_t room = in[axis] + begin + end - extent;
      if (room >= 0) {
        out = (ceil_mode ? ceil_div(room, stride) : room / stride) + 1;
        // A window that would begin in the padding behind the input does not count.
        if (ceil_mode && (out - 1) * stride >= in[axis] + begin) --out;
      } else if (ceil_mode && room + stride > 0) {
        out = 1;
      }
    } else if (mode == "VALID") {
      out = ceil_div(std::max<int64_t>(in[axis] - extent + 1, 0), stride);
    } else if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
      out = ceil_div(in[axis], stride);
      const int64_t total = std::max<int64_t>((out - 1) * stride + extent - in[axis], 0);
      begin = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      end = total - begin;
    } else {
      return bad_call(call, fmt::format("auto_pad '{}'", mode),
                      "one of NOTSET, SAME_UPPER, SAME_LOWER, VALID");
    }
    if (out <= 0 && in[axis] > 0) {
      return bad_call(call,
                      fmt::format("a window of {} on {} elements padded by {} and {}", extent,
                                  in[axis], begin, end),
                      "the window must fit into the padded input");
    }
    window.begin.push_back(begin);
    window.end.push_back(end);
    window.out.push_back(std::max<int64_t>(out, 0));
  }
  return window;
}

ExprId both_guards(Exprs& exprs, ExprId a, ExprId b) {
  if (a == kNoExpr) return b;
  if (b == kNoExpr) return a;
  return exprs.both(a, b);
}

WindowAccess access_window(Exprs& exprs, const Window& window, std::span<const ExprId> out,
                           std::span<const ExprId> kernel) {
  WindowAccess access;
  for (int axis = 0; axis < window.rank(); ++axis) {
    const ExprId at = exprs.add(exprs.add(exprs.mul(out[axis], window.strides[axis]),
                                          exprs.mul(kernel[axis], window.dilations[axis])),
                                -window.begin[axis]);
    access.coords.push_back(at);
    const int64_t first = -window.begin[axis];
    const int64_t last = window.position(axis, window.out[axis] - 1, window.kernel[axis] - 1);
    if (first < 0) access.guard = both_guards(exprs, access.guard, exprs.le(exprs.integer(0), at));
    if (last >= window.in[axis])
      access.guard = both_guards(exprs, access.guard, exprs.lt(at, exprs.integer(window.in[axis])));
  }
  return access;
}

}  // namespace obelisk::ops
