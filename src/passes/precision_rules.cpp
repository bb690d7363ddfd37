#include "passes/precision_rules.h"

namespace obelisk::passes {

using ops::Op;

PrecisionRule precision_rule(Op op) {
  switch (op) {
    case Op::MatMul:
    case Op::Gemm:
    case Op::Einsum:
    case Op::Conv:
    case Op::ConvTranspose:
    case Op::CausalConvWithState:
    case Op::Attention:
    case Op::SqueezeExcite:
    case Op::LinearAttention:
    case Op::RotaryEmbedding:
    case Op::LSTM:
    case Op::GRU:
    case Op::RNN:
    case Op::LayerNormalization:
    case Op::RMSNormalization:
    case Op::GroupNormalization:
    case Op::InstanceNormalization:
    case Op::BatchNormalization:
    case Op::MeanVarianceNormalization:
    case Op::LRN:
    case Op::AveragePool:
    case Op::GlobalAveragePool:
      return PrecisionRule::kNarrow;

    case Op::BitCast:
    case Op::Recurrence:
      return PrecisionRule::kAsIs;

    // Overflow at 65504, underflow at 6e-8, or more digits in than out.
    case Op::Exp:
    case Op::Log:
    case Op::Pow:
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Reciprocal:
    case Op::Sinh:
    case Op::Cosh:
    case Op::Asinh:
    case Op::Acosh:
    case Op::Atanh:
    case Op::Asin:
    case Op::Acos:
    case Op::Atan:
    case Op::Softplus:
    case Op::Softmax:
    case Op::MaskedSoftmax:
    case Op::LogSoftmax:
    case Op::LpNormalization:
    case Op::Det:
    // Sums and products of many.
    case Op::ReduceSum:
    case Op::ReduceMean:
    case Op::ReduceProd:
    case Op::ReduceL1:
    case Op::ReduceL2:
    case Op::ReduceSumSquare:
    case Op::ReduceLogSum:
    case Op::ReduceLogSumExp:
    case Op::CumSum:
    case Op::CumProd:
    case Op::LpPool:
    case Op::GlobalLpPool:
    case Op::Col2Im:
    case Op::DFT:
    case Op::STFT:
    case Op::NegativeLogLikelihoodLoss:
    case Op::SoftmaxCrossEntropyLoss:
    // Positions, and what is drawn or made from nothing.
    case Op::Sin:
    case Op::Cos:
    case Op::Tan:
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Mod:
    case Op::Range:
    case Op::Resize:
    case Op::AffineGrid:
    case Op::DeformConv:
    case Op::RoiAlign:
    case Op::MaxRoiPool:
    case Op::NonMaxSuppression:
    case Op::HannWindow:
    case Op::HammingWindow:
    case Op::BlackmanWindow:
    case Op::MelWeightMatrix:
    case Op::EyeLike:
    case Op::ConstantOfShape:
    case Op::Bernoulli:
    case Op::Multinomial:
    case Op::RandomNormal:
    case Op::RandomNormalLike:
    case Op::RandomUniform:
    case Op::RandomUniformLike:
    // Comparisons and integers made of floats: reading f32 is free, rounding a threshold is not.
    case Op::Equal:
    case Op::Greater:
    case Op::GreaterOrEqual:
    case Op::Less:
    case Op::LessOrEqual:
    case Op::IsNaN:
    case Op::IsInf:
    case Op::ArgMax:
    case Op::ArgMin:
    case Op::NonZero:
    case Op::Cast:
    case Op::CastLike:
    case Op::QuantizeLinear:
    case Op::DequantizeLinear:
    case Op::DynamicQuantizeLinear:
    case Op::QLinearMatMul:
    case Op::QLinearConv:
    case Op::MatMulInteger:
    case Op::ConvInteger:
      return PrecisionRule::kWide;

    // moves, activations, sums, selections, maxima: no digit is lost that the output keeps
    default:
      return PrecisionRule::kFollow;
  }
}

bool is_precise_input(Op op, size_t input) {
  switch (op) {
    case Op::BatchNormalization:
      return input >= 3;  // mean and variance
    case Op::GridSample:
      return input == 1;
    case Op::Attention:
      return input == 3;  // the mask
    case Op::Dropout:
      return input == 1;
    default:
      return false;
  }
}

bool reads_positions(Op op, size_t input) {
  switch (op) {
    case Op::Sin:
    case Op::Cos:
    case Op::Tan:
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Mod:
    case Op::Range:
    case Op::CumSum:
    case Op::CumProd:
    case Op::AffineGrid:
    case Op::NonMaxSuppression:
    case Op::BitCast:
      return true;
    case Op::GridSample:
    case Op::RoiAlign:
    case Op::MaxRoiPool:
    case Op::DeformConv:
      return input == 1;
    case Op::Resize:
      return input == 1 || input == 2;
    default:
      return false;
  }
}

bool takes_masks(Op op) {
  return op == Op::Add || op == Op::Sub || op == Op::Sum || op == Op::Where;
}

}  // namespace obelisk::passes
