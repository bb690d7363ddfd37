// Answers that the standard fixes and that two forms written by one hand could both get wrong:
// special values, ties, signs, overflow, empty folds, and the texts of refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/test/sample.h"

namespace obelisk::ops::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

struct Case {
  const char* what;
  Sample sample;
  Tensor want;
};

TEST(Golden, Values) {
  const auto f32 = DType::f32, i32 = DType::i32, i8 = DType::i8, u8 = DType::u8, b1 = DType::b1,
             i64 = DType::i64;
  const auto text = [](const char* name, const char* value) {
    return Attrs().set(name, std::string(value));
  };
  const auto number = [](const char* name, int64_t value) { return Attrs().set(name, value); };
  const Case cases[] = {
      {"division truncates toward zero, by zero gives zero",
       {Op::Div, {}, {tensor(i32, {4}, {7, -7, 7, 5}), tensor(i32, {4}, {2, 2, -2, 0})}},
       tensor(i32, {4}, {3, -3, -3, 0})},
      {"the remainder has the divisor's sign",
       {Op::Mod, {}, {tensor(i32, {4}, {7, -7, 7, -7}), tensor(i32, {4}, {3, 3, -3, -3})}},
       tensor(i32, {4}, {1, 2, -2, -1})},
      {"with fmod it has the dividend's",
       {Op::Mod,
        number("fmod", 1),
        {tensor(f32, {3}, {-4.5, 4.5, 7}), tensor(f32, {3}, {2, -2, kInf})}},
       tensor(f32, {3}, {-0.5, 0.5, 7})},
      {"of floats it has the divisor's, too, and what is infinite keeps what is not",
       {Op::Mod,
        {},
        {tensor(f32, {8}, {-4.5, 4.5, 7, -7, -7, kInf, 1, kNan}),
         tensor(f32, {8}, {2, -2, kInf, kInf, -kInf, 2, 0, 2})}},
       tensor(f32, {8}, {1.5, -1.5, 7, kInf, -7, kNan, kNan, kNan})},
      {"integers wrap",
       {Op::Add, {}, {tensor(i8, {2}, {127, -128}), tensor(i8, {2}, {1, -1})}},
       tensor(i8, {2}, {-128, 127})},
      {"halves round to even",
       {Op::Round, {}, {tensor(f32, {5}, {0.5, 1.5, 2.5, -0.5, -1.5})}},
       tensor(f32, {5}, {0, 2, 2, 0, -2})},
      {"NaN wins over any number",
       {Op::Max, {}, {tensor(f32, {3}, {kNan, 1, 2}), tensor(f32, {3}, {1, kNan, 3})}},
       tensor(f32, {3}, {kNan, kNan, 3})},
      {"bounds that cross give the upper one",
       {Op::Clip, {}, {tensor(f32, {3}, {-9, 0, 9}), tensor(f32, {}, {2}), tensor(f32, {}, {1})}},
       tensor(f32, {3}, {1, 1, 1})},
      {"a shift by the width gives zero",
       {Op::BitShift,
        text("direction", "LEFT"),
        {tensor(u8, {3}, {1, 255, 3}), tensor(u8, {3}, {8, 1, 0})}},
       tensor(u8, {3}, {0, 254, 3})},
      {"a shift of signed integers fills with the sign, by any number of places",
       {Op::BitShift,
        text("direction", "RIGHT"),
        {tensor(i8, {5}, {-8, -1, 100, -128, 5}), tensor(i8, {5}, {1, 7, 3, 8, -1})}},
       tensor(i8, {5}, {-4, -1, 12, -1, 0})},
      {"to the left bits fall off past the sign",
       {Op::BitShift,
        text("direction", "LEFT"),
        {tensor(i8, {4}, {-8, 64, 3, -1}), tensor(i8, {4}, {1, 1, -1, 8})}},
       tensor(i8, {4}, {-16, -128, 0, 0})},
      {"a gate of zero lets half of nothing through",
       {Op::SwiGLU,
        number("alpha", 2),
        {tensor(f32, {3}, {0, 50, -50}), tensor(f32, {3}, {7, 2, 2})}},
       tensor(f32, {3}, {0, 100, 0})},
      {"an integer base stays an integer",
       {Op::Pow, {}, {tensor(i64, {3}, {2, 3, 10}), tensor(f32, {3}, {0.5, 2, 3})}},
       tensor(i64, {3}, {1, 9, 1000})},
      {"nothing compares with NaN",
       {Op::LessOrEqual, {}, {tensor(f32, {2}, {kNan, 1}), tensor(f32, {2}, {1, 1})}},
       tensor(b1, {2}, {0, 1})},
      {"only the asked infinity",
       {Op::IsInf, number("detect_negative", 0), {tensor(f32, {3}, {kInf, -kInf, 1})}},
       tensor(b1, {3}, {1, 0, 0})},
      {"floats truncate into integers",
       {Op::Cast, number("to", 7), {tensor(f32, {3}, {-1.9, 1.9, 0.5})}},
       tensor(i64, {3}, {-1, 1, 0})},
      {"what fits i64 wraps into i4",
       {Op::Cast, number("to", 22), {tensor(f32, {3}, {-9, 8, 7})}},
       tensor(DType::i4, {3}, {7, -8, 7})},
      {"f8 saturates, infinity too",
       {Op::Cast, number("to", 17), {tensor(f32, {3}, {1e6, -kInf, kNan})}},
       tensor(DType::f8e4m3fn, {3}, {448, -448, kNan})},
      {"e8m0 rounds up",
       {Op::Cast, number("to", 24), {tensor(f32, {4}, {0, 1.1, 2, 0.25})}},
       tensor(DType::f8e8m0, {4}, {0x1p-127, 2, 2, 0.25})},
      {"quantisation rounds halves to even and saturates",
       {Op::QuantizeLinear,
        {},
        {tensor(f32, {6}, {0, 2, 3, 1000, -254, -1000}), tensor(f32, {}, {2}),
         tensor(u8, {}, {128})}},
       tensor(u8, {6}, {128, 129, 130, 255, 1, 0})},
      {"no maximum of nothing",
       {Op::ReduceMax, {}, {tensor(f32, {2, 0}, {}), tensor_of({1})}},
       tensor(f32, {2, 1}, {-kInf, -kInf})},
      {"no logarithm of nothing",
       {Op::ReduceLogSum, {}, {tensor(f32, {2, 0}, {}), tensor_of({1})}},
       tensor(f32, {2, 1}, {-kInf, -kInf})},
      {"the product of nothing",
       {Op::ReduceProd, number("keepdims", 0), {tensor(f32, {2, 0}, {}), tensor_of({1})}},
       tensor(f32, {2}, {1, 1})},
      {"an integer mean truncates",
       {Op::ReduceMean, {}, {tensor(i32, {2}, {-3, 0})}},
       tensor(i32, {1}, {-1})},
      {"the first maximum",
       {Op::ArgMax, {}, {tensor(f32, {4}, {1, 3, 3, 2})}},
       tensor(i64, {1}, {1})},
      {"the last maximum",
       {Op::ArgMax, number("select_last_index", 1), {tensor(f32, {4}, {1, 3, 3, 2})}},
       tensor(i64, {1}, {2})},
      {"the sum of huge exponentials",
       {Op::ReduceLogSumExp, {}, {tensor(f32, {2}, {1000, 1000})}},
       tensor(f32, {1}, {1000 + std::log(2.0)})},
      {"no overflow in softplus",
       {Op::Softplus, {}, {tensor(f32, {2}, {200, -200})}},
       tensor(f32, {2}, {200, 0})},
      {"a zero vector stays zero",
       {Op::LpNormalization, {}, {tensor(f32, {2, 2}, {0, 0, 3, 4})}},
       tensor(f32, {2, 2}, {0, 0, 0.6, 0.8})},
      {"one row of softmax is masked away",
       {Op::Softmax, {}, {tensor(f32, {2, 2}, {-kInf, -kInf, 0, -kInf})}},
       tensor(f32, {2, 2}, {kNan, kNan, 1, 0})},
      {"a row whose mask allows nothing is what its parts give",
       {Op::MaskedSoftmax,
        {},
        {tensor(f32, {2, 2}, {1, 2, 5, 6}), tensor(b1, {2, 2}, {0, 0, 0, 1})}},
       tensor(f32, {2, 2}, {kNan, kNan, 0, 1})},
      {"and with a finite number in place of its scores",
       {Op::MaskedSoftmax,
        Attrs().set("fill", -1e9).set("forbids", int64_t{1}),
        {tensor(f32, {2, 2}, {1, 2, 5, 6}), tensor(b1, {2}, {1, 1})}},
       tensor(f32, {2, 2}, {0.5, 0.5, 0.5, 0.5})},
      {"an added mask",
       {Op::MaskedSoftmax,
        Attrs().set("scale", 2.0),
        {tensor(f32, {2, 2}, {1, 2, 0, 1}), tensor(f32, {2, 1}, {-kInf, 0})}},
       tensor(f32, {2, 2}, {kNan, kNan, 0.11920292, 0.88079708})},
      {"masked scores of 16 bits are summed in 32",
       {Op::MaskedSoftmax,
        {},
        {tensor(DType::f16, {2}, {-100, -99}), tensor(DType::f16, {2}, {-65504, -65504})}},
       tensor(DType::f16, {2}, {0.26894142, 0.73105858})},
      {"gelu",
       {Op::Gelu, {}, {tensor(f32, {3}, {-1, 0, 1})}},
       tensor(f32, {3}, {-0.15865525, 0, 0.84134475})},
  };
  for (const Case& one : cases) {
    const Tolerance limit = tolerance(row(one.sample.op).accuracy, one.want.dtype());
    const std::vector<Tensor> reference = run_reference(one.sample);
    ASSERT_EQ(reference.size(), 1u) << one.what;
    EXPECT_EQ(reference[0].type(), one.want.type()) << one.what;
    expect_near(reference[0], one.want, limit, fmt::format("reference: {}", one.what));
    const std::vector<Tensor> loops = run_loops(one.sample);
    if (!loops.empty()) expect_near(loops[0], one.want, limit, fmt::format("loop: {}", one.what));
  }
}

