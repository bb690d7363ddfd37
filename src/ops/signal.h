/// ops/signal.h — transforms and windows: DFT, STFT, MelWeightMatrix, HannWindow, HammingWindow,
/// BlackmanWindow.
#pragma once

#include "ops/ops.h"

namespace obelisk::ops {

Result<Types> infer_window(const Call& call);
Result<Types> infer_mel_weight_matrix(const Call& call);
Result<Types> infer_dft(const Call& call);
Result<Types> infer_stft(const Call& call);

Cost cost_dft(const Call& call);  // as a direct sum over the transformed length
Cost cost_stft(const Call& call);

std::optional<Loop> loop_hann_window(const Call& call, int output);
std::optional<Loop> loop_hamming_window(const Call& call, int output);
std::optional<Loop> loop_blackman_window(const Call& call, int output);
std::optional<Loop> loop_dft(const Call& call, int output);
std::optional<Loop> loop_stft(const Call& call, int output);

/// A product with the transform's matrix, up to 2^22 of its elements; nothing beyond.
std::vector<int32_t> expand_dft(const Call& call, Expander& expander);
std::vector<int32_t> expand_stft(const Call& call, Expander& expander);

Status reference_hann_window(const Call&, std::span<const Tensor* const> inputs,
                             std::span<Tensor> outputs);
Status reference_hamming_window(const Call&, std::span<const Tensor* const> inputs,
                                std::span<Tensor> outputs);
Status reference_blackman_window(const Call&, std::span<const Tensor* const> inputs,
                                 std::span<Tensor> outputs);
Status reference_mel_weight_matrix(const Call&, std::span<const Tensor* const> inputs,
                                   std::span<Tensor> outputs);
Status reference_dft(const Call&, std::span<const Tensor* const> inputs, std::span<Tensor> outputs);
Status reference_stft(const Call&, std::span<const Tensor* const> inputs,
                      std::span<Tensor> outputs);

}  // namespace obelisk::ops
