// What a server is made with. Values; any thread. docs/server.md is the users' page.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "glimpse/engine/options.h"
#include "glimpse/text/logprobs.h"

namespace glimpse::server {

/// What a client may cost. Each has a flag of `glimpse serve`.
struct Limits {
  std::int64_t body_bytes = std::int64_t{8} << 20;
  std::int64_t header_bytes = std::int64_t{16} << 10;
  std::int64_t header_s = 10;  ///< from a request's first byte (or the connection's begin) to its last header
  std::int64_t body_s = 30;    ///< from there to the body's last byte
  std::int64_t idle_s = 75;    ///< between two requests of a connection
  std::int64_t write_s = 30;   ///< for one write: a reader that stalls for longer is cut
  std::int64_t connections = 2048;
  std::int64_t waiting = 256;  ///< requests that wait for the engine; and bodies that wait for a thread of the pool
  std::int64_t json_depth = 64;
  std::int64_t choices = 16;  ///< `n`
  std::int64_t prompts = 32;
  std::int64_t stops = 16;
  std::int64_t tools = 128;
  std::int64_t logprobs = text::kMostLogprobs;         ///< likeliest tokens beside each; no more than this
  std::int64_t schema_bytes = std::int64_t{64} << 10;  ///< of a schema, a grammar, or a tool's function
  std::int64_t schema_ms = 1000;                       ///< to make a grammar of a request's schemas
  std::int64_t viewers = 8;                            ///< of watched requests, together
  std::int64_t watched = 8;                            ///< requests whose steps are kept, those that have ended too
  std::int64_t watch_bytes = std::int64_t{64} << 20;   ///< of steps that are kept of each
};

/// A method as a request or the command line names it.
struct MethodWish {
  std::string policy = "full";  ///< or "auto"
  std::optional<std::string> budget;
  std::map<std::string, std::string> options;  ///< as --attn-opt has them; block, sink and local too
  std::optional<std::string> profile;          ///< a name under the folder of profiles; "none"; unset: the model's own
  /// Unset: from where the profile's times of this machine say that the method is faster; else 0.
  std::optional<std::int64_t> min_context;
};

struct ServerOptions {
  engine::EngineOptions engine;
  std::string host = "127.0.0.1";    ///< an address, or localhost
  int port = 8080;                   ///< 0: one that is free
  std::string api_key;               ///< empty: none is asked for
  bool insecure = false;             ///< an address that others reach, without a key
  std::vector<std::string> hosts;    ///< names that a request's Host may have, beside addresses and localhost
  std::vector<std::string> origins;  ///< of web pages that may call, as "https://example.org"
  Limits limits;
  int running = 8;  ///< requests that the engine works on at a time
  std::string model_name;
  std::string program;                     ///< its name and version, as clients are told it; empty: they are not
  std::string processor;                   ///< the CPU's name as profiles have it: whose times `auto` chooses by
  std::filesystem::path profile_folder;    ///< empty: no profile is looked for
  MethodWish method;                       ///< of requests that name none
  std::chrono::milliseconds ping{15'000};  ///< a stream in which nothing came for so long gets a comment
  bool signals = false;                    ///< SIGINT and SIGTERM stop the server
  std::function<void()> on_ready;          ///< the model is loaded; on the server's thread
};

}  // namespace glimpse::server