TEST(Golden, SixtyFourBitsAreExact) {
  Tensor a = Tensor::allocate({DType::u64, {2}}), b = Tensor::allocate({DType::u64, {2}});
  a.set_int(0, -1), b.set_int(0, 1);  // 2^64 - 1 and 1
  a.set_int(1, (int64_t{1} << 53) + 1),
      b.set_int(1, int64_t{1} << 53);  // one apart, alike as doubles
  for (const auto& run : {run_reference, run_loops}) {
    EXPECT_EQ(run({Op::Max, {}, {a, b}})[0].get_int(0), -1);
    EXPECT_EQ(run({Op::Greater, {}, {a, b}})[0].get_int(0), 1);
    EXPECT_EQ(run({Op::Greater, {}, {a, b}})[0].get_int(1), 1);
    EXPECT_EQ(run({Op::Div, {}, {a, b}})[0].get_int(0), -1);
    EXPECT_EQ(run({Op::ReduceMax, {}, {a}})[0].get_int(0), -1);
    EXPECT_EQ(run({Op::ReduceSum, {}, {a}})[0].get_int(0), int64_t{1} << 53);
  }
}

TEST(Golden, SumsOfConstantsWrap) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  Exprs e;
  const ExprId x = e.coord(0, 8);
  const ExprId twice = e.add(e.add(x, most), most);
  EXPECT_EQ(e[e[twice].args[1]].integer, -2);
  EXPECT_EQ(e.sub(twice, e.add(x, int64_t{-2})), e.integer(0));
  EXPECT_EQ(e.mul(e.mul(x, int64_t{1} << 32), int64_t{1} << 32), e.integer(0));
}

