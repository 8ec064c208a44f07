// Answers over HTTP are those of the engine for the same prompt and options, in OpenAI's shapes.
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "glimpse/engine/engine.h"
#include "glimpse/plan/profile_file.h"
#include "glimpse/policies/policy.h"
#include "tests/server/client.h"

namespace glimpse::server {
namespace {

using engine::Engine;

constexpr const char* kText = "the river was high and the fox went to the market ";

std::string long_text(int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += kText;
  return text;
}

struct Method {
  const char* policy;
  int budget;
};

/// What the engine alone makes of a prompt, greedy.
struct Alone {
  explicit Alone(const std::string& model = "llama") : engine(small_options(model).engine) {}

  engine::Result run(std::vector<text::Token> prompt, const Method& method, std::int64_t tokens) {
    engine::Request request;
    request.prompt = std::move(prompt);
    policies::PolicyOptions options;
    if (method.budget > 0) options.budget = plan::parse_budget(std::to_string(method.budget));
    request.plan = policies::make_plan(method.policy, engine.shape(), options);
    request.max_tokens = tokens;
    const engine::RequestId id = engine.submit(std::move(request));
    while (engine.step()) {
    }
    return engine.result(id);
  }
  std::string text_of(const engine::Result& result) const {
    text::Utf8Stream utf8;
    std::string text;
    for (const text::Token token : result.tokens) text += utf8.push(engine.tokenizer().piece(token));
    return text + utf8.finish();
  }
  std::vector<text::Token> tokens(const std::string& text) const {
    return engine.tokenizer().encode(text, text::Special::as_tokens, true);
  }

  Engine engine;
};

JsonValue attention_of(const Method& method) {
  JsonValue attention{{"policy", method.policy}};
  if (method.budget > 0) attention["budget"] = method.budget;
  return attention;
}

std::string streamed_text(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const JsonValue json = JsonValue::parse(event);
    for (const JsonValue& choice : json["choices"]) text += choice["text"].get<std::string>();
  }
  return text;
}

TEST(Answers, FourMethodsStreamedAtOnceAreThoseAlone) {
  const Running server(small_options());
  constexpr Method kMethods[] = {{"full", 0}, {"tidal", 32}, {"quest", 64}, {"streaming", 48}};
  std::vector<Client> clients;
  for (const Method& method : kMethods) {
    clients.push_back(server.client());
    clients.back().send(request_text("POST", "/v1/completions",
                                     JsonValue{{"prompt", long_text(12)},
                                               {"max_tokens", 24},
                                               {"temperature", 0},
                                               {"stream", true},
                                               {"attention", attention_of(method)}}
                                         .dump()));
  }
  Alone alone;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    const Reply reply = clients[i].read();
    ASSERT_EQ(reply.status, 200) << reply.body;
    const engine::Result wanted = alone.run(alone.tokens(long_text(12)), kMethods[i], 24);
    EXPECT_EQ(streamed_text(events_of(reply.body)), alone.text_of(wanted)) << kMethods[i].policy;
    const std::vector<std::string> events = events_of(reply.body);
    const JsonValue last = JsonValue::parse(events.at(events.size() - 2));
    EXPECT_EQ(last["glimpse"]["policy"], kMethods[i].policy);
    EXPECT_NEAR(last["glimpse"]["kept_ratio"], wanted.stats.attention.kept_ratio(), 1e-9);
    EXPECT_EQ(last["glimpse"]["kv_bytes_read"], wanted.stats.attention.bytes_read);
    EXPECT_EQ(last["glimpse"]["kept_ratio"]<1.0, kMethods[i].budget> 0);
  }
}

TEST(Answers, AChatIsTheTemplatesPrompt) {
  const Running server(small_options());
  const JsonValue body{
      {"model", "small"},
      {"messages",
       {{{"role", "developer"}, {"content", "Be brief."}},
        {{"role", "user"},
         {"content", {{{"type", "text"}, {"text", "what is"}}, {{"type", "text"}, {"text", "the number"}}}}}}},
      {"max_completion_tokens", 12},
      {"temperature", 0},
      {"user", "somebody"},
      {"top_k", nullptr}};
  const Reply reply = server.post("/v1/chat/completions", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  Alone alone;
  const std::vector<text::ChatMessage> messages{{"system", "Be brief."}, {"user", "what is\nthe number"}};
  const auto prompt = alone.engine.tokenizer().apply_chat(messages, true);
  const engine::Result wanted = alone.run(prompt, {"full", 0}, 12);
  const JsonValue json = reply.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "small");
  EXPECT_EQ(json["choices"].size(), 1u);
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], alone.text_of(wanted));
  EXPECT_EQ(json["usage"]["prompt_tokens"], prompt.size());
  EXPECT_EQ(json["usage"]["completion_tokens"], wanted.stats.generated_tokens);
  EXPECT_EQ(json["usage"]["total_tokens"], static_cast<std::int64_t>(prompt.size()) + wanted.stats.generated_tokens);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(json["ignored"], JsonValue::array({"user"}));
  EXPECT_EQ(json["glimpse"]["policy"], "full");
  EXPECT_TRUE(json["glimpse"]["coverage_mean"].is_null());
}

