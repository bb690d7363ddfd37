/* kernels/cuda/core/wgmma.cuh — the tensor cores of sm_90a, asked by a warpgroup: d[64, N] += a[64,
 * 16] b[16, N], b in shared memory, a there or in registers.
 *
 *   wgmma_begin(); Wgmma<N, bf16>::multiply(d, a, b) ...; wgmma_commit(); wgmma_wait<pending>();
 *   multiply_rows(d, a[4], b): a in registers, as load_matrices leaves 16 rows of a warp
 *   multiply<true>(d, a, b): rows of b's atoms are those of k, each with 64 of its columns
 *   WgmmaTf32<N>::multiply_rows(d, a[4], b): d[64, N] += a[64, 8] b[8, N] of tf32, N of 16 to 128:
 *   lane t of warp w has rows 16 w + t / 4 (a[0], a[2]) and + 8, places t % 4 of k and + 4 (a[2],
 *   a[3]); b's rows in memory are its columns, the next 8 k are 32 bytes further
 *
 * Operands are atoms of 8 rows by 128 bytes, 1024-aligned, 16-byte pieces at place piece ^ row;
 * matrix_at(address, bytes between atoms of neighbouring rows) describes them; the next 16 k are 32
 * bytes further. Of atoms of 8 k by 64 columns k_rows_at(address, bytes from 64 columns to the next
 * 64) describes them, 64 k lie one below another; the next 16 k are 2048 bytes further. Lane t of
 * warp w holds rows 16 w + t / 4 and + 8, columns 8 j + 2 (t % 4) and + 1: d[4 j], d[4 j + 1], and
 * of the lower row d[4 j + 2], d[4 j + 3]. Nobody may touch d, or write the operands or an a in
 * registers, before the wait. */
#ifndef OBK_WGMMA_CUH
#define OBK_WGMMA_CUH

#include "core/ptx.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define OBK_WGMMA 1

namespace obk {

OBK_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
OBK_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
OBK_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
OBK_DEVICE uint64_t matrix_at(uint32_t address, uint32_t pitch) {
  return 1ull << 62 | (uint64_t)(pitch >> 4) << 32 | 1u << 16 | (address & 0x3ffff) >> 4;
}
OBK_DEVICE uint64_t k_rows_at(uint32_t address, uint32_t apart) {
  return 1ull << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(apart >> 4) << 16 |
         (address & 0x3ffff) >> 4;
}

template <int kN, bool kBfloat>
struct Wgmma;

#define OBK_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OBK_D8(i) OBK_D4(i), OBK_D4(i + 4)
#define OBK_D16(i) OBK_D8(i), OBK_D8(i + 8)
#define OBK_D32(i) OBK_D16(i), OBK_D16(i + 16)
#define OBK_P8(a, b, c, d, e, f, g, h) \
  "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define OBK_P16_0 OBK_P8(0, 1, 2, 3, 4, 5, 6, 7) "," OBK_P8(8, 9, 10, 11, 12, 13, 14, 15)
#define OBK_P16_1 OBK_P8(16, 17, 18, 19, 20, 21, 22, 23) "," OBK_P8(24, 25, 26, 27, 28, 29, 30, 31)
#define OBK_P16_2 OBK_P8(32, 33, 34, 35, 36, 37, 38, 39) "," OBK_P8(40, 41, 42, 43, 44, 45, 46, 47)
#define OBK_P16_3 OBK_P8(48, 49, 50, 51, 52, 53, 54, 55) "," OBK_P8(56, 57, 58, 59, 60, 61, 62, 63)
#define OBK_P16_4 OBK_P8(64, 65, 66, 67, 68, 69, 70, 71) "," OBK_P8(72, 73, 74, 75, 76, 77, 78, 79)
#define OBK_P16_5 OBK_P8(80, 81, 82, 83, 84, 85, 86, 87) "," OBK_P8(88, 89, 90, 91, 92, 93, 94, 95)
#define OBK_P64 OBK_P16_0 "," OBK_P16_1 "," OBK_P16_2 "," OBK_P16_3

#define OBK_WGMMA_TYPED(n, type, k_rows, places, a, b, ...)                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" places \
               "}, %" #a ", %" #b ", 1, 1, 1, 0, " #k_rows ";"                             \
               : __VA_ARGS__                                                               \
               : "l"(x), "l"(y))
#define OBK_WGMMA_ROWS_TYPED(n, type, places, a, b, c, e, f, ...)                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" places \
               "}, {%" #a ",%" #b ",%" #c ",%" #e "}, %" #f ", 1, 1, 1, 0;"                \
               : __VA_ARGS__                                                               \
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y))
#define OBK_WGMMA_SHAPE(n, places, a, b, c, e, f, ...)                                           \
  template <bool kBfloat>                                                                        \
  struct Wgmma<n, kBfloat> {                                                                     \
    template <bool kOfKRows = false>                                                             \
    static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t x, uint64_t y) { \
      if (kOfKRows && kBfloat)                                                                   \
        OBK_WGMMA_TYPED(n, "bf16", 1, places, a, b, __VA_ARGS__);                                \
      else if (kOfKRows)                                                                         \
        OBK_WGMMA_TYPED(n, "f16", 1, places, a, b, __VA_ARGS__);                                 \
      else if (kBfloat)                                                                          \
        OBK_WGMMA_TYPED(n, "bf16", 0, places, a, b, __VA_ARGS__);                                \
      else                                                                                       \
        OBK_WGMMA_TYPED(n, "f16", 0, places, a, b, __VA_ARGS__);                                 \
    }                                                                                            \
    static __device__ __forceinline__ void multiply_rows(float (&d)[n / 2],                      \
                                                         const uint32_t (&x)[4], uint64_t y) {   \
      if (kBfloat)                                                                               \
        OBK_WGMMA_ROWS_TYPED(n, "bf16", places, a, b, c, e, f, __VA_ARGS__);                     \
      else                                                                                       \
        OBK_WGMMA_ROWS_TYPED(n, "f16", places, a, b, c, e, f, __VA_ARGS__);                      \
    }                                                                                            \
  };
