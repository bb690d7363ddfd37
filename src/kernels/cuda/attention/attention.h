/// kernels/cuda/attention/attention.h — the host's side of the attention tile on a GPU
/// (attention.cuh): what it takes, shared memory, what it costs.
#pragma once

#include <cstdint>

#include "kernels/common/tiles.h"

namespace obelisk::kernels {

/// The largest size and value_size of a head.
int64_t cuda_attention_widest(int32_t type);
/// Shared memory that the tile wants beside Y. Looks at type, queries, keys, size, value_size,
/// pieces, kept.
int64_t cuda_attention_scratch_bytes(const ObkAttention* attention);
/// Predicted nanoseconds of one tile on one SM, K and V in the second-level cache.
double cuda_attention_nanos(int32_t type, int64_t queries, int64_t keys, int64_t size,
                            int64_t value_size);

/// Pieces of a head's keys that tiles of their own take; 1: one tile takes all. By the shape of one
/// sequence alone. A phase of 132 multiprocessors is what they are chosen for.
/// `flows`: of a program that may run as dataflow (schedule/dataflow.h).
int64_t cuda_attention_kv_splits(int32_t type, int64_t heads, int64_t queries, int64_t keys,
                                 int64_t size, int64_t value_size, bool dataflow);
/// What they leave for the last of them.
int64_t cuda_attention_exchange_bytes(int64_t kv_splits, int64_t value_size);

}  // namespace obelisk::kernels
