/// base/result.h — how something that may fail for a user answers: a value, or an Error that says
/// what, where and the way out.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace obelisk {

/// The exit code of the command line is the code of the error.
enum class Code : int {
  kOk = 0,
  kUsage = 1,        // flags, files that are not there
  kBadModel = 2,     // the model contradicts itself or its format
  kUnsupported = 3,  // a valid model that this version does not run
  kBuild = 4,        // the host compiler or our own generated code failed
  kAccuracy = 5,     // answers differ from the reference by more than the tolerance
  kMemory = 6,
  kDevice = 7,
  kInterrupted = 130,
};

/// What went wrong, in the user's words. `message` says got and wanted; `hint` says the way out;
/// `node` is the user's name.
struct Error {
  Code code = Code::kBuild;
  std::string room;     // who noticed: "frontends", "ops", ...
  std::string message;  // one line
  std::string node;     // the user's node, may be empty
  std::string hint;     // may be empty

  /// "frontends: 'encoder/ln_2': axis 3 but input has rank 3; export it with axis = -1"
  std::string text() const {
    std::string out = room + ": ";
    if (!node.empty()) out += "'" + node + "': ";
    out += message;
    if (!hint.empty()) out += "; " + hint;
    return out;
  }
};

struct Nothing {};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    CHECK(ok(), "value() of an error: {}", error().text());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok(), "value() of an error: {}", error().text());
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok(), "value() of an error: {}", error().text());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(state_); }
  Error& error() { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

using Status = Result<Nothing>;
inline Status ok_status() { return Nothing{}; }

// TRY(auto x, f()): x = value of f(), or return its error. TRY_STATUS(f()): go on, or return its
// error.
#define OBELISK_CONCAT_(a, b) a##b
#define OBELISK_CONCAT(a, b) OBELISK_CONCAT_(a, b)
#define TRY_IMPL(decl, expr, tmp)               \
  auto&& tmp = (expr);                          \
  if (!tmp.ok()) return std::move(tmp.error()); \
  decl = std::move(*tmp)
#define TRY(decl, expr) TRY_IMPL(decl, expr, OBELISK_CONCAT(try_, __LINE__))
#define TRY_STATUS(expr) \
  if (auto status_ = (expr); !status_.ok()) return std::move(status_.error())

}  // namespace obelisk
