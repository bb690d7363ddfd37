/// serve/door/grpc_server.h — inference.GRPCInferenceService, with the calls' own deadlines and
/// cancellation.
#pragma once

#include <memory>

#include "serve/door/service.h"

namespace obelisk::serve::door {

struct GrpcOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  size_t most_message = size_t{256} << 20;
  int threads = 1;                      // that read and write, each with a queue of its own
  std::chrono::microseconds spin{100};  // that one polls at most before it sleeps
  std::string certificate, key;         // files, PEM; empty: no TLS
};

class GrpcServer {
 public:
  /// Errors: kUsage for an address that cannot be had, or a certificate that cannot be read.
  static Result<std::unique_ptr<GrpcServer>> start(GrpcOptions options, Service& service);
  virtual ~GrpcServer() = default;
  virtual int port() const = 0;
  /// What grpc.health.v1 says.
  virtual void set_ready(bool ready) = 0;
  /// No call is taken from now on; those that run are cancelled after `patience`. Returns when none
  /// is left.
  virtual void stop(std::chrono::milliseconds patience) = 0;
};

}  // namespace obelisk::serve::door
