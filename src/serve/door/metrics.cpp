#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "serve/door/json.h"
#include "serve/door/routes.h"

namespace obelisk::serve::door {
namespace {

/// As the value of a label; bytes that are no UTF-8, in a client's name of a tenant, become U+FFFD.
std::string label(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    const char c = value[0];
    const size_t length = character(value);
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (length > 0)
      out.append(value.substr(0, length));
    else
      out += "\xef\xbf\xbd";
    value.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

int64_t resident_bytes() {
  long pages = 0, resident = 0;
  if (FILE* file = fopen("/proc/self/statm", "r")) {
    if (fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(file);
  }
  return resident * sysconf(_SC_PAGESIZE);
}

/// Families, each with its head once and all its samples behind it.
class Families {
 public:
  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    fmt::format_to(std::back_inserter(text), "# HELP {} {}\n# TYPE {} {}\n", name, help, name,
                   type);
  }
  template <typename T>
  void sample(const std::string& labels, T value, const char* suffix = "") {
    if (labels.empty())
      fmt::format_to(std::back_inserter(text), "{}{} {}\n", name_, suffix, value);
    else
      fmt::format_to(std::back_inserter(text), "{}{}{{{}}} {}\n", name_, suffix, labels, value);
  }
  std::string text;

 private:
  const char* name_ = "";
};

constexpr double kBounds[] = {100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 5e6};

}  // namespace

std::string metrics_text(Service& service) {
  Families out;
  const std::vector<ModelInfo> models = service.engine.models();
  const auto of = [](const ModelInfo& info) {
    return fmt::format(R"(model="{}",version="{}")", label(info.config.name), kVersion);
  };
  const auto us = [](std::chrono::nanoseconds time) { return time.count() / 1000; };
  const auto each = [&](const char* name, const char* type, const char* help, auto&& value) {
    out.family(name, type, help);
    for (const ModelInfo& info : models) out.sample(of(info), value(info));
  };
  each("nv_inference_request_success", "counter", "Requests that were answered",
       [](auto& i) { return i.counts.ok; });
  out.family("nv_inference_request_failure", "counter", "Requests that were not, by reason");
  for (const ModelInfo& info : models) {
    out.sample(of(info) + R"(,reason="REJECTED")", info.counts.rejected + info.counts.late);
    out.sample(of(info) + R"(,reason="CANCELED")", info.counts.cancelled);
    out.sample(of(info) + R"(,reason="BACKEND")", info.counts.failed);
    out.sample(of(info) + R"(,reason="OTHER")", 0);
  }
  each("nv_inference_count", "counter", "Rows that were answered",
       [](auto& i) { return i.counts.rows; });
  each("nv_inference_exec_count", "counter", "Launches", [](auto& i) { return i.counts.launches; });
  each("nv_inference_request_duration_us", "counter", "Time from arrival to answer, summed",
       [&](auto& i) { return us(i.counts.queued + i.counts.ran); });
  each("nv_inference_queue_duration_us", "counter", "Time in the queue, summed",
       [&](auto& i) { return us(i.counts.queued); });
  each("nv_inference_compute_infer_duration_us", "counter", "Time of running, summed",
       [&](auto& i) { return us(i.counts.ran); });
  each("nv_inference_pending_request_count", "gauge", "Requests that wait",
       [](auto& i) { return i.counts.waiting; });
  each("obelisk_model_ready", "gauge", "1 where the model answers",
       [](auto& i) { return i.state == ModelState::kReady ? 1 : 0; });
  each("obelisk_model_memory_bytes", "gauge", "Memory of the model",
       [](auto& i) { return i.memory_bytes; });
  each("obelisk_deadline_requests", "counter", "Requests with a deadline",
       [](auto& i) { return i.counts.with_deadline; });
  each("obelisk_deadline_met", "counter", "Requests that were answered within it",
       [](auto& i) { return i.counts.in_time; });
  each("obelisk_late", "counter", "Requests whose deadline passed before they could run",
       [](auto& i) { return i.counts.late; });
  each("obelisk_refused", "counter", "Requests that admission refused",
       [](auto& i) { return i.counts.rejected; });

  const Ledger::Snapshot ledger = service.ledger.snapshot();
  const auto account = [](const Ledger::Key& key) {
    return fmt::format(R"(tenant="{}",model="{}")", label(key.first), label(key.second));
  };
  out.family("obelisk_tenant_requests", "counter", "Requests by tenant and outcome");
  for (const auto& [key, one] : ledger.accounts)
    for (int k = 0; k < kOutcomes; ++k)
      if (one.outcomes[static_cast<size_t>(k)] > 0 || k == 0)
        out.sample(
            account(key) + fmt::format(R"(,outcome="{}")", outcome_name(static_cast<Outcome>(k))),
            one.outcomes[static_cast<size_t>(k)]);
  out.family("obelisk_tenant_deadline_requests", "counter", "Requests that brought a deadline");
  for (const auto& [key, one] : ledger.accounts) out.sample(account(key), one.with_deadline);
  out.family("obelisk_tenant_deadline_met", "counter", "Requests that were answered within it");
  for (const auto& [key, one] : ledger.accounts) out.sample(account(key), one.in_time);
  const auto histogram = [&](const char* name, const char* help, auto&& which) {
    out.family(name, "histogram", help);
    for (const auto& [key, one] : ledger.accounts) {
      const Histogram& times = which(one);
      for (double bound : kBounds)
        out.sample(account(key) + fmt::format(R"(,le="{}")", bound), times.at_most(bound),
                   "_bucket");
      out.sample(account(key) + R"(,le="+Inf")", times.count(), "_bucket");
      out.sample(account(key), times.sum_us(), "_sum");
      out.sample(account(key), times.count(), "_count");
    }
  };
  histogram("obelisk_tenant_latency_us", "Time from arrival to answer",
            [](const Account& one) -> const Histogram& { return one.latency; });
  histogram("obelisk_tenant_slack_us", "What was left of the deadline at the answer",
            [](const Account& one) -> const Histogram& { return one.slack; });
  out.family("obelisk_in_flight", "gauge", "Requests that have no answer yet");
  out.sample("", service.ledger.in_flight());
  out.family("obelisk_body_bytes", "gauge", "Of long requests that are received or wait");
  out.sample("", service.bodies->taken());
  out.family("obelisk_bodies_refused", "counter", "Requests that there was no memory for");
  out.sample("", service.bodies->refused());
  out.family("obelisk_ready", "gauge", "1 where the server is ready");
  out.sample("", service.ready() ? 1 : 0);
  out.family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.");
  out.sample("", resident_bytes());
  return std::move(out.text);
}

}  // namespace obelisk::serve::door
