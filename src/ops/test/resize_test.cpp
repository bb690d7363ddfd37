#include "ops/test/golden.h"

namespace obelisk::ops {
namespace {

Attrs with(const char* mode, const char* mapping, const char* nearest = "round_prefer_floor") {
  return Attrs()
      .set("mode", mode)
      .set("coordinate_transformation_mode", mapping)
      .set("nearest_mode", nearest);
}
Tensor scales(const std::vector<double>& values) {
  return floats({static_cast<int64_t>(values.size())}, values);
}
Tensor sizes(const std::vector<double>& values) {
  return ints({static_cast<int64_t>(values.size())}, values);
}

TEST(Resize, Goldens) {
  const Tensor x = floats({4}, {1, 2, 3, 4});
  check({Op::Resize,
         {x, {}, scales({2})},
         with("nearest", "half_pixel"),
         {floats({8}, {1, 1, 2, 2, 3, 3, 4, 4})}});
  check(
      {Op::Resize, {x, {}, scales({0.6f})}, with("nearest", "half_pixel"), {floats({2}, {1, 3})}});
  check({Op::Resize,
         {x, {}, scales({2})},
         with("linear", "half_pixel"),
         {floats({8}, {1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4})}});
  check({Op::Resize,
         {x, {}, {}, sizes({7})},
         with("linear", "align_corners"),
         {floats({7}, {1, 1.5, 2, 2.5, 3, 3.5, 4})}});
  check({Op::Resize,
         {x, {}, {}, sizes({8})},
         with("linear", "asymmetric"),
         {floats({8}, {1, 1.5, 2, 2.5, 3, 3.5, 4, 4})}});
  check({Op::Resize,
         {x, {}, {}, sizes({1})},
         with("linear", "pytorch_half_pixel"),
         {floats({1}, {1})}});
  // Antialias: the triangle is two inputs wide, weights 1/8 3/8 3/8 1/8 with the edge repeated.
  check({Op::Resize,
         {x, {}, {}, sizes({2})},
         with("linear", "half_pixel").set("antialias", int64_t{1}),
         {floats({2}, {1.625, 3.375})}});
  const Tensor roi = floats({2}, {0.5, 1.5});
  check({Op::Resize,
         {x, roi, {}, sizes({3})},
         with("linear", "tf_crop_and_resize").set("extrapolation_value", 10.0),
         {floats({3}, {2.5, 4, 10})}});
  check({Op::Resize,
         {floats({2, 3}, {1, 2, 3, 4, 5, 6}), {}, {}, sizes({4, 4})},
         with("nearest", "asymmetric", "floor").set("keep_aspect_ratio_policy", "not_larger")});
}

TEST(Resize, ExtentsBeyondReasonAreRefused) {
  const Tensor x = floats({3}, {1, 2, 3});
  for (const int64_t size : {int64_t{-1}, int64_t{1} << 62}) {
    for (const char* policy : {"stretch", "not_larger", "not_smaller"}) {
      check_refused({Op::Resize,
                     {x, {}, {}, ints({1}, {static_cast<double>(size)})},
                     Attrs().set("keep_aspect_ratio_policy", policy)},
                    Code::kBadModel, "size");
    }
  }
  const Tensor pooled = counting(DType::f32, {1, 1, 2, 2});
  check_refused({Op::MaxUnpool,
                 {pooled, counting(DType::i64, {1, 1, 2, 2})},
                 Attrs()
                     .set("kernel_shape", std::vector<int64_t>{2, 2})
                     .set("strides", std::vector<int64_t>{int64_t{1} << 62, 2})},
                Code::kBadModel, "2^30");
  check_refused({Op::Col2Im,
                 {counting(DType::f32, {1, 4, 4}), ints({2}, {int64_t{1} << 62, 4}),
                  ints({2}, {int64_t{1} << 62, 2})}},
                Code::kBadModel, "2^30");
}

TEST(Resize, EveryMappingAndRounding) {
  for (const char* mapping : {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
                              "align_corners", "asymmetric", "tf_crop_and_resize"}) {
    const Tensor roi = floats({4}, {0.1, 0.2, 0.7, 1.3});
    for (auto target : {Shape{5, 4}, Shape{1, 9}, Shape{14, 3}, Shape{7, 8}, Shape{2, 1}}) {
      const Tensor wanted = tensor_of(std::vector<int64_t>(target));
      for (const char* nearest : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}) {
        for (DType dtype : {DType::f32, DType::i64, DType::u4}) {
          check({Op::Resize,
                 {random_tensor(dtype, {7, 4}, 0, 9), roi, {}, wanted},
                 with("nearest", mapping, nearest)});
        }
      }
      for (const char* mode : {"linear", "cubic"}) {
        for (DType dtype : {DType::f32, DType::f64, DType::f16}) {
          check({Op::Resize,
                 {random_tensor(dtype, {7, 4}, 0, 1), roi, {}, wanted},
                 with(mode, mapping)});
        }
        check({Op::Resize,
               {random_tensor(DType::f32, {7, 4}, 0, 1), roi, {}, wanted},
               with(mode, mapping).set("antialias", int64_t{1})});
        check({Op::Resize,
               {random_tensor(DType::f32, {7, 4}, 0, 1), roi, {}, wanted},
               with(mode, mapping).set("exclude_outside", int64_t{1})});
      }
    }
    for (double factor : {0.3, 0.5, 1.0, 1.7, 3.0}) {
      for (const char* mode : {"nearest", "linear", "cubic"}) {
        check({Op::Resize,
               {random_tensor(DType::f32, {2, 6, 5}, 0, 1), floats({4}, {0, 0, 1, 1}),
                scales({factor, 2})},
               with(mode, mapping).set("axes", std::vector<int64_t>{1, -1})});
      }
    }
  }
}

TEST(Resize, LinearAlongManyAxesExpands) {
  const Tensor x = random_tensor(DType::f32, Shape(7, 2), 0, 1);
  check({Op::Resize, {x, {}, {}, sizes(std::vector<double>(7, 3))}, with("linear", "half_pixel")});
}

TEST(Resize, AntialiasOfIntegersRounds) {
  const Attrs attrs = with("linear", "half_pixel").set("antialias", int64_t{1});
  check({Op::Resize,
         {ints({4}, {255, 255, 255, 0}, DType::u8), {}, {}, sizes({2})},
         attrs,
         {ints({2}, {255, 128}, DType::u8)}});
  check({Op::Resize, {random_tensor(DType::i8, {3, 9}, -128, 128), {}, {}, sizes({2, 4})}, attrs});
}

TEST(Resize, ADoublingIsIntegerArithmetic) {
  const Sample sample{Op::Resize,
                      {counting(DType::f32, {4, 4}), {}, scales({1, 2})},
                      with("nearest", "asymmetric", "floor")};
  Call call = sample_detail::call_of(sample, sample.inputs, true);
  const Types types = *infer(call);
  call.results = {&types[0]};
  EXPECT_EQ(to_string(*loop(call)), "load0(c0, div(c1, 2))");
}

TEST(Resize, Refusals) {
  const Tensor x = floats({4}, {1, 2, 3, 4});
  check_refused({Op::Resize, {x}}, Code::kBadModel, "neither scales nor sizes");
  check_refused({Op::Resize, {x, {}, scales({1}), sizes({1})}}, Code::kBadModel, "both");
  check_refused({Op::Resize, {x, {}, scales({1, 2})}}, Code::kBadModel, "2 scales for 1 axes");
  check_refused({Op::Resize, {x, {}, scales({1e30})}}, Code::kBadModel, "scale");
  const Attrs crop = with("linear", "tf_crop_and_resize");
  check_refused({Op::Resize, {x, floats({2}, {1e30, 1e30}), {}, sizes({2})}, crop}, Code::kBadModel,
                "roi contains 1");
  check_refused({Op::Resize,
                 {x, floats({2}, {0, 1e6}), scales({1e-6})},
                 Attrs(crop).set("antialias", int64_t{1})},
                Code::kBadModel, "with antialias");
  check_refused({Op::Resize, {x, {}, scales({2})}}, Code::kUnsupported, "scales depends on data",
                false);
}

TEST(Sample, GridSampleInEveryMode) {
  const Tensor image = floats({1, 1, 2, 2}, {1, 2, 3, 4});
  const Tensor grid = floats({1, 1, 3, 2}, {-1, -1, 0, 0, 1, 1});
  check({Op::GridSample,
         {image, grid},
         Attrs().set("align_corners", int64_t{1}),
         {floats({1, 1, 1, 3}, {1, 2.5, 4})}});
  check({Op::GridSample, {image, grid}, {}, {floats({1, 1, 1, 3}, {0.25, 2.5, 1})}});
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (int64_t align : {0, 1}) {
        const Attrs attrs =
            Attrs().set("mode", mode).set("padding_mode", padding).set("align_corners", align);
        check({Op::GridSample,
               {random_tensor(DType::f32, {2, 3, 4, 5}, 0, 1),
                random_tensor(DType::f32, {2, 3, 2, 2}, -1.8, 1.8)},
               attrs});
        check({Op::GridSample,
               {random_tensor(DType::f64, {1, 2, 3, 1, 4}, 0, 1),
                random_tensor(DType::f64, {1, 2, 3, 2, 3}, -2.5, 2.5)},
               attrs});
      }
    }
  }
  const Tensor wild = floats({1, 1, 3, 2}, {std::nan(""), 0, 1e30, -1e30, INFINITY, 0});
  check({Op::GridSample,
         {image, wild},
         Attrs().set("mode", "nearest"),
         {floats({1, 1, 1, 3}, {0, 0, 0})}});
}

