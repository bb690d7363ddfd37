/// serve/door/ledger.h — what became of requests, by tenant and model: for metrics, and for the
/// page that shows it live.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "serve/request.h"

namespace obelisk::serve::door {

/// Times, eight buckets to a doubling from 1 us on.
class Histogram {
 public:
  static constexpr int kBuckets = 8 * 34;
  void add(std::chrono::nanoseconds time);
  uint64_t count() const { return count_; }
  double sum_us() const { return sum_us_; }
  /// Upper bound of the bucket where that share of the times lies; 0 of none.
  double quantile_us(double share) const;
  uint64_t at_most(double us) const;

 private:
  std::array<uint32_t, kBuckets> buckets_{};
  uint64_t count_ = 0;
  double sum_us_ = 0;
};

constexpr int kOutcomes = static_cast<int>(Outcome::kFailed) + 1;

struct Account {
  std::array<uint64_t, kOutcomes> outcomes{};
  uint64_t with_deadline = 0, in_time = 0;
  Histogram latency, queued, slack;  // of answers; slack: what was left of the deadline
  uint64_t of(Outcome outcome) const { return outcomes[static_cast<size_t>(outcome)]; }
};

struct Refusal {
  int64_t wall_ms = 0;  // since 1970
  std::string model, tenant, outcome, reason;
};

struct LaneUse {
  int64_t wall_ms = 0;
  std::string model, variant, reason;
  std::vector<std::string> partners;
  int batch_rows = 0;
  double ran_us = 0;
};

class Ledger {
 public:
  /// What identifies a request; `deadline` from arrival.
  struct Entry {
    std::string model, tenant;
    Clock::time_point arrival;
    std::optional<std::chrono::nanoseconds> deadline;
  };
  void begin() { in_flight_.fetch_add(1, std::memory_order_relaxed); }
  void end(const Entry& entry, const Answer& answer);
  int64_t in_flight() const { return in_flight_.load(); }

  /// Whether the next request should bring a trace, for the page: now and then one of each model.
  bool sample(const std::string& model);

  using Key = std::pair<std::string, std::string>;  // tenant, model
  struct Snapshot {
    std::map<Key, Account> accounts;
    std::deque<Refusal> refusals;  // the newest last
    std::map<int, LaneUse> lanes;
  };
  Snapshot snapshot() const;

 private:
  mutable std::mutex mutex_;
  Snapshot now_;
  std::map<std::string, Clock::time_point> sampled_;
  std::atomic<int64_t> in_flight_{0};
};

int64_t wall_ms();

}  // namespace obelisk::serve::door
