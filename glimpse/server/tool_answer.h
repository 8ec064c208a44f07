// The answer to a chat with tools while its text grows: what of it is content and what are calls. A value; one thread
// at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/answer_parser.h"

namespace glimpse::server {

/// What came to an answer: content, or more of one call.
struct ToolDelta {
  std::string content;
  std::int64_t call = -1;  ///< its index; -1: content
  bool begins = false;     ///< the call's id and name come with it
  std::string id, name, arguments;
};

class ToolAnswer {
 public:
  explicit ToolAnswer(std::shared_ptr<const text::AnswerParser> parser) : parser_(std::move(parser)) {}

  void add(std::string_view text) { text_ += text; }
  /// What came since the last call; `ended`: nothing follows. A text that grows is read again each time that it has
  /// grown by a 64th, so that all readings together cost a fixed number of times its length.
  std::vector<ToolDelta> take(bool ended);
  /// All that was taken. Calls have ids.
  const text::ParsedAnswer& told() const { return told_; }

 private:
  void take_content(const std::string& content, std::vector<ToolDelta>& out);
  void take_calls(std::vector<text::ToolCall> calls, bool ended, std::vector<ToolDelta>& out);

  std::shared_ptr<const text::AnswerParser> parser_;
  std::string text_;
  std::size_t next_ = 1;  ///< length at which it is read again
  text::ParsedAnswer told_;
};

}  // namespace glimpse::server
