#include "runtime/packing.h"

#include <string.h>

#include <algorithm>

#include "base/parallel.h"

namespace obelisk::runtime {
namespace {

using kernels::TileLibrary;
using Kind = PackRecipe::Kind;

constexpr int64_t kMostElements = int64_t{1} << 31;  // numbers of elements are kept in 32 bits

int32_t type_of(DType dtype) { return static_cast<int32_t>(dtype); }

/// The columns of B's halves in turns: so many of the first, then the same of the second.
Tensor halves_in_turns(const PackRecipe& r, const Tensor& source) {
  const int64_t columns = r.n / 2, size = byte_size(source.dtype(), 1);
  Tensor out = Tensor::allocate({source.dtype(), {r.k, r.n}});
  const char* from = source.as<char>() + r.offset * size;
  char* to = out.as_mutable<char>();
  for (int64_t row = 0; row < r.k; ++row)
    for (int64_t first = 0; first < columns; first += r.half)
      for (int64_t side : {int64_t{0}, columns}) {
        const int64_t count = std::min(r.half, columns - first);
        const char* run = from + (row * r.row + (side + first) * r.column) * size;
        if (r.column == 1) {
          memcpy(to, run, static_cast<size_t>(count * size)), to += count * size;
          continue;
        }
        for (int64_t c = 0; c < count; ++c, run += r.column * size, to += size)
          memcpy(to, run, static_cast<size_t>(size));
      }
  return out;
}

void pack_into(const TileLibrary& tiles, const PackRecipe& r, const Tensor& source, char* packed) {
  const int32_t type = type_of(source.dtype());
  const char* from = source.as<char>();
  // a product's may be anything
  const int64_t taps = r.kind == Kind::kProduct ? 0 : r.height * r.width;
  switch (r.kind) {
    case Kind::kProduct:
      if (r.half > 0) {
        const Tensor turns = halves_in_turns(r, source);
        return tiles.gemm.pack(type, r.n, r.k, r.tile, turns.data(), r.n, 1, packed);
      }
      for (int64_t group = 0; group < r.groups; ++group)
        tiles.gemm.pack(type, r.n, r.k, r.tile,
                        from + byte_size(source.dtype(), r.offset + group * r.outputs), r.row,
                        r.column, packed + group * tiles.gemm.packed_bytes(type, r.n, r.k));
      return;
    case Kind::kDepthwise:
      return tiles.conv.depthwise_pack(type, r.outputs, r.height, r.width, from, r.inputs * taps,
                                       r.width, 1, packed);
    case Kind::kConv: {
      const int64_t bytes = tiles.conv.packed_bytes(type, r.outputs, r.inputs, r.height, r.width);
      for (int64_t group = 0; group < r.groups; ++group)
        tiles.conv.pack(type, r.outputs, r.inputs, r.height, r.width, r.tile,
                        from + byte_size(source.dtype(), group * r.outputs * r.inputs * taps),
                        r.inputs * taps, taps, r.width, 1, packed + group * bytes);
      return;
    }
  }
}

int64_t bytes_of(const TileLibrary& tiles, const PackRecipe& r, int32_t type) {
  switch (r.kind) {
    case Kind::kProduct:
      return tiles.gemm.packed_bytes(type, r.n, r.k) * r.groups;
    case Kind::kDepthwise:
      return tiles.conv.depthwise_packed_bytes(type, r.outputs, r.height, r.width);
    case Kind::kConv:
      return tiles.conv.packed_bytes(type, r.outputs, r.inputs, r.height, r.width) * r.groups;
  }
  return 0;
}

/// What packed elements are: the source's, or f32.
std::optional<DType> packed_dtype(const TileLibrary& tiles, const PackRecipe& r, DType source) {
  const int64_t bytes =
      r.kind == Kind::kProduct ? tiles.gemm.packed_bytes(type_of(source), 64, 64) / (64 * 64)
      : r.kind == Kind::kDepthwise
          ? tiles.conv.depthwise_packed_bytes(type_of(source), 64, 8, 8) / (64 * 64)
          : tiles.conv.packed_bytes(type_of(source), 64, 64, 1, 1) / (64 * 64);
  if (bytes * 8 == bits(source)) return source;
  return bytes == 4 ? std::optional(DType::f32) : std::nullopt;
}

/// An array of codes of a float type of 16 or 32 bits, as it is.
template <typename Code>
Code load_code(const char* from, int64_t index) {
  Code code;
  memcpy(&code, from + index * static_cast<int64_t>(sizeof(Code)), sizeof code);
  return code;
}

/// places() for elements that are codes of 16 or 32 bits. A digit is the code itself, small enough
/// to be of a finite number that is not negative, which packing moves, or widens, exactly.
template <typename Code>
std::vector<uint32_t> places_of_codes(const TileLibrary& tiles, const PackRecipe& recipe,
                                      const Type& source, DType packed, int64_t bytes) {
  constexpr int kWidth = sizeof(Code) * 8 - 2;
  constexpr uint32_t kMask = (uint32_t{1} << kWidth) - 1;
  const int64_t count = source.count();
  std::vector<uint32_t> out(static_cast<size_t>(bytes * 8 / bits(packed)), 0);
  Tensor digits = Tensor::allocate(source), to = Tensor::allocate({DType::u8, {bytes}});
  Code* digit = digits.as_mutable<Code>();
  for (int shift = 0; int64_t{1} << shift <= count; shift += kWidth) {
    for_each_part_on_all_cores(count, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k)
        digit[k] = static_cast<Code>(static_cast<uint32_t>(k + 1) >> shift & kMask);
    });
    pack_into(tiles, recipe, digits, to.as_mutable<char>());
    const char* from = to.as<char>();
    for_each_part_on_all_cores(static_cast<int64_t>(out.size()), [&](int64_t begin, int64_t end) {
      if (packed == source.dtype) {
        for (int64_t k = begin; k < end; ++k)
          out[k] |= static_cast<uint32_t>(load_code<Code>(from, k)) << shift;
        return;
      }
      Code code;  // of a number that was widened to f32
      for (int64_t k = begin; k < end; ++k) {
        narrow(source.dtype, reinterpret_cast<const float*>(from) + k, &code, 1);
        out[k] |= static_cast<uint32_t>(code) << shift;
      }
    });
  }
  return out;
}

