// Kept prefixes over HTTP: what an answer says of them, the fields that decide, and the counters.
#include <gtest/gtest.h>

#include "tests/server/client.h"

namespace glimpse::server {
namespace {

ServerOptions keeping_options() {
  ServerOptions options = small_options("llama");
  options.engine.prefix_bytes = -1;
  options.engine.prefill_chunk = 16;
  return options;
}

std::string document() {
  std::string text;
  for (int i = 0; i < 12; ++i) text += "the river was high and the fox went to the market ";
  return text;
}

struct Told {
  std::int64_t prompt = 0, cached = 0;
  std::string text;
};

Told ask(const Running& server, const std::string& question, const JsonValue& more = JsonValue::object()) {
  JsonValue body{{"prompt", document() + question}, {"max_tokens", 6}, {"temperature", 0}};
  body.update(more);
  const JsonValue json = server.post("/v1/completions", body).json();
  EXPECT_TRUE(json.contains("usage")) << json.dump();
  const JsonValue& usage = json["usage"];
  EXPECT_EQ(json["glimpse"]["reused"], usage["prompt_tokens_details"]["cached_tokens"]);
  return {usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], json["choices"][0]["text"]};
}

TEST(Prefixes, AreToldAndCounted) {
  const Running server(keeping_options()), forgetful(small_options("llama"));
  const Told miss = ask(server, "what is near the bank");
  EXPECT_EQ(miss.cached, 0);
  const Told whole = ask(server, "what is near the bank");
  EXPECT_EQ(whole.cached, whole.prompt);
  EXPECT_EQ(whole.text, miss.text);
  const JsonValue quest{{"attention", {{"policy", "quest"}, {"budget", 64}, {"reuse", "exact"}}}};
  const Told second = ask(server, "who went to the market", quest);
  EXPECT_GT(second.cached, 0);
  EXPECT_LT(second.cached, second.prompt);
  EXPECT_EQ(second.cached % 16, 0) << "whole chunks";
  EXPECT_EQ(second.text, ask(Running(keeping_options()), "who went to the market", quest).text);
  EXPECT_EQ(server.metric("prefix_cache_queries_total"), static_cast<double>(2 * miss.prompt + second.prompt));
  EXPECT_EQ(server.metric("prefix_cache_hits_total"), static_cast<double>(whole.cached + second.cached));
  EXPECT_EQ(server.metric("kv_cache_usage_perc"), 0);
  ask(forgetful, "what is near the bank");
  EXPECT_EQ(ask(forgetful, "what is near the bank").cached, 0);
  EXPECT_EQ(forgetful.metric("prefix_cache_queries_total"), 0);
}

TEST(Prefixes, AreKeptApartBySaltAndLeftOutByWish) {
  const Running server(keeping_options());
  ask(server, "a", {{"cache_salt", "one"}});
  EXPECT_EQ(ask(server, "a", {{"cache_salt", "two"}}).cached, 0);
  EXPECT_EQ(ask(server, "a").cached, 0);
  const Told again = ask(server, "a", {{"cache_salt", "one"}});
  EXPECT_EQ(again.cached, again.prompt);
  EXPECT_EQ(ask(server, "a", {{"attention", {{"reuse", "none"}}}}).cached, 0);
  const Reply refused = server.post("/v1/completions", {{"prompt", "a"}, {"attention", {{"reuse", "most"}}}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "attention.reuse");
  EXPECT_NE(refused.body.find("give exact, dense, any or none"), std::string::npos) << refused.body;
}

}  // namespace
}  // namespace glimpse::server
