#include "tests/server/soak_load.h"

#include <gtest/gtest.h>

namespace glimpse::server {
namespace {

/// 30 % are cancelled, 10 % are bad, 5 % stall.
constexpr unsigned kCancelled = 30, kBad = kCancelled + 10, kStalled = kBad + 5;
constexpr int kContext = 1024;  ///< at most; a longer prompt is refused

bool chance(std::mt19937& random, unsigned odds) {
  return random() % odds == 0;
}

/// Token ids: some begin alike, so that prefixes are found.
std::vector<int> prompt_of(std::mt19937& random) {
  const unsigned document = random() % 6, length = 8 + random() % 250;
  std::vector<int> ids;
  for (unsigned i = 0; i < length; ++i) ids.push_back(static_cast<int>(10 + (i * i + i * document) % 200));
  ids.push_back(static_cast<int>(10 + random() % 200));
  return ids;
}

std::string completion(const JsonValue& body) {
  return request_text("POST", "/v1/completions", body.dump());
}

constexpr const char* kTools = R"([{"type": "function", "function": {"name": "tide", "parameters": {"type": "object",
  "properties": {"hour": {"type": "integer"}}, "required": ["hour"]}}}])";

/// What an answer must look like: a grammar, or a schema where `process` may be started for it.
void add_shape(std::mt19937& random, JsonValue& asked, bool process) {
  if (process && chance(random, 3)) {
    asked["json_schema"] = {{"type", "object"}, {"properties", {{"town", {{"type", "string"}, {"maxLength", 9}}}}}};
  } else if (chance(random, 2)) {
    asked["response_format"] = {{"type", "json_object"}};
  } else {
    constexpr const char* kGrammars[] = {"root ::= [a-z]{3} (\",\" [a-z ]+){2,5}", "root ::= \"\"",
                                         "root ::= \"a\" root \"b\" | [0-9]+", "root ::= .*"};
    asked["grammar"] = kGrammars[random() % 4];
  }
}

/// The id in a chunk of events.
std::string id_in(const std::string& chunk) {
  const std::vector<std::string> events = events_of(chunk);
  return events.empty() ? "" : JsonValue::parse(events.front()).value("id", "");
}

}  // namespace

SoakLoad::SoakLoad(const Running& server, std::vector<std::string> policies, bool chat)
    : server_(server), policies_(std::move(policies)), chat_(chat) {}

void SoakLoad::one(int number) {
  Random random(static_cast<unsigned>(number) * 7919U + 1);
  const unsigned kind = random() % 100;
  if (kind < kCancelled) {
    ++counts_.cancelled;
    cancel(random);
  } else if (kind < kBad) {
    ++counts_.bad;
    bad(random);
  } else if (kind < kStalled) {
    ++counts_.stalled;
    stall(random);
  } else {
    ++counts_.whole;
    whole(random);
  }
}

JsonValue SoakLoad::body(Random& random, int most_tokens) const {
  const std::string policy = policies_[random() % policies_.size()];
  JsonValue attention{{"policy", policy}};
  JsonValue out{{"prompt", prompt_of(random)},
                {"temperature", static_cast<int>(random() % 2)},
                {"seed", random()},
                {"ignore_eos", chance(random, 2)},
                {"stream", chance(random, 2)}};
  out["max_tokens"] = 1 + static_cast<int>(random() % static_cast<unsigned>(most_tokens));
  constexpr const char* kReuse[] = {"exact", "dense", "any", "none"};
  attention["reuse"] = kReuse[random() % 4];
  if (policy != "full") {
    attention["budget"] = 64;
    const bool audit = chance(random, 6);
    if (audit && policy == "tidal") attention["audit"] = 3;                // not of methods that read everything here
    if (policy == "tidal" && chance(random, 2)) attention["correct"] = 4;  // not of methods that forget
  }
  if (chance(random, 6)) {
    attention["watch"] = true;
  } else if (chance(random, 6)) {
    out["n"] = 2;
  }
  if (chance(random, 6)) out["logprobs"] = 3;
  if (chance(random, 6)) out["stop"] = {"a", "the "};
  if (chance(random, 4)) add_shape(random, out, chat_);
  if (chance(random, 8)) out["cache_salt"] = std::to_string(random() % 3);
  out["attention"] = std::move(attention);
  return out;
}

void SoakLoad::whole(Random& random) {
  Client client = server_.client();
  if (chance(random, 10)) {
    constexpr const char* kPaths[] = {"/", "/props", "/v1/models", "/v1/requests", "/metrics", "/tokenizer_info"};
    EXPECT_EQ(client.get(kPaths[random() % 6]).status, 200);
    EXPECT_EQ(client.post("/tokenize", {{"prompt", "the river was high"}}).status, 200);
    return;
  }
  const bool chat = chat_ && chance(random, 8);
  JsonValue asked = body(random, 24);
  if (chat) {
    asked.erase("prompt");
    asked.erase("logprobs");
    asked["messages"] = {{{"role", "user"}, {"content", "where is the river?"}}};
    const bool shaped = asked.contains("grammar") || asked.contains("json_schema") || asked.contains("response_format");
    if (!shaped) {
      asked["tools"] = JsonValue::parse(kTools);
      asked["tool_choice"] = chance(random, 2) ? "required" : "auto";
    }
  }
  const Reply reply = client.post(chat ? "/v1/chat/completions" : "/v1/completions", asked);
  if (reply.status == 429) return;  // as many are watched as may be
  ASSERT_EQ(reply.status, 200) << reply.body << asked;
  if (!asked["stream"].get<bool>()) {
    EXPECT_EQ(reply.json()["choices"].size(), asked.value("n", 1));
    return;
  }
  const std::vector<std::string> events = events_of(reply.body);
  ASSERT_GE(events.size(), 2) << reply.body;
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_FALSE(JsonValue::parse(events[events.size() - 2]).contains("error")) << reply.body;
}

