#include "serve/door/ledger.h"

#include <cmath>

#include "serve/door/fault.h"

namespace obelisk::serve::door {
namespace {

constexpr size_t kMostAccounts = 4096, kMostRefusals = 64, kMostLanes = 256;
constexpr auto kBetweenSamples = std::chrono::milliseconds(50);

}  // namespace

int64_t wall_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void Histogram::add(std::chrono::nanoseconds time) {
  const double us = std::max(static_cast<double>(time.count()) / 1000, 0.0);
  const int at = us <= 1 ? 0 : static_cast<int>(std::ceil(8 * std::log2(us)));
  ++buckets_[static_cast<size_t>(std::min(at, kBuckets - 1))];
  ++count_;
  sum_us_ += us;
}

double Histogram::quantile_us(double share) const {
  if (count_ == 0) return 0;
  const auto wanted = static_cast<uint64_t>(std::ceil(share * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (int k = 0; k < kBuckets; ++k)
    if ((seen += buckets_[static_cast<size_t>(k)]) >= wanted) return std::exp2(k / 8.0);
  return std::exp2(kBuckets / 8.0);
}

uint64_t Histogram::at_most(double us) const {
  const int last = us <= 1 ? 0 : static_cast<int>(std::floor(8 * std::log2(us) + 1e-9));
  uint64_t seen = 0;
  for (int k = 0; k <= std::min(last, kBuckets - 1); ++k) seen += buckets_[static_cast<size_t>(k)];
  return seen;
}

void Ledger::end(const Entry& entry, const Answer& answer) {
  const auto taken = Clock::now() - entry.arrival;
  const std::lock_guard lock(mutex_);
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  // Names of tenants and of models that are not there are the callers': they must not fill the
  // memory.
  Key key{entry.tenant.empty() ? entry.model : entry.tenant, entry.model};
  if (!now_.accounts.contains(key) &&
      (answer.outcome == Outcome::kNotFound || now_.accounts.size() >= kMostAccounts))
    key = {"(others)", "(others)"};
  Account& account = now_.accounts[key];
  ++account.outcomes[static_cast<size_t>(answer.outcome)];
  const bool counts = answer.outcome != Outcome::kBadRequest &&
                      answer.outcome != Outcome::kNotFound && answer.outcome != Outcome::kCancelled;
  if (answer.outcome == Outcome::kOk) account.latency.add(taken);
  if (entry.deadline && counts) {
    ++account.with_deadline;
    if (answer.outcome == Outcome::kOk && taken <= *entry.deadline) {
      ++account.in_time;
      account.slack.add(*entry.deadline - taken);
    }
  }
  if (answer.trace) {
    const Trace& trace = *answer.trace;
    account.queued.add(trace.queued);
    if (now_.lanes.size() < kMostLanes || now_.lanes.contains(trace.lane))
      now_.lanes[trace.lane] = {wall_ms(),
                                entry.model,
                                trace.variant,
                                trace.reason,
                                trace.partners,
                                trace.batch_rows,
                                static_cast<double>((trace.ran - trace.queued).count()) / 1000};
  }
  if (answer.outcome != Outcome::kOk) {
    now_.refusals.push_back({wall_ms(), key.second, key.first,
                             std::string(outcome_name(answer.outcome)),
                             fault_of(answer).message.substr(0, 300)});
    if (now_.refusals.size() > kMostRefusals) now_.refusals.pop_front();
  }
}

bool Ledger::sample(const std::string& model) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  const auto found = sampled_.find(model);
  if (found == sampled_.end()) {
    if (sampled_.size() >= kMostAccounts) return false;
    sampled_[model] = now;
    return true;
  }
  if (now - found->second < kBetweenSamples) return false;
  found->second = now;
  return true;
}

Ledger::Snapshot Ledger::snapshot() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

}  // namespace obelisk::serve::door
