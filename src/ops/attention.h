/// ops/attention.h — scaled dot-product attention, rotary embedding, and attention by a linear
/// recurrence.
///
///   Attention   softmax(Q K^T * scale, capped, + mask) V; Q [B, Hq, L, D] or packed [B, L, Hq*D],
///   K and V alike with Hkv heads
///               that Hq / Hkv query heads share; past keys and values stand in front of the new
///               ones; T is their total length
///   Rotary      pairs of a head's elements rotated by angles from a cache
///   Linear      a state [B, Hkv, Dk, Dv] per head, decayed, corrected and written at every step
///
/// A row whose every score is masked is NaN, as the formula says.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

struct AttentionShape {
  bool packed = false;  // rank 3
  int64_t batch = 0, q_heads = 0, kv_heads = 0;
  int64_t q_length = 0, new_length = 0, past_length = 0, total = 0;
  int64_t head = 0, v_head = 0;  // elements of a head
  double scale = 1;
  Shape scores() const { return {batch, q_heads, q_length, total}; }
};
Result<AttentionShape> attention_shape(const Call& call);

// Which of its inputs and outputs is what.
enum AttentionInput : int { kQuery, kKey, kValue, kMask, kPastKey, kPastValue, kValidLengths };
enum AttentionOutput : int { kAttended, kPresentKey, kPresentValue, kScores };

struct RotaryShape {
  int64_t batch, length, heads, head;
  int64_t rotated;  // leading elements of a head that are rotated
  bool interleaved, packed;
};
Result<RotaryShape> rotary_shape(const Call& call);

struct LinearAttentionShape {
  int64_t batch, length, q_heads, kv_heads, key, value;  // key and value: elements of a head
  bool gated, corrected;
  double scale;
  bool decay_per_key;  // [B, T, Hkv * Dk] and not [B, T, Hkv]
  bool beta_per_head;  // [B, T, Hkv] and not [B, T, 1]
};
Result<LinearAttentionShape> linear_attention_shape(const Call& call);

Result<Types> infer_attention(const Call& call);
Result<Types> infer_rotary_embedding(const Call& call);
Result<Types> infer_linear_attention(const Call& call);
Cost cost_attention(const Call& call);
Cost cost_linear_attention(const Call& call);
std::optional<Loop> loop_rotary_embedding(const Call& call, int output);
Status reference_attention(const Call& call, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs);
Status reference_rotary_embedding(const Call& call, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs);
Status reference_linear_attention(const Call& call, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs);
std::vector<int32_t> expand_attention(const Call& call, Expander& expander);
std::vector<int32_t> expand_linear_attention(const Call& call, Expander& expander);

}  // namespace obelisk::ops