TEST(Answers, AStreamHasOpenAisEvents) {
  const Running server(small_options());
  const Reply reply = server.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                                                           {"max_tokens", 8},
                                                           {"temperature", 0},
                                                           {"stream", true},
                                                           {"stream_options", {{"include_usage", true}}}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.fields.at("content-type"), "text/event-stream");
  const std::vector<std::string> events = events_of(reply.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::vector<JsonValue> chunks;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) chunks.push_back(JsonValue::parse(events[i]));
  EXPECT_EQ(chunks.front()["choices"][0]["delta"], (JsonValue{{"role", "assistant"}, {"content", ""}}));
  for (const JsonValue& chunk : chunks) {
    EXPECT_EQ(chunk["id"], chunks.front()["id"]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["usage"].is_null(), &chunk != &chunks.back());
  }
  const JsonValue& end = chunks[chunks.size() - 2];
  EXPECT_EQ(end["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(end["choices"][0]["delta"], JsonValue::object());
  EXPECT_EQ(chunks.back()["choices"], JsonValue::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 8);
  EXPECT_EQ(chunks.back()["glimpse"]["policy"], "full");
}

TEST(Answers, PromptsMayBeTextsOrIdsAndHaveSeveralChoices) {
  const Running server(small_options());
  Alone alone;
  const auto ids = alone.tokens("the river was high");
  const auto others = alone.tokens("she said that it would be");
  const std::string first = alone.text_of(alone.run(ids, {"full", 0}, 6));
  const std::string second = alone.text_of(alone.run(others, {"full", 0}, 6));
  const auto texts = [&](const JsonValue& prompt, int n) {
    const Reply reply =
        server.post("/v1/completions", {{"prompt", prompt}, {"n", n}, {"max_tokens", 6}, {"temperature", 0}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    const JsonValue json = reply.json();
    EXPECT_EQ(json["object"], "text_completion");
    std::vector<std::string> out;
    for (const JsonValue& choice : json["choices"]) {
      EXPECT_EQ(choice["index"], out.size());
      out.push_back(choice["text"]);
    }
    const auto prompts = static_cast<std::int64_t>(out.size()) / n;
    EXPECT_EQ(json["usage"]["completion_tokens"], 6 * static_cast<std::int64_t>(out.size()));
    EXPECT_GE(json["usage"]["prompt_tokens"], prompts) << "each prompt counts once";
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts("the river was high", 1), (Texts{first}));
  EXPECT_EQ(texts(ids, 2), (Texts{first, first}));
  EXPECT_EQ(texts({"the river was high", "she said that it would be"}, 1), (Texts{first, second}));
  EXPECT_EQ(texts({ids, others}, 2), (Texts{first, first, second, second}));
  EXPECT_EQ(texts(JsonValue::array({"the river was high", others}), 1), (Texts{first, second}));
}

TEST(Answers, ASeedGivesTheSameAnswerAndChoicesDiffer) {
  const Running server(small_options());
  const JsonValue body{{"prompt", "the"}, {"max_tokens", 20}, {"temperature", 2}, {"seed", 5}, {"n", 3}};
  const JsonValue one = server.post("/v1/completions", body).json(), two = server.post("/v1/completions", body).json();
  EXPECT_EQ(one["choices"], two["choices"]);
  EXPECT_NE(one["choices"][0]["text"], one["choices"][1]["text"]);
  EXPECT_NE(one["id"], two["id"]);
}

TEST(Answers, ASeedOfMinusOneIsARandomOne) {
  const Running server(small_options());
  const JsonValue body{{"prompt", "the"}, {"max_tokens", 40}, {"temperature", 2}, {"seed", -1}};
  EXPECT_NE(server.post("/v1/completions", body).json()["choices"],
            server.post("/v1/completions", body).json()["choices"]);
}

TEST(Answers, AStopStringEndsAnAnswer) {
  const Running server(small_options());
  const JsonValue body{{"prompt", "the river"}, {"max_tokens", 24}, {"temperature", 0}};
  const std::string text = server.post("/v1/completions", body).json()["choices"][0]["text"];
  ASSERT_GT(text.size(), 12u);
  const std::string stop = text.substr(text.find_first_of("aeiou"), 3);  // in the middle of a token
  JsonValue stopped = body;
  stopped["stop"] = {stop, "never to come"};
  const JsonValue choice = server.post("/v1/completions", stopped).json()["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST(Answers, AttentionsFieldsReachTheEngine) {
  const Running server(small_options());
  const auto answer = [&](JsonValue attention) {
    const Reply reply = server.post(
        "/v1/completions",
        {{"prompt", long_text(8)}, {"max_tokens", 16}, {"temperature", 0}, {"attention", std::move(attention)}});
    if (reply.status != 200) throw std::runtime_error(reply.body);
    return reply.json();
  };
  const JsonValue dense = answer(JsonValue::object());
  const JsonValue lossless = answer({{"policy", "tidal"}, {"budget", 16}, {"lossless", 3}});
  EXPECT_EQ(lossless["choices"], dense["choices"]);
  EXPECT_EQ(lossless["glimpse"]["policy"], "tidal");
  const JsonValue audited =
      answer({{"policy", "tidal"}, {"budget", "10%"}, {"audit", 4}, {"opt", {{"reselect", "none"}}}});
  EXPECT_GT(audited["glimpse"]["coverage_mean"], 0.0);
  EXPECT_LE(audited["glimpse"]["coverage_min"], audited["glimpse"]["coverage_mean"]);
  const JsonValue minimum = answer({{"policy", "tidal"}, {"budget", 16}, {"min_ctx", 4000}});
  EXPECT_EQ(minimum["choices"], dense["choices"]) << "dense while shorter";
  answer({{"policy", "quest"}, {"budget", 48}, {"correct", 8}, {"profile", "none"}});
}

TEST(Answers, TheServersOwnMethodIsTheDefault) {
  ServerOptions options = small_options();
  options.method.policy = "tidal";
  options.method.budget = "32";
  const Running server(std::move(options));
  const JsonValue body{{"prompt", long_text(8)}, {"max_tokens", 12}, {"temperature", 0}};
  const JsonValue own = server.post("/v1/completions", body).json();
  EXPECT_EQ(own["glimpse"]["policy"], "tidal");
  JsonValue less = body, full = body;
  less["attention"] = {{"budget", 16}};
  full["attention"] = {{"policy", "full"}};
  const JsonValue changed = server.post("/v1/completions", less).json();
  EXPECT_EQ(changed["glimpse"]["policy"], "tidal");
  EXPECT_LT(changed["glimpse"]["kept_ratio"], own["glimpse"]["kept_ratio"]);
  EXPECT_EQ(server.post("/v1/completions", full).json()["glimpse"]["kept_ratio"], 1.0);
}

TEST(Answers, AMethodIsDenseWhereTheProfilesTimesSayThatItIsSlower) {
  ServerOptions options = small_options();
  options.processor = "P";
  options.profile_folder = testing::TempDir() + "profiles-of-times";
  std::filesystem::create_directories(options.profile_folder);
  const Engine engine(options.engine);
  plan::Profile profile = plan::empty_profile(engine.shape());
  profile.roles = plan::RolesProfile{{1, 1, 0, 0, 0, 0, 0, 0}};
  profile.speed = plan::SpeedProfile{"P", engine.threads(), "f32", 2000, {10, 10}, {15, 10}, {}};
  profile.speed->methods = {{"lychee-decode", "16", "", {12, 0}}};  // faster from 201 tokens on
  plan::save_profile(plan::profile_path(options.profile_folder, engine.fingerprint()), profile);
  const Running server(options);
  options.processor = "Q";
  const Running another(options);
  const auto kept = [](const Running& on, int times, JsonValue more = JsonValue::object()) {
    JsonValue attention{{"policy", "lychee-decode"}, {"budget", 16}};
    attention.update(more);
    const JsonValue body{{"prompt", long_text(times)},
                         {"max_tokens", 8},
                         {"ignore_eos", true},
                         {"temperature", 0},
                         {"attention", attention}};
    const JsonValue json = on.post("/v1/completions", body).json();
    EXPECT_EQ(json["usage"]["prompt_tokens"].get<int>() < 190, times == 8) << json;
    return json["glimpse"]["kept_ratio"].get<double>();
  };
  EXPECT_EQ(kept(server, 8), 1.0);
  EXPECT_LT(kept(server, 40), 1.0);
  EXPECT_LT(kept(server, 8, {{"min_ctx", 0}}), 1.0);
  EXPECT_LT(kept(server, 8, {{"budget", 24}}), 1.0) << "nobody measured that one";
  EXPECT_LT(kept(another, 8), 1.0) << "times of another machine say nothing here";
  std::filesystem::remove_all(options.profile_folder);
}

}  // namespace
}  // namespace glimpse::server
