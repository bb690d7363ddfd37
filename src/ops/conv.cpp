#include "ops/conv.h"

#include <algorithm>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/gemm.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

Result<ConvShape> common_shape_of(const Call& call, int x, int w) {
  ConvShape shape;
  shape.x = call.in(x).shape;
  shape.w = call.in(w).shape;
  TRY(const Shape in, spatial_of(call, x));
  if (shape.w.size() != shape.x.size()) {
    return bad_call(
        call, fmt::format("weights {} for an input {}", to_string(shape.w), to_string(shape.x)),
        "both need the same rank");
  }
  const Shape kernel(shape.w.begin() + 2, shape.w.end());
  if (call.attrs.has("kernel_shape") && call.attrs.get_ints("kernel_shape") != kernel) {
    return bad_call(call,
                    fmt::format("kernel_shape {} but the weights are {}",
                                to_string(call.attrs.get_ints("kernel_shape")), to_string(shape.w)),
                    "leave kernel_shape out; it follows from the weights");
  }
  shape.groups = call.attrs.get_int("group", 1);
  shape.batch = shape.x[0];
  shape.inputs = shape.x[1];
  if (shape.groups < 1 || shape.groups > std::max<int64_t>(shape.inputs, 1) ||
      shape.inputs % shape.groups != 0) {
    return bad_call(call, fmt::format("{} channels in {} groups", shape.inputs, shape.groups));
  }
  shape.group_inputs = shape.inputs / shape.groups;
  return shape;
}

Status check_bias(const Call& call, int input, int64_t outputs) {
  if (call.has(input) && call.in(input).shape != Shape{outputs}) {
    return bad_call(call, fmt::format("bias {} for {} output channels",
                                      to_string(call.in(input).shape), outputs));
  }
  return ok_status();
}

double sum_length(const ConvShape& shape) {
  return static_cast<double>(shape.group_inputs) * static_cast<double>(shape.window.kernel_count());
}

/// Columns [group_inputs * kernel, end - begin] of the outputs [begin, end) of one image and group.
void fill_columns(const ConvShape& shape, const double* x, int64_t begin, int64_t end,
                  double* columns) {
  const Window& window = shape.window;
  const int rank = window.rank();
  const int last = rank - 1;
  const int64_t in_count = element_count(window.in), kernel_count = window.kernel_count();
  const int64_t width = end - begin;
  std::vector<int64_t> k(rank, 0), out(rank);
  for (int64_t flat = 0; flat < kernel_count; ++flat) {
    // The output coordinates of `begin`, then on run by run along the last axis.
    int64_t rest = begin;
    for (int axis = last; axis >= 0; --axis) {
      out[axis] = rest % window.out[axis];
      rest /= window.out[axis];
    }
    for (int64_t at = 0; at < width;) {
      const int64_t run = std::min(width - at, window.out[last] - out[last]);
      int64_t row = 0;
      bool inside = true;
      for (int axis = 0; axis < last; ++axis) {
        const int64_t position = window.position(axis, out[axis], k[axis]);
        inside = inside && position >= 0 && position < window.in[axis];
        if (inside) row = row * window.in[axis] + position;
      }
      const int64_t first = window.position(last, out[last], k[last]);
      const int64_t stride = window.strides[last], extent = window.in[last];
      for (int64_t channel = 0; channel < shape.group_inputs; ++channel) {
        double* to = columns + (channel * kernel_count + flat) * width + at;
        const double* from = x + channel * in_count + row * extent;
        for (int64_t step = 0; step < run; ++step) {
          const int64_t position = first + step * stride;
          to[step] = inside && position >= 0 && position < extent ? from[position] : 0;
        }
      }
      at += run;
      out[last] += run;
      for (int axis = last; axis > 0 && out[axis] == window.out[axis]; --axis) {
        out[axis] = 0;
        ++out[axis - 1];
      }
    }
    for (int axis = last; axis >= 0; --axis) {
      if (++k[axis] < window.kernel[axis]) break;
      k[axis] = 0;
    }
  }
}

}  // namespace

Result<ConvShape> conv_shape(const Call& call, int x, int w) {
  TRY(ConvShape shape, common_shape_of(call, x, w));
  shape.outputs = shape.w[0];
  if (shape.outputs % shape.groups != 0 || shape.w[1] != shape.group_inputs) {
    return bad_call(call,
                    fmt::format("weights {} for {} channels in {} groups", to_string(shape.w),
                                shape.inputs, shape.groups),
                    "the weights are [outputs, channels / group, kernel...]");
  }
  shape.group_outputs = shape.outputs / shape.groups;
  TRY(shape.window, window_of(call, Shape(shape.x.begin() + 2, shape.x.end()),
                              Shape(shape.w.begin() + 2, shape.w.end())));
  shape.output = {shape.batch, shape.outputs};
  shape.output.insert(shape.output.end(), shape.window.out.begin(), shape.window.out.end());
  return shape;
}

