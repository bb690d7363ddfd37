#include "ops/test/golden.h"

namespace obelisk::ops {
namespace {

constexpr DType kMoved[] = {DType::f64, DType::f16, DType::u64, DType::i8,
                            DType::u4,  DType::i2,  DType::b1};

TEST(Slice, SliceClampsStepsAndReverses) {
  const Tensor x = counting(DType::f32, {2, 4});
  check({Op::Slice,
         {x, ints({2}, {1, 0}), ints({2}, {2, 3}), ints({2}, {0, 1}), ints({2}, {1, 2})},
         {},
         {floats({1, 2}, {4, 6})}});
  check({Op::Slice, {x, ints({1}, {0}), ints({1}, {-1})}, {}, {floats({1, 4}, {0, 1, 2, 3})}});
  check({Op::Slice,
         {x, ints({1}, {-1}), ints({1}, {-1000}), ints({1}, {1}), ints({1}, {-1})},
         {},
         {floats({2, 4}, {3, 2, 1, 0, 7, 6, 5, 4})}});
  check({Op::Slice,
         {x, ints({1}, {20}), ints({1}, {0}), ints({1}, {-1}), ints({1}, {-3})},
         {},
         {floats({2, 1}, {3, 7})}});
  check({Op::Slice, {x, ints({1}, {3}), ints({1}, {1}), ints({1}, {1})}, {}, {floats({2, 0}, {})}});
  check({Op::Slice,
         {x, ints({1}, {0}, DType::i32), ints({1}, {9}, DType::i32), ints({1}, {1}, DType::i32)},
         {},
         {x}});
  const Tensor least = tensor_of({std::numeric_limits<int64_t>::min()});
  check(
      {Op::Slice, {x, ints({1}, {3}), least, ints({1}, {1}), least}, {}, {floats({2, 1}, {3, 7})}});
  const Tensor most = tensor_of({std::numeric_limits<int64_t>::max()});
  check({Op::Slice,
         {x, ints({1}, {0}), most, ints({1}, {0}), most},
         {},
         {floats({1, 4}, {0, 1, 2, 3})}});
  check({Op::Slice,
         {counting(DType::f32, {0}), ints({1}, {5}), ints({1}, {-7}), ints({1}, {0}),
          ints({1}, {-1})}});
  check_refused({Op::Slice, {x, ints({1}, {0}), ints({1}, {1}), ints({1}, {0}), ints({1}, {0})}},
                Code::kBadModel, "step");
  check_refused({Op::Slice, {x, ints({1}, {0}), ints({1}, {1})}}, Code::kUnsupported,
                "depends on data", false);
  for (DType dtype : kMoved) {
    check({Op::Slice,
           {random_tensor(dtype, {4, 7}, 0, 2), ints({2}, {-1, 1}), ints({2}, {0, 7}),
            ints({2}, {0, -1}), ints({2}, {-2, 3})}});
  }
}

TEST(Slice, Split) {
  const Tensor x = counting(DType::f32, {7});
  check({Op::Split,
         {x},
         Attrs().set("num_outputs", int64_t{4}),
         {floats({2}, {0, 1}), floats({2}, {2, 3}), floats({2}, {4, 5}), floats({1}, {6})},
         4});
  check({Op::Split,
         {x, ints({3}, {2, 0, 5})},
         {},
         {floats({2}, {0, 1}), floats({0}, {}), floats({5}, {2, 3, 4, 5, 6})},
         3});
  check({Op::Split,
         {counting(DType::f32, {2, 4})},
         Attrs().set("axis", int64_t{-1}),
         {floats({2, 2}, {0, 1, 4, 5}), floats({2, 2}, {2, 3, 6, 7})},
         2});
  check_refused({Op::Split, {x, ints({2}, {3, 3})}, {}, {}, 2}, Code::kBadModel, "has 7");
  for (DType dtype : kMoved) {
    check({Op::Split,
           {random_tensor(dtype, {3, 5}, 0, 2), ints({2}, {2, 3})},
           Attrs().set("axis", int64_t{1}),
           {},
           2});
  }
}

TEST(Slice, Concat) {
  const Attrs last = Attrs().set("axis", int64_t{-1});
  check({Op::Concat,
         {floats({2, 1}, {1, 2}), floats({2, 2}, {3, 4, 5, 6})},
         last,
         {floats({2, 3}, {1, 3, 4, 2, 5, 6})}});
  check({Op::Concat, {floats({2}, {1, 2})}, last, {floats({2}, {1, 2})}});
  check({Op::Concat,
         {floats({0}, {}), floats({2}, {1, 2}), floats({0}, {}), floats({1}, {3})},
         last,
         {floats({3}, {1, 2, 3})}});
  check({Op::Concat, {floats({0}, {}), floats({0}, {})}, last, {floats({0}, {})}});
  check_refused({Op::Concat, {floats({1, 2}, {1, 2}), floats({2, 2}, {1, 2, 3, 4})}, last},
                Code::kBadModel, "do not join");
  for (DType dtype : kMoved) {
    check({Op::Concat,
           {random_tensor(dtype, {3, 2, 2}, 0, 2), random_tensor(dtype, {3, 3, 2}, 0, 2, 2),
            random_tensor(dtype, {3, 1, 2}, 0, 2, 3)},
           Attrs().set("axis", int64_t{1})});
  }
}

TEST(Slice, DepthToSpaceAndBack) {
  const Tensor x = counting(DType::f32, {1, 8, 1, 1});
  const Attrs two = Attrs().set("blocksize", int64_t{2});
  check({Op::DepthToSpace, {x}, two, {floats({1, 2, 2, 2}, {0, 2, 4, 6, 1, 3, 5, 7})}});
  check(
      {Op::DepthToSpace, {x}, Attrs(two).set("mode", "CRD"), {counting(DType::f32, {1, 2, 2, 2})}});
  check({Op::SpaceToDepth, {floats({1, 2, 2, 2}, {0, 2, 4, 6, 1, 3, 5, 7})}, two, {x}});
  check(
      {Op::SpaceToDepth, {counting(DType::f32, {1, 2, 2, 2})}, Attrs(two).set("mode", "CRD"), {x}});
  for (DType dtype : kMoved) {
    check({Op::DepthToSpace,
           {random_tensor(dtype, {2, 18, 2, 3}, 0, 2)},
           Attrs().set("blocksize", int64_t{3})});
    check({Op::DepthToSpace,
           {random_tensor(dtype, {2, 18, 2, 3}, 0, 2)},
           Attrs().set("blocksize", int64_t{3}).set("mode", "CRD")});
    for (const char* mode : {"DCR", "CRD"})
      check({Op::SpaceToDepth,
             {random_tensor(dtype, {2, 3, 4, 6}, 0, 2)},
             Attrs(two).set("mode", mode)});
  }
  check_refused({Op::DepthToSpace, {counting(DType::f32, {1, 6, 1, 1})}, two}, Code::kBadModel,
                "multiple");
  check_refused({Op::SpaceToDepth,
                 {floats({1, int64_t{1} << 30, 0, 0}, {})},
                 Attrs().set("blocksize", int64_t{1} << 20)},
                Code::kBadModel, "1073741824 channels of 1048576 squared");
}

TEST(Slice, PadInEveryMode) {
  const Tensor x = floats({3}, {1, 2, 3});
  const Tensor pads = ints({2}, {2, 1});
  check({Op::Pad, {x, pads}, {}, {floats({6}, {0, 0, 1, 2, 3, 0})}});
  check({Op::Pad, {x, pads, floats({}, {9})}, {}, {floats({6}, {9, 9, 1, 2, 3, 9})}});
  check({Op::Pad, {x, pads}, Attrs().set("mode", "reflect"), {floats({6}, {3, 2, 1, 2, 3, 2})}});
  check({Op::Pad, {x, pads}, Attrs().set("mode", "edge"), {floats({6}, {1, 1, 1, 2, 3, 3})}});
  check({Op::Pad, {x, pads}, Attrs().set("mode", "wrap"), {floats({6}, {2, 3, 1, 2, 3, 1})}});
  check({Op::Pad,
         {x, ints({2}, {7, 6})},
         Attrs().set("mode", "reflect"),
         {floats({16}, {2, 3, 2, 1, 2, 3, 2, 1, 2, 3, 2, 1, 2, 3, 2, 1})}});
  check(
      {Op::Pad, {x, ints({2}, {-1, 2})}, Attrs().set("mode", "edge"), {floats({4}, {2, 3, 3, 3})}});
  check({Op::Pad, {x, ints({2}, {-1, -1})}, {}, {floats({1}, {2})}});
  check({Op::Pad,
         {counting(DType::f32, {0, 2}), ints({4}, {1, 0, 0, 1})},
         {},
         {floats({1, 3}, {0, 0, 0})}});
  check({Op::Pad,
         {counting(DType::f32, {2, 2}), ints({2}, {1, 0}), {}, ints({1}, {-1})},
         {},
         {floats({2, 3}, {0, 0, 1, 0, 2, 3})}});
  check_refused({Op::Pad, {x, ints({2}, {-2, -2})}}, Code::kBadModel, "pads");
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  check_refused({Op::Pad, {x, ints({2}, {kLeast, 1})}}, Code::kBadModel, "pads");
  check_refused({Op::CenterCropPad, {x, ints({1}, {kLeast})}}, Code::kBadModel, "extent");
  check_refused({Op::Pad, {counting(DType::f32, {0}), pads}, Attrs().set("mode", "edge")},
                Code::kBadModel, "nothing to repeat");
  for (DType dtype : kMoved) {
    for (const char* mode : {"constant", "reflect", "edge", "wrap"}) {
      check({Op::Pad,
             {random_tensor(dtype, {3, 4}, 0, 2), ints({4}, {1, 2, 2, 5})},
             Attrs().set("mode", mode)});
    }
    check({Op::Pad,
           {random_tensor(dtype, {3, 4}, 0, 2), ints({4}, {1, 2, 2, -1}),
            tensor_of(dtype, {1}, {1})}});
  }
}

TEST(Slice, CenterCropPad) {
  const Tensor x = counting(DType::f32, {5});
  check({Op::CenterCropPad, {x, ints({1}, {2})}, {}, {floats({2}, {1, 2})}});
  check({Op::CenterCropPad, {x, ints({1}, {8})}, {}, {floats({8}, {0, 0, 1, 2, 3, 4, 0, 0})}});
  check({Op::CenterCropPad,
         {random_tensor(DType::f32, {4, 5, 3}), ints({2}, {7, 2})},
         Attrs().set("axes", std::vector<int64_t>{-1, 1})});
}

}  // namespace
}  // namespace obelisk::ops
