/// ops/window.h — the geometry of a sliding window, shared by convolutions and pools.
///
///   in   spatial extents, the window's kernel, and the attributes strides, dilations, pads,
///   auto_pad, ceil_mode out  Window: every default filled in, pads resolved, output extents
///
/// The element of the window at k, for output o, reads input  o * stride + k * dilation - begin.
/// Errors   kBadModel: lists of the wrong length, steps below 1, a window larger than the padded
/// input.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

struct Window {
  Shape in, kernel, strides, dilations, begin, end, out;  // one per spatial axis
  int rank() const { return static_cast<int>(in.size()); }
  int64_t kernel_count() const { return element_count(kernel); }
  int64_t extent(int axis) const { return (kernel[axis] - 1) * dilations[axis] + 1; }
  int64_t position(int axis, int64_t out_at, int64_t kernel_at) const {
    return out_at * strides[axis] + kernel_at * dilations[axis] - begin[axis];
  }
};

/// `kernel` is what the attribute kernel_shape or the weights say.
Result<Window> window_of(const Call& call, const Shape& in, const Shape& kernel);

/// The spatial part of [N, C, ...]. Error kBadModel below rank 3.
Result<Shape> spatial_of(const Call& call, int input);

/// An integer list attribute of length `count`, or `count` times `otherwise`. Error kBadModel when
/// shorter or longer.
Result<Shape> spatial_attr(const Call& call, std::string_view name, size_t count, int64_t otherwise,
                           int64_t least);

/// Refuses an extent, step or pad beyond 2^30, either way, so that no product of two overflows.
Status check_bounded(const Call& call, std::initializer_list<Shape> lists);

/// Walks the elements of a window that lie inside the input. visit(flat input position, flat kernel
/// position)
template <typename Visit>
void each_in_window(const Window& window, const std::vector<int64_t>& out_at, Visit visit) {
  const int rank = window.rank();
  const int64_t count = window.kernel_count();
  std::vector<int64_t> k(rank, 0);
  for (int64_t flat = 0; flat < count; ++flat) {
    int64_t position = 0;
    bool inside = true;
    for (int axis = 0; axis < rank; ++axis) {
      const int64_t at = window.position(axis, out_at[axis], k[axis]);
      inside = inside && at >= 0 && at < window.in[axis];
      if (inside) position = position * window.in[axis] + at;
    }
    if (inside) visit(position, flat);
    for (int axis = rank - 1; axis >= 0; --axis) {
      if (++k[axis] < window.kernel[axis]) break;
      k[axis] = 0;
    }
  }
}

/// For loops: the input coordinates at output coordinates `out` and kernel coordinates `kernel`,
/// and the guard that they lie inside (kNoExpr where they always do).
struct WindowAccess {
  std::vector<ExprId> coords;
  ExprId guard = kNoExpr;
};
WindowAccess access_window(Exprs& exprs, const Window& window, std::span<const ExprId> out,
                           std::span<const ExprId> kernel);
/// a && b, where either may be kNoExpr.
ExprId both_guards(Exprs& exprs, ExprId a, ExprId b);

}  // namespace obelisk::ops
