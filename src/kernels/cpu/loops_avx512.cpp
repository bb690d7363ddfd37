#define OBK_NAME kLoopsAvx512
#define OBK_ISA "avx512"
#define OBK_ROWS 8
#include "kernels/cpu/loops.inl"
