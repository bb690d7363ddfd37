/// kernels/cpu/table.h — the C face of the CPU's compute tiles: what a generated body, compiled
/// apart and loaded at run time, may call. Self-contained; it includes only tiles.h.
///
/// A tile function computes one disjoint tile of one op's output. It starts no thread and allocates
/// nothing; scratch comes from the caller, as large as the matching *_scratch_bytes says, 64-byte
/// aligned. (The first tile of a new size may build its machine code, once per process.)
#pragma once

#include "tiles.h"

extern "C" {

/// The functions by themselves.
int64_t obk_gemm_packed_bytes(int32_t type, int64_t n, int64_t k);
void obk_gemm_pack(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row, int64_t b_col,
                   const void* zero, int64_t zero_col, void* packed);
int64_t obk_gemm_scratch_bytes(const struct ObkGemm* gemm);
void obk_gemm_tile(const struct ObkGemm* gemm);
int64_t obk_conv_packed_bytes(int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                              int64_t kernel_w);
void obk_conv_pack(int32_t type, int64_t out_channels, int64_t in_channels, int64_t kernel_h,
                   int64_t kernel_w, const void* weights, int64_t out_stride, int64_t in_stride,
                   int64_t h_stride, int64_t w_stride, void* packed);
int64_t obk_depthwise_packed_bytes(int64_t channels, int64_t kernel_h, int64_t kernel_w);
void obk_depthwise_pack(int32_t type, int64_t channels, int64_t kernel_h, int64_t kernel_w,
                        const void* weights, int64_t out_stride, int64_t h_stride, int64_t w_stride,
                        void* packed);
int64_t obk_conv_scratch_bytes(const struct ObkConv* conv);
void obk_conv_tile(const struct ObkConv* conv);
int64_t obk_attention_scratch_bytes(const struct ObkAttention* attention);
void obk_attention_tile(const struct ObkAttention* attention);

/// What a body receives.
struct ObkKernels {
  int32_t version;  // kObkVersion of the program that fills the table
  void (*gemm_tile)(const struct ObkGemm*);
  void (*conv_tile)(const struct ObkConv*);
  void (*attention_tile)(const struct ObkAttention*);
};

enum { kObkVersion = 1 };

const struct ObkKernels* obk_kernels(void);

}  // extern "C"
