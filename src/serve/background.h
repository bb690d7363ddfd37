/// serve/background.h — work that stands behind requests: loading, compiling, measuring, freeing.
#pragma once

#include <functional>
#include <new>
#include <optional>
#include <utility>

#include "base/result.h"

namespace obelisk::serve {

/// Runs it in a thread of low priority, as are those that it starts. The caller waits.
void in_background(const std::function<void()>& work);

/// Errors as they are; what is thrown becomes one.
template <typename Function>
auto caught(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error{Code::kMemory, "serve", "out of memory", "",
                 "fewer models, smaller batches, or a machine with more memory"};
  } catch (const std::exception& bug) {
    return Error{Code::kBuild, "serve", bug.what(), "",
                 "this is a defect of Obelisk; please report it with the model"};
  }
}

/// The same in the background.
template <typename Function>
auto behind_requests(const Function& function) -> decltype(function()) {
  std::optional<decltype(function())> made;
  in_background([&] { made.emplace(caught(function)); });
  return std::move(*made);
}

}  // namespace obelisk::serve
