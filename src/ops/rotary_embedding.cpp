// RotaryEmbedding: with angle a of its position, a pair (x, y) becomes (cos a x - sin a y, sin a x
// + cos a y). Pairs are neighbours (interleaved) or lie half of the rotated part apart.
#include <algorithm>

#include "ops/arrays.h"
#include "ops/attention.h"
#include "ops/dtype_set.h"
#include "ops/moves.h"

namespace obelisk::ops {
namespace {

constexpr int kX = 0, kCos = 1, kSin = 2, kPositions = 3;

}  // namespace

Result<RotaryShape> rotary_shape(const Call& call) {
  RotaryShape rotary{};
  const Shape& x = call.in(kX).shape;
  rotary.packed = x.size() == 3;
  if (x.size() == 4) {
    rotary.batch = x[0];
    rotary.heads = x[1];
    rotary.length = x[2];
    rotary.head = x[3];
  } else if (rotary.packed) {
    rotary.batch = x[0];
    rotary.length = x[1];
    rotary.heads = call.attrs.get_int("num_heads", 0);
    if (rotary.heads < 1 || rotary.heads > std::max<int64_t>(x[2], 1) || x[2] % rotary.heads != 0) {
      return bad_call(call,
                      fmt::format("an input {} with num_heads = {}", to_string(x), rotary.heads),
                      "set num_heads to a divisor of the last extent");
    }
    rotary.head = x[2] / rotary.heads;
  } else {
    return bad_call(call, fmt::format("an input {}", to_string(x)),
                    "[batch, heads, length, head] or [batch, length, heads * head]");
  }
  rotary.interleaved = call.attrs.get_int("interleaved", 0) != 0;
  rotary.rotated = call.attrs.get_int("rotary_embedding_dim", 0);
  if (rotary.rotated == 0) rotary.rotated = rotary.head;
  if (rotary.rotated < 0 || rotary.rotated > rotary.head || rotary.rotated % 2 != 0) {
    return bad_call(
        call, fmt::format("rotary_embedding_dim {} of a head of {}", rotary.rotated, rotary.head),
        "an even number of at most the head's size");
  }
  const int64_t half = rotary.rotated / 2;
  for (int input : {kCos, kSin}) {
    const Shape& cache = call.in(input).shape;
    const bool fits = call.has(kPositions) ? cache.size() == 2 && cache[1] == half
                                           : cache == Shape{rotary.batch, rotary.length, half};
    if (!fits || cache != call.in(kCos).shape) {
      return bad_call(
          call,
          fmt::format("{} is {} for a rotary dimension of {}",
                      input == kCos ? "cos_cache" : "sin_cache", to_string(cache), rotary.rotated),
          call.has(kPositions) ? "[positions, half]" : "[batch, length, half]");
    }
  }
  if (call.has(kPositions) && call.in(kPositions).shape != Shape{rotary.batch, rotary.length}) {
    return bad_call(
        call, fmt::format("position_ids {}, wanted [{},{}]", to_string(call.in(kPositions).shape),
                          rotary.batch, rotary.length));
  }
  return rotary;
}

Result<Types> infer_rotary_embedding(const Call& call) {
  for (int input : {kX, kCos, kSin}) TRY_STATUS(check_dtype(call, input, kFloats));
  if (call.has(kPositions)) TRY_STATUS(check_dtype(call, kPositions, kIndices));
  TRY([[maybe_unused]] const RotaryShape rotary, rotary_shape(call));
  return Types{call.in(kX)};
}

std::optional<Loop> loop_rotary_embedding(const Call& call, int) {
  const RotaryShape rotary = *rotary_shape(call);
  const DType dtype = call.in(kX).dtype;
  LoopStart start = start_loop(call.in(kX).shape);
  Exprs& exprs = start.loop.exprs;
  const auto& coords = start.coords;
  const ExprId image = coords[0], token = rotary.packed ? coords[1] : coords[2];
  const ExprId head = rotary.packed ? exprs.div(coords[2], rotary.head) : coords[1];
  const ExprId at = rotary.packed ? exprs.mod(coords[2], rotary.head) : coords[3];
  auto element = [&](ExprId place, ExprId guard) {
    std::vector<ExprId> where{image, head, token, place};
    if (rotary.packed) where = {image, token, exprs.add(exprs.mul(head, rotary.head), place)};
    return exprs.load(kX, dtype, std::move(where), guard,
                      guard == kNoExpr ? kNoExpr : zero_of(exprs, dtype));
  };
  const int64_t half = rotary.rotated / 2;
  ExprId turns = exprs.lt(at, exprs.integer(rotary.rotated));
  if (exprs[turns].scalar == Scalar::kConst && exprs[turns].integer != 0) turns = kNoExpr;
  // Which half of its pair an element is, where the other one lies, and which angle they share.
  const ExprId first = rotary.interleaved ? exprs.eq(exprs.mod(at, int64_t{2}), exprs.integer(0))
                                          : exprs.lt(at, exprs.integer(half));
  const int64_t distance = rotary.interleaved ? 1 : half;
  const ExprId partner = exprs.select(first, exprs.add(at, distance), exprs.add(at, -distance));
  const ExprId angle = rotary.interleaved ? exprs.div(at, int64_t{2})
                                          : exprs.select(first, at, exprs.add(at, -half));
  auto cached = [&](int input) {
    const DType type = call.in(input).dtype;
    std::vector<ExprId> where{image, token, angle};
    if (call.has(kPositions)) {
      ExprId position = exprs.load(kPositions, call.in(kPositions).dtype, {image, token});
      position = wrapped_index(exprs, exprs.cast(position, DType::i64), call.in(input).shape[0]);
      where = {position, angle};
    }
    const ExprId zero = turns == kNoExpr ? kNoExpr : zero_of(exprs, type);
    return exprs.cast(exprs.load(input, type, std::move(where), turns, zero), compute_type(dtype));
  };
  const ExprId own = element(at, kNoExpr), cosine = cached(kCos), sine = cached(kSin);
  const ExprId other = exprs.mul(sine, element(partner, turns));
  const ExprId rotated = exprs.add(exprs.mul(cosine, own),
                                   exprs.select(first, exprs.unary(Scalar::kNeg, other), other));
  start.loop.body = turns == kNoExpr ? rotated : exprs.select(turns, rotated, own);
  return std::move(start.loop);
}

Status reference_rotary_embedding(const Call& call, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs) {
  TRY(const RotaryShape rotary, rotary_shape(call));
  const std::vector<double> x = read_reals(*inputs[kX]);
  const std::vector<double> cosines = read_reals(*inputs[kCos]), sines = read_reals(*inputs[kSin]);
  const std::vector<int64_t> positions =
      call.has(kPositions) ? read_ints(*inputs[kPositions]) : std::vector<int64_t>{};
  const int64_t half = rotary.rotated / 2;
  std::vector<double> out = x;
  for (int64_t image = 0; image < rotary.batch; ++image)
    for (int64_t token = 0; token < rotary.length; ++token) {
      int64_t row = image * rotary.length + token;
      if (!positions.empty()) row = wrapped_index(positions[row], call.in(kCos).shape[0]);
      for (int64_t head = 0; head < rotary.heads; ++head) {
        const int64_t place = rotary.packed ? (image * rotary.length + token) * rotary.heads + head
                                            : (image * rotary.heads + head) * rotary.length + token;
        const double* from = x.data() + place * rotary.head;
        double* to = out.data() + place * rotary.head;
        for (int64_t angle = 0; angle < half; ++angle) {
          const int64_t a = rotary.interleaved ? 2 * angle : angle;
          const int64_t b = rotary.interleaved ? a + 1 : angle + half;
          const double cosine = cosines[row * half + angle], sine = sines[row * half + angle];
          to[a] = cosine * from[a] - sine * from[b];
          to[b] = sine * from[a] + cosine * from[b];
        }
      }
    }
  write_reals(outputs[0], out);
  return ok_status();
}

}  // namespace obelisk::ops
