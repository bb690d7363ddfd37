#include "serve/door/routes.h"

#include <simdjson.h>

#include "serve/door/infer_json.h"
#include "serve/door/json.h"
#include "serve/door/wire_types.h"

namespace obelisk::serve::door {

const std::vector<std::string_view> kExtensions = {"binary_tensor_data",
                                                   "model_configuration",
                                                   "statistics",
                                                   "model_repository",
                                                   "schedule_policy",
                                                   "parameters",
                                                   "system_shared_memory",
                                                   "trace",
                                                   "logging"};

int64_t max_batch_size(const ModelInfo& info) {
  const auto batched = [](const std::vector<PortInfo>& ports) {
    return std::all_of(ports.begin(), ports.end(), [](const PortInfo& port) {
      return !port.shape.empty() && port.shape[0] == -1;
    });
  };
  return !info.inputs.empty() && batched(info.inputs) && batched(info.outputs)
             ? info.config.max_batch
             : 0;
}

namespace {

using Parts = std::vector<std::string>;
namespace dom = simdjson::dom;

constexpr size_t kLongJson =
    128 << 10;  // bytes whose reading or writing as text is left to the thread aside

HttpReply method_refused(const char* allowed) {
  HttpReply reply = fault_reply({Cause::kMethod, fmt::format("this takes {} only", allowed)});
  reply.headers.emplace_back("Allow", allowed);
  return reply;
}

HttpReply of(Checked wrong, std::string text = "{}") {
  return wrong ? fault_reply(*wrong) : json_reply(std::move(text));
}

void write_ports(JsonWriter& json, const std::vector<PortInfo>& ports) {
  json.open('[');
  for (const PortInfo& port : ports)
    json.open('{')
        .key("name")
        .value(port.name)
        .key("datatype")
        .value(wire_name(port.dtype))
        .key("shape")
        .array(port.shape)
        .close('}');
  json.close(']');
}

std::string metadata_json(const ModelInfo& info) {
  JsonWriter json;
  json.open('{')
      .key("name")
      .value(info.config.name)
      .key("versions")
      .open('[')
      .value(kVersion)
      .close(']');
  json.key("platform").value("obelisk").key("inputs");
  write_ports(json, info.inputs);
  json.key("outputs");
  write_ports(json, info.outputs);
  json.close('}');
  return std::move(json.text);
}

std::string config_json(const ModelInfo& info) {
  const int64_t batch = max_batch_size(info);
  JsonWriter json;
  const auto ports = [&](const std::vector<PortInfo>& all) {
    json.open('[');
    for (const PortInfo& port : all) {
      const Shape dims(port.shape.begin() + (batch > 0 ? 1 : 0), port.shape.end());
      json.open('{')
          .key("name")
          .value(port.name)
          .key("data_type")
          .value(config_name(port.dtype))
          .key("dims")
          .array(dims)
          .close('}');
    }
    json.close(']');
  };
  const ModelConfig& config = info.config;
  json.open('{')
      .key("name")
      .value(config.name)
      .key("platform")
      .value("obelisk")
      .key("backend")
      .value("obelisk");
  json.key("version_policy")
      .open('{')
      .key("specific")
      .open('{')
      .key("versions")
      .open('[')
      .value(1)
      .close(']')
      .close('}')
      .close('}');
  json.key("max_batch_size").value(batch).key("input");
  ports(info.inputs);
  json.key("output");
  ports(info.outputs);
  if (batch > 0) json.key("dynamic_batching").open('{').close('}');
  json.key("parameters").open('{');
  const auto parameter = [&](std::string_view name, std::string_view value) {
    json.key(name).open('{').key("string_value").value(value).close('}');
  };
  parameter("target", config.target);
  parameter("precision", config.precision);
  parameter("batch_invariant", config.batch_invariant ? "true" : "false");
  if (config.deadline)
    parameter("deadline_us",
              std::to_string(
                  std::chrono::duration_cast<std::chrono::microseconds>(*config.deadline).count()));
  parameter("priority", std::to_string(config.priority));
  parameter("queue_limit", std::to_string(config.queue_limit));
  parameter("memory_bytes", std::to_string(info.memory_bytes));
  json.close('}').close('}');
  return std::move(json.text);
}

void write_stats(JsonWriter& json, const ModelInfo& info) {
  const ModelCounts& counts = info.counts;
  const auto entry = [&](const char* name, uint64_t count, std::chrono::nanoseconds time) {
    json.key(name).open('{').key("count").value(count).key("ns").value(time.count()).close('}');
  };
  const std::chrono::nanoseconds none{0};
  json.open('{')
      .key("name")
      .value(info.config.name)
      .key("version")
      .value(kVersion)
      .key("last_inference")
      .value(0);
  json.key("inference_count").value(counts.rows).key("execution_count").value(counts.launches);
  json.key("inference_stats").open('{');
  entry("success", counts.ok, counts.queued + counts.ran);
  entry("fail", counts.failed + counts.rejected + counts.late + counts.cancelled, none);
  entry("queue", counts.ok, counts.queued);
  entry("compute_input", counts.ok, none);
  entry("compute_infer", counts.ok, counts.ran);
  entry("compute_output", counts.ok, none);
  entry("cache_hit", 0, none);
  entry("cache_miss", 0, none);
  json.close('}').key("batch_stats").open('[').close(']').key("memory_usage").open('[');
  json.open('{')
      .key("type")
      .value(info.config.target)
      .key("id")
      .value(0)
      .key("byte_size")
      .value(info.memory_bytes)
      .close('}');
  json.close(']').close('}');
}

std::string log_json(const LogSettings& settings) {
  JsonWriter json;
  json.open('{')
      .key("log_file")
      .value(settings.file)
      .key("log_info")
      .value(settings.info)
      .key("log_warning")
      .value(settings.warning);
  json.key("log_error")
      .value(settings.error)
      .key("log_verbose_level")
      .value(settings.verbose)
      .key("log_format")
      .value("json")
      .close('}');
  return std::move(json.text);
}

/// The body as a JSON object; an empty body is an empty one.
class Body {
 public:
  static Maybe<Body> parse(const HttpRequest& request) {
    Body body;
    const Block& bytes = request.received->body;
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) text = "{}";
    dom::element document;
    if (const auto error = body.parser_->parse(text.data(), text.size(), true).get(document))
      return bad_request(fmt::format("the request is no JSON: {}", simdjson::error_message(error)));
    if (document.get(body.object_)) return bad_request("the request is no JSON object");
    return body;
  }
  dom::object object() const { return object_; }

