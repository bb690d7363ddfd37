#include <algorithm>

#include "serve/door/json.h"
#include "serve/door/routes.h"

namespace obelisk::serve::door {

std::string live_json(Service& service) {
  const Ledger::Snapshot ledger = service.ledger.snapshot();
  JsonWriter json;
  json.open('{').key("version").value(service.options.version);
  json.key("uptime_s").value(std::chrono::duration<double>(Clock::now() - service.started).count());
  json.key("ready").value(service.ready()).key("draining").value(service.draining());
  const Service::Load load = service.load();
  json.key("busy").value(load.utilization).key("requests_per_second").value(load.requests);
  json.key("in_flight").value(service.ledger.in_flight()).key("now_ms").value(wall_ms());
  json.key("models").open('[');
  std::vector<ModelInfo> models = service.engine.models();
  for (auto& [name, reason] : service.unreadable()) {
    const auto same = [&name = name](const ModelInfo& info) { return info.config.name == name; };
    if (std::any_of(models.begin(), models.end(), same)) continue;
    ModelInfo& info = models.emplace_back();
    info.config.name = name, info.state = ModelState::kFailed, info.reason = reason;
  }
  for (const ModelInfo& info : models) {
    const ModelCounts& counts = info.counts;
    json.open('{')
        .key("name")
        .value(info.config.name)
        .key("state")
        .value(state_name(info.state))
        .key("reason")
        .value(info.reason);
    json.key("target")
        .value(info.config.target)
        .key("memory_bytes")
        .value(info.memory_bytes)
        .key("programs")
        .value(info.programs)
        .key("programs_to_come")
        .value(info.to_come)
        .key("waiting")
        .value(counts.waiting);
    json.key("ok")
        .value(counts.ok)
        .key("failed")
        .value(counts.failed)
        .key("rejected")
        .value(counts.rejected)
        .key("late")
        .value(counts.late);
    json.key("cancelled")
        .value(counts.cancelled)
        .key("launches")
        .value(counts.launches)
        .key("rows")
        .value(counts.rows);
    json.key("with_deadline")
        .value(counts.with_deadline)
        .key("in_time")
        .value(counts.in_time)
        .close('}');
  }
  json.close(']').key("tenants").open('[');
  for (const auto& [key, account] : ledger.accounts) {
    json.open('{')
        .key("tenant")
        .value(key.first)
        .key("model")
        .value(key.second)
        .key("outcomes")
        .open('{');
    for (int k = 0; k < kOutcomes; ++k)
      json.key(outcome_name(static_cast<Outcome>(k)))
          .value(account.outcomes[static_cast<size_t>(k)]);
    json.close('}')
        .key("p50_us")
        .value(account.latency.quantile_us(0.5))
        .key("p99_us")
        .value(account.latency.quantile_us(0.99));
    json.key("p999_us")
        .value(account.latency.quantile_us(0.999))
        .key("queued_p50_us")
        .value(account.queued.quantile_us(0.5));
    json.key("with_deadline")
        .value(account.with_deadline)
        .key("in_time")
        .value(account.in_time)
        .close('}');
  }
  json.close(']').key("lanes").open('[');
  for (const auto& [lane, use] : ledger.lanes) {
    json.open('{')
        .key("lane")
        .value(lane)
        .key("at_ms")
        .value(use.wall_ms)
        .key("model")
        .value(use.model)
        .key("variant")
        .value(use.variant);
    json.key("partners").open('[');
    for (const std::string& partner : use.partners) json.value(partner);
    json.close(']')
        .key("batch_rows")
        .value(use.batch_rows)
        .key("ran_us")
        .value(use.ran_us)
        .key("reason")
        .value(use.reason)
        .close('}');
  }
  json.close(']').key("refusals").open('[');
  for (auto one = ledger.refusals.rbegin(); one != ledger.refusals.rend(); ++one)
    json.open('{')
        .key("at_ms")
        .value(one->wall_ms)
        .key("model")
        .value(one->model)
        .key("tenant")
        .value(one->tenant)
        .key("outcome")
        .value(one->outcome)
        .key("reason")
        .value(one->reason)
        .close('}');
  json.close(']').close('}');
  return std::move(json.text);
}

}  // namespace obelisk::serve::door
