#include "ops/scatter.h"

#include <algorithm>
#include <cmath>

#include "ops/gather.h"
#include "ops/moves.h"

namespace obelisk::ops {

namespace {

enum class Fold { kReplace, kAdd, kMul, kMax, kMin };

Result<Fold> fold_of(const Call& call) {
  const std::string name = call.attrs.get_string("reduction", "none");
  if (name == "none") return Fold::kReplace;
  if (name == "add") return Fold::kAdd;
  if (name == "mul") return Fold::kMul;
  if (name == "max") return Fold::kMax;
  if (name == "min") return Fold::kMin;
  return bad_call(call, fmt::format("reduction \"{}\"", name), "none, add, mul, max or min");
}

double fold_real(Fold fold, double old, double update) {
  switch (fold) {
    case Fold::kReplace:
      return update;
    case Fold::kAdd:
      return old + update;
    case Fold::kMul:
      return old * update;
    case Fold::kMax:
      return std::isnan(old) || old > update ? old : update;  // NaN wins
    case Fold::kMin:
      return std::isnan(old) || old < update ? old : update;
  }
  return update;
}

int64_t fold_int(Fold fold, int64_t old, int64_t update, bool is_unsigned) {
  const auto uold = static_cast<uint64_t>(old), uupdate = static_cast<uint64_t>(update);
  const bool less = is_unsigned ? uold < uupdate : old < update;
  switch (fold) {
    case Fold::kReplace:
      return update;
    case Fold::kAdd:
      return static_cast<int64_t>(uold + uupdate);
    case Fold::kMul:
      return static_cast<int64_t>(uold * uupdate);
    case Fold::kMax:
      return less ? update : old;
    case Fold::kMin:
      return less ? old : update;
  }
  return update;
}

// Calls body(put) with put(target, source): element `source` of updates into element `target` of
// `to`.
template <typename Body>
void with_fold(const Tensor& updates, Tensor& to, Fold fold, Body&& body) {
  if (fold == Fold::kReplace) {
    with_units(updates, to, [&](auto units) {
      body([&](int64_t target, int64_t source) { units.put(target, units.get(source)); });
    });
  } else if (is_float(to.dtype())) {
    body([&](int64_t target, int64_t source) {
      to.set_double(target, fold_real(fold, to.get_double(target), updates.get_double(source)));
    });
  } else {
    const bool is_unsigned = !is_signed(to.dtype());
    body([&](int64_t target, int64_t source) {
      to.set_int(target, fold_int(fold, to.get_int(target), updates.get_int(source), is_unsigned));
    });
  }
}

Status check_types(const Call& call) {
  TRY_STATUS(check_indices(call, call.in(1)));
  if (call.in(2).dtype != call.in(0).dtype) {
    return bad_call(call, fmt::format("updates of {} into data of {}", to_string(call.in(2)),
                                      to_string(call.in(0))));
  }
  TRY(const Fold fold, fold_of(call));
  if (fold != Fold::kReplace && call.in(0).dtype == DType::b1) {
    return bad_call(call, "a reduction of booleans");
  }
  return ok_status();
}

}  // namespace

// ---- ScatterElements ----------------------------------------------------------------------------

Result<Types> infer_scatter_elements(const Call& call) {
  TRY_STATUS(check_types(call));
  const Type& data = call.in(0);
  TRY(const int64_t axis, normalize_axis(call, call.attrs.get_int("axis", 0), data.rank()));
  const Shape& indices = call.in(1).shape;
  bool fits = indices == call.in(2).shape && indices.size() == data.shape.size();
  for (int d = 0; fits && d < data.rank(); ++d) fits = d == axis || indices[d] <= data.shape[d];
  if (!fits) {
    return bad_call(
        call, fmt::format("indices of {} and updates of {} into data of {}", to_string(indices),
                          to_string(call.in(2).shape), to_string(data.shape)));
  }
  return Types{data};
}

Status reference_scatter_elements(const Call& call, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs) {
  const Tensor& indices = *inputs[1];
  Tensor& to = outputs[0];
  copy_flat(*inputs[0], to);
  TRY(const int64_t axis, normalize_axis(call, call.attrs.get_int("axis", 0), to.type().rank()));
  TRY(const Fold fold, fold_of(call));
  const auto strides = row_major_strides(to.shape());
  const int64_t extent = to.shape()[axis];
  with_fold(*inputs[2], to, fold, [&](auto&& put) {
    int64_t source = 0;
    for_each_point(indices.shape(), [&](const std::vector<int64_t>& at) {
      int64_t index = indices.get_int(source);
      if (index < 0) index += extent;
      const int64_t from = source++;
      if (index < 0 || index >= extent) return;
      int64_t target = index * strides[axis];
      for (size_t d = 0; d < at.size(); ++d) {
        if (static_cast<int64_t>(d) != axis) target += at[d] * strides[d];
      }
      put(target, from);
    });
  });
  return ok_status();
}

// ---- ScatterND ----------------------------------------------------------------------------------

Result<Types> infer_scatter_nd(const Call& call) {
  TRY_STATUS(check_types(call));
  const Shape& data = call.in(0).shape;
  Shape wanted = call.in(1).shape;
  if (wanted.empty()) return bad_call(call, "the indices are a scalar");
  const int64_t depth = wanted.back();
  wanted.pop_back();
  if (depth > static_cast<int64_t>(data.size())) {
    return bad_call(call,
                    fmt::format("indices of {} axes into data of {}", depth, to_string(data)));
  }
  wanted.insert(wanted.end(), data.begin() + depth, data.end());
  if (call.in(2).shape != wanted) {
    return bad_call(call, fmt::format("updates of {}, the data and the indices ask for {}",
                                      to_string(call.in(2).shape), to_string(wanted)));
  }
  return Types{call.in(0)};
}

Status reference_scatter_nd(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs) {
  const Tensor& indices = *inputs[1];
  Tensor& to = outputs[0];
  copy_flat(*inputs[0], to);
  TRY(const Fold fold, fold_of(call));
  const Shape& shape = to.shape();
  const auto strides = row_major_strides(shape);
  const int64_t depth = indices.shape().back();
  const int64_t tuples = product(indices.shape(), 0, indices.type().rank() - 1);
  const int64_t inner = product(shape, static_cast<int>(depth), to.type().rank());
  with_fold(*inputs[2], to, fold, [&](auto&& put) {
    for (int64_t tuple = 0; tuple < tuples; ++tuple) {
      int64_t target = 0;
      bool inside = true;
      for (int64_t d = 0; d < depth; ++d) {
        int64_t index = indices.get_int(tuple * depth + d);
        if (index < 0) index += shape[d];
        inside = inside && index >= 0 && index < shape[d];
        target += inside ? index * strides[d] : 0;
      }
      if (!inside) continue;
      for (int64_t j = 0; j < inner; ++j) put(target + j, tuple * inner + j);
    }
  });
  return ok_status();
}

// ---- TensorScatter ------------------------------------------------------------------------------

namespace {

struct CacheWrite {
  int64_t axis;
  bool circular;
};
Result<CacheWrite> cache_write(const Call& call) {
  CacheWrite write;
  TRY(write.axis, normalize_axis(call, call.attrs.get_int("axis", -2), call.in(0).rank()));
  const std::string mode = call.attrs.get_string("mode", "linear");
  if (mode != "linear" && mode != "circular") {
    return bad_call(call, fmt::format("mode \"{}\"", mode), "linear or circular");
  }
  write.circular = mode == "circular";
  return write;
}

}  // namespace

Result<Types> infer_tensor_scatter(const Call& call) {
  TRY(const CacheWrite write, cache_write(call));
  const Type& cache = call.in(0);
  const Type& update = call.in(1);
  bool fits = write.axis > 0 && cache.dtype == update.dtype && cache.rank() == update.rank();
  for (int d = 0; fits && d < cache.rank(); ++d) {
    fits = d == write.axis ? update.shape[d] <= cache.shape[d] : update.shape[d] == cache.shape[d];
  }
  if (!fits) {
    return bad_call(call, fmt::format("an update of {} into a cache of {} along axis {}",
                                      to_string(update), to_string(cache), write.axis));
  }
  if (call.has(2)) {
    TRY_STATUS(check_indices(call, call.in(2)));
    if (call.in(2).shape != Shape{cache.shape[0]}) {
      return bad_call(call, fmt::format("write_indices of {} for {} rows",
                                        to_string(call.in(2).shape), cache.shape[0]));
    }
  }
  return Types{cache};
}

std::optional<Loop> loop_tensor_scatter(const Call& call, int) {
  auto start = start_loop(call.out().shape);
  auto& exprs = start.loop.exprs;
  const CacheWrite write = cache_write(call).value();
  const DType dtype = call.in(0).dtype;
  const int64_t extent = call.in(0).shape[write.axis], count = call.in(1).shape[write.axis];
  ExprId first = exprs.integer(0);
  if (call.has(2)) {
    first = exprs.cast(exprs.load(2, call.in(2).dtype, {start.coords[0]}), DType::i64);
  }
  ExprId place = start.coords[write.axis];
  if (write.circular && extent > 0) {
    // Twice, since the index itself may lie anywhere: ((c - first mod n) + n) mod n.
    place = exprs.mod(exprs.add(exprs.sub(place, exprs.mod(first, extent)), extent), extent);
  } else {
    place = exprs.sub(place, first);
  }
  const ExprId written =
      exprs.both(exprs.le(exprs.integer(0), place), exprs.lt(place, exprs.integer(count)));
  std::vector<ExprId> at = start.coords;
  at[write.axis] = place;
  const ExprId update = exprs.load(1, dtype, std::move(at), written, zero_of(exprs, dtype));
  start.loop.body = exprs.select(written, update, exprs.load(0, dtype, start.coords));
  return start.loop;
}

Status reference_tensor_scatter(const Call& call, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs) {
  TRY(const CacheWrite write, cache_write(call));
  const Tensor& update = *inputs[1];
  Tensor& to = outputs[0];
  copy_flat(*inputs[0], to);
  const auto strides = row_major_strides(to.shape());
  const int64_t extent = to.shape()[write.axis];
  with_units(update, to, [&](auto units) {
    int64_t source = 0;
    for_each_point(update.shape(), [&](const std::vector<int64_t>& at) {
      const int64_t from = source++;
      // An index may be any number: reduced first, so that no sum or product overflows.
      const int64_t first = call.has(2) ? inputs[2]->get_int(at[0]) : 0;
      int64_t place = at[write.axis];
      if (write.circular)
        place = (place + first % extent + extent) % extent;
      else
        place += std::clamp(first, -extent, extent);
      if (place < 0 || place >= extent) return;
      int64_t target = place * strides[write.axis];
      for (size_t d = 0; d < at.size(); ++d) {
        if (static_cast<int64_t>(d) != write.axis) target += at[d] * strides[d];
      }
      units.put(target, units.get(from));
    });
  });
  return ok_status();
}

}  // namespace obelisk::ops
