#include "ops/test/golden.h"

namespace obelisk::ops {
namespace {

const double kNan = std::nan("");

TEST(Sort, TopK) {
  const Tensor x = floats({2, 4}, {3, 1, 3, 2, 5, 8, 7, 6});
  check({Op::TopK,
         {x, ints({1}, {2})},
         {},
         {floats({2, 2}, {3, 3, 8, 7}), ints({2, 2}, {0, 2, 1, 2})},
         2});
  check({Op::TopK,
         {x, ints({1}, {3})},
         Attrs().set("largest", int64_t{0}),
         {floats({2, 3}, {1, 2, 3, 5, 6, 7}), ints({2, 3}, {1, 3, 0, 0, 3, 2})},
         2});
  check({Op::TopK,
         {x, ints({1}, {1})},
         Attrs().set("axis", int64_t{0}),
         {floats({1, 4}, {5, 8, 7, 6})}});
  check({Op::TopK, {x, ints({1}, {0})}, {}, {floats({2, 0}, {}), ints({2, 0}, {})}, 2});
  const Shape long_beside_none{0, int64_t{1} << 40};
  check({Op::TopK,
         {floats(long_beside_none, {}), ints({1}, {3})},
         {},
         {floats({0, 3}, {}), ints({0, 3}, {})},
         2});
  check({Op::TopK,
         {floats({4}, {1, kNan, 2, kNan}), ints({1}, {3})},
         {},
         {floats({3}, {kNan, kNan, 2}), ints({3}, {1, 3, 2})},
         2});
  const int64_t wide = int64_t{1} << 60;  // neighbours that are one double
  check({Op::TopK,
         {tensor_of({wide, wide + 1}), ints({1}, {1})},
         {},
         {tensor_of({wide + 1}), ints({1}, {1})},
         2});
  check_refused({Op::TopK, {x, ints({1}, {5})}}, Code::kBadModel, "K = 5");
  check_refused({Op::TopK, {x, ints({1}, {2})}}, Code::kUnsupported, "depends on data", false);
}

TEST(Sort, CumulativeSumsAndProducts) {
  const Tensor x = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor columns = ints({}, {1});
  check({Op::CumSum, {x, columns}, {}, {floats({2, 3}, {1, 3, 6, 4, 9, 15})}});
  check({Op::CumSum, {x, ints({}, {-2})}, {}, {floats({2, 3}, {1, 2, 3, 5, 7, 9})}});
  check({Op::CumSum,
         {x, columns},
         Attrs().set("exclusive", int64_t{1}),
         {floats({2, 3}, {0, 1, 3, 0, 4, 9})}});
  check({Op::CumSum,
         {x, columns},
         Attrs().set("reverse", int64_t{1}),
         {floats({2, 3}, {6, 5, 3, 15, 11, 6})}});
  check({Op::CumSum,
         {x, columns},
         Attrs().set("reverse", int64_t{1}).set("exclusive", int64_t{1}),
         {floats({2, 3}, {5, 3, 0, 11, 6, 0})}});
  check({Op::CumProd, {x, columns}, {}, {floats({2, 3}, {1, 2, 6, 4, 20, 120})}});
  check({Op::CumProd,
         {x, columns},
         Attrs().set("exclusive", int64_t{1}),
         {floats({2, 3}, {1, 1, 2, 1, 4, 20})}});
  const int64_t wide = (int64_t{1} << 53) + 1;
  check({Op::CumSum, {tensor_of({wide, 2}), ints({}, {0})}, {}, {tensor_of({wide, wide + 2})}});
  check({Op::CumSum, {counting(DType::f32, {0, 2}), ints({}, {0})}});
  check({Op::CumSum, {random_tensor(DType::f16, {2, 300}, 0, 1), ints({}, {1})}});
  check({Op::CumProd,
         {random_tensor(DType::u8, {5, 7}, 0, 9), ints({}, {0})},
         Attrs().set("reverse", int64_t{1})});
  // What comes later does not reach back, not even a NaN.
  check({Op::CumSum,
         {floats({3}, {1, kNan, INFINITY}), ints({}, {0})},
         {},
         {floats({3}, {1, kNan, kNan})}});
}

TEST(Sort, WhatDependsOnDataNeedsIt) {
  const Tensor x = ints({2, 2}, {1, 0, 1, 1});
  check({Op::NonZero, {x}, {}, {ints({2, 3}, {0, 1, 1, 0, 0, 1})}});
  check_refused({Op::NonZero, {x}}, Code::kUnsupported, "the output size depends on data", false);
  const Tensor v = floats({6}, {2, 1, 1, 3, 4, 3});
  check({Op::Unique,
         {v},
         {},
         {floats({4}, {1, 2, 3, 4}), ints({4}, {1, 0, 3, 4}), ints({6}, {1, 0, 0, 2, 3, 2}),
          ints({4}, {2, 1, 2, 1})},
         4});
  check({Op::Unique,
         {v},
         Attrs().set("sorted", int64_t{0}),
         {floats({4}, {2, 1, 3, 4}), ints({4}, {0, 1, 3, 4}), ints({6}, {0, 1, 1, 2, 3, 2}),
          ints({4}, {1, 2, 2, 1})},
         4});
  check({Op::Unique,
         {floats({3, 3}, {1, 0, 0, 1, 0, 0, 2, 3, 4})},
         Attrs().set("axis", int64_t{0}),
         {floats({2, 3}, {1, 0, 0, 2, 3, 4}), ints({2}, {0, 2}), ints({3}, {0, 0, 1}),
          ints({2}, {2, 1})},
         4});
  check_refused({Op::Unique, {v}}, Code::kUnsupported, "the output size depends on data", false);
  check_refused({Op::Unique, {floats({0, int64_t{1} << 40}, {})}, Attrs().set("axis", int64_t{1})},
                Code::kBadModel, "1099511627776 empty slices");
}

TEST(Sort, NonMaxSuppressionOfKnownBoxes) {
  const Tensor boxes =
      floats({1, 4, 4}, {0, 0, 1, 1, 0, 0.1, 1, 1.1, 0, 10, 1, 11, 0, 100, 1, 101});
  const Tensor scores = floats({1, 1, 4}, {0.9, 0.75, 0.6, 0.95});
  check({Op::NonMaxSuppression,
         {boxes, scores, ints({1}, {3}), floats({1}, {0.5}), floats({1}, {0})},
         {},
         {ints({3, 3}, {0, 0, 3, 0, 0, 0, 0, 0, 2})}});
  check({Op::NonMaxSuppression, {boxes, scores}, {}, {ints({0, 3}, {})}});
  check_refused({Op::NonMaxSuppression, {boxes, scores}}, Code::kUnsupported, "depends on data",
                false);
  check_refused({Op::NonMaxSuppression, {boxes, scores, ints({0}, {})}}, Code::kBadModel,
                "input 2 is i64[0], wanted a scalar");
  const int64_t many = 1 << 17;
  check_refused(
      {Op::NonMaxSuppression,
       {counting(DType::f32, {1, many, 4}), counting(DType::f32, {1, 1, many}), ints({}, {1e9})}},
      Code::kUnsupported, "boxes of each of [1,1,131072] scores");
}

}  // namespace
}  // namespace obelisk::ops
