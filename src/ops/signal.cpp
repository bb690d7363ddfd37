#include "ops/signal.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/moves.h"

namespace obelisk::ops {

namespace {

Result<int64_t> known_int(const Call& call, int input, std::string_view what) {
  TRY(auto values, call.ints(input, what));
  if (values.size() != 1) return bad_call(call, fmt::format("{} has {} values", what, values.size()));
  return values[0];
}

}  // namespace

// ---- windows --------------------------------------------------------------------------------------------------------

Result<Types> infer_window(const Call& call) {
  TRY(const int64_t size, known_int(call, 0, "size"));
  TRY(const DType dtype, dtype_attr(call, "output_datatype", DType::f32));
  return Types{{dtype, {size}}};
}

// ---- MelWeightMatrix ------------------------------------------------------------------------------------------------

Result<Types> infer_mel_weight_matrix(const Call& call) {
  TRY(const int64_t bins, known_int(call, 0, "num_mel_bins"));
  TRY(const int64_t length, known_int(call, 1, "dft_length"));
  TRY(const DType dtype, dtype_attr(call, "output_datatype", DType::f32));
  if (bins < 0 || length < 0) return bad_call(call, fmt::format("{} bins of {}", bins, length));
  return Types{{dtype, {length / 2 + 1, bins}}};
}

// ---- DFT ------------------------------------------------------------------------------------------------------------

namespace {

struct DftPlan {
  int64_t axis, length;
  bool inverse, onesided;
};
Result<DftPlan> dft_plan(const Call& call) {
  const Shape& from = call.in(0).shape;
  if (from.size() < 2 || (from.back() != 1 && from.back() != 2)) {
    return bad_call(call, fmt::format("the input {} does not end in real or real, imaginary",
                                      to_string(from)));
  }
  DftPlan plan{-2, 0, call.attrs.get_int("inverse", 0) != 0,
               call.attrs.get_int("onesided", 0) != 0};
  if (call.has(2)) {
    TRY(plan.axis, known_int(call, 2, "axis"));
  }
  TRY(plan.axis, normalize_axis(call, plan.axis, call.in(0).rank()));
  if (plan.axis == call.in(0).rank() - 1) return bad_call(call, "the last axis is not a signal");
  if (plan.onesided && from.back() != (plan.inverse ? 2 : 1)) {
    return bad_call(call, fmt::format("a onesided {} of {} parts",
                                      plan.inverse ? "inverse" : "transform", from.back()));
  }
  plan.length = plan.inverse && plan.onesided ? 2 * (from[plan.axis] - 1) : from[plan.axis];
  if (call.has(1)) {
    TRY(plan.length, known_int(call, 1, "dft_length"));
  }
  if (plan.length < 1) return bad_call(call, fmt::format("a length of {}", plan.length));
  return plan;
}

}  // namespace

Result<Types> infer_dft(const Call& call) {
  TRY(const DftPlan plan, dft_plan(call));
  Type type = call.in(0);
  type.shape[plan.axis] = plan.onesided && !plan.inverse ? plan.length / 2 + 1 : plan.length;
  type.shape.back() = plan.onesided && plan.inverse ? 1 : 2;
  return Types{type};
}

Cost cost_dft(const Call& call) {
  Cost cost = cost_move(call);
  if (auto plan = dft_plan(call); plan.ok()) {
    cost.flops.count = 4.0 * static_cast<double>(call.out().count()) * static_cast<double>(plan->length);
  }
  return cost;
}

// ---- STFT -----------------------------------------------------------------------------------------------------------

namespace {

struct StftPlan {
  int64_t step, length, frames, bins;
};
Result<StftPlan> stft_plan(const Call& call) {
  const Shape& signal = call.in(0).shape;
  if (signal.size() != 3 || (signal[2] != 1 && signal[2] != 2)) {
    return bad_call(call, fmt::format("the signal {} is not [N, length, 1 or 2]", to_string(signal)));
  }
  StftPlan plan;
  TRY(plan.step, known_int(call, 1, "frame_step"));
  plan.length = call.has(2) ? call.in(2).count() : signal[1];
  if (call.has(3)) {
    TRY(plan.length, known_int(call, 3, "frame_length"));
  }
  if (call.has(2) && call.in(2).shape != Shape{plan.length}) {
    return bad_call(call, fmt::format("a window of {} for frames of {}",
                                      to_string(call.in(2).shape), plan.length));
  }
  if (plan.step < 1 || plan.length < 1 || plan.length > signal[1]) {
    return bad_call(call, fmt::format("frames of {} every {} of a signal of {}", plan.length,
                                      plan.step, signal[1]));
  }
  const bool onesided = call.attrs.get_int("onesided", 1) != 0;
  if (onesided && signal[2] == 2) return bad_call(call, "a onesided transform of a complex signal");
  plan.frames = (signal[1] - plan.length) / plan.step + 1;
  plan.bins = onesided ? plan.length / 2 + 1 : plan.length;
  return plan;
}

}  // namespace

Result<Types> infer_stft(const Call& call) {
  TRY(const StftPlan plan, stft_plan(call));
  return Types{{call.in(0).dtype, {call.in(0).shape[0], plan.frames, plan.bins, 2}}};
}

Cost cost_stft(const Call& call) {
  Cost cost = cost_move(call);
  if (auto plan = stft_plan(call); plan.ok()) {
    cost.flops.count = 4.0 * static_cast<double>(call.out().count()) * static_cast<double>(plan->length);
  }
  return cost;
}

}  // namespace obelisk::ops
