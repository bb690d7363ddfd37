/// serve/door/routes.h — the Open Inference Protocol over HTTP, with the extensions of Triton's
/// that stock clients look for.
///
///   GET  /v2  /v2/health/live|ready  /v2/models/M[/versions/V][/ready|config|stats]
///   /v2/models/stats POST /v2/models/M[/versions/V]/infer                JSON, or JSON and tensors
///   behind it POST /v2/repository/index  /v2/repository/models/M/load|unload
///   /v2/systemsharedmemory, /v2/cudasharedmemory, /v2/logging, /v2/trace/setting
///   GET  /  /v2/live.json                               what happens now, for people
#pragma once

#include "serve/door/http.h"
#include "serve/door/service.h"

namespace obelisk::serve::door {

HttpHandler make_routes(Service& service);
/// Of the metrics' own port: GET /metrics.
HttpHandler make_metrics_routes(Service& service);

/// Prometheus' text format.
std::string metrics_text(Service& service);
/// What the page at / shows.
std::string live_json(Service& service);
extern const char* const kPage;

/// Texts of the protocol that HTTP and gRPC have in common.
extern const std::vector<std::string_view> kExtensions;
/// Triton's `max_batch_size`: where the first axis of every port is the batch; 0 where there is
/// none.
int64_t max_batch_size(const ModelInfo& info);

}  // namespace obelisk::serve::door
