#include <arpa/inet.h>
#include <sys/resource.h>

#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstring>
#include <list>
#include <thread>
#include <unordered_set>

#include "serve/door/adaptive_spin.h"
#include "serve/door/http.h"
#include "serve/lanes.h"

namespace obelisk::serve::door {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kMostHeader = 32 << 10, kPiece = 64 << 10;
/// Bytes that one system call reads or writes of a long body, at most. Asio's default is 64 KiB,
/// and each call wakes the other side.
constexpr auto kAtOnce = [](const error_code& failed, size_t) -> size_t {
  return failed ? 0 : size_t{4} << 20;
};

class SessionBase {
 public:
  virtual ~SessionBase() = default;
  virtual void expire(Clock::time_point now) = 0;
  virtual void stop() = 0;
  virtual void close_if_idle() = 0;
};

/// What the connections of one thread share.
struct Loop {
  std::unordered_set<SessionBase*>
      sessions;  // outlives the context, whose pending operations own them
  asio::io_context context{1};
  asio::steady_timer sweep{context};
  std::thread thread;
};

struct Shared {
  HttpOptions options;
  HttpHandler handler;
  std::optional<asio::ssl::context> tls;
  std::atomic<uint64_t> accepted{0}, requests{0};
  std::atomic<int64_t> open{0}, busy{0};
  std::atomic<bool> draining{false}, stopping{false};
  Lanes aside{1};  // inflates bodies
};

template <typename Stream>
class Session final : public SessionBase, public std::enable_shared_from_this<Session<Stream>> {
 public:
  template <typename... Args>
  Session(Shared& shared, Loop& loop, std::string peer, Args&&... args)
      : shared_(shared),
        loop_(loop),
        stream_(std::forward<Args>(args)...),
        peer_(std::move(peer)),
        buffer_(kMostHeader + kPiece) {
    loop_.sessions.insert(this);
    shared_.open.fetch_add(1, std::memory_order_relaxed);
  }
  ~Session() override {
    loop_.sessions.erase(this);
    shared_.open.fetch_sub(1, std::memory_order_relaxed);
    set_busy(false);
  }

  void start() {
    allow(shared_.options.header_timeout);
    if constexpr (kTls) {
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [self = this->shared_from_this()](error_code failed) {
                                if (!failed) self->read_header();
                              });
    } else {
      read_header();
    }
  }

  void expire(Clock::time_point now) override {
    if (now < due_) return;
    // A client that began a request and does not go on is told why.
    if (state_ == State::kBody || (state_ == State::kHeader && buffer_.size() > 0)) {
      state_ = State::kClosing;
      close_after_ = true;
      error_code ignored;
      socket().cancel(ignored);
      HttpReply late;
      late.status = 408;
      late.text = R"({"error":"the request did not arrive in time"})";
      write(std::move(late));
    } else {
      stop();
    }
  }
  void stop() override {
    error_code ignored;
    socket().close(ignored);
  }
  void close_if_idle() override {
    if (state_ == State::kHeader && buffer_.size() == 0) stop();
  }

 private:
  static constexpr bool kTls = !std::is_same_v<Stream, tcp::socket>;
  enum class State { kHeader, kBody, kHandler, kWriting, kClosing };

  class Turn final : public Exchange, public std::enable_shared_from_this<Turn> {
   public:
    explicit Turn(std::shared_ptr<Session> session, HttpRequest taken)
        : session_(std::move(session)) {
      request = std::move(taken);
    }
    ~Turn() override {
      const auto executor = session_->stream_.get_executor();
      if (!replied_.load())
        asio::post(executor, [session = std::move(session_)] {
          session->write(fault_reply({Cause::kInternal, "the server gave no answer"}));
        });
      else if (!session_->here())  // a connection ends on its own thread
        asio::post(executor, [session = std::move(session_)] {});
    }
    auto executor() const { return session_->stream_.get_executor(); }
    void handle() {
      try {
        session_->shared_.handler(this->shared_from_this());
      } catch (const std::exception& bug) {
        reply(fault_reply({Cause::kInternal, bug.what()}));
      }
    }
    void reply(HttpReply reply) override {
      if (replied_.exchange(true)) return;
      asio::dispatch(session_->stream_.get_executor(),
                     [self = this->shared_from_this(), reply = std::move(reply)]() mutable {
                       self->session_->write(std::move(reply));
                     });
    }
    void reply_from(std::function<HttpReply()> make) override {
      if (replied_.exchange(true)) return;
      asio::dispatch(session_->stream_.get_executor(),
                     [self = this->shared_from_this(), make = std::move(make)] {
                       self->session_->write(make());
                     });
    }
    void on_abandoned(std::function<void()> abandoned) override {
      if (replied_.load()) return;
      asio::dispatch(session_->stream_.get_executor(),
                     [self = this->shared_from_this(), abandoned = std::move(abandoned)]() mutable {
                       if (!self->replied_.load()) self->session_->watch(std::move(abandoned));
                     });
    }

