/* kernels/common/convert.h — BitCast, casts to powers of two, mel filters: elements one by one.
 *
 * Written in the dialect (load, store, types), which is included before. Numbers are double, as in
 * the reference: which side of an edge a filter's corner falls on decides its shape. */
#ifndef OBK_CONVERT_H
#define OBK_CONVERT_H

#include "blocks.h"

namespace obk {

/* T: a unit of the copy. */
template <typename T>
static inline void copy_units(const int64_t* params, void* const* operands, int64_t item) {
  const ObkRanges& p = *(const ObkRanges*)params;
  const T* x = (const T*)operands[0];
  T* y = (T*)operands[1];
  const int64_t end = p.count * (item + 1) / p.ranges;
  for (int64_t i = p.count * item / p.ranges; i < end; ++i) y[i] = x[i];
}

/* The power of two that a number is rounded to; what is not positive becomes the smallest one. */
static inline float power_near(double value, int64_t rounding, bool saturate) {
  const double smallest = 0x1p-127, largest = 0x1p127;
  if (value != value) return NAN;
  if (value <= smallest) return (float)smallest;
  if (value > 0x1p1023) return saturate ? (float)largest : NAN;
  int exponent = 0;
  const double mantissa = ::frexp(value, &exponent); /* in [0.5, 1) */
  const bool up = rounding == OBK_UP ? mantissa > 0.5 : rounding == OBK_NEAREST && mantissa >= 0.75;
  const double power = ::ldexp(0.5, exponent + (up ? 1 : 0));
  return power <= largest ? (float)power : saturate ? (float)largest : NAN;
}

template <typename T>
static inline void cast_to_powers(const int64_t* params, void* const* operands, int64_t item) {
  const ObkPowers& p = *(const ObkPowers*)params;
  const T* x = (const T*)operands[0];
  f8e8m0* y = (f8e8m0*)operands[1];
  const int64_t end = p.count * (item + 1) / p.ranges;
  for (int64_t i = p.count * item / p.ranges; i < end; ++i) {
    store(y, i, power_near((double)load(x, i), p.rounding, p.saturate != 0));
  }
}

/* The row of the spectrum at which a filter's corner lies; corners are evenly spaced on the mel
 * scale. */
static inline int64_t mel_edge(int64_t corner, double low, double step, int64_t length,
                               double rate) {
  const double hertz = 700 * (::pow(10.0, ((double)corner * step + low) / 2595) - 1);
  return (int64_t)floor_of((double)(length + 1) * hertz / rate);
}

/* Out, Rate, Edge: types of the output, the sample rate, and the two ends of the scale. */
template <typename Out, typename Rate, typename Edge>
static inline void mel_filter(const int64_t* params, void* const* operands, int64_t item) {
  const ObkMel& p = *(const ObkMel*)params;
  const double rate = (double)load((const Rate*)operands[2], 0);
  const double low = 2595 * ::log10(1 + (double)load((const Edge*)operands[3], 0) / 700);
  const double high = 2595 * ::log10(1 + (double)load((const Edge*)operands[4], 0) / 700);
  const double step = (high - low) / (double)(p.bins + 2);
  const int64_t left = mel_edge(item, low, step, p.length, rate),
                center = mel_edge(item + 1, low, step, p.length, rate),
                right = mel_edge(item + 2, low, step, p.length, rate);
  Out* to = (Out*)operands[5];
  for (int64_t row = 0; row < p.rows; ++row) {
    double value = 0;
    if (row == center)
      value = 1;
    else if (row >= left && row < center)
      value = (double)(row - left) / (double)(center - left);
    else if (row > center && row < right)
      value = (double)(right - row) / (double)(right - center);
    typedef decltype(load(to, 0)) Value;
    store(to, row * p.bins + item, (Value)value);
  }
}

}  // namespace obk

#endif
