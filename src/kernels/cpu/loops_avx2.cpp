#define OBK_NAME kLoopsAvx2
#define OBK_ISA "avx2"
#define OBK_ROWS 4
#include "kernels/cpu/loops.inl"
