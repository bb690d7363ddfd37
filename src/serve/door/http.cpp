#include "serve/door/http.h"

#include <zlib.h>

#include <cstring>

#include "serve/door/json.h"

namespace obelisk::serve::door {

HttpReply json_reply(std::string text) {
  HttpReply reply;
  reply.text = std::move(text);
  return reply;
}

HttpReply fault_reply(const Fault& fault) {
  HttpReply reply;
  reply.status = http_status(fault.cause);
  JsonWriter json;
  json.open('{').key("error").value(fault.message).close('}');
  reply.text = std::move(json.text);
  if (fault.retry_after) {
    // Whole seconds are all that the header can say.
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(*fault.retry_after).count();
    reply.headers.emplace_back("Retry-After", std::to_string(std::max<int64_t>(seconds, 0)));
  }
  if (fault.cause == Cause::kUnauthorized) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

const std::string* HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return &value;
  return nullptr;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t k = 0; k < text.size(); ++k) {
    if (text[k] != '%') {
      out += text[k];
      continue;
    }
    if (k + 2 >= text.size()) return std::nullopt;
    const int high = digit(text[k + 1]), low = digit(text[k + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    k += 2;
  }
  return out;
}

Maybe<Block> inflated(std::span<const std::byte> bytes, size_t most, size_t before) {
  z_stream stream{};
  // 32 more: gzip and zlib are told apart by their first bytes.
  if (inflateInit2(&stream, MAX_WBITS + 32) != Z_OK)
    return Fault{Cause::kInternal, "zlib does not start"};
  struct End {
    z_stream& stream;
    ~End() { inflateEnd(&stream); }
  } end{stream};
  std::string out;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  size_t given = 0;
  std::vector<char> piece(1 << 16);
  for (int status = Z_OK; status != Z_STREAM_END;) {
    if (stream.avail_in == 0 && given < bytes.size()) {
      const size_t next = std::min<size_t>(bytes.size() - given, 1u << 30);
      stream.avail_in = static_cast<uInt>(next);
      given += next;
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = inflate(&stream, Z_NO_FLUSH);
    const size_t made = piece.size() - stream.avail_out;
    if (status != Z_OK && status != Z_STREAM_END)
      return bad_request("the compressed body is damaged");
    if (out.size() + made > most)
      return Fault{
          Cause::kTooLarge,
          fmt::format("the body has more than the {} bytes that are allowed once it is inflated",
                      most)};
    out.append(piece.data(), made);
    if (status == Z_OK && made == 0 && stream.avail_in == 0 && given == bytes.size())
      return bad_request("the compressed body ends early");
  }
  Block block(out.size(), before);
  memcpy(block.data(), out.data(), out.size());
  return block;
}

}  // namespace obelisk::serve::door
