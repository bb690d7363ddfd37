#include "base/base.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace obelisk {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// The formats again, from their definitions: fields of the code, then 2^e * (1 + m / 2^M).
struct Spec {
  DType dtype;
  int exponent, mantissa, bias;
  bool infinity;        // the highest exponent is special
  bool all_ones_nan;    // only the highest code is special
  bool minus_zero_nan;  // the code of -0 is special
};
const std::vector<Spec> kSpecs = {
    {DType::f16, 5, 10, 15, true, false, false},
    {DType::bf16, 8, 7, 127, true, false, false},
    {DType::f8e4m3fn, 4, 3, 7, false, true, false},
    {DType::f8e4m3fnuz, 4, 3, 8, false, false, true},
    {DType::f8e5m2, 5, 2, 15, true, false, false},
    {DType::f8e5m2fnuz, 5, 2, 16, false, false, true},
    {DType::f4e2m1, 2, 1, 1, false, false, false},
};

double slow_decode(const Spec& spec, int code) {
  const int fields = spec.exponent + spec.mantissa;
  const int sign = code >> fields, exponent = (code >> spec.mantissa) % (1 << spec.exponent);
  const int mantissa = code % (1 << spec.mantissa);
  const int highest = (1 << spec.exponent) - 1;
  if (spec.minus_zero_nan && sign && !exponent && !mantissa) return kNan;
  if (spec.infinity && exponent == highest) return mantissa ? kNan : sign ? -kInf : kInf;
  if (spec.all_ones_nan && exponent == highest && mantissa == (1 << spec.mantissa) - 1) return kNan;
  const double fraction = mantissa * std::pow(2.0, -spec.mantissa);
  const double value = exponent ? std::pow(2.0, exponent - spec.bias) * (1 + fraction)
                                : std::pow(2.0, 1 - spec.bias) * fraction;
  return sign ? -value : value;
}

int code_count(const Spec& spec) { return 1 << (1 + spec.exponent + spec.mantissa); }

int code_of(DType dtype, double value, bool saturating = false) {
  uint8_t raw[2] = {0, 0};
  if (saturating) {
    set_double_saturating(raw, dtype, 0, value);
  } else {
    set_double(raw, dtype, 0, value);
  }
  return raw[0] | raw[1] << 8;
}

double value_of(DType dtype, int code) {
  const uint8_t raw[2] = {static_cast<uint8_t>(code), static_cast<uint8_t>(code >> 8)};
  return get_double(raw, dtype, 0);
}

TEST(Dtype, NamesRoundTrip) {
  for (int k = 0; k < kDTypes; ++k) {
    const DType dtype = static_cast<DType>(k);
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_FALSE(parse_dtype("f33").has_value());
  EXPECT_EQ(byte_size(DType::i4, 3), 2);
  EXPECT_EQ(byte_size(DType::u2, 5), 2);
  EXPECT_EQ(byte_size(DType::i4, 0), 0);
  EXPECT_EQ(byte_size(DType::f64, 3), 24);
}

TEST(Dtype, EveryNarrowFloatPatternDecodesAndRoundTrips) {
  for (const Spec& spec : kSpecs) {
    for (int code = 0; code < code_count(spec); ++code) {
      const double want = slow_decode(spec, code), got = value_of(spec.dtype, code);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << to_string(spec.dtype) << " " << code;
        ASSERT_TRUE(std::isnan(value_of(spec.dtype, code_of(spec.dtype, got))));
      } else {
        ASSERT_EQ(got, want) << to_string(spec.dtype) << " " << code;
        ASSERT_EQ(std::signbit(got), std::signbit(want));
        ASSERT_EQ(code_of(spec.dtype, got), code) << to_string(spec.dtype);
      }
    }
  }
}

