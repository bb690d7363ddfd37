// Every row of the products, convolutions, pools, attention and recurrent layers over types and
// attributes: infer, reference, loop and expansion agree.
#include <gtest/gtest.h>

#include <set>

#include "ops/test/sample.h"

namespace obelisk::ops::test {
namespace {

using Samples = std::vector<Sample>;
using Ints = std::vector<int64_t>;
const std::vector<DType> kAllFloats{DType::f64, DType::f32, DType::f16, DType::bf16};
const std::vector<DType> kSome{DType::f32, DType::f16};
const std::vector<DType> kProducts{DType::f64, DType::f32, DType::f16, DType::bf16,
                                   DType::i32, DType::i64, DType::u32, DType::u64};
const std::vector<DType> kBytes{DType::i8, DType::u8};

Tensor rnd(DType dtype, Shape shape, int seed = 1, bool wild = false) {
  return random_tensor(dtype, std::move(shape), seed, wild);
}
Tensor positive(DType dtype, Shape shape, int seed) {
  Tensor scale = rnd(dtype, std::move(shape), seed);
  for (int64_t n = 0; n < scale.count(); ++n)
    scale.set_double(n, 0.03 + 0.01 * std::abs(scale.get_double(n)));
  return scale;
}

Samples matmul_samples() {
  Samples out;
  const std::vector<std::pair<Shape, Shape>> shapes{
      {{2, 3}, {3, 4}},          {{3}, {3}},
      {{3}, {2, 3, 4}},          {{2, 5, 3}, {3}},
      {{2, 1, 5, 3}, {4, 3, 2}}, {{1, 1}, {1, 1}},
      {{2, 0}, {0, 3}},          {{0, 3}, {3, 2}},
      {{3, 5, 7}, {7, 6}},       {{5, 300}, {300, 17}},
      {{4, 5, 3}, {4, 3, 6}}};
  for (DType dtype : kProducts)
    for (const auto& [a, b] : shapes)
      for (bool wild : {false, true}) {
        const bool special =
            wild && is_float(dtype) && a.back() > 3;  // NaN everywhere tells little
        out.push_back({Op::MatMul, {}, {rnd(dtype, a, 1, wild && !special), rnd(dtype, b, 2)}});
      }
  for (DType dtype : kProducts)
    for (int flags = 0; flags < 4; ++flags)
      for (const Shape& c : {Shape{}, Shape{4}, Shape{3, 1}, Shape{1, 4}, Shape{3, 4}}) {
        const Attrs attrs =
            Attrs().set("transA", int64_t{flags & 1}).set("transB", int64_t{flags >> 1});
        const Tensor a = rnd(dtype, flags & 1 ? Shape{5, 3} : Shape{3, 5}, 1);
        const Tensor b = rnd(dtype, flags & 2 ? Shape{4, 5} : Shape{5, 4}, 2);
        out.push_back({Op::Gemm, attrs, {a, b, rnd(dtype, c, 3)}});
        Attrs scaled = attrs;
        scaled.set("alpha", 2.0).set("beta", -3.0);
        out.push_back({Op::Gemm, scaled, {a, b, rnd(dtype, c, 3)}});
        if (is_signed(dtype)) {
          scaled.set("alpha", 0.5).set("beta", 1.25);
          out.push_back({Op::Gemm, scaled, {a, b, rnd(dtype, c, 3)}});
        }
        out.push_back({Op::Gemm, attrs, {a, b}});
      }
  for (DType left : kBytes)
    for (DType right : kBytes) {
      const Tensor a = rnd(left, {2, 3, 5}, 1, true), b = rnd(right, {5, 4}, 2, true);
      out.push_back({Op::MatMulInteger, {}, {a, b}});
      out.push_back(
          {Op::MatMulInteger, {}, {a, b, rnd(left, {}, 3, true), rnd(right, {1}, 4, true)}});
      out.push_back(
          {Op::MatMulInteger, {}, {a, b, rnd(left, {2, 3, 1}, 3, true), rnd(right, {4}, 4, true)}});
      out.push_back(
          {Op::MatMulInteger, {}, {a, b, rnd(left, {3}, 3, true), rnd(right, {1, 4}, 4, true)}});
      out.push_back({Op::MatMulInteger, {}, {a, b, Tensor(), rnd(right, {}, 4, true)}});
      for (DType scale : {DType::f32, DType::f16})
        for (bool rows : {false, true}) {
          const Shape along_a = rows ? Shape{3} : Shape{}, along_b = rows ? Shape{1, 4} : Shape{1};
          out.push_back({Op::QLinearMatMul,
                         {},
                         {a, positive(scale, along_a, 5), rnd(left, along_a, 6), b,
                          positive(scale, along_b, 7), rnd(right, along_b, 8),
                          positive(scale, {}, 9), rnd(right, {}, 10)}});
        }
    }
  out.push_back(
      {Op::QLinearMatMul,
       {},
       {rnd(DType::f8e4m3fn, {3, 5}, 1), positive(DType::f32, {}, 2), rnd(DType::f8e4m3fn, {}, 3),
        rnd(DType::f8e5m2, {5, 2}, 4), positive(DType::f32, {}, 5), rnd(DType::f8e5m2, {}, 6),
        tensor(DType::f32, {}, {1.0}), rnd(DType::f8e4m3fn, {}, 7)}});
  return out;
}

/// Attributes of windows on 7x8 images with a kernel of 3x2.
std::vector<Attrs> window_attrs() {
  std::vector<Attrs> all{{}};
  all.push_back(Attrs().set("strides", Ints{2, 3}));
  all.push_back(Attrs().set("pads", Ints{1, 0, 2, 1}));
  all.push_back(Attrs().set("dilations", Ints{2, 3}).set("pads", Ints{2, 1, 1, 0}));
  all.push_back(Attrs()
                    .set("strides", Ints{3, 2})
                    .set("dilations", Ints{2, 1})
                    .set("pads", Ints{2, 1, 2, 1}));
  for (const char* mode : {"SAME_UPPER", "SAME_LOWER", "VALID"})
    for (const Ints& strides : {Ints{1, 1}, Ints{2, 3}})
      all.push_back(Attrs().set("auto_pad", std::string(mode)).set("strides", strides));
  return all;
}

Samples conv_samples() {
  Samples out;
  for (DType dtype : kAllFloats) {
    for (const Attrs& attrs : window_attrs()) {
      out.push_back({Op::Conv,
                     attrs,
                     {rnd(dtype, {2, 3, 7, 8}), rnd(dtype, {4, 3, 3, 2}, 2), rnd(dtype, {4}, 3)}});
      Attrs grouped = attrs;
      grouped.set("group", int64_t{2}).set("kernel_shape", Ints{3, 2});
      out.push_back({Op::Conv, grouped, {rnd(dtype, {1, 4, 7, 8}), rnd(dtype, {6, 2, 3, 2}, 2)}});
      out.push_back({Op::ConvTranspose,
                     attrs,
                     {rnd(dtype, {2, 3, 4, 5}), rnd(dtype, {3, 2, 3, 2}, 2), rnd(dtype, {2}, 3)}});
      Attrs both = attrs;
      both.set("group", int64_t{2});
      out.push_back(
          {Op::ConvTranspose, both, {rnd(dtype, {1, 4, 3, 4}), rnd(dtype, {4, 3, 3, 2}, 2)}});
    }
    out.push_back({Op::Conv, {}, {rnd(dtype, {0, 3, 7, 8}), rnd(dtype, {4, 3, 3, 2}, 2)}});
    out.push_back({Op::Conv,
                   Attrs().set("pads", Ints{2, 2}),
                   {rnd(dtype, {1, 2, 9}), rnd(dtype, {3, 2, 5}, 2)}});
    out.push_back({Op::Conv,
                   Attrs().set("group", int64_t{5}),
                   {rnd(dtype, {1, 5, 6}), rnd(dtype, {5, 1, 3}, 2)}});
    out.push_back({Op::Conv,
                   Attrs().set("strides", Ints{2, 1, 2}).set("pads", Ints{1, 0, 1, 0, 1, 1}),
                   {rnd(dtype, {1, 2, 4, 5, 3}), rnd(dtype, {3, 2, 2, 3, 2}, 2)}});
    out.push_back({Op::ConvTranspose,
                   Attrs().set("strides", Ints{3}).set("output_padding", Ints{2}),
                   {rnd(dtype, {1, 2, 4}), rnd(dtype, {2, 3, 2}, 2)}});
    for (const char* mode : {"NOTSET", "SAME_UPPER", "SAME_LOWER"})
      out.push_back({Op::ConvTranspose,
                     Attrs()
                         .set("strides", Ints{3, 2})
                         .set("output_shape", Ints{10, 8})
                         .set("auto_pad", std::string(mode)),
                     {rnd(dtype, {1, 1, 3, 3}), rnd(dtype, {1, 2, 3, 3}, 2)}});
    for (int64_t kernel : {1, 3})
      for (const char* activation : {"none", "silu"})
        for (bool past : {false, true})
          out.push_back({Op::CausalConvWithState,
                         Attrs().set("activation", std::string(activation)),
                         {rnd(dtype, {2, 3, 5}), rnd(dtype, {3, 1, kernel}, 2),
                          past ? rnd(dtype, {3}, 3) : Tensor(),
                          past ? rnd(dtype, {2, 3, kernel - 1}, 4) : Tensor()},
                         2});
    // The state is longer than what is new.
    out.push_back(
        {Op::CausalConvWithState, {}, {rnd(dtype, {1, 2, 2}), rnd(dtype, {2, 1, 5}, 2)}, 2});
    const Attrs deformed = Attrs().set("pads", Ints{1, 1, 1, 1}).set("strides", Ints{1, 2});
    out.push_back(
        {Op::DeformConv,
         deformed,
         {rnd(dtype, {1, 2, 4, 5}), rnd(dtype, {3, 2, 2, 2}, 2), rnd(dtype, {1, 8, 5, 3}, 3)}});
    Attrs groups = deformed;
    groups.set("group", int64_t{2}).set("offset_group", int64_t{2});
    out.push_back(
        {Op::DeformConv,
         groups,
         {rnd(dtype, {1, 4, 4, 5}), rnd(dtype, {4, 2, 2, 2}, 2), rnd(dtype, {1, 16, 5, 3}, 3),
          rnd(dtype, {4}, 4), rnd(dtype, {1, 8, 5, 3}, 5)}});
  }
  for (DType x : kBytes)
    for (DType w : kBytes)
      for (const Attrs& attrs : window_attrs()) {
        const Tensor image = rnd(x, {1, 3, 7, 8}, 1, true), weights = rnd(w, {4, 3, 3, 2}, 2, true);
        out.push_back(
            {Op::ConvInteger, attrs, {image, weights, rnd(x, {}, 3, true), rnd(w, {4}, 4, true)}});
        out.push_back({Op::ConvInteger, attrs, {image, weights, Tensor(), rnd(w, {}, 4, true)}});
        for (bool channels : {false, true}) {
          const Shape along = channels ? Shape{4} : Shape{};
          out.push_back(
              {Op::QLinearConv,
               attrs,
               {image, positive(DType::f32, {}, 5), rnd(x, {}, 6), weights,
                positive(DType::f32, along, 7), rnd(w, along, 8), positive(DType::f32, {}, 9),
                rnd(x, {}, 10), channels ? rnd(DType::i32, {4}, 11) : Tensor()}});
        }
      }
  return out;
}

Samples pool_samples() {
  Samples out;
  std::vector<DType> maxed = kAllFloats;
  maxed.insert(maxed.end(), kBytes.begin(), kBytes.end());
  for (Attrs attrs : window_attrs()) {
    attrs.set("kernel_shape", Ints{3, 2});
    for (int64_t ceil : {0, 1}) {
      attrs.set("ceil_mode", ceil);
      for (DType dtype : maxed)
        for (int64_t order : {0, 1}) {
          Attrs ordered = attrs;
          ordered.set("storage_order", order);
          out.push_back(
              {Op::MaxPool, ordered, {rnd(dtype, {2, 3, 7, 8}, 1, !is_float(dtype) || order)}, 2});
        }
      for (DType dtype : kAllFloats) {
        for (int64_t padding : {0, 1}) {
          Attrs counting = attrs;
          counting.set("count_include_pad", padding);
          out.push_back({Op::AveragePool, counting, {rnd(dtype, {2, 3, 7, 8})}});
        }
        for (int64_t p : {1, 2, 3}) {
          Attrs norm = attrs;
          out.push_back({Op::LpPool, norm.set("p", p), {rnd(dtype, {1, 3, 7, 8})}});
        }
      }
    }
  }
  for (Op op : {Op::GlobalMaxPool, Op::GlobalAveragePool, Op::GlobalLpPool})
    for (DType dtype : kAllFloats)
      for (const Shape& shape :
           {Shape{2, 3, 4, 5}, Shape{1, 3, 7}, Shape{2, 2, 1, 1}, Shape{1, 2, 2, 3, 2}})
        out.push_back({op, {}, {rnd(dtype, shape)}});
  out.push_back({Op::MaxPool,
                 Attrs().set("kernel_shape", Ints{2}),
                 {rnd(DType::f32, {1, 2, 5}, 1, true)},
                 2});
  out.push_back({Op::MaxPool,
                 Attrs().set("kernel_shape", Ints{2, 1, 3}).set("pads", Ints{1, 0, 2, 0, 0, 1}),
                 {rnd(DType::f32, {1, 2, 3, 2, 4})},
                 2});
  return out;
}

Samples attention_samples() {
  Samples out;
  const float cap = 1.5;
  for (DType dtype : {DType::f64, DType::f32, DType::f16}) {
    auto add = [&](Attrs attrs, int64_t q_heads, int64_t kv_heads, bool past, Tensor mask,
                   Tensor valid, int outputs) {
      const int64_t batch = 2, length = 3, fresh = past ? 3 : 5;
      std::vector<Tensor> inputs{rnd(dtype, {batch, q_heads, length, 4}, 1),
                                 rnd(dtype, {batch, kv_heads, fresh, 4}, 2),
                                 rnd(dtype, {batch, kv_heads, fresh, 6}, 3),
                                 mask,
                                 past ? rnd(dtype, {batch, kv_heads, 2, 4}, 4) : Tensor(),
                                 past ? rnd(dtype, {batch, kv_heads, 2, 6}, 5) : Tensor(),
                                 valid};
      out.push_back({Op::Attention, attrs, inputs, outputs});
      // The same numbers of elements in the packed form.
      inputs[0] = rnd(dtype, {batch, length, q_heads * 4}, 1);
      inputs[1] = rnd(dtype, {batch, fresh, kv_heads * 4}, 2);
      inputs[2] = rnd(dtype, {batch, fresh, kv_heads * 6}, 3);
      attrs.set("q_num_heads", q_heads).set("kv_num_heads", kv_heads);
      out.push_back({Op::Attention, attrs, inputs, outputs});
    };
    const Tensor allowed = tensor(DType::b1, {3, 5}, {1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0});
    add({}, 2, 2, false, {}, {}, 1);
    add(Attrs().set("is_causal", int64_t{1}), 4, 2, true, {}, {}, 3);
    add(Attrs().set("scale", 0.3).set("softcap", double{cap}), 4, 1, false, rnd(dtype, {3, 5}, 6),
        {}, 1);
    add(Attrs().set("is_causal", int64_t{1}), 2, 2, true, allowed, {}, 1);
    add({}, 2, 2, false, rnd(dtype, {2, 1, 3, 3}, 6), tensor(DType::i64, {2}, {2, 3}), 1);
    add({}, 2, 1, false, allowed, tensor(DType::i64, {2}, {5, 4}), 1);
    // Rows that see nothing: by a mask, by the causal rule, by a window.
    const Tensor valid = tensor(DType::i64, {2}, {2, 4});
    add({}, 2, 2, false, tensor(DType::b1, {3, 1}, {1, 0, 1}), {}, 1);
    add(Attrs().set("is_causal", int64_t{1}), 4, 2, false, {}, valid, 1);
    add(Attrs().set("is_causal", int64_t{1}), 2, 2, false, rnd(dtype, {2, 1, 3, 4}, 6), valid, 1);
    for (int64_t left : {-1, 0, 1})
      for (int64_t right : {-1, 0, 2}) {
        const Attrs window = Attrs().set("left_window_size", left).set("right_window_size", right);
        add(window, 2, 2, false, {}, {}, 1);
        add(window, 4, 2, true, rnd(dtype, {5}, 6), {}, 1);
        add(Attrs(window).set("is_causal", int64_t{1}), 2, 1, false, allowed, valid, 1);
      }
    for (int64_t mode : {0, 1, 2, 3})
      add(Attrs().set("qk_matmul_output_mode", mode).set("softcap", double{cap}), 4, 2, true,
          rnd(dtype, {1, 4, 3, 5}, 6), {}, 4);
  }
  for (DType dtype : kAllFloats)
    for (int64_t interleaved : {0, 1})
      for (int64_t rotated : {0, 4})
        for (bool positions : {false, true}) {
          const int64_t half = (rotated ? rotated : 6) / 2;
          const Shape cache = positions ? Shape{9, half} : Shape{2, 3, half};
          const Tensor ids = positions ? tensor(DType::i64, {2, 3}, {0, 8, 3, 2, 2, 5}) : Tensor();
          const Attrs attrs = Attrs()
                                  .set("interleaved", interleaved)
                                  .set("rotary_embedding_dim", rotated)
                                  .set("num_heads", int64_t{4});
          for (const Shape& x : {Shape{2, 4, 3, 6}, Shape{2, 3, 24}})
            out.push_back({Op::RotaryEmbedding,
                           attrs,
                           {rnd(dtype, x), rnd(dtype, cache, 2), rnd(dtype, cache, 3), ids}});
        }
  for (DType dtype : kSome)
    for (const char* rule : {"linear", "gated", "delta", "gated_delta"})
      for (bool small : {false, true}) {
        const std::string name(rule);
        const bool gated = name.find("gated") == 0,
                   corrected = name.find("delta") != std::string::npos;
        const Attrs attrs = Attrs()
                                .set("update_rule", name)
                                .set("q_num_heads", int64_t{4})
                                .set("kv_num_heads", int64_t{2});
        auto gentle = [&](Shape shape, int seed) {
          Tensor t = rnd(dtype, std::move(shape), seed);
          for (int64_t n = 0; n < t.count(); ++n) t.set_double(n, t.get_double(n) / 8);
          return t;
        };
        out.push_back({Op::LinearAttention,
                       attrs,
                       {gentle({2, 3, 12}, 1), gentle({2, 3, 6}, 2), gentle({2, 3, 8}, 3),
                        small ? Tensor() : gentle({2, 2, 3, 4}, 4),
                        gated ? gentle({2, 3, small ? 2 : 6}, 5) : Tensor(),
                        corrected ? gentle({2, 3, small ? 1 : 2}, 6) : Tensor()},
                       2});
      }
  return out;
}

Tensor half(DType dtype, Shape shape, int seed) {
  Tensor t = rnd(dtype, std::move(shape), seed);
  for (int64_t n = 0; n < t.count(); ++n) t.set_double(n, t.get_double(n) / 2);
  return t;
}

Samples recurrent_samples() {
  Samples out;
  for (DType dtype : {DType::f64, DType::f32, DType::f16})
    for (Op op : {Op::LSTM, Op::GRU, Op::RNN}) {
      const int64_t gates = op == Op::LSTM ? 4 : op == Op::GRU ? 3 : 1, hidden = 3;
      auto add = [&](Attrs attrs, const std::string& direction, bool full) {
        const int64_t d = direction == "bidirectional" ? 2 : 1;
        const bool batch_first = attrs.get_int("layout", 0) != 0;
        attrs.set("direction", direction).set("hidden_size", hidden);
        const Shape x = batch_first ? Shape{2, 4, 5} : Shape{4, 2, 5};
        const Shape state = batch_first ? Shape{2, d, hidden} : Shape{d, 2, hidden};
        std::vector<Tensor> inputs{half(dtype, x, 1), half(dtype, {d, gates * hidden, 5}, 2),
                                   half(dtype, {d, gates * hidden, hidden}, 3)};
        if (full) {
          inputs.push_back(half(dtype, {d, 2 * gates * hidden}, 4));
          inputs.push_back(tensor(DType::i32, {2}, {4, 2}));
          inputs.push_back(half(dtype, state, 5));
          if (op == Op::LSTM) {
            inputs.push_back(half(dtype, state, 6));
            inputs.push_back(half(dtype, {d, 3 * hidden}, 7));
          }
        }
        out.push_back({op, attrs, inputs, op == Op::LSTM ? 3 : 2});
      };
      for (const char* direction : {"forward", "reverse", "bidirectional"})
        for (bool full : {false, true})
          for (int64_t layout : {0, 1}) add(Attrs().set("layout", layout), direction, full);
      add(Attrs().set("clip", 0.4).set("linear_before_reset", int64_t{1}), "forward", true);
      add(Attrs().set("linear_before_reset", int64_t{1}), "bidirectional", true);
      add(Attrs().set("input_forget", int64_t{1}), "reverse", true);
      for (const char* name : {"Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
                               "HardSigmoid", "Elu", "Softsign", "Softplus", "Sigmoid", "Tanh"}) {
        const std::string one(name);
        const std::string all = op == Op::LSTM  ? "Sigmoid," + one + "," + one
                                : op == Op::GRU ? "Sigmoid," + one
                                                : one;
        add(Attrs()
                .set("activations", all)
                .set("activation_alpha", std::vector<double>{0.3, 0.6})
                .set("activation_beta", std::vector<double>{0.7}),
            "forward", false);
      }
    }
  for (DType dtype : {DType::f64, DType::f32, DType::f16})
    for (const char* cell : {"lstm", "gru", "rnn"})
      for (const char* direction : {"forward", "reverse", "bidirectional"})
        for (bool full : {false, true}) {
          const std::string name(cell);
          const int64_t gates = name == "lstm" ? 4 : name == "gru" ? 3 : 1, hidden = 3;
          const int64_t d = std::string(direction) == "bidirectional" ? 2 : 1;
          const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
          std::vector<Tensor> inputs{half(wide, {4, 2, d * gates * hidden}, 1),
                                     half(dtype, {d, gates * hidden, hidden}, 2)};
          if (full) {
            inputs.push_back(name == "gru" ? half(wide, {d, hidden}, 3) : Tensor());
            inputs.push_back(tensor(DType::i32, {2}, {4, 2}));
            inputs.push_back(half(dtype, {d, 2, hidden}, 4));
            if (name == "lstm") inputs.push_back(half(dtype, {d, 2, hidden}, 5));
          }
          out.push_back({Op::Recurrence,
                         Attrs().set("cell", name).set("direction", std::string(direction)), inputs,
                         name == "lstm" ? 3 : 2});
        }
  return out;
}

Samples excite_samples() {
  Samples out;
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const char* activation : {"Relu", "Swish", "HardSwish"})
      for (const char* gate : {"Sigmoid", "HardSigmoid"})
        for (const bool biased : {false, true}) {
          std::vector<Tensor> inputs{half(dtype, {2, 5, 3, 2}, 1), half(dtype, {3, 5}, 2),
                                     biased ? half(dtype, {3}, 3) : Tensor(),
                                     half(dtype, {3, 5}, 4)};
          if (biased) inputs.push_back(half(dtype, {5}, 5));
          Attrs attrs = Attrs().set("activation", std::string(activation));
          attrs.set("gate", std::string(gate));
          if (biased) attrs.set("alpha", 0.3).set("beta", 0.4);
          out.push_back({Op::SqueezeExcite, std::move(attrs), std::move(inputs), 1});
        }
  return out;
}

class ComputeTable : public testing::TestWithParam<int> {};

Samples family(int index) {
  switch (index) {
    case 0:
      return matmul_samples();
    case 1:
      return conv_samples();
    case 2:
      return pool_samples();
    case 3:
      return attention_samples();
    case 4:
      return recurrent_samples();
    default:
      return excite_samples();
  }
}

TEST_P(ComputeTable, ColumnsAgree) {
  for (const Sample& sample : family(GetParam())) {
    check(sample);
    if (HasFailure()) return;  // the first one tells enough
  }
}
INSTANTIATE_TEST_SUITE_P(Families, ComputeTable, testing::Range(0, 6));

TEST(ComputeTable, EveryRowHasSamples) {
  std::set<Op> seen;
  for (int index = 0; index < 6; ++index)
    for (const Sample& sample : family(index)) seen.insert(sample.op);
  for (Op op : {Op::MatMul,
                Op::Gemm,
                Op::MatMulInteger,
                Op::QLinearMatMul,
                Op::Conv,
                Op::ConvTranspose,
                Op::ConvInteger,
                Op::QLinearConv,
                Op::DeformConv,
                Op::CausalConvWithState,
                Op::MaxPool,
                Op::AveragePool,
                Op::LpPool,
                Op::GlobalMaxPool,
                Op::GlobalAveragePool,
                Op::GlobalLpPool,
                Op::Attention,
                Op::LinearAttention,
                Op::RotaryEmbedding,
                Op::LSTM,
                Op::GRU,
                Op::RNN,
                Op::Recurrence,
                Op::SqueezeExcite})
    EXPECT_TRUE(seen.count(op)) << to_string(op);
}

}  // namespace
}  // namespace obelisk::ops::test
