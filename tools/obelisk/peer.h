/// obelisk/peer.h — ONNX Runtime's answers, for `verify` and `bench`.
#pragma once

#include "runner.h"

namespace obelisk::cli {

/// The file that ONNX Runtime reads: the model itself, or the graph of a compiled file or of a
/// text, written into `folder`.
Result<std::string> peer_model(const Flags& flags, const Source& source, const Runner& runner,
                               const std::string& folder);

/// One run of the model in a Python process (scripts/answers_onnxruntime.py), over .npz and .npy
/// files in a private folder. Errors: kUsage when no Python with ONNX Runtime is found; kAccuracy
/// when shapes differ.
Result<std::vector<Tensor>> peer_answers(const Flags& flags, const Source& source,
                                         const Runner& runner, const std::vector<Tensor>& inputs);

}  // namespace obelisk::cli
