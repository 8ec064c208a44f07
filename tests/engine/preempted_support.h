// What tests of requests that do not fit together share: small requests of any method, engines with little room, and
// a folder of the test's own.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "tests/engine/gates.h"
#include "tests/engine/support.h"

namespace glimpse::engine {

struct Kind {
  std::string name, policy;
  bool lossless = false;
  std::int64_t correct_every = 0;
  std::map<std::string, std::string> extra = {};
};

inline void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

inline Request request_of(const Engine& engine, const Kind& kind, std::size_t prompt, std::uint32_t seed) {
  Request request;
  request.prompt = random_tokens(prompt, engine.tokenizer().size(), seed);
  policies::PolicyOptions how = kind.policy == "full" ? policies::PolicyOptions{} : budget("64", kind.extra);
  if (kind.policy != "full") add_needed(kind.policy, reference::test_model("llama"), how);
  request.plan = make(engine, kind.policy, how);
  request.ignore_end = true;
  request.lossless = kind.lossless;
  request.draft_tokens = kind.lossless ? 3 : 0;  // with the row of another request: as many as have the bits of one row
  request.correct_every = kind.correct_every;
  return request;
}

/// One of the method full, of so many tokens to prefill and to generate.
inline Request full_request(const Engine& engine, std::size_t prompt, std::int64_t tokens, std::uint32_t seed) {
  Request request = request_of(engine, {"full", "full"}, prompt, seed);
  request.max_tokens = tokens;
  return request;
}

inline EngineOptions with_room_for(std::int64_t tokens) {
  EngineOptions options = options_for(reference::test_model("llama"), KvType::bf16);
  options.context = tokens;
  options.sequences = 1;
  options.prefill_chunk = 128;
  return options;
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("preempted" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace glimpse::engine
