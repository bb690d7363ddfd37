/// schedule/in_place_kv.h — of a dataflow program: keys and values that attention reads where the
/// caller keeps them.
///
/// A decoder's keys are those that it was given and the new token's. Where the given ones only have
/// to be brought (and perhaps made narrower), each piece of them is a range of an input, which
/// pages bring as they bring weights: nobody copies it first, and nobody waits for it.
#pragma once

#include <optional>

#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Of a piece of a head's keys, the first `keys`: rows of `row_bytes` that follow one another in
/// the inputs `k_buffer` and `v_buffer`.
struct InPlaceKv {
  int64_t keys = 0, row_bytes = 0;
  int64_t k_offset = 0, v_offset = 0;  // bytes
  int k_buffer = -1, v_buffer = -1;
  bool operator==(const InPlaceKv&) const = default;
};

/// What a task of attention could read so: where works that each worker does for itself only copy,
/// row by row, from inputs.
std::optional<InPlaceKv> find_in_place_kv(const stitch::Plan& plan, const TaskGraph& tasks,
                                          const ObkTask& task);

/// How a task says so: OBK_HAS_IN_PLACE_KV (kernels/common/abi.h).
void name_in_place_kv(const InPlaceKv& kv, ObkTask& task);
/// How many keys a task reads so.
inline int64_t in_place_keys_of(const ObkTask& task) {
  return OBK_HAS_IN_PLACE_KV(&task) ? task.weight_bytes / OBK_IN_PLACE_ROW(&task) : 0;
}

}  // namespace obelisk::schedule