 private:
  std::unique_ptr<dom::parser> parser_ = std::make_unique<dom::parser>();
  dom::object object_;
};

Checked read_log(dom::object object, LogSettings& settings) {
  for (auto [key, value] : object) {
    bool yes;
    int64_t level;
    std::string_view text;
    if (key == "log_info" && !value.get(yes))
      settings.info = yes;
    else if (key == "log_warning" && !value.get(yes))
      settings.warning = yes;
    else if (key == "log_error" && !value.get(yes))
      settings.error = yes;
    else if (key == "log_verbose_level" && !value.get(level) && level >= 0)
      settings.verbose = static_cast<int>(std::min<int64_t>(level, 9));
    else if (key == "log_format" && !value.get(text) && text == "json") {
    } else if (key == "log_file")
      return bad_request("'log_file' is set where the server is started, not by clients");
    else
      return bad_request(fmt::format("there is no log setting '{}' of such a value", key));
  }
  return std::nullopt;
}

class Routes {
 public:
  explicit Routes(Service& service) : service_(service) {}

  void handle(const std::shared_ptr<Exchange>& exchange) {
    HttpRequest& request = exchange->request;
    Parts parts;
    std::string_view path = request.path;
    while (path.starts_with('/')) path.remove_prefix(1);
    while (!path.empty()) {
      const size_t slash = path.find('/');
      auto part = percent_decoded(path.substr(0, slash));
      if (!part) return exchange->reply(fault_reply(bad_request("the path is malformed")));
      parts.push_back(std::move(*part));
      path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    }
    const bool get = request.method == "GET" || request.method == "HEAD",
               post = request.method == "POST";
    if (parts.empty()) return exchange->reply(get ? page() : method_refused("GET"));
    if (parts[0] != "v2") return unknown(exchange);
    // Health is for load balancers, which have no token.
    const bool health = parts.size() == 3 && parts[1] == "health";
    std::string tenant;
    if (!health) {
      const std::string* authorization = request.header("authorization");
      auto known =
          service_.tenant_of(authorization ? std::string_view(*authorization) : std::string_view());
      if (!known.ok()) return exchange->reply(fault_reply(known.fault()));
      tenant = std::move(*known);
    }
    if (parts.size() == 1) return exchange->reply(get ? server_metadata() : method_refused("GET"));
    const std::string& kind = parts[1];
    if (health) {
      if (parts[2] != "live" && parts[2] != "ready") return unknown(exchange);
      return exchange->reply(get ? this->health(parts[2]) : method_refused("GET"));
    }
    if (kind == "live.json" && parts.size() == 2)
      return exchange->reply(get ? json_reply(live_json(service_)) : method_refused("GET"));
    if (kind == "models") return models(exchange, parts, get, post, tenant);
    if (kind == "repository") return repository(exchange, parts, post);
    if (kind == "logging" && parts.size() == 2) return exchange->reply(logging(request, get, post));
    if (kind == "trace" && parts.size() == 3 && parts[2] == "setting")
      return exchange->reply(trace(request, get, post));
    if (kind == "systemsharedmemory")
      return exchange->reply(shared_memory(request, parts, get, post));
    if (kind == "cudasharedmemory") return exchange->reply(cuda_memory(parts, get));
    unknown(exchange);
  }

