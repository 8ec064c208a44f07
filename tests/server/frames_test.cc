// What stands around a token's text in a stream is made once: each event is what OpenAI's API says, whatever the text.
#include <gtest/gtest.h>

#include <utility>

#include "glimpse/server/answer_json.h"
#include "tests/server/client.h"

namespace glimpse::server {
namespace {

/// The one event of a text.
JsonValue event_of(const AnswerHead& head, std::string_view text, std::int64_t index = 0) {
  std::string sent;
  ChunkText{head, index}.frame().add_event(sent, text);
  const std::vector<std::string> events = events_of(sent);
  EXPECT_EQ(events.size(), 1u) << sent;
  EXPECT_TRUE(sent.starts_with("data: {") && sent.ends_with("}\n\n")) << sent;
  return JsonValue::parse(events.at(0));
}

TEST(Frames, AnyTextIsTheEventsText) {
  AnswerHead head;
  head.id = "cmpl-1";
  head.model = R"(a "?" of "text":"?")";
  head.created = 17;
  const std::pair<std::string, std::string> texts[] = {
      {" word", " word"},
      {"", ""},
      {"?", "?"},
      {"\"?\"", "\"?\""},
      {"a\\b\n\t\x01\x7f", "a\\b\n\t\x01\x7f"},
      {"\xc3\xa4 \xf0\x9f\x8c\x8a", "\xc3\xa4 \xf0\x9f\x8c\x8a"},
      {"\xff half \xf0\x9f", "\xef\xbf\xbd half \xef\xbf\xbd"},
      {std::string("a\0b", 3), std::string("a\0b", 3)},
  };
  for (const auto& [text, told] : texts) {
    const JsonValue want = {
        {"id", "cmpl-1"},
        {"object", "text_completion"},
        {"created", 17},
        {"model", head.model},
        {"choices", {{{"index", 3}, {"text", told}, {"logprobs", nullptr}, {"finish_reason", nullptr}}}}};
    EXPECT_EQ(event_of(head, text, 3), want) << text;
  }
}

TEST(Frames, ChatsHaveADeltaAndStreamsWithUsageANull) {
  AnswerHead head;
  head.id = "chatcmpl-2";
  head.model = "m";
  head.chat = head.include_usage = true;
  const JsonValue want = {
      {"id", "chatcmpl-2"},
      {"object", "chat.completion.chunk"},
      {"created", 0},
      {"model", "m"},
      {"choices",
       {{{"index", 0}, {"delta", {{"content", "a\"b"}}}, {"logprobs", nullptr}, {"finish_reason", nullptr}}}},
      {"usage", nullptr}};
  EXPECT_EQ(event_of(head, "a\"b"), want);
}

}  // namespace
}  // namespace glimpse::server
