#pragma once
// Who may call: API keys, and which web pages may read the answers (CORS).
//
// Pure functions on values; any thread.

#include <string>
#include <vector>

#include "server/http_types.h"

namespace k3::server {

/// Whether `authorization` (the header's value, or null) is "Bearer KEY" with one of `keys`. The
/// time it takes depends on the lengths alone, not on how far or with which key it agrees.
bool HasApiKey(const std::vector<std::string>& keys, const std::string* authorization);

/// The headers of any answer to `request` that let the page which sent it read the answer. Empty
/// when it comes from no page or from one that is not among `origins`.
HttpHeaders CorsHeaders(const std::vector<std::string>& origins, const HttpRequest& request);

/// Whether `request` may have an effect: not if a web page sends it whose origin is not among
/// `origins`. A browser sends simple POSTs of any page to any address without asking first, also to
/// a server that only listens on this machine.
bool MayAct(const std::vector<std::string>& origins, const HttpRequest& request);

/// What a preflight's answer has besides. Empty when `request` is no preflight.
HttpHeaders PreflightHeaders(const HttpRequest& request);

}  // namespace k3::server
