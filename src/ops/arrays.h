/// ops/arrays.h — what references stand on: whole tensors as doubles or int64, and walks over
/// coordinates.
///
/// A reference may be handed f64 where the model says f32 (see ops.h), so it reads and writes
/// through these and never through the model's type. u64 travels in int64_t with the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace obelisk::ops {

std::vector<double> read_reals(const Tensor& tensor);
std::vector<int64_t> read_ints(const Tensor& tensor);
void write_reals(Tensor& tensor, std::span<const double> values);
void write_ints(Tensor& tensor, std::span<const int64_t> values);

/// Truncated; what no int64_t holds becomes the lowest, as where a tensor of doubles is read.
int64_t to_int(double value);

/// A sum of elements in the order that they come.
class Total {
 public:
  explicit Total(Sums sums) : in_f32_(sums != Sums::kDouble) {}
  void operator+=(double value) {
    value_ = in_f32_ ? static_cast<float>(value_) + static_cast<float>(value) : value_ + value;
  }
  double value() const { return value_; }

 private:
  bool in_f32_;
  double value_ = 0;
};

/// The number of that type nearest to `value`; of kDouble, where nothing is rounded, the value.
double stored(double value, DType dtype, Sums sums);

/// Copies element `from` of `source` to element `to` of `target`, both of one kind (float or not).
void copy_element(Tensor& target, int64_t to, const Tensor& source, int64_t from);

/// Where each input's element lies for each element of a broadcast output. An input of one element
/// broadcasts to anything, whatever its rank; an absent one (nullptr) always lies at 0.
class Broadcast {
 public:
  Broadcast(const Shape& output, std::span<const Tensor* const> inputs);

  /// visit(element of the output, offsets: one per input)
  template <typename Visit>
  void each(Visit visit) const {
    std::vector<int64_t> offsets(inputs_, 0), at(output_.size(), 0);
    const int rank = static_cast<int>(output_.size());
    for (int64_t element = 0; element < count_; ++element) {
      visit(element, offsets.data());
      for (int d = rank - 1; d >= 0; --d) {
        for (int input = 0; input < inputs_; ++input) offsets[input] += strides_[input * rank + d];
        if (++at[d] < output_[d]) break;
        for (int input = 0; input < inputs_; ++input)
          offsets[input] -= strides_[input * rank + d] * output_[d];
        at[d] = 0;
      }
    }
  }

 private:
  Shape output_;
  int inputs_;
  int64_t count_;
  std::vector<int64_t> strides_;  // [inputs, rank of the output]
};

/// Splits a shape into `kept` and `folded` dimensions and says which output element each input
/// element belongs to.
struct Fold {
  Fold(const Shape& shape, const std::vector<int64_t>& axes);

  int64_t outer = 1;          // output elements
  int64_t inner = 1;          // input elements of one output element
  std::vector<int64_t> base;  // [outer] where an output element's input begins
  std::vector<int64_t> step;  // [inner] and how far its parts lie from there, in row-major order
};

}  // namespace obelisk::ops
