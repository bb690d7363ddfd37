// Hand-written blocks against the references of the ops that they compute, whole and in many
// pieces.
#include "ops/block.h"

#include <cmath>
#include <cstring>

#include "ops/test/golden.h"

#include "dialect.h"

#include "convert.h"
#include "order.h"
#include "region.h"
#include "scatter.h"

namespace obelisk::ops {
namespace {

using Run = void (*)(const int64_t*, void* const*, int64_t);

template <typename T>
Run run_of(const Block& block) {
  const bool wide = block.types.size() < 2 || block.types[1] == DType::i64;
  if (block.name == "cast_to_powers") return obk::cast_to_powers<T>;
  if (block.name == "mel_filter") return obk::mel_filter<T, int64_t, float>;
  if (block.name == "top_k") return obk::top_k<T>;
  if (block.name == "scan") return obk::scan<T>;
  if (block.name == "det") return obk::det<T>;
  if (block.name == "max_roi_pool") return obk::max_roi_pool<T>;
  if (block.name == "roi_align")
    return wide ? obk::roi_align<T, int64_t> : obk::roi_align<T, int32_t>;
  if (block.name == "max_unpool")
    return wide ? obk::max_unpool<T, int64_t> : obk::max_unpool<T, int32_t>;
  if (block.name == "scatter_nd")
    return wide ? obk::scatter_nd<T, int64_t> : obk::scatter_nd<T, int32_t>;
  if (block.name == "scatter_elements")
    return wide ? obk::scatter_elements<T, int64_t> : obk::scatter_elements<T, int32_t>;
  return nullptr;
}

Run run_of(const Block& block) {
  switch (block.types[0]) {
    case DType::f32:
      return run_of<float>(block);
    case DType::f64:
      return run_of<double>(block);
    case DType::i64:
      return run_of<int64_t>(block);
    case DType::i32:
      return run_of<int32_t>(block);
    case DType::u8:
      return block.name == "copy_units" ? obk::copy_units<uint8_t> : run_of<uint8_t>(block);
    case DType::f16:
      return run_of<obk::f16>(block);
    default:
      return nullptr;
  }
}

void check_block(const Sample& sample) {
  Call call = sample_detail::call_of(sample, sample.inputs, true);
  SCOPED_TRACE(to_string(sample.op));
  const auto types = infer(call);
  ASSERT_TRUE(types.ok()) << types.error().text();
  for (const Type& type : *types) call.results.push_back(&type);
  std::vector<const Tensor*> inputs;
  for (const Tensor& input : sample.inputs) inputs.push_back(input.empty() ? nullptr : &input);
  std::vector<Tensor> want;
  for (const Type& type : *types) want.push_back(Tensor::allocate(type));
  ASSERT_TRUE(reference(call, inputs, want).ok());
  for (int64_t pieces : {1, 7, 1000}) {
    const auto made = block(call, pieces);
    ASSERT_TRUE(made.has_value());
    const Run run = run_of(*made);
    ASSERT_NE(run, nullptr) << made->name;
    std::vector<Tensor> got;
    std::vector<void*> operands(6, nullptr);
    for (size_t i = 0; i < inputs.size(); ++i)
      operands[i] = inputs[i] ? const_cast<void*>(inputs[i]->data()) : nullptr;
    for (size_t i = 0; i < types->size(); ++i) {
      got.push_back(Tensor::allocate((*types)[i]));
      std::memset(got[i].mutable_data(), 0x5a, got[i].bytes());  // a block writes all of its output
      operands[made->inputs + i] = got[i].mutable_data();
    }
    for (int64_t item = made->items; item-- > 0;) run(made->params.data(), operands.data(), item);
    for (size_t i = 0; i < got.size(); ++i) {
      expect_near(got[i], want[i], row(sample.op).accuracy,
                  fmt::format("block {} in {} pieces", made->name, pieces));
    }
    const auto in_place = block_in_place(call, pieces);
    if (!in_place) continue;
    const Run update = run_of(*in_place);
    ASSERT_NE(update, nullptr) << in_place->name;
    std::memcpy(got[0].mutable_data(), inputs[0]->data(), got[0].bytes());
    operands[0] = nullptr;
    for (int64_t item = in_place->items; item-- > 0;)
      update(in_place->params.data(), operands.data(), item);
    expect_near(got[0], want[0], row(sample.op).accuracy,
                fmt::format("block {} in place, in {} pieces", in_place->name, pieces));
  }
}

TEST(Block, TopK) {
  for (DType dtype : {DType::f32, DType::f16, DType::i64, DType::u8}) {
    for (double k : {0, 1, 3, 17, 40}) {
      for (int64_t largest : {0, 1}) {
        for (int outputs : {1, 2}) {
          // Few distinct values, so that ties are many.
          check_block({Op::TopK,
                       {random_tensor(dtype, {3, 40, 2}, 0, 9), ints({1}, {k})},
                       Attrs().set("axis", int64_t{1}).set("largest", largest),
                       {},
                       outputs});
        }
      }
    }
  }
  check_block({Op::TopK,
               {floats({5}, {1, std::nan(""), 2, std::nan(""), INFINITY}), ints({1}, {4})},
               {},
               {},
               2});
}

TEST(Block, Scan) {
  for (Op op : {Op::CumSum, Op::CumProd}) {
    for (DType dtype : {DType::f32, DType::f64, DType::i32}) {
      for (int64_t flags : {0, 1, 2, 3}) {
        check_block({op,
                     {random_tensor(dtype, {3, 9, 4}, -2, 2), ints({}, {1})},
                     Attrs().set("exclusive", flags & 1).set("reverse", flags >> 1)});
      }
    }
  }
}

TEST(Block, Scatter) {
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    const Attrs attrs = Attrs().set("reduction", reduction);
    for (DType dtype : {DType::f32, DType::i64, DType::u8}) {
      for (DType index : {DType::i32, DType::i64}) {
        for (int64_t axis : {0, 1, 2}) {
          check_block(
              {Op::ScatterElements,
               {random_tensor(dtype, {6, 5, 4}, 0, 9), random_tensor(index, {3, 5, 2}, -5, 5),
                random_tensor(dtype, {3, 5, 2}, 0, 9, 3)},
               Attrs(attrs).set("axis", axis)});
        }
        check_block({Op::ScatterElements,
                     {random_tensor(dtype, {1000}, 0, 9), random_tensor(index, {300}, -1100, 1100),
                      random_tensor(dtype, {300}, 0, 9, 3)},
                     attrs});
        check_block({Op::ScatterND,
                     {random_tensor(dtype, {6, 5, 200}, 0, 9), random_tensor(index, {30, 2}, -6, 6),
                      random_tensor(dtype, {30, 200}, 0, 9, 3)},
                     attrs});
        check_block({Op::ScatterElements,
                     {random_tensor(dtype, {4, 9}, 0, 9), random_tensor(index, {3, 300}, -9, 8),
                      random_tensor(dtype, {3, 300}, 0, 9, 3)},
                     Attrs(attrs).set("axis", int64_t{1})});
        check_block(
            {Op::ScatterND,
             {random_tensor(dtype, {700, 3}, 0, 9), random_tensor(index, {300, 1}, -700, 699),
              random_tensor(dtype, {300, 3}, 0, 9, 3)},
             attrs});
        check_block({Op::ScatterND,
                     {random_tensor(dtype, {40, 50}, 0, 9), random_tensor(index, {30, 2}, -40, 40),
                      random_tensor(dtype, {30}, 0, 9, 3)},
                     attrs});
      }
    }
  }
  check_block(
      {Op::ScatterND, {random_tensor(DType::f32, {4, 3}), ints({0, 1}, {}), floats({0, 3}, {})}});
}

TEST(Block, RegionsUnpoolingDeterminants) {
  const Tensor image = random_tensor(DType::f32, {2, 3, 9, 7});
  const Tensor rois = random_tensor(DType::f32, {5, 4}, -2, 12),
               batch = random_tensor(DType::i64, {5}, 0, 2);
  for (const char* mode : {"avg", "max"}) {
    for (int64_t sampling : {0, 2}) {
      for (const char* mapping : {"half_pixel", "output_half_pixel"}) {
        check_block({Op::RoiAlign,
                     {image, rois, batch},
                     Attrs()
                         .set("mode", mode)
                         .set("sampling_ratio", sampling)
                         .set("coordinate_transformation_mode", mapping)
                         .set("output_height", int64_t{3})
                         .set("output_width", int64_t{2})
                         .set("spatial_scale", 0.7)});
      }
    }
  }
  check_block({Op::MaxRoiPool,
               {image, random_tensor(DType::f32, {4, 5}, 0, 8)},
               Attrs().set("pooled_shape", std::vector<int64_t>{3, 2}).set("spatial_scale", 0.9)});
  const Attrs kernel = Attrs()
                           .set("kernel_shape", std::vector<int64_t>{2, 3})
                           .set("strides", std::vector<int64_t>{2, 2});
  check_block(
      {Op::MaxUnpool,
       {random_tensor(DType::f32, {2, 3, 4, 5}), random_tensor(DType::i64, {2, 3, 4, 5}, 0, 500)},
       kernel});
  check_block({Op::MaxUnpool,
               {random_tensor(DType::f32, {1, 2, 2, 2}),
                random_tensor(DType::i64, {1, 2, 2, 2}, 0, 40), ints({4}, {1, 2, 6, 7})},
               kernel});
  for (int64_t n : {0, 1, 2, 5, 32})
    check_block({Op::Det, {random_tensor(DType::f64, {3, n, n}, -1, 1)}});
}

TEST(Block, ConvertsElements) {
  const int64_t powers = number_of_dtype(DType::f8e8m0);
  for (const char* mode : {"up", "down", "nearest"}) {
    for (int64_t saturate : {0, 1}) {
      const Attrs attrs =
          Attrs().set("to", powers).set("round_mode", mode).set("saturate", saturate);
      for (DType dtype : {DType::f32, DType::f16, DType::i32}) {
        check_block({Op::Cast, {random_tensor(dtype, {70, 70}, -2, 90)}, attrs});
      }
      check_block({Op::Cast,
                   {floats({8}, {0, INFINITY, -INFINITY, std::nan(""), 1, 3, 1.4e-45, 3.4e38})},
                   attrs});
    }
  }
  for (DType to : {DType::i32, DType::u32}) {
    check_block({Op::BitCast,
                 {random_tensor(DType::f32, {1030, 3})},
                 Attrs().set("to", number_of_dtype(to))});
  }
  check_block(
      {Op::BitCast, {counting(DType::i4, {5, 3})}, Attrs().set("to", number_of_dtype(DType::u4))});
  for (double bins : {1, 8, 40}) {
    check_block({Op::MelWeightMatrix,
                 {ints({}, {bins}), ints({}, {256}), ints({}, {16000}), floats({}, {125}),
                  floats({}, {7000})}});
  }
}

TEST(Block, DeclinesWhatItCannotDo) {
  const Sample packed{Op::ScatterND,
                      {counting(DType::i4, {4}), ints({1, 1}, {0}), counting(DType::i4, {1})}};
  const Call call = sample_detail::call_of(packed, packed.inputs, true);
  EXPECT_FALSE(block(call, 1).has_value());
}

}  // namespace
}  // namespace obelisk::ops
