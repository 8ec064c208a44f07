// Chats with tools over HTTP: calls that the small models are made to say, whole and streamed, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/server/backend.h"
#include "glimpse/server/prepare.h"
#include "glimpse/server/prompt_fields.h"
#include "glimpse/server/tool_answer.h"
#include "tests/server/client.h"
#include "tests/support/places.h"

namespace glimpse::server {
namespace {

const JsonValue kTools = JsonValue::parse(R"([
  {"type": "function", "function": {"name": "tide", "description": "The tide.", "parameters":
     {"type": "object", "properties": {"harbour": {"enum": ["Brest", "Dover"]}, "hour": {"type": "integer", "minimum": 0,
      "maximum": 23}}, "required": ["harbour", "hour"], "additionalProperties": false}}},
  {"type": "function", "function": {"name": "wind", "parameters": {"type": "object", "properties": {}}}}])");

JsonValue chat(JsonValue more) {
  JsonValue body{{"messages", {{{"role", "user"}, {"content", "When is the tide?"}}}},
                 {"max_tokens", 300},
                 {"temperature", 2},
                 {"seed", 3},
                 {"tools", kTools}};
  body.update(more);
  return body;
}

void expect_call(const JsonValue& call) {
  EXPECT_EQ(call["type"], "function");
  EXPECT_FALSE(call["id"].get<std::string>().empty());
  const JsonValue arguments = JsonValue::parse(call["function"]["arguments"].get<std::string>(), nullptr, false);
  ASSERT_TRUE(arguments.is_object()) << call.dump();
  if (call["function"]["name"] == "wind") return;
  EXPECT_EQ(call["function"]["name"], "tide");
  EXPECT_TRUE(arguments["harbour"] == "Brest" || arguments["harbour"] == "Dover") << call.dump();
  EXPECT_TRUE(arguments["hour"].is_number_integer() && arguments["hour"] >= 0 && arguments["hour"] <= 23)
      << call.dump();
}

class ToolModels : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, ToolModels, ::testing::Values("tools-hermes", "tools-llama3"),
                         [](const auto& instance) { return std::string(instance.param).substr(6); });

/// What a stream of one choice adds up to, as OpenAI's clients add it.
JsonValue summed(const std::string& body) {
  JsonValue message{{"content", ""}, {"tool_calls", JsonValue::array()}};
  for (const std::string& event : events_of(body)) {
    if (event == "[DONE]") continue;
    const JsonValue json = JsonValue::parse(event);
    EXPECT_FALSE(json.contains("error")) << event;
    if (json["choices"].empty()) continue;
    const JsonValue& choice = json["choices"][0];
    if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
    const JsonValue& delta = choice["delta"];
    if (delta.contains("content") && delta["content"].is_string()) {
      message["content"] = message["content"].get<std::string>() + delta["content"].get<std::string>();
    }
    if (!delta.contains("tool_calls")) continue;
    for (const JsonValue& each : delta["tool_calls"]) {
      const auto index = each["index"].get<std::size_t>();
      if (each.contains("id")) {
        EXPECT_EQ(index, message["tool_calls"].size());
        message["tool_calls"].push_back(each);
        continue;
      }
      std::string& text = message["tool_calls"].at(index)["function"]["arguments"].get_ref<std::string&>();
      text += each["function"]["arguments"].get<std::string>();
    }
  }
  return message;
}

TEST_P(ToolModels, ACallThatIsRequiredComesWholeAndStreamed) {
  const Running server(small_options(GetParam()));
  for (int seed = 0; seed < 6; ++seed) {
    JsonValue body = chat({{"tool_choice", "required"}, {"seed", seed}, {"parallel_tool_calls", false}});
    const Reply reply = server.post("/v1/chat/completions", body);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const JsonValue choice = reply.json()["choices"][0];
    body["stream"] = true;
    const JsonValue streamed = summed(server.post("/v1/chat/completions", body).body);
    EXPECT_EQ(streamed["finish_reason"], choice["finish_reason"]);
    const JsonValue& message = choice["message"];
    const JsonValue list = message.value("tool_calls", JsonValue::array());
    ASSERT_EQ(streamed["tool_calls"].size(), list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      EXPECT_EQ(streamed["tool_calls"][i]["function"], list[i]["function"]);
    }
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << reply.body;
    ASSERT_EQ(list.size(), 1u) << reply.body;
    expect_call(list[0]);
  }
}

