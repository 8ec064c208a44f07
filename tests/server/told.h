// A request as the engine itself tells of it: the lines that `glimpse run --trace` would write, made without the
// server's or the program's code. One thread.
#pragma once

#include <string>
#include <vector>

#include "glimpse/engine/engine.h"
#include "tests/server/client.h"

namespace glimpse::server {

struct Told {
  std::vector<JsonValue> steps;  ///< {heads, bytes_read, index_bytes, dense_bytes}; heads as a trace's lines
  std::vector<text::Token> tokens;
  std::vector<std::string> texts;  ///< of prompt and answer, by position
};

/// Runs the request, greedy.
Told told_by_engine(engine::Engine& engine, engine::Request request);

}  // namespace glimpse::server
