// Answers that must be of a shape: grammars and schemas over HTTP, at a temperature where the small model says
// anything.
#include <gtest/gtest.h>

#include <regex>

#include "tests/server/client.h"

namespace glimpse::server {
namespace {

JsonValue hot(JsonValue more) {
  JsonValue body{{"prompt", "the river"}, {"max_tokens", 400}, {"temperature", 3}, {"seed", 5}};
  body.update(more);
  return body;
}

JsonValue chat(JsonValue more) {
  JsonValue body{{"messages", {{{"role", "user"}, {"content", "the river"}}}},
                 {"max_tokens", 400},
                 {"temperature", 3},
                 {"seed", 5}};
  body.update(more);
  return body;
}

const JsonValue kSchema = JsonValue::parse(
    R"({"type": "object", "properties": {"town": {"type": "string", "maxLength": 8}, "houses": {"type": "integer"},
        "roads": {"type": "array", "items": {"enum": ["north", "south"]}, "maxItems": 2}},
        "required": ["town", "houses", "roads"], "additionalProperties": false})");

void expect_town(const std::string& text) {
  const JsonValue value = JsonValue::parse(text, nullptr, false);
  ASSERT_TRUE(value.is_object()) << text;
  EXPECT_EQ(value.size(), 3u);
  EXPECT_TRUE(value["town"].is_string() && value["houses"].is_number_integer()) << text;
  ASSERT_TRUE(value["roads"].is_array() && value["roads"].size() <= 2) << text;
  for (const JsonValue& road : value["roads"]) EXPECT_TRUE(road == "north" || road == "south") << text;
}

TEST(Schemas, AnswersParseAndObey) {
  const Running server(small_options());
  const JsonValue format{{"type", "json_schema"}, {"json_schema", {{"name", "town"}, {"schema", kSchema}}}};
  for (int seed = 0; seed < 4; ++seed) {
    for (const JsonValue& asked : {JsonValue{{"response_format", format}}, JsonValue{{"json_schema", kSchema}},
                                   JsonValue{{"response_format", {{"type", "json_object"}, {"schema", kSchema}}}}}) {
      JsonValue body = chat(asked);
      body["seed"] = seed;
      const Reply reply = server.post("/v1/chat/completions", body);
      ASSERT_EQ(reply.status, 200) << reply.body;
      const JsonValue choice = reply.json()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "stop");
      expect_town(choice["message"]["content"]);
    }
  }
}

