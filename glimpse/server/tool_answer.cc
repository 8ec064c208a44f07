#include "glimpse/server/tool_answer.h"

#include <optional>
#include <random>
#include <utility>

namespace glimpse::server {
namespace {

/// Nine letters and digits: Mistral's templates take no other.
std::string fresh_id() {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string id;
  for (int i = 0; i < 9; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

}  // namespace

void ToolAnswer::take_content(const std::string& content, std::vector<ToolDelta>& out) {
  // What was told cannot be taken back: content that is now read otherwise adds nothing.
  if (content.size() <= told_.content.size() || !content.starts_with(told_.content)) return;
  out.push_back({content.substr(told_.content.size()), -1, false, {}, {}, {}});
  told_.content = content;
}

void ToolAnswer::take_calls(std::vector<text::ToolCall> calls, bool ended, std::vector<ToolDelta>& out) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    text::ToolCall& call = calls[i];
    if (i == told_.calls.size()) {
      // The name is whole when something comes behind it. A brace says nothing: the parsers write it before they know
      // that what follows are arguments.
      const bool begun = !call.arguments.empty() && call.arguments != "{";
      if (call.name.empty() || (!ended && i + 1 == calls.size() && !begun)) return;
      if (call.id.empty()) call.id = fresh_id();
      out.push_back({{}, static_cast<std::int64_t>(i), true, call.id, call.name, call.arguments});
      told_.calls.push_back(std::move(call));
      continue;
    }
    std::string& told = told_.calls[i].arguments;
    if (call.arguments.size() <= told.size() || !call.arguments.starts_with(told)) continue;
    out.push_back({{}, static_cast<std::int64_t>(i), false, {}, {}, call.arguments.substr(told.size())});
    told = std::move(call.arguments);
  }
}

std::vector<ToolDelta> ToolAnswer::take(bool ended) {
  std::vector<ToolDelta> out;
  if (!ended && text_.size() < next_) return out;
  next_ = text_.size() + text_.size() / 64 + 1;
  std::optional<text::ParsedAnswer> read = parser_->parse(text_, !ended);
  // A text that is no answer in the model's own format is handed out as it is, unless calls of it were told.
  if (!read && ended && told_.calls.empty()) read = text::ParsedAnswer{text_, {}};
  if (!read) return out;
  take_content(read->content, out);
  take_calls(std::move(read->calls), ended, out);
  return out;
}

}  // namespace glimpse::server
