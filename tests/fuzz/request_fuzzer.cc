// Bodies of requests, from their text to the last event of the answer of a tiny model: each is answered in JSON or
// refused as the client's mistake; anything else is a finding. Mutations put fields and values together. The corpus
// starts from what request_seeds writes.
//
// The first byte of an input says what is asked.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "glimpse/base/error.h"
#include "glimpse/server/hub.h"
#include "tests/fuzz/model_recipe.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using namespace glimpse;
using namespace glimpse::server;

constexpr std::int64_t kMostTokens = 6;  ///< of an answer: a pass under sanitizers takes a while

constexpr const char* kWords[] = {R"("model":)",
                                  R"("messages":[{"role":"user","content":"ab"}])",
                                  R"("prompt":)",
                                  R"("max_tokens":)",
                                  R"("max_completion_tokens":)",
                                  R"("min_tokens":)",
                                  R"("ignore_eos":)",
                                  R"("temperature":)",
                                  R"("top_p":)",
                                  R"("top_k":)",
                                  R"("min_p":)",
                                  R"("seed":)",
                                  R"("n":)",
                                  R"("stop":)",
                                  R"("presence_penalty":)",
                                  R"("frequency_penalty":)",
                                  R"("repetition_penalty":)",
                                  R"("logit_bias":)",
                                  R"("logprobs":)",
                                  R"("top_logprobs":)",
                                  R"("echo":)",
                                  R"("stream":)",
                                  R"("stream_options":)",
                                  R"("include_usage":)",
                                  R"("cache_salt":)",
                                  R"("attention":)",
                                  R"("policy":)",
                                  R"("budget":)",
                                  R"("opt":)",
                                  R"("profile":)",
                                  R"("min_ctx":)",
                                  R"("lossless":)",
                                  R"("correct":)",
                                  R"("audit":)",
                                  R"("reuse":)",
                                  R"("watch":)",
                                  R"("tools":)",
                                  R"("tool_choice":)",
                                  R"("parallel_tool_calls":)",
                                  R"("json_schema":{"type":"integer"})",
                                  R"("chat_template_kwargs":{"a":1})",
                                  R"("root ::= [ab]{2} root?")",
                                  R"([{"type":"function","function":{"name":"f","parameters":{}}}])",
                                  R"({"role":"tool","content":"a","tool_call_id":"b"})",
                                  R"("tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}])",
                                  R"("response_format":)",
                                  R"("grammar":)",
                                  R"("tokens":)",
                                  R"("with_pieces":)",
                                  R"("return_token_strs":)",
                                  R"("add_special_tokens":)",
                                  R"("content":)",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  "{}",
                                  "[]",
                                  "[[1,2],[3]]",
                                  R"({"3":5})",
                                  R"({"-1":1})",
                                  R"({"block":1})",
                                  R"({"sink":"0"})",
                                  R"([{"type":"text","text":"a"}])",
                                  "null",
                                  "true",
                                  "false",
                                  "0",
                                  "-1",
                                  "1",
                                  "2",
                                  "3",
                                  "12",
                                  "0.5",
                                  "1e-40",
                                  "1e308",
                                  "1e999",
                                  "-0.0",
                                  "4294967295",
                                  "9223372036854775807",
                                  "18446744073709551616",
                                  R"("")",
                                  R"("a")",
                                  R"("ab cd")",
                                  R"("\u0000")",
                                  R"("\ud83d\ude00")",
                                  R"("<|im_end|>")",
                                  R"("full")",
                                  R"("tidal")",
                                  R"("quest")",
                                  R"("h2o")",
                                  R"("streaming")",
                                  R"("auto")",
                                  R"("64")",
                                  R"("10%")",
                                  R"("p=0.9")",
                                  R"("coverage=0.98")",
                                  R"("tau=1e-4")",
                                  R"("exact")",
                                  R"("any")",
                                  R"("none")",
                                  R"("../a")",
                                  "\xff"};

void require(bool holds) {
  if (!holds) std::abort();
}

