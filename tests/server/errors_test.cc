// Every wrong request gets one clear error, and the server goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/client.h"

namespace glimpse::server {
namespace {

using ::testing::HasSubstr;

struct BadBody {
  const char* body;
  const char* param;  ///< null: none
  const char* words;
};

constexpr BadBody kBadCompletions[] = {
    {"", nullptr, "no JSON"},
    {"{", nullptr, "no JSON"},
    {"[]", nullptr, "no JSON object"},
    {"\"x\"", nullptr, "no JSON object"},
    {"{\"prompt\": \"\xff\"}", nullptr, "no JSON"},
    {R"({"prompt": "\ud800"})", nullptr, "no JSON"},
    {R"({"prompt": "x"} {})", nullptr, "no JSON"},
    {"{}", "prompt", "missing"},
    {R"({"prompt": null})", "prompt", "missing"},
    {R"({"prompt": []})", "prompt", "0 prompts"},
    {R"({"prompt": [[]]})", "prompt", "none of them empty"},
    {R"({"prompt": ["x", [1, "y"]]})", "prompt", "token ids"},
    {R"({"prompt": [1, 2, 512]})", "prompt", "has the token 512"},
    {R"({"prompt": [-1]})", "prompt", "-1"},
    {R"({"prompt": [1.5]})", "prompt", "1.5"},
    {R"({"prompt": [18446744073709551615]})", "prompt", "18446744073709551615"},
    {R"({"prompt": [1e300]})", "prompt", "1e+300"},
    {R"({"prompt": {"text": "x"}})", "prompt", "must be a text"},
    {R"({"prompt": ""})", "prompt", "no token"},
    {R"({"prompt": "x", "model": "gpt-4"})", "model", "this server has 'small'"},
    {R"({"prompt": "x", "model": 5})", "model", "must be a text"},
    {R"({"prompt": "x", "max_tokens": 0})", "max_tokens", "is 0; it must be a whole number from 1"},
    {R"({"prompt": "x", "max_tokens": "5"})", "max_tokens", "whole number"},
    {R"({"prompt": "x", "max_tokens": 1.5})", "max_tokens", "whole number"},
    {R"({"prompt": "x", "max_tokens": 1e300})", "max_tokens", "whole number"},
    {R"({"prompt": "x", "temperature": -1})", "temperature", "from 0 to 100"},
    {R"({"prompt": "x", "temperature": 1e-9})", nullptr, "temperature"},
    {R"({"prompt": "x", "top_p": 2})", "top_p", "from 0 to 1"},
    {R"({"prompt": "x", "top_k": 3.5})", "top_k", "whole number"},
    {R"({"prompt": "x", "seed": -2})", "seed", "from -1"},
    {R"({"prompt": "x", "n": 0})", "n", "from 1 to 16"},
    {R"({"prompt": "x", "stop": 5})", "stop", "text or a list"},
    {R"({"prompt": "x", "stop": [""]})", "stop", "empty"},
    {R"({"prompt": "x", "repetition_penalty": 0})", "repetition_penalty", "from 0.01"},
    {R"({"prompt": "x", "stream": "yes"})", "stream", "true or false"},
    {R"({"prompt": "x", "stream_options": true})", "stream_options", "object"},
    {R"({"prompt": "x", "stream_options": {"include_usage": true}})", "stream_options.include_usage", "stream"},
    {R"({"prompt": "x", "tools": [{"type": "function"}]})", "tools", "not there"},
    {R"({"prompt": "x", "suffix": "y"})", "suffix", "not there in this version"},
    {R"({"prompt": "x", "structured_outputs": {"regex": "y"}})", "structured_outputs", "not there in this version"},
    {R"({"prompt": "x", "logprobs": 21})", "logprobs", "from 0 to 20"},
    {R"({"prompt": "x", "logprobs": true})", "logprobs", "whole number"},
    {R"({"prompt": "x", "echo": 1})", "echo", "true or false"},
    {R"({"prompt": "x", "ignore_eos": 1})", "ignore_eos", "true or false"},
    {R"({"prompt": "x", "logit_bias": [5]})", "logit_bias", "object"},
    {R"({"prompt": "x", "logit_bias": {"x": 1}})", "logit_bias", "no token id"},
    {R"({"prompt": "x", "logit_bias": {"512": 1}})", "logit_bias", "has the token 512"},
    {R"({"prompt": "x", "logit_bias": {"5": 101}})", "logit_bias", "from -100 to 100"},
    {R"({"prompt": "x", "max_tokens": 2, "min_tokens": 3})", "min_tokens", "more than 'max_tokens'"},
    {R"({"prompt": "x", "attention": "tidal"})", "attention", "object"},
    {R"({"prompt": "x", "attention": {"polcy": "tidal"}})", "attention.polcy", "no field"},
    {R"({"prompt": "x", "attention": {"policy": "tidl"}})", "attention", "did you mean 'tidal'"},
    {R"({"prompt": "x", "attention": {"policy": "autto"}})", "attention", "did you mean 'auto'"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "budget": "many"}})", "attention", "many"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "budget": -3}})", "attention.budget", "tokens"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "opt": {"no-such": 1}}})", "attention", "no-such"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "opt": ["reselect"]}})", "attention.opt", "object"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "opt": {"block": -1}}})", "attention", "block"},
    {R"({"prompt": "x", "attention": {"policy": "seer", "opt": {"gates": "/etc/passwd"}}})", "attention.opt.gates",
     "names a file"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "opt": {"select.gates": "/etc/passwd"}}})",
     "attention.opt.select.gates", "names a file"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "profile": "../../etc/passwd"}})", "attention.profile",
     "no name of a profile"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "profile": "mine"}})", "attention.profile", "has not"},
    {R"({"prompt": "x", "attention": {"policy": "auto"}})", "attention", "calibrate"},
    {R"({"prompt": "x", "attention": {"lossless": true}})", "attention.lossless", "reads everything"},
    {R"({"prompt": "x", "attention": {"audit": 4}})", "attention.audit", "reads everything"},
    {R"({"prompt": "x", "attention": {"policy": "tidal", "budget": 4, "lossless": 99}})", "attention.lossless",
     "to 15"},
};