/// For each packed element the number of its source plus one; 0 for padding. Numbers are packed
/// digit by digit.
std::vector<uint32_t> places(const TileLibrary& tiles, const PackRecipe& recipe,
                             const Type& source) {
  const DType packed = *packed_dtype(tiles, recipe, source.dtype);
  const int64_t bytes = *packed_bytes(tiles, recipe, source), count = source.count();
  if (is_half(source.dtype)) return places_of_codes<uint16_t>(tiles, recipe, source, packed, bytes);
  if (source.dtype == DType::f32)
    return places_of_codes<uint32_t>(tiles, recipe, source, packed, bytes);
  constexpr int kWidth = 32;  // bits of a digit, an integer that the element type holds exactly
  std::vector<uint32_t> out(static_cast<size_t>(bytes * 8 / bits(packed)), 0);
  Tensor digits = Tensor::allocate(source), to = Tensor::allocate({DType::u8, {bytes}});
  for (int shift = 0; int64_t{1} << shift <= count; shift += kWidth) {
    void* digit = digits.mutable_data();
    for (int64_t k = 0; k < count; ++k)
      set_double(digit, source.dtype, k,
                 static_cast<double>((k + 1) >> shift & ((int64_t{1} << kWidth) - 1)));
    pack_into(tiles, recipe, digits, to.as_mutable<char>());
    for (size_t k = 0; k < out.size(); ++k)
      out[k] += static_cast<uint32_t>(
          static_cast<int64_t>(get_double(to.data(), packed, static_cast<int64_t>(k))) << shift);
  }
  return out;
}

bool within(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

}  // namespace

const TileLibrary* tiles_of(const std::string& target) {
  const auto device = machine::device(target, 1);
  return device.ok() ? &kernels::tile_library(*device) : nullptr;
}

