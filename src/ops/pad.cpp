// Pad and CenterCropPad: along each axis the input is cropped to a window, then that window is
// placed in the output.
#include <algorithm>
#include <numeric>

#include "ops/moves.h"
#include "ops/slice.h"

namespace obelisk::ops {

namespace {

enum class Border { kConstant, kReflect, kEdge, kWrap };

// Along an axis, output [place, place + count) is input [crop, crop + count); the rest of `extent`
// is border.
struct Window {
  int64_t crop = 0, count = 0, place = 0, extent = 0;
};

Window window_of(int64_t begin, int64_t end, int64_t extent) {
  const int64_t crop = begin < 0 ? -begin : 0, cut = end < 0 ? -end : 0;
  Window window{crop, std::max<int64_t>(extent - crop - cut, 0), std::max<int64_t>(begin, 0), 0};
  window.extent = extent + begin + end;
  return window;
}

Result<Border> border_of(const Call& call) {
  const std::string mode = call.attrs.get_string("mode", "constant");
  if (mode == "constant") return Border::kConstant;
  if (mode == "reflect") return Border::kReflect;
  if (mode == "edge") return Border::kEdge;
  if (mode == "wrap") return Border::kWrap;
  return bad_call(call, fmt::format("mode \"{}\"", mode), "constant, reflect, edge or wrap");
}

Result<std::vector<Window>> pad_windows(const Call& call) {
  const Shape& from = call.in(0).shape;
  TRY(auto pads, call.ints(1, "pads"));
  std::vector<int64_t> axes(from.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (call.has(3)) {
    TRY(axes, call.ints(3, "axes"));
    TRY(axes, normalize_axes(call, axes, call.in(0).rank()));
  }
  if (pads.size() != 2 * axes.size()) {
    return bad_call(call, fmt::format("{} pads for {} axes", pads.size(), axes.size()));
  }
  TRY(const Border border, border_of(call));
  std::vector<Window> windows;
  for (int64_t extent : from) windows.push_back(window_of(0, 0, extent));
  constexpr int64_t kMost = int64_t{1} << 40;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t begin = pads[i], end = pads[i + axes.size()], extent = from[axes[i]];
    if (std::min(begin, end) < -kMost || std::max(begin, end) > kMost || extent + begin + end < 0) {
      return bad_call(call, fmt::format("pads {} and {} of axis {}, which has extent {}", begin,
                                        end, axes[i], extent));
    }
    Window& window = windows[axes[i]];
    window = window_of(begin, end, extent);
    if (window.count == 0 && window.extent > 0 && border != Border::kConstant) {
      return bad_call(call, fmt::format("axis {} has nothing to repeat into its border", axes[i]));
    }
  }
  return windows;
}

// CenterCropPad is Pad with zeros, by half the difference on each side.
Result<std::vector<Window>> center_windows(const Call& call) {
  const Shape& from = call.in(0).shape;
  std::vector<int64_t> axes(from.size());
  std::iota(axes.begin(), axes.end(), 0);
  TRY(axes, normalize_axes(call, call.attrs.get_ints("axes", axes), call.in(0).rank()));
  TRY(auto wanted, call.ints(1, "shape"));
  if (wanted.size() != axes.size()) {
    return bad_call(call, fmt::format("{} extents for {} axes", wanted.size(), axes.size()));
  }
  std::vector<Window> windows;
  for (int64_t extent : from) windows.push_back(window_of(0, 0, extent));
  for (size_t i = 0; i < axes.size(); ++i) {
    if (wanted[i] < 0)
      return bad_call(call, fmt::format("axis {} of extent {}", axes[i], wanted[i]));
    const int64_t extent = from[axes[i]], more = wanted[i] - extent;
    const int64_t begin = more / 2;  // toward zero: the odd one is cut from or added to the end
    windows[axes[i]] = window_of(begin, more - begin, extent);
  }
  return windows;
}

Shape extents_of(const std::vector<Window>& windows) {
  Shape shape;
  for (const Window& window : windows) shape.push_back(window.extent);
  return shape;
}

// The input coordinate of an output coordinate, -1 in a constant border.
int64_t source_of(const Window& window, Border border, int64_t at) {
  const int64_t inside = at - window.place, count = window.count;
  if (inside >= 0 && inside < count) return window.crop + inside;
  auto floor_mod = [](int64_t x, int64_t y) { return ((x % y) + y) % y; };
  switch (border) {
    case Border::kConstant:
      return -1;
    case Border::kEdge:
      return window.crop + std::clamp<int64_t>(inside, 0, count - 1);
    case Border::kWrap:
      return window.crop + floor_mod(inside, count);
    case Border::kReflect: {
      if (count == 1) return window.crop;
      const int64_t period = 2 * (count - 1), phase = floor_mod(inside, period);
      return window.crop + std::min(phase, period - phase);
    }
  }
  return -1;
}

// The same as an expression; `guard` collects the condition of being inside.
ExprId source_of(Exprs& exprs, const Window& window, Border border, ExprId at, ExprId& guard) {
  const int64_t count = window.count, end = window.place + count;
  const ExprId inside = exprs.add(at, -window.place);
  const ExprId straight = exprs.add(inside, window.crop);
  if (window.place == 0 && end == window.extent) return straight;
  auto never_negative = [&](int64_t period) {
    return exprs.add(inside, (window.place + period - 1) / period * period);
  };
  switch (border) {
    case Border::kConstant: {
      auto require = [&](ExprId condition) {
        guard = guard == kNoExpr ? condition : exprs.both(guard, condition);
      };
      if (window.place > 0) require(exprs.le(exprs.integer(window.place), at));
      if (end < window.extent) require(exprs.lt(at, exprs.integer(end)));
      return straight;
    }
    case Border::kEdge: {
      const ExprId clamped =
          exprs.binary(Scalar::kMax, exprs.integer(0),
                       exprs.binary(Scalar::kMin, inside, exprs.integer(count - 1)));
      return exprs.add(clamped, window.crop);
    }
    case Border::kWrap:
      return exprs.add(exprs.mod(never_negative(count), count), window.crop);
    case Border::kReflect: {
      if (count == 1) return exprs.integer(window.crop);
      const int64_t period = 2 * (count - 1);
      const ExprId phase = exprs.mod(never_negative(period), period);
      return exprs.add(exprs.binary(Scalar::kMin, phase, exprs.sub(exprs.integer(period), phase)),
                       window.crop);
    }
  }
  return kNoExpr;
}

Loop place_windows(const Call& call, const std::vector<Window>& windows, Border border,
                   bool has_fill) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const DType dtype = call.in(0).dtype;
  std::vector<ExprId> at;
  ExprId guard = kNoExpr;
  for (size_t axis = 0; axis < windows.size(); ++axis) {
    at.push_back(source_of(exprs, windows[axis], border, start.coords[axis], guard));
  }
  ExprId fill = kNoExpr;
  if (guard != kNoExpr) {
    fill = zero_of(exprs, dtype);
    if (has_fill) {
      const std::vector<ExprId> first(call.in(2).rank(), exprs.integer(0));
      fill = exprs.load(2, call.in(2).dtype, first);
    }
  }
  if (call.in(0).count() == 0) {
    start.loop.body = fill == kNoExpr ? zero_of(exprs, dtype) : fill;
  } else {
    start.loop.body = exprs.load(0, dtype, std::move(at), guard, fill);
  }
  return start.loop;
}

// Row by row: the outer coordinates are looked up in a table per axis, the last axis runs through
// its own.
void place_windows(const Tensor& from, const std::vector<Window>& windows, Border border,
                   const Tensor* fill, Tensor& to) {
  if (to.count() == 0) return;
  std::vector<std::vector<int64_t>> sources;  // element offsets along each axis, -1: border
  const auto strides = row_major_strides(from.shape());
  for (size_t axis = 0; axis < windows.size(); ++axis) {
    sources.emplace_back();
    for (int64_t at = 0; at < windows[axis].extent; ++at) {
      const int64_t source = source_of(windows[axis], border, at);
      sources.back().push_back(source < 0 ? -1 : source * strides[axis]);
    }
  }
  Tensor filler = Tensor::allocate({to.dtype(), {1}});
  if (fill) {
    copy_strided(*fill, {0, {0}}, filler, {0, {1}}, {1});
  }
  Shape outer = to.shape();
  if (!outer.empty()) outer.pop_back();
  const std::vector<int64_t> inner = windows.empty() ? std::vector<int64_t>{0} : sources.back();
  with_units(from, to, [&](auto units) {
    decltype(units.get(0)) border_unit{};
    with_units(filler, filler, [&](auto one) {
      if constexpr (std::is_same_v<decltype(one), decltype(units)>) border_unit = one.get(0);
    });
    int64_t target = 0;
    for_each_point(outer, [&](const std::vector<int64_t>& at) {
      int64_t row = 0;
      for (size_t axis = 0; axis < at.size() && row >= 0; ++axis) {
        const int64_t source = sources[axis][at[axis]];
        row = source < 0 ? -1 : row + source;
      }
      for (int64_t source : inner) {
        units.put(target++, row < 0 || source < 0 ? border_unit : units.get(row + source));
      }
    });
  });
}

}  // namespace