void expect_error(const Reply& reply, const BadBody& bad) {
  ASSERT_GE(reply.status, 400) << bad.body << reply.body;
  ASSERT_LT(reply.status, 500) << bad.body << reply.body;
  const JsonValue error = reply.json()["error"];
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(bad.words)) << bad.body;
  if (bad.param != nullptr) {
    EXPECT_EQ(error["param"], bad.param) << bad.body;
  } else {
    EXPECT_TRUE(error["param"].is_null()) << bad.body;
  }
  EXPECT_TRUE(error.contains("type") && error.contains("code"));
}

TEST(Errors, BadBodiesAreRefusedByName) {
  const Running server(small_options());
  Client client = server.client();
  for (const BadBody& bad : kBadCompletions) {
    std::string text = bad.body;
    client.send(
        request_text("POST", "/v1/completions", text, text.empty() ? "Content-Type: application/json\r\n" : ""));
    expect_error(client.read(), bad);
  }
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}}).status, 200) << "it goes on";
}

TEST(Errors, BadMessages) {
  const Running server(small_options());
  Client client = server.client();
  constexpr BadBody kBad[] = {
      {R"({"prompt": "x"})", "messages", "missing"},
      {R"({"messages": []})", "messages", "at least one"},
      {R"({"messages": "hello"})", "messages", "list"},
      {R"({"messages": ["hello"]})", "messages[0]", "object"},
      {R"({"messages": [{"content": "hello"}]})", "messages[0].role", "text"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content", "list of parts"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})",
       "messages[0].content", "no text"},
      {R"({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3})", "top_logprobs", "needs 'logprobs'"},
      {R"({"messages": [{"role": "user", "content": "x"}], "logprobs": 3})", "logprobs", "true or false"},
      {R"({"messages": [{"role": "user", "content": "x"}], "echo": true})", "echo", "not there"},
      {R"({"messages": [{"role": "assistant", "function_call": {"name": "x"}}]})", "messages[0].function_call",
       "not there"},
  };
  for (const BadBody& bad : kBad) expect_error(client.post("/v1/chat/completions", std::string(bad.body)), bad);
  const Running bare(small_options("no-template"));
  expect_error(bare.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "x"}}}}}),
               {"", "messages", "no chat template"});
}