std::string memory_file(const std::vector<std::byte>& bytes) {
  const int file = ::memfd_create("fuzzed", MFD_CLOEXEC);
  require(file >= 0 && ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  return "/proc/self/fd/" + std::to_string(file);
}

ServerOptions options_of_server() {
  fuzz::Choices plain({});
  ServerOptions options;
  options.engine.model = memory_file(fuzz::ModelRecipe(plain).bytes);
  options.engine.threads = 1;
  options.engine.context = 128;
  options.engine.prefix_bytes = 1 << 16;
  options.running = 2;
  options.model_name = "a";
  options.limits.choices = options.limits.prompts = 2;
  options.limits.watched = 1;
  return options;
}

struct Shared {
  Shared() {
    hub.emplace(Hub{options_of_server(), io, pool, {}, false, 0, {}, {}, {}, {}});
    hub->backend = std::make_unique<const Backend>(hub->options);
  }
  boost::asio::io_context io{1};
  boost::asio::thread_pool pool{1};
  std::optional<Hub> hub;
};

/// Events that wait.
struct News {
  std::mutex mutex;
  std::condition_variable told;
  bool there = false;
};

void require_json(std::string_view text) {
  require(!nlohmann::json::parse(text, nullptr, false).is_discarded());
}

void require_events(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find("\n\n");
    require(text.starts_with("data: ") && end != std::string_view::npos);
    const std::string_view one = text.substr(6, end - 6);
    if (one != "[DONE]") require_json(one);
    text.remove_prefix(end + 2);
  }
}

void generate(Hub& hub, FieldPlace place, std::string_view body) {
  Prepared prepared = prepare(body, place, *hub.backend, hub.options.limits);
  for (engine::Request& request : prepared.requests) {
    request.max_tokens = request.max_tokens < 0 ? kMostTokens : std::min(request.max_tokens, kMostTokens);
    request.min_tokens = std::min(request.min_tokens, request.max_tokens);
  }
  const auto news = std::make_shared<News>();
  const auto answer = submit(hub, prepared, [news] {
    const std::lock_guard lock(news->mutex);
    news->there = true;
    news->told.notify_one();
  });
  while (!answer->ended() && !answer->failure()) {
    std::unique_lock lock(news->mutex);
    news->told.wait(lock, [&] { return news->there; });
    news->there = false;
    lock.unlock();
    collect(hub, *answer);
    if (prepared.stream) require_events(answer->events());
  }
  hub.live.erase(answer->head().id);
  if (answer->failure()) throw ApiError(*answer->failure());
  if (!prepared.stream) require_json(answer->whole());
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  std::minstd_rand random(seed);
  if (random() % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  std::string text(reinterpret_cast<const char*>(data), size);
  for (unsigned i = 0, count = 1 + random() % 4; i < count; ++i) {
    const std::size_t at = random() % (text.size() + 1);
    const std::string_view word = kWords[random() % std::size(kWords)];
    const std::size_t value = text.find(':', at);
    if (random() % 3 == 0 || value == std::string::npos) {
      text.insert(at, word);
    } else {  // another value of a field
      const std::size_t end = std::min(text.find_first_of(",}", value), text.size());
      text.replace(value + 1, end - value - 1, word);
    }
  }
  text.resize(std::min(text.size(), most));
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Shared shared;
  if (size == 0) return 0;
  Hub& hub = *shared.hub;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 6) {
      case 0:
        generate(hub, kInChat, body);
        break;
      case 1:
        require_json(text_work(hub, Route::tokenize, body)());
        break;
      case 2:
        require_json(text_work(hub, Route::detokenize, body)());
        break;
      case 3:
        require_json(text_work(hub, Route::apply_template, body)());
        break;
      default:
        generate(hub, kInCompletion, body);
    }
  } catch (...) {
    const ApiError error = error_of(std::current_exception());
    // A grammar that the tiny vocabulary cannot write ends a request that has begun.
    const bool stuck = error.status == 500 && std::string_view(error.what()).find("grammar") != std::string_view::npos;
    require(stuck || (error.status >= 400 && error.status < 500));
    require_json(error_json(error));
  }
  return 0;
}
