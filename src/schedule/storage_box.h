/// schedule/storage_box.h — which part of a storage a value is.
///
/// An input of a concatenation may be stored inside its output, and a convolution's input inside
/// the value that it is a slice of, or all of in another order of dimensions
/// (stitch::Layout::storage and part_of). Whether two values share elements is derived from the
/// graph alone: each value is a box in the coordinates of its storage. The offsets and strides of
/// layouts are checked against it.
#pragma once

#include <vector>

#include "schedule/task_graph.h"

namespace obelisk::schedule {

/// The box [begin, begin + extent) in the coordinates of `storage`.
struct StorageBox {
  ValueId storage = graph::kNone;
  std::vector<int64_t> begin;
  Shape extent;
  std::vector<int64_t> steps;  // by coordinate of the value, in elements of `storage` in row-major
                               // order
  int64_t volume() const { return element_count(extent); }
};

/// The box of `value`, by the concatenations, slices and moves that lead from it to its storage.
/// Errors: kBuild, where none lead there, or the layout's offset or strides place the box
/// elsewhere.
Result<StorageBox> storage_box(const Graph& graph, const stitch::Plan& plan, ValueId value);

/// How many elements two boxes share.
int64_t shared_volume(const StorageBox& a, const StorageBox& b);

/// The values that a work reads and those that it stores, each once, with the slot of Work::buffers
/// that holds their storage.
struct WorkAccess {
  ValueId value = graph::kNone;
  size_t slot = 0;
};
struct WorkAccesses {
  std::vector<WorkAccess> reads, stores;
};
WorkAccesses accesses_of(const Graph& graph, const stitch::Plan& plan, const Work& work);

}  // namespace obelisk::schedule
