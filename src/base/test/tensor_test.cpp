#include "base/base.h"

#include <gtest/gtest.h>

namespace obelisk {
namespace {

TEST(Shapes, CountsAndStrides) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 0, 3}), 0);
  EXPECT_EQ(row_major_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(to_string(Type{DType::f32, {1, 128}}), "f32[1,128]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  const int64_t big = int64_t{1} << 40;
  EXPECT_FALSE(checked_element_count({big, big}).has_value());
  EXPECT_EQ(checked_element_count({big, big, 0}), 0);
  EXPECT_FALSE(checked_element_count({-1}).has_value());
  EXPECT_EQ(row_major_strides({0, big, big}), (Shape{0, big, 1}));
  EXPECT_THROW(element_count({big, big}), Bug);
}

TEST(Shapes, Broadcast) {
  EXPECT_EQ(broadcast({2, 1, 4}, {3, 1}), (Shape{2, 3, 4}));
  EXPECT_EQ(broadcast({}, {3}), (Shape{3}));
  EXPECT_EQ(broadcast({1}, {0}), (Shape{0}));
  EXPECT_EQ(broadcast({0}, {1}), (Shape{0}));
  EXPECT_FALSE(broadcast({2}, {3}).has_value());
  EXPECT_FALSE(broadcast({0}, {2}).has_value());
}

TEST(Tensors, AllocateIsZeroedAndAligned) {
  Tensor tensor = Tensor::allocate({DType::f32, {3, 5}});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  for (int k = 0; k < 15; ++k) EXPECT_EQ(tensor.get_double(k), 0);
  Tensor none = Tensor::allocate({DType::f32, {0, 5}});
  EXPECT_FALSE(none.empty());
  EXPECT_EQ(none.bytes(), 0);
}

TEST(Tensors, ViewsNeverCopyAndRefuseWrites) {
  auto owner = std::make_shared<std::vector<char>>(9, '\0');
  const float value = 2.5f;
  memcpy(owner->data() + 1, &value, 4);
  Tensor view = Tensor::view({DType::f32, {2}}, owner->data() + 1, owner);
  EXPECT_EQ(view.data(), owner->data() + 1);
  std::weak_ptr<std::vector<char>> watch = owner;
  owner.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(view.get_double(0), 2.5);
  EXPECT_THROW(view.mutable_data(), Bug);
  EXPECT_FALSE(Tensor::view({DType::f32, {0}}, nullptr, nullptr).empty());
  view = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(Tensors, ReshapeSharesAndCastCopies) {
  Tensor tensor = tensor_of(DType::f32, {2, 2}, {1.5, -2.5, 3, 1e9});
  EXPECT_EQ(tensor.reshaped({4}).data(), tensor.data());
  EXPECT_THROW(tensor.reshaped({3}), Bug);
  EXPECT_EQ(to_ints(tensor.cast(DType::i64)), (std::vector<int64_t>{1, -2, 3, 1000000000}));
  EXPECT_EQ(tensor.cast(DType::f16).get_double(1), -2.5);
  EXPECT_NE(tensor.cast(DType::f32).data(), tensor.data());
  EXPECT_EQ(to_ints(tensor_of({4, -5})), (std::vector<int64_t>{4, -5}));
}

TEST(Tensors, LargeUnsignedToFloat) {
  Tensor tensor = Tensor::allocate({DType::u64, {2}});
  tensor.set_int(0, -1);
  tensor.as_mutable<uint64_t>()[1] = (uint64_t{1} << 63) + 1;
  EXPECT_EQ(tensor.cast(DType::f64).get_double(0), 0x1p64);
  EXPECT_EQ(tensor.cast(DType::f32).get_double(1), 0x1p63);
  EXPECT_EQ(tensor.cast(DType::bf16).get_double(0), 0x1p64);
}

TEST(Units, Text) {
  EXPECT_EQ(to_string(Bytes{12}), "12 B");
  EXPECT_EQ(to_string(43_MiB), "43.0 MiB");
  EXPECT_EQ(to_string(Bytes{(1 << 20) - 1}), "1.0 MiB");
}

TEST(Hashes, AreStable) {
  EXPECT_EQ(to_string(hash_text("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_NE(hash_text("a"), hash_text("b"));
}

}  // namespace
}  // namespace obelisk
