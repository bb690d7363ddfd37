#include "kernels/cpu/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace {

/// Distance in units of the last place of the float nearest to `want`; 1e9 where one is special and
/// the other is not.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  const float rounded = static_cast<float>(want);
  if (std::isinf(rounded) || std::isinf(got)) return got == rounded ? 0 : 1e9;
  const int exponent = want == 0 ? -126 : std::max(std::ilogb(want), -126);
  return std::abs(got - want) / std::ldexp(1.0, exponent - 23);
}

using Float = float (*)(float);
using Double = double (*)(double);

/// Every 4099th float of all 2^32, both signs, all exponents, infinities and NaN among them.
void sweep(const char* name, Float function, Double exact, double limit) {
  double worst = 0;
  float at = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    const float x = obk::from_bits(static_cast<uint32_t>(bits));
    const double error = ulps(function(x), exact(x));
    if (error > worst) worst = error, at = x;
  }
  EXPECT_LE(worst, limit) << name << "(" << at << ") = " << function(at) << ", exactly "
                          << exact(at);
}

double exact_sigmoid(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

// The limits are the figures that the card of math.h states.
TEST(Math, ErrorsAreAsStated) {
  sweep("exp", obk::exp, std::exp, 1.0);
  sweep("exp2", obk::exp2, std::exp2, 1.2);
  sweep("log", obk::log, std::log, 0.9);
  sweep("erf", obk::erf, std::erf, 2.3);
  sweep("tanh", obk::tanh, std::tanh, 1.3);
  sweep("sigmoid", obk::sigmoid, exact_sigmoid, 2.4);
  sweep("sin", obk::sin, std::sin, 1.5);
  sweep("cos", obk::cos, std::cos, 1.5);
}

TEST(Math, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (Float f :
       {obk::exp, obk::exp2, obk::log, obk::erf, obk::tanh, obk::sigmoid, obk::sin, obk::cos})
    EXPECT_TRUE(std::isnan(f(nan)));
  EXPECT_EQ(obk::exp(-inf), 0.0f);
  EXPECT_EQ(obk::exp(inf), inf);
  EXPECT_EQ(obk::exp(0.0f), 1.0f);
  EXPECT_EQ(obk::exp2(-inf), 0.0f);
  EXPECT_EQ(obk::exp2(inf), inf);
  for (int n = -149; n < 128; ++n) EXPECT_EQ(obk::exp2(static_cast<float>(n)), std::ldexp(1.0f, n));
  EXPECT_EQ(obk::log(0.0f), -inf);
  EXPECT_EQ(obk::log(-0.0f), -inf);
  EXPECT_EQ(obk::log(inf), inf);
  EXPECT_EQ(obk::log(1.0f), 0.0f);
  EXPECT_TRUE(std::isnan(obk::log(-1.0f)));
  EXPECT_TRUE(std::isnan(obk::log(-inf)));
  EXPECT_TRUE(std::isnan(obk::log(-1e-45f)));
  EXPECT_EQ(obk::erf(inf), 1.0f);
  EXPECT_EQ(obk::erf(-inf), -1.0f);
  EXPECT_TRUE(std::signbit(obk::erf(-0.0f)));
  EXPECT_EQ(obk::tanh(inf), 1.0f);
  EXPECT_EQ(obk::tanh(-inf), -1.0f);
  EXPECT_TRUE(std::signbit(obk::tanh(-0.0f)));
  EXPECT_EQ(obk::sigmoid(inf), 1.0f);
  EXPECT_EQ(obk::sigmoid(-inf), 0.0f);
  EXPECT_EQ(obk::sigmoid(0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(obk::sin(inf)));
  EXPECT_TRUE(std::isnan(obk::cos(-inf)));
  EXPECT_EQ(obk::sin(1e30f), std::sin(1e30f));
}

TEST(Math, LoopsGiveTheBitsOfSingleCalls) {
  // A body's main loop is vector code and its tail is not; a value must not depend on where it
  // stands.
  std::vector<float> x(1003), y(1003);
  for (size_t i = 0; i < x.size(); ++i) x[i] = (static_cast<float>(i) - 500) * 0.037f;
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = obk::erf(x[i]) + obk::tanh(x[i]) * obk::sigmoid(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float alone = x[i];
    const float want = obk::erf(alone) + obk::tanh(alone) * obk::sigmoid(alone);
    EXPECT_EQ(y[i], want) << x[i];
  }
}

}  // namespace
