#include "ops/test/golden.h"

namespace obelisk::ops {
namespace {

TEST(Signal, Windows) {
  check({Op::HannWindow, {ints({}, {4})}, {}, {floats({4}, {0, 0.5, 1, 0.5})}});
  check({Op::HannWindow,
         {ints({}, {3})},
         Attrs().set("periodic", int64_t{0}),
         {floats({3}, {0, 1, 0})}});
  check({Op::HammingWindow, {ints({}, {2})}, {}, {floats({2}, {4.0 / 46, 1})}});
  check({Op::BlackmanWindow,
         {ints({}, {2})},
         Attrs().set("output_datatype", number_of_dtype(DType::f64)),
         {floats({2}, {0, 1}, DType::f64)}});
  check({Op::BlackmanWindow, {ints({}, {33})}});
  check({Op::HannWindow, {ints({}, {0})}, {}, {floats({0}, {})}});
}

TEST(Signal, MelWeights) {
  // The edges lie at 0, 427, 1114 and 2220 Hz, in bins 0, 0, 1 and 2 of 1 kHz.
  check({Op::MelWeightMatrix,
         {ints({}, {2}), ints({}, {8}), ints({}, {8000}), floats({}, {0}), floats({}, {4000})},
         {},
         {floats({5, 2}, {1, 0, 0, 1, 0, 0, 0, 0, 0, 0})}});
  // Frequencies beyond all bins.
  check({Op::MelWeightMatrix,
         {ints({}, {1}), ints({}, {2}), ints({}, {0}), floats({}, {100}), floats({}, {4000})},
         {},
         {floats({2, 1}, {0, 0})}});
  check_refused({Op::MelWeightMatrix,
                 {ints({}, {2}), ints({}, {8}), ints({0}, {}), floats({}, {0}), floats({}, {1})}},
                Code::kBadModel, "input 2 is i64[0], wanted a scalar");
}

TEST(Signal, DftThereAndBack) {
  const Tensor x = floats({1, 4, 1}, {1, 2, 3, 4});
  check({Op::DFT, {x}, {}, {floats({1, 4, 2}, {10, 0, -2, 2, -2, 0, -2, -2})}});
  check({Op::DFT,
         {x},
         Attrs().set("onesided", int64_t{1}),
         {floats({1, 3, 2}, {10, 0, -2, 2, -2, 0})}});
  check({Op::DFT,
         {floats({1, 4, 2}, {10, 0, -2, 2, -2, 0, -2, -2})},
         Attrs().set("inverse", int64_t{1}),
         {floats({1, 4, 2}, {1, 0, 2, 0, 3, 0, 4, 0})}});
  check({Op::DFT,
         {floats({1, 3, 2}, {10, 0, -2, 2, -2, 0})},
         Attrs().set("inverse", int64_t{1}).set("onesided", int64_t{1}),
         {floats({1, 4, 1}, {1, 2, 3, 4})}});
  for (double length : {1, 3, 4, 9, 12}) {
    for (int64_t onesided : {0, 1}) {
      const Attrs attrs = Attrs().set("onesided", onesided);
      check({Op::DFT,
             {random_tensor(DType::f32, {2, 5, 3, 1}, -1, 1), ints({}, {length}), ints({}, {1})},
             attrs});
      check({Op::DFT,
             {random_tensor(DType::f64, {2, 6, 2}, -1, 1), ints({}, {length})},
             Attrs(attrs).set("inverse", int64_t{1})});
    }
  }
  check_refused({Op::DFT, {x, {}, ints({}, {-1})}}, Code::kBadModel, "not a signal");
}

TEST(Signal, Stft) {
  const Tensor x = floats({1, 6, 1}, {1, 2, 3, 4, 5, 6});
  check({Op::STFT,
         {x, ints({}, {2}), {}, ints({}, {4})},
         {},
         {floats({1, 2, 3, 2}, {10, 0, -2, 2, -2, 0, 18, 0, -2, 2, -2, 0})}});
  check({Op::STFT,
         {random_tensor(DType::f32, {2, 21, 1}, -1, 1), ints({}, {3}),
          random_tensor(DType::f32, {6}, 0, 1)},
         Attrs().set("onesided", int64_t{0})});
  check({Op::STFT,
         {random_tensor(DType::f32, {2, 21, 2}, -1, 1), ints({}, {5}), {}, ints({}, {7})},
         Attrs().set("onesided", int64_t{0})});
}

TEST(Einsum, Equations) {
  auto equation = [](const char* text) { return Attrs().set("equation", text); };
  const Tensor a = floats({2, 3}, {1, 2, 3, 4, 5, 6}), b = floats({3, 2}, {1, 0, 0, 1, 1, 1});
  check({Op::Einsum, {a, b}, equation("ij,jk->ik"), {floats({2, 2}, {4, 5, 10, 11})}});
  check({Op::Einsum, {a, b}, equation("ij, jk"), {floats({2, 2}, {4, 5, 10, 11})}});
  check({Op::Einsum, {a}, equation("ij->ji"), {floats({3, 2}, {1, 4, 2, 5, 3, 6})}});
  check({Op::Einsum, {a}, equation("ij->"), {floats({}, {21})}});
  check({Op::Einsum, {counting(DType::i64, {3, 3})}, equation("ii->i"), {ints({3}, {0, 4, 8})}});
  check({Op::Einsum, {counting(DType::i64, {3, 3})}, equation("ii"), {ints({}, {12})}});
  check({Op::Einsum,
         {random_tensor(DType::f32, {2, 3, 4}), random_tensor(DType::f32, {1, 4, 5})},
         equation("...ij,...jk->...ik")});
  check({Op::Einsum,
         {random_tensor(DType::f32, {2, 1, 4}), random_tensor(DType::f32, {3, 4}),
          random_tensor(DType::f32, {4})},
         equation("bid,jd,d->bij")});
  check({Op::Einsum,
         {random_tensor(DType::f32, {2, 3, 4, 5}),
          random_tensor(DType::f16, {6, 5, 4, 2}).cast(DType::f32)},
         equation("abcd,edca->aeb")});
  check({Op::Einsum,
         {random_tensor(DType::f32, {2, 3}), random_tensor(DType::f32, {3, 4}),
          random_tensor(DType::f32, {5, 4, 2})},
         equation("ij,jk,lki->li")});
  check({Op::Einsum,
         {random_tensor(DType::f32, {2, 3, 7}), random_tensor(DType::f32, {3, 4})},
         equation("ijx,jk->")});
  check({Op::Einsum,
         {random_tensor(DType::f64, {2, 3, 3}), random_tensor(DType::f64, {3, 4})},
         equation("ijj,jk->ki")});
  check({Op::Einsum,
         {random_tensor(DType::f32, {2, 0}), random_tensor(DType::f32, {0, 3})},
         equation("ij,jk->ik")});
  check_refused({Op::Einsum, {a, b}, equation("ij,ik->jk")}, Code::kBadModel, "extents 2 and 3");
  check_refused({Op::Einsum, {a, b}, equation("ij->i")}, Code::kBadModel, "1 terms for 2 inputs");
  check_refused({Op::Einsum, {a}, equation("ij->iz")}, Code::kBadModel, "no input");
  check_refused({Op::Einsum, {a}, equation("i..j->i")}, Code::kBadModel, "not a term");
}

TEST(Einsum, Det) {
  check({Op::Det, {floats({2, 2}, {0, 1, 2, 3})}, {}, {floats({}, {-2})}});
  check({Op::Det, {floats({2, 2, 2}, {1, 2, 3, 4, 1, 2, 2, 4})}, {}, {floats({2}, {-2, 0})}});
  check({Op::Det, {floats({3, 3}, {2, 0, 1, 1, 3, 2, 1, 1, 4})}, {}, {floats({}, {18})}});
  check_refused({Op::Det, {floats({2, 3}, {1, 2, 3, 4, 5, 6})}}, Code::kBadModel, "square");
}

}  // namespace
}  // namespace obelisk::ops
