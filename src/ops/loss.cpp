#include "ops/loss.h"

#include <algorithm>
#include <cmath>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/expand_steps.h"

namespace obelisk::ops {
namespace {

bool takes_softmax(const Call& call) { return call.op == Op::SoftmaxCrossEntropyLoss; }
std::string reduction(const Call& call) { return call.attrs.get_string("reduction", "mean"); }

}  // namespace

Result<Types> infer_loss(const Call& call) {
  TRY_STATUS(check_dtype(call, 0, kFloats));
  TRY_STATUS(check_dtype(call, 1, kIndices));
  const Shape& scores = call.in(0).shape;
  if (scores.size() < 2) return bad_call(call, "the scores need a batch and a class axis");
  Shape labels = scores;
  labels.erase(labels.begin() + 1);
  if (call.in(1).shape != labels) {
    return bad_call(
        call, fmt::format("labels are {}, wanted {} for scores {}", to_string(call.in(1).shape),
                          to_string(labels), to_string(scores)));
  }
  if (call.has(2)) {
    TRY_STATUS(check_dtype(call, 2, kFloats));
    if (call.in(2).shape != Shape{scores[1]}) {
      return bad_call(call, fmt::format("weights are {}, wanted [{}], one for each class",
                                        to_string(call.in(2).shape), scores[1]));
    }
  }
  const std::string how = reduction(call);
  if (how != "none" && how != "sum" && how != "mean") {
    return bad_call(call, fmt::format("reduction is '{}'", how), "it is none, sum or mean");
  }
  return Types{{call.in(0).dtype, how == "none" ? labels : Shape{}}, call.in(0)};
}

Status reference_loss(const Call& call, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs) {
  std::vector<double> scores = read_reals(*inputs[0]);
  const std::vector<int64_t> labels = read_ints(*inputs[1]);
  const Fold fold(inputs[0]->shape(), {1});
  const int64_t classes = fold.inner;
  if (takes_softmax(call)) {
    for (int64_t base : fold.base) {
      double top = -INFINITY, sum = 0;
      for (int64_t at : fold.step) top = std::max(top, scores[base + at]);
      for (int64_t at : fold.step) sum += std::exp(scores[base + at] - top);
      for (int64_t at : fold.step) scores[base + at] -= top + std::log(sum);
    }
    if (outputs.size() > 1) write_reals(outputs[1], scores);
  }
  const bool ignores = call.attrs.has("ignore_index");
  const int64_t ignored = call.attrs.get_int("ignore_index", 0);
  const bool weighs = inputs.size() > 2 && inputs[2];
  std::vector<double> losses(labels.size(), 0);
  double total = 0, weight_total = 0;
  for (size_t n = 0; n < labels.size(); ++n) {
    if (ignores && labels[n] == ignored) continue;
    if (labels[n] < 0 || labels[n] >= classes) {
      return bad_call(call, fmt::format("label {} is outside [0, {})", labels[n], classes));
    }
    const double weight = weighs ? inputs[2]->get_double(labels[n]) : 1;
    losses[n] = -weight * scores[fold.base[n] + fold.step[labels[n]]];
    total += losses[n];
    weight_total += weight;
  }
  const std::string how = reduction(call);
  if (how == "none")
    write_reals(outputs[0], losses);
  else
    outputs[0].set_double(0, how == "sum" ? total : total / weight_total);
  return ok_status();
}

std::vector<int32_t> expand_loss(const Call& call, Expander& expander) {
  Steps s(expander);
  auto scores = s.widen(s.in(0));
  const DType wide = s.dtype(scores);
  if (takes_softmax(call)) {
    scores = s.add(Op::LogSoftmax, {scores}, Attrs().set("axis", int64_t{1}));
  }
  const Shape& labels_shape = call.in(1).shape;
  auto labels = s.cast(s.in(1), DType::i64);
  Steps::Value ignored = Expander::kAbsent;
  if (call.attrs.has("ignore_index")) {
    const auto zero = s.scalar(DType::i64, 0);
    const auto index = s.constant(tensor_of({call.attrs.get_int("ignore_index", 0)}).reshaped({}));
    ignored = s(Op::Equal, labels, index);
    labels = s.where(ignored, zero, labels);  // any label that can be gathered
  }
  Shape column = labels_shape;
  column.insert(column.begin() + 1, 1);
  const auto picked = s.add(Op::GatherElements, {scores, s.reshape(labels, column)},
                            Attrs().set("axis", int64_t{1}));
  auto losses = s(Op::Neg, s.reshape(picked, labels_shape));
  Steps::Value weights = Expander::kAbsent;
  if (call.has(2)) weights = s.add(Op::Gather, {s.cast(s.in(2), wide), labels});
  if (ignored != Expander::kAbsent) {
    const auto one = weights == Expander::kAbsent ? s.scalar(wide, 1) : weights;
    weights = s.where(ignored, s.scalar(wide, 0), one);
    losses = s.where(ignored, s.scalar(wide, 0), losses);  // 0 * inf would be NaN
  }
  if (weights != Expander::kAbsent) losses = s(Op::Mul, losses, weights);
  std::vector<int64_t> all(labels_shape.size());
  for (size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int64_t>(d);
  const std::string how = reduction(call);
  auto loss = losses;
  if (how == "mean" && weights == Expander::kAbsent)
    loss = s.reduce(Op::ReduceMean, losses, all, false);
  else if (how != "none")
    loss = s.reduce(Op::ReduceSum, losses, all, false);
  if (how == "mean" && weights != Expander::kAbsent) {
    loss = s(Op::Div, loss, s.reduce(Op::ReduceSum, weights, all, false));
  }
  std::vector<int32_t> outputs{s.cast(loss, call.out().dtype)};
  if (call.outputs > 1) outputs.push_back(s.cast(scores, call.out(1).dtype));
  return outputs;
}

}  // namespace obelisk::ops