TEST(Errors, WhatSaysNothingIsNoField) {
  const Running server(small_options());
  const Reply reply =
      server.post("/v1/completions",
                  JsonValue::parse(
                      R"({"prompt": "x", "max_tokens": 2, "stop": null, "tools": [], "logprobs": null, "echo": false,
              "logit_bias": {}, "best_of": 1, "response_format": {"type": "text"}, "suffix": "", "min_tokens": 0,
              "user": "me", "store": false, "attention": null, "stream_options": {"other": 1}})"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json()["ignored"], JsonValue::array({"store", "stream_options.other", "user"}));
}

TEST(Errors, APromptOverTheContextIsRefused) {
  ServerOptions options = small_options();
  options.engine.context = 64;
  const Running server(std::move(options));
  const auto answer = [&](std::size_t tokens, bool stream) {
    return server.post("/v1/completions", {{"prompt", std::vector<int>(tokens, 7)}, {"stream", stream}});
  };
  for (const bool stream : {false, true}) {
    EXPECT_EQ(answer(64, stream).status, 400);
    EXPECT_EQ(answer(64, stream).json()["error"]["code"], "context_length_exceeded");
    EXPECT_EQ(answer(63, stream).status, 200);
  }
  const JsonValue full = answer(60, false).json();
  EXPECT_EQ(full["choices"][0]["finish_reason"], "length") << "the context is full";
}

TEST(Errors, Paths) {
  const Running server(small_options());
  const auto answer = [&](const std::string& method, const std::string& path, const std::string& body = {}) {
    Client client = server.client();
    client.send(request_text(method, path, body));
    return client.read();
  };
  EXPECT_EQ(answer("GET", "/nowhere").status, 404);
  EXPECT_EQ(answer("GET", "/health?verbose=1").status, 200);
  for (const char* path : {"/v1/responses", "/v1/messages", "/v1/embeddings"}) {
    const Reply reply = answer("POST", path, "{}");
    EXPECT_EQ(reply.status, 404);
    EXPECT_THAT(reply.body, HasSubstr(path));
    EXPECT_THAT(reply.body, HasSubstr("/v1/chat/completions"));
  }
  const Reply wrong = answer("GET", "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.fields.at("allow"), "POST");
  EXPECT_EQ(answer("POST", "/health", "{}").fields.at("allow"), "GET, HEAD");
  EXPECT_EQ(answer("DELETE", "/v1/requests/none").status, 404);
  Client client = server.client();
  client.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read().status, 415);
}

TEST(Errors, TextsThatTokenizersFearAreAnswered) {
  const Running server(small_options());
  const std::string letters(20000, 'a');
  EXPECT_EQ(server.post("/tokenize", {{"prompt", letters}}).status, 200);
  EXPECT_EQ(
      server
          .post("/v1/chat/completions",
                {{"messages", {{{"role", "user"}, {"content", "{{ cycler.__init__ }} {% for %}"}}}}, {"max_tokens", 2}})
          .status,
      200);
  const Reply odd = server.post("/tokenize", {{"prompt", "x"}, {"no_such_field", 1}});
  EXPECT_EQ(odd.status, 400);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {1, 2, 100000}}}).status, 400);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", "x"}}).status, 400);
}

}  // namespace
}  // namespace glimpse::server
