#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/arrays.h"
#include "ops/dtype_set.h"
#include "ops/gemm.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DTypeSet kMaskTypes = kNumbers | kBools;

Error mismatch(const Call& call, std::string_view what, int input, const Shape& wanted) {
  return bad_call(call, fmt::format("{} is {}, wanted {}", what, to_string(call.in(input).shape),
                                    to_string(wanted)));
}

/// The mask with its last dimension grown to the total length.
Shape grown_mask(const Call& call, const AttentionShape& shape) {
  Shape mask = call.in(kMask).shape;
  if (!mask.empty() && mask.back() < shape.total && mask.back() != 1) mask.back() = shape.total;
  return mask;
}

/// What is added to every score: 0, the mask's number, or minus infinity. [B, Hq, L, T] through
/// strides.
class Bias {
 public:
  Bias(const Call& call, const AttentionShape& shape, std::span<const Tensor* const> inputs)
      : shape_(shape) {
    if (call.has(kValidLengths)) valid_ = read_ints(*inputs[kValidLengths]);
    if (!call.has(kMask)) return;
    const Tensor& mask = *inputs[kMask];
    values_.resize(mask.count());
    for (int64_t at = 0; at < mask.count(); ++at) {
      if (mask.dtype() == DType::b1)
        values_[at] = mask.get_int(at) ? 0 : -kInfinity;
      else
        values_[at] = mask.get_double(at);
    }
    const Shape& extents = mask.shape();
    const Shape strides = row_major_strides(extents);
    const size_t skip = 4 - extents.size();
    for (size_t d = 0; d < extents.size(); ++d)
      strides_[skip + d] = extents[d] == 1 ? 0 : strides[d];
    width_ = extents.empty() || extents.back() == 1 ? shape.total : extents.back();
  }

  double at(int64_t image, int64_t head, int64_t row, int64_t column) const {
    if (!valid_.empty() && column >= valid_[image]) return -kInfinity;
    const int64_t before = shape_.by_lengths
                               ? std::clamp(valid_[image], -kFar, kFar) - shape_.q_length
                               : shape_.past_length;
    const int64_t ahead = column - (row + before);
    if (shape_.right != AttentionShape::kNoBound && ahead > shape_.right) return -kInfinity;
    if (shape_.left != AttentionShape::kNoBound && -ahead > shape_.left) return -kInfinity;
    if (values_.empty()) return 0;
    if (column >= width_) return -kInfinity;  // a short mask is continued by what is masked
    return values_[image * strides_[0] + head * strides_[1] + row * strides_[2] +
                   column * strides_[3]];
  }

 private:
  static constexpr int64_t kFar = int64_t{1} << 40;  // lengths are data: any number
  const AttentionShape& shape_;
  std::vector<int64_t> valid_;
  std::vector<double> values_;
  int64_t strides_[4] = {0, 0, 0, 0};
  int64_t width_ = 0;
};

/// [B, H, T, D] of doubles: what was kept, then what is new, from [B, H, L, D] or packed [B, L, H *
/// D].
std::vector<double> joined(const AttentionShape& shape, const std::vector<double>& past,
                           const std::vector<double>& fresh, int64_t size) {
  std::vector<double> all(shape.batch * shape.kv_heads * shape.total * size);
  for (int64_t image = 0; image < shape.batch; ++image)
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      const int64_t plane = image * shape.kv_heads + head;
      double* to = all.data() + plane * shape.total * size;
      to =
          std::copy_n(past.data() + plane * shape.past_length * size, shape.past_length * size, to);
      for (int64_t row = 0; row < shape.new_length; ++row) {
        const int64_t from = shape.packed
                                 ? ((image * shape.new_length + row) * shape.kv_heads + head) * size
                                 : (plane * shape.new_length + row) * size;
        to = std::copy_n(fresh.data() + from, size, to);
      }
    }
  return all;
}

/// In place; minus infinity everywhere gives NaN, or zeros.
void softmax(double* row, int64_t count, bool zero) {
  double largest = -kInfinity, sum = 0;
  if (zero && std::all_of(row, row + count, [](double score) { return score == -kInfinity; })) {
    std::fill_n(row, count, 0.0);
    return;
  }
  for (int64_t at = 0; at < count; ++at) largest = std::max(largest, row[at]);
  for (int64_t at = 0; at < count; ++at) sum += row[at] = std::exp(row[at] - largest);
  for (int64_t at = 0; at < count; ++at) row[at] /= sum;
}

}  // namespace