OBK_WGMMA_SHAPE(16, OBK_P8(0, 1, 2, 3, 4, 5, 6, 7), 8, 9, 10, 11, 12, OBK_D8(0))
OBK_WGMMA_SHAPE(32, OBK_P16_0, 16, 17, 18, 19, 20, OBK_D16(0))
OBK_WGMMA_SHAPE(48, OBK_P16_0 "," OBK_P8(16, 17, 18, 19, 20, 21, 22, 23), 24, 25, 26, 27, 28,
                OBK_D16(0), OBK_D8(16))
OBK_WGMMA_SHAPE(64, OBK_P16_0 "," OBK_P16_1, 32, 33, 34, 35, 36, OBK_D32(0))
OBK_WGMMA_SHAPE(80, OBK_P16_0 "," OBK_P16_1 "," OBK_P8(32, 33, 34, 35, 36, 37, 38, 39), 40, 41, 42,
                43, 44, OBK_D32(0), OBK_D8(32))
OBK_WGMMA_SHAPE(96, OBK_P16_0 "," OBK_P16_1 "," OBK_P16_2, 48, 49, 50, 51, 52, OBK_D32(0),
                OBK_D16(32))
OBK_WGMMA_SHAPE(112,
                OBK_P16_0 "," OBK_P16_1 "," OBK_P16_2 "," OBK_P8(48, 49, 50, 51, 52, 53, 54, 55),
                56, 57, 58, 59, 60, OBK_D32(0), OBK_D16(32), OBK_D8(48))
OBK_WGMMA_SHAPE(128, OBK_P64, 64, 65, 66, 67, 68, OBK_D32(0), OBK_D32(32))
OBK_WGMMA_SHAPE(144, OBK_P64 "," OBK_P8(64, 65, 66, 67, 68, 69, 70, 71), 72, 73, 74, 75, 76,
                OBK_D32(0), OBK_D32(32), OBK_D8(64))
OBK_WGMMA_SHAPE(160, OBK_P64 "," OBK_P16_4, 80, 81, 82, 83, 84, OBK_D32(0), OBK_D32(32),
                OBK_D16(64))
OBK_WGMMA_SHAPE(176, OBK_P64 "," OBK_P16_4 "," OBK_P8(80, 81, 82, 83, 84, 85, 86, 87), 88, 89, 90,
                91, 92, OBK_D32(0), OBK_D32(32), OBK_D16(64), OBK_D8(80))
OBK_WGMMA_SHAPE(192, OBK_P64 "," OBK_P16_4 "," OBK_P16_5, 96, 97, 98, 99, 100, OBK_D32(0),
                OBK_D32(32), OBK_D32(64))

template <int kN>
struct WgmmaTf32;

#define OBK_WGMMA_TF32_SHAPE(n, places, a, b, c, e, f, ...)                                      \
  template <>                                                                                    \
  struct WgmmaTf32<n> {                                                                          \
    static __device__ __forceinline__ void multiply_rows(float (&d)[n / 2],                      \
                                                         const uint32_t (&x)[4], uint64_t y) {   \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 {" places "}, {%" #a \
                   ",%" #b ",%" #c ",%" #e "}, %" #f ", 1, 1, 1;"                                \
                   : __VA_ARGS__                                                                 \
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y));                        \
    }                                                                                            \
  };
OBK_WGMMA_TF32_SHAPE(16, OBK_P8(0, 1, 2, 3, 4, 5, 6, 7), 8, 9, 10, 11, 12, OBK_D8(0))
OBK_WGMMA_TF32_SHAPE(32, OBK_P16_0, 16, 17, 18, 19, 20, OBK_D16(0))
OBK_WGMMA_TF32_SHAPE(48, OBK_P16_0 "," OBK_P8(16, 17, 18, 19, 20, 21, 22, 23), 24, 25, 26, 27, 28,
                     OBK_D16(0), OBK_D8(16))
OBK_WGMMA_TF32_SHAPE(64, OBK_P16_0 "," OBK_P16_1, 32, 33, 34, 35, 36, OBK_D32(0))
OBK_WGMMA_TF32_SHAPE(80, OBK_P16_0 "," OBK_P16_1 "," OBK_P8(32, 33, 34, 35, 36, 37, 38, 39), 40, 41,
                     42, 43, 44, OBK_D32(0), OBK_D8(32))
OBK_WGMMA_TF32_SHAPE(96, OBK_P16_0 "," OBK_P16_1 "," OBK_P16_2, 48, 49, 50, 51, 52, OBK_D32(0),
                     OBK_D16(32))
OBK_WGMMA_TF32_SHAPE(112,
                     OBK_P16_0 "," OBK_P16_1 "," OBK_P16_2
                               "," OBK_P8(48, 49, 50, 51, 52, 53, 54, 55),
                     56, 57, 58, 59, 60, OBK_D32(0), OBK_D16(32), OBK_D8(48))
OBK_WGMMA_TF32_SHAPE(128, OBK_P64, 64, 65, 66, 67, 68, OBK_D32(0), OBK_D32(32))

}  // namespace obk

#endif
#endif
