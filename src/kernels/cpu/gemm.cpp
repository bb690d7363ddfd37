#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/base.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/machine_code.h"

namespace obelisk::kernels {

static_assert(kObkF64 == static_cast<int>(DType::f64) && kObkF32 == static_cast<int>(DType::f32));
static_assert(kObkF16 == static_cast<int>(DType::f16) && kObkBf16 == static_cast<int>(DType::bf16));
static_assert(kObkI32 == static_cast<int>(DType::i32) && kObkI8 == static_cast<int>(DType::i8));
static_assert(kObkU8 == static_cast<int>(DType::u8));

void multiply(const Product& p) {
  // libxsmm sums over k in order only in groups of 17 to 64 columns. In narrower ones it splits the
  // sum, differently for each m; there our loops keep a row's bits its own.
  for (int64_t column = 0; column < p.n; column += kObkPanel) {
    Product part = p;
    part.n = std::min<int64_t>(kObkPanel, p.n - column);
    part.b += column, part.c += column;
    if (part.n > kGroup) {
      if (const auto code = machine_code(part)) {
        code(part.b, part.a, part.c);
        continue;
      }
    }
    loops().gemm_f32(part.m, part.n, part.k, part.a, part.a_row, part.a_col, part.b, part.b_row,
                     part.c, part.c_row, part.accumulate, part.padded);
  }
}

void multiply_sum(const Product& p, int64_t count, const float* const* a, const float* const* b) {
  if (p.n > kGroup && count > 1) {
    if (const auto code = machine_code_sum(p)) {
      const unsigned long long products = static_cast<unsigned long long>(count);
      code(const_cast<const float**>(b), const_cast<const float**>(a), p.c, &products);
      return;
    }
  }
  Product one = p;
  for (int64_t i = 0; i < count; ++i) {
    one.a = a[i], one.b = b[i];
    one.accumulate = p.accumulate || i > 0;
    multiply(one);
  }
}

namespace {

// Rows of a block of B: 64 x 512 floats are 128 KiB, an eighth of a usual L2, beside the rows of A
// that meet it.
constexpr int64_t kDepth = 512;

bool is_int8(int32_t type) { return type == kObkI8 || type == kObkU8; }

int64_t element_bytes(int32_t type) {
  return type == kObkF64 ? 8 : OBK_LIES_AS_F32(type) ? 4 : is_int8(type) ? 1 : 2;
}

const void* at(const void* data, int32_t type, int64_t element) {
  return static_cast<const char*>(data) + element * element_bytes(type);
}

int32_t read_int8(const void* data, int32_t type, int64_t element) {
  return type == kObkI8 ? static_cast<const int8_t*>(data)[element]
                        : static_cast<const uint8_t*>(data)[element];
}

// Each kind of product: its element in the computation, how a row of A and a panel of B are laid
// out for it, and its core. `steps(k)` are the units that k is cut into; `kUnit` elements make one.

struct KindF32 {
  using Element = float;
  using Sum = float;
  static constexpr int64_t kUnit = 1;
  static bool reads_directly(int32_t type, int64_t col) { return type == kObkF32 && col == 1; }
  static void row(int32_t type, const void* source, int64_t count, int64_t stride, int32_t /*zero*/,
                  float* to) {
    loops().to_f32(type, count, source, stride, to);
  }
  static void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row,
                       const float* b, int64_t b_row, float* c, int64_t c_row, bool accumulate,
                       bool padded) {
    kernels::multiply({.m = m,
                       .n = n,
                       .k = k,
                       .a = a,
                       .a_row = a_row,
                       .a_col = 1,
                       .b = b,
                       .b_row = b_row,
                       .padded = padded,
                       .c = c,
                       .c_row = c_row,
                       .accumulate = accumulate});
  }
};

struct KindF64 {
  using Element = double;
  using Sum = double;
  static constexpr int64_t kUnit = 1;
  static bool reads_directly(int32_t, int64_t col) { return col == 1; }
  static void row(int32_t, const void* source, int64_t count, int64_t stride, int32_t /*zero*/,
                  double* to) {
    const char* from = static_cast<const char*>(source);  // need not be aligned
    for (int64_t i = 0; i < count; ++i) std::memcpy(to + i, from + i * stride * 8, 8);
  }
  static void multiply(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_row,
                       const double* b, int64_t b_row, double* c, int64_t c_row, bool accumulate,
                       bool padded) {
    loops().gemm_f64(m, n, k, a, a_row, 1, b, b_row, c, c_row, accumulate, padded);
  }
};

struct KindInt {
  using Element = int16_t;
  using Sum = int32_t;
  static constexpr int64_t kUnit = 2;  // pairs along k, which one instruction multiplies and adds
  static bool reads_directly(int32_t, int64_t) { return false; }
  static void row(int32_t type, const void* source, int64_t count, int64_t stride, int32_t zero,
                  int16_t* to) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = static_cast<int16_t>(read_int8(source, type, i * stride) - zero);
    if (count % 2) to[count] = 0;
  }
  static void multiply(int64_t m, int64_t n, int64_t k, const int16_t* a, int64_t a_row,
                       const int16_t* b, int64_t b_row, int32_t* c, int64_t c_row, bool accumulate,
                       bool /*padded*/) {
    loops().gemm_i16(m, n, k / 2, a, a_row / 2, b, b_row, c, c_row, accumulate);
  }
};