TEST(Sample, AffineGrid) {
  const Tensor identity = floats({1, 2, 3}, {1, 0, 0, 0, 1, 0});
  check({Op::AffineGrid,
         {identity, ints({4}, {1, 1, 1, 2})},
         Attrs().set("align_corners", int64_t{1}),
         {floats({1, 1, 2, 2}, {-1, -1, 1, -1})}});
  for (int64_t align : {0, 1}) {
    check({Op::AffineGrid,
           {random_tensor(DType::f32, {2, 2, 3}), ints({4}, {2, 3, 4, 5})},
           Attrs().set("align_corners", align)});
    check({Op::AffineGrid,
           {random_tensor(DType::f32, {2, 3, 4}), ints({5}, {2, 3, 2, 4, 3})},
           Attrs().set("align_corners", align)});
  }
}

TEST(Sample, Col2Im) {
  check({Op::Col2Im,
         {counting(DType::f32, {1, 4, 4}, 1), ints({2}, {3, 3}), ints({2}, {2, 2})},
         {},
         {floats({1, 1, 3, 3}, {1, 7, 6, 12, 34, 22, 11, 27, 16})}});
  const Attrs attrs = Attrs()
                          .set("strides", std::vector<int64_t>{2, 1})
                          .set("pads", std::vector<int64_t>{1, 0, 1, 2})
                          .set("dilations", std::vector<int64_t>{2, 3});
  check({Op::Col2Im,
         {random_tensor(DType::f32, {2, 3 * 6, 3 * 2}), ints({2}, {7, 6}), ints({2}, {3, 2})},
         Attrs(attrs)
             .set("pads", std::vector<int64_t>{1, 0, 1, 0})
             .set("dilations", std::vector<int64_t>{2, 4})});
  check_refused(
      {Op::Col2Im, {counting(DType::f32, {1, 5, 4}), ints({2}, {3, 3}), ints({2}, {2, 2})}},
      Code::kBadModel, "not [N");
}

