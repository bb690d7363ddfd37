/// schedule/kept_keys.h — of a program that flows: keys and values that attention reads where the
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
struct KeptKeys {
  int64_t keys = 0, row_bytes = 0;
  int64_t k_offset = 0, v_offset = 0;  // bytes
  int k_buffer = -1, v_buffer = -1;
  bool operator==(const KeptKeys&) const = default;
};

/// What a task of attention could read so: where works that each worker does for itself only copy,
/// row by row, from inputs.
std::optional<KeptKeys> find_kept_keys(const stitch::Plan& plan, const TaskGraph& tasks,
                                       const ObkTask& task);

/// How a task says so: OBK_KEEPS_KEYS (kernels/common/abi.h).
void name_kept_keys(const KeptKeys& kept, ObkTask& task);
/// How many keys a task reads so.
inline int64_t kept_keys_of(const ObkTask& task) {
  return OBK_KEEPS_KEYS(&task) ? task.weight_bytes / OBK_KEPT_ROW(&task) : 0;
}

}  // namespace obelisk::schedule