/// Writes `k` rows of `n` columns of B as a panel of `width` columns. For pairs the rows 2i and
/// 2i+1 alternate.
template <typename Kind>
void pack_panel(int32_t type, int64_t n, int64_t k, int64_t width, const void* b, int64_t b_row,
                int64_t b_col, const void* zero, int64_t zero_col, typename Kind::Element* to) {
  using Element = typename Kind::Element;
  if constexpr (Kind::kUnit == 1) {
    if (b_col == 1) {
      for (int64_t row = 0; row < k; ++row) {
        Kind::row(type, at(b, type, row * b_row), n, 1, 0, to + row * width);
        std::fill(to + row * width + n, to + (row + 1) * width, Element{0});
      }
      return;
    }
    if constexpr (std::is_same_v<Element, float>) {
      if (type == kObkF32 && b_row == 1) {
        loops().transpose(n, k, static_cast<const float*>(b), b_col, to, width);
        for (int64_t row = 0; n < width && row < k; ++row)
          std::fill(to + row * width + n, to + (row + 1) * width, 0.f);
        return;
      }
    }
    for (int64_t column = 0; column < width; ++column) {
      for (int64_t row = 0; row < k; ++row) {
        if (column < n)
          Kind::row(type, at(b, type, row * b_row + column * b_col), 1, 1, 0,
                    to + row * width + column);
        else
          to[row * width + column] = Element{0};
      }
    }
  } else {
    const int64_t padded_k = round_up(k, 2);
    for (int64_t column = 0; column < width; ++column) {
      const int32_t offset = zero && column < n ? read_int8(zero, type, column * zero_col) : 0;
      for (int64_t row = 0; row < padded_k; ++row) {
        const bool inside = column < n && row < k;
        to[(row / 2 * width + column) * 2 + row % 2] =
            inside ? static_cast<Element>(read_int8(b, type, row * b_row + column * b_col) - offset)
                   : Element{0};
      }
    }
  }
}

template <typename Kind>
struct Scratch {
  int64_t a_row = 0, a_bytes = 0, b_bytes = 0;
  explicit Scratch(const ObkGemm& g) {
    const int64_t depth = round_up(std::min(g.k, kDepth), 16);
    if (!Kind::reads_directly(g.a_type, g.a_col)) {
      a_row = depth;
      a_bytes = round_up(g.m * depth * static_cast<int64_t>(sizeof(typename Kind::Element)), 64);
    }
    // Packed tf32 weights are those of f32: each block is rounded when it is met.
    if (g.packed ? g.b_type == kObkTf32 : !Kind::reads_directly(g.b_type, g.b_col))
      b_bytes = depth * kObkPanel * static_cast<int64_t>(sizeof(typename Kind::Element));
  }
};

