#include "base/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/large_pages.h"

namespace obelisk {

std::optional<int64_t> checked_element_count(const Shape& shape) {
  int64_t count = 1;
  bool overflow = false, zero = false;
  for (int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    zero |= extent == 0;
    overflow = overflow || __builtin_mul_overflow(count, extent, &count);
  }
  if (zero) return 0;
  if (overflow) return std::nullopt;
  return count;
}

int64_t element_count(const Shape& shape) {
  const std::optional<int64_t> count = checked_element_count(shape);
  CHECK(count.has_value(), "no count for shape {}", to_string(shape));
  return *count;
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    // Beyond all integers only beside an extent of 0, where no element is looked for.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[axis], 1), &stride)) stride = 0;
  }
  return strides;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const size_t offset = longer.size() - shorter.size();
  for (size_t axis = 0; axis < shorter.size(); ++axis) {
    int64_t& extent = out[offset + axis];
    if (extent == 1) {
      extent = shorter[axis];
    } else if (shorter[axis] != extent && shorter[axis] != 1) {
      return std::nullopt;
    }
  }
  return out;
}

std::string to_string(const Type& type) {
  return fmt::format("{}{}", to_string(type.dtype), to_string(type.shape));
}

Tensor Tensor::allocate(Type type) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = static_cast<size_t>(type.bytes());
  if (bytes > static_cast<size_t>(PTRDIFF_MAX) - kAlignment) throw std::bad_alloc();
  // calloc leaves untouched pages of a large block unbacked, aligned_alloc with memset would not.
  void* block = std::calloc(1, bytes + kAlignment);
  if (block == nullptr) throw std::bad_alloc();
  ask_for_large_pages(block, bytes + kAlignment);
  Tensor tensor;
  tensor.owner_ =
      std::shared_ptr<const void>(block, [](const void* p) { std::free(const_cast<void*>(p)); });
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  tensor.data_ = static_cast<char*>(block) + (kAlignment - address % kAlignment);
  tensor.writable_ = true;
  tensor.type_ = std::move(type);
  return tensor;
}

Tensor Tensor::view(Type type, const void* data, std::shared_ptr<const void> owner) {
  CHECK(data != nullptr || type.bytes() == 0, "a view of nothing as {}", to_string(type));
  static const char kNoBytes = 0;
  Tensor tensor;
  tensor.type_ = std::move(type);
  tensor.data_ = data != nullptr ? data : &kNoBytes;
  tensor.owner_ = std::move(owner);
  return tensor;
}

void* Tensor::mutable_data() {
  CHECK(writable_, "writing to a tensor {} that is a view", to_string(type_));
  return const_cast<void*>(data_);
}

Tensor Tensor::reshaped(Shape shape) const {
  CHECK(element_count(shape) == count(), "{} as {}", to_string(type_), to_string(shape));
  Tensor out = *this;
  out.type_.shape = std::move(shape);
  return out;
}

Tensor Tensor::cast(DType dtype) const {
  CHECK(!empty(), "a cast of no tensor");
  Tensor out = allocate({dtype, shape()});
  const DType from = type_.dtype;
  const int64_t n = count();
  void* to = out.mutable_data();
  if (from == dtype) {
    std::memcpy(to, data_, static_cast<size_t>(bytes()));
  } else if (is_float(from)) {
    for (int64_t k = 0; k < n; ++k) obelisk::set_double(to, dtype, k, get_double(k));
  } else if (from == DType::u64 && is_float(dtype)) {
    for (int64_t k = 0; k < n; ++k) {
      const uint64_t value = static_cast<uint64_t>(get_int(k));
      if (value >> 63 == 0) {
        obelisk::set_int(to, dtype, k, static_cast<int64_t>(value));
      } else if (dtype == DType::f64) {
        obelisk::set_double(to, dtype, k, static_cast<double>(value));
      } else {
        // The top 53 bits with a sticky last one: exact as a double, and rounds as the value would.
        const int64_t top = static_cast<int64_t>(value >> 11 | ((value & 2047) != 0));
        obelisk::set_double(to, dtype, k, static_cast<double>(top) * 2048.0);
      }
    }
  } else {
    for (int64_t k = 0; k < n; ++k) obelisk::set_int(to, dtype, k, get_int(k));
  }
  return out;
}

Tensor tensor_of(const std::vector<int64_t>& values) {
  Tensor out = Tensor::allocate({DType::i64, {static_cast<int64_t>(values.size())}});
  std::copy(values.begin(), values.end(), out.as_mutable<int64_t>());
  return out;
}

Tensor tensor_of(DType dtype, Shape shape, const std::vector<double>& values) {
  Tensor out = Tensor::allocate({dtype, std::move(shape)});
  CHECK(out.count() == static_cast<int64_t>(values.size()), "{} values for {}", values.size(),
        to_string(out.type()));
  for (int64_t k = 0; k < out.count(); ++k) out.set_double(k, values[static_cast<size_t>(k)]);
  return out;
}

std::vector<int64_t> to_ints(const Tensor& tensor) {
  std::vector<int64_t> out(static_cast<size_t>(tensor.count()));
  for (size_t k = 0; k < out.size(); ++k) out[k] = tensor.get_int(static_cast<int64_t>(k));
  return out;
}

}  // namespace obelisk
