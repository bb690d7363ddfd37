#include "kernels/cuda/attention/attention.h"

#include <algorithm>

#include "kernels/cuda/attention/attention_shape.h"
#include "kernels/tile_bounds.h"
#include "machine/costs_cuda.h"

namespace obelisk::kernels {

int64_t cuda_attention_widest(int32_t type) { return OBK_LIES_AS_F32(type) ? 512 : 256; }

int64_t cuda_attention_scratch_bytes(const ObkAttention* attention) {
  const ObkAttention& g = *attention;
  if (attention_by_warps(g.type, g.size, g.value_size)) {
    const int64_t kv_splits = std::max<int64_t>(g.kv_splits, 1);
    return attention_short(g.keys, kv_splits)
               ? short_cut(g.queries, g.keys, g.size, g.value_size, kv_splits, g.in_place != 0)
                     .bytes
               : long_cut(g.queries, g.keys, g.size, g.value_size).bytes;
  }
  const AttentionSizes sizes = attention_sizes(g.type, g.keys, g.size, g.value_size);
  return attention_cut(g.type, sizes, g.queries, g.keys).bytes;
}

int64_t cuda_attention_kv_splits(int32_t type, int64_t heads, int64_t queries, int64_t keys,
                                 int64_t size, int64_t value_size, bool dataflow) {
  using machine::cuda_costs::kAttentionMultiprocessors;
  using namespace split_kv_bounds;
  // Fewer, where they can hold all keys: the task that joins them reads less. In a dataflow program
  // more: smaller ones leave room for pages, and each takes less.
  int64_t enough = dataflow ? kMostKvSplits : kMostKvSplitsJoined, kv_splits = 1;
  while (enough < kMostKvSplits && !attention_short(keys, enough)) enough *= 2;
  if (queries > kMostQueries || keys < kFewestKeys || !attention_by_warps(type, size, value_size))
    return 1;
  while (kv_splits < enough && 2 * kv_splits * heads <= kAttentionMultiprocessors &&
         2 * kv_splits * kFewestKeysOfSplit <= keys)
    kv_splits *= 2;
  return attention_short(keys, kv_splits) ? kv_splits : 1;
}

int64_t cuda_attention_exchange_bytes(int64_t kv_splits, int64_t value_size) {
  return kAttentionTicketBytes + (kv_splits * kv_split_bytes(value_size) + 127) / 128 * 128;
}

double cuda_attention_nanos(int32_t type, int64_t queries, int64_t keys, int64_t size,
                            int64_t value_size) {
  if (attention_by_warps(type, size, value_size)) {
    using Short = machine::cuda_costs::AttentionShort;
    using Long = machine::cuda_costs::AttentionLong;
    const double width = static_cast<double>(size + value_size) / Short::kWidth;
    if (attention_short(keys, 1)) {
      // What a task waits for once; copies, a warp's scores and weights, sums and the epilogue.
      const ShortCut cut = short_cut(queries, keys, size, value_size, 1, false);
      const int64_t rows = int64_t{16} << cut.rows_log, passes = (queries + rows - 1) / rows;
      const double work = Short::kKey * cut.keys + Short::kOwnKey * cut.own +
                          Short::kRow * static_cast<double>(rows);
      return Short::kBegin + static_cast<double>(passes) * width * work;
    }
    // A warp's blocks of 32 keys one after the other.
    const LongCut cut = long_cut(queries, keys, size, value_size);
    const int64_t rows = int64_t{16} << cut.rows_log, passes = (queries + rows - 1) / rows;
    return Long::kBegin +
           static_cast<double>(passes) * (Long::kPass + Long::kStep * width * cut.walk);
  }
  using Chains = machine::cuda_costs::AttentionChains;
  // The constants are fit to up to 64 rows.
  if (queries > 64)
    return Chains::kTwoHalves *
           cuda_attention_nanos(type, (queries + 1) / 2, keys, size, value_size);
  const AttentionSizes sizes = attention_sizes(type, keys, size, value_size);
  const AttentionCut cut = attention_cut(type, sizes, queries, keys);
  const int64_t rows = int64_t{16} << cut.rows_log, columns = std::max(sizes.columns, 1);
  const double passes = static_cast<double>((queries + rows - 1) / rows) *
                        static_cast<double>((value_size + columns - 1) / columns);
  // A warp's blocks of keys one after the other; each round of chains is joined by all.
  const int64_t lap = sizes.keys * 8, fours = (columns + 3) / 4;
  const double chain = static_cast<double>((keys + lap - 1) / lap), rounds = 8 >> cut.groups_log;
  const double width = static_cast<double>(size + columns), per_key = sizes.keys / 16.0;
  // tf32 has twice the bytes and, a word at a time, four times the loads of 16-bit rows.
  const double block = (type == kObkF32    ? Chains::kBlock32 + Chains::kWide32 * width
                        : type == kObkTf32 ? Chains::kBlockTf32 + Chains::kWideTf32 * width
                                           : Chains::kBlock16 + Chains::kWide16 * width) *
                       per_key;
  const double join =
      Chains::kJoin + Chains::kJoinRound * static_cast<double>((rows * fours + 255) / 256);
  return Chains::kBegin + passes * rounds * (chain * block + join);
}

}  // namespace obelisk::kernels
