/// schedule/dataflow_spans.h — which elements of a buffer a task of a dataflow program reads and
/// writes.
#pragma once

#include "schedule/schedule.h"

namespace obelisk::schedule {

/// Rows of a work that are looked at one by one, at most.
inline constexpr int64_t kMostRowsLooked = 4096;

/// Elements [low, high) of a buffer.
struct Span {
  int64_t low = 0, high = 0;
  bool empty() const { return low >= high; }
  void join(const Span& other);
  bool operator==(const Span&) const = default;
};

/// The offset of a row's first element, by an affine access.
int64_t row_offset(const Nest& nest, const Access& access, int64_t row);

/// What a task reads of operand `slot` of its work, at most; of a buffer that it does not read,
/// nothing.
Span read_by(const stitch::Plan& plan, const TaskGraph& tasks, const ObkTask& task, size_t slot);

/// What one split of a head's keys reads of operand 0 (queries), 1 (keys) or 2 (values): of the
/// latter what it does not read in place.
Span attention_reads(const stitch::AttentionTile& tile, const ObkTask& task, int operand);

/// What the body's stores write of buffer `buffer` in row `row`: columns [c0, c1).
Span written_in_row(const stitch::Plan& plan, const TaskGraph& tasks, const Work& work, int buffer,
                    int64_t row, int64_t c0, int64_t c1);

/// Elements of a buffer.
int64_t count_of(const Buffer& buffer);

/// Whether a store writes neighbours, column after column: then what is written can be told by
/// spans.
bool stores_neighbours(const Work& work, const stitch::Group& group, const Access& access);

/// Whether a work reads an output of the program: nobody waits for what is stored there. Caches
/// that attention reads whether or not they are updated (find_cache_update) do not count.
bool reads_an_output(const stitch::Plan& plan, const TaskGraph& tasks, const Work& work);

}  // namespace obelisk::schedule
