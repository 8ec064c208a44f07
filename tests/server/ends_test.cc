// How answers end, and how far their prompts are on the way: a failure is an error and no reason of an end.
#include <gtest/gtest.h>

#include "glimpse/policies/policy.h"
#include "glimpse/server/answer.h"
#include "glimpse/server/answer_json.h"
#include "tests/server/client.h"

namespace glimpse::server {
namespace {

std::string document(int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += "the river was high and the fox went to the market ";
  return text;
}

TEST(Ends, HaveTheirWords) {
  using Reason = engine::FinishReason;
  EXPECT_EQ(finish_word(Reason::end_of_text), "stop");
  EXPECT_EQ(finish_word(Reason::stop), "stop");
  EXPECT_EQ(finish_word(Reason::length), "length");
  EXPECT_EQ(finish_word(Reason::context_full), "length");
  EXPECT_EQ(finish_word(Reason::cancelled), "cancelled");
  EXPECT_EQ(finish_word(Reason::failed), "error");
}

TEST(Ends, ARequestThatFailedIsAnErrorAndNoAnswer) {
  engine::Engine engine(small_options().engine);
  engine::Service service(engine);
  engine::Request good, bad;
  good.prompt = {1, 2, 3};
  good.plan = policies::make_plan("full", engine.shape(), {});
  good.max_tokens = 100000;
  bad.plan = good.plan;  // without a prompt: the engine refuses it
  std::vector<engine::Stream> streams;
  streams.push_back(service.submit(good));
  streams.push_back(service.submit(bad));
  AnswerHead head;
  head.tokenizer = &engine.tokenizer();
  Answer answer(std::move(head), std::move(streams));
  std::string sent;
  while (!answer.failure()) {
    answer.collect();
    sent += answer.events();
  }
  const std::vector<std::string> events = events_of(sent);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  const JsonValue error = JsonValue::parse(events[events.size() - 2]);
  EXPECT_EQ(error["error"]["type"], "invalid_request_error");
  EXPECT_NE(error["error"]["message"].get<std::string>().find("prompt"), std::string::npos) << error;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    const JsonValue chunk = JsonValue::parse(events[i]);
    EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null()) << chunk;
  }
  EXPECT_EQ(answer.events(), "") << "nothing follows";
}

struct Progress {
  std::vector<JsonValue> told;
  std::int64_t prompt = 0, cached = 0;
};

Progress progress_of(const Running& server, const std::string& path, JsonValue body) {
  body.update({{"max_tokens", 4}, {"temperature", 0}, {"stream", true}, {"stream_options", {{"include_usage", true}}}});
  const Reply reply = server.post(path, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  Progress progress;
  bool text = false;
  for (const std::string& event : events_of(reply.body)) {
    if (event == "[DONE]") continue;
    const JsonValue json = JsonValue::parse(event);
    if (json["choices"].empty()) {
      progress.prompt = json["usage"]["prompt_tokens"];
      progress.cached = json["usage"]["prompt_tokens_details"]["cached_tokens"];
    } else if (json.contains("prompt_progress")) {
      EXPECT_FALSE(text) << "before any text";
      EXPECT_TRUE(json["choices"][0]["finish_reason"].is_null());
      progress.told.push_back(json["prompt_progress"]);
    } else {
      const JsonValue& choice = json["choices"][0];
      text = text || !choice.value("text", choice.value("delta", JsonValue::object()).value("content", "")).empty();
    }
  }
  return progress;
}

TEST(Progress, IsToldAsLlamaCppDoes) {
  ServerOptions options = small_options();
  options.engine.prefix_bytes = -1;
  options.engine.prefill_chunk = 16;
  const Running server(std::move(options));
  for (const char* question : {"who", "where is it"}) {
    const JsonValue body{{"prompt", document(12) + question}, {"return_progress", true}};
    const Progress progress = progress_of(server, "/v1/completions", body);
    EXPECT_EQ(progress.cached > 0, question[1] == 'h' && question[2] == 'e');
    ASSERT_FALSE(progress.told.empty());
    std::int64_t last = progress.cached, time = 0;
    for (const JsonValue& told : progress.told) {
      EXPECT_EQ(told.size(), 4u);
      EXPECT_EQ(told["total"], progress.prompt);
      EXPECT_EQ(told["cache"], progress.cached);
      EXPECT_GT(told["processed"], last);
      EXPECT_GE(told["time_ms"], time);
      last = told["processed"];
      time = told["time_ms"];
    }
    EXPECT_EQ(last, progress.prompt);
  }
  const JsonValue chat{{"messages", {{{"role", "user"}, {"content", document(3)}}}}};
  EXPECT_TRUE(progress_of(server, "/v1/chat/completions", chat).told.empty()) << "nobody asked";
  JsonValue asked = chat;
  asked["return_progress"] = true;
  const Progress first = progress_of(server, "/v1/chat/completions", asked);
  ASSERT_FALSE(first.told.empty());
  EXPECT_EQ(first.told.back()["processed"], first.prompt);
  EXPECT_EQ(first.told.back()["cache"], first.prompt) << "the whole prompt was there";
  const Reply refused = server.post("/v1/chat/completions", asked);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "return_progress");
}

}  // namespace
}  // namespace glimpse::server