std::vector<double> convolve(const ConvShape& shape, const std::vector<double>& x,
                             const std::vector<double>& w, Sums sums) {
  constexpr int64_t kBlockElements = 1 << 18;  // of columns at a time: 2 MiB
  const int64_t depth = shape.group_inputs * shape.window.kernel_count();
  const int64_t in_count = element_count(shape.window.in);
  const int64_t out_count = element_count(shape.window.out);
  std::vector<double> out(shape.batch * shape.outputs * out_count);
  if (out.empty() || depth == 0) return out;
  const int64_t block =
      std::clamp<int64_t>(kBlockElements / depth, 16, std::max<int64_t>(out_count, 16));
  const int64_t blocks = (out_count + block - 1) / block;
  const int64_t work = depth * shape.group_outputs * std::min(block, out_count);
  const int64_t grain = 1 + (int64_t{1} << 18) / std::max<int64_t>(work, 1);
  parallel_for(shape.batch * shape.groups * blocks, grain, [&](int64_t first, int64_t last) {
    std::vector<double> columns(depth * std::min(block, out_count));
    for (int64_t part = first; part < last; ++part) {
      const int64_t image = part / (shape.groups * blocks), group = part / blocks % shape.groups;
      const int64_t begin = part % blocks * block, end = std::min(begin + block, out_count);
      fill_columns(shape, x.data() + (image * shape.inputs + group * shape.group_inputs) * in_count,
                   begin, end, columns.data());
      gemm(shape.group_outputs, end - begin, depth, w.data() + group * shape.group_outputs * depth,
           depth, columns.data(), end - begin,
           out.data() + (image * shape.outputs + group * shape.group_outputs) * out_count + begin,
           out_count, sums);
    }
  });
  return out;
}

void add_bias(std::vector<double>& out, const ConvShape& shape, const std::vector<double>& bias) {
  if (out.empty()) return;
  const auto each = static_cast<int64_t>(out.size()) / (shape.batch * shape.outputs);
  for (int64_t row = 0; row < shape.batch * shape.outputs; ++row) {
    const double value = bias[row % shape.outputs];
    for (int64_t at = 0; at < each; ++at) out[row * each + at] += value;
  }
}

ConvLoop start_conv(const ConvShape& shape) {
  const int rank = shape.window.rank();
  Shape domain = shape.output;
  domain.push_back(shape.group_inputs);
  domain.insert(domain.end(), shape.window.kernel.begin(), shape.window.kernel.end());
  LoopStart start = start_loop(domain, 2 + rank);
  ConvLoop conv{std::move(start.loop), start.coords[1], {}, {}};
  Exprs& exprs = conv.loop.exprs;
  const auto& coords = start.coords;
  const ExprId inner = coords[2 + rank];
  const std::span<const ExprId> out(coords.data() + 2, rank),
      kernel(coords.data() + 3 + rank, rank);
  const WindowAccess access = access_window(exprs, shape.window, out, kernel);
  const ExprId group = exprs.div(conv.channel, shape.group_outputs);
  conv.x = {coords[0], exprs.add(exprs.mul(group, shape.group_inputs), inner)};
  conv.x.insert(conv.x.end(), access.coords.begin(), access.coords.end());
  conv.w = {conv.channel, inner};
  conv.w.insert(conv.w.end(), kernel.begin(), kernel.end());
  conv.guard = access.guard;
  conv.loop.combine = Combine::kSum;
  return conv;
}

// ---- Conv ---------------------------------------------------------------------------------------

Result<ConvGeometry> conv_geometry(const Call& call) {
  TRY(const ConvShape shape, conv_shape(call, 0, 1));
  const Window& w = shape.window;
  return ConvGeometry{shape.batch,        shape.inputs,        shape.outputs, shape.groups,
                      shape.group_inputs, shape.group_outputs, w.in,          w.kernel,
                      w.strides,          w.dilations,         w.begin,       w.out};
}

Result<Types> infer_conv(const Call& call) {
  TRY(const DType dtype, common_dtype(call, kFloats));
  TRY(const ConvShape shape, conv_shape(call, 0, 1));
  TRY_STATUS(check_bias(call, 2, shape.outputs));
  return Types{{dtype, shape.output}};
}