Result<AttentionShape> attention_shape(const Call& call) {
  AttentionShape shape;
  const Shape& q = call.in(kQuery).shape;
  const Shape& k = call.in(kKey).shape;
  const Shape& v = call.in(kValue).shape;
  if ((q.size() != 3 && q.size() != 4) || k.size() != q.size() || v.size() != q.size()) {
    return bad_call(
        call, fmt::format("Q {}, K {}, V {}", to_string(q), to_string(k), to_string(v)),
        "all three [batch, heads, length, head] or all three [batch, length, heads * head]");
  }
  shape.packed = q.size() == 3;
  shape.batch = q[0];
  if (shape.packed) {
    shape.q_heads = call.attrs.get_int("q_num_heads", 0);
    shape.kv_heads = call.attrs.get_int("kv_num_heads", 0);
    if (shape.q_heads < 1 || shape.kv_heads < 1) {
      return bad_call(call, "inputs of rank 3 without q_num_heads and kv_num_heads",
                      "set both attributes");
    }
    if (shape.q_heads > std::max<int64_t>(q[2], 1) || q[2] % shape.q_heads ||
        k[2] % shape.kv_heads || v[2] % shape.kv_heads) {
      return bad_call(
          call, fmt::format("Q {}, K {}, V {} do not divide into {} and {} heads", to_string(q),
                            to_string(k), to_string(v), shape.q_heads, shape.kv_heads));
    }
    shape.q_length = q[1];
    shape.new_length = k[1];
    shape.head = q[2] / shape.q_heads;
    shape.v_head = v[2] / shape.kv_heads;
    if (k[2] / shape.kv_heads != shape.head || v[1] != k[1] || k[0] != q[0] || v[0] != q[0]) {
      return bad_call(call, fmt::format("Q {}, K {}, V {} do not fit", to_string(q), to_string(k),
                                        to_string(v)));
    }
  } else {
    shape.q_heads = q[1];
    shape.kv_heads = k[1];
    shape.q_length = q[2];
    shape.new_length = k[2];
    shape.head = q[3];
    shape.v_head = v[3];
    if (k[3] != q[3] || v[1] != k[1] || v[2] != k[2] || k[0] != q[0] || v[0] != q[0]) {
      return bad_call(call, fmt::format("Q {}, K {}, V {} do not fit", to_string(q), to_string(k),
                                        to_string(v)));
    }
  }
  if (shape.kv_heads < 1 || shape.q_heads % shape.kv_heads != 0) {
    return bad_call(call,
                    fmt::format("{} query heads share {} key heads", shape.q_heads, shape.kv_heads),
                    "the first must be a multiple of the second");
  }
  if (int64_t columns = 0; __builtin_mul_overflow(shape.q_heads, shape.v_head, &columns)) {
    return bad_call(call, fmt::format("{} heads of {} elements", shape.q_heads, shape.v_head));
  }
  if (call.has(kPastKey) != call.has(kPastValue)) {
    return bad_call(call, "only one of past_key and past_value", "give both or neither");
  }
  if (call.has(kPastKey)) {
    if (call.in(kPastKey).rank() == 4) shape.past_length = call.in(kPastKey).shape[2];
    const Shape key{shape.batch, shape.kv_heads, shape.past_length, shape.head};
    const Shape value{shape.batch, shape.kv_heads, shape.past_length, shape.v_head};
    if (call.in(kPastKey).shape != key) return mismatch(call, "past_key", kPastKey, key);
    if (call.in(kPastValue).shape != value) return mismatch(call, "past_value", kPastValue, value);
  }
  shape.total = shape.past_length + shape.new_length;
  shape.scale = call.attrs.get_float("scale", 1 / std::sqrt(static_cast<double>(shape.head)));
  shape.by_lengths = call.has(kValidLengths) && !call.has(kPastKey);
  for (const auto& [window, bound] :
       {std::pair("left_window_size", &shape.left), std::pair("right_window_size", &shape.right)}) {
    *bound = call.attrs.get_int(window, AttentionShape::kNoBound);
    if (*bound < AttentionShape::kNoBound)
      return bad_call(call, fmt::format("{} = {}, wanted -1 or more", window, *bound));
  }
  if (call.attrs.get_int("is_causal", 0) != 0) shape.right = 0;
  if (call.has(kMask)) {
    if (call.in(kMask).rank() > 4 ||
        broadcast(grown_mask(call, shape), shape.scores()) != shape.scores()) {
      return mismatch(call, "attn_mask", kMask, shape.scores());
    }
  }
  if (call.has(kValidLengths) && call.in(kValidLengths).shape != Shape{shape.batch}) {
    return mismatch(call, "nonpad_kv_seqlen", kValidLengths, {shape.batch});
  }
  return shape;
}

bool zero_if_masked(const Call& call) {
  if (call.attrs.get_int("nan_if_masked", 0) != 0) return false;
  // The causal rule alone leaves every query the first key.
  return call.has(kMask) || call.has(kValidLengths) ||
         call.attrs.get_int("left_window_size", AttentionShape::kNoBound) !=
             AttentionShape::kNoBound;
}

