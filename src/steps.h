/// steps.h — the one wrapper around every step of the compiler: times, checks, explains, stops.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compile.h"

namespace obelisk::compiler {

class Steps {
 public:
  /// Without a compilation it only collects names.
  Steps(const Options& options, Compilation* compilation);

  /// `make` does the work, `check` verifies what it made, `show(explain)` is its text form, with
  /// the reasons when explaining. The error of a step that was told to be the last is kOk.
  Status operator()(std::string_view step, const std::function<Status()>& make,
                    const std::function<Status()>& check,
                    const std::function<std::string(bool explain)>& show);

  /// One pass of a table over `graph`, as a step; --disable leaves it out.
  Status operator()(const passes::Pass& pass, graph::Graph& graph);

  /// Where explanations go from here on: to the compilation's, or to a candidate's until it is
  /// chosen.
  void explain_into(std::vector<Compilation::Explanation>& place) { explanations_ = &place; }

  /// Whether steps are done, not only named.
  bool works() const { return compilation_ != nullptr; }
  double done() const { return done_; }
  /// How much of the whole a step takes, as seen on exported networks with an empty cache.
  static double share(std::string_view step);

  std::vector<std::string> names;  // each once, in order

 private:
  const Options& options_;
  Compilation* compilation_;
  std::vector<Compilation::Explanation>* explanations_ = nullptr;
  double done_ = 0;
};

inline Status nothing_to_check() { return ok_status(); }

/// A failed Result becomes the step's Status, a value goes where it belongs.
template <typename T>
Status put(T& place, Result<T> made) {
  if (!made.ok()) return made.error();
  place = std::move(*made);
  return ok_status();
}

/// Errors: kUsage, where an option names a step or a pass that does not exist, with those that do.
Status check_names(const Options& options);

}  // namespace obelisk::compiler