 private:
  static void unknown(const std::shared_ptr<Exchange>& exchange) {
    exchange->reply(
        fault_reply({Cause::kNotFound, fmt::format("there is nothing at '{}'",
                                                   exchange->request.path.substr(0, 200))}));
  }

  static HttpReply page() {
    HttpReply reply;
    reply.type = "text/html; charset=utf-8";
    reply.text = kPage;
    reply.headers.emplace_back("Content-Security-Policy",
                               "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'");
    return reply;
  }

  HttpReply server_metadata() const {
    JsonWriter json;
    json.open('{')
        .key("name")
        .value("obelisk")
        .key("version")
        .value(service_.options.version)
        .key("extensions")
        .open('[');
    for (std::string_view extension : kExtensions) json.value(extension);
    json.close(']').close('}');
    return json_reply(std::move(json.text));
  }

  HttpReply health(const std::string& which) const {
    if (which == "live") return json_reply(R"({"live":true})");
    const bool ready = service_.ready();
    HttpReply reply = json_reply(ready ? R"({"ready":true})" : R"({"ready":false})");
    if (!ready) reply.status = 503;
    return reply;
  }

  void models(const std::shared_ptr<Exchange>& exchange, const Parts& parts, bool get, bool post,
              const std::string& tenant) {
    if (parts.size() == 3 && parts[2] == "stats" && !service_.engine.model("stats")) {
      if (!get) return exchange->reply(method_refused("GET"));
      return exchange->reply(statistics(service_.engine.models()));
    }
    if (parts.size() < 3) return unknown(exchange);
    const std::string& name = parts[2];
    std::string version;
    size_t at = 3;
    if (parts.size() > 4 && parts[3] == "versions") version = parts[4], at = 5;
    if (parts.size() > at + 1) {
      if (parts.size() == at + 2 && parts[at] == "trace" && parts[at + 1] == "setting")
        return exchange->reply(trace(exchange->request, get, post));
      return unknown(exchange);
    }
    const std::string verb = parts.size() > at ? parts[at] : "";
    if (verb == "infer") {
      if (!post) return exchange->reply(method_refused("POST"));
      return infer(exchange, name, version, tenant);
    }
    if (verb != "" && verb != "ready" && verb != "config" && verb != "stats")
      return unknown(exchange);
    if (!get) return exchange->reply(method_refused("GET"));
    auto info = service_.model(name, version);
    if (!info.ok()) return exchange->reply(fault_reply(info.fault()));
    if (verb == "ready") {
      const bool ready = info->state == ModelState::kReady && !service_.draining();
      JsonWriter json;
      json.open('{').key("name").value(name).key("ready").value(ready).close('}');
      HttpReply reply = json_reply(std::move(json.text));
      if (!ready) reply.status = 503;
      return exchange->reply(std::move(reply));
    }
    if (verb == "stats") return exchange->reply(statistics({std::move(*info)}));
    if (info->inputs.empty() && info->outputs.empty() && info->state != ModelState::kReady)
      return exchange->reply(fault_reply(
          {Cause::kUnavailable, fmt::format("model '{}' is not ready{}{}", name,
                                            info->reason.empty() ? "" : ": ", info->reason)}));
    exchange->reply(json_reply(verb == "config" ? config_json(*info) : metadata_json(*info)));
  }

