/// base/check.h — CHECK: our own invariant. It is on in every build; when it fails the bug is ours
/// and no answer leaves the program.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace obelisk {

/// Thrown by CHECK. The API turns it into an Error of code kBuild whose hint is to report it.
struct Bug : std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] inline void fail_check(const char* file, int line, const char* condition,
                                    const std::string& text) {
  throw Bug(fmt::format("{}:{}: CHECK({}) failed{}{}", file, line, condition,
                        text.empty() ? "" : ": ", text));
}

// CHECK(condition) or CHECK(condition, "format {}", arguments...)
#define CHECK(condition, ...)                                                                    \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::obelisk::fail_check(__FILE__, __LINE__, #condition, ::obelisk::check_text(__VA_ARGS__)); \
  } while (false)

inline std::string check_text() { return {}; }
template <typename... Args>
std::string check_text(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace obelisk
