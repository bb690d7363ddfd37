/* kernels/cpu/dialect.h — the small language that generated bodies are written in, as a core of the
 * CPU reads it.
 *
 * Included by every body; self-contained, so that a body compiles in a fraction of a second.
 * Elements are loaded into the type that arithmetic happens in (float for f16 and narrower floats)
 * and stored back with one rounding. Loops marked OBK_LANES have no dependence between iterations
 * but the named reductions. */
#ifndef OBK_CPU_DIALECT_H
#define OBK_CPU_DIALECT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "abi.h"
#include "math.h"
#include "numbers.h"
#include "table.h"

#define OBK_PRAGMA(text) _Pragma(#text)
#define OBK_LANES OBK_PRAGMA(GCC ivdep)
#define OBK_LANES_REDUCE(clause) OBK_PRAGMA(omp simd clause)
#define OBK_BLOCK 64 /* rows that share a walk over the columns when the vector runs over rows */

/* A body, its loops and what it holds between them. On a core one thread walks everything and
 * vectors are the compiler's. */
#define OBK_BODY(name) \
  extern "C" void name(const ObkTask* t, const int64_t* p, void* const* x, ObkWorker* w)
#define OBK_FOR_ROWS(r) for (int64_t r = t->r0; r < t->r1; ++r)
/* Items of a hand-written block: each is one thread's. */
#define OBK_FOR_ITEMS(r) OBK_FOR_ROWS(r)
#define OBK_FOR_GANG_ITEMS(r) OBK_FOR_ROWS(r)
#define OBK_FOR_LANES_OF(j, low, high) for (int64_t j = low; j < high; ++j)
#define OBK_FOR_LANES(j, low, high) OBK_LANES OBK_FOR_LANES_OF(j, low, high)
/* The tiles of the library that the worker points to. What stands after g a device wants
 * as constants: of attention the size, value_size, most queries of a tile, keys. */
#define OBK_GEMM_TILE(type, g) w->kernels->gemm_tile(&(g))
#define OBK_FIND_STATISTICS(type, g) obk::row_statistics<type>(g)
#define OBK_CONV_TILE(type, g) w->kernels->conv_tile(&(g))
#define OBK_DEPTHWISE_TILE(type, g) w->kernels->conv_tile(&(g))
#define OBK_ATTENTION_TILE(type, g, ...) w->kernels->attention_tile(&(g))
/* A dataflow program (schedule/dataflow.h): on cores what is given lies where all read it. */
#define OBK_GIVE_PACK(V, p, i, o) obk::store_pack<V>(p, i, o)
#define OBK_GEMM_TILE_OF(type, g, ...) OBK_GEMM_TILE(type, g)
#define OBK_GEMM_STREAMED_TILE(type, g, ...) OBK_GEMM_TILE(type, g)
#define OBK_BEGIN_WAVE()
#define OBK_ROWS(...)
#define OBK_BEGIN_ROWS()
#define OBK_GEMM_ROWS_OF(type, g, ...) OBK_GEMM_TILE(type, g)
#define OBK_PIPELINED_GEMM_BEGIN()
#define OBK_PIPELINED_GEMM_SUMS_OF(type, g, stage, other, statistics, ...) \
  (obk::row_statistics<type>(g), OBK_GEMM_TILE(type, g), 0)
#define OBK_PIPELINED_GEMM_SPLIT_K_OF(type, g, stage, plane, adds, ...) (OBK_GEMM_TILE(type, g), 0)
#define OBK_PIPELINED_GEMM_TALL_OF(type, g, stage, chains, statistics, ...) \
  (obk::row_statistics<type>(g), OBK_GEMM_TILE(type, g))
#define OBK_PIPELINED_GEMM_TALL_SPLIT_K_OF(type, g, stage, chains, plane, adds, ...) \
  (OBK_GEMM_TILE(type, g), 0)
#define OBK_PIPELINED_GEMM_TF32_OF(g, stage, ...) OBK_GEMM_TILE(kObkTf32, g)
#define OBK_PIPELINED_GEMM_TF32_SPLIT_K_OF(g, stage, plane, adds, ...) \
  (OBK_GEMM_TILE(kObkTf32, g), 0)