  static HttpReply statistics(const std::vector<ModelInfo>& models) {
    JsonWriter json;
    json.open('{').key("model_stats").open('[');
    for (const ModelInfo& info : models) write_stats(json, info);
    json.close(']').close('}');
    return json_reply(std::move(json.text));
  }

  void infer(const std::shared_ptr<Exchange>& exchange, const std::string& name,
             const std::string& version, const std::string& tenant) {
    HttpRequest& request = exchange->request;
    const size_t size = request.received->body.size();
    size_t json_bytes = size;
    if (const std::string* text = request.header("inference-header-content-length")) {
      const auto [end, failed] =
          std::from_chars(text->data(), text->data() + text->size(), json_bytes);
      if (failed != std::errc() || end != text->data() + text->size() || json_bytes > size)
        return exchange->reply(fault_reply(bad_request(
            fmt::format("Inference-Header-Content-Length is '{}', but the body has {} bytes",
                        text->substr(0, 40), size))));
    }
    if (json_bytes <= kLongJson) return submit(exchange, name, version, tenant, json_bytes);
    service_.aside.run([this, exchange, name, version, tenant, json_bytes] {
      submit(exchange, name, version, tenant, json_bytes);
    });
  }

  void submit(const std::shared_ptr<Exchange>& exchange, const std::string& name,
              const std::string& version, const std::string& tenant, size_t json_bytes) {
    HttpRequest& request = exchange->request;
    auto parsed = [&]() -> Maybe<Call> {
      if (json_bytes > 0 || request.received->body.size() == 0)
        return parse_infer(request.received, json_bytes, service_.memory);
      auto info = service_.model(name, version);
      if (!info.ok()) return info.fault();
      return raw_infer(request.received, *info);
    }();
    if (!parsed.ok()) {
      // An unknown model is the more useful answer, where both are wrong.
      if (auto info = service_.model(name, version); !info.ok())
        return exchange->reply(fault_reply(info.fault()));
      return exchange->reply(fault_reply(parsed.fault()));
    }
    const auto call = std::make_shared<Call>(std::move(*parsed));
    call->request.model = name, call->version = version;
    call->request.arrival = request.arrival;
    if (!tenant.empty())
      call->request.tenant = tenant;
    else if (const std::string* header = request.header("x-tenant");
             header && call->request.tenant.empty())
      call->request.tenant = header->substr(0, 256);
    if (const std::string* text = request.header("x-envoy-expected-rq-timeout-ms")) {
      int64_t ms = 0;
      if (std::from_chars(text->data(), text->data() + text->size(), ms).ec == std::errc() &&
          ms > 0 && ms < 1'000'000'000)
        apply_transport_deadline(*call, std::chrono::milliseconds(ms));
    }
    const std::string* report = request.header("endpoint-load-metrics-format");
    const std::string format = report ? *report : "";
    const RequestKey key = service_.infer(call, [this, exchange, call, format](Answer answer) {
      const bool is_long = bytes_as_numbers(*call, answer) > kLongJson;
      auto make = [this, call, format, answer = std::move(answer), ended = Clock::now()] {
        HttpReply reply = infer_reply(*call, answer, service_.memory);
        add_load(reply, format);
        service_.delivery.note(Clock::now() - ended);
        return reply;
      };
      if (!is_long) return exchange->reply_from(std::move(make));
      service_.aside.run([exchange, make = std::move(make)] { exchange->reply(make()); });
    });
    exchange->on_abandoned([this, key] { service_.engine.cancel(key); });
  }

  /// A report of the load (ORCA), where a balancer requests it.
  void add_load(HttpReply& reply, const std::string& format) const {
    if (format != "text" && format != "json") return;
    const Service::Load load = service_.load();
    const std::string text =
        format == "text"
            ? fmt::format("TEXT application_utilization={:.4f},rps_fractional={:.2f}",
                          load.utilization, load.requests)
            : fmt::format(R"(JSON {{"application_utilization":{:.4f},"rps_fractional":{:.2f}}})",
                          load.utilization, load.requests);
    reply.headers.emplace_back("endpoint-load-metrics", text);
  }

  /// Of an answer, those that become text.
  static size_t bytes_as_numbers(const Call& call, const Answer& answer) {
    size_t bytes = 0;
    for (const OutputView& output : answer.outputs) {
      bool binary = call.binary;
      for (const WantedOutput& wanted : call.wanted)
        if (wanted.name == output.name)
          binary = wanted.region || wanted.binary.value_or(call.binary);
      if (!binary) bytes += output.bytes.size();
    }
    return bytes;
  }

  void repository(const std::shared_ptr<Exchange>& exchange, const Parts& parts, bool post) {
    const bool index = parts.size() == 3 && parts[2] == "index";
    const bool change =
        parts.size() == 5 && parts[2] == "models" && (parts[4] == "load" || parts[4] == "unload");
    if (!index && !change) return unknown(exchange);
    if (!post) return exchange->reply(method_refused("POST"));
    auto body = Body::parse(exchange->request);
    if (!body.ok()) return exchange->reply(fault_reply(body.fault()));
    if (index) {
      bool only_ready = false;
      const auto wanted = body->object().at_key("ready").get(only_ready);
      if (wanted && wanted != simdjson::NO_SUCH_FIELD)
        return exchange->reply(fault_reply(bad_request("'ready' is true or false")));
      JsonWriter json;
      json.open('[');
      for (const Service::IndexEntry& entry : service_.index(only_ready)) {
        json.open('{').key("name").value(entry.name);
        if (!entry.version.empty()) json.key("version").value(entry.version);
        json.key("state")
            .value(entry.state.empty() ? "UNAVAILABLE" : entry.state)
            .key("reason")
            .value(entry.state.empty() ? "not loaded" : entry.reason)
            .close('}');
      }
      json.close(']');
      return exchange->reply(json_reply(std::move(json.text)));
    }
    if (dom::object parameters;
        parts[4] == "load" && !body->object().at_key("parameters").get(parameters))
      for (auto [key, value] : parameters)
        if (key == "config" || key.starts_with("file:"))
          return exchange->reply(
              fault_reply({Cause::kUnimplemented,
                           "models are loaded as the repository has them; configurations and files "
                           "are not taken from clients"}));
    const auto done = [exchange](Checked wrong) { exchange->reply(of(std::move(wrong))); };
    if (parts[4] == "load")
      service_.load(parts[3], done);
    else
      service_.unload(parts[3], done);
  }

  HttpReply logging(const HttpRequest& request, bool get, bool post) {
    if (!get && !post) return method_refused("GET, POST");
    LogSettings settings = service_.log.settings();
    if (post) {
      auto body = Body::parse(request);
      if (!body.ok()) return fault_reply(body.fault());
      if (Checked wrong = read_log(body->object(), settings)) return fault_reply(*wrong);
      service_.log.set(settings);
    }
    return json_reply(log_json(settings));
  }

  /// Requests that want a trace ask for one themselves; there is nothing to set for all.
  static HttpReply trace(const HttpRequest& request, bool get, bool post) {
    if (!get && !post) return method_refused("GET, POST");
    if (post) {
      auto body = Body::parse(request);
      if (!body.ok()) return fault_reply(body.fault());
      for (auto [key, value] : body->object()) {
        (void)value;
        constexpr std::string_view kSettings[] = {"trace_level",   "trace_rate", "trace_count",
                                                  "log_frequency", "trace_file", "trace_mode"};
        if (std::find(std::begin(kSettings), std::end(kSettings), key) == std::end(kSettings))
          return fault_reply(bad_request(fmt::format("there is no trace setting '{}'", key)));
        return fault_reply({Cause::kUnimplemented,
                            fmt::format("trace setting '{}' cannot be changed; the parameter "
                                        "'trace' of a request brings its trace with the answer",
                                        key)});
      }
    }
    return json_reply(
        R"({"trace_level":["OFF"],"trace_rate":"0","trace_count":"-1","log_frequency":"0","trace_file":"","trace_mode":"triton"})");
  }

  HttpReply shared_memory(const HttpRequest& request, const Parts& parts, bool get, bool post) {
    std::string region;
    size_t at = 2;
    if (parts.size() > 3 && parts[2] == "region") region = parts[3], at = 4;
    if (parts.size() != at + 1)
      return fault_reply({Cause::kNotFound, "there is nothing at this path"});
    const std::string& verb = parts[at];
    if (verb == "status") {
      if (!get) return method_refused("GET");
      auto found = service_.memory.status(region);
      if (!found.ok()) return fault_reply(found.fault());
      JsonWriter json;
      json.open('[');
      for (const auto& one : *found)
        json.open('{')
            .key("name")
            .value(one.name)
            .key("key")
            .value(one.key)
            .key("offset")
            .value(one.offset)
            .key("byte_size")
            .value(one.bytes)
            .close('}');
      json.close(']');
      return json_reply(std::move(json.text));
    }
    if (verb != "register" && verb != "unregister")
      return fault_reply({Cause::kNotFound, "there is nothing at this path"});
    if (!post) return method_refused("POST");
    if (verb == "unregister") return of(service_.memory.unregister(region));
    auto body = Body::parse(request);
    if (!body.ok()) return fault_reply(body.fault());
    SharedMemory::Status wanted{region, "", 0, 0};
    std::string_view key;
    if (region.empty() || body->object().at_key("key").get(key) ||
        body->object().at_key("byte_size").get(wanted.bytes))
      return fault_reply(
          bad_request("a region is registered by name, with its 'key' and 'byte_size'"));
    wanted.key = key;
    if (body->object().at_key("offset").get(wanted.offset)) wanted.offset = 0;
    return of(service_.memory.register_region(wanted));
  }

  static HttpReply cuda_memory(const Parts& parts, bool get) {
    if (get && parts.back() == "status") return json_reply("[]");
    if (parts.back() == "unregister") return json_reply("{}");
    return fault_reply({Cause::kUnimplemented, "CUDA shared memory is not served"});
  }

  Service& service_;
};

}  // namespace

HttpHandler make_routes(Service& service) {
  const auto routes = std::make_shared<Routes>(service);
  return [routes](const std::shared_ptr<Exchange>& exchange) { routes->handle(exchange); };
}

HttpHandler make_metrics_routes(Service& service) {
  return [&service](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request.method != "GET" && exchange->request.method != "HEAD")
      return exchange->reply(method_refused("GET"));
    if (exchange->request.path != "/metrics")
      return exchange->reply(fault_reply({Cause::kNotFound, "there is /metrics here"}));
    HttpReply reply;
    reply.type = "text/plain; version=0.0.4; charset=utf-8";
    reply.text = metrics_text(service);
    exchange->reply(std::move(reply));
  };
}

}  // namespace obelisk::serve::door
