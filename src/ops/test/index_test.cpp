// What index arithmetic is simplified to has the value of what was written, at every coordinate.
#include <gtest/gtest.h>

#include <random>

#include "ops/loop.h"
#include "ops/scalar_values.h"

namespace obelisk::ops {
namespace {

constexpr int64_t kExtents[] = {4, 6, 10};

int64_t value_at(const Exprs& exprs, ExprId id, const int64_t (&at)[3]) {
  const Expr& expr = exprs[id];
  if (expr.scalar == Scalar::kConst) return expr.integer;
  if (expr.scalar == Scalar::kCoord) return at[expr.slot];
  return binary_int(expr.scalar, value_at(exprs, expr.args[0], at),
                    value_at(exprs, expr.args[1], at), DType::i64);
}

/// An expression as it is simplified, and its value at each of the coordinates as it was written.
struct Written {
  ExprId simplified;
  std::vector<int64_t> values;
};

template <typename Op>
Written combined(ExprId simplified, const Written& a, Op op) {
  Written out{simplified, a.values};
  for (int64_t& value : out.values) value = op(value);
  return out;
}

class Writer {
 public:
  explicit Writer(uint64_t seed) : random_(seed) {
    for (int slot = 0; slot < 3; ++slot) {
      Written coord{exprs.coord(slot, kExtents[slot]), {}};
      for_each([&](const int64_t(&at)[3]) { coord.values.push_back(at[slot]); });
      made_.push_back(std::move(coord));
    }
  }
  /// Sums of multiples, quotients and remainders: what moves make of coordinates.
  void write(int count) {
    for (int k = 0; k < count; ++k) {
      const Written a = any(), b = any();
      const int64_t by = std::array{2, 3, 4, 5, 6, 10, 12, 24, 40, 60}[random_() % 10];
      switch (random_() % 8) {
        case 0:
        case 1:
          made_.push_back(
              combined(exprs.div(a.simplified, by), a, [&](int64_t x) { return x / by; }));
          break;
        case 2:
        case 3:
          made_.push_back(combined(exprs.mod(a.simplified, by), a, [&](int64_t x) {
            return binary_int(Scalar::kMod, x, by, DType::i64);
          }));
          break;
        case 4:
          made_.push_back(
              combined(exprs.mul(a.simplified, by), a, [&](int64_t x) { return x * by; }));
          break;
        case 5:
          made_.push_back(sum(a, b, -1, exprs.sub(a.simplified, b.simplified)));
          break;
        default:
          made_.push_back(sum(a, b, 1, exprs.add(a.simplified, b.simplified)));
      }
    }
  }
  template <typename Do>
  static void for_each(Do what) {
    for (int64_t i = 0; i < kExtents[0]; ++i)
      for (int64_t j = 0; j < kExtents[1]; ++j)
        for (int64_t k = 0; k < kExtents[2]; ++k) what({i, j, k});
  }
  const std::vector<Written>& made() const { return made_; }
  Exprs exprs;

 private:
  Written any() { return made_[random_() % made_.size()]; }
  static Written sum(const Written& a, const Written& b, int64_t scale, ExprId simplified) {
    Written out{simplified, a.values};
    for (size_t k = 0; k < out.values.size(); ++k) out.values[k] += scale * b.values[k];
    return out;
  }
  std::mt19937_64 random_;
  std::vector<Written> made_;
};

TEST(Index, SimplifiedItHasTheSameValues) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Writer writer(seed);
    writer.write(16);
    for (const Written& one : writer.made()) {
      std::vector<int64_t> values;
      Writer::for_each([&](const int64_t(&at)[3]) {
        values.push_back(value_at(writer.exprs, one.simplified, at));
      });
      ASSERT_EQ(values, one.values) << "seed " << seed;
      const auto range = writer.exprs.range(one.simplified);
      if (!range) continue;
      const auto [least, most] = std::minmax_element(values.begin(), values.end());
      EXPECT_LE(range->low, *least) << "seed " << seed;
      EXPECT_GE(range->high, *most) << "seed " << seed;
    }
  }
}

// An image [4, 6, 10] as one run, and as groups of another length: back to its own coordinates.
TEST(Index, AReshapeAndAReshapeBackAreNone) {
  Exprs e;
  const ExprId i = e.coord(0, 4), j = e.coord(1, 6), k = e.coord(2, 10);
  const ExprId run = e.add(e.add(e.mul(i, int64_t{60}), e.mul(j, int64_t{10})), k);
  const ExprId group = e.div(run, int64_t{120}), inside = e.mod(run, int64_t{120});
  EXPECT_EQ(group, e.div(i, int64_t{2}));
  EXPECT_EQ(e.add(e.mul(group, int64_t{2}), e.div(inside, int64_t{60})), i);
  EXPECT_EQ(e.mod(e.div(inside, int64_t{10}), int64_t{6}), j);
  EXPECT_EQ(e.mod(inside, int64_t{10}), k);
}

}  // namespace
}  // namespace obelisk::ops
