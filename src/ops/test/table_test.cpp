// Every row of these families over types and shapes (scalar, empty, one, odd, broadcast): infer,
// reference, loop and expansion agree. The samples of a row are listed here.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ops/test/sample.h"

namespace obelisk::ops::test {
namespace {

const std::vector<DType> kAllFloats{DType::f64, DType::f32, DType::f16, DType::bf16};
const std::vector<DType> kAllInts{DType::i64, DType::i32, DType::i16, DType::i8,
                                  DType::u64, DType::u32, DType::u16, DType::u8};

std::vector<DType> operator+(std::vector<DType> a, const std::vector<DType>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
const std::vector<DType> kAllNumbers = kAllFloats + kAllInts;
const std::vector<DType> kBool{DType::b1};
const std::vector<DType> kSome{DType::f32, DType::f16};
const std::vector<Shape> kShapes{{}, {0}, {1}, {7}, {2, 0, 3}, {3, 5}, {2, 3, 4}};

using Samples = std::vector<Sample>;

void add_unary(Samples& out, Op op, const std::vector<DType>& dtypes, const Attrs& attrs = {}) {
  for (DType dtype : dtypes)
    for (const Shape& shape : kShapes)
      for (bool wild : {false, true})
        out.push_back({op, attrs, {random_tensor(dtype, shape, 1, wild)}});
}

void add_binary(Samples& out, Op op, const std::vector<DType>& dtypes, const Attrs& attrs = {}) {
  const std::vector<std::pair<Shape, Shape>> shapes{
      {{}, {}},      {{0}, {1}},          {{7}, {}},       {{}, {3}},
      {{3, 5}, {5}}, {{4, 1, 3}, {2, 1}}, {{2, 3}, {2, 3}}};
  for (DType dtype : dtypes)
    for (const auto& [a, b] : shapes)
      for (bool wild : {false, true})
        out.push_back(
            {op, attrs, {random_tensor(dtype, a, 1, wild), random_tensor(dtype, b, 2, wild)}});
}

Samples elementwise_samples() {
  Samples out;
  for (Op op : {Op::Floor,       Op::Ceil,      Op::Round,
                Op::Sqrt,        Op::Rsqrt,     Op::Reciprocal,
                Op::Exp,         Op::Log,       Op::Sin,
                Op::Cos,         Op::Tan,       Op::Asin,
                Op::Acos,        Op::Atan,      Op::Sinh,
                Op::Cosh,        Op::Tanh,      Op::Asinh,
                Op::Acosh,       Op::Atanh,     Op::Erf,
                Op::Sigmoid,     Op::LeakyRelu, Op::Elu,
                Op::Selu,        Op::Celu,      Op::ThresholdedRelu,
                Op::HardSigmoid, Op::HardSwish, Op::Softplus,
                Op::Softsign,    Op::Swish,     Op::Gelu,
                Op::Mish})
    add_unary(out, op, kAllFloats);
  for (Op op : {Op::Abs, Op::Sign, Op::Relu}) add_unary(out, op, kAllNumbers);
  add_unary(out, Op::Neg,
            {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i16,
             DType::i8});
  add_unary(out, Op::Shrink, kAllFloats + std::vector<DType>{DType::i8, DType::i32, DType::u8},
            Attrs().set("bias", 1.5).set("lambd", 1.0));
  for (Op op : {Op::LeakyRelu, Op::Elu, Op::Celu, Op::ThresholdedRelu, Op::Swish})
    add_unary(out, op, kSome, Attrs().set("alpha", 1.7));
  add_unary(out, Op::Gelu, kSome, Attrs().set("approximate", std::string("tanh")));
  for (Op op : {Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Min, Op::Max})
    add_binary(out, op, kAllNumbers);
  add_binary(out, Op::Mod, kAllNumbers);
  add_binary(out, Op::Mod, kAllNumbers, Attrs().set("fmod", int64_t{1}));
  for (Op op : {Op::Sum, Op::Mean}) add_binary(out, op, kAllFloats);
  add_binary(out, Op::Pow, kAllNumbers);
  for (DType base : {DType::f32, DType::f16, DType::i32, DType::i64})
    for (DType exponent : {DType::f32, DType::f64, DType::i64, DType::i32, DType::u8})
      out.push_back(
          {Op::Pow, {}, {random_tensor(base, {4, 3}, 1), random_tensor(exponent, {3}, 2)}});
  for (DType dtype : kAllFloats)
    for (const Shape& shape : kShapes)
      for (bool wild : {false, true})
        out.push_back({Op::SwiGLU,
                       wild ? Attrs().set("alpha", 1.7) : Attrs(),
                       {random_tensor(dtype, shape, 1, wild), random_tensor(dtype, shape, 2)}});
  for (DType dtype : kAllNumbers) {
    const Tensor x = random_tensor(dtype, {4, 6}, 1, true);
    const Tensor low = tensor(dtype, {}, {1}), high = tensor(dtype, {1}, {4});
    for (int op : {0, 1, 2, 3})
      out.push_back({Op::Clip, {}, {x, op & 1 ? low : Tensor(), op & 2 ? high : Tensor()}});
    out.push_back({Op::PRelu, {}, {x, random_tensor(dtype, {4, 1}, 2)}});
    for (Op op : {Op::Max, Op::Min})
      out.push_back({op, {}, {x, random_tensor(dtype, {6}, 2), random_tensor(dtype, {}, 3)}});
  }
  return out;
}

Samples logic_samples() {
  Samples out;
  for (Op op : {Op::And, Op::Or, Op::Xor}) add_binary(out, op, kBool);
  add_unary(out, Op::Not, kBool);
  add_binary(out, Op::Equal, kAllNumbers + kBool);
  for (Op op : {Op::Greater, Op::GreaterOrEqual, Op::Less, Op::LessOrEqual})
    add_binary(out, op, kAllNumbers);
  for (Op op : {Op::BitwiseAnd, Op::BitwiseOr, Op::BitwiseXor}) add_binary(out, op, kAllInts);
  add_unary(out, Op::BitwiseNot, kAllInts);
  for (const char* direction : {"LEFT", "RIGHT"})
    add_binary(out, Op::BitShift, kAllInts, Attrs().set("direction", std::string(direction)));
  for (DType dtype :
       kAllFloats + std::vector<DType>{DType::f8e4m3fn, DType::f8e5m2, DType::f8e5m2fnuz}) {
    const Tensor x = random_tensor(dtype, {5, 7}, 1, true);
    out.push_back({Op::IsNaN, {}, {x}});
    for (const char* side : {"detect_negative", "detect_positive"})
      for (int64_t on : {0, 1}) out.push_back({Op::IsInf, Attrs().set(side, on), {x}});
  }
  for (DType dtype : kAllNumbers + std::vector<DType>{DType::b1, DType::i4, DType::f8e5m2})
    out.push_back({Op::Where,
                   {},
                   {random_tensor(DType::b1, {4, 1}, 1), random_tensor(dtype, {3}, 2, true),
                    random_tensor(dtype, {2, 1, 1}, 3, true)}});
  return out;
}

Samples convert_samples() {
  Samples out;
  for (int from = 0; from < kDTypes; ++from) {
    for (int to = 0; to < kDTypes; ++to) {
      const auto source = static_cast<DType>(from), target = static_cast<DType>(to);
      const bool wild = is_float(target) || !is_float(source);  // NaN has no integer
      for (int64_t saturate : {0, 1}) {
        const Attrs attrs = Attrs().set("to", number_of_dtype(target)).set("saturate", saturate);
        if (source == DType::f8e8m0 && wild && !is_float(target)) continue;
        out.push_back({Op::Cast, attrs, {random_tensor(source, {3, 5}, 1, wild)}});
        out.push_back({Op::CastLike,
                       Attrs().set("saturate", saturate),
                       {random_tensor(source, {4}, 1, wild), random_tensor(target, {}, 2)}});
      }
      if (bits(source) == bits(target) && source != DType::b1 && target != DType::b1)
        out.push_back({Op::BitCast,
                       Attrs().set("to", number_of_dtype(target)),
                       {random_tensor(source, {9}, 1)}});
    }
  }
  const std::vector<DType> quants{DType::i16,      DType::i8,     DType::i4,    DType::i2,
                                  DType::u16,      DType::u8,     DType::u4,    DType::u2,
                                  DType::f8e4m3fn, DType::f8e5m2, DType::f4e2m1};
  for (DType quant : quants) {
    const bool real = is_float(quant);
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Tensor x = random_tensor(dtype, {3, 4, 2}, 1);
      const Tensor q = random_tensor(quant, {3, 4, 2}, 2, !real);
      auto add = [&](Shape parts, int64_t axis, int64_t block) {
        Tensor scale = random_tensor(dtype, parts, 3);
        for (int64_t n = 0; n < scale.count(); ++n)
          scale.set_double(n, 0.25 + std::abs(scale.get_double(n)));
        const Tensor zero = real
                                ? tensor(quant, parts, std::vector<double>(element_count(parts), 0))
                                : random_tensor(quant, parts, 4);
        const Attrs attrs = Attrs().set("axis", axis).set("block_size", block);
        out.push_back({Op::QuantizeLinear, attrs, {x, scale, zero}});
        out.push_back({Op::DequantizeLinear, attrs, {q, scale, zero}});
        out.push_back({Op::DequantizeLinear, attrs, {q, scale}});
        Attrs no_zero = attrs;
        out.push_back(
            {Op::QuantizeLinear, no_zero.set("output_dtype", number_of_dtype(quant)), {x, scale}});
      };
      add({}, 1, 0), add({1}, 1, 0), add({4}, -2, 0), add({3}, 0, 0), add({3, 2, 2}, 1, 2),
          add({3, 2, 2}, 1, 3);
    }
  }
  out.push_back({Op::DequantizeLinear,
                 {},
                 {random_tensor(DType::i32, {5}, 1), tensor(DType::f32, {}, {0.5})}});
  for (const Tensor& x :
       {random_tensor(DType::f32, {3, 5}, 1), tensor(DType::f32, {2}, {0, 0}),
        tensor(DType::f32, {3}, {1, 2, 8}), tensor(DType::f32, {3}, {-1, -2, -8})})
    out.push_back({Op::DynamicQuantizeLinear, {}, {x}, 3});
  return out;
}

Samples reduce_samples() {
  Samples out;
  const std::vector<std::pair<Shape, std::vector<int64_t>>> folds{
      {{}, {}},         {{5}, {0}},      {{3, 4}, {-1}},   {{3, 4}, {0}},    {{2, 3, 4}, {0, 2}},
      {{2, 3, 4}, {1}}, {{2, 3, 4}, {}}, {{2, 0, 3}, {1}}, {{2, 0, 3}, {0}}, {{1, 4, 1}, {0, 1}}};
  auto add = [&](Op op, const std::vector<DType>& dtypes) {
    for (DType dtype : dtypes) {
      for (const auto& [shape, axes] : folds) {
        for (int64_t keep : {0, 1}) {
          const Attrs attrs = Attrs().set("keepdims", keep);
          out.push_back({op, attrs, {random_tensor(dtype, shape, 1), tensor_of(axes)}});
          if (axes.empty()) {
            Attrs noop = attrs;
            out.push_back({op,
                           noop.set("noop_with_empty_axes", int64_t{1}),
                           {random_tensor(dtype, shape, 2)}});
            out.push_back({op, attrs, {random_tensor(dtype, shape, 2)}});
          }
        }
      }
      // A sum of squares that wraps below zero has no root.
      if (is_float(dtype) || op != Op::ReduceL2)
        out.push_back({op, {}, {random_tensor(dtype, {3, 9}, 3, true), tensor_of({1})}});
    }
  };
  for (Op op : {Op::ReduceSum, Op::ReduceMean, Op::ReduceProd, Op::ReduceL1, Op::ReduceL2,
                Op::ReduceSumSquare})
    add(op, kAllFloats + std::vector<DType>{DType::i32, DType::i64, DType::u32, DType::u64});
  for (Op op : {Op::ReduceLogSum, Op::ReduceLogSumExp}) add(op, kAllFloats);
  for (Op op : {Op::ReduceMax, Op::ReduceMin}) add(op, kAllNumbers + kBool);
  for (Op op : {Op::ArgMax, Op::ArgMin})
    for (DType dtype : kAllNumbers)
      for (int64_t keep : {0, 1})
        for (int64_t last : {0, 1})
          for (int64_t axis : {0, 1, -1})
            for (bool wild : {false, true})
              out.push_back(
                  {op,
                   Attrs().set("keepdims", keep).set("select_last_index", last).set("axis", axis),
                   {random_tensor(dtype, {3, 4, 5}, 1, wild)}});
  return out;
}

Samples norm_samples() {
  Samples out;
  for (DType dtype : kAllFloats) {
    auto random = [&](Shape shape, int seed) {
      return random_tensor(dtype, std::move(shape), seed);
    };
    auto positive = [&](Shape shape, int seed) {
      Tensor made = random(std::move(shape), seed);
      for (int64_t n = 0; n < made.count(); ++n)
        made.set_double(n, 0.1 + std::abs(made.get_double(n)));
      return made;
    };
    for (Op op : {Op::Softmax, Op::LogSoftmax, Op::Hardmax, Op::LpNormalization}) {
      for (const Shape& shape :
           {Shape{1}, Shape{9}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 0}, Shape{0, 2}})
        for (int64_t axis : {0, -1})
          out.push_back({op, Attrs().set("axis", axis), {random(shape, 1)}});
      if (op != Op::LpNormalization)
        out.push_back({op, {}, {random_tensor(dtype, {6, 5}, 2, true)}});
    }
    for (const auto& [shape, mask] : std::vector<std::pair<Shape, Shape>>{
             {{9}, {9}}, {{3, 5}, {5}}, {{2, 3, 4}, {3, 1}}, {{2, 3, 4}, {}}, {{2, 0}, {2, 1}}}) {
      for (int64_t axis : {0, -1}) {
        const Attrs attrs = Attrs().set("axis", axis).set("scale", 0.5);
        Tensor seen = Tensor::allocate({DType::b1, mask});
        for (int64_t n = 0; n < seen.count(); ++n) seen.set_int(n, n % 3 != 1);
        out.push_back({Op::MaskedSoftmax, attrs, {random(shape, 1), random(mask, 2)}});
        out.push_back({Op::MaskedSoftmax, attrs, {random(shape, 1), seen}});
        out.push_back({Op::MaskedSoftmax,
                       Attrs(attrs).set("forbids", int64_t{1}).set("fill", -3e4),
                       {random(shape, 1), seen}});
      }
    }
    out.push_back(
        {Op::MaskedSoftmax, {}, {random({6, 5}, 1), random_tensor(dtype, {6, 5}, 2, true)}});
    out.push_back({Op::LpNormalization, Attrs().set("p", int64_t{1}), {random({3, 4}, 1)}});
    out.push_back({Op::LpNormalization, {}, {tensor(dtype, {2, 2}, {0, 0, 3, 4})}});
    for (int64_t axis : {0, 1, -1}) {
      const Shape shape{2, 3, 8};
      const Shape part(shape.begin() + (axis < 0 ? 2 : axis), shape.end());
      const Attrs attrs = Attrs().set("axis", axis).set("epsilon", 1e-3);
      out.push_back(
          {Op::LayerNormalization, attrs, {random(shape, 1), random(part, 2), random(part, 3)}, 3});
      out.push_back({Op::LayerNormalization, attrs, {random(shape, 1), random(part, 2)}});
      out.push_back({Op::RMSNormalization, attrs, {random(shape, 1), random(part, 2)}});
    }
    out.push_back(
        {Op::RMSNormalization, {}, {random({2, 4}, 1), random_tensor(DType::f32, {4}, 2)}});
    for (int64_t centred : {0, 1})
      for (const Shape& shape : {Shape{5}, Shape{3, 8}, Shape{2, 3, 7}})
        out.push_back({Op::NormStatistics,
                       Attrs().set("epsilon", 1e-3).set("centred", centred),
                       {random(shape, 1)},
                       2});
    out.push_back({Op::NormStatistics, {}, {random({3, 8}, 1), random({3, 2}, 2)}, 2});
    for (int64_t groups : {1, 2, 6})
      out.push_back({Op::GroupNormalization,
                     Attrs().set("num_groups", groups),
                     {random({2, 6, 3, 2}, 1), random({6}, 2), random({6}, 3)}});
    for (const Shape& shape : {Shape{2, 3, 4}, Shape{1, 3, 2, 5}, Shape{0, 3, 2}})
      out.push_back(
          {Op::InstanceNormalization, {}, {random(shape, 1), random({3}, 2), random({3}, 3)}});
    for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 4}, Shape{1, 3, 2, 5}}) {
      const std::vector<Tensor> inputs{random(shape, 1), random({3}, 2), random({3}, 3),
                                       random({3}, 4), positive({3}, 5)};
      out.push_back({Op::BatchNormalization, {}, inputs});
      out.push_back({Op::BatchNormalization,
                     Attrs().set("training_mode", int64_t{1}).set("momentum", 0.7), inputs, 3});
    }
    out.push_back({Op::MeanVarianceNormalization, {}, {random({2, 3, 4, 5}, 1)}});
    out.push_back({Op::MeanVarianceNormalization,
                   Attrs().set("axes", std::vector<int64_t>{0, -1}),
                   {random({4, 3, 5}, 1)}});
    for (int64_t size : {1, 2, 3, 5})
      out.push_back({Op::LRN,
                     Attrs().set("size", size).set("alpha", 0.3).set("bias", 2.0),
                     {random({2, 4, 3}, 1)}});
  }
  return out;
}

