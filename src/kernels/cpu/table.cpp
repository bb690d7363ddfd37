#include "kernels/cpu/table.h"

extern "C" const ObkKernels* obk_kernels(void) {
  static const ObkKernels kTable = {
      .version = kObkVersion,
      .gemm_tile = obk_gemm_tile,
      .conv_tile = obk_conv_tile,
      .attention_tile = obk_attention_tile,
  };
  return &kTable;
}
