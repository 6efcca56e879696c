// What the engine and the session say of a request, for a client of the server. Their messages name the
// program's flags in brackets, after words that do without: "give the KV cache more memory (--kv-memory 2G or
// more)". A client has no flags, so those brackets go.
#pragma once

#include <string>
#include <string_view>

namespace quire::server {

std::string client_words(std::string_view message);

}  // namespace quire::server
