/// ops/random.h — ops that draw numbers. Only Dropout of inference runs, which is the identity.
///
/// The others are refused: the standard leaves the generator open, so no two implementations agree
/// on their answers and none could be verified. They stand in the table so that the refusal names
/// them.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_random(const Call& call);   // always kUnsupported
Result<Types> infer_dropout(const Call& call);  // kUnsupported when it would drop something
std::optional<Loop> loop_dropout(const Call& call, int output);
Status reference_random(const Call& call, std::span<const Tensor* const> inputs,
                        std::span<Tensor> outputs);
Status reference_dropout(const Call& call, std::span<const Tensor* const> inputs,
                         std::span<Tensor> outputs);

}  // namespace obelisk::ops
