// A request and an answer of HTTP/1.1 as plain values; connection.cc moves their bytes. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace glimpse::server {

/// What is known when the headers are there. Names of fields are HTTP's; one that is missing is empty.
struct HttpHead {
  std::string method, target;
  std::string host, origin, authorization, content_type, request_id;
  bool http_11 = true;
  bool has_host = false, has_origin = false;
  /// The target without its query.
  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
};

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields;
};

/// How a client knows where a body ends: by its length (`body` is all of it), by its last chunk, or by the connection's
/// end.
enum class BodyEnd : std::uint8_t { length, chunk, connection };

struct Framing {
  bool keep = true;  ///< the connection goes on behind the answer
  BodyEnd end = BodyEnd::length;
};

/// Status line and fields, to the empty line. `fields` of the answer come as they are: no line ends in them.
std::string head_text(const HttpAnswer& answer, const Framing& framing);
/// One chunk of a body; an empty one ends it.
std::string chunk_text(std::string_view bytes);

/// An id that a client gave, if it may be echoed: at most 128 visible ASCII characters. Else empty.
std::string_view echo_of(std::string_view request_id);

}  // namespace glimpse::server