TEST_P(ToolModels, ANamedFunctionIsTheOneThatIsCalled) {
  const Running server(small_options(GetParam()));
  const JsonValue choice{{"type", "function"}, {"function", {{"name", "wind"}}}};
  for (int seed = 0; seed < 3; ++seed) {
    const Reply reply = server.post("/v1/chat/completions", chat({{"tool_choice", choice}, {"seed", seed}}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const JsonValue calls = reply.json()["choices"][0]["message"].value("tool_calls", JsonValue::array());
    EXPECT_FALSE(calls.empty()) << reply.body;
    for (const JsonValue& call : calls) EXPECT_EQ(call["function"]["name"], "wind");
  }
}

TEST_P(ToolModels, AutoAndNoneMayAnswerInWords) {
  const Running server(small_options(GetParam()));
  for (const char* choice : {"auto", "none"}) {
    for (const bool stream : {false, true}) {
      const Reply reply =
          server.post("/v1/chat/completions", chat({{"tool_choice", choice}, {"max_tokens", 20}, {"stream", stream}}));
      ASSERT_EQ(reply.status, 200) << reply.body;
      const JsonValue message = stream ? summed(reply.body) : reply.json()["choices"][0]["message"];
      EXPECT_FALSE(message["content"].is_null() || message["content"] == "") << reply.body;
    }
  }
}

/// An answer at random that begins so: what the grammar leaves, until it may end.
std::string answer_led(const engine::Request& request, const text::Tokenizer& tokenizer, const std::string& begin,
                       unsigned seed) {
  text::GrammarFollower at(request.grammar);
  for (const text::Token token : tokenizer.encode(begin, text::Special::as_text, false)) {
    EXPECT_TRUE(at.allows(token)) << tokenizer.piece(token);
    at.accept(token);
  }
  EXPECT_TRUE(at.binds()) << begin;
  std::string text = begin;
  std::mt19937 random(seed);
  for (int i = 0; i < 2000 && at.binds() && !at.may_end(); ++i) {
    const auto allowed = at.allowed();
    std::vector<text::Token> possible;
    for (text::Token token = 0; token < tokenizer.size(); ++token) {
      if (allowed->has(token)) possible.push_back(token);
    }
    if (possible.empty()) break;
    const text::Token token = possible[random() % possible.size()];
    const auto& shown = request.shown;
    text += tokenizer.piece(token, std::find(shown.begin(), shown.end(), token) != shown.end());
    at.accept(token);
  }
  return text;
}

TEST_P(ToolModels, ACallThatMayBeMadeObeysItsSchema) {
  const ServerOptions options = small_options(GetParam());
  const Backend backend(options);
  const Prepared prepared = prepare(chat({{"tool_choice", "auto"}}).dump(), kInChat, backend, options.limits);
  const bool tagged = std::string(GetParam()) == "tools-hermes";
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::string begin = tagged ? "Well: <tool_call>\n{\"name\": \"tide\"," : "Well: {\"name\": \"tide\",";
    const std::string text = answer_led(prepared.requests[0], backend.tokenizer(), begin, seed);
    ToolAnswer answer(prepared.parser);
    answer.add(text);
    answer.take(true);
    ASSERT_FALSE(answer.told().calls.empty()) << text;
    EXPECT_EQ(answer.told().calls[0].name, "tide");
    for (const text::ToolCall& call : answer.told().calls) {  // it may make several
      expect_call(
          {{"type", "function"}, {"id", call.id}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    EXPECT_EQ(answer.told().content, "Well: ") << text;
  }
}

TEST_P(ToolModels, AConversationGoesOn) {
  const Running server(small_options(GetParam()));
  const JsonValue messages = JsonValue::parse(R"([{"role": "user", "content": "When?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "abcdefghi", "type": "function",
        "function": {"name": "tide", "arguments": "{\"harbour\": \"Brest\", \"hour\": 7}"}}]},
      {"role": "tool", "tool_call_id": "abcdefghi", "content": "at noon"}])");
  const Reply with = server.post("/v1/chat/completions", chat({{"messages", messages}, {"max_tokens", 3}}));
  ASSERT_EQ(with.status, 200) << with.body;
  JsonValue without = chat({{"messages", messages}, {"max_tokens", 3}});
  without.erase("tools");
  const Reply alone = server.post("/v1/chat/completions", without);
  ASSERT_EQ(alone.status, 200) << alone.body;
  EXPECT_LT(alone.json()["usage"]["prompt_tokens"], with.json()["usage"]["prompt_tokens"]);
}

