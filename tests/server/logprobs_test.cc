// Log-probabilities, biases and ends of answers, against the engine alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "glimpse/engine/engine.h"
#include "glimpse/policies/policy.h"
#include "tests/server/client.h"

namespace glimpse::server {
namespace {

using text::Token;

constexpr const char *kPrompt = "the river was high and the fox";

/// What the engine alone gives, greedy with full attention.
class Reference {
 public:
  engine::Result run(std::vector<Token> prompt, std::int64_t tokens, int top) {
    engine::Request request;
    request.prompt = std::move(prompt);
    request.plan = policies::make_plan("full", engine_.shape(), {});
    request.max_tokens = tokens;
    request.logprobs = request.prompt_logprobs = top;
    const engine::RequestId id = engine_.submit(std::move(request));
    while (engine_.step()) {
    }
    return engine_.result(id);
  }
  std::vector<Token> tokens(const std::string &text) const {
    return tokenizer().encode(text, text::Special::as_tokens, true);
  }
  const text::Tokenizer &tokenizer() const { return engine_.tokenizer(); }

 private:
  engine::Engine engine_{small_options().engine};
};

/// A token's text; its bytes in words where they are no whole UTF-8, which JSON cannot have.
std::string word_of(const std::string &piece) {
  try {
    static_cast<void>(JsonValue(piece).dump());
    return piece;
  } catch (const JsonValue::exception &) {
  }
  std::string word = "bytes:";
  for (const char c : piece) {
    char text[5];
    std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned char>(c));
    word += text;
  }
  return word;
}

TEST(Logprobs, AnEchoedPromptHasThoseOfTheEngine) {
  const Running server(small_options());
  Reference reference;
  const std::vector<Token> prompt = reference.tokens(kPrompt);
  const engine::Result wanted = reference.run(prompt, 1, 2);
  JsonValue body{{"prompt", {prompt, prompt}}, {"max_tokens", 1}, {"temperature", 0}, {"logprobs", 2}, {"echo", true}};
  JsonValue json = server.post("/v1/completions", body).json();
  ASSERT_EQ(json["choices"].size(), 2u) << json;
  for (JsonValue &choice : json["choices"]) {
    JsonValue &logprobs = choice["logprobs"];
    ASSERT_EQ(logprobs["tokens"].size(), prompt.size() + 1);
    ASSERT_EQ(logprobs["token_logprobs"].size(), prompt.size() + 1);
    ASSERT_EQ(logprobs["top_logprobs"].size(), prompt.size() + 1);
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
    std::size_t offset = 0;
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      const std::string piece = reference.tokenizer().piece(prompt[i], true);
      EXPECT_EQ(logprobs["tokens"][i], piece);
      EXPECT_EQ(logprobs["text_offset"][i], offset);
      offset += piece.size();  // the prompt is ASCII
      if (i == 0) continue;
      const text::TokenLogprobs &known = wanted.prompt_logprobs.at(i - 1);
      EXPECT_NEAR(logprobs["token_logprobs"][i], known.logprob, 1e-4);
      double likeliest = -1e9;
      for (const auto &[text, logprob] : logprobs["top_logprobs"][i].items()) {
        likeliest = std::max(likeliest, logprob.get<double>());
      }
      EXPECT_NEAR(likeliest, known.top.at(0).logprob, 1e-4);
      EXPECT_TRUE(logprobs["top_logprobs"][i].contains(piece)) << "the token itself is there";
    }
    EXPECT_NEAR(logprobs["token_logprobs"][prompt.size()], wanted.logprobs.at(0).logprob, 1e-4);
    const std::string text = choice["text"];
    EXPECT_EQ(text.rfind(kPrompt, 0), 0u) << text;
  }
}

TEST(Logprobs, OfAChatHaveTheirBytes) {
  const Running server(small_options());
  Reference reference;
  const std::vector<text::ChatMessage> messages{{"user", "hello"}};
  const engine::Result wanted = reference.run(reference.tokenizer().apply_chat(messages, true), 5, 3);
  JsonValue json = server
                       .post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                                                      {"max_tokens", 5},
                                                      {"temperature", 0},
                                                      {"logprobs", true},
                                                      {"top_logprobs", 3}})
                       .json();
  JsonValue content = json["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), wanted.tokens.size()) << json;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string piece = reference.tokenizer().piece(wanted.tokens[i], true);
    EXPECT_EQ(content[i]["token"], word_of(piece));
    EXPECT_EQ(content[i]["bytes"], JsonValue(std::vector<unsigned char>(piece.begin(), piece.end())));
    EXPECT_NEAR(content[i]["logprob"], wanted.logprobs[i].logprob, 1e-4);
    ASSERT_EQ(content[i]["top_logprobs"].size(), 3u);
    for (std::size_t j = 0; j < 3; ++j) {
      EXPECT_NEAR(content[i]["top_logprobs"][j]["logprob"], wanted.logprobs[i].top[j].logprob, 1e-4);
    }
  }
}

/// The lists of a stream's chunks, joined; by choice.
std::vector<JsonValue> joined(const Reply &reply, std::size_t choices) {
  const JsonValue none{{"tokens", JsonValue::array()},
                       {"token_logprobs", JsonValue::array()},
                       {"top_logprobs", JsonValue::array()},
                       {"text_offset", JsonValue::array()}};
  std::vector<JsonValue> lists(choices, none);
  for (const std::string &event : events_of(reply.body)) {
    if (event == "[DONE]") continue;
    JsonValue chunk = JsonValue::parse(event);
    JsonValue &choice = chunk["choices"][0];
    for (const auto &[key, list] : choice["logprobs"].items()) {
      for (const JsonValue &each : list) lists.at(choice["index"].get<std::size_t>())[key].push_back(each);
    }
  }
  return lists;
}

