#include "ops/test/golden.h"

namespace obelisk::ops {
namespace {

// Every width that a move copies: whole bytes, halves and quarters of one.
constexpr DType kMoved[] = {DType::f64, DType::f32, DType::bf16, DType::f8e4m3fn, DType::i64,
                            DType::u16, DType::i8,  DType::i4,   DType::u2,       DType::b1};

TEST(Shape, ReshapeCopiesInfersAndRefuses) {
  const Tensor x = counting(DType::f32, {2, 3, 4});
  check({Op::Reshape, {x, ints({3}, {4, 0, -1})}, {}, {counting(DType::f32, {4, 3, 2})}});
  check({Op::Reshape, {x, ints({2}, {6, 4})}});
  check({Op::Reshape, {x, ints({4}, {2, 1, 12, 1})}});
  check({Op::Reshape, {x, ints({1}, {-1})}});
  check({Op::Reshape, {floats({}, {5}), ints({2}, {1, 1})}});
  check({Op::Reshape, {floats({1}, {5}), ints({0}, {})}});
  check({Op::Reshape,
         {counting(DType::f32, {0, 3}), ints({2}, {3, 0})},
         Attrs().set("allowzero", int64_t{1})});
  check_refused({Op::Reshape, {x, ints({2}, {5, -1})}}, Code::kBadModel, "do not fill");
  check_refused({Op::Reshape, {x, ints({2}, {5, 5})}}, Code::kBadModel, "has 25");
  check_refused({Op::Reshape, {x, ints({2}, {-1, -1})}}, Code::kBadModel, "twice");
  check_refused({Op::Reshape, {x, ints({2}, {int64_t{1} << 62, 4})}}, Code::kBadModel, "no tensor");
  check_refused({Op::Reshape, {x, ints({1}, {-1})}}, Code::kUnsupported, "depends on data", false);
}

TEST(Shape, ReshapeOfAnyTwoShapesOfOneCount) {
  const Shape shapes[] = {{24},      {2, 12},      {3, 8},     {4, 6},      {2, 3, 4},
                          {4, 3, 2}, {2, 2, 2, 3}, {1, 24, 1}, {3, 2, 2, 2}};
  for (const Shape& from : shapes) {
    for (const Shape& to : shapes) {
      Tensor shape = tensor_of(std::vector<int64_t>(to));
      check({Op::Reshape, {counting(DType::i32, from), shape}, {}, {counting(DType::i32, to)}});
    }
  }
}

TEST(Shape, SplittingAnAxisStaysAffine) {
  const Sample sample{Op::Reshape, {counting(DType::f32, {6, 8}), ints({3}, {2, 3, 8})}};
  Call call = sample_detail::call_of(sample, sample.inputs, true);
  const Types types = *infer(call);
  call.results = {&types[0]};
  EXPECT_EQ(to_string(*loop(call)), "load0(add(mul(c0, 3), c1), c2)");
}

TEST(Shape, FlattenSqueezeUnsqueeze) {
  const Tensor x = counting(DType::f32, {2, 1, 3, 1});
  check({Op::Flatten, {x}, {}, {counting(DType::f32, {2, 3})}});
  check({Op::Flatten, {x}, Attrs().set("axis", int64_t{0}), {counting(DType::f32, {1, 6})}});
  check({Op::Flatten, {x}, Attrs().set("axis", int64_t{4}), {counting(DType::f32, {6, 1})}});
  check({Op::Flatten, {x}, Attrs().set("axis", int64_t{-1}), {counting(DType::f32, {6, 1})}});
  check({Op::Squeeze, {x}, {}, {counting(DType::f32, {2, 3})}});
  check({Op::Squeeze, {x, ints({1}, {-1})}, {}, {counting(DType::f32, {2, 1, 3})}});
  check_refused({Op::Squeeze, {x, ints({1}, {0})}}, Code::kBadModel, "extent 2");
  check({Op::Unsqueeze, {x, ints({2}, {0, -1})}, {}, {counting(DType::f32, {1, 2, 1, 3, 1, 1})}});
  check({Op::Unsqueeze, {floats({}, {7}), ints({1}, {0})}, {}, {floats({1}, {7})}});
  check_refused({Op::Unsqueeze, {x, ints({2}, {1, 1})}}, Code::kBadModel, "twice");
  for (DType dtype : kMoved)
    check({Op::Identity, {counting(dtype, {3, 5})}, {}, {counting(dtype, {3, 5})}});
}

TEST(Shape, Transpose) {
  check({Op::Transpose, {counting(DType::f32, {2, 3})}, {}, {floats({3, 2}, {0, 3, 1, 4, 2, 5})}});
  check({Op::Transpose, {floats({}, {3})}, {}, {floats({}, {3})}});
  check({Op::Transpose, {counting(DType::f32, {0, 3})}, {}, {floats({3, 0}, {})}});
  for (DType dtype : kMoved) {
    check({Op::Transpose,
           {random_tensor(dtype, {3, 5, 2, 4}, 0, 2)},
           Attrs().set("perm", std::vector<int64_t>{2, 0, 3, 1})});
  }
  check_refused({Op::Transpose,
                 {counting(DType::f32, {2, 3})},
                 Attrs().set("perm", std::vector<int64_t>{0, 0})},
                Code::kBadModel, "twice");
}

TEST(Shape, ExpandAndTile) {
  check({Op::Expand,
         {floats({3, 1}, {1, 2, 3}), ints({2}, {1, 2})},
         {},
         {floats({3, 2}, {1, 1, 2, 2, 3, 3})}});
  check({Op::Expand, {floats({}, {4}), ints({2}, {2, 1})}, {}, {floats({2, 1}, {4, 4})}});
  check({Op::Expand, {floats({1}, {4}), ints({1}, {0})}, {}, {floats({0}, {})}});
  check_refused({Op::Expand, {floats({3}, {1, 2, 3}), ints({1}, {2})}}, Code::kBadModel,
                "broadcast");
  check({Op::Tile,
         {floats({2, 2}, {1, 2, 3, 4}), ints({2}, {1, 2})},
         {},
         {floats({2, 4}, {1, 2, 1, 2, 3, 4, 3, 4})}});
  for (DType dtype : kMoved) {
    check({Op::Expand, {random_tensor(dtype, {3, 1, 4}, 0, 2), ints({4}, {2, 1, 5, 1})}});
    check({Op::Tile, {random_tensor(dtype, {3, 2, 1}, 0, 2), ints({3}, {2, 3, 2})}});
  }
  check({Op::Tile, {counting(DType::f32, {2}), ints({1}, {0})}, {}, {floats({0}, {})}});
  check({Op::Tile, {counting(DType::f32, {0, 2}), ints({2}, {2, 2})}, {}, {floats({0, 4}, {})}});
}

TEST(Shape, ShapeAndSize) {
  const Tensor x = counting(DType::f32, {2, 3, 4});
  check({Op::Shape, {x}, {}, {ints({3}, {2, 3, 4})}});
  check({Op::Shape, {x}, Attrs().set("start", int64_t{-2}), {ints({2}, {3, 4})}});
  check(
      {Op::Shape, {x}, Attrs().set("start", int64_t{1}).set("end", int64_t{-1}), {ints({1}, {3})}});
  check({Op::Shape, {x}, Attrs().set("start", int64_t{2}).set("end", int64_t{1}), {ints({0}, {})}});
  check({Op::Shape, {floats({}, {1})}, {}, {ints({0}, {})}});
  check({Op::Size, {x}, {}, {ints({}, {24})}});
}

}  // namespace
}  // namespace obelisk::ops