// Between two neighbours the nearer one is taken, and of a tie the one with the even code.
TEST(Dtype, RoundsToNearestEven) {
  for (const Spec& spec : kSpecs) {
    const int positive = code_count(spec) / 2;
    for (int code = 0; code + 1 < positive; ++code) {
      const double low = slow_decode(spec, code), high = slow_decode(spec, code + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = low / 2 + high / 2;
      const int even = code % 2 ? code + 1 : code;
      ASSERT_EQ(code_of(spec.dtype, middle), even) << to_string(spec.dtype) << " " << middle;
      ASSERT_EQ(code_of(spec.dtype, std::nextafter(middle, 0)), code);
      ASSERT_EQ(code_of(spec.dtype, std::nextafter(middle, kInf)), code + 1);
      const bool no_minus_zero = spec.minus_zero_nan && even == 0;
      ASSERT_EQ(code_of(spec.dtype, -middle), no_minus_zero ? 0 : even + positive);
    }
  }
}

TEST(Dtype, OverflowInfinityAndNan) {
  // Half way from the largest value to the next power rounds to even: to the largest where it is
  // even, beyond it otherwise.
  EXPECT_EQ(code_of(DType::f16, 65519), 0x7bff);
  EXPECT_EQ(code_of(DType::f16, 65520), 0x7c00);
  EXPECT_EQ(code_of(DType::f16, -kInf), 0xfc00);
  EXPECT_EQ(code_of(DType::f16, kNan), 0x7e00);
  EXPECT_EQ(code_of(DType::bf16, 1e39), 0x7f80);
  EXPECT_EQ(code_of(DType::bf16, kNan), 0x7fc0);
  EXPECT_EQ(code_of(DType::f8e4m3fn, 464), 0x7e);
  EXPECT_EQ(code_of(DType::f8e4m3fn, 465), 0x7f);
  EXPECT_EQ(code_of(DType::f8e4m3fn, -kInf), 0xff);
  EXPECT_EQ(code_of(DType::f8e4m3fn, -0.0), 0x80);
  EXPECT_EQ(code_of(DType::f8e4m3fnuz, 247), 0x7f);
  EXPECT_EQ(code_of(DType::f8e4m3fnuz, 248), 0x80);
  EXPECT_EQ(code_of(DType::f8e4m3fnuz, -0.0), 0);
  EXPECT_EQ(code_of(DType::f8e4m3fnuz, kNan), 0x80);
  EXPECT_EQ(code_of(DType::f8e5m2, 61439), 0x7b);
  EXPECT_EQ(code_of(DType::f8e5m2, 61440), 0x7c);
  EXPECT_EQ(code_of(DType::f8e5m2fnuz, 61440), 0x80);
  EXPECT_EQ(code_of(DType::f4e2m1, 7), 7);
  EXPECT_EQ(code_of(DType::f4e2m1, -kInf), 15);

  EXPECT_EQ(code_of(DType::f8e4m3fn, 1e9, true), 0x7e);
  EXPECT_EQ(code_of(DType::f8e4m3fn, -kInf, true), 0xfe);
  EXPECT_EQ(code_of(DType::f8e5m2, kInf, true), 0x7b);
  EXPECT_EQ(code_of(DType::f8e5m2fnuz, -1e9, true), 0xff);
  EXPECT_EQ(code_of(DType::f8e4m3fn, kNan, true), 0x7f);
  EXPECT_EQ(code_of(DType::f8e4m3fnuz, kNan, true), 0x80);
}

TEST(Dtype, BareExponent) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(value_of(DType::f8e8m0, code), std::ldexp(1.0, code - 127));
    EXPECT_EQ(code_of(DType::f8e8m0, std::ldexp(1.0, code - 127)), code);
  }
  EXPECT_TRUE(std::isnan(value_of(DType::f8e8m0, 255)));
  EXPECT_EQ(code_of(DType::f8e8m0, 1.25), 127);
  EXPECT_EQ(code_of(DType::f8e8m0, 1.5), 128);
  EXPECT_EQ(code_of(DType::f8e8m0, 3.0), 129);
  EXPECT_EQ(code_of(DType::f8e8m0, 0.0), 0);
  EXPECT_EQ(code_of(DType::f8e8m0, -1.0), 255);
  EXPECT_EQ(code_of(DType::f8e8m0, kInf), 255);
  EXPECT_EQ(code_of(DType::f8e8m0, kInf, true), 254);
}

