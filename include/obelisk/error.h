/// obelisk/error.h — what the library throws: one exception that says what, where, and the way out.
#pragma once

#include <stdexcept>
#include <string>

namespace obelisk {

/// Why something failed. The numbers are the exit codes of the command line.
enum class FailureKind : int {
  kUsage = 1,        // options, names, files that are not there
  kBadModel = 2,     // the model, or the compiled file, contradicts itself or its format
  kUnsupported = 3,  // a valid model that this version does not run
  kBuild = 4,        // the host compiler failed, or Obelisk has a defect
  kAccuracy = 5,     // answers differ from the reference by more than the tolerance
  kMemory = 6,
  kDevice = 7,
  kInterrupted = 130,
};

/// `what()` is the whole text in one line; the parts stand beside it.
class Failure : public std::runtime_error {
 public:
  Failure(FailureKind kind, std::string message, std::string node, std::string hint,
          const std::string& text)
      : std::runtime_error(text),
        kind_(kind),
        message_(std::move(message)),
        node_(std::move(node)),
        hint_(std::move(hint)) {}

  FailureKind kind() const noexcept { return kind_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& node() const noexcept { return node_; }  // the model's name for it, or empty
  const std::string& hint() const noexcept { return hint_; }  // the way out, or empty

 private:
  FailureKind kind_;
  std::string message_, node_, hint_;
};

}  // namespace obelisk
