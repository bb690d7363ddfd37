// Answers of products, convolutions, pools, attention and recurrent layers worked out by hand or by
// NumPy, and the texts of their refusals: what two columns written by one hand could both get
// wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "ops/gemm.h"
#include "ops/test/sample.h"

namespace obelisk::ops::test {
namespace {

using Ints = std::vector<int64_t>;
using testing::HasSubstr;
constexpr auto f32 = DType::f32, i32 = DType::i32, i64 = DType::i64, i8 = DType::i8, u8 = DType::u8;
const double kNan = std::nan("");

void expect_golden(const char* what, const Sample& sample, const std::vector<Tensor>& want) {
  SCOPED_TRACE(what);
  const std::vector<Tensor> got = run_reference(sample);
  ASSERT_GE(got.size(), want.size());
  for (size_t n = 0; n < want.size(); ++n) {
    EXPECT_EQ(got[n].type(), want[n].type());
    expect_near(got[n], want[n], {1e-6, 1e-6}, fmt::format("output {}", n));
  }
  check(sample);
}

Tensor counting(DType dtype, Shape shape) {
  Tensor result = Tensor::allocate({dtype, std::move(shape)});
  for (int64_t n = 0; n < result.count(); ++n) {
    if (is_float(dtype))
      result.set_double(n, static_cast<double>(n));
    else
      result.set_int(n, n);
  }
  return result;
}

TEST(ComputeGolden, Products) {
  expect_golden("a vector from the left loses its row",
                {Op::MatMul, {}, {tensor(f32, {2}, {1, 2}), tensor(f32, {2, 2}, {1, 2, 3, 4})}},
                {tensor(f32, {2}, {7, 10})});
  expect_golden(
      "unsigned products wrap",
      {Op::MatMul, {}, {tensor(DType::u32, {1, 1}, {65536}), tensor(DType::u32, {1, 1}, {65537})}},
      {tensor(DType::u32, {1, 1}, {65536})});
  expect_golden(
      "an empty sum is zero",
      {Op::MatMul, {}, {Tensor::allocate({f32, {2, 0}}), Tensor::allocate({f32, {0, 1}})}},
      {tensor(f32, {2, 1}, {0, 0})});
  expect_golden("alpha A' B + beta C, C a row",
                {Op::Gemm,
                 Attrs().set("transA", int64_t{1}).set("alpha", 2.0).set("beta", -1.0),
                 {tensor(f32, {2, 1}, {1, 2}), tensor(f32, {2, 2}, {1, 2, 3, 4}),
                  tensor(f32, {2}, {10, 20})}},
                {tensor(f32, {1, 2}, {4, 0})});
  expect_golden("zero points along rows and columns",
                {Op::MatMulInteger,
                 {},
                 {tensor(u8, {2, 2}, {1, 2, 3, 4}), tensor(i8, {2, 2}, {-1, 0, 1, 2}),
                  tensor(u8, {2}, {1, 2}), tensor(i8, {2}, {0, 1})}},
                {tensor(i32, {2, 2}, {1, 1, 1, 1})});
  // sums 3, 5, -300 scaled by a half: halves round to even before the zero point is added, then it
  // saturates.
  const Tensor half = tensor(f32, {}, {0.5}), one = tensor(f32, {}, {1});
  expect_golden("halves to even, then the zero point, then saturation",
                {Op::QLinearMatMul,
                 {},
                 {tensor(i8, {3, 1}, {3, 5, -100}), half, tensor(i8, {}, {0}),
                  tensor(i8, {1, 2}, {1, 3}), one, tensor(i8, {}, {0}), one, tensor(i8, {}, {1})}},
                {tensor(i8, {3, 2}, {3, 5, 3, 9, -49, -128})});
}

TEST(ComputeGolden, Convolutions) {
  const Tensor x = tensor(f32, {1, 1, 4}, {1, 2, 3, 4}), w = tensor(f32, {1, 1, 2}, {1, 10});
  auto mode = [](const char* name) { return Attrs().set("auto_pad", std::string(name)); };
  expect_golden("SAME_UPPER pads behind", {Op::Conv, mode("SAME_UPPER"), {x, w}},
                {tensor(f32, {1, 1, 4}, {21, 32, 43, 4})});
  expect_golden("SAME_LOWER pads in front", {Op::Conv, mode("SAME_LOWER"), {x, w}},
                {tensor(f32, {1, 1, 4}, {10, 21, 32, 43})});
  expect_golden("a transposed convolution spreads",
                {Op::ConvTranspose,
                 Attrs().set("strides", Ints{2}),
                 {tensor(f32, {1, 1, 2}, {1, 2}), tensor(f32, {1, 1, 3}, {1, 10, 100})}},
                {tensor(f32, {1, 1, 5}, {1, 10, 102, 20, 200})});
  expect_golden("of an odd surplus, SAME_UPPER cuts more behind",
                {Op::ConvTranspose,
                 Attrs(mode("SAME_UPPER")).set("strides", Ints{2}),
                 {tensor(f32, {1, 1, 2}, {1, 2}), tensor(f32, {1, 1, 3}, {1, 10, 100})}},
                {tensor(f32, {1, 1, 4}, {1, 10, 102, 20})});
  expect_golden(
      "the border of a quantised image is its zero point",
      {Op::ConvInteger,
       Attrs().set("pads", Ints{1, 1}),
       {tensor(u8, {1, 1, 2}, {5, 7}), tensor(i8, {1, 1, 3}, {1, 1, 1}), tensor(u8, {}, {5})}},
      {tensor(i32, {1, 1, 2}, {2, 2})});
  expect_golden("an offset of a half is the mean of two; outside is zero",
                {Op::DeformConv,
                 {},
                 {tensor(f32, {1, 1, 1, 3}, {2, 4, 8}), tensor(f32, {1, 1, 1, 1}, {1}),
                  tensor(f32, {1, 2, 1, 3}, {0, 0, 0, 0.5, -2, 0.5})}},
                {tensor(f32, {1, 1, 1, 3}, {3, 0, 4})});
  expect_golden("a state shorter than the kernel needs is kept in part",
                {Op::CausalConvWithState,
                 {},
                 {tensor(f32, {1, 1, 1}, {5}), tensor(f32, {1, 1, 3}, {1, 10, 100}), Tensor(),
                  tensor(f32, {1, 1, 2}, {3, 4})},
                 2},
                {tensor(f32, {1, 1, 1}, {543}), tensor(f32, {1, 1, 2}, {4, 5})});
}

TEST(ComputeGolden, WindowsFarOutside) {
  const int64_t far = int64_t{1} << 31;
  const Attrs attrs = Attrs()
                          .set("dilations", Ints{far, 1, 1})
                          .set("strides", Ints{far, far, far})
                          .set("auto_pad", std::string("SAME_UPPER"));
  const Tensor x = tensor(f32, {1, 1, 1, 2, 2}, {1, 2, 3, 4});
  expect_golden("a convolution, whose kernel has one element inside",
                {Op::Conv, attrs, {x, tensor(f32, {1, 1, 3, 1, 1}, {10, 100, 1000})}},
                {tensor(f32, {1, 1, 1, 1, 1}, {100})});
  expect_golden("a pool", {Op::MaxPool, Attrs(attrs).set("kernel_shape", Ints{3, 1, 1}), {x}},
                {tensor(f32, {1, 1, 1, 1, 1}, {1})});
}

TEST(ComputeGolden, Pools) {
  const Tensor image = counting(f32, {1, 1, 3, 3});
  const Attrs square = Attrs().set("kernel_shape", Ints{2, 2}).set("strides", Ints{2, 2});
  expect_golden("ceil_mode keeps windows that begin inside",
                {Op::MaxPool, Attrs(square).set("ceil_mode", int64_t{1}), {image}, 2},
                {tensor(f32, {1, 1, 2, 2}, {4, 5, 7, 8}), tensor(i64, {1, 1, 2, 2}, {4, 5, 7, 8})});
  expect_golden("column-major places",
                {Op::MaxPool, Attrs(square).set("storage_order", int64_t{1}), {image}, 2},
                {tensor(f32, {1, 1, 1, 1}, {4}), tensor(i64, {1, 1, 1, 1}, {4})});
  expect_golden("what ceil_mode adds does not count, what pads adds does",
                {Op::AveragePool,
                 Attrs()
                     .set("kernel_shape", Ints{2})
                     .set("strides", Ints{2})
                     .set("pads", Ints{1, 0})
                     .set("ceil_mode", int64_t{1})
                     .set("count_include_pad", int64_t{1}),
                 {tensor(f32, {1, 1, 4}, {2, 4, 6, 8})}},
                {tensor(f32, {1, 1, 3}, {1, 5, 8})});
  expect_golden("a NaN wins its windows only",
                {Op::MaxPool,
                 Attrs().set("kernel_shape", Ints{2}),
                 {tensor(f32, {1, 1, 4}, {1, kNan, 3, 2})},
                 2},
                {tensor(f32, {1, 1, 3}, {kNan, kNan, 3}), tensor(i64, {1, 1, 3}, {1, 1, 2})});
  expect_golden("the 3-norm",
                {Op::GlobalLpPool, Attrs().set("p", int64_t{3}), {tensor(f32, {1, 1, 2}, {-1, 2})}},
                {tensor(f32, {1, 1, 1}, {2.080083823})});
}

TEST(ComputeGolden, Attention) {
  const Tensor q = tensor(f32, {1, 1, 2, 1}, {0, 0}), v = tensor(f32, {1, 1, 2, 1}, {2, 4});
  expect_golden("equal scores give the mean; the first row sees itself only",
                {Op::Attention, Attrs().set("is_causal", int64_t{1}), {q, q, v}},
                {tensor(f32, {1, 1, 2, 1}, {2, 3})});
  const Tensor second = tensor(DType::b1, {2, 2}, {0, 0, 0, 1});
  expect_golden(
      "a row that sees nothing is zeros, and so are its weights",
      {Op::Attention, Attrs().set("qk_matmul_output_mode", int64_t{3}), {q, q, v, second}, 4},
      {tensor(f32, {1, 1, 2, 1}, {0, 4}), q, v, tensor(f32, {1, 1, 2, 2}, {0, 0, 0, 1})});
  expect_golden("or NaN, where it came from a softmax",
                {Op::Attention, Attrs().set("nan_if_masked", int64_t{1}), {q, q, v, second}},
                {tensor(f32, {1, 1, 2, 1}, {kNan, 4})});
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor wild = tensor(f32, {1, 1, 2, 1}, {kNan, 1}),
               wide = tensor(f32, {1, 1, 2, 1}, {inf, 1});
  expect_golden("whatever the scores of masked keys", {Op::Attention, {}, {wild, wide, v, second}},
                {tensor(f32, {1, 1, 2, 1}, {0, 4})});
  expect_golden("also those of a mask that is added",
                {Op::Attention, {}, {wild, wide, v, tensor(f32, {2, 2}, {-inf, -inf, -inf, 0})}},
                {tensor(f32, {1, 1, 2, 1}, {0, 4})});
  const Tensor none, past = tensor(f32, {1, 1, 1, 1}, {8});
  // Two sentences of three keys with the values 2, 4 and 9, all scores equal.
  const Tensor queries = tensor(f32, {2, 1, 2, 1}, {0, 0, 0, 0}),
               keys = tensor(f32, {2, 1, 3, 1}, {0, 0, 0, 0, 0, 0}),
               values = tensor(f32, {2, 1, 3, 1}, {2, 4, 9, 2, 4, 9});
  expect_golden("the last query of an outside cache sees all valid keys, the one before one less",
                {Op::Attention,
                 Attrs().set("is_causal", int64_t{1}),
                 {queries, keys, values, none, none, none, tensor(i64, {2}, {3, 1})}},
                {tensor(f32, {2, 1, 2, 1}, {3, 5, 0, 2})});
  expect_golden("a window of the key before and its own, of those that are valid",
                {Op::Attention,
                 Attrs().set("left_window_size", int64_t{1}),
                 {queries, keys, values, none, none, none, tensor(i64, {2}, {3, 2})}},
                {tensor(f32, {2, 1, 2, 1}, {5, 6.5, 3, 3})});
  expect_golden("of the key behind, from the first on",
                {Op::Attention,
                 Attrs().set("left_window_size", int64_t{0}).set("right_window_size", int64_t{1}),
                 {queries, keys, values}},
                {tensor(f32, {2, 1, 2, 1}, {3, 6.5, 3, 6.5})});
  expect_golden("more queries than a window reaches",
                {Op::Attention,
                 Attrs().set("left_window_size", int64_t{0}),
                 {keys, queries, tensor(f32, {2, 1, 2, 1}, {2, 4, 2, 4})}},
                {tensor(f32, {2, 1, 3, 1}, {3, 4, 0, 3, 4, 0})});
  expect_golden("behind a past",
                {Op::Attention,
                 Attrs().set("left_window_size", int64_t{1}).set("is_causal", int64_t{1}),
                 {q, q, v, none, tensor(f32, {1, 1, 1, 1}, {0}), past}},
                {tensor(f32, {1, 1, 2, 1}, {5, 3})});
  expect_golden("with a past every row also sees it",
                {Op::Attention,
                 Attrs().set("is_causal", int64_t{1}),
                 {q, q, v, none, tensor(f32, {1, 1, 1, 1}, {0}), past},
                 3},
                {tensor(f32, {1, 1, 2, 1}, {5, 14.0 / 3}), tensor(f32, {1, 1, 3, 1}, {0, 0, 0}),
                 tensor(f32, {1, 1, 3, 1}, {8, 2, 4})});
  expect_golden("a short mask hides what it does not reach",
                {Op::Attention,
                 {},
                 {q, tensor(f32, {1, 1, 3, 1}, {0, 0, 0}), tensor(f32, {1, 1, 3, 1}, {2, 4, 9}),
                  tensor(f32, {1, 2}, {0, 0})}},
                {tensor(f32, {1, 1, 2, 1}, {3, 3})});
  expect_golden("a quarter turn of halves",
                {Op::RotaryEmbedding,
                 {},
                 {tensor(f32, {1, 1, 1, 4}, {1, 2, 3, 4}), tensor(f32, {1, 1, 2}, {0, 1}),
                  tensor(f32, {1, 1, 2}, {1, 0})}},
                {tensor(f32, {1, 1, 1, 4}, {-3, 2, 1, 4})});
  expect_golden("a quarter turn of neighbours",
                {Op::RotaryEmbedding,
                 Attrs().set("interleaved", int64_t{1}),
                 {tensor(f32, {1, 1, 1, 4}, {1, 2, 3, 4}), tensor(f32, {1, 1, 2}, {0, 1}),
                  tensor(f32, {1, 1, 2}, {1, 0})}},
                {tensor(f32, {1, 1, 1, 4}, {-2, 1, 3, 4})});
}

TEST(ComputeGolden, Recurrences) {
  // All weights zero but the biases: gates are sigmoid(0) = 0.5 and tanh(0) = 0.
  const Tensor x = tensor(f32, {2, 1, 1}, {1, 1});
  auto zeros = [](Shape shape) { return Tensor::allocate({f32, std::move(shape)}); };
  expect_golden("LSTM halves its cell at every step",
                {Op::LSTM,
                 {},
                 {x, zeros({1, 4, 1}), zeros({1, 4, 1}), Tensor(), Tensor(), Tensor(),
                  tensor(f32, {1, 1, 1}, {8})},
                 3},
                {tensor(f32, {2, 1, 1, 1}, {0.5 * std::tanh(4), 0.5 * std::tanh(2)}),
                 tensor(f32, {1, 1, 1}, {0.5 * std::tanh(2)}), tensor(f32, {1, 1, 1}, {2})});
  expect_golden(
      "GRU halves its state",
      {Op::GRU,
       {},
       {x, zeros({1, 3, 1}), zeros({1, 3, 1}), Tensor(), Tensor(), tensor(f32, {1, 1, 1}, {8})},
       2},
      {tensor(f32, {2, 1, 1, 1}, {4, 2}), tensor(f32, {1, 1, 1}, {2})});
  const Attrs sum = Attrs()
                        .set("activations", std::string("Affine"))
                        .set("activation_alpha", std::vector<double>{1.0});
  const Tensor ones = tensor(f32, {1, 1, 1}, {1});
  expect_golden("a short sequence shows zeros behind its end",
                {Op::RNN,
                 sum,
                 {tensor(f32, {3, 2, 1}, {1, 10, 2, 20, 3, 30}), ones, ones, Tensor(),
                  tensor(i32, {2}, {3, 2})},
                 2},
                {tensor(f32, {3, 1, 2, 1}, {1, 10, 3, 30, 6, 0}), tensor(f32, {1, 2, 1}, {6, 30})});
  expect_golden("run backwards it begins at its own end",
                {Op::RNN,
                 Attrs(sum).set("direction", std::string("reverse")),
                 {tensor(f32, {3, 2, 1}, {1, 10, 2, 20, 3, 30}), ones, ones, Tensor(),
                  tensor(i32, {2}, {3, 2})},
                 2},
                {tensor(f32, {3, 1, 2, 1}, {6, 30, 5, 20, 3, 0}), tensor(f32, {1, 2, 1}, {6, 30})});
}

TEST(ComputeGolden, Refusals) {
  auto refusal = [](const Sample& sample) {
    Call call{.op = sample.op, .attrs = sample.attrs, .outputs = sample.outputs};
    for (const Tensor& input : sample.inputs) {
      call.inputs.push_back(input.empty() ? nullptr : &input.type());
      call.constants.push_back(nullptr);
    }
    const Result<Types> types = infer(call);
    return types.ok() ? std::string("accepted") : types.error().text();
  };
  auto zeros = [](Shape shape) { return Tensor::allocate({f32, std::move(shape)}); };
  EXPECT_THAT(refusal({Op::MatMul, {}, {zeros({2, 3}), zeros({4, 5})}}),
              HasSubstr("[2,3] and [4,5] do not multiply"));
  EXPECT_THAT(refusal({Op::MatMul, {}, {zeros({}), zeros({4})}}), HasSubstr("use Mul"));
  EXPECT_THAT(refusal({Op::Gemm, {}, {zeros({2, 3}), zeros({3, 5}), zeros({2, 2, 5})}}),
              HasSubstr("does not broadcast to [2,5]"));
  EXPECT_THAT(refusal({Op::Conv, {}, {zeros({1, 3, 8}), zeros({4, 2, 3})}}),
              HasSubstr("[outputs, channels / group, kernel...]"));
  EXPECT_THAT(refusal({Op::Conv, {}, {zeros({1, 3, 2}), zeros({4, 3, 5})}}),
              HasSubstr("must fit into the padded input"));
  EXPECT_THAT(
      refusal({Op::Conv, Attrs().set("strides", Ints{0}), {zeros({1, 3, 8}), zeros({4, 3, 5})}}),
      HasSubstr("strides contains 0"));
  EXPECT_THAT(refusal({Op::Conv,
                       Attrs().set("auto_pad", std::string("SAME")),
                       {zeros({1, 3, 8}), zeros({4, 3, 5})}}),
              HasSubstr("SAME_UPPER"));
  EXPECT_THAT(refusal({Op::MaxPool, Attrs().set("kernel_shape", Ints{2}), {zeros({1, 3, 8, 8})}}),
              HasSubstr("kernel_shape [2]"));
  const int64_t far = int64_t{1} << 31;
  EXPECT_THAT(refusal({Op::MaxPool,
                       Attrs()
                           .set("kernel_shape", Ints{far, far, far})
                           .set("auto_pad", std::string("SAME_UPPER")),
                       {zeros({1, 3, 1, 1, 1})}}),
              HasSubstr("no integer counts its elements"));
  EXPECT_THAT(refusal({Op::ConvTranspose,
                       Attrs().set("group", int64_t{1} << 62),
                       {zeros({1, 0, 5}), zeros({0, 4, 3})}}),
              HasSubstr("0 channels in 4611686018427387904 groups"));
  EXPECT_THAT(refusal({Op::ConvTranspose,
                       Attrs().set("strides", Ints{far}),
                       {zeros({1, 1, 5}), zeros({1, 4, 3})}}),
              HasSubstr("[2147483648]: an extent, step or pad beyond 2^30"));
  EXPECT_THAT(refusal({Op::DeformConv,
                       Attrs().set("offset_group", int64_t{1} << 62),
                       {zeros({1, 0, 5}), zeros({4, 0, 3}), zeros({1, 6, 3})}}),
              HasSubstr("0 channels in 4611686018427387904 offset groups"));
  const Shape ones(11, 1);
  EXPECT_THAT(refusal({Op::DeformConv, {}, {zeros(ones), zeros(ones), zeros(ones)}}),
              HasSubstr("9 spatial axes"));
  EXPECT_THAT(refusal({Op::Attention, {}, {zeros({1, 2, 8}), zeros({1, 2, 8}), zeros({1, 2, 8})}}),
              HasSubstr("q_num_heads"));
  EXPECT_THAT(refusal({Op::LSTM,
                       Attrs().set("activations", std::string("Sigmoid,Cosh,Tanh")),
                       {zeros({1, 1, 2}), zeros({1, 4, 2}), zeros({1, 4, 1})}}),
              HasSubstr("activation 'cosh'"));
  EXPECT_THAT(refusal({Op::GRU, {}, {zeros({1, 1, 2}), zeros({1, 4, 2}), zeros({1, 3, 1})}}),
              HasSubstr("W is [1,4,2], wanted [1,3,2]"));
}

TEST(Gemm, SizesAroundItsTilesAndPanels) {
  for (const auto& [m, n, k] :
       {std::tuple{1, 1, 1}, {4, 16, 256}, {5, 17, 257}, {3, 513, 5}, {130, 33, 600}}) {
    std::vector<double> a(m * k), b(k * n), c(m * n, -1), d(m * n, -1);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * 7 % 13) - 6;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i * 5 % 11) - 5;
    gemm(m, n, k, a.data(), k, b.data(), n, c.data(), n);
    gemm_on_threads(m, n, k, a.data(), k, b.data(), n, d.data(), n);
    EXPECT_EQ(c, d);
    for (int row = 0; row < m; ++row)
      for (int column = 0; column < n; ++column) {
        double want = 0;
        for (int inner = 0; inner < k; ++inner) want += a[row * k + inner] * b[inner * n + column];
        ASSERT_EQ(c[row * n + column], want)
            << m << "x" << n << "x" << k << " at " << row << "," << column;
      }
  }
}

TEST(Gemm, ParallelForCoversEachElementOnceAndRethrows) {
  std::vector<std::atomic<int>> seen(1000);
  parallel_for(1000, 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) ++seen[at];
  });
  for (auto& count : seen) EXPECT_EQ(count, 1);
  EXPECT_THROW(parallel_for(8, 1, [](int64_t, int64_t) { throw std::runtime_error("inside"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace obelisk::ops::test