TEST(Dtype, FloatHalvesAgreeWithTheGeneralConversion) {
  std::mt19937 random(7);
  for (int k = 0; k < 200000; ++k) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ASSERT_EQ(f32_to_bf16(value), code_of(DType::bf16, value)) << value;
    ASSERT_EQ(f32_to_f16(value), code_of(DType::f16, value)) << value;
  }
  for (int code = 0; code < 65536; ++code) {
    const double want = slow_decode(kSpecs[0], code);
    const float got = f16_to_f32(static_cast<uint16_t>(code));
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << code;
    ASSERT_EQ(std::signbit(got), (code >> 15) != 0);
  }
}

// Arrays, many elements at once, against one by one: every code, every place where rounding turns,
// NaN of any payload anywhere, any length, any address.
TEST(Dtype, ArraysConvertAsTheirElementsDo) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 65536; ++high)  // bf16's neighbourhoods: ties, and beside them
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  for (uint32_t code = 0; code < 0x7c00; ++code) {  // halfway from one f16 to the next
    const float here = f16_to_f32(static_cast<uint16_t>(code));
    const float next = code == 0x7bff ? 65536.0f : f16_to_f32(static_cast<uint16_t>(code + 1));
    const uint32_t half = std::bit_cast<uint32_t>((here + next) / 2);
    for (const uint32_t bits : {half - 1, half, half + 1})
      for (const uint32_t sign : {0u, 0x80000000u})
        values.push_back(std::bit_cast<float>(sign | bits));
  }
  std::mt19937_64 random(3);
  for (int k = 0; k < 100003; ++k)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (int k = 0; k < 5; ++k)  // few NaN, so that runs of many are taken
    for (int j = 0; j < 300; ++j)
      values.push_back(j % 97 == 90 + k ? std::bit_cast<float>(0x7f800001u + k)
                                        : static_cast<float>(j) * 0.37f);
  std::vector<uint16_t> codes;
  for (int stride : {1, 4097})  // neighbours alike, and not
    for (int k = 0; k < 65536; ++k) codes.push_back(static_cast<uint16_t>(k * stride));
  const auto n = static_cast<int64_t>(values.size()), m = static_cast<int64_t>(codes.size());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto down = [&](float x) { return dtype == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x); };
    const auto up = [&](uint16_t x) {
      return dtype == DType::f16 ? f16_to_f32(x) : bf16_to_f32(x);
    };
    for (const int64_t skip : {int64_t{0}, int64_t{1}, int64_t{7}}) {
      std::vector<char> raw(static_cast<size_t>(n) * 2 + 1);  // an odd address
      narrow(dtype, values.data() + skip, raw.data() + 1, n - skip);
      for (int64_t k = 0; k < n - skip; ++k) {
        uint16_t got;
        std::memcpy(&got, raw.data() + 1 + k * 2, 2);
        ASSERT_EQ(got, down(values[k + skip])) << to_string(dtype) << " " << k;
      }
      std::vector<char> of(static_cast<size_t>(m) * 2 + 1);
      std::memcpy(of.data() + 1, codes.data(), static_cast<size_t>(m) * 2);
      std::vector<float> wide(static_cast<size_t>(m));
      widen(dtype, of.data() + 1 + skip * 2, wide.data(), m - skip);
      for (int64_t k = 0; k < m - skip; ++k)
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[k]), std::bit_cast<uint32_t>(up(codes[k + skip])))
            << to_string(dtype) << " " << codes[k + skip];
    }
    for (int64_t count = 0; count < 40; ++count) {  // and nothing is written beyond
      std::vector<uint16_t> few(41, 0xabcd);
      narrow(dtype, values.data() + 90, few.data(), count);
      for (int64_t k = 0; k < 41; ++k)
        ASSERT_EQ(few[k], k < count ? down(values[k + 90]) : 0xabcd) << count;
      std::vector<float> wide(41, -5.0f);
      widen(dtype, codes.data() + 900, wide.data(), count);
      for (int64_t k = 0; k < 41; ++k)
        ASSERT_EQ(wide[k], k < count ? up(codes[k + 900]) : -5.0f) << count;
    }
  }
  std::vector<float> same(values.size());
  widen(DType::f32, values.data(), same.data(), n);
  EXPECT_EQ(std::memcmp(same.data(), values.data(), values.size() * 4), 0);
  std::fill(same.begin(), same.end(), 0.0f);
  narrow(DType::f32, values.data(), same.data(), n);
  EXPECT_EQ(std::memcmp(same.data(), values.data(), values.size() * 4), 0);
}

