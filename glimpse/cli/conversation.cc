#include "glimpse/cli/conversation.h"

#include <algorithm>

namespace glimpse::cli {
namespace {

using text::Token;

bool begins_with(const std::vector<Token>& tokens, const std::vector<Token>& start) {
  return tokens.size() >= start.size() && std::equal(start.begin(), start.end(), tokens.begin());
}

}  // namespace

Conversation::Conversation(const text::Tokenizer& tokenizer, bool raw, std::optional<std::string> system)
    : tokenizer_(&tokenizer), raw_(raw) {
  if (system) messages_.push_back({"system", std::move(*system)});
}

std::vector<Token> Conversation::prompt_for(const std::string& question) const {
  if (raw_) {
    std::vector<Token> prompt = said_;
    const std::string text = said_.empty() ? question : "\n" + question;
    const std::vector<Token> more = tokenizer_->encode(text, text::Special::as_text, said_.empty());
    prompt.insert(prompt.end(), more.begin(), more.end());
    return prompt;
  }
  std::vector<text::ChatMessage> messages = messages_;
  messages.push_back({"user", question});
  std::vector<Token> whole = tokenizer_->apply_chat(messages, true);
  if (said_.empty()) return whole;

  // What the template puts behind an answer, from an empty one; and what comes behind the whole history.
  std::vector<text::ChatMessage> asked(messages_.begin(), messages_.end() - 1);
  const std::vector<Token> open = tokenizer_->apply_chat(asked, true);
  asked.push_back({"assistant", ""});
  const std::vector<Token> closed = tokenizer_->apply_chat(asked, false);
  const std::vector<Token> history = tokenizer_->apply_chat(messages_, false);
  // A template that rewrites its history is followed, at the price of reading it again.
  if (!begins_with(closed, open) || !begins_with(whole, history)) return whole;
  std::vector<Token> prompt = said_;
  prompt.insert(prompt.end(), closed.begin() + static_cast<std::ptrdiff_t>(open.size()), closed.end());
  prompt.insert(prompt.end(), whole.begin() + static_cast<std::ptrdiff_t>(history.size()), whole.end());
  return prompt;
}

void Conversation::add(Turn turn) {
  messages_.push_back({"user", std::move(turn.question)});
  messages_.push_back({"assistant", std::move(turn.answer_text)});
  said_ = std::move(turn.prompt);
  said_.insert(said_.end(), turn.answer.begin(), turn.answer.end());
}

}  // namespace glimpse::cli
