// The options of `glimpse serve` alone. Their defaults are server::Limits'; a test holds them to it.
#include <array>

#include "glimpse/cli/options.h"

namespace glimpse::cli {
namespace {

using A = Arguments;

constexpr std::string_view kServer = "Server", kLimits = "Limits";
constexpr double kMostCount = 65536, kMostSeconds = 86400, kMostBytes = 1 << 30, kMostWatched = 1LL << 40;

const std::array kServeOptions{
    Option{"--host", "ADDRESS", &A::host, {}, "127.0.0.1", kServer, "address to listen on", kServe},
    Option{"--port", "N", &A::port, {0, 65535}, "8080", kServer, "port to listen on; 0: one that is free", kServe},
    Option{"--slice-layers",
           "N",
           &A::slice_layers,
           {0, 1024},
           "0",
           kServer,
           "layers of a prompt's chunk between two tokens of the answers that stream; 0: all, in one pass with them",
           kServe},
    Option{"--api-key",
           "KEY",
           &A::api_key,
           {},
           "",
           kServer,
           "what a client must send as 'Authorization: Bearer KEY'; /health needs none. Others see a command line: "
           "GLIMPSE_ARG_API_KEY hides it",
           kServe},
    Option{"--insecure", "", &A::insecure, {}, "", kServer, "allow a --host that others reach, without a key", kServe},
    Option{"--allowed-hosts",
           "NAME",
           &A::allowed_hosts,
           {},
           "",
           kServer,
           "a name that requests may give as their Host, beside addresses and localhost; may be repeated",
           kServe},
    Option{"--cors-origins",
           "ORIGIN",
           &A::cors_origins,
           {},
           "",
           kServer,
           "web pages that may call, as https://example.org; may be repeated",
           kServe},
    Option{"-a,--alias", "NAME", &A::alias, {}, "", kServer, "the model's name; default: its file's", kServe},
    Option{"--parallel", "N", &A::parallel, {1, 1024}, "8", kServer, "requests worked on at a time", kServe},

    Option{"--max-body", "BYTES", &A::max_body, {1, kMostBytes}, "8388608", kLimits, "bytes of a body", kServe},
    Option{"--max-headers", "BYTES", &A::max_headers, {256, kMostBytes}, "16384", kLimits, "bytes of headers", kServe},
    Option{"--header-timeout",
           "S",
           &A::header_timeout,
           {1, kMostSeconds},
           "10",
           kLimits,
           "seconds from a request's first byte to its last header",
           kServe},
    Option{"--body-timeout", "S", &A::body_timeout, {1, kMostSeconds}, "30", kLimits, "seconds for a body", kServe},
    Option{"--idle-timeout",
           "S",
           &A::idle_timeout,
           {1, kMostSeconds},
           "75",
           kLimits,
           "seconds between two requests of a connection",
           kServe},
    Option{"--write-timeout",
           "S",
           &A::write_timeout,
           {1, kMostSeconds},
           "30",
           kLimits,
           "seconds for one write: a client that does not read is cut",
           kServe},
    Option{"--max-connections",
           "N",
           &A::max_connections,
           {1, kMostCount},
           "2048",
           kLimits,
           "open connections; one more cuts the one that is longest without a whole request",
           kServe},
    Option{"--max-waiting", "N", &A::max_waiting, {1, kMostCount}, "256", kLimits, "requests that wait", kServe},
    Option{"--max-depth", "N", &A::max_depth, {1, 512}, "64", kLimits, "nesting of a body's JSON", kServe},
    Option{"--max-n", "N", &A::max_n, {1, 1024}, "16", kLimits, "answers to a prompt, the field n", kServe},
    Option{"--max-viewers", "N", &A::max_viewers, {1, 1024}, "8", kLimits, "viewers of watched requests", kServe},
    Option{"--max-watched",
           "N",
           &A::max_watched,
           {1, 1024},
           "8",
           kLimits,
           "watched requests that are kept, those that have ended too",
           kServe},
    Option{"--watch-memory",
           "BYTES",
           &A::watch_memory,
           {1, kMostWatched},
           "67108864",
           kLimits,
           "bytes of steps that are kept of each; the oldest go",
           kServe},
    Option{"--max-prompts", "N", &A::max_prompts, {1, 1024}, "32", kLimits, "prompts of a request", kServe},
    Option{"--max-stops", "N", &A::max_stops, {1, 1024}, "16", kLimits, "stop strings of a request", kServe},
};

}  // namespace

std::span<const Option> serve_options() {
  return kServeOptions;
}

}  // namespace glimpse::cli
