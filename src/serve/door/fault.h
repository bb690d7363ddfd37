/// serve/door/fault.h — why a call gets no answer, in words that every protocol can send.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "serve/request.h"

namespace obelisk::serve::door {

enum class Cause {
  kBadRequest,
  kUnauthorized,
  kQuota,  // the tenant has had what it may have
  kForbidden,
  kNotFound,
  kMethod,
  kConflict,
  kTooLarge,
  kNoRoom,  // for now: bodies of other requests take it
  kMediaType,
  kUnimplemented,
  kUnavailable,
  kCancelled,
  kInternal,
};

struct Fault {
  Cause cause = Cause::kInternal;
  std::string message;
  std::optional<std::chrono::nanoseconds> retry_after = std::nullopt;
};

int http_status(Cause cause);
int grpc_status(Cause cause);
std::string_view reason_phrase(int http_status);

inline Fault bad_request(std::string message) { return {Cause::kBadRequest, std::move(message)}; }

/// Of a body that there is no memory for at the moment.
Fault no_room(size_t bytes, size_t limit);
/// What an answer that is not kOk tells its caller.
Fault fault_of(const Answer& answer);
/// "late", "rejected": of counters and logs.
std::string_view outcome_name(Outcome outcome);

/// A value, or why there is none.
template <typename T>
class [[nodiscard]] Maybe {
 public:
  Maybe(T value) : value_(std::move(value)) {}
  Maybe(Fault fault) : fault_(std::move(fault)) {}
  bool ok() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }
  const Fault& fault() const { return *fault_; }

 private:
  std::optional<T> value_;
  std::optional<Fault> fault_;
};
using Checked = std::optional<Fault>;  // nothing: it is as it should be

}  // namespace obelisk::serve::door
