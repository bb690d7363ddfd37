// NonZero, Unique, NonMaxSuppression: how much they answer depends on data, so infer() runs them on
// known inputs or refuses.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/moves.h"
#include "ops/sort.h"

namespace obelisk::ops {

namespace {

Error depends_on_data(const Call& call, std::string_view inputs) {
  return unsupported_call(call, "the output size depends on data",
                          fmt::format("make {} constant", inputs));
}

bool is_nonzero(const Tensor& tensor, int64_t i) {
  return is_float(tensor.dtype()) ? tensor.get_double(i) != 0 : tensor.get_int(i) != 0;
}

}  // namespace

// ---- NonZero ------------------------------------------------------------------------------------

Result<Types> infer_non_zero(const Call& call) {
  const Tensor* value = call.constant(0);
  if (!value) return depends_on_data(call, "the input");
  int64_t count = 0;
  for (int64_t i = 0; i < value->count(); ++i) count += is_nonzero(*value, i);
  return Types{{DType::i64, {std::max(value->type().rank(), 0), count}}};
}

Status reference_non_zero(const Call&, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs) {
  const Tensor& from = *inputs[0];
  Tensor& to = outputs[0];
  const int64_t count = to.shape()[1];
  int64_t i = 0, found = 0;
  for_each_point(from.shape(), [&](const std::vector<int64_t>& at) {
    if (!is_nonzero(from, i++)) return;
    for (size_t d = 0; d < at.size(); ++d) {
      to.set_int(static_cast<int64_t>(d) * count + found, at[d]);
    }
    ++found;
  });
  return ok_status();
}

// ---- Unique -------------------------------------------------------------------------------------

namespace {

struct Groups {
  int64_t outer = 1, extent = 0, inner = 1;  // of the input around the axis
  std::vector<int64_t> first;                // per group: where it occurs first
  std::vector<int64_t> group;                // per slice: its group
  std::vector<int64_t> count;                // per group
};

// -1, 0 or 1, slice `a` against slice `b`; NaN equals NaN and is larger than every number.
int compare_slices(const Tensor& tensor, const Groups& groups, int64_t a, int64_t b) {
  for (int64_t outer = 0; outer < groups.outer; ++outer) {
    for (int64_t inner = 0; inner < groups.inner; ++inner) {
      const int64_t x = (outer * groups.extent + a) * groups.inner + inner;
      const int64_t y = (outer * groups.extent + b) * groups.inner + inner;
      if (is_float(tensor.dtype())) {
        const double p = tensor.get_double(x), q = tensor.get_double(y);
        const bool p_nan = std::isnan(p), q_nan = std::isnan(q);
        if (p < q || (!p_nan && q_nan)) return -1;
        if (q < p || (p_nan && !q_nan)) return 1;
      } else {
        const int64_t p = tensor.get_int(x), q = tensor.get_int(y);
        const bool is_less =
            is_signed(tensor.dtype()) ? p < q : static_cast<uint64_t>(p) < static_cast<uint64_t>(q);
        if (p != q) return is_less ? -1 : 1;
      }
    }
  }
  return 0;
}

Result<Groups> find_groups(const Call& call, const Tensor& from) {
  Groups groups;
  groups.extent = from.count();
  if (call.attrs.has("axis")) {
    TRY(const int64_t axis,
        normalize_axis(call, call.attrs.get_int("axis", 0), from.type().rank()));
    groups.outer = product(from.shape(), 0, static_cast<int>(axis));
    groups.extent = from.shape()[axis];
    groups.inner = product(from.shape(), static_cast<int>(axis) + 1, from.type().rank());
  }
  constexpr int64_t kMostEmpty = 1 << 20;  // chosen: slices without elements take no memory of
                                           // the model's, but places in the lists here
  if (from.count() == 0 && groups.extent > kMostEmpty)
    return bad_call(call,
                    fmt::format("{} empty slices of {}", groups.extent, to_string(from.type())),
                    fmt::format("at most {} slices may be empty", kMostEmpty));
  std::vector<int64_t> order(groups.extent);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return compare_slices(from, groups, a, b) < 0; });
  groups.group.resize(groups.extent);
  for (int64_t i = 0; i < groups.extent; ++i) {
    if (i == 0 || compare_slices(from, groups, order[i - 1], order[i]) != 0) {
      groups.first.push_back(order[i]);
      groups.count.push_back(0);
    }
    groups.group[order[i]] = static_cast<int64_t>(groups.first.size()) - 1;
    ++groups.count.back();
  }
  if (call.attrs.get_int("sorted", 1) == 0) {  // by first occurrence instead
    const int64_t total = static_cast<int64_t>(groups.first.size());
    std::vector<int64_t> by_first(total), place(total), first(total), count(total);
    std::iota(by_first.begin(), by_first.end(), 0);
    std::sort(by_first.begin(), by_first.end(),
              [&](int64_t a, int64_t b) { return groups.first[a] < groups.first[b]; });
    for (int64_t i = 0; i < total; ++i) {
      place[by_first[i]] = i;
      first[i] = groups.first[by_first[i]];
      count[i] = groups.count[by_first[i]];
    }
    for (int64_t& group : groups.group) group = place[group];
    groups.first = first;
    groups.count = count;
  }
  return groups;
}

}  // namespace

Result<Types> infer_unique(const Call& call) {
  if (!call.constant(0)) return depends_on_data(call, "the input");
  TRY(const Groups groups, find_groups(call, *call.constant(0)));
  const int64_t total = static_cast<int64_t>(groups.first.size());
  Type type{call.in(0).dtype, {total}};
  if (call.attrs.has("axis")) {
    TRY(const int64_t axis, normalize_axis(call, call.attrs.get_int("axis", 0), call.in(0).rank()));
    type.shape = call.in(0).shape;
    type.shape[axis] = total;
  }
  return Types{type, {DType::i64, {total}}, {DType::i64, {groups.extent}}, {DType::i64, {total}}};
}

