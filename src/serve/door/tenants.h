/// serve/door/tenants.h — classes and quotas of tenants: what their requests get where they bring
/// nothing, and how many of them are taken.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "serve/door/fault.h"

namespace obelisk::serve::door {

struct TenantClass {
  std::optional<std::chrono::nanoseconds> deadline;  // of requests that bring none
  int priority = 0;   // of requests that bring none; none may be more urgent. 0: the model's
  double weight = 0;  // of its fair share; 0: the model's
  double rate = 0;    // requests a second; 0: any
  double burst = 0;   // taken at once after a pause; 0: those of a tenth of a second, at least one
  int in_flight = 0;  // requests without an answer; 0: any
};

class Tenants {
 public:
  static constexpr const char* kOthers = "*";  // the class of tenants that have none of their own
  explicit Tenants(std::map<std::string, TenantClass> classes) : classes_(std::move(classes)) {}
  bool any() const { return !classes_.empty(); }

  /// What the class gives, where the request brings nothing. Nothing, or why it is not taken: then
  /// ended() must not be called.
  std::optional<Answer> begin(const std::string& tenant, Request& request, Clock::time_point now);
  void ended(const std::string& tenant);

 private:
  struct Use {
    double tokens = 0;
    Clock::time_point at;
    int in_flight = 0;
  };
  const TenantClass* of(const std::string& tenant) const;
  Use& use(const std::string& tenant, const TenantClass& its, Clock::time_point now);

  const std::map<std::string, TenantClass> classes_;
  std::mutex mutex_;
  std::map<std::string, Use> uses_;
};

}  // namespace obelisk::serve::door