TEST(Dtype, SubByteElementsArePackedLowBitsFirst) {
  uint8_t raw[2] = {0, 0};
  for (int k = 0; k < 4; ++k) set_int(raw, DType::i4, k, k - 2);
  EXPECT_EQ(raw[0], 0xfe);
  EXPECT_EQ(raw[1], 0x10);
  for (int k = 0; k < 4; ++k) EXPECT_EQ(get_int(raw, DType::i4, k), k - 2);
  for (int k = 0; k < 8; ++k) set_int(raw, DType::u2, k, k & 3);
  EXPECT_EQ(raw[0], 0xe4);
  EXPECT_EQ(get_int(raw, DType::i2, 3), -1);
  EXPECT_EQ(get_int(raw, DType::i2, 2), -2);
  set_double(raw, DType::f4e2m1, 1, -3.0);
  EXPECT_EQ(raw[0], 0xd4);
  EXPECT_EQ(get_double(raw, DType::f4e2m1, 1), -3.0);
}

TEST(Dtype, IntegersWrapAndDoNotTrap) {
  uint8_t raw[8] = {};
  set_int(raw, DType::u8, 0, 257);
  EXPECT_EQ(get_int(raw, DType::u8, 0), 1);
  set_int(raw, DType::i8, 0, 200);
  EXPECT_EQ(get_int(raw, DType::i8, 0), -56);
  set_double(raw, DType::i32, 0, -2.9);
  EXPECT_EQ(get_int(raw, DType::i32, 0), -2);
  for (double value : {kNan, kInf, -kInf, 1e300}) set_double(raw, DType::i32, 0, value);
  set_double(raw, DType::u64, 0, 0x1p63 + 4096);
  EXPECT_EQ(get_double(raw, DType::u64, 0), 0x1p63 + 4096);
  set_double(raw, DType::b1, 0, 0.5);
  EXPECT_EQ(get_int(raw, DType::b1, 0), 1);
  // One rounding from a 64-bit integer to a narrow float: 2^62 + 2^54 is a tie for bf16, one more
  // is not, though a double cannot tell them apart.
  const int64_t tie = (int64_t{1} << 62) + (int64_t{1} << 54);
  set_int(raw, DType::bf16, 0, tie);
  EXPECT_EQ(get_double(raw, DType::bf16, 0), 0x1p62);
  set_int(raw, DType::bf16, 0, tie + 1);
  EXPECT_EQ(get_double(raw, DType::bf16, 0), 0x1p62 + 0x1p55);
}

TEST(Dtype, MisalignedReads) {
  alignas(8) uint8_t raw[24] = {};
  set_double(raw + 1, DType::f64, 0, 1.25);
  set_double(raw + 1, DType::f32, 3, -7.5);
  EXPECT_EQ(get_double(raw + 1, DType::f64, 0), 1.25);
  EXPECT_EQ(get_double(raw + 1, DType::f32, 3), -7.5);
}

}  // namespace
}  // namespace obelisk
