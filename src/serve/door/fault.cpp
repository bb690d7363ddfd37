#include "serve/door/fault.h"

namespace obelisk::serve::door {

int http_status(Cause cause) {
  switch (cause) {
    case Cause::kBadRequest:
      return 400;
    case Cause::kUnauthorized:
      return 401;
    case Cause::kForbidden:
      return 403;
    case Cause::kNotFound:
      return 404;
    case Cause::kMethod:
      return 405;
    case Cause::kConflict:
      return 409;
    case Cause::kTooLarge:
      return 413;
    case Cause::kQuota:
      return 429;
    case Cause::kMediaType:
      return 415;
    case Cause::kUnimplemented:
      return 501;
    case Cause::kNoRoom:
    case Cause::kUnavailable:
      return 503;
    case Cause::kCancelled:
      return 499;
    case Cause::kInternal:
      return 500;
  }
  return 500;
}

// The numbers of gRPC's status codes.
int grpc_status(Cause cause) {
  switch (cause) {
    case Cause::kBadRequest:
      return 3;  // INVALID_ARGUMENT
    case Cause::kUnauthorized:
      return 16;  // UNAUTHENTICATED
    case Cause::kForbidden:
      return 7;  // PERMISSION_DENIED
    case Cause::kNotFound:
      return 5;  // NOT_FOUND
    case Cause::kMethod:
      return 12;  // UNIMPLEMENTED
    case Cause::kConflict:
      return 6;  // ALREADY_EXISTS
    case Cause::kTooLarge:
    case Cause::kNoRoom:
    case Cause::kQuota:
      return 8;  // RESOURCE_EXHAUSTED
    case Cause::kMediaType:
      return 3;
    case Cause::kUnimplemented:
      return 12;
    case Cause::kUnavailable:
      return 14;  // UNAVAILABLE
    case Cause::kCancelled:
      return 1;  // CANCELLED
    case Cause::kInternal:
      return 13;  // INTERNAL
  }
  return 13;
}

std::string_view reason_phrase(int http_status) {
  switch (http_status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

Fault no_room(size_t bytes, size_t limit) {
  return {Cause::kNoRoom,
          fmt::format("there is no room for a body of {} bytes: bodies that are received or wait "
                      "for their answer take up to {} together",
                      bytes, limit),
          std::chrono::seconds(1)};
}

Fault fault_of(const Answer& answer) {
  std::string text;
  if (answer.error) {
    text = answer.error->message;
    if (!answer.error->node.empty()) text = "'" + answer.error->node + "': " + text;
    if (!answer.error->hint.empty()) text += "; " + answer.error->hint;
  }
  const auto with = [&](const char* first) {
    return text.empty() ? std::string(first) : std::string(first) + ": " + text;
  };
  switch (answer.outcome) {
    case Outcome::kOk:
      break;
    case Outcome::kBadRequest:
      return {Cause::kBadRequest, text.empty() ? "the request does not fit the model" : text};
    case Outcome::kNotFound:
      return {Cause::kNotFound, with("Request for unknown model")};  // clients look for these words
    case Outcome::kNotReady:
      return {Cause::kUnavailable, with("the model is not ready"), answer.retry_after};
    case Outcome::kRejected:
      return {answer.over_quota ? Cause::kQuota : Cause::kUnavailable, with("refused"),
              answer.retry_after};
    case Outcome::kLate:
      return {Cause::kUnavailable, with("Request timeout expired"), answer.retry_after};
    case Outcome::kCancelled:
      return {Cause::kCancelled, with("cancelled")};
    case Outcome::kFailed:
      return {Cause::kInternal, with("the run failed")};
  }
  return {Cause::kInternal, with("the run failed")};
}

std::string_view outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kBadRequest:
      return "bad_request";
    case Outcome::kNotFound:
      return "not_found";
    case Outcome::kNotReady:
      return "not_ready";
    case Outcome::kRejected:
      return "rejected";
    case Outcome::kLate:
      return "late";
    case Outcome::kCancelled:
      return "cancelled";
    case Outcome::kFailed:
      return "failed";
  }
  return "failed";
}

}  // namespace obelisk::serve::door