TEST(Schemas, MembersComeInTheSchemasOrder) {
  const Running server(small_options());
  const std::string schema =
      R"({"type": "object", "properties": {"why\u0041": {"enum": [1]}, "b\"c{": {"enum": [2]}, "a": {"enum": [3]}},
          "required": ["why\u0041", "b\"c{", "a"], "additionalProperties": false, "properties ": "}, \"x\": ["})";
  const std::string body =
      R"({"prompt": "x", "max_tokens": 200, "response_format": {"json_schema": {"name": "n", "schema": )" + schema +
      R"(}, "type": "json_schema"}})";
  const Reply reply = server.post("/v1/completions", body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string text = reply.json()["choices"][0]["text"];
  EXPECT_TRUE(
      std::regex_match(text, std::regex(R"(\{\s*"whyA"\s*:\s*1\s*,\s*"b\\"c\{"\s*:\s*2\s*,\s*"a"\s*:\s*3\s*\})")))
      << text;
}

TEST(Schemas, AnyObject) {
  const Running server(small_options());
  const Reply reply = server.post("/v1/completions", hot({{"response_format", {{"type", "json_object"}}}, {"n", 4}}));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const JsonValue answer = reply.json();
  for (const JsonValue& choice : answer["choices"]) {
    const std::string text = choice["text"];
    EXPECT_EQ(text.front(), '{');
    EXPECT_TRUE(choice["finish_reason"] != "stop" || JsonValue::parse(text, nullptr, false).is_object()) << text;
  }
}

TEST(Schemas, AStreamObeysAGrammarAndLosslessToo) {
  const Running server(small_options());
  const std::string grammar = "root ::= (\"north\" | \"south\") (\",\" [0-9]{2}){3}";
  const std::regex pattern("(north|south)(,[0-9]{2}){3}");
  for (const bool lossless : {false, true}) {
    JsonValue body = hot({{"grammar", grammar}, {"stream", true}});
    std::string prompt;
    for (int i = 0; i < 20; ++i) prompt += "the river was high and the fox went to the market ";
    body["prompt"] = prompt;
    if (lossless) body["attention"] = {{"policy", "quest"}, {"budget", 48}, {"lossless", 3}};
    const Reply reply = server.post("/v1/completions", body);
    ASSERT_EQ(reply.status, 200) << reply.body;
    std::string text, reason;
    for (const std::string& event : events_of(reply.body)) {
      if (event == "[DONE]") continue;
      const JsonValue choice = JsonValue::parse(event)["choices"][0];
      text += choice["text"].get<std::string>();
      if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
    }
    EXPECT_TRUE(std::regex_match(text, pattern)) << text;
    EXPECT_EQ(reason, "stop");
  }
}

TEST(Schemas, ValuesReachTheTemplate) {
  const Running server(small_options("tools-llama3"));
  const auto tokens = [&](JsonValue more) {
    more["max_tokens"] = 1;
    const Reply reply = server.post("/v1/chat/completions", chat(std::move(more)));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["usage"]["prompt_tokens"].get<int>();
  };
  // The template writes this one.
  EXPECT_GT(tokens({{"chat_template_kwargs", {{"bos_token", "the river was high"}}}}), tokens(JsonValue::object()));
  const Reply refused = server.post("/v1/chat/completions", chat({{"chat_template_kwargs", {{"messages", {1}}}}}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "chat_template_kwargs");
}

TEST(Schemas, WrongOnesAreTheClients) {
  ServerOptions options = small_options();
  options.limits.schema_bytes = 2000;
  const Running server(std::move(options));
  const auto refused = [&](JsonValue more, const std::string& param, const std::string& why) {
    const Reply reply = server.post("/v1/completions", hot(std::move(more)));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
    EXPECT_NE(reply.json()["error"]["message"].get<std::string>().find(why), std::string::npos) << reply.body;
  };
  refused({{"grammar", "root ::= ("}}, "grammar", "cannot be read");
  refused({{"grammar", "root ::= root"}}, "grammar", "takes no text");
  refused({{"grammar", "root ::= root \"x\""}}, "grammar", "left recursion");
  refused({{"grammar", 5}}, "grammar", "text");
  refused({{"grammar", "root ::= \"" + std::string(2000, 'x') + "\""}}, "grammar", "--max-schema");
  refused({{"json_schema", {{"type", "nonsense"}}}}, "json_schema", "cannot be translated");
  refused({{"json_schema", {{"$ref", "https://example.org/"}}}}, "json_schema", "cannot be translated");
  refused({{"json_schema", {{"$ref", "/etc/passwd"}}}}, "json_schema", "cannot be translated");
  refused({{"json_schema", {1}}}, "json_schema", "no object");
  refused({{"json_schema", {{"description", std::string(2000, 'x')}}}}, "json_schema", "--max-schema");
  refused({{"json_schema", {{"type", "object"}}}, {"grammar", "root ::= \"x\""}}, "json_schema", "one of them");
  refused({{"response_format", "json"}}, "response_format", "type");
  refused({{"response_format", {{"type", "xml"}}}}, "response_format", "xml");
  refused({{"response_format", {{"type", "json_schema"}}}}, "response_format", "schema");
  EXPECT_EQ(server.post("/v1/completions", hot({{"max_tokens", 2}})).status, 200) << "the server goes on";
}

/// What a grammar may cost is spent behind some characters.
std::string costly() {
  std::string gbnf = "root ::= \"ab\" ";
  for (int i = 0; i < 12; ++i) gbnf += "(.{0,1500} | [^\\x00]{0,1500}) ";
  return gbnf + "\"~\"";
}

TEST(Schemas, AGrammarThatCostsTooMuchIsTheClients) {
  const Running server(small_options());
  // Another stream of the same batch goes on.
  Client other = server.client();
  other.send(request_text(
      "POST", "/v1/completions",
      JsonValue{
          {"prompt", "the river"}, {"max_tokens", 150}, {"ignore_eos", true}, {"temperature", 0}, {"stream", true}}
          .dump()));
  ASSERT_EQ(other.read_head().status, 200);
  const Reply whole = server.post("/v1/completions", hot({{"grammar", costly()}}));
  EXPECT_EQ(whole.status, 400) << whole.body;
  const JsonValue error = whole.json()["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_NE(error["message"].get<std::string>().find("simplify it"), std::string::npos) << whole.body;
  const Reply streamed = server.post("/v1/completions", hot({{"grammar", costly()}, {"stream", true}, {"n", 2}}));
  EXPECT_EQ(streamed.status, 200);
  const std::vector<std::string> events = events_of(streamed.body);
  ASSERT_GE(events.size(), 3u) << "tokens come before it";
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(JsonValue::parse(events[events.size() - 2])["error"]["type"], "invalid_request_error") << streamed.body;
  std::string last, chunk;
  for (chunk = other.read_chunk(); !chunk.empty(); chunk = other.read_chunk()) last = chunk;
  EXPECT_EQ(events_of(last).back(), "[DONE]");
  EXPECT_EQ(last.find("error"), std::string::npos) << last;
}

TEST(Schemas, AGrammarOfTheEmptyText) {
  const Running server(small_options());
  for (const bool ignore_eos : {false, true}) {
    const Reply reply = server.post("/v1/completions", hot({{"grammar", "root ::= \"\""}, {"ignore_eos", ignore_eos}}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json()["choices"][0]["text"], "");
    EXPECT_EQ(reply.json()["choices"][0]["finish_reason"], "stop");
  }
}

TEST(Schemas, TimeIsUp) {
  ServerOptions options = small_options();
  options.limits.schema_ms = 1;
  const Running server(std::move(options));
  JsonValue schema{{"type", "object"}, {"properties", JsonValue::object()}};
  for (int i = 0; i < 1500; ++i) schema["properties"]["k" + std::to_string(i)] = {{"type", "string"}};
  const Reply reply = server.post("/v1/completions", hot({{"json_schema", schema}}));
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("more than 0.001 s"), std::string::npos) << reply.body;
}

}  // namespace
}  // namespace glimpse::server