Status reference_unique(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs) {
  const Tensor& from = *inputs[0];
  TRY(const Groups groups, find_groups(call, from));
  const int64_t total = static_cast<int64_t>(groups.first.size());
  if (!outputs[0].empty()) {
    with_units(from, outputs[0], [&](auto units) {
      for (int64_t outer = 0; outer < groups.outer; ++outer) {
        for (int64_t i = 0; i < total; ++i) {
          for (int64_t inner = 0; inner < groups.inner; ++inner) {
            units.put((outer * total + i) * groups.inner + inner,
                      units.get((outer * groups.extent + groups.first[i]) * groups.inner + inner));
          }
        }
      }
    });
  }
  const std::vector<int64_t>* columns[] = {nullptr, &groups.first, &groups.group, &groups.count};
  for (size_t output = 1; output < outputs.size(); ++output) {
    for (int64_t i = 0; i < outputs[output].count(); ++i) {
      outputs[output].set_int(i, (*columns[output])[i]);
    }
  }
  return ok_status();
}

// ---- NonMaxSuppression --------------------------------------------------------------------------

namespace {

struct Box {
  double top, left, bottom, right;
  double area() const { return (bottom - top) * (right - left); }
};

Box box_of(const Tensor& boxes, int64_t index, bool center) {
  double v[4];
  for (int i = 0; i < 4; ++i) v[i] = boxes.get_double(index * 4 + i);
  if (center) {  // x, y, width, height
    return {v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
  }
  return {std::min(v[0], v[2]), std::min(v[1], v[3]), std::max(v[0], v[2]), std::max(v[1], v[3])};
}

bool overlaps(const Box& a, const Box& b, double threshold) {
  const double height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  const double width = std::min(a.right, b.right) - std::max(a.left, b.left);
  if (height <= 0 || width <= 0 || a.area() <= 0 || b.area() <= 0) return false;
  const double common = height * width;
  return common / (a.area() + b.area() - common) > threshold;
}

// (batch, class, box) of every kept box: per batch and class by falling score.
std::vector<std::array<int64_t, 3>> kept_boxes(const Call& call,
                                               std::span<const Tensor* const> inputs) {
  const Tensor& boxes = *inputs[0];
  const Tensor& scores = *inputs[1];
  auto given = [&](size_t input) { return input < inputs.size() && inputs[input]; };
  const int64_t most = given(2) ? std::max<int64_t>(inputs[2]->get_int(0), 0) : 0;
  const double iou = given(3) ? inputs[3]->get_double(0) : 0;
  const bool center = call.attrs.get_int("center_point_box", 0) != 0;
  const int64_t batches = scores.shape()[0], classes = scores.shape()[1], count = scores.shape()[2];
  std::vector<std::array<int64_t, 3>> kept;
  for (int64_t line = 0; line < batches * classes; ++line) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < count; ++i) {
      const double score = scores.get_double(line * count + i);
      const double least = given(4) ? inputs[4]->get_double(0) : -INFINITY;
      if (score > least || (score == least && !given(4))) order.push_back(i);  // never a NaN
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return scores.get_double(line * count + a) > scores.get_double(line * count + b);
    });
    std::vector<Box> taken;
    for (int64_t candidate : order) {
      if (static_cast<int64_t>(taken.size()) >= most) break;
      const Box box = box_of(boxes, line / classes * count + candidate, center);
      const bool hidden = std::any_of(taken.begin(), taken.end(),
                                      [&](const Box& other) { return overlaps(box, other, iou); });
      if (hidden) continue;
      taken.push_back(box);
      kept.push_back({line / classes, line % classes, candidate});
    }
  }
  return kept;
}

}  // namespace

Result<Types> infer_non_max_suppression(const Call& call) {
  const Shape& boxes = call.in(0).shape;
  const Shape& scores = call.in(1).shape;
  if (boxes.size() != 3 || scores.size() != 3 || boxes[2] != 4 || boxes[0] != scores[0] ||
      boxes[1] != scores[2]) {
    return bad_call(
        call, fmt::format("boxes of {} and scores of {}", to_string(boxes), to_string(scores)),
        "[batches, boxes, 4] and [batches, classes, boxes]");
  }
  for (int input = 0; input < call.arity(); ++input) {
    if (call.has(input) && !call.constant(input)) return depends_on_data(call, "all inputs");
    if (input >= 2 && call.has(input) && call.in(input).count() != 1)
      return bad_call(
          call, fmt::format("input {} is {}, wanted a scalar", input, to_string(call.in(input))));
  }
  constexpr double kMostPairs = 1 << 30;  // chosen: some seconds
  const double most = call.has(2) ? static_cast<double>(call.constant(2)->get_int(0)) : 0;
  const auto count = static_cast<double>(scores[2]);
  if (static_cast<double>(call.in(1).count()) * std::min(count, most) > kMostPairs)
    return unsupported_call(
        call, fmt::format("up to {} boxes of each of {} scores", most, to_string(scores)));
  const auto kept = kept_boxes(call, call.constants);
  return Types{{DType::i64, {static_cast<int64_t>(kept.size()), 3}}};
}

Status reference_non_max_suppression(const Call& call, std::span<const Tensor* const> inputs,
                                     std::span<Tensor> outputs) {
  const auto kept = kept_boxes(call, inputs);
  for (size_t i = 0; i < kept.size(); ++i) {
    for (size_t j = 0; j < 3; ++j) {
      outputs[0].set_int(static_cast<int64_t>(i * 3 + j), kept[i][j]);
    }
  }
  return ok_status();
}

}  // namespace obelisk::ops
