/// ops/recurrence.h — the steps of a recurrent layer whose input products are already there: what
/// LSTM, GRU and RNN become where no special option is set (ops/recurrent.h). An op of this project
/// alone.
///
///   shapes  fed [T, B, D*G*H] (f32 or f64, with all biases added to the input's product),
///           R [D, G*H, H], bias [D, H] or absent (of GRU's hidden gate alone, inside its reset),
///           lengths [B] or absent, initial h and c [D, B, H] or absent
///           -> Y [T, D, B, H], last h and c [D, B, H], of R's type
///   attrs   cell: "lstm" (gates i o f c), "gru" (z r h, reset after the product) or "rnn";
///           direction as of a recurrent layer. Activations are sigmoid and tanh.
///
///   state   h is multiplied by R in R's type; all else is computed in fed's
///   expand  unrolled over at most kMostSteps steps; a target may have a block for all steps at
///   once
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

enum RecurrenceInput : int {
  kFed,
  kFedRecurrence,
  kHiddenBias,
  kFedLengths,
  kFedInitialH,
  kFedInitialC
};

struct RecurrenceShape {
  int64_t length = 0, batch = 0, directions = 1, hidden = 0, gates = 1;
  bool first_backwards = false;
};
Result<RecurrenceShape> recurrence_shape(const Call& call);

Result<Types> infer_recurrence(const Call& call);
Cost cost_recurrence(const Call& call);
Status reference_recurrence(const Call& call, std::span<const Tensor* const> inputs,
                            std::span<Tensor> outputs);
std::vector<int32_t> expand_recurrence(const Call& call,
                                       Expander& expander);  // recurrent_expand.cpp

}  // namespace obelisk::ops
