/// ops/gather.h — the family that reads at coordinates which are data: gathers, ReverseSequence,
/// Compress.
///
/// An index may be negative: it then counts from the end. An index that lies outside even so is a
/// fault of the model's data that shows only at run time: it is clamped to the nearest element, by
/// every implementation, so that nothing outside is read.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_gather(const Call& call);
Result<Types> infer_gather_elements(const Call& call);
Result<Types> infer_gather_nd(const Call& call);
Result<Types> infer_reverse_sequence(const Call& call);
Result<Types> infer_compress(const Call& call);  // kUnsupported unless the condition is known

Cost cost_gather(const Call& call);  // reads of the data only what it writes

std::optional<Loop> loop_gather(const Call& call, int output);
std::optional<Loop> loop_gather_elements(const Call& call, int output);
std::optional<Loop> loop_gather_nd(const Call& call, int output);
std::optional<Loop> loop_reverse_sequence(const Call& call, int output);

std::vector<int32_t> expand_compress(const Call& call, Expander& expander);  // a Gather of the kept

Status reference_gather(const Call&, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_gather_elements(const Call&, std::span<const Tensor* const> inputs,
                                 std::span<Tensor> outputs);
Status reference_gather_nd(const Call&, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs);
Status reference_reverse_sequence(const Call&, std::span<const Tensor* const> inputs,
                                  std::span<Tensor> outputs);
Status reference_compress(const Call&, std::span<const Tensor* const> inputs,
                          std::span<Tensor> outputs);

/// Error unless the indices are integers and, where any are read, the axis has elements.
Status check_indices(const Call& call, const Type& indices);

}  // namespace obelisk::ops
