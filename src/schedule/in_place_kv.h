/// schedule/in_place_kv.h — of a dataflow program: keys and values that attention reads where the
/// caller keeps them.
///
/// A decoder's keys are those of the cache, which is an input, and the new token's. Where those of
/// the cache only have to be copied (and perhaps narrowed), each split of them is a range of an
/// input, which is loaded in pages as weights are: nothing is copied first or waited for. Of a
/// static cache, into which the program puts the new token's row, all keys are such ranges; the new
/// row is put in its place once more where the pages are read, whether it was there by then or not.
#pragma once

#include <optional>

#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Of a split of a head's keys, the first `keys`: rows of `row_bytes` that follow one another in
/// the inputs `k_buffer` and `v_buffer`, or in the outputs that take the memory of such inputs.
struct InPlaceKv {
  int64_t keys = 0, row_bytes = 0;
  int64_t k_offset = 0, v_offset = 0;  // bytes
  int k_buffer = -1, v_buffer = -1;
  bool updated = false;  // a cache that the run updates
  bool operator==(const InPlaceKv&) const = default;
};

/// Of attention to a static cache, into which ScatterElements of the same run put one row of keys
/// and one of values a head, in place: where the scatters take these rows, and their place, from.
struct CacheUpdate {
  int index = -1;                      // the buffer that names the key; all its elements are alike
  int new_keys = -1, new_values = -1;  // buffers
  Dataflow::NewRows rows;              // but for its slot
};

/// Such a cache can be read before it is updated, with the new rows from elsewhere.
std::optional<CacheUpdate> find_cache_update(const stitch::Plan& plan, const TaskGraph& tasks,
                                             const Work& attention);

/// Whether a work only updates caches that nothing but such attention reads: it waits for nobody
/// who reads what it overwrites, and nobody waits for it.
bool updates_caches(const stitch::Plan& plan, const TaskGraph& tasks, size_t work);

/// What a task of attention could read in place: where replicated works only copy, row by row, from
/// inputs; a cache that the run updates.
std::optional<InPlaceKv> find_in_place_kv(const stitch::Plan& plan, const TaskGraph& tasks,
                                          const ObkTask& task);

/// Writes it into the task: OBK_HAS_IN_PLACE_KV (kernels/common/abi.h).
void name_in_place_kv(const InPlaceKv& kv, ObkTask& task);
/// How many keys a task reads in place.
inline int64_t in_place_keys_of(const ObkTask& task) {
  return OBK_HAS_IN_PLACE_KV(&task) ? task.weight_bytes / OBK_IN_PLACE_ROW(&task) : 0;
}

}  // namespace obelisk::schedule
