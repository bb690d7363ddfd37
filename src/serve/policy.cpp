#include "serve/policy.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>

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

namespace {

Result<Policy> defaults_of(const std::string& name) {
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

Status set(Policy& policy, const std::string& knob, double value) {
  const auto time = static_cast<int64_t>(value * 1000);
  const auto whole = static_cast<int>(value);
  const std::map<std::string, std::function<void()>> knobs = {
      {"admission", [&] { policy.admit_by_load = value != 0; }},
      {"batches", [&] { policy.batches = value != 0; }},
      {"eager", [&] { policy.eager = value != 0; }},
      {"foresee", [&] { policy.foresee = value != 0; }},
      {"gather", [&] { policy.gather = Time(time); }},
      {"hold", [&] { policy.hold = value != 0; }},
      {"instances", [&] { policy.instances = value != 0; }},
      {"margin", [&] { policy.margin = value; }},
      {"narrow", [&] { policy.narrow = value != 0; }},
      {"overlap", [&] { policy.overlap = whole; }},
      {"pace", [&] { policy.pace = value != 0; }},
      {"patience", [&] { policy.patience = Time(time); }},
      {"promise", [&] { policy.promise = value; }},
      {"reserve", [&] { policy.reserve = value != 0; }},
      {"segments", [&] { policy.segments = value != 0; }},
      {"shares", [&] { policy.shares = value != 0; }},
      {"straggler", [&] { policy.straggler = value; }},
      {"streams", [&] { policy.streams = whole; }},
  };
  if (const auto found = knobs.find(knob); found != knobs.end()) {
    found->second();
    return ok_status();
  }
  std::string all;
  for (const auto& [name, to] : knobs) all += (all.empty() ? "" : ", ") + name;
  return Error{Code::kUsage, "serve", "a policy has no knob '" + knob + "'", "", "one of " + all};
}

}  // namespace

Result<Policy> policy_named(const std::string& text) {
  std::istringstream parts(text);
  std::string part;
  std::getline(parts, part, ':');
  TRY(Policy policy, defaults_of(part));
  while (std::getline(parts, part, ':')) {
    const size_t at = part.find('=');
    char* end = nullptr;
    const double value = at == std::string::npos ? 0 : std::strtod(part.c_str() + at + 1, &end);
    if (!end || *end != '\0' || end == part.c_str() + at + 1 || !(value >= 0 && value < 1e12))
      return Error{Code::kUsage, "serve", "'" + part + "' sets no knob of a policy", "",
                   "a name, '=' and a number, as in vliw:overlap=8"};
    TRY_STATUS(set(policy, part.substr(0, at), value));
  }
  return policy;
}

}  // namespace obelisk::serve
