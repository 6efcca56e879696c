// Who may ask: API keys, and web pages of other origins (CORS).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace quire::server {

// Whether the request brings one of the keys, as `Authorization: Bearer KEY` or `x-api-key: KEY`; true
// without keys. Takes the same time whichever key it is and however much of one is right.
bool has_key(const HttpRequest& request, std::span<const std::string> keys);

// Whether it is an origin as browsers write one (scheme://host or scheme://host:port in lower case, or null),
// or "*". Anything else would never be that of a page, or end the field of the answer.
bool is_cors_origin(std::string_view text);
// Fields of every answer that let pages of `origin` read it. Empty origin: none.
HttpFields cors_fields(const std::string& origin);
// The answer to OPTIONS on a path with these methods, and to a browser's preflight.
HttpAnswer options_answer(const HttpRequest& request, std::span<const std::string> methods,
                          const std::string& origin);
// "GET, HEAD, POST, OPTIONS"
std::string allow_value(std::span<const std::string> methods);

// The client's x-request-id when it is 1..128 printable characters without spaces; else empty.
std::string_view usable_request_id(std::string_view id);

}  // namespace quire::server
