/// obelisk/peer.h — ONNX Runtime's answers, for `verify --against onnxruntime`.
#pragma once

#include "runner.h"

namespace obelisk::cli {

/// One run of the model in a Python process (scripts/answers_onnxruntime.py), over .npz and .npy files in a private folder.
/// Errors: kUsage when the file is no model or no Python with ONNX Runtime is found; kAccuracy when shapes differ.
Result<std::vector<Tensor>> peer_answers(const Flags& flags, const Source& source, const Runner& runner, const std::vector<Tensor>& inputs);

}  // namespace obelisk::cli
