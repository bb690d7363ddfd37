#define OBK_NAME kLoopsBase
#define OBK_ISA "base"
#define OBK_ROWS 2
#include "kernels/cpu/loops.inl"
