/// ort/calls.h — calls of ONNX Runtime's functions whose failures are exceptions.
#pragma once

#include <string>

#include "obelisk/error.h"
#include "ort/abi.h"

namespace obelisk::ort {

inline void must(const Api& api, Answer* answer) {
  if (!answer) return;
  const std::string text = api.GetErrorMessage(answer);
  api.ReleaseStatus(answer);
  throw Failure(FailureKind::kUsage, text, "", "", "ONNX Runtime: " + text);
}

/// A function that gives one value in its last argument.
template <typename T, typename Function, typename... Arguments>
T ask(const Api& api, Function function, Arguments... arguments) {
  T value{};
  must(api, function(arguments..., &value));
  return value;
}

}  // namespace obelisk::ort
