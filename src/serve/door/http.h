/// serve/door/http.h — HTTP as the door's routes see it: a request whose body is there, and one
/// reply to it.
///
///   HttpServer (sockets, TLS, limits) ── Exchange ──▶ a handler ── reply, at once or later, from
///   any thread
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/door/fault.h"
#include "serve/door/memory.h"

namespace obelisk::serve::door {

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string text;
  std::vector<std::span<const std::byte>> tail;  // behind the text
  std::shared_ptr<void> keep;                    // owns the tail
  bool binary = false;
};

HttpReply json_reply(std::string text);
/// {"error": "..."}, with the status and headers of the fault.
HttpReply fault_reply(const Fault& fault);

struct HttpRequest {
  std::string method, path, query;  // path: as it was sent, without the query
  std::vector<std::pair<std::string, std::string>> headers;
  std::shared_ptr<Received> received = std::make_shared<Received>();
  Clock::time_point arrival;  // of its last byte
  std::string peer;

  const std::string* header(std::string_view lower_case_name) const;
};

/// A request and the one reply to it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  HttpRequest request;
  /// Once, from any thread. A function is called on the connection's own thread.
  virtual void reply(HttpReply reply) = 0;
  virtual void reply_from(std::function<HttpReply()> make) = 0;
  /// Called (on the connection's thread) if the client goes away before the reply.
  virtual void on_abandoned(std::function<void()> abandoned) = 0;
};
using HttpHandler = std::function<void(std::shared_ptr<Exchange>)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any that is free
  int threads = 1;
  size_t most_body = size_t{256} << 20;
  std::shared_ptr<BodyMemory> bodies;  // of all connections together; null: no limit
  size_t most_connections = 16384;
  std::chrono::milliseconds header_timeout{10'000}, idle_timeout{120'000}, body_timeout{60'000};
  std::chrono::microseconds spin{100};  // that a thread polls at most before it sleeps
  std::string certificate, key;         // files, PEM; empty: no TLS
};

struct HttpCounts {
  uint64_t accepted = 0, requests = 0;
  int64_t open = 0;
};

class HttpServer {
 public:
  /// Errors: kUsage for an address that cannot be had, or a certificate that cannot be read.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, HttpHandler handler);
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
  virtual HttpCounts counts() const = 0;
  /// Replies say "Connection: close" from now on, and no connection is accepted.
  virtual void drain() = 0;
  /// Whether a request is being read, answered or written.
  virtual bool busy() const = 0;
  /// Closes all connections and joins the threads: no handler is called from now on. Replies may
  /// still be given, to nobody.
  virtual void stop() = 0;
};

/// "%41" to "A"; nothing where it is malformed.
std::optional<std::string> percent_decoded(std::string_view text);
/// Of a body sent with `Content-Encoding: gzip` or `deflate`. Errors: kBadRequest, kTooLarge.
Maybe<Block> inflated(std::span<const std::byte> bytes, size_t most, size_t before);

}  // namespace obelisk::serve::door