Result<Types> infer_attention(const Call& call) {
  for (int input : {kQuery, kKey, kValue, kPastKey, kPastValue})
    if (call.has(input)) TRY_STATUS(check_dtype(call, input, kFloats));
  if (call.has(kMask)) TRY_STATUS(check_dtype(call, kMask, kMaskTypes));
  if (call.has(kValidLengths))
    TRY_STATUS(check_dtype(call, kValidLengths, dtype_set({DType::i64})));
  TRY(const AttentionShape shape, attention_shape(call));
  const DType dtype = call.in(kQuery).dtype;
  Shape attended{shape.batch, shape.q_heads, shape.q_length, shape.v_head};
  if (shape.packed) attended = {shape.batch, shape.q_length, shape.q_heads * shape.v_head};
  return Types{{dtype, attended},
               {call.in(kKey).dtype, {shape.batch, shape.kv_heads, shape.total, shape.head}},
               {call.in(kValue).dtype, {shape.batch, shape.kv_heads, shape.total, shape.v_head}},
               {dtype, shape.scores()}};
}

Cost cost_attention(const Call& call) {
  const AttentionShape shape = *attention_shape(call);
  Cost cost = cost_move(call);
  double scores = 1;
  for (int64_t extent : shape.scores()) scores *= static_cast<double>(extent);
  cost.flops = {scores * (2.0 * static_cast<double>(shape.head + shape.v_head) + 5)};
  return cost;
}

Status reference_attention(const Call& call, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs) {
  TRY(const AttentionShape shape, attention_shape(call));
  auto past = [&](int input) {
    return call.has(input) ? read_reals(*inputs[input]) : std::vector<double>{};
  };
  const std::vector<double> q = read_reals(*inputs[kQuery]);
  const std::vector<double> keys =
      joined(shape, past(kPastKey), read_reals(*inputs[kKey]), shape.head);
  const std::vector<double> values =
      joined(shape, past(kPastValue), read_reals(*inputs[kValue]), shape.v_head);
  const Bias bias(call, shape, inputs);
  const double cap = call.attrs.get_float("softcap", 0);
  const int64_t mode = call.attrs.get_int("qk_matmul_output_mode", 0);
  const bool zero = zero_if_masked(call);
  const auto add = [&](double& score, double more) {
    // Infinities and NaN of masked keys do not count.
    score = zero && more == -kInfinity ? more : score + more;
  };
  const bool wants_scores = outputs.size() > kScores && !outputs[kScores].empty();
  const int64_t rows = shape.q_length, total = shape.total, shared = shape.q_heads / shape.kv_heads;

  std::vector<double> out(shape.batch * shape.q_heads * rows * shape.v_head);
  std::vector<double> shown(wants_scores ? element_count(shape.scores()) : 0);
  parallel_for(shape.batch * shape.q_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> scores(rows * total);
    for (int64_t plane = begin; plane < end; ++plane) {
      const int64_t image = plane / shape.q_heads, head = plane % shape.q_heads;
      const int64_t kv = image * shape.kv_heads + head / shared;
      // A head's rows in Q and in Y: one after the other, or one of each token's heads.
      const int64_t stride = shape.packed ? shape.q_heads : 1;
      const int64_t first = shape.packed ? image * rows * shape.q_heads + head : plane * rows;
      const std::vector<double> k_by_columns =
          transposed(keys.data() + kv * total * shape.head, total, shape.head);
      gemm(rows, total, shape.head, q.data() + first * shape.head, stride * shape.head,
           k_by_columns.data(), total, scores.data(), total, call.sums);
      auto show = [&](int64_t wanted) {
        if (wants_scores && mode == wanted)
          std::copy(scores.begin(), scores.end(), shown.begin() + plane * rows * total);
      };
      for (double& score : scores) score *= shape.scale;
      show(0);
      if (cap > 0)
        for (double& score : scores) score = cap * std::tanh(score / cap);
      show(1);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < total; ++column)
          add(scores[row * total + column], bias.at(image, head, row, column));
      show(2);
      for (int64_t row = 0; row < rows; ++row) softmax(scores.data() + row * total, total, zero);
      show(3);
      for (double& share : scores) share = stored(share, call.in(kValue).dtype, call.sums);
      gemm(rows, shape.v_head, total, scores.data(), total,
           values.data() + kv * total * shape.v_head, shape.v_head,
           out.data() + first * shape.v_head, stride * shape.v_head, call.sums);
    }
  });
  write_reals(outputs[kAttended], out);
  if (outputs.size() > kPresentKey && !outputs[kPresentKey].empty())
    write_reals(outputs[kPresentKey], keys);
  if (outputs.size() > kPresentValue && !outputs[kPresentValue].empty())
    write_reals(outputs[kPresentValue], values);
  if (wants_scores) write_reals(outputs[kScores], shown);
  return ok_status();
}

}  // namespace obelisk::ops