TEST(Sample, RegionsAndUnpooling) {
  const Tensor image = counting(DType::f32, {1, 1, 4, 4});
  check({Op::RoiAlign,
         {image, floats({1, 4}, {0, 0, 4, 4}), ints({1}, {0})},
         Attrs()
             .set("output_height", int64_t{2})
             .set("output_width", int64_t{2})
             .set("sampling_ratio", int64_t{2}),
         {floats({1, 1, 2, 2}, {2.5, 4.5, 10.5, 12.5})}});
  check({Op::MaxRoiPool,
         {image, floats({1, 5}, {0, 0, 0, 3, 3})},
         Attrs().set("pooled_shape", std::vector<int64_t>{2, 2}),
         {floats({1, 1, 2, 2}, {5, 7, 13, 15})}});
  // A region that begins and ends beyond all images.
  check({Op::MaxRoiPool,
         {image, floats({1, 5}, {0, -1e30, -1e30, 1e30, 1e30})},
         Attrs().set("pooled_shape", std::vector<int64_t>{1, 1}),
         {floats({1, 1, 1, 1}, {15})}});
  check_refused({Op::RoiAlign,
                 {image, floats({1, 4}, {0, 0, 4, 4}), ints({1}, {0})},
                 Attrs().set("sampling_ratio", int64_t{1} << 40)},
                Code::kBadModel, "sampling_ratio 1099511627776, wanted at most 1024");
  check_refused({Op::MaxUnpool,
                 {floats({1, 1, 1, 1}, {5}), ints({1, 1, 1, 1}, {3}), ints({4}, {1, 1, 3, 3})},
                 Attrs()
                     .set("kernel_shape", std::vector<int64_t>{2, 2})
                     .set("pads", std::vector<int64_t>{3, 0, 3, 0})},
                Code::kBadModel, "axis 2 would have the extent -4");
  const Attrs kernel = Attrs()
                           .set("kernel_shape", std::vector<int64_t>{2, 2})
                           .set("strides", std::vector<int64_t>{2, 2});
  check({Op::MaxUnpool,
         {floats({1, 1, 1, 2}, {5, 7}), ints({1, 1, 1, 2}, {5, 2})},
         kernel,
         {floats({1, 1, 2, 4}, {0, 0, 7, 0, 0, 5, 0, 0})}});
  check({Op::MaxUnpool,
         {floats({1, 1, 1, 1}, {5}), ints({1, 1, 1, 1}, {3}), ints({4}, {1, 1, 3, 3})},
         kernel,
         {floats({1, 1, 3, 3}, {0, 0, 0, 0, 5, 0, 0, 0, 0})}});
}

}  // namespace
}  // namespace obelisk::ops