Cost cost_conv(const Call& call) {
  Cost cost = cost_move(call);
  cost.flops = {2 * sum_length(*conv_shape(call, 0, 1)) * static_cast<double>(call.out().count())};
  return cost;
}

std::optional<Loop> loop_conv(const Call& call, int) {
  ConvLoop conv = start_conv(*conv_shape(call, 0, 1));
  Exprs& exprs = conv.loop.exprs;
  const DType dtype = call.in(0).dtype;
  const ExprId x = exprs.load(0, dtype, conv.x, conv.guard, zero_of(exprs, dtype));
  conv.loop.body = exprs.mul(x, exprs.load(1, dtype, conv.w));
  if (call.has(2))
    conv.loop.finish = exprs.add(exprs.acc(dtype), exprs.load(2, dtype, {conv.channel}));
  return std::move(conv.loop);
}

Status reference_conv(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs) {
  TRY(const ConvShape shape, conv_shape(call, 0, 1));
  std::vector<double> out =
      convolve(shape, read_reals(*inputs[0]), read_reals(*inputs[1]), call.sums);
  if (call.has(2)) add_bias(out, shape, read_reals(*inputs[2]));
  write_reals(outputs[0], out);
  return ok_status();
}

// ---- ConvTranspose ------------------------------------------------------------------------------

Result<ConvShape> conv_transpose_shape(const Call& call) {
  TRY(ConvShape shape, common_shape_of(call, 0, 1));
  if (shape.w[0] != shape.inputs) {
    return bad_call(call,
                    fmt::format("weights {} for {} channels", to_string(shape.w), shape.inputs),
                    "the weights are [channels, outputs / group, kernel...]");
  }
  shape.group_outputs = shape.w[1];
  shape.outputs = shape.group_outputs * shape.groups;
  Window& window = shape.window;
  window.out = Shape(shape.x.begin() + 2, shape.x.end());
  window.kernel = Shape(shape.w.begin() + 2, shape.w.end());
  const size_t rank = window.out.size();
  TRY(window.strides, spatial_attr(call, "strides", rank, 1, 1));
  TRY(window.dilations, spatial_attr(call, "dilations", rank, 1, 1));
  TRY(const Shape pads, spatial_attr(call, "pads", 2 * rank, 0, -(int64_t{1} << 31)));
  TRY(const Shape extra, spatial_attr(call, "output_padding", rank, 0, 0));
  const bool shaped = call.attrs.has("output_shape");
  TRY(Shape wanted, spatial_attr(call, "output_shape", rank, 0, 0));
  TRY_STATUS(check_bounded(
      call, {window.out, window.kernel, window.strides, window.dilations, pads, extra, wanted}));
  const std::string mode = call.attrs.get_string("auto_pad", "NOTSET");
  const bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  if (!same && mode != "NOTSET" && mode != "VALID" && !mode.empty()) {
    return bad_call(call, fmt::format("auto_pad '{}'", mode),
                    "one of NOTSET, SAME_UPPER, SAME_LOWER, VALID");
  }
  for (size_t axis = 0; axis < rank; ++axis) {
    if (window.kernel[axis] < 1) return bad_call(call, "an empty kernel");
    const int64_t full = window.out[axis] == 0
                             ? 0
                             : window.strides[axis] * (window.out[axis] - 1) + extra[axis] +
                                   window.extent(static_cast<int>(axis));
    int64_t begin = mode == "VALID" ? 0 : pads[axis], end = mode == "VALID" ? 0 : pads[rank + axis];
    if (shaped || same) {
      if (!shaped) wanted[axis] = window.out[axis] * window.strides[axis];
      const int64_t total = full - wanted[axis];
      const int64_t half = total >= 0 ? total / 2 : -((1 - total) / 2);  // towards minus infinity
      begin = mode == "SAME_UPPER" ? half : total - half;
      end = total - begin;
    }
    window.begin.push_back(begin);
    window.end.push_back(end);
    window.in.push_back(full - begin - end);
    if (window.in.back() < 0 || (window.in.back() == 0 && window.out[axis] > 0)) {
      return bad_call(call,
                      fmt::format("pads {} and {} leave nothing of {} elements", begin, end, full));
    }
  }
  shape.output = {shape.batch, shape.outputs};
  shape.output.insert(shape.output.end(), window.in.begin(), window.in.end());
  return shape;
}

Result<Types> infer_conv_transpose(const Call& call) {
  TRY(const DType dtype, common_dtype(call, kFloats));
  TRY(const ConvShape shape, conv_transpose_shape(call));
  TRY_STATUS(check_bias(call, 2, shape.outputs));
  return Types{{dtype, shape.output}};
}

