#include "glimpse/engine/requests/answer_text.h"

#include <algorithm>
#include <utility>

namespace glimpse::engine {
namespace {

/// Bytes at the end of `text` that a stop string may begin with.
std::size_t may_begin(std::string_view text, std::string_view stop) {
  for (std::size_t count = std::min(text.size(), stop.size() - 1); count > 0; --count) {
    if (text.ends_with(stop.substr(0, count))) return count;
  }
  return 0;
}

}  // namespace

void AnswerText::release(std::size_t bytes) {
  if (bytes > given_) {
    text_ += whole_.push(std::string_view(tail_).substr(given_, bytes - given_));
    given_ = bytes;
  }
  std::size_t gone = 0, end = 0;
  while (gone < held_.size() && end + held_[gone].bytes.size() <= bytes) {
    end += held_[gone].bytes.size();
    ready_.push_back(std::move(held_[gone++]));
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(gone));
  tail_.erase(0, end);
  given_ -= end;
}

bool AnswerText::add(text::Token token, std::string_view bytes) {
  tail_ += bytes;
  if (before_stops_ > 0) {
    --before_stops_;
    held_.push_back({token, std::string(bytes)});
    release(tail_.size());
    return false;
  }
  std::size_t cut = std::string::npos, least = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t begin = tail_.find(stop);
    if (begin == std::string::npos) continue;
    const std::size_t end = begin + stop.size();
    if (end > least || (end == least && begin > cut)) continue;
    least = end;
    cut = begin;
  }
  if (cut == std::string::npos) {
    held_.push_back({token, std::string(bytes)});
    std::size_t kept = 0;
    for (const std::string& stop : stops_) kept = std::max(kept, may_begin(tail_, stop));
    release(tail_.size() - kept);
    return false;
  }
  release(cut);
  std::size_t left = given_;  // of the tokens that hold the stop string: bytes before it
  for (Piece& piece : held_) {
    piece.bytes.resize(std::min(piece.bytes.size(), left));
    left -= piece.bytes.size();
    ready_.push_back(std::move(piece));
  }
  held_.clear();
  tail_.clear();
  given_ = 0;
  text_ += whole_.finish();
  return true;
}

void AnswerText::finish() {
  release(tail_.size());
  text_ += whole_.finish();
}

std::vector<AnswerText::Piece> AnswerText::take_tokens() {
  return std::exchange(ready_, {});
}

std::string AnswerText::take_text() {
  return std::exchange(text_, {});
}

}  // namespace glimpse::engine