TEST(Golden, FloatsBeyondIntegers) {
  const auto scaled = [](double alpha) {
    const Tensor one = tensor(DType::i64, {1, 1}, {1});
    return run_reference({Op::Gemm, Attrs().set("alpha", alpha), {one, one}})[0].get_int(0);
  };
  EXPECT_EQ(scaled(0x1p62), int64_t{1} << 62);
  EXPECT_EQ(scaled(1e30), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(scaled(kNan), std::numeric_limits<int64_t>::min());
  // The lowest over the scale is no number where both are infinite.
  EXPECT_EQ(
      run_reference({Op::DynamicQuantizeLinear, {}, {tensor(DType::f32, {2}, {-kInf, 1})}, 3})[2]
          .get_int(0),
      0);
}

std::string refusal(Op op, std::vector<Type> types, Attrs attrs = {}, int outputs = 1) {
  Call call{.op = op, .attrs = attrs, .outputs = outputs};
  for (const Type& type : types) call.inputs.push_back(&type), call.constants.push_back(nullptr);
  const Result<Types> result = infer(call);
  return result.ok() ? "accepted" : result.error().text();
}

TEST(Golden, RefusalsName) {
  using testing::HasSubstr;
  const Type f{DType::f32, {2, 3}}, g{DType::f32, {4}}, i{DType::i32, {2, 3}},
      axes{DType::i64, {1}};
  EXPECT_THAT(refusal(Op::Add, {f, i}), HasSubstr("Add: input 1 is i32, but input 0 is f32"));
  EXPECT_THAT(refusal(Op::Add, {f, g}),
              HasSubstr("input 1 is [4], which does not broadcast with [2,3]"));
  EXPECT_THAT(refusal(Op::Exp, {i}),
              HasSubstr("Exp: input 0 is i32, but it takes f64 f32 f16 bf16; cast it first"));
  EXPECT_THAT(refusal(Op::Add, {f}), HasSubstr("1 inputs, but it takes 2 to 2"));
  EXPECT_THAT(refusal(Op::SwiGLU, {f, g}), HasSubstr("the gate is [2,3], but what it scales [4]"));
  EXPECT_THAT(refusal(Op::ReduceSum, {f, axes}), HasSubstr("the axes (input 1) depends on data"));
  EXPECT_THAT(refusal(Op::Softmax, {f}, Attrs().set("axis", int64_t{2})),
              HasSubstr("axis 2 but the tensor has rank 2"));
  EXPECT_THAT(refusal(Op::MaskedSoftmax, {f, g}),
              HasSubstr("input 1 is [4], which does not broadcast into [2,3]"));
  EXPECT_THAT(refusal(Op::MaskedSoftmax, {f, axes}),
              HasSubstr("the mask is i64, wanted f32 to add or b1 to choose by"));
  const Type heads{DType::f32, {1, 2, 3, 4}};
  EXPECT_THAT(refusal(Op::Attention, {heads, heads, heads}), HasSubstr("accepted"));
  EXPECT_THAT(
      refusal(Op::Attention, {heads, heads, heads}, Attrs().set("left_window_size", int64_t{-2})),
      HasSubstr("left_window_size = -2, wanted -1 or more"));
  const int64_t far = int64_t{1} << 62, many = int64_t{1} << 36;
  const auto heads_of = [](int64_t queries) {
    return Attrs()
        .set("q_num_heads", queries)
        .set("kv_num_heads", int64_t{1})
        .set("update_rule", "linear");
  };
  const auto columns = [](int64_t count) { return Type{DType::f32, {1, 1, count}}; };
  for (Op op : {Op::Attention, Op::LinearAttention}) {
    EXPECT_THAT(refusal(op, {columns(many), columns(1), columns(many)}, heads_of(many)),
                HasSubstr("68719476736 heads of 68719476736 elements"));
    EXPECT_THAT(refusal(op, {columns(0), columns(0), columns(8)}, heads_of(far)),
                HasSubstr("4611686018427387904 and 1 heads"));
  }
  EXPECT_THAT(refusal(Op::RotaryEmbedding, {columns(0), columns(0), columns(0)},
                      Attrs().set("num_heads", far)),
              HasSubstr("num_heads = 4611686018427387904"));
  const Type none{DType::f32, {0}};
  EXPECT_THAT(refusal(Op::GroupNormalization, {{DType::f32, {2, 0, 4}}, none, none},
                      Attrs().set("num_groups", far)),
              HasSubstr("num_groups = 4611686018427387904"));
  EXPECT_THAT(
      refusal(Op::MeanVarianceNormalization, {f}, Attrs().set("axes", std::vector<int64_t>{1, -1})),
      HasSubstr("axis 1 is named twice"));
  EXPECT_THAT(refusal(Op::LayerNormalization, {f, g}),
              HasSubstr("input 1 is [4], which does not broadcast into [2,3]"));
  EXPECT_THAT(refusal(Op::NormStatistics, {f, g}),
              HasSubstr("the product is [4], which has other rows than [2,3]"));
  EXPECT_THAT(refusal(Op::Cast, {f}, Attrs().set("to", int64_t{8})),
              HasSubstr("strings and complex numbers do not run"));
  EXPECT_THAT(refusal(Op::RandomNormal, {}), HasSubstr("draws random numbers"));
  EXPECT_THAT(refusal(Op::GroupNormalization, {{DType::f32, {1, 4, 2}}, g, g},
                      Attrs().set("num_groups", int64_t{3})),
              HasSubstr("num_groups = 3 does not divide 4 channels"));
}

}  // namespace
}  // namespace obelisk::ops::test
