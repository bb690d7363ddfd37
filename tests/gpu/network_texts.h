/// network_texts.h — networks as texts whose first dimension is the batch, for programs that are
/// compiled whole. @random stands for a constant's numbers (graph::parse_random).
#pragma once

#include "graph/test_texts.h"

namespace obelisk::network_texts {

/// Products with norms before and behind, residuals, attention of 3 heads: sums over 192, 768 and
/// 1536 numbers, by tiles of as many columns.
inline std::string encoder(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "encoder" {{
  in %0 "x": {1}[{0},9,768]
  const %1: {1}[768,192] = @random
  const %2: {1}[768,192] = @random
  const %3: {1}[768,192] = @random
  const %4: {1}[192,768] = @random
  const %5: {1}[768,1536] = @random
  const %6: {1}[1536,768] = @random
  const %7: i64[1] = [-1]
  const %8: i64[4] = [{0}, 9, 3, 64]
  const %9: i64[3] = [{0}, 9, 192]
  const %10: {1}[] = [0.001]
  %11: {1}[{0},9,192] = MatMul(%0, %1)
  %12: {1}[{0},9,192] = MatMul(%0, %2)
  %13: {1}[{0},9,192] = MatMul(%0, %3)
  %14: {1}[{0},9,3,64] = Reshape(%11, %8)
  %15: {1}[{0},9,3,64] = Reshape(%12, %8)
  %16: {1}[{0},9,3,64] = Reshape(%13, %8)
  %17: {1}[{0},3,9,64] = Transpose(%14) {{perm = [0, 2, 1, 3]}}
  %18: {1}[{0},3,9,64] = Transpose(%15) {{perm = [0, 2, 1, 3]}}
  %19: {1}[{0},3,9,64] = Transpose(%16) {{perm = [0, 2, 1, 3]}}
  %20: {1}[{0},3,9,64] = Attention(%17, %18, %19)
  %21: {1}[{0},9,3,64] = Transpose(%20) {{perm = [0, 2, 1, 3]}}
  %22: {1}[{0},9,192] = Reshape(%21, %9)
  %23: {1}[{0},9,768] = MatMul(%22, %4)
  %24: {1}[{0},9,768] = Add(%23, %0)
  %25: {1}[{0},9,1] = ReduceMean(%24, %7) {{keepdims = 1}}
  %26: {1}[{0},9,768] = Sub(%24, %25)
  %27: {1}[{0},9,768] = Mul(%26, %26)
  %28: {1}[{0},9,1] = ReduceMean(%27, %7) {{keepdims = 1}}
  %29: {1}[{0},9,1] = Add(%28, %10)
  %30: {1}[{0},9,1] = Sqrt(%29)
  %31: {1}[{0},9,768] = Div(%26, %30)
  %32: {1}[{0},9,1536] = MatMul(%31, %5)
  %33: {1}[{0},9,1536] = Gelu(%32)
  %34: {1}[{0},9,768] = MatMul(%33, %6)
  %35: {1}[{0},9,768] = Add(%34, %31)
  %36: {1}[{0},9,1] = ReduceMean(%35, %7) {{keepdims = 1}}
  %37: {1}[{0},9,768] = Sub(%35, %36)
  const %38: {1}[768,768] = @random
  %39: {1}[{0},9,768] = MatMul(%37, %38)
  %40: {1}[{0},9,768] = Add(%39, %0)
  %41: {1}[{0},9,1] = ReduceMean(%40, %7) {{keepdims = 1}}
  %42: {1}[{0},9,768] = Sub(%40, %41)
  out %42 "y"
}})",
                     batch, type);
}

/// Convolutions of every kind that tiles differ in, a pooling, and a product of what is left.
inline std::string pictures(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "pictures" {{
  in %0 "x": {1}[{0},3,34,34]
  const %1: {1}[64,3,3,3] = @random
  const %2: {1}[64,64,3,3] = @random
  const %3: {1}[128,64,1,1] = @random
  const %4: {1}[128,1,3,3] = @random
  const %5: {1}[128,10] = @random
  const %6: i64[2] = [{0}, 128]
  %7: {1}[{0},64,32,32] = Conv(%0, %1)
  %8: {1}[{0},64,32,32] = Relu(%7)
  %9: {1}[{0},64,32,32] = Conv(%8, %2) {{pads = [1, 1, 1, 1]}}
  %10: {1}[{0},64,32,32] = Add(%9, %8)
  %11: {1}[{0},128,16,16] = Conv(%10, %3) {{strides = [2, 2]}}
  %12: {1}[{0},128,14,14] = Conv(%11, %4) {{group = 128}}
  %13: {1}[{0},128,7,7] = MaxPool(%12) {{kernel_shape = [2, 2], strides = [2, 2]}}
  %14: {1}[{0},128,1,1] = GlobalAveragePool(%13)
  %15: {1}[{0},128] = Reshape(%14, %6)
  %16: {1}[{0},10] = MatMul(%15, %5)
  out %16 "y"
}})",
                     batch, type);
}

