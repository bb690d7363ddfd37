#include "serve/door/tenants.h"

namespace obelisk::serve::door {
namespace {

/// Names are the callers': beyond so many, tenants without a class of their own share one account.
constexpr size_t kMostTenants = 4096;

double burst_of(const TenantClass& its) {
  return its.burst > 0 ? its.burst : std::max(its.rate / 10, 1.0);
}

Answer beyond(std::string quota, std::optional<std::chrono::nanoseconds> retry_after) {
  Answer answer;
  answer.outcome = Outcome::kRejected, answer.over_quota = true;
  answer.error = Error{Code::kUsage, "serve", std::move(quota), "", ""};
  answer.retry_after = retry_after;
  return answer;
}

}  // namespace

const TenantClass* Tenants::of(const std::string& tenant) const {
  auto found = classes_.find(tenant);
  if (found == classes_.end()) found = classes_.find(kOthers);
  return found == classes_.end() ? nullptr : &found->second;
}

Tenants::Use& Tenants::use(const std::string& tenant, const TenantClass& its,
                           Clock::time_point now) {
  auto found = uses_.find(tenant);
  if (found == uses_.end())
    found = uses_
                .try_emplace(
                    uses_.size() < kMostTenants || classes_.contains(tenant) ? tenant : kOthers,
                    Use{burst_of(its), now, 0})
                .first;
  return found->second;
}

std::optional<Answer> Tenants::begin(const std::string& tenant, Request& request,
                                     Clock::time_point now) {
  const TenantClass* its = of(tenant);
  if (!its) return std::nullopt;
  if (!request.deadline) request.deadline = its->deadline;
  request.priority = std::max(request.priority, its->priority);
  if (its->weight > 0) request.weight = its->weight;
  if (its->rate == 0 && its->in_flight == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  Use& one = use(tenant, *its, now);
  if (its->in_flight > 0 && one.in_flight >= its->in_flight)
    return beyond(fmt::format("tenant '{}' has {} requests without an answer, its quota", tenant,
                              one.in_flight),
                  std::nullopt);
  if (its->rate > 0) {
    const double passed = std::chrono::duration<double>(now - one.at).count();
    if (passed > 0) {
      one.tokens = std::min(one.tokens + passed * its->rate, burst_of(*its));
      one.at = now;
    }
    if (one.tokens < 1)
      return beyond(
          fmt::format("tenant '{}' is beyond its quota of {} requests a second", tenant, its->rate),
          std::chrono::nanoseconds(static_cast<int64_t>((1 - one.tokens) / its->rate * 1e9)));
    --one.tokens;
  }
  ++one.in_flight;
  return std::nullopt;
}

void Tenants::ended(const std::string& tenant) {
  const TenantClass* its = of(tenant);
  if (!its || (its->rate == 0 && its->in_flight == 0)) return;
  const std::lock_guard lock(mutex_);
  auto found = uses_.find(tenant);
  if (found == uses_.end()) found = uses_.find(kOthers);
  if (found != uses_.end() && found->second.in_flight > 0) --found->second.in_flight;
}

}  // namespace obelisk::serve::door
