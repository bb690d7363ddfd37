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
/// Key j is masked for query i where what is added to their score is minus infinity: by the mask,
/// by the causal rule (j > p), outside of the window (j < p - left, j > p + right), or behind the
/// valid keys. p is i behind all keys that stand before the queries: i + the length of the past,
/// or, of an outside cache, i + valid keys - queries, which may be negative. A masked key weighs
/// nothing, whatever its score, and a row with all keys masked is zeros. An attribute of our own,
/// nan_if_masked, makes it NaN: softmax as it stands in the standard, of which raise_attention made
/// the op.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

struct AttentionShape {
  bool packed = false;  // rank 3
  int64_t batch = 0, q_heads = 0, kv_heads = 0;
  int64_t q_length = 0, new_length = 0, past_length = 0, total = 0;
  int64_t head = 0, v_head = 0;  // elements of a head
  double scale = 1;
  // Query i sees keys from p - left to p + right, where these are not kNoBound.
  int64_t left = kNoBound, right = kNoBound;
  bool by_lengths = false;  // p: by the valid lengths
  static constexpr int64_t kNoBound = -1;
  Shape scores() const { return {batch, q_heads, q_length, total}; }
};
Result<AttentionShape> attention_shape(const Call& call);

/// Whether a row with all keys masked is to be zeros, where there may be one.
bool zero_if_masked(const Call& call);

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