std::optional<int64_t> packed_bytes(const TileLibrary& tiles, const PackRecipe& r,
                                    const Type& source) {
  const int32_t type = type_of(source.dtype);
  const bool taken =
      r.kind == Kind::kProduct ? tiles.gemm.takes(type, type) : tiles.conv.takes(type);
  if (!taken || !packed_dtype(tiles, r, source.dtype)) return std::nullopt;
  const int64_t count = source.count();
  if (count < 1 || count >= kMostElements || !within(r.tile, 0, kMostElements)) return std::nullopt;
  if (r.kind == Kind::kProduct) {
    if (!within(r.n, 1, kMostElements) || !within(r.k, 1, kMostElements) ||
        !within(r.groups, 1, count) || !within(r.offset, 0, count - 1) ||
        !within(r.half, 0, r.n / 2) || (r.half > 0 && (r.n % 2 != 0 || r.groups != 1)))
      return std::nullopt;
    // Each alone says nothing of their product, which is what packing writes.
    if (int64_t all = 0; __builtin_mul_overflow(r.n, r.k, &all) ||
                         __builtin_mul_overflow(all, r.groups, &all) || all >= kMostElements)
      return std::nullopt;
    int64_t low = r.offset, high = r.offset;  // the first and the last element that packing reads
    for (auto [extent, stride] :
         {std::pair{r.n, r.column}, std::pair{r.k, r.row}, std::pair{r.groups, r.outputs}}) {
      if (!within(stride, -count, count)) return std::nullopt;
      (stride < 0 ? low : high) += (extent - 1) * stride;
      if (low < 0 || high >= count) return std::nullopt;
    }
    return bytes_of(tiles, r, type);
  }
  int64_t left = count;  // the five extents multiply to the source's elements
  for (int64_t extent : {r.outputs, r.inputs, r.height, r.width, r.groups}) {
    if (extent < 1 || left % extent != 0) return std::nullopt;
    left /= extent;
  }
  if (left != 1 || (r.kind == Kind::kDepthwise && (r.inputs != 1 || r.groups != 1)))
    return std::nullopt;
  return bytes_of(tiles, r, type);
}

Tensor pack(const TileLibrary& tiles, const PackRecipe& recipe, const Tensor& source) {
  Tensor packed = Tensor::allocate({DType::u8, {bytes_of(tiles, recipe, type_of(source.dtype()))}});
  pack_into(tiles, recipe, source, packed.as_mutable<char>());
  return packed;
}

bool can_unpack(const TileLibrary& tiles, const PackRecipe& recipe, const Type& source) {
  if (!packed_bytes(tiles, recipe, source)) return false;
  if (recipe.kind == Kind::kProduct && recipe.n * recipe.k * recipe.groups != source.count())
    return false;
  std::vector<bool> seen(static_cast<size_t>(source.count()), false);
  int64_t found = 0;
  for (uint32_t place : places(tiles, recipe, source)) {
    if (place == 0) continue;
    if (place > seen.size() || seen[place - 1]) return false;
    seen[place - 1] = true, ++found;
  }
  return found == source.count();
}

bool packs_bits(const TileLibrary& tiles, const PackRecipe& recipe, const Type& source) {
  return packed_dtype(tiles, recipe, source.dtype) == source.dtype;
}

Tensor unpack(const TileLibrary& tiles, const PackRecipe& recipe, const Type& source,
              const Tensor& packed) {
  const std::vector<uint32_t> place = places(tiles, recipe, source);
  const DType dtype = *packed_dtype(tiles, recipe, source.dtype);
  CHECK(byte_size(dtype, static_cast<int64_t>(place.size())) == packed.bytes(),
        "a packed weight of another size");
  Tensor out = Tensor::allocate(source);
  char* to = out.as_mutable<char>();
  const size_t width = static_cast<size_t>(bits(source.dtype) / 8);
  for (size_t k = 0; k < place.size(); ++k) {
    if (place[k] == 0) continue;
    if (dtype == source.dtype)
      memcpy(to + (place[k] - 1) * width, packed.as<char>() + k * width, width);
    else
      set_double(to, source.dtype, place[k] - 1,
                 get_double(packed.data(), dtype, static_cast<int64_t>(k)));
  }
  return out;
}

}  // namespace obelisk::runtime
