/// kernels/cpu/attention.h — one block of query rows of one head of attention, on one core.
///
///   in   Q [queries, size], K [keys, size], V [keys, value_size], f32 | f16 | bf16, rows with any
///        stride; a mask [queries, keys] with any strides (0 broadcasts), added or yes/no; a causal
///        rule
///   out  Y [queries, value_size] f32
///
///   Grouped queries: the caller points several heads at one K and V. A cache: K and V are the
///   cache.
///
/// How      scores are stored transposed, [keys, queries]: K needs no transposing (only the small Q
/// does), the
///          softmax runs down columns, query beside query in vector lanes, and V meets them as it
///          lies. With a causal rule, keys that no query of the tile sees are never touched.
/// Numbers  f32, the largest score subtracted; a query's bits do not depend on the tile's others. A
/// row
///          whose keys are all forbidden is NaN, as the definition says, or zeros if asked, and
///          then scores of forbidden keys may be infinite or NaN; no keys at all give zeros, an
///          empty sum. NaN in a score of another key makes its row NaN.
/// Scratch  about 4 * roundup16(queries) * (keys + size + 18) bytes: 48 to 64 queries and a few
///          hundred keys stay in L2.
#pragma once

#include "kernels/cpu/table.h"

namespace obelisk::kernels {

inline int64_t attention_scratch_bytes(const ObkAttention& attention) {
  return obk_attention_scratch_bytes(&attention);
}

inline void attention_tile(const ObkAttention& attention) { obk_attention_tile(&attention); }

}  // namespace obelisk::kernels
