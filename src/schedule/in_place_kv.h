/// schedule/in_place_kv.h — of a dataflow program: keys and values that attention reads where the
/// caller keeps them.
///
/// A decoder's keys are those of the cache, which is an input, and the new token's. Where those of
/// the cache only have to be copied (and perhaps narrowed), each split of them is a range of an
/// input, which is loaded in pages as weights are: nothing is copied first or waited for.
#pragma once

#include <optional>

#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Of a split of a head's keys, the first `keys`: rows of `row_bytes` that follow one another in
/// the inputs `k_buffer` and `v_buffer`.
struct InPlaceKv {
  int64_t keys = 0, row_bytes = 0;
  int64_t k_offset = 0, v_offset = 0;  // bytes
  int k_buffer = -1, v_buffer = -1;
  bool operator==(const InPlaceKv&) const = default;
};

/// What a task of attention could read in place: where replicated works only copy, row by row, from
/// inputs.
std::optional<InPlaceKv> find_in_place_kv(const stitch::Plan& plan, const TaskGraph& tasks,
                                          const ObkTask& task);

/// Writes it into the task: OBK_HAS_IN_PLACE_KV (kernels/common/abi.h).
void name_in_place_kv(const InPlaceKv& kv, ObkTask& task);
/// How many keys a task reads in place.
inline int64_t in_place_keys_of(const ObkTask& task) {
  return OBK_HAS_IN_PLACE_KV(&task) ? task.weight_bytes / OBK_IN_PLACE_ROW(&task) : 0;
}

}  // namespace obelisk::schedule
