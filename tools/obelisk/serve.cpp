// obelisk serve: the models of a folder answer over the Open Inference Protocol until SIGTERM or
// Ctrl-C.
#include "serve.h"

#include <malloc.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "model_folder.h"
#include "serve/door/door.h"
#include "serve/door/worker.h"
#include "serve/serve.h"

namespace obelisk::cli {
namespace {

namespace door = serve::door;

struct ServeFlags {
  std::string host = "127.0.0.1", tokens, certificate, key, log_file, classes, policy = "vliw",
              record;
  int http = 8000, grpc = 8001, metrics = 8002, threads = 1, grpc_threads = 1;
  double body_mib = 256, bodies_mib = 0, drain_s = 30, grace_s = 0, body_timeout_s = 60;
  int spin_us = 100, keep_warm_us = 0;
  size_t connections = 16384;
  std::string target = "cpu";
  bool no_control = false, shared_memory = false, no_verify = false, worker = false,
       is_worker = false, quiet = false, verbose = false, check = false, batch_invariant = false;
};

Error usage(std::string message, std::string hint = "") {
  return Error{Code::kUsage, "serve", std::move(message), "", std::move(hint)};
}

/// A line a token: the token, and perhaps the tenant that it stands for.
Result<std::map<std::string, std::string>> read_tokens(const std::string& path) {
  TRY(const std::string text, read_file(path));
  std::map<std::string, std::string> tokens;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string token, tenant, more;
    words >> token >> tenant >> more;
    if (token.empty() || token[0] == '#') continue;
    if (!more.empty())
      return usage(fmt::format("{}: a line has more than a token and a tenant", path));
    tokens[token] = tenant;
  }
  if (tokens.empty()) return usage(fmt::format("{} holds no token", path));
  return tokens;
}

/// What of the folder can be served, without serving it.
int list(const Flags& flags, const ServeFlags& given, const ModelFolder& folder) {
  Json all = Json::array();
  std::string text;
  std::optional<Error> first;
  for (const std::string& name : folder.names()) {
    const auto found = folder.find(name);
    if (!found) continue;
    if (!found->ok()) {
      all.push_back({{"name", name}, {"error", found->error().text()}});
      text += fmt::format("{:<24} {}\n", name, found->error().text());
      if (!first) first = found->error();
      continue;
    }
    const serve::ModelConfig& config = **found;
    Json one = {{"name", name},
                {"file", config.path},
                {"target", config.target},
                {"precision", config.precision},
                {"granularity", config.granularity},
                {"batch_invariant", config.batch_invariant || given.batch_invariant},
                {"batch", config.max_batch},
                {"batch_dimension", config.batch_dimension},
                {"dimensions", config.dimensions},
                {"priority", config.priority},
                {"weight", config.weight},
                {"queue_limit", config.queue_limit}};
    if (config.deadline) one["deadline_ms"] = static_cast<double>(config.deadline->count()) / 1e6;
    all.push_back(std::move(one));
    text += fmt::format(
        "{:<24} {}, batches of up to {}{}\n", name, config.path, config.max_batch,
        config.deadline
            ? fmt::format(", deadline {} ms", static_cast<double>(config.deadline->count()) / 1e6)
            : "");
  }
  answer(flags, {{"models", all}}, text);
  return first ? static_cast<int>(first->code) : 0;
}

/// The same program with what concerns the engine.
door::WorkerOptions worker_options(const Flags& flags, const ServeFlags& given,
                                   const std::shared_ptr<door::Log>& log) {
  door::WorkerOptions worker;
  worker.command = {"/proc/self/exe", "serve",
                    flags.folder,     "--as-worker",
                    "--policy",       given.policy,
                    "--target",       given.target,
                    "--threads",      std::to_string(flags.threads),
                    "--memory-limit", std::to_string(flags.memory_limit)};
  const auto option = [&](const char* name, const std::string& value) {
    if (!value.empty()) worker.command.insert(worker.command.end(), {name, value});
  };
  option("--compiler", flags.compiler);
  option("--cache", flags.cache);
  option("--record", given.record);
  if (given.no_verify) worker.command.push_back("--no-verify");
  if (given.batch_invariant) worker.command.push_back("--batch-invariant");
  if (given.keep_warm_us > 0) option("--keep-warm", std::to_string(given.keep_warm_us));
  worker.notice = [log](const std::string& event, const std::string& detail) {
    (event == "started" ? log->info("worker") : log->error("worker"))
        .field("state", event)
        .field("detail", detail);
  };
  return worker;
}

}  // namespace

