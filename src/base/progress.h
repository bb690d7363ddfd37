/// base/progress.h — how far a long command is: one redrawn line on a terminal, lines of JSON where
/// a program reads, else nothing.
///
///   Progress progress(Progress::Mode::kTerminal, "compile");
///   progress.step("codegen", 0.6);       compile   60% codegen      about 3 s left
///
/// Everything goes to stderr, so that answers on stdout stay clean. One object belongs to one
/// thread.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

namespace obelisk {

class Progress {
 public:
  enum class Mode { kNone, kTerminal, kJson };
  /// kJson when wished, else kTerminal when `out` is one, else kNone.
  static Mode mode_for(std::FILE* out, bool json);

  using Clock = std::chrono::steady_clock;
  using Now = Clock::time_point (*)();
  Progress(Mode mode, std::string verb, std::FILE* out = stderr, Now now = Clock::now);
  /// Ends the line, so that what comes next is not written over it.
  ~Progress();
  Progress(const Progress&) = delete;

  /// What is done now, and which part of the whole lies behind, in [0, 1]. Redraws at most ten
  /// times a second, but always for a new step.
  void step(std::string_view what, double done);
  /// Clears the line; the destructor does the same.
  void finish();

 private:
  Mode mode_;
  std::string verb_;
  std::FILE* out_;
  Now now_;
  Clock::time_point start_, last_;
  std::string shown_;  // the step on the line, empty when there is none
};

}  // namespace obelisk