Cost cost_conv_transpose(const Call& call) {
  const ConvShape shape = *conv_transpose_shape(call);
  Cost cost = cost_move(call);
  cost.flops = {2 * static_cast<double>(call.in(0).count()) *
                static_cast<double>(shape.group_outputs) *
                static_cast<double>(shape.window.kernel_count())};
  return cost;
}

// y[o] gathers x[i] where o = i * stride + k * dilation - begin, so i exists where the rest divides
// by the stride. A multiple of the stride is added first, since index division wants numbers that
// are not negative.
std::optional<Loop> loop_conv_transpose(const Call& call, int) {
  const ConvShape shape = *conv_transpose_shape(call);
  const Window& window = shape.window;
  const int rank = window.rank();
  Shape domain = shape.output;
  domain.push_back(shape.group_inputs);
  domain.insert(domain.end(), window.kernel.begin(), window.kernel.end());
  LoopStart start = start_loop(domain, 2 + rank);
  Exprs& exprs = start.loop.exprs;
  const ExprId channel = start.coords[1], inner = start.coords[2 + rank];
  const ExprId group = exprs.div(channel, shape.group_outputs);
  const ExprId source = exprs.add(exprs.mul(group, shape.group_inputs), inner);
  std::vector<ExprId> x{start.coords[0], source},
      w{source, exprs.mod(channel, shape.group_outputs)};
  ExprId guard = kNoExpr;
  for (int axis = 0; axis < rank; ++axis) {
    const ExprId k = start.coords[3 + rank + axis];
    const int64_t stride = window.strides[axis];
    const int64_t lowest = window.begin[axis] - (window.extent(axis) - 1);
    const int64_t lift = lowest < 0 ? (-lowest + stride - 1) / stride : 0;
    ExprId rest = exprs.sub(start.coords[2 + axis], exprs.mul(k, window.dilations[axis]));
    rest = exprs.add(rest, window.begin[axis] + lift * stride);
    const ExprId at = exprs.add(exprs.div(rest, stride), -lift);
    const ExprId zero = exprs.integer(0);
    guard = both_guards(exprs, guard, exprs.eq(exprs.mod(rest, stride), zero));
    guard = both_guards(exprs, guard, exprs.le(zero, at));
    guard = both_guards(exprs, guard, exprs.lt(at, exprs.integer(window.out[axis])));
    x.push_back(at);
    w.push_back(k);
  }
  const DType dtype = call.in(0).dtype;
  start.loop.body =
      exprs.mul(exprs.load(0, dtype, x, guard, zero_of(exprs, dtype)), exprs.load(1, dtype, w));
  start.loop.combine = Combine::kSum;
  if (call.has(2)) start.loop.finish = exprs.add(exprs.acc(dtype), exprs.load(2, dtype, {channel}));
  return std::move(start.loop);
}

Status reference_conv_transpose(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  TRY(const ConvShape shape, conv_transpose_shape(call));
  const Window& window = shape.window;
  const std::vector<double> x = read_reals(*inputs[0]), w = read_reals(*inputs[1]);
  const int64_t kernel_count = window.kernel_count();
  const int64_t in_count = element_count(window.out), out_count = element_count(window.in);
  const int64_t rows = shape.group_outputs * kernel_count;
  std::vector<double> out(shape.batch * shape.outputs * out_count, 0.0), columns(rows * in_count);
  for (int64_t part = 0; part < shape.batch * shape.groups; ++part) {
    const int64_t image = part / shape.groups, group = part % shape.groups;
    const double* weights = w.data() + group * shape.group_inputs * rows;
    const std::vector<double> by_columns = transposed(weights, shape.group_inputs, rows);
    gemm_on_threads(rows, in_count, shape.group_inputs, by_columns.data(), shape.group_inputs,
                    x.data() + (image * shape.inputs + group * shape.group_inputs) * in_count,
                    in_count, columns.data(), in_count, call.sums);
    double* to = out.data() + (image * shape.outputs + group * shape.group_outputs) * out_count;
    int64_t source = 0;
    for_each_point(window.out, [&](const std::vector<int64_t>& at) {
      each_in_window(window, at, [&](int64_t position, int64_t kernel) {
        for (int64_t channel = 0; channel < shape.group_outputs; ++channel)
          to[channel * out_count + position] +=
              columns[(channel * kernel_count + kernel) * in_count + source];
      });
      ++source;
    });
  }
  if (call.has(2)) add_bias(out, shape, read_reals(*inputs[2]));
  write_reals(outputs[0], out);
  return ok_status();
}

}  // namespace obelisk::ops
