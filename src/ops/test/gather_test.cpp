#include "ops/test/golden.h"

namespace obelisk::ops {
namespace {

constexpr DType kMoved[] = {DType::f64, DType::f32, DType::f16, DType::i64,
                            DType::u8,  DType::i4,  DType::u2,  DType::b1};

TEST(Gather, GatherAlongAnAxis) {
  const Tensor x = floats({3, 2}, {1, 2, 3, 4, 5, 6});
  check({Op::Gather,
         {x, ints({2, 2}, {0, 1, 1, -1})},
         {},
         {floats({2, 2, 2}, {1, 2, 3, 4, 3, 4, 5, 6})}});
  check(
      {Op::Gather, {x, ints({}, {1})}, Attrs().set("axis", int64_t{1}), {floats({3}, {2, 4, 6})}});
  check({Op::Gather, {x, ints({0}, {})}, {}, {floats({0, 2}, {})}});
  check({Op::Gather, {floats({0, 2}, {}), ints({0}, {})}, {}, {floats({0, 2}, {})}});
  check_refused({Op::Gather, {floats({0, 2}, {}), ints({1}, {0})}}, Code::kBadModel, "empty");
  check_refused({Op::Gather, {x, floats({1}, {0})}}, Code::kBadModel, "not integers");
  for (DType dtype : kMoved) {
    check({Op::Gather,
           {random_tensor(dtype, {4, 5, 3}, 0, 2), random_tensor(DType::i32, {2, 3}, -5, 5)},
           Attrs().set("axis", int64_t{-2})});
  }
}

TEST(Gather, IndicesOutsideAreClampedEverywhere) {
  const Tensor x = floats({3}, {1, 2, 3});
  check({Op::Gather, {x, ints({4}, {7, -9, 3, -3})}, {}, {floats({4}, {3, 1, 3, 1})}});
  check({Op::GatherElements, {x, ints({2}, {7, -9})}, {}, {floats({2}, {3, 1})}});
  check({Op::GatherND, {x, ints({2, 1}, {7, -9})}, {}, {floats({2}, {3, 1})}});
}

TEST(Gather, GatherElements) {
  const Tensor x = floats({2, 2}, {1, 2, 3, 4});
  check({Op::GatherElements,
         {x, ints({2, 2}, {0, 0, 1, 0})},
         Attrs().set("axis", int64_t{1}),
         {floats({2, 2}, {1, 1, 4, 3})}});
  check({Op::GatherElements, {x, ints({1, 2}, {-1, 0})}, {}, {floats({1, 2}, {3, 2})}});
  check_refused({Op::GatherElements, {x, ints({1}, {0})}}, Code::kBadModel, "indices of [1]");
  for (DType dtype : kMoved) {
    check({Op::GatherElements,
           {random_tensor(dtype, {4, 5, 3}, 0, 2), random_tensor(DType::i64, {4, 7, 2}, -5, 5)},
           Attrs().set("axis", int64_t{1})});
  }
}

TEST(Gather, GatherNd) {
  const Tensor x = counting(DType::f32, {2, 2, 2});
  check({Op::GatherND, {x, ints({2, 2}, {0, 1, 1, 0})}, {}, {floats({2, 2}, {2, 3, 4, 5})}});
  check({Op::GatherND,
         {x, ints({2, 1}, {1, 0})},
         Attrs().set("batch_dims", int64_t{1}),
         {floats({2, 2}, {2, 3, 4, 5})}});
  check({Op::GatherND, {x, ints({1, 3}, {-1, 0, 1})}, {}, {floats({1}, {5})}});
  check_refused({Op::GatherND, {x, ints({1, 4}, {0, 0, 0, 0})}}, Code::kBadModel, "axes into");
  for (DType dtype : kMoved) {
    check({Op::GatherND,
           {random_tensor(dtype, {3, 4, 5, 2}, 0, 2), random_tensor(DType::i64, {3, 6, 2}, -4, 4)},
           Attrs().set("batch_dims", int64_t{1})});
  }
}

TEST(Gather, ReverseSequence) {
  const Tensor x = counting(DType::f32, {4, 2});
  check({Op::ReverseSequence,
         {x, ints({2}, {3, 1})},
         {},
         {floats({4, 2}, {4, 1, 2, 3, 0, 5, 6, 7})}});
  const Attrs rows = Attrs().set("batch_axis", int64_t{0}).set("time_axis", int64_t{1});
  check({Op::ReverseSequence,
         {x, ints({4}, {2, 1, 0, 9})},
         rows,
         {floats({4, 2}, {1, 0, 2, 3, 4, 5, 7, 6})}});
  for (DType dtype : kMoved)
    check({Op::ReverseSequence, {random_tensor(dtype, {5, 3, 2}, 0, 2), ints({3}, {5, 2, 4})}});
}

TEST(Gather, ManyIndicesIntoNothing) {
  const int64_t many = int64_t{1} << 36;
  const Type nothing{DType::f32, {0, int64_t{1} << 30}};
  for (const auto& [op, shape] :
       {std::pair(Op::Gather, Shape{many}), std::pair(Op::GatherND, Shape{many, 1})}) {
    const Type indices{DType::i64, shape};
    const Attrs attrs;
    const auto types = infer({op, attrs, {&nothing, &indices}, {nullptr, nullptr}});
    ASSERT_FALSE(types.ok());
    EXPECT_NE(types.error().text().find("axis 0 of [0,1073741824], which is empty"),
              std::string::npos)
        << types.error().text();
  }
}

TEST(Gather, CompressNeedsItsCondition) {
  const Tensor x = floats({3, 2}, {1, 2, 3, 4, 5, 6}), which = tensor_of(DType::b1, {3}, {0, 1, 1});
  check(
      {Op::Compress, {x, which}, Attrs().set("axis", int64_t{0}), {floats({2, 2}, {3, 4, 5, 6})}});
  check({Op::Compress, {x, tensor_of(DType::b1, {5}, {0, 1, 0, 0, 1})}, {}, {floats({2}, {2, 5})}});
  check_refused({Op::Compress, {x, which}}, Code::kUnsupported, "the output size depends on data",
                false);
}

TEST(Fill, ConstantOfShapeRangeEyeLike) {
  check({Op::ConstantOfShape, {ints({2}, {2, 3})}, {}, {floats({2, 3}, {0, 0, 0, 0, 0, 0})}});
  check({Op::ConstantOfShape,
         {ints({0}, {})},
         Attrs().set("value", tensor_of(DType::b1, {1}, {1})),
         {tensor_of(DType::b1, {}, {1})}});
  const int64_t wide = (int64_t{1} << 62) + 1;  // does not survive a double
  Tensor value = tensor_of({wide}), want = tensor_of({wide, wide});
  check({Op::ConstantOfShape, {ints({1}, {2})}, Attrs().set("value", value), {want}});
  check({Op::Range, {ints({}, {3}), ints({}, {9}), ints({}, {3})}, {}, {ints({2}, {3, 6})}});
  check({Op::Range, {ints({}, {10}), ints({}, {4}), ints({}, {-2})}, {}, {ints({3}, {10, 8, 6})}});
  check({Op::Range,
         {floats({}, {1}), floats({}, {2}), floats({}, {0.25})},
         {},
         {floats({4}, {1, 1.25, 1.5, 1.75})}});
  check({Op::Range, {floats({}, {1}), floats({}, {1}), floats({}, {1})}, {}, {floats({0}, {})}});
  check({Op::Range,
         {floats({}, {0}, DType::bf16), floats({}, {4}, DType::bf16),
          floats({}, {0.5}, DType::bf16)}});
  check_refused({Op::Range, {ints({}, {0}), ints({}, {9}), ints({}, {0})}}, Code::kBadModel,
                "delta is 0");
  check_refused({Op::Range, {ints({}, {0}), ints({}, {9}), ints({}, {1})}}, Code::kUnsupported,
                "depends on data", false);
  check({Op::EyeLike,
         {counting(DType::i32, {2, 3})},
         Attrs().set("k", int64_t{1}),
         {ints({2, 3}, {0, 1, 0, 0, 0, 1}, DType::i32)}});
  check({Op::EyeLike,
         {counting(DType::i32, {3, 2})},
         Attrs().set("k", int64_t{-2}).set("dtype", number_of_dtype(DType::f64)),
         {floats({3, 2}, {0, 0, 0, 0, 1, 0}, DType::f64)}});
  for (const int64_t k : {INT64_MIN, INT64_MAX})
    check({Op::EyeLike,
           {counting(DType::i32, {2, 2})},
           Attrs().set("k", k),
           {ints({2, 2}, {0, 0, 0, 0}, DType::i32)}});
}

TEST(Fill, OneHot) {
  const Tensor values = floats({2}, {2, 5});
  check({Op::OneHot,
         {ints({3}, {0, -1, 4}), ints({}, {3}), values},
         {},
         {floats({3, 3}, {5, 2, 2, 2, 2, 5, 2, 2, 2})}});
  check({Op::OneHot,
         {floats({2}, {1, 0}), ints({1}, {3}), values},
         Attrs().set("axis", int64_t{0}),
         {floats({3, 2}, {2, 5, 5, 2, 2, 2})}});
  check({Op::OneHot,
         {random_tensor(DType::i32, {2, 3}, -4, 4), ints({}, {4}), ints({2}, {0, 1}, DType::i8)},
         Attrs().set("axis", int64_t{1})});
  check({Op::OneHot, {ints({}, {1}), ints({}, {2}), values}, {}, {floats({2}, {2, 5})}});
  check({Op::OneHot,
         {floats({2}, {1e30, -1e30}), ints({}, {2}), values},
         {},
         {floats({2, 2}, {2, 2, 2, 2})}});
}

TEST(Fill, Trilu) {
  const Tensor x = counting(DType::f32, {3, 3}, 1);
  check({Op::Trilu, {x}, {}, {floats({3, 3}, {1, 2, 3, 0, 5, 6, 0, 0, 9})}});
  check({Op::Trilu,
         {x, ints({}, {-1})},
         Attrs().set("upper", int64_t{0}),
         {floats({3, 3}, {0, 0, 0, 4, 0, 0, 7, 8, 0})}});
  for (int64_t upper : {0, 1}) {
    for (double k : {-7, -1, 0, 2, 9}) {
      for (DType dtype : kMoved)
        check({Op::Trilu,
               {random_tensor(dtype, {2, 3, 5}, 0, 2), ints({1}, {k})},
               Attrs().set("upper", upper)});
    }
  }
}

TEST(Scatter, ScatterElements) {
  const Tensor x = floats({1, 5}, {1, 2, 3, 4, 5});
  const Attrs columns = Attrs().set("axis", int64_t{1});
  check({Op::ScatterElements,
         {x, ints({1, 2}, {1, -2}), floats({1, 2}, {10, 20})},
         columns,
         {floats({1, 5}, {1, 10, 3, 20, 5})}});
  const Tensor twice = ints({1, 3}, {1, 1, 9});
  const Tensor updates = floats({1, 3}, {10, 1, 7});
  check({Op::ScatterElements, {x, twice, updates}, columns, {floats({1, 5}, {1, 1, 3, 4, 5})}});
  check({Op::ScatterElements,
         {x, twice, updates},
         Attrs(columns).set("reduction", "add"),
         {floats({1, 5}, {1, 13, 3, 4, 5})}});
  check({Op::ScatterElements,
         {x, twice, updates},
         Attrs(columns).set("reduction", "mul"),
         {floats({1, 5}, {1, 20, 3, 4, 5})}});
  check({Op::ScatterElements,
         {x, twice, updates},
         Attrs(columns).set("reduction", "max"),
         {floats({1, 5}, {1, 10, 3, 4, 5})}});
  check({Op::ScatterElements,
         {x, twice, updates},
         Attrs(columns).set("reduction", "min"),
         {floats({1, 5}, {1, 1, 3, 4, 5})}});
  check({Op::ScatterElements,
         {ints({2}, {250, 1}, DType::u8), ints({1}, {0}), ints({1}, {10}, DType::u8)},
         Attrs().set("reduction", "add"),
         {ints({2}, {4, 1}, DType::u8)}});
  for (DType dtype : kMoved) {
    check({Op::ScatterElements,
           {random_tensor(dtype, {3, 4}, 0, 2), random_tensor(DType::i32, {2, 4}, -3, 3),
            random_tensor(dtype, {2, 4}, 0, 2, 7)}});
  }
}

TEST(Scatter, ScatterNd) {
  const Tensor x = counting(DType::f32, {4});
  check({Op::ScatterND,
         {x, ints({2, 1}, {3, 0}), floats({2}, {9, 8})},
         {},
         {floats({4}, {8, 1, 2, 9})}});
  check({Op::ScatterND,
         {counting(DType::i64, {2, 2}), ints({2, 1}, {1, -1}), ints({2, 2}, {1, 2, 3, 4})},
         Attrs().set("reduction", "add"),
         {ints({2, 2}, {0, 1, 6, 9})}});
  check({Op::ScatterND, {x, ints({1, 1}, {4}), floats({1}, {9})}, {}, {x}});  // outside: dropped
  check_refused({Op::ScatterND, {x, ints({1, 1}, {0}), floats({2}, {1, 2})}}, Code::kBadModel,
                "ask for");
  for (DType dtype : kMoved) {
    check({Op::ScatterND,
           {random_tensor(dtype, {3, 4, 2}, 0, 2), random_tensor(DType::i64, {5, 2}, -3, 3),
            random_tensor(dtype, {5, 2}, 0, 2, 7)}});
  }
}

TEST(Scatter, TensorScatterWritesACache) {
  const Tensor cache = counting(DType::f32, {2, 4, 1}),
               update = floats({2, 2, 1}, {-1, -2, -3, -4});
  check({Op::TensorScatter,
         {cache, update, ints({2}, {1, 3})},
         {},
         {floats({2, 4, 1}, {0, -1, -2, 3, 4, 5, 6, -3})}});
  check({Op::TensorScatter,
         {cache, update, ints({2}, {1, 7})},
         Attrs().set("mode", "circular"),
         {floats({2, 4, 1}, {0, -1, -2, 3, -4, 5, 6, -3})}});
  check(
      {Op::TensorScatter, {cache, update}, {}, {floats({2, 4, 1}, {-1, -2, 2, 3, -3, -4, 6, 7})}});
  check({Op::TensorScatter,
         {random_tensor(DType::f16, {2, 3, 5, 4}), random_tensor(DType::f16, {2, 3, 2, 4}, 0, 1, 9),
          ints({2}, {4, 0})},
         Attrs().set("mode", "circular")});
  // Indices of any size: what would stand outside is left out.
  const int64_t far = int64_t{1} << 62;
  check({Op::TensorScatter, {cache, update, tensor_of({far, -far})}, {}, {cache}});
}

}  // namespace
}  // namespace obelisk::ops