#define OBK_PIPELINED_GEMM_F32_OF(g, stage, ...) OBK_GEMM_TILE(kObkF32, g)
#define OBK_PIPELINED_GEMM_F32_SPLIT_K_OF(g, stage, plane, adds, ...) (OBK_GEMM_TILE(kObkF32, g), 0)
#define OBK_CONV_TILE_OF(type, g, ...) OBK_CONV_TILE(type, g)
#define OBK_STAGE(offset) ((char*)w->scratch + (offset))
#define OBK_JOIN_ANY_ONE(v) (v)
#define OBK_JOIN_SUM(v) (v)
#define OBK_JOIN_PROD(v) (v)
#define OBK_JOIN_MAX(v) (v)
#define OBK_JOIN_MIN(v) (v)
#define OBK_JOIN_OR(v) (v)
#define OBK_JOIN_AND(v) (v)
/* Rows in blocks of neighbours along the innermost row dimension, of the given extent: r is the
 * first, n how many. */
#define OBK_FOR_ROW_BLOCKS(r, n, extent) \
  for (int64_t r = t->r0, n; r < t->r1 && (n = obk::block_of(r, t->r1, extent), true); r += n)
#define OBK_FOR_BLOCK(k, n) OBK_LANES for (int64_t k = 0; k < n; ++k)
#define OBK_BLOCK_VALUES(type, name) type name[OBK_BLOCK]
#define OBK_AT(name, k) name[k]
/* Rows in vectors (codegen/vectors.h): a core stands for all threads, its batches are the second of
 * the counts. */
#define OBK_EACH(i, n) for (int i = 0; i < (n); ++i)
#define OBK_ALL_THREADS 1
#define OBK_THREAD 0
#define OBK_POINTS(device, core) (core)
#define OBK_COUNT_POINTS(t, vectors) ((int)((t)->r1 - (t)->r0) * (vectors))
#define OBK_LANES_OF(n) 1
#define OBK_LANE(n) 0
#define OBK_GROUP(n) 0
#define OBK_GROUPS(n) 1
#define OBK_PREFETCH(p, i) (void)0
#define OBK_UNITS(vectors, lanes) (((vectors) + (lanes) - 1) / (lanes))
#define OBK_JOINED(lanes, op, v) (v)
#define OBK_SHARE_ROWS(n)
#define OBK_SLICES(n) 1
#define OBK_MEET()
#define OBK_JOIN_SLICES(n, op, v)
#define OBK_COMMIT_COPIES()
#define OBK_AWAIT(n)

