/// serve/door/door.h — the door of a server: an engine's models, over HTTP and gRPC, until it is
/// told to stop.
#pragma once

#include "serve/door/http.h"
#include "serve/door/service.h"

namespace obelisk::serve::door {

struct DoorOptions {
  ServiceOptions service;
  HttpOptions http;
  std::optional<int> grpc_port;  // none: no gRPC; 0: any
  int grpc_threads = 1;
  std::optional<int> metrics_port;  // none: no metrics
  std::chrono::milliseconds grace{
      0};  // after drain() answers go on for so long, so that who balances load can look elsewhere
  std::chrono::milliseconds drain_limit{30'000};  // then what still runs is cancelled
};

class Door {
 public:
  /// The engine is the door's from then on. Errors: kUsage for addresses that cannot be had.
  static Result<std::unique_ptr<Door>> open(std::unique_ptr<Engine> engine,
                                            const Repository& repository, DoorOptions options);
  virtual ~Door() = default;
  virtual Service& service() = 0;
  virtual int http_port() const = 0;
  virtual int grpc_port() const = 0;     // -1: none
  virtual int metrics_port() const = 0;  // -1: none
  /// Not ready from now on; what was accepted is answered, then everything is closed. Returns then:
  /// false if something had to be cancelled.
  virtual bool close() = 0;
};

}  // namespace obelisk::serve::door
