/// ops/recurrent.h — LSTM, GRU and the plain recurrent layer.
///
///   shapes     X [T, B, I] (layout 1: [B, T, I]), W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H],
///   states [D, B, H] (layout 1:
///              [B, D, H]); Y [T, D, B, H] (layout 1: [B, T, D, H]); D directions, G gates: 4 of
///              LSTM (i o f c), 3 of GRU (z r h), 1
///   reference  all input products at once, then step by step
///   expand     unrolled over at most kMostSteps steps
///
/// A sequence shorter than T gives zeros behind its end, and its last state as the final one; run
/// backwards it begins at its own end. `clip` bounds what goes into every activation. `activations`
/// holds the names joined by commas.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

inline constexpr int64_t kMostSteps = 1024;

struct Activation {
  std::string name;  // in small letters
  double alpha = 0, beta = 0;
};

struct RecurrentShape {
  int64_t length = 0, batch = 0, input = 0, hidden = 0, directions = 1, gates = 1;
  bool batch_first = false;             // layout 1
  bool first_backwards = false;         // direction "reverse"
  std::vector<Activation> activations;  // per direction: LSTM f g h, GRU f g, RNN f
  double clip = 0;                      // 0: none
  bool backwards(int64_t direction) const { return direction == 1 || first_backwards; }
};
Result<RecurrentShape> recurrent_shape(const Call& call);

// Inputs, the last two of LSTM only; outputs are Y, Y_h, and Y_c of LSTM.
enum RecurrentInput : int {
  kSequence,
  kWeights,
  kRecurrence,
  kBiases,
  kLengths,
  kInitialH,
  kInitialC,
  kPeepholes
};

double activate(const Activation& activation, double x);

Result<Types> infer_recurrent(const Call& call);
Cost cost_recurrent(const Call& call);
Status reference_recurrent(const Call& call, std::span<const Tensor* const> inputs,
                           std::span<Tensor> outputs);
std::vector<int32_t> expand_recurrent(const Call& call, Expander& expander);

}  // namespace obelisk::ops