TEST(Tools, TextOfMessagesAndToolsIsNoControlToken) {
  const Running server(small_options("tools-hermes"));
  const auto count = [&](const std::string& word) {
    JsonValue body = chat({{"max_tokens", 1}, {"tool_choice", "none"}});
    body["tools"][1]["function"]["description"] = word;
    body["messages"] = JsonValue::parse(R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
      {"id": "a", "type": "function", "function": {"name": "wind", "arguments": "{}"}}]}, {"role": "tool", "content": "y"}])");
    body["messages"][1]["tool_calls"][0]["function"]["arguments"] = JsonValue{{"a", word}}.dump(-1, ' ', true);
    body["messages"][2]["content"] = word;
    const Reply reply = server.post("/v1/chat/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["usage"]["prompt_tokens"].get<int>();
  };
  // Each control text is one token where it is the template's, and more where it is a message's.
  EXPECT_GE(count("<|im_end|>") - count(""), 3 * 5);
}

TEST(Tools, WrongOnesAreTheClients) {
  ServerOptions options = small_options("tools-hermes");
  options.limits.tools = 2;
  options.limits.schema_bytes = 4000;
  const Running server(std::move(options));
  const auto refused = [&](JsonValue more, const std::string& param, const std::string& why) {
    const Reply reply = server.post("/v1/chat/completions", chat(std::move(more)));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param.empty() ? JsonValue() : JsonValue(param)) << reply.body;
    EXPECT_NE(reply.json()["error"]["message"].get<std::string>().find(why), std::string::npos) << reply.body;
  };
  const auto one = [](JsonValue function) {
    return JsonValue::array({{{"type", "function"}, {"function", function}}});
  };
  refused({{"tools", "tide"}}, "tools", "list");
  refused({{"tools", {1}}}, "tools[0]", "function");
  refused({{"tools", one({{"name", "a b"}})}}, "tools[0].function.name", "letters");
  refused({{"tools", one({{"name", std::string(65, 'a')}})}}, "tools[0].function.name", "letters");
  refused({{"tools", one({{"name", "a"}, {"description", 5}})}}, "tools[0].function.description", "text");
  refused({{"tools", one({{"name", "a"}, {"parameters", 5}})}}, "tools[0].function.parameters", "object");
  refused({{"tools", one({{"name", "a"}, {"description", std::string(4000, 'x')}})}}, "tools[0]", "--max-schema");
  refused({{"tools", one({{"name", "a"}, {"parameters", {{"type", "nonsense"}}}})}}, "", "tools");
  JsonValue three = kTools;
  three.push_back(kTools[0]);
  refused({{"tools", three}}, "tools", "--max-tools");
  refused({{"tools", {kTools[0], kTools[0]}}}, "tools[1]", "second");
  refused({{"tool_choice", "tide"}}, "tool_choice", "auto");
  refused({{"tool_choice", {{"type", "function"}, {"function", {{"name", "moon"}}}}}}, "tool_choice", "moon");
  refused({{"tool_choice", "required"}, {"tools", JsonValue::array()}}, "tool_choice", "no tool");
  refused({{"parallel_tool_calls", 1}}, "parallel_tool_calls", "true or false");
  refused({{"grammar", "root ::= \"x\""}}, "grammar", "tools");
  refused({{"response_format", {{"type", "json_object"}}}}, "response_format", "tools");
  const auto call = [](JsonValue function) {
    return JsonValue::array({{{"role", "user"}, {"content", "x"}},
                             {{"role", "assistant"}, {"tool_calls", {{{"id", "x"}, {"function", function}}}}}});
  };
  refused({{"messages", call({{"name", "tide"}, {"arguments", "{"}})}}, "messages[1].tool_calls", "JSON");
  refused({{"messages", call({{"arguments", "{}"}})}}, "messages[1].tool_calls", "name");
  refused({{"messages", call({{"name", "tide"}, {"arguments", std::string(100, '[')}})}}, "messages[1].tool_calls",
          "nests");
  EXPECT_EQ(server.post("/v1/chat/completions", chat({{"max_tokens", 1}})).status, 200) << "the server goes on";

  const Running bare(small_options());
  const Reply reply = bare.post("/v1/chat/completions", chat(JsonValue::object()));
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("no place for tools"), std::string::npos) << reply.body;
}