Result<Types> infer_pad(const Call& call) {
  TRY(auto windows, pad_windows(call));
  if (call.has(2) && (call.in(2).count() != 1 || call.in(2).dtype != call.in(0).dtype)) {
    return bad_call(call, fmt::format("constant_value is {}, not one element of {}",
                                      to_string(call.in(2)), to_string(call.in(0).dtype)));
  }
  return Types{{call.in(0).dtype, extents_of(windows)}};
}

std::optional<Loop> loop_pad(const Call& call, int) {
  return place_windows(call, pad_windows(call).value(), border_of(call).value(), call.has(2));
}

Status reference_pad(const Call& call, std::span<const Tensor* const> inputs,
                     std::span<Tensor> outputs) {
  TRY(auto windows, pad_windows(call));
  TRY(const Border border, border_of(call));
  place_windows(*inputs[0], windows, border, call.has(2) ? inputs[2] : nullptr, outputs[0]);
  return ok_status();
}

Result<Types> infer_center_crop_pad(const Call& call) {
  TRY(auto windows, center_windows(call));
  return Types{{call.in(0).dtype, extents_of(windows)}};
}

std::optional<Loop> loop_center_crop_pad(const Call& call, int) {
  return place_windows(call, center_windows(call).value(), Border::kConstant, false);
}

Status reference_center_crop_pad(const Call& call, std::span<const Tensor* const> inputs,
                                 std::span<Tensor> outputs) {
  TRY(auto windows, center_windows(call));
  place_windows(*inputs[0], windows, Border::kConstant, nullptr, outputs[0]);
  return ok_status();
}

}  // namespace obelisk::ops