/// Products of what is computed with itself and with an input, B as it is and transposed.
inline std::string squares(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "squares" {{
  in %0 "x": {1}[{0},72,128]
  const %1: {1}[128,128] = @random
  %2: {1}[{0},72,128] = Tanh(%0)
  %3: {1}[{0},72,128] = MatMul(%2, %1)
  %4: {1}[{0},128,72] = Transpose(%3) {{perm = [0, 2, 1]}}
  %5: {1}[{0},128,128] = MatMul(%4, %0)
  %6: {1}[{0},128,128] = Relu(%5)
  %7: {1}[{0},72,128] = MatMul(%0, %6)
  %8: {1}[{0},128,72] = Transpose(%0) {{perm = [0, 2, 1]}}
  %9: {1}[{0},72,72] = MatMul(%7, %8)
  out %9 "y"
}})",
                     batch, type);
}

/// What is spread over long rows, a sum down columns, and one of long rows: bodies without a tile.
inline std::string spreads(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "spreads" {{
  in %0 "x": {1}[{0},2,12,640]
  const %1: i64[1] = [3]
  const %2: i64[1] = [2]
  const %3: {1}[2,1,640] = @random
  const %5: i64[1] = [0]
  const %6: i64[1] = [1]
  %7: {1}[{0},2,12,1] = Slice(%0, %5, %6, %1)
  %8: {1}[{0},2,12,1] = Tanh(%7)
  %9: {1}[{0},2,12,640] = Mul(%8, %0)
  %10: {1}[{0},2,1,640] = ReduceSum(%9, %2) {{keepdims = 1}}
  %11: {1}[{0},2,1,640] = Mul(%10, %3)
  %12: {1}[{0},2,1,640] = Softmax(%11) {{axis = 3}}
  %13: {1}[{0},2,12,640] = Add(%9, %12)
  %14: {1}[{0},2,12,1] = ReduceMean(%13, %1) {{keepdims = 1}}
  %15: {1}[{0},2,12,640] = Sub(%13, %14)
  out %15 "y"
}})",
                     batch, type);
}

/// A layer of an LSTM over nine steps: [steps, batch, size], so that a batch is a column of rows.
inline std::string steps(int64_t batch, const std::string& type) {
  return fmt::format(R"(graph "steps" {{
  in %0 "x": {1}[{0},9,96]
  const %1: {1}[1,512,96] = @random
  const %2: {1}[1,512,128] = @random
  %3: {1}[9,{0},96] = Transpose(%0) {{perm = [1, 0, 2]}}
  %4: {1}[9,1,{0},128] = LSTM(%3, %1, %2) {{hidden_size = 128}}
  %5: {1}[{0},9,1,128] = Transpose(%4) {{perm = [2, 0, 1, 3]}}
  out %5 "y"
}})",
                     batch, type);
}

/// Three blocks of four branches each, of convolutions and a pooling, that are concatenated:
/// kernels side by side whose outputs lie in one buffer.
inline std::string branches(int64_t batch, const std::string& type) {
  std::string text =
      fmt::format("graph \"branches\" {{\n  in %0 \"x\": {}[{},64,28,28]\n", type, batch);
  int next = 1, x = 0, channels = 64;
  const auto conv = [&](int from, int in, int out, int kernel, int size) {
    const int weight = next++, sum = next++, y = next++;
    text += fmt::format("  const %{}: {}[{},{},{},{}] = @random\n", weight, type, out, in, kernel,
                        kernel);
    text += fmt::format("  %{}: {}[{},{},{},{}] = Conv(%{}, %{}) {{pads = [{}, {}, {}, {}]}}\n",
                        sum, type, batch, out, size, size, from, weight, kernel / 2, kernel / 2,
                        kernel / 2, kernel / 2);
    text +=
        fmt::format("  %{}: {}[{},{},{},{}] = Relu(%{})\n", y, type, batch, out, size, size, sum);
    return y;
  };
  const auto pool = [&](int from, int size, int to, const char* how) {
    const int y = next++;
    text += fmt::format("  %{}: {}[{},{},{},{}] = MaxPool(%{}) {{kernel_shape = [3, 3], {}}}\n", y,
                        type, batch, channels, to, to, from, how);
    (void)size;
    return y;
  };
  for (int block = 0, size = 28; block < 3; ++block) {
    if (block > 0) {
      const int half = size / 2;
      x = pool(x, size, half, "pads = [0, 0, 1, 1], strides = [2, 2]"), size = half;
    }
    const int a = conv(x, channels, 64, 1, size);
    const int b = conv(conv(x, channels, 96, 1, size), 96, 128, 3, size);
    const int c = conv(conv(x, channels, 16, 1, size), 16, 32, 5, size);
    const int d = conv(pool(x, size, size, "pads = [1, 1, 1, 1]"), channels, 32, 1, size);
    const int all = next++;
    text += fmt::format("  %{}: {}[{},256,{},{}] = Concat(%{}, %{}, %{}, %{}) {{axis = 1}}\n", all,
                        type, batch, size, size, a, b, c, d);
    x = all, channels = 256;
  }
  return text + fmt::format("  out %{} \"y\"\n}}", x);
}

}  // namespace obelisk::network_texts