template <typename Kind>
void run(const ObkGemm& g) {
  using Element = typename Kind::Element;
  using Sum = typename Kind::Sum;
  Sum* c = static_cast<Sum*>(g.c);
  if (g.k == 0) {
    for (int64_t row = 0; row < g.m && !g.accumulate; ++row)
      std::fill_n(c + row * g.c_row, g.n, Sum{0});
    return;
  }
  const Scratch<Kind> scratch(g);
  Element* a_scratch = static_cast<Element*>(g.scratch);
  Element* b_scratch = reinterpret_cast<Element*>(static_cast<char*>(g.scratch) + scratch.a_bytes);
  const int64_t padded_k = round_up(g.k, Kind::kUnit);
  for (int64_t begin = 0; begin < g.k; begin += kDepth) {
    const int64_t depth = std::min(kDepth, g.k - begin);
    const bool accumulate = g.accumulate || begin > 0;
    const Element* a = static_cast<const Element*>(g.a) + begin;
    int64_t a_row = g.a_row;
    if (scratch.a_bytes) {
      for (int64_t row = 0; row < g.m; ++row) {
        const int32_t zero = g.a_zero ? read_int8(g.a_zero, g.a_type, row * g.a_zero_row) : 0;
        Kind::row(g.a_type, at(g.a, g.a_type, row * g.a_row + begin * g.a_col), depth, g.a_col,
                  zero, a_scratch + row * scratch.a_row);
      }
      a = a_scratch;
      a_row = scratch.a_row;
    }
    const int64_t units = round_up(depth, Kind::kUnit);
    for (int64_t column = 0; column < g.n; column += kObkPanel) {
      const int64_t columns = std::min<int64_t>(kObkPanel, g.n - column);
      const Element* b;
      int64_t b_row = panel_width(g.n, column);
      bool padded = true;
      if (g.packed) {
        b_row = panel_width(g.n_packed, g.column + column);
        b = static_cast<const Element*>(g.b) + (g.column + column) * padded_k + begin * b_row;
        if (scratch.b_bytes) {
          Kind::row(g.b_type, b, units * b_row, 1, 0, b_scratch);
          b = b_scratch;
        }
      } else if (scratch.b_bytes) {
        const void* zero = g.b_zero ? at(g.b_zero, g.b_type, column * g.b_zero_col) : nullptr;
        pack_panel<Kind>(g.b_type, columns, depth, b_row,
                         at(g.b, g.b_type, begin * g.b_row + column * g.b_col), g.b_row, g.b_col,
                         zero, g.b_zero_col, b_scratch);
        b = b_scratch;
      } else {
        b = static_cast<const Element*>(g.b) + begin * g.b_row + column;
        b_row = g.b_row;
        padded = false;
      }
      Kind::multiply(g.m, columns, units, a, a_row, b, b_row, c + column, g.c_row, accumulate,
                     padded);
    }
  }
}

template <typename Kind>
void pack(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row, int64_t b_col,
          const void* zero, int64_t zero_col, void* packed) {
  const int64_t padded_k = round_up(k, Kind::kUnit);
  for (int64_t column = 0; column < n; column += kObkPanel) {
    const void* zero_at = zero ? at(zero, type, column * zero_col) : nullptr;
    pack_panel<Kind>(type, std::min<int64_t>(kObkPanel, n - column), k, panel_width(n, column),
                     at(b, type, column * b_col), b_row, b_col, zero_at, zero_col,
                     static_cast<typename Kind::Element*>(packed) + column * padded_k);
  }
}

}  // namespace

}  // namespace obelisk::kernels

using namespace obelisk::kernels;

extern "C" {

int64_t obk_gemm_packed_bytes(int32_t type, int64_t n, int64_t k) {
  const int64_t bytes = type == kObkF64 ? 8 : is_int8(type) ? 2 : 4;
  return obelisk::round_up(n, 16) * obelisk::round_up(k, is_int8(type) ? 2 : 1) * bytes;
}

void obk_gemm_pack(int32_t type, int64_t n, int64_t k, const void* b, int64_t b_row, int64_t b_col,
                   const void* zero, int64_t zero_col, void* packed) {
  if (type == kObkF64)
    pack<KindF64>(type, n, k, b, b_row, b_col, nullptr, 0, packed);
  else if (is_int8(type))
    pack<KindInt>(type, n, k, b, b_row, b_col, zero, zero_col, packed);
  else
    pack<KindF32>(type, n, k, b, b_row, b_col, nullptr, 0, packed);
}

int64_t obk_gemm_scratch_bytes(const ObkGemm* gemm) {
  const auto total = [](auto scratch) { return scratch.a_bytes + scratch.b_bytes; };
  if (gemm->a_type == kObkF64) return total(Scratch<KindF64>(*gemm));
  if (is_int8(gemm->a_type)) return total(Scratch<KindInt>(*gemm));
  return total(Scratch<KindF32>(*gemm));
}

void obk_gemm_tile(const ObkGemm* gemm) {
  if (gemm->m <= 0 || gemm->n <= 0) return;
  if (gemm->a_type == kObkF64)
    run<KindF64>(*gemm);
  else if (is_int8(gemm->a_type))
    run<KindInt>(*gemm);
  else
    run<KindF32>(*gemm);
}

}  // extern "C"