void SoakLoad::cancel(Random& random) {
  JsonValue asked = body(random, 600);
  const std::string bytes = completion(asked);
  Client client = server_.client();
  switch (random() % 4) {
    case 0:  // anywhere in the request
      client.send(bytes.substr(0, random() % bytes.size()));
      break;
    case 1:
      client.send(bytes);
      break;
    case 2:  // a little later
      client.send(bytes);
      EXPECT_EQ(server_.get("/health").status, 200);
      break;
    default:
      cancel_stream(random);
  }
}

/// Begins a stream, reads some of it, perhaps has a viewer, and leaves, or has it cancelled by its id.
void SoakLoad::cancel_stream(Random& random) {
  JsonValue asked = body(random, 600);
  asked["stream"] = true;
  Client client = server_.client();
  client.send(completion(asked));
  if (client.read_head().status != 200) return;
  std::string chunk = client.read_chunk();
  const std::string path = "/v1/requests/" + id_in(chunk);
  Client other = server_.client();
  const bool views = asked["attention"].contains("watch");
  if (views) other.send(request_text("GET", path + "/events?bins=64"));
  for (unsigned left = random() % 12; left > 0 && !chunk.empty(); --left) chunk = client.read_chunk();
  if (views || chance(random, 2)) {
    if (chance(random, 2)) other.close();  // before its request or behind it
    return;
  }
  other.send(request_text("DELETE", path));
  const int status = other.read().status;
  EXPECT_TRUE(status == 200 || status == 404) << status;
  std::string last = chunk;
  for (; !chunk.empty(); chunk = client.read_chunk()) last = chunk;
  if (last.empty()) return;
  EXPECT_EQ(events_of(last).back(), "[DONE]");
}

void SoakLoad::bad(Random& random) {
  JsonValue asked = body(random, 24);
  Client client = server_.client();
  int status = 400;
  switch (random() % 11) {
    case 9:
      asked.erase("json_schema");
      asked.erase("response_format");
      asked["grammar"] = "root ::= (";
      client.send(completion(asked));
      break;
    case 0:
      client.send("GARBAGE\r\n\r\n");
      break;
    case 1: {
      const std::string whole = asked.dump();
      client.send(request_text("POST", "/v1/completions", whole.substr(0, whole.size() - 1)));
      break;
    }
    case 2:
      asked["attention"]["policy"] = "nobody";
      client.send(completion(asked));
      break;
    case 3:
      asked["max_tokens"] = -1;
      client.send(completion(asked));
      break;
    case 4:
      asked["prompt"] = std::vector<int>(kContext + 1, 7);
      client.send(completion(asked));
      break;
    case 5:
      client.send(request_text("GET", "/nowhere"));
      status = 404;
      break;
    case 6:
      client.send(request_text("DELETE", "/v1/requests/cmpl-0"));
      status = 404;
      break;
    case 7:
      client.send(request_text("DELETE", "/health"));
      status = 405;
      break;
    case 8:
      client.send(request_text("POST", "/v1/completions", asked.dump(), "Content-Type: text/plain\r\n"));
      status = 415;
      break;
    default:
      client.send(request_text("POST", "/v1/completions", asked.dump(), "Host: elsewhere.example\r\n"));
      status = 403;
  }
  EXPECT_EQ(client.read().status, status);
}

void SoakLoad::stall(Random& random) {
  JsonValue asked = body(random, 24);
  const std::string bytes = completion(asked);
  Client client = server_.client();
  int status = 408;
  switch (random() % 4) {
    case 0:
      client.send(bytes.substr(0, 30));
      break;
    case 1:
      client.send(bytes.substr(0, bytes.size() - 5));
      break;
    case 2: {  // more of an answer than sockets hold
      const JsonValue large{
          {"prompt", std::string(160 << 10, 'e')}, {"with_pieces", true}, {"return_token_strs", true}};
      client.send(request_text("POST", "/tokenize", large.dump()));
      status = 0;
      break;
    }
    default:  // the answer lies in the sockets
      client.send(bytes);
      status = 0;
  }
  const std::lock_guard lock(mutex_);
  stalled_.emplace_back(std::move(client), status);
}

void SoakLoad::end_stalled() {
  const std::lock_guard lock(mutex_);
  for (auto& [client, status] : stalled_) {
    if (status == 0) continue;
    EXPECT_EQ(client.read().status, status);
  }
  stalled_.clear();
}

}  // namespace glimpse::server