namespace obk {

template <int n>
static inline void load_bytes(const void* from, uint32_t* words) {
  memcpy(words, from, n);
}
template <int n>
static inline void store_bytes(void* to, const uint32_t* words) {
  memcpy(to, words, n);
}

}  // namespace obk
#include "packs.h"
namespace obk {

/* A pack that is loaded ahead of its use, into scratchpad memory, and taken from there. */
template <int V, typename T>
static inline void async_pack(char* own, const T* p, int64_t i) {
  memcpy(own, p + i, V * sizeof(T));
}
template <int V, typename T>
static inline Pack<T, V> take_pack(const char* own) {
  Pack<T, V> pack;
  memcpy(pack.words, own, V * sizeof(T));
  return pack;
}
template <int V, typename T>
static inline void keep_pack(char* own, const Pack<T, V>& pack) {
  memcpy(own, pack.words, V * sizeof(T));
}

/* Of the rows of a product's A, where its body requests them: mean and 1 / sqrt(variance +
 * epsilon). */
template <int type>
static inline void row_statistics(const ObkGemm& g) {
  if (!g.statistics) return;
  for (int64_t r = 0; r < g.m; ++r) {
    const auto x = [&](int64_t k) {
      const uint16_t bits = ((const uint16_t*)g.a)[r * g.a_row + k * g.a_col];
      return (double)(type == kObkBf16 ? widen(bf16{bits}) : widen(f16{bits}));
    };
    double mean = 0, squares = 0;
    for (int64_t k = 0; k < g.k && g.centred; ++k) mean += x(k) / (double)g.k;
    for (int64_t k = 0; k < g.k; ++k) squares += (x(k) - mean) * (x(k) - mean) / (double)g.k;
    g.statistics[2 * r] = (float)mean,
                     g.statistics[2 * r + 1] = (float)(1 / ::sqrt(squares + (double)g.epsilon));
  }
}

/* A core's tiles take statistics from the rows themselves. */
template <typename T, int V>
static inline void give_partials(float*, int64_t, bool, const float (&)[V]) {}
template <typename T>
static inline void leave_partials(const T*, float*, const ObkTask*, int64_t) {}

static inline int64_t block_of(int64_t row, int64_t end, int64_t extent) {
  const int64_t left = extent - row % extent, rest = end - row;
  const int64_t n = left < OBK_BLOCK ? left : OBK_BLOCK;
  return n < rest ? n : rest;
}

/* ---- functions: vector code for float, the C library for double ------------------------------ */
#define OBK_OWN(name, wide)                                       \
  static inline float name##_of(float a) { return obk::name(a); } \
  static inline double name##_of(double a) { return ::wide(a); }
#define OBK_LIBM(name, thin, wide)                             \
  static inline float name##_of(float a) { return ::thin(a); } \
  static inline double name##_of(double a) { return ::wide(a); }
OBK_OWN(exp, exp)
OBK_OWN(log, log)
OBK_OWN(erf, erf)
OBK_OWN(tanh, tanh)
OBK_OWN(sin, sin)
OBK_OWN(cos, cos)
OBK_LIBM(floor, floorf, floor)
OBK_LIBM(ceil, ceilf, ceil)
OBK_LIBM(round, rintf, rint)
OBK_LIBM(trunc, truncf, trunc)
OBK_LIBM(sqrt, sqrtf, sqrt)
OBK_LIBM(log1p, log1pf, log1p)
OBK_LIBM(expm1, expm1f, expm1)
OBK_LIBM(tan, tanf, tan)
OBK_LIBM(asin, asinf, asin)
OBK_LIBM(acos, acosf, acos)
OBK_LIBM(atan, atanf, atan)
OBK_LIBM(sinh, sinhf, sinh)
OBK_LIBM(cosh, coshf, cosh)
OBK_LIBM(asinh, asinhf, asinh)
OBK_LIBM(acosh, acoshf, acosh)
OBK_LIBM(atanh, atanhf, atanh) static inline float sigmoid_of(float a) { return obk::sigmoid(a); }
static inline float one_plus_erf(float a) { return 1.0f + erf_of(a); }
static inline float exp_approx(float a) { return exp_of(a); }
struct Divisor {
  float of;
};
static inline Divisor divisor(float of) { return {of}; }
static inline float div_approx(float a, const Divisor& by) { return a / by.of; }
static inline double sigmoid_of(double a) { return 1.0 / (1.0 + ::exp(-a)); }
static inline float pow_of(float a, float b) { return ::powf(a, b); }
static inline double pow_of(double a, double b) { return ::pow(a, b); }
static inline float fmod_of(float a, float b) { return ::fmodf(a, b); }
static inline double fmod_of(double a, double b) { return ::fmod(a, b); }
static inline float atan2_of(float a, float b) { return ::atan2f(a, b); }
static inline double atan2_of(double a, double b) { return ::atan2(a, b); }

#pragma omp declare reduction(                                                                    \
        obk_max : float, double, int64_t, int32_t, int16_t, int8_t, uint64_t, uint32_t, uint16_t, \
            uint8_t : omp_out = obk::maximum(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(                                                                    \
        obk_min : float, double, int64_t, int32_t, int16_t, int8_t, uint64_t, uint32_t, uint16_t, \
            uint8_t : omp_out = obk::minimum(omp_out, omp_in)) initializer(omp_priv = omp_orig)

}  // namespace obk

#endif