std::function<int()> add_serve(CLI::App& verb, Flags& flags) {
  const auto more = std::make_shared<ServeFlags>();
  verb.add_option(
          "folder", flags.folder,
          "a folder with a folder for each model: model.onnx or model.obk, perhaps model.toml")
      ->required();
  verb.add_option("--host", more->host,
                  "the address to listen on; only this machine is served unless told otherwise");
  const auto port = CLI::Range(-1, 65535);
  verb.add_option("--http", more->http, "port of HTTP; 0: any")->check(CLI::Range(0, 65535));
  verb.add_option("--grpc", more->grpc, "port of gRPC; 0: any, -1: none")->check(port);
  verb.add_option("--metrics", more->metrics, "port of the metrics; 0: any, -1: none")->check(port);
  verb.add_option("--http-threads", more->threads, "threads that read and write for HTTP")
      ->check(CLI::Range(1, 64));
  verb.add_option("--grpc-threads", more->grpc_threads, "threads that read and write for gRPC")
      ->check(CLI::Range(1, 64));
  verb.add_option("--token-file", more->tokens,
                  "who may call: a line a bearer token, and perhaps its tenant");
  verb.add_option("--tenants", more->classes,
                  "classes and quotas: a TOML file with a table for each tenant");
  const auto certificate =
      verb.add_option("--certificate", more->certificate, "TLS: the certificate chain (PEM)");
  verb.add_option("--key", more->key, "its key (PEM)")->needs(certificate);
  certificate->needs("--key");
  verb.add_option("--max-body", more->body_mib, "the longest request, MiB")
      ->check(CLI::Range(0.001, 1e6));
  verb.add_option("--body-memory", more->bodies_mib,
                  "MiB that requests take together, while they are received and until they are "
                  "answered; 0: a quarter of the memory")
      ->check(CLI::Range(0.0, 1e9));
  verb.add_option("--max-connections", more->connections, "of HTTP, at once");
  verb.add_option("--body-timeout", more->body_timeout_s,
                  "seconds that a request may take to arrive, and more for long ones")
      ->check(CLI::Range(0.1, 1e6));
  verb.add_option("--grace", more->grace_s,
                  "seconds after SIGTERM in which it says not ready, but answers")
      ->check(CLI::Range(0.0, 3600.0));
  verb.add_option("--drain", more->drain_s, "seconds after that in which what was accepted may end")
      ->check(CLI::Range(0.0, 3600.0));
  verb.add_option("--spin", more->spin_us,
                  "microseconds that a thread of HTTP or gRPC polls at most before it sleeps")
      ->check(CLI::Range(0, 1000000));
  verb.add_option("--policy", more->policy,
                  "which request runs next: vliw (least slack first, batches, programs side by "
                  "side), or one of fifo, time, streams, edf, batch");
  verb.add_option("--keep-warm", more->keep_warm_us,
                  "of a GPU: microseconds without a run after which it gets some work, as long as "
                  "requests come, so that it keeps its clocks; 0: it idles")
      ->check(CLI::Range(0, 1000000));
  verb.add_option("--target", more->target, "cpu; cuda or cuda:N: a GPU of this machine");
  verb.add_option("--threads", flags.threads, "of the CPU, that programs run on; 0: one a core")
      ->check(CLI::Range(0, 4096));
  verb.add_option("--memory-limit", flags.memory_limit,
                  "MiB of weights and workspaces of all models; 0: no limit");
  verb.add_flag(
      "--worker-process", more->worker,
      "programs run in a process of their own, which is started again when one of them ends it");
  verb.add_flag("--as-worker", more->is_worker)->group("");
  verb.add_flag("--no-verify", more->no_verify,
                "models are served without being compared with the reference first");
  verb.add_flag(
      "--batch-invariant", more->batch_invariant,
      "of a GPU: answers of all models have the bits that they have alone, whatever batch "
      "and width they are computed in; slower");
  verb.add_option("--record", more->record, "a file for what arrived and what was decided");
  verb.add_option("--compiler", flags.compiler, "the C++ compiler that builds bodies");
  verb.add_option("--cache", flags.cache, "folder of the object cache, or off");
  verb.add_flag("--no-model-control", more->no_control, "clients may not load and unload models");
  verb.add_flag("--shared-memory", more->shared_memory,
                "clients of this machine may pass tensors in shared memory");
  verb.add_option("--log-file", more->log_file,
                  "where the log goes, a line of JSON an event; else stderr");
  verb.add_flag("-q,--quiet", more->quiet, "only errors in the log");
  verb.add_flag("-v,--verbose", more->verbose, "every request in the log");
  verb.add_flag("--check", more->check, "say what would be served, and stop");
  add_json(verb, flags);
  return [&flags, more] {
    const ServeFlags& given = *more;
    auto folder = ModelFolder::open(flags.folder);
    if (!folder.ok()) return fail(flags, folder.error());
    if (given.check) return list(flags, given, *folder);
    door::DoorOptions options;
    options.service.version = OBELISK_VERSION;
    options.service.model_control = !given.no_control,
    options.service.shared_memory = given.shared_memory;
    options.service.body_memory = static_cast<size_t>(given.bodies_mib * (1 << 20));
    const auto log = std::make_shared<door::Log>(door::LogSettings{.warning = !given.quiet,
                                                                   .info = !given.quiet,
                                                                   .verbose = given.verbose,
                                                                   .file = given.log_file});
    options.service.log = log;
    if (!given.tokens.empty()) {
      auto tokens = read_tokens(given.tokens);
      if (!tokens.ok()) return fail(flags, tokens.error());
      options.service.tokens = std::move(*tokens);
    }
    if (!given.classes.empty()) {
      auto classes = read_tenants(given.classes);
      if (!classes.ok()) return fail(flags, classes.error());
      options.service.tenants = std::move(*classes);
    }
    door::HttpOptions& http = options.http;
    http.host = given.host, http.port = given.http, http.threads = given.threads;
    http.most_body = static_cast<size_t>(given.body_mib * (1 << 20)),
    http.most_connections = given.connections;
    http.body_timeout =
        std::chrono::milliseconds(static_cast<int64_t>(given.body_timeout_s * 1000));
    http.header_timeout =
        std::min<std::chrono::milliseconds>(http.body_timeout, std::chrono::seconds(10));
    http.spin = std::chrono::microseconds(given.spin_us);
    http.certificate = given.certificate, http.key = given.key;
    if (given.grpc >= 0) options.grpc_port = given.grpc;
    options.grpc_threads = given.grpc_threads;
    if (given.metrics >= 0) options.metrics_port = given.metrics;
    options.grace = std::chrono::milliseconds(static_cast<int64_t>(given.grace_s * 1000));
    options.drain_limit = std::chrono::milliseconds(static_cast<int64_t>(given.drain_s * 1000));

    serve::EngineOptions engine;
    auto policy = serve::policy_named(given.policy);
    if (!policy.ok()) return fail(flags, policy.error());
    if (given.target != "cpu") runtime::want_hardware_queues();
    const auto machine = compiler::find_machine(given.target, 0, flags.threads);
    if (!machine.ok()) return fail(flags, machine.error());
    if (machine->target != "cpu" && !given.worker) {
      auto device = serve::gpu_device({.index = machine->gpu});
      if (!device.ok()) return fail(flags, device.error());
      engine.device = *device;
    }
    engine.policy = *policy, engine.workers = flags.threads, engine.record = given.record;
    engine.compiler = flags.compiler, engine.cache = flags.cache;
    engine.verify = !given.no_verify;
    engine.batch_invariant = given.batch_invariant;
    engine.memory_limit = flags.memory_limit << 20;
    engine.keep_warm = std::chrono::microseconds(given.keep_warm_us);
    if (given.is_worker) {
      // Who started it ends it.
      signal(SIGINT, SIG_IGN);
      signal(SIGTERM, SIG_IGN);
      engine.lost = [](const Error& error) {
        fmt::print(stderr, "{}\n", error.text());
        _exit(door::kDeviceLost);  // nothing of it can be freed
      };
      door::run_worker(door::kWorkerSocket, serve::make_engine(std::move(engine)));
      return 0;
    }
    // Requests of some hundred kilobytes would give their pages back each time, and fault them in
    // again.
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    // Threads that are started from here on leave these signals to this one.
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error as others
    MappedFile::open_copies();

    auto running = given.worker ? door::make_worker_engine(worker_options(flags, given, log))
                                : serve::make_engine(std::move(engine));
    auto opened = door::Door::open(std::move(running), *folder, std::move(options));
    if (!opened.ok()) return fail(flags, opened.error());
    door::Door& server = **opened;
    server.service()
        .log.info("server")
        .field("state", "listening")
        .field("host", given.host)
        .field("http", server.http_port())
        .field("grpc", server.grpc_port())
        .field("metrics", server.metrics_port());
    server.service().load_all();
    int got = 0;
    sigwait(&ends, &got);
    server.service().log.info("server").field("state", "draining");
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);  // a second one ends at once
    const bool clean = server.close();
    server.service().log.info("server").field("state", "stopped").field("clean", clean);
    return clean ? 0 : static_cast<int>(Code::kInterrupted);
  };
}

}  // namespace obelisk::cli