   private:
    std::shared_ptr<Session> session_;
    std::atomic<bool> replied_{false};
  };

  void set_busy(bool busy) {
    if (busy != busy_) shared_.busy.fetch_add(busy ? 1 : -1);
    busy_ = busy;
  }
  bool here() const { return loop_.context.get_executor().running_in_this_thread(); }
  tcp::socket& socket() {
    if constexpr (kTls)
      return stream_.next_layer();
    else
      return stream_;
  }
  void allow(std::chrono::nanoseconds time) { due_ = Clock::now() + time; }

  void read_header() {
    state_ = State::kHeader;
    parser_.emplace();
    parser_->header_limit(kMostHeader);
    parser_->body_limit(shared_.options.most_body);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = this->shared_from_this()](error_code failed, size_t) {
                              if (self->state_ == State::kHeader) self->header_there(failed);
                            });
  }

  void refuse(int status, std::string text) {
    close_after_ = true;
    HttpReply reply;
    reply.status = status;
    reply.text = R"({"error":")" + text + R"("})";
    write(std::move(reply));
  }

  /// Whether there is memory for a body so long; else the client is told.
  bool room_for(size_t bytes) {
    const auto& bodies = shared_.options.bodies;
    if (request_.received->share.hold(bodies, bytes)) return true;
    close_after_ = true;
    write(fault_reply(no_room(bytes, bodies->limit())));
    request_ = {};
    return false;
  }

  void header_there(error_code failed) {
    if (failed) {
      if (failed == http::error::body_limit)
        return refuse(413, fmt::format("the body is longer than the {} bytes that are allowed",
                                       shared_.options.most_body));
      if (failed == http::error::header_limit) return refuse(431, "the header is too long");
      if (failed == http::error::end_of_stream || failed == http::error::partial_message ||
          failed.category() != http::make_error_code(http::error::bad_method).category())
        return;  // gone: the connection ends with its last owner
      return refuse(400, "this is no HTTP request: " + failed.message());
    }
    allow(shared_.options.body_timeout);
    const auto& message = parser_->get();
    close_after_ = !message.keep_alive();
    set_busy(true);
    request_ = {};
    HttpRequest& request = request_;
    request.method = std::string(message.method_string());
    head_only_ = request.method == "HEAD";
    const std::string_view target(message.target().data(), message.target().size());
    const size_t question = target.find('?');
    request.path = target.substr(0, question);
    if (question != std::string_view::npos) request.query = target.substr(question + 1);
    request.peer = peer_;
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name) c = static_cast<char>(tolower(static_cast<unsigned char>(c)));
      request.headers.emplace_back(std::move(name), std::string(field.value()));
    }
    if (const auto size = parser_->content_length(); size && !room_for(*size)) return;
    if (beast::iequals(message[http::field::expect], "100-continue") && !parser_->is_done()) {
      state_ = State::kBody;
      static constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
      asio::async_write(stream_, asio::buffer(kGoOn),
                        [self = this->shared_from_this()](error_code failed, size_t) {
                          if (!failed && self->state_ == State::kBody) self->read_body();
                        });
      return;
    }
    read_body();
  }

  /// Bytes of the JSON before binary tensors, so that these begin on a boundary.
  size_t before_tensors() const {
    const std::string* text = request_.header("inference-header-content-length");
    return text ? strtoull(text->c_str(), nullptr, 10) : 0;
  }

  void read_body() {
    if (parser_->is_done()) return body_there();
    state_ = State::kBody;
    if (parser_->chunked() || !parser_->content_length()) return read_chunks();
    const size_t size = *parser_->content_length();
    // A minute, and more for what is long: ten connections' worth of patience is all that a slow
    // sender can take.
    allow(shared_.options.body_timeout + std::chrono::milliseconds(size >> 10));
    Received& received = *request_.received;
    received.body = Block(size, before_tensors());
    const size_t there = std::min(size, buffer_.size());
    memcpy(received.body.data(), buffer_.data().data(), there);
    buffer_.consume(there);
    if (there == size) return body_there();
    asio::async_read(stream_, asio::buffer(received.body.data() + there, size - there), kAtOnce,
                     [self = this->shared_from_this()](error_code failed, size_t) {
                       if (!failed && self->state_ == State::kBody) self->body_there();
                     });
  }

  void read_chunks() {
    piece_.resize(kPiece);
    parser_->get().body().data = piece_.data();
    parser_->get().body().size = piece_.size();
    parser_->get().body().more = true;
    http::async_read(stream_, buffer_, *parser_,
                     [self = this->shared_from_this()](error_code failed, size_t) {
                       if (self->state_ == State::kBody) self->chunk_there(failed);
                     });
  }
  void chunk_there(error_code failed) {
    if (failed == http::error::body_limit)
      return refuse(413, fmt::format("the body is longer than the {} bytes that are allowed",
                                     shared_.options.most_body));
    if (failed && failed != http::error::need_buffer) {
      if (failed.category() == http::make_error_code(http::error::bad_chunk).category() &&
          failed != http::error::partial_message)
        return refuse(400, "this is no chunked body: " + failed.message());
      return;
    }
    const size_t got = piece_.size() - parser_->get().body().size;
    if (!room_for(chunks_.size() + got)) return std::string().swap(chunks_);
    chunks_.append(piece_.data(), got);
    if (!parser_->is_done()) return read_chunks();
    Received& received = *request_.received;
    received.body = Block(chunks_.size(), before_tensors());
    memcpy(received.body.data(), chunks_.data(), chunks_.size());
    std::string().swap(chunks_);
    std::vector<char>().swap(piece_);
    body_there();
  }

  void body_there() {
    state_ = State::kHandler;
    due_ = Clock::time_point::max();
    request_.arrival = Clock::now();
    shared_.requests.fetch_add(1, std::memory_order_relaxed);
    if (request_.received->body.size() == 0) request_.received->body = Block(0);
    const auto turn = std::make_shared<Turn>(this->shared_from_this(), std::exchange(request_, {}));
    HttpRequest& request = turn->request;
    if (const std::string* coding = request.header("content-encoding");
        coding && *coding != "identity") {
      if (*coding != "gzip" && *coding != "deflate")
        return turn->reply(
            fault_reply({Cause::kMediaType, "bodies come as they are, or as gzip or deflate"}));
      // It may become much longer, which takes its time.
      return shared_.aside.run(
          [turn, most = shared_.options.most_body, bodies = shared_.options.bodies] {
            HttpRequest& short_one = turn->request;
            auto text = inflated(short_one.received->body.bytes(), most, 0);
            if (!text.ok()) return turn->reply(fault_reply(text.fault()));
            if (!short_one.received->share.hold(bodies, text->size()))
              return turn->reply(fault_reply(no_room(text->size(), bodies->limit())));
            short_one.received->body = std::move(*text);
            asio::post(turn->executor(), [turn] { turn->handle(); });
          });
    }
    turn->handle();
  }

  void watch(std::function<void()> abandoned) {
    if (state_ != State::kHandler) return;
    abandoned_ = std::move(abandoned);
    socket().async_wait(tcp::socket::wait_read, [self =
                                                     this->shared_from_this()](error_code failed) {
      if (failed || self->state_ != State::kHandler || !self->abandoned_) return;
      char byte;
      const auto got = ::recv(self->socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
      auto abandoned = std::move(self->abandoned_);
      self->abandoned_ = nullptr;
      self->close_after_ = true;
      abandoned();
    });
  }

  void write(HttpReply reply) {
    if (state_ == State::kWriting) return;
    if (abandoned_) {
      abandoned_ = nullptr;
      error_code ignored;
      socket().cancel(ignored);
    }
    state_ = State::kWriting;
    reply_ = std::move(reply);
    if (shared_.draining) close_after_ = true;
    size_t size = reply_.text.size();
    for (const auto& bytes : reply_.tail) size += bytes.size();
    allow(shared_.options.body_timeout + std::chrono::milliseconds(size >> 10));
    head_.clear();
    fmt::format_to(std::back_inserter(head_),
                   "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n", reply_.status,
                   reason_phrase(reply_.status), reply_.type, size);
    for (const auto& [name, value] : reply_.headers)
      fmt::format_to(std::back_inserter(head_), "{}: {}\r\n", name, value);
    if (close_after_) head_ += "Connection: close\r\n";
    head_ += "\r\n";
    std::vector<asio::const_buffer> buffers{asio::buffer(head_)};
    if (!head_only_) {
      buffers.push_back(asio::buffer(reply_.text));
      for (const auto& bytes : reply_.tail)
        buffers.push_back(asio::buffer(bytes.data(), bytes.size()));
    }
    asio::async_write(
        stream_, std::move(buffers), kAtOnce,
        [self = this->shared_from_this()](error_code failed, size_t) { self->written(failed); });
  }
  void written(error_code failed) {
    reply_ = {};
    set_busy(false);
    if (failed) return;
    if (close_after_) return linger();
    allow(shared_.options.idle_timeout);
    read_header();
  }

  /// A close while bytes are on their way would take the reply from the client: what still comes is
  /// read for a moment.
  void linger() {
    state_ = State::kClosing;
    allow(std::chrono::seconds(2));
    error_code ignored;
    socket().shutdown(tcp::socket::shutdown_send, ignored);
    piece_.resize(kPiece);
    throw_away();
  }
  void throw_away() {
    socket().async_read_some(asio::buffer(piece_),
                             [self = this->shared_from_this()](error_code failed, size_t) {
                               if (!failed) self->throw_away();
                             });
  }

  Shared& shared_;
  Loop& loop_;
  Stream stream_;
  std::string peer_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::buffer_body>> parser_;
  HttpRequest request_;
  std::function<void()> abandoned_;
  std::vector<char> piece_;
  std::string chunks_, head_;
  HttpReply reply_;
  State state_ = State::kHeader;
  bool busy_ = false, close_after_ = false, head_only_ = false;
  Clock::time_point due_ = Clock::time_point::max();
};

