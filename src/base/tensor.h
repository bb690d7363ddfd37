/// base/tensor.h — a shape, a type, and a dense host tensor (row-major, shared ownership, maybe a
/// view of a mapped file).
///
/// Type lives here and not in `graph`, because the op table stands left of the graph and its shape
/// rules speak of types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace obelisk {

using Shape = std::vector<int64_t>;  // extents, outermost first; [] is a scalar

int64_t element_count(const Shape& shape);  // 1 for a scalar, 0 when an extent is 0
/// The same for shapes that come from outside: nothing when an extent is negative or the count
/// overflows.
std::optional<int64_t> checked_element_count(const Shape& shape);
Shape row_major_strides(const Shape& shape);  // in elements
std::string to_string(const Shape& shape);    // "[1,128,768]"
/// The numpy broadcast of two shapes, or nothing when they do not broadcast.
std::optional<Shape> broadcast(const Shape& a, const Shape& b);

struct Type {
  DType dtype = DType::f32;
  Shape shape;
  int64_t count() const { return element_count(shape); }
  int64_t bytes() const { return byte_size(dtype, count()); }
  int rank() const { return static_cast<int>(shape.size()); }
  bool operator==(const Type&) const = default;
};
std::string to_string(const Type& type);  // "f32[1,128,768]"

/// Dense, row-major. Copies share the bytes. Bytes made by allocate() are 64-byte aligned and
/// zeroed; a view keeps its owner alive.
class Tensor {
 public:
  Tensor() = default;
  static Tensor allocate(Type type);
  /// A view of foreign bytes (a mapped weight); `owner` keeps them alive. No copy.
  static Tensor view(Type type, const void* data, std::shared_ptr<const void> owner);

  bool empty() const { return data_ == nullptr; }
  const Type& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  const Shape& shape() const { return type_.shape; }
  int64_t count() const { return type_.count(); }
  int64_t bytes() const { return type_.bytes(); }

  const void* data() const { return data_; }
  void* mutable_data();  // CHECKs that these bytes were made by allocate()
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }
  template <typename T>
  T* as_mutable() {
    return static_cast<T*>(mutable_data());
  }

  double get_double(int64_t index) const { return obelisk::get_double(data_, type_.dtype, index); }
  int64_t get_int(int64_t index) const { return obelisk::get_int(data_, type_.dtype, index); }
  void set_double(int64_t index, double value) {
    obelisk::set_double(mutable_data(), type_.dtype, index, value);
  }
  void set_int(int64_t index, int64_t value) {
    obelisk::set_int(mutable_data(), type_.dtype, index, value);
  }

  /// The same bytes under another shape of equal count.
  Tensor reshaped(Shape shape) const;
  /// A copy converted element by element (floats round to nearest even).
  Tensor cast(DType dtype) const;

 private:
  Type type_;
  const void* data_ = nullptr;
  bool writable_ = false;
  std::shared_ptr<const void> owner_;
};

Tensor tensor_of(const std::vector<int64_t>& values);  // i64[n]
Tensor tensor_of(DType dtype, Shape shape, const std::vector<double>& values);
std::vector<int64_t> to_ints(const Tensor& tensor);  // every element as int64

}  // namespace obelisk