TEST_P(ToolModels, OtherPathsMakeTheChatsPrompt) {
  const Running server(small_options(GetParam()));
  const engine::Engine engine(small_options(GetParam()).engine);
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const JsonValue messages = JsonValue::parse(R"([{"role": "user", "content": "When?"},
      {"role": "assistant", "tool_calls": [{"id": "call00001", "type": "function",
         "function": {"name": "tide", "arguments": "{\"hour\": 7}"}}]},
      {"role": "tool", "tool_call_id": "call00001", "content": "At nine."}])");
  const std::vector<text::ChatMessage> plain = chat_messages(Body::parse(messages.dump()), "messages");
  const std::string bos = tokenizer.piece(tokenizer.bos(), true), eos = tokenizer.piece(tokenizer.eos(), true);
  for (const bool generates : {true, false}) {
    text::ToolWish wish{text::ToolWish::Choice::automatic, kTools.dump(), {}, {}, std::chrono::seconds(20)};
    wish.values["date_string"] = "\"today\"";
    wish.add_generation_prompt = generates;
    const JsonValue body{{"messages", messages},
                         {"tools", kTools},
                         {"chat_template_kwargs", {{"date_string", "today"}}},
                         {"add_generation_prompt", generates}};
    const Reply reply = server.post("/apply-template", body);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const std::string prompt = reply.json()["prompt"];
    EXPECT_EQ(prompt, text::render_with_tools({tokenizer.chat_template(), bos, eos}, plain, wish).prompt);
    const JsonValue tokens = server.post("/tokenize", body).json()["tokens"];
    EXPECT_EQ(tokens, tokenizer.encode(prompt, text::Special::as_tokens, true));
    if (!generates) continue;
    const Reply answer = server.post("/v1/chat/completions", {{"messages", messages},
                                                              {"tools", kTools},
                                                              {"chat_template_kwargs", {{"date_string", "today"}}},
                                                              {"max_tokens", 1}});
    EXPECT_EQ(answer.json()["usage"]["prompt_tokens"], tokens.size()) << answer.body;
  }
}

TEST(Tools, OtherPathsRefuseWhatAChatRefuses) {
  const Running server(small_options("tools-hermes"));
  const JsonValue messages = {{{"role", "user"}, {"content", "x"}}};
  for (const char* path : {"/tokenize", "/apply-template"}) {
    const Reply choice = server.post(path, {{"messages", messages}, {"tool_choice", "required"}});
    EXPECT_EQ(choice.status, 400) << path;
    EXPECT_EQ(choice.json()["error"]["param"], "tool_choice") << path;
    const Reply tools = server.post(path, {{"messages", messages}, {"tools", {{{"type", "function"}}}}});
    EXPECT_EQ(tools.json()["error"]["param"], "tools[0]") << path;
  }
}

TEST(Tools, TimeIsUp) {
  ServerOptions options = small_options("tools-hermes");
  options.limits.schema_ms = 1;
  const Running server(std::move(options));
  const Reply reply = server.post("/v1/chat/completions", chat(JsonValue::object()));
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("to make a grammar and a prompt of"), std::string::npos) << reply.body;
}

TEST(Tools, ContentIsHandedOutAsItComes) {
  text::AnswerFormat format;  // reads everything as content
  const auto parser = std::make_shared<const text::AnswerParser>(format);
  ToolAnswer answer(parser);
  answer.add("words ");
  EXPECT_EQ(answer.take(false).size(), 1u);
  answer.add("more");
  const auto rest = answer.take(true);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].content, "more");
  EXPECT_EQ(answer.told().content, "words more");
}

TEST(Tools, ArgumentsKeepTheirOrder) {
  const Body messages = Body::parse(R"([{"role": "assistant", "tool_calls": [{"type": "function", "function":
      {"name": "tide", "arguments": "{\"hour\": 7, \"harbour\": \"\\u0042rest\"}"}}]}])");
  EXPECT_EQ(chat_messages(messages, "messages").at(0).calls.at(0).arguments, R"({"hour":7,"harbour":"Brest"})");
}

TEST(Tools, ANameAloneIsNoCallYet) {
  std::ifstream file(test::source_root() / "tests/support/templates/llama3.jinja");
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const text::ToolWish wish{text::ToolWish::Choice::automatic, kTools.dump(), {}, {}, std::chrono::seconds(20)};
  const std::vector<text::ChatMessage> messages{{"user", "When?"}};
  const auto parser = std::make_shared<const text::AnswerParser>(
      text::render_with_tools({source, "<s>", "</s>"}, messages, wish).format);
  // Llama 3 calls with "parameters": what else has the form of a call is content, streamed too.
  const std::string text = R"({"name": "wind", "arguments": {"hour": 7}})";
  ToolAnswer answer(parser);
  for (const char c : text) {
    answer.add({&c, 1});
    answer.take(false);
  }
  answer.take(true);
  EXPECT_EQ(answer.told().content, text);
  EXPECT_TRUE(answer.told().calls.empty());
}

}  // namespace
}  // namespace glimpse::server
