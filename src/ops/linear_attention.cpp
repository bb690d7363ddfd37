// LinearAttention: for every token the state is decayed (gated rules), the value corrected by what
// the state already says of the key (delta rules), their outer product written, and the query read.
#include <algorithm>
#include <cmath>

#include "ops/arrays.h"
#include "ops/attention.h"
#include "ops/dtype_set.h"

namespace obelisk::ops {
namespace {

enum Input : int { kLinearQuery, kLinearKey, kLinearValue, kPastState, kDecay, kBeta };

}  // namespace

Result<LinearAttentionShape> linear_attention_shape(const Call& call) {
  LinearAttentionShape shape{};
  const Shape& q = call.in(kLinearQuery).shape;
  const Shape& k = call.in(kLinearKey).shape;
  const Shape& v = call.in(kLinearValue).shape;
  shape.q_heads = call.attrs.get_int("q_num_heads", 0);
  shape.kv_heads = call.attrs.get_int("kv_num_heads", 0);
  if (shape.kv_heads < 1 || shape.q_heads < 1 || shape.q_heads % shape.kv_heads != 0) {
    return bad_call(
        call, fmt::format("q_num_heads {} and kv_num_heads {}", shape.q_heads, shape.kv_heads),
        "the first must be a multiple of the second");
  }
  if (q.size() != 3 || k.size() != 3 || v.size() != 3 || k[0] != q[0] || v[0] != q[0] ||
      shape.q_heads > std::max<int64_t>(q[2], 1) || k[1] != q[1] || v[1] != q[1] ||
      q[2] % shape.q_heads || v[2] % shape.kv_heads ||
      k[2] != q[2] / shape.q_heads * shape.kv_heads) {
    return bad_call(call,
                    fmt::format("query {}, key {}, value {} for {} and {} heads", to_string(q),
                                to_string(k), to_string(v), shape.q_heads, shape.kv_heads),
                    "all three [batch, length, heads * head]");
  }
  shape.batch = q[0];
  shape.length = q[1];
  shape.key = q[2] / shape.q_heads;
  shape.value = v[2] / shape.kv_heads;
  if (int64_t columns = 0; __builtin_mul_overflow(shape.q_heads, shape.value, &columns)) {
    return bad_call(call, fmt::format("{} heads of {} elements", shape.q_heads, shape.value));
  }
  const std::string rule = call.attrs.get_string("update_rule", "gated_delta");
  shape.gated = rule == "gated" || rule == "gated_delta";
  shape.corrected = rule == "delta" || rule == "gated_delta";
  if (!shape.gated && !shape.corrected && rule != "linear") {
    return bad_call(call, fmt::format("update_rule '{}'", rule),
                    "one of linear, gated, delta, gated_delta");
  }
  if (shape.gated != call.has(kDecay) || shape.corrected != call.has(kBeta)) {
    return bad_call(call,
                    fmt::format("update_rule '{}' with {} decay and {} beta", rule,
                                call.has(kDecay) ? "a" : "no", call.has(kBeta) ? "a" : "no"),
                    "gated rules take a decay, delta rules a beta");
  }
  shape.scale = call.attrs.get_float("scale", 0);
  if (shape.scale == 0) shape.scale = 1 / std::sqrt(static_cast<double>(shape.key));
  const Shape state{shape.batch, shape.kv_heads, shape.key, shape.value};
  if (call.has(kPastState) && call.in(kPastState).shape != state) {
    return bad_call(call, fmt::format("past_state {}, wanted {}",
                                      to_string(call.in(kPastState).shape), to_string(state)));
  }
  auto per_token = [&](int input, int64_t width) {
    return call.in(input).shape == Shape{shape.batch, shape.length, width};
  };
  if (shape.gated) {
    shape.decay_per_key = !per_token(kDecay, shape.kv_heads);
    if (shape.decay_per_key && !per_token(kDecay, shape.kv_heads * shape.key))
      return bad_call(call, fmt::format("decay {}", to_string(call.in(kDecay).shape)),
                      "[batch, length, heads] or [batch, length, heads * key]");
  }
  if (shape.corrected) {
    shape.beta_per_head = per_token(kBeta, shape.kv_heads);
    if (!shape.beta_per_head && !per_token(kBeta, 1))
      return bad_call(call, fmt::format("beta {}", to_string(call.in(kBeta).shape)),
                      "[batch, length, heads] or [batch, length, 1]");
  }
  return shape;
}

Result<Types> infer_linear_attention(const Call& call) {
  for (int input = 0; input < call.arity(); ++input)
    if (call.has(input)) TRY_STATUS(check_dtype(call, input, kFloats));
  TRY(const LinearAttentionShape shape, linear_attention_shape(call));
  const DType dtype = call.in(kLinearQuery).dtype;
  const DType state = call.has(kPastState) ? call.in(kPastState).dtype : dtype;
  return Types{{dtype, {shape.batch, shape.length, shape.q_heads * shape.value}},
               {state, {shape.batch, shape.kv_heads, shape.key, shape.value}}};
}

Cost cost_linear_attention(const Call& call) {
  const LinearAttentionShape shape = *linear_attention_shape(call);
  Cost cost = cost_move(call);
  const double state = static_cast<double>(shape.batch) * static_cast<double>(shape.length) *
                       static_cast<double>(shape.key) * static_cast<double>(shape.value);
  cost.flops = {state * (5.0 * static_cast<double>(shape.kv_heads) +
                         2.0 * static_cast<double>(shape.q_heads))};
  return cost;
}

Status reference_linear_attention(const Call& call, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs) {
  TRY(const LinearAttentionShape shape, linear_attention_shape(call));
  auto optional = [&](int input) {
    return call.has(input) ? read_reals(*inputs[input]) : std::vector<double>{};
  };
  const std::vector<double> q = read_reals(*inputs[kLinearQuery]),
                            k = read_reals(*inputs[kLinearKey]);
  const std::vector<double> v = read_reals(*inputs[kLinearValue]);
  const std::vector<double> decay = optional(kDecay), beta = optional(kBeta);
  const int64_t keys = shape.key, values = shape.value, shared = shape.q_heads / shape.kv_heads;
  std::vector<double> states = optional(kPastState);
  states.resize(shape.batch * shape.kv_heads * keys * values, 0.0);
  std::vector<double> out(shape.batch * shape.length * shape.q_heads * values, 0.0), fresh(values);
  for (int64_t image = 0; image < shape.batch; ++image)
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      double* state = states.data() + (image * shape.kv_heads + head) * keys * values;
      for (int64_t time = 0; time < shape.length; ++time) {
        const int64_t token = image * shape.length + time, row = token * shape.kv_heads + head;
        const double* key = k.data() + row * keys;
        if (shape.gated) {
          for (int64_t d = 0; d < keys; ++d) {
            const double factor = std::exp(decay[shape.decay_per_key ? row * keys + d : row]);
            for (int64_t m = 0; m < values; ++m) state[d * values + m] *= factor;
          }
        }
        for (int64_t m = 0; m < values; ++m) {
          double known = 0;
          if (shape.corrected)
            for (int64_t d = 0; d < keys; ++d) known += state[d * values + m] * key[d];
          const double rate = shape.corrected ? beta[shape.beta_per_head ? row : token] : 1;
          fresh[m] = rate * (v[row * values + m] - known);
        }
        for (int64_t d = 0; d < keys; ++d)
          for (int64_t m = 0; m < values; ++m) state[d * values + m] += key[d] * fresh[m];
        for (int64_t reader = head * shared; reader < (head + 1) * shared; ++reader) {
          const double* query = q.data() + (token * shape.q_heads + reader) * keys;
          double* to = out.data() + (token * shape.q_heads + reader) * values;
          for (int64_t d = 0; d < keys; ++d)
            for (int64_t m = 0; m < values; ++m)
              to[m] += shape.scale * query[d] * state[d * values + m];
        }
      }
    }
  write_reals(outputs[0], out);
  if (outputs.size() > 1 && !outputs[1].empty()) write_reals(outputs[1], states);
  return ok_status();
}

}  // namespace obelisk::ops