/// But for the rounding of passes with other requests in them.
void expect_same(JsonValue a, JsonValue b) {
  EXPECT_EQ(a["tokens"], b["tokens"]);
  EXPECT_EQ(a["text_offset"], b["text_offset"]);
  ASSERT_EQ(a["token_logprobs"].size(), b["token_logprobs"].size());
  ASSERT_EQ(a["top_logprobs"].size(), b["top_logprobs"].size());
  for (std::size_t i = 0; i < a["token_logprobs"].size(); ++i) {
    const JsonValue &left = a["top_logprobs"][i], &right = b["top_logprobs"][i];
    ASSERT_EQ(left.is_null(), right.is_null());
    ASSERT_EQ(a["token_logprobs"][i].is_null(), left.is_null());
    if (left.is_null()) continue;
    EXPECT_NEAR(a["token_logprobs"][i], b["token_logprobs"][i], 1e-4);
    ASSERT_EQ(left.size(), right.size());
    for (const auto &[word, logprob] : left.items()) EXPECT_NEAR(logprob, right.at(word), 1e-4) << word;
  }
}

TEST(Logprobs, AStreamHasThoseOfTheWholeAnswer) {
  const Running server(small_options());
  const JsonValue ends{{std::to_string(Reference().tokenizer().eos()), 100}};  // an answer of no tokens
  for (const bool echo : {false, true}) {
    for (const JsonValue &bias : {JsonValue::object(), ends}) {
      JsonValue body{{"prompt", {kPrompt, "a town"}},
                     {"max_tokens", 12},
                     {"temperature", 0},
                     {"logprobs", 1},
                     {"n", 2},
                     {"echo", echo},
                     {"logit_bias", bias}};
      JsonValue whole = server.post("/v1/completions", body).json();
      ASSERT_EQ(whole["choices"].size(), 4u) << whole;
      body["stream"] = true;
      const std::vector<JsonValue> streamed = joined(server.post("/v1/completions", body), 4);
      for (std::size_t i = 0; i < 4; ++i) {
        SCOPED_TRACE(std::to_string(i) + (echo ? " with echo" : ""));
        expect_same(streamed[i], whole["choices"][i]["logprobs"]);
      }
    }
  }
}

TEST(Ends, BiasesLeastTokensAndEndsAreHeeded) {
  const Running server(small_options());
  const Reference reference;
  const auto answer = [&](JsonValue more) {
    JsonValue body{{"prompt", kPrompt}, {"max_tokens", 6}, {"temperature", 0}};
    body.update(more);
    const Reply reply = server.post("/v1/completions", body);
    if (reply.status != 200) throw std::runtime_error(reply.body);
    return reply.json();
  };
  const Token favoured = reference.tokens(" market").back();
  std::string six;
  for (int i = 0; i < 6; ++i) six += reference.tokenizer().piece(favoured);
  EXPECT_EQ(answer({{"logit_bias", {{std::to_string(favoured), 100}}}})["choices"][0]["text"], six);

  const JsonValue bias{{std::to_string(reference.tokenizer().eos()), 100}};
  JsonValue ends = answer({{"logit_bias", bias}});
  EXPECT_EQ(ends["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(ends["choices"][0]["text"], "");
  JsonValue least = answer({{"logit_bias", bias}, {"min_tokens", 4}});
  EXPECT_EQ(least["choices"][0]["finish_reason"], "stop");
  EXPECT_NE(least["choices"][0]["text"], "");
  JsonValue on = answer({{"logit_bias", bias}, {"ignore_eos", true}});
  EXPECT_EQ(on["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(on["usage"]["completion_tokens"], 6);
  JsonValue counted = answer({{"logit_bias", bias}, {"logprobs", 0}});
  EXPECT_EQ(counted["choices"][0]["logprobs"]["tokens"].size(), 1u) << "the token that ended the text is counted";
}

TEST(Ends, AnEchoIsThePromptThenTheAnswer) {
  const Running server(small_options());
  JsonValue body{{"prompt", kPrompt}, {"max_tokens", 4}, {"temperature", 0}};
  const std::string answer = server.post("/v1/completions", body).json()["choices"][0]["text"];
  body["echo"] = true;
  EXPECT_EQ(server.post("/v1/completions", body).json()["choices"][0]["text"], kPrompt + answer);
  body["stream"] = true;
  std::string text;
  for (const std::string &event : events_of(server.post("/v1/completions", body).body)) {
    if (event != "[DONE]") text += JsonValue::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, kPrompt + answer);
}

TEST(Ends, MoreAnswersThanRunAtATimeAreThoseOfTheirSeeds) {
  const Running server(small_options());  // four at a time
  JsonValue body{{"prompt", kPrompt}, {"max_tokens", 5}, {"temperature", 1.5}, {"seed", 40}, {"n", 6}};
  JsonValue json = server.post("/v1/completions", body).json();
  ASSERT_EQ(json["choices"].size(), 6u) << json;
  const auto prompt_tokens = json["usage"]["prompt_tokens"];
  body["n"] = 1;
  for (int i = 0; i < 6; ++i) {
    body["seed"] = 40 + i;
    JsonValue one = server.post("/v1/completions", body).json();
    EXPECT_EQ(json["choices"][i]["text"], one["choices"][0]["text"]) << i;
    EXPECT_EQ(one["usage"]["prompt_tokens"], prompt_tokens) << "the prompt counts once";
  }
}

}  // namespace
}  // namespace glimpse::server
