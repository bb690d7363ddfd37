#include "serve/door/door.h"

#include "serve/door/grpc_server.h"
#include "serve/door/routes.h"

namespace obelisk::serve::door {
namespace {

class Opened final : public Door {
 public:
  Opened(std::unique_ptr<Engine> engine, const Repository& repository, DoorOptions options)
      : options_(std::move(options)),
        engine_(std::move(engine)),
        service_(*engine_, repository, options_.service) {}
  ~Opened() override { close(); }

  Status open() {
    options_.http.bodies = service_.bodies;
    options_.http.most_body = std::min(options_.http.most_body, service_.bodies->limit());
    TRY(http_, HttpServer::start(options_.http, make_routes(service_)));
    if (options_.grpc_port) {
      GrpcOptions grpc;
      grpc.host = options_.http.host, grpc.port = *options_.grpc_port,
      grpc.most_message = options_.http.most_body;
      grpc.threads = options_.grpc_threads, grpc.spin = options_.http.spin;
      grpc.certificate = options_.http.certificate, grpc.key = options_.http.key;
      TRY(grpc_, GrpcServer::start(std::move(grpc), service_));
      service_.on_ready([this](bool ready) { grpc_->set_ready(ready); });
    }
    if (options_.metrics_port) {
      HttpOptions metrics = options_.http;
      metrics.port = *options_.metrics_port;
      metrics.threads = 1, metrics.spin = std::chrono::microseconds(0);
      metrics.most_connections = 256, metrics.most_body = 1 << 16;
      metrics.certificate.clear(), metrics.key.clear();
      TRY(metrics_, HttpServer::start(std::move(metrics), make_metrics_routes(service_)));
    }
    return ok_status();
  }

  Service& service() override { return service_; }
  int http_port() const override { return http_->port(); }
  int grpc_port() const override { return grpc_ ? grpc_->port() : -1; }
  int metrics_port() const override { return metrics_ ? metrics_->port() : -1; }

  bool close() override {
    if (!engine_) return clean_;
    service_.drain();
    if (grpc_) grpc_->set_ready(false);
    if (http_) {
      std::this_thread::sleep_for(options_.grace);
      http_->drain();
    }
    service_.refuse();
    engine_->drain();
    const auto until = Clock::now() + options_.drain_limit;
    while (service_.ledger.in_flight() > 0 && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    clean_ = service_.ledger.in_flight() == 0;
    // Replies that were just given still have to be sent.
    while (http_ && http_->busy() && clean_ && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // No handler is called any more when the engine goes, and replies to its last answers find
    // their servers.
    if (metrics_) metrics_->stop();
    if (http_) http_->stop();
    service_.stop();
    if (grpc_) grpc_->stop(std::chrono::milliseconds(clean_ ? 1000 : 0));
    engine_.reset();
    metrics_.reset();
    grpc_.reset();
    http_.reset();
    return clean_;
  }

 private:
  DoorOptions options_;
  std::unique_ptr<Engine> engine_;
  Service service_;
  std::unique_ptr<HttpServer> http_, metrics_;
  std::unique_ptr<GrpcServer> grpc_;
  bool clean_ = true;
};

}  // namespace

Result<std::unique_ptr<Door>> Door::open(std::unique_ptr<Engine> engine,
                                         const Repository& repository, DoorOptions options) {
  auto door = std::make_unique<Opened>(std::move(engine), repository, std::move(options));
  TRY_STATUS(door->open());
  return std::unique_ptr<Door>(std::move(door));
}

}  // namespace obelisk::serve::door
