// Attention and LinearAttention decomposed into products, maps and softmax.
#include <algorithm>
#include <limits>

#include "ops/attention.h"
#include "ops/expand_steps.h"

namespace obelisk::ops {
namespace {

using Value = Steps::Value;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kFar = int64_t{1} << 40;  // a window as wide as that has no bound
constexpr int64_t kMostTokens = 1024;       // of LinearAttention: about ten nodes each

Value transpose(Steps& steps, Value x, std::vector<int64_t> order) {
  return steps.add(Op::Transpose, {x}, Attrs().set("perm", std::move(order)));
}
Value concat(Steps& steps, std::vector<Value> parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  return steps.add(Op::Concat, std::move(parts), Attrs().set("axis", axis));
}

/// [B, H, L, D] from either form.
Value split_heads(Steps& steps, Value x, int64_t heads) {
  const Shape shape = steps.shape(x);
  if (shape.size() == 4) return x;
  return transpose(steps, steps.reshape(x, {shape[0], shape[1], heads, shape[2] / heads}),
                   {0, 2, 1, 3});
}

std::vector<int64_t> counting(int64_t first, int64_t count) {
  std::vector<int64_t> values(count);
  for (int64_t n = 0; n < count; ++n) values[n] = first + n;
  return values;
}

/// The mask as wide as the scores (or one wide): a condition, or numbers to add.
Value whole_mask(Steps& steps, Value mask, int64_t total, DType type) {
  const bool condition = steps.dtype(mask) == DType::b1;
  if (!condition) mask = steps.cast(mask, type);
  Shape rest = steps.shape(mask);
  if (rest.empty() || rest.back() == 1 || rest.back() >= total) return mask;
  const auto last = static_cast<int64_t>(rest.size()) - 1;
  rest.back() = total - rest.back();
  const Value masked = steps.scalar(condition ? DType::b1 : type, condition ? 0 : -kInfinity);
  return concat(steps, {mask, steps.add(Op::Expand, {masked, steps.ints(rest)})}, last);
}

/// The scores with what masks them: minus infinity where a key is masked.
Value masked_scores(Steps& steps, const Call& call, const AttentionShape& shape, Value scores) {
  const DType type = steps.dtype(scores);
  const Value nothing = steps.scalar(type, -kInfinity);
  const auto keep = [&](Value allowed) { scores = steps.where(allowed, scores, nothing); };
  if (call.has(kMask)) {
    const Value mask = whole_mask(steps, steps.in(kMask), shape.total, type);
    if (steps.dtype(mask) == DType::b1) {
      keep(mask);
    } else {
      const Value sum = steps(Op::Add, scores, mask);
      // Infinities and NaN of masked keys do not count.
      scores =
          zero_if_masked(call) ? steps.where(steps(Op::Equal, mask, nothing), nothing, sum) : sum;
    }
  }
  const Value columns = steps.ints(counting(0, shape.total));
  const Value lengths = call.has(kValidLengths)
                            ? steps.reshape(steps.in(kValidLengths), {shape.batch, 1, 1, 1})
                            : Expander::kAbsent;
  // Columns of the last and the first key that a query sees.
  const auto moved = [&](int64_t by) {
    by = std::clamp(by, -kFar, kFar);
    const int64_t first = (shape.by_lengths ? -shape.q_length : shape.past_length) + by;
    const Value rows =
        steps.constant(tensor_of(counting(first, shape.q_length)).reshaped({shape.q_length, 1}));
    return shape.by_lengths ? steps(Op::Add, rows, lengths) : rows;
  };
  if (shape.right != AttentionShape::kNoBound)
    keep(steps(Op::LessOrEqual, columns, moved(shape.right)));
  if (shape.left != AttentionShape::kNoBound)
    keep(steps(Op::GreaterOrEqual, columns, moved(-shape.left)));
  if (lengths != Expander::kAbsent) keep(steps(Op::Less, columns, lengths));
  return scores;
}

/// Softmax over the keys; a row that is minus infinity everywhere is zeros where there may be one.
Value weights_of(Steps& steps, const Call& call, Value scores) {
  const Value weights = steps.add(Op::Softmax, {scores}, Attrs().set("axis", int64_t{-1}));
  if (!zero_if_masked(call) || steps.shape(scores).back() == 0) return weights;
  const DType type = steps.dtype(scores);
  const Value none =
      steps(Op::Equal, steps.reduce(Op::ReduceMax, scores, {-1}), steps.scalar(type, -kInfinity));
  return steps.where(none, steps.scalar(type, 0), weights);
}

}  // namespace

std::vector<int32_t> expand_attention(const Call& call, Expander& expander) {
  const AttentionShape shape = *attention_shape(call);
  Steps steps(expander);
  const DType dtype = call.in(kQuery).dtype;
  const Value query = steps.widen(split_heads(steps, steps.in(kQuery), shape.q_heads));
  Value keys = split_heads(steps, steps.in(kKey), shape.kv_heads);
  Value values = split_heads(steps, steps.in(kValue), shape.kv_heads);
  if (call.has(kPastKey)) {
    keys = concat(steps, {steps.in(kPastKey), keys}, 2);
    values = concat(steps, {steps.in(kPastValue), values}, 2);
  }
  const DType type = steps.dtype(query);
  const int64_t shared = shape.q_heads / shape.kv_heads;

  // Where heads share keys the product broadcasts over them: [B, Hkv, shared, L, D] by [B, Hkv, 1,
  // D, T].
  Value q = query, k = steps.cast(keys, type), v = steps.cast(values, type);
  std::vector<int64_t> swap{0, 1, 3, 2};
  if (shared > 1) {
    q = steps.reshape(q, {shape.batch, shape.kv_heads, shared, shape.q_length, shape.head});
    k = steps.reshape(k, {shape.batch, shape.kv_heads, 1, shape.total, shape.head});
    v = steps.reshape(v, {shape.batch, shape.kv_heads, 1, shape.total, shape.v_head});
    swap = {0, 1, 2, 4, 3};
  }
  Value scores = steps(Op::MatMul, q, transpose(steps, k, swap));
  scores = steps.reshape(steps(Op::Mul, scores, shape.scale), shape.scores());
  std::vector<Value> shown{scores};  // by qk_matmul_output_mode
  if (const double cap = call.attrs.get_float("softcap", 0); cap > 0)
    scores = steps(Op::Mul, steps(Op::Tanh, steps(Op::Div, scores, cap)), cap);
  shown.push_back(scores);
  scores = masked_scores(steps, call, shape, scores);
  shown.push_back(scores);
  scores = weights_of(steps, call, scores);
  shown.push_back(scores);

  Value weights = steps.stored_as(scores, dtype);
  if (shared > 1)
    weights =
        steps.reshape(weights, {shape.batch, shape.kv_heads, shared, shape.q_length, shape.total});
  Value out = steps.reshape(steps.cast(steps(Op::MatMul, weights, v), dtype),
                            {shape.batch, shape.q_heads, shape.q_length, shape.v_head});
  if (shape.packed)
    out = steps.reshape(transpose(steps, out, {0, 2, 1, 3}),
                        {shape.batch, shape.q_length, shape.q_heads * shape.v_head});
  const int64_t mode = call.attrs.get_int("qk_matmul_output_mode", 0);
  std::vector<Value> results{out, keys, values};
  if (call.outputs > kScores) {
    if (mode < 0 || mode > 3) return {};
    results.push_back(steps.cast(shown[mode], dtype));
  }
  results.resize(call.outputs);
  return results;
}

std::vector<int32_t> expand_linear_attention(const Call& call, Expander& expander) {
  const LinearAttentionShape shape = *linear_attention_shape(call);
  if (shape.length == 0 || shape.length > kMostTokens) return {};
  Steps steps(expander);
  enum Input : int { kQ, kK, kV, kPast, kDecay, kBeta };
  const auto [batch, heads] = std::pair(shape.batch, shape.kv_heads);
  const int64_t shared = shape.q_heads / heads;
  auto wide = [&](int input) {
    const Value x = steps.in(input);
    return x == Expander::kAbsent ? x : steps.widen(x);
  };
  const Value q = wide(kQ), k = wide(kK), v = wide(kV), decay = wide(kDecay), beta = wide(kBeta);
  const DType type = steps.dtype(q);
  auto token = [&](Value x, int64_t time, const Shape& to) {
    const Value part =
        steps.add(Op::Slice, {x, steps.ints({time}), steps.ints({time + 1}), steps.ints({1})});
    return steps.cast(steps.reshape(part, to), type);
  };
  const Shape state_shape{batch, heads, shape.key, shape.value};
  Value state = call.has(kPast)
                    ? steps.cast(steps.in(kPast), type)
                    : steps.add(Op::Expand, {steps.scalar(type, 0), steps.ints(state_shape)});
  std::vector<Value> outs;
  for (int64_t time = 0; time < shape.length; ++time) {
    if (shape.gated) {
      const Value factor =
          token(decay, time, {batch, heads, shape.decay_per_key ? shape.key : 1, 1});
      state = steps(Op::Mul, state, steps(Op::Exp, factor));
    }
    Value fresh = token(v, time, {batch, heads, 1, shape.value});
    if (shape.corrected) {
      const Value known = steps(Op::MatMul, token(k, time, {batch, heads, 1, shape.key}), state);
      const Value rate = token(beta, time, {batch, shape.beta_per_head ? heads : 1, 1, 1});
      fresh = steps(Op::Mul, rate, steps(Op::Sub, fresh, known));
    }
    const Value key = token(k, time, {batch, heads, shape.key, 1});
    state = steps(Op::Add, state, steps(Op::Mul, key, fresh));
    Value read = steps(Op::MatMul, token(q, time, {batch, heads, shared, shape.key}), state);
    outs.push_back(steps.reshape(read, {batch, 1, shape.q_heads * shape.value}));
  }
  const Value out = steps(Op::Mul, concat(steps, std::move(outs), 1), shape.scale);
  const DType dtype = call.in(kQ).dtype;
  const DType kept = call.has(kPast) ? call.in(kPast).dtype : dtype;
  std::vector<Value> results{steps.cast(out, dtype), steps.cast(state, kept)};
  results.resize(call.outputs);
  return results;
}

}  // namespace obelisk::ops
