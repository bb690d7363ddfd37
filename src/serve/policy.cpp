#include "serve/policy.h"

namespace obelisk::serve {
namespace {

constexpr struct {
  PolicyKind kind;
  const char* name;
} kPolicies[] = {
    {PolicyKind::kFifo, "fifo"}, {PolicyKind::kTime, "time"},   {PolicyKind::kStreams, "streams"},
    {PolicyKind::kEdf, "edf"},   {PolicyKind::kBatch, "batch"}, {PolicyKind::kVliw, "vliw"},
};

}  // namespace

std::string to_string(PolicyKind kind) {
  for (const auto& [known, name] : kPolicies)
    if (known == kind) return name;
  return "?";
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const auto& [kind, name] : kPolicies) names.emplace_back(name);
  return names;
}

Result<Policy> policy_named(const std::string& name) {
  for (const auto& [kind, known] : kPolicies) {
    if (name != known) continue;
    Policy policy{.kind = kind};
    // Those that know no deadlines notice only that one has passed.
    const bool looks_ahead = kind == PolicyKind::kEdf || kind == PolicyKind::kVliw;
    policy.drop = looks_ahead ? Drop::kHopeless : Drop::kPassed;
    policy.admit_by_load = looks_ahead;
    return policy;
  }
  std::string all;
  for (const std::string& one : policy_names()) all += (all.empty() ? "" : ", ") + one;
  return Error{Code::kUsage, "serve", "there is no policy '" + name + "'", "", "one of " + all};
}

}  // namespace obelisk::serve