Samples loss_samples() {
  Samples out;
  for (Op op : {Op::NegativeLogLikelihoodLoss, Op::SoftmaxCrossEntropyLoss}) {
    for (DType dtype : {DType::f32, DType::f64, DType::f16}) {
      for (const char* how : {"none", "sum", "mean"}) {
        for (const Shape& shape : {Shape{3, 5}, Shape{2, 5, 2}, Shape{2, 5, 2, 3}}) {
          Shape at = shape;
          at.erase(at.begin() + 1);
          Tensor labels = Tensor::allocate({DType::i64, at});
          for (int64_t n = 0; n < labels.count(); ++n) labels.set_int(n, (n * 3 + 1) % 5);
          const Tensor scores = random_tensor(dtype, shape, 1),
                       weights = random_tensor(dtype, {5}, 2);
          const int outputs = op == Op::SoftmaxCrossEntropyLoss ? 2 : 1;
          const Attrs attrs = Attrs().set("reduction", std::string(how));
          Attrs ignoring = attrs;
          ignoring.set("ignore_index", int64_t{4});
          out.push_back({op, attrs, {scores, labels}, outputs});
          out.push_back({op, attrs, {scores, labels.cast(DType::i32), weights}});
          out.push_back({op, ignoring, {scores, labels}});
          out.push_back({op, ignoring, {scores, labels, weights}});
        }
      }
    }
  }
  return out;
}

Samples dropout_samples() {
  const Tensor x = random_tensor(DType::f32, {3, 4}, 1);
  return {{Op::Dropout, {}, {x}, 2},
          {Op::Dropout, {}, {x, tensor(DType::f32, {}, {0.3}), tensor(DType::b1, {}, {0})}, 2},
          {Op::Dropout, {}, {x, tensor(DType::f32, {}, {0}), tensor(DType::b1, {}, {1})}, 1}};
}

const std::map<std::string, Samples (*)()> kFamilies{
    {"elementwise", elementwise_samples}, {"logic", logic_samples}, {"convert", convert_samples},
    {"reduce", reduce_samples},           {"norm", norm_samples},   {"loss", loss_samples},
    {"dropout", dropout_samples}};

class Table : public testing::TestWithParam<std::string> {};

TEST_P(Table, ColumnsAgree) {
  for (const Sample& sample : kFamilies.at(GetParam())()) {
    check(sample);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Table,
                         testing::Values("elementwise", "logic", "convert", "reduce", "norm",
                                         "loss", "dropout"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace obelisk::ops::test