class Server final : public HttpServer {
 public:
  Server(HttpOptions options, HttpHandler handler) {
    shared_.options = std::move(options), shared_.handler = std::move(handler);
    for (int k = 0; k < std::max(shared_.options.threads, 1); ++k)
      loops_.push_back(std::make_unique<Loop>());
  }

  Status listen() {
    const HttpOptions& options = shared_.options;
    const auto wrong = [&](const std::string& why) {
      return Error{Code::kUsage, "serve",
                   fmt::format("cannot listen on {}:{}: {}", options.host, options.port, why), "",
                   "another --host or --port"};
    };
    error_code failed;
    if (!options.certificate.empty()) {
      shared_.tls.emplace(asio::ssl::context::tls_server);
      shared_.tls->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
      shared_.tls->use_certificate_chain_file(options.certificate, failed);
      if (!failed) shared_.tls->use_private_key_file(options.key, asio::ssl::context::pem, failed);
      if (failed)
        return Error{Code::kUsage, "serve",
                     fmt::format("TLS: '{}' and '{}' cannot be used: {}", options.certificate,
                                 options.key, failed.message()),
                     "", "a certificate chain and its key, PEM"};
    }
    tcp::resolver resolver(loops_[0]->context);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        tcp::resolver::passive, failed);
    if (failed || found.empty()) return wrong(failed.message());
    const tcp::endpoint at = *found.begin();
    acceptor_.emplace(loops_[0]->context);
    acceptor_->open(at.protocol(), failed);
    if (!failed) acceptor_->set_option(tcp::acceptor::reuse_address(true), failed);
    if (!failed) acceptor_->bind(at, failed);
    if (!failed) acceptor_->listen(4096, failed);
    if (failed) return wrong(failed.message());
    port_ = acceptor_->local_endpoint().port();
    // As many connections as the system lets us have.
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
      files.rlim_cur = files.rlim_max;
      setrlimit(RLIMIT_NOFILE, &files);
    }
    accept();
    for (auto& loop : loops_) {
      sweep(*loop);
      loop->thread = std::thread([this, &loop = *loop] { turn(loop); });
    }
    return ok_status();
  }

  ~Server() override { stop(); }

  void stop() override {
    if (shared_.stopping.exchange(true)) return;
    shared_.aside.stop();
    for (auto& loop : loops_)
      asio::post(loop->context, [this, &loop = *loop] {
        error_code ignored;
        if (acceptor_ && &loop == loops_[0].get()) acceptor_->close(ignored);
        loop.sweep.cancel();
        for (SessionBase* session : loop.sessions) session->stop();
        // What was cancelled runs first.
        asio::post(loop.context, [&loop] { loop.context.stop(); });
      });
    for (auto& loop : loops_)
      if (loop->thread.joinable()) loop->thread.join();
  }

  int port() const override { return port_; }
  HttpCounts counts() const override { return {shared_.accepted, shared_.requests, shared_.open}; }
  bool busy() const override { return shared_.busy > 0; }
  void drain() override {
    shared_.draining = true;
    for (auto& loop : loops_)
      asio::post(loop->context, [this, &loop = *loop] {
        error_code ignored;
        if (&loop == loops_[0].get()) acceptor_->close(ignored);
        for (SessionBase* session : loop.sessions) session->close_if_idle();
      });
  }

 private:
  void turn(Loop& loop) {
    const auto guard = asio::make_work_guard(loop.context);
    AdaptiveSpin spin(shared_.options.spin);
    while (!loop.context.stopped()) {
      const auto idle = Clock::now();
      const auto until = idle + spin.limit();
      size_t did = 0;
      while (did == 0 && Clock::now() < until) did = loop.context.poll_one();
      if (did == 0) did = loop.context.run_one();
      spin.waited(Clock::now() - idle);
      while (loop.context.poll_one() > 0) {
      }
    }
  }

  void sweep(Loop& loop) {
    loop.sweep.expires_after(std::chrono::milliseconds(500));
    loop.sweep.async_wait([this, &loop](error_code failed) {
      if (failed || shared_.stopping) return;
      const auto now = Clock::now();
      // Who expires leaves the set only when its last operation has ended, not now.
      for (SessionBase* session : loop.sessions) session->expire(now);
      sweep(loop);
    });
  }

  void accept() {
    Loop& loop = *loops_[next_++ % loops_.size()];
    acceptor_->async_accept(loop.context, [this, &loop](error_code failed, tcp::socket socket) {
      if (failed == asio::error::operation_aborted || shared_.stopping || shared_.draining) return;
      if (failed) {
        // No file is left for it, mostly: later perhaps.
        retry_.emplace(loops_[0]->context, std::chrono::milliseconds(50));
        retry_->async_wait([this](error_code stopped) {
          if (!stopped && acceptor_->is_open()) accept();
        });
        return;
      }
      shared_.accepted.fetch_add(1, std::memory_order_relaxed);
      if (shared_.open.load(std::memory_order_relaxed) <
          static_cast<int64_t>(shared_.options.most_connections))
        begin(loop, std::move(socket));
      accept();
    });
  }

  void begin(Loop& loop, tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const auto peer = socket.remote_endpoint(ignored);
    std::string name =
        ignored ? "" : peer.address().to_string() + ":" + std::to_string(peer.port());
    asio::dispatch(loop.context, [this, &loop, name = std::move(name),
                                  socket = std::move(socket)]() mutable {
      if (shared_.stopping) return;
      if (shared_.tls)
        std::make_shared<Session<asio::ssl::stream<tcp::socket>>>(shared_, loop, std::move(name),
                                                                  std::move(socket), *shared_.tls)
            ->start();
      else
        std::make_shared<Session<tcp::socket>>(shared_, loop, std::move(name), std::move(socket))
            ->start();
    });
  }

  Shared shared_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::optional<tcp::acceptor> acceptor_;
  std::optional<asio::steady_timer> retry_;
  size_t next_ = 0;
  int port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, HttpHandler handler) {
  auto server = std::make_unique<Server>(std::move(options), std::move(handler));
  TRY_STATUS(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace obelisk::serve::door
