#include "glimpse/calibrate/trials.h"

#include <algorithm>

namespace glimpse::calibrate {

Recording record_trial(const engine::Engine& engine, const Trial& trial, int tail, int limit) {
  std::vector<Token> answer = trial.answer;
  if (!trial.right && !trial.wanted.empty()) {
    std::string wanted;
    for (const std::string& part : trial.wanted) wanted += (wanted.empty() ? "" : " ") + part;
    answer = engine.tokenizer().encode(wanted, text::Special::as_text, false);
  }
  answer.resize(std::min(answer.size(), static_cast<std::size_t>(limit)));
  std::vector<Token> tokens = trial.prompt;
  const auto length = static_cast<std::int64_t>(tokens.size());
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  const std::int64_t first = std::max<std::int64_t>(1, length - tail);
  Recording recording = record(trial.dense, engine.shape(), tokens, first);
  recording.answer = static_cast<int>(length - 1 - first);
  recording.needle = positions_of(engine.tokenizer(), trial.prompt, trial.wanted);
  return recording;
}

std::vector<std::int32_t> positions_of(const text::Tokenizer& tokenizer, std::span<const Token> tokens,
                                       const std::vector<std::string>& wanted) {
  std::string text;
  std::vector<std::size_t> ends;
  for (const Token token : tokens) {
    text += tokenizer.piece(token);
    ends.push_back(text.size());
  }
  std::vector<std::int32_t> positions;
  for (const std::string& part : wanted) {
    for (std::size_t at = text.find(part); !part.empty() && at != std::string::npos; at = text.find(part, at + 1)) {
      auto token = std::upper_bound(ends.begin(), ends.end(), at) - ends.begin();
      for (; token < static_cast<std::ptrdiff_t>(ends.size()); ++token) {
        positions.push_back(static_cast<std::int32_t>(token));
        if (ends[static_cast<std::size_t>(token)] >= at + part.size()) break;
      }
    }
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

}  // namespace glimpse::calibrate
