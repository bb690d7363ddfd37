#include "ops/arrays.h"

#include <algorithm>
#include <cstring>

namespace obelisk::ops {

// A weight lies in its file wherever the file's writer put it: elements need not be aligned.

std::vector<double> read_reals(const Tensor& tensor) {
  const int64_t count = tensor.count();
  std::vector<double> values(count);
  if (tensor.dtype() == DType::f64) {
    if (count > 0) std::memcpy(values.data(), tensor.data(), tensor.bytes());
  } else if (tensor.dtype() == DType::f32) {
    const char* from = tensor.as<char>();
    for (int64_t n = 0; n < count; ++n) {
      float value;
      std::memcpy(&value, from + n * sizeof value, sizeof value);
      values[n] = value;
    }
  } else {
    for (int64_t n = 0; n < count; ++n) values[n] = tensor.get_double(n);
  }
  return values;
}

std::vector<int64_t> read_ints(const Tensor& tensor) {
  const int64_t count = tensor.count();
  std::vector<int64_t> values(count);
  if (tensor.dtype() == DType::i64) {
    if (count > 0) std::memcpy(values.data(), tensor.data(), tensor.bytes());
  } else {
    for (int64_t n = 0; n < count; ++n) values[n] = tensor.get_int(n);
  }
  return values;
}

void write_reals(Tensor& tensor, std::span<const double> values) {
  CHECK(static_cast<int64_t>(values.size()) == tensor.count());
  if (tensor.dtype() == DType::f64) {
    std::copy(values.begin(), values.end(), tensor.as_mutable<double>());
  } else if (tensor.dtype() == DType::f32) {
    std::transform(values.begin(), values.end(), tensor.as_mutable<float>(),
                   [](double value) { return static_cast<float>(value); });
  } else {
    for (size_t n = 0; n < values.size(); ++n) tensor.set_double(n, values[n]);
  }
}

void write_ints(Tensor& tensor, std::span<const int64_t> values) {
  CHECK(static_cast<int64_t>(values.size()) == tensor.count());
  for (size_t n = 0; n < values.size(); ++n) tensor.set_int(n, values[n]);
}

int64_t to_int(double value) { return obelisk::get_int(&value, DType::f64, 0); }

double stored(double value, DType dtype, Sums sums) {
  if (sums == Sums::kDouble || dtype == DType::f64) return value;
  uint64_t element = 0;
  set_double(&element, dtype, 0, value);
  return get_double(&element, dtype, 0);
}

void copy_element(Tensor& target, int64_t to, const Tensor& source, int64_t from) {
  if (is_float(source.dtype()))
    target.set_double(to, source.get_double(from));
  else
    target.set_int(to, source.get_int(from));
}

Broadcast::Broadcast(const Shape& output, std::span<const Tensor* const> inputs)
    : output_(output),
      inputs_(static_cast<int>(inputs.size())),
      count_(element_count(output)),
      strides_(inputs.size() * output.size(), 0) {
  const int rank = static_cast<int>(output.size());
  for (int input = 0; input < inputs_; ++input) {
    if (!inputs[input] || inputs[input]->count() == 1) continue;
    const Shape& shape = inputs[input]->shape();
    const Shape strides = row_major_strides(shape);
    const int skip = rank - static_cast<int>(shape.size());
    CHECK(skip >= 0, "{} does not broadcast to {}", to_string(shape), to_string(output));
    for (size_t d = 0; d < shape.size(); ++d)
      if (shape[d] != 1) strides_[input * rank + skip + d] = strides[d];
  }
}

Fold::Fold(const Shape& shape, const std::vector<int64_t>& axes) {
  const Shape strides = row_major_strides(shape);
  const auto is_folded = [&](size_t d) {
    return std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
  };
  // Beside an extent of 0 others may be of any size: what is empty is not built up first.
  base = step = {0};
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] == 0) (is_folded(d) ? step : base).clear();
  if (base.empty()) step.clear();
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t>& offsets = is_folded(d) ? step : base;
    if (offsets.empty()) continue;
    std::vector<int64_t> wider;
    wider.reserve(offsets.size() * shape[d]);
    for (int64_t offset : offsets)
      for (int64_t at = 0; at < shape[d]; ++at) wider.push_back(offset + at * strides[d]);
    offsets = std::move(wider);
  }
  outer = static_cast<int64_t>(base.size());
  inner = static_cast<int64_t>(step.size());
  if (inner == 0) base.assign(base.size(), 0);  // of nothing, no part begins anywhere
}

}  // namespace obelisk::ops
