// Who may ask: the Host, the Origin, the key. Pure functions over a request's head; any thread.
//
// A web page of another site may make a browser send requests here. Its Origin gives it away, and so does the Host
// where its name was made to point to this address. A Host that is an address cannot be such a name.
#pragma once

#include <string>
#include <string_view>

#include "glimpse/server/http.h"
#include "glimpse/server/options.h"
#include "glimpse/server/routes.h"

namespace glimpse::server {

/// Throws UserError for an address that others reach without a key or `insecure`, with the cure, and for a key that no
/// client can send.
void check_posture(const ServerOptions& options);
bool is_loopback(std::string_view host);

/// Throws ApiError: 400 without a Host, 403 for one that is foreign, and for a foreign Origin.
void check_origin(const HttpHead& head, const ServerOptions& options);
/// Throws ApiError 401. /health and the page's files need no key.
void check_key(const HttpHead& head, Route route, const ServerOptions& options);
/// Throws ApiError 415 unless the body is JSON.
void check_content(const HttpHead& head);

/// The answer's fields for a web page that may call; none for any other caller.
void add_cors(HttpAnswer& answer, const HttpHead& head, const ServerOptions& options);
/// The answer to the browser's question before the request itself.
HttpAnswer preflight(const HttpHead& head);

}  // namespace glimpse::server
