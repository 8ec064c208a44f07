#include "glimpse/calibrate/retrieval_scores.h"

#include <algorithm>

namespace glimpse::calibrate {

RetrievalScores::RetrievalScores(const plan::ModelShape& shape)
    : shape_(shape), sums_(static_cast<std::size_t>(shape.layers * shape.heads)) {}

void RetrievalScores::begin(const Recording& recording) {
  recording_ = &recording;
  copying_.clear();
  const std::span<const Token> tokens = recording.sequence.tokens();
  for (int step = recording.answer; step < recording.steps; ++step) {
    const Token next = recording.next[static_cast<std::size_t>(step)];
    const bool copied = std::any_of(recording.needle.begin(), recording.needle.end(), [&](std::int32_t position) {
      return tokens[static_cast<std::size_t>(position)] == next;
    });
    if (copied) copying_.push_back(step);
  }
  if (!copying_.empty()) ++recordings_;
}

void RetrievalScores::add_layer(int layer, const LayerAttention& attention) {
  const std::span<const Token> tokens = recording_->sequence.tokens();
  for (const int step : copying_) {
    for (int head = 0; head < shape_.heads; ++head) {
      const std::span<const float> row = attention.row(step, head);
      const auto most = std::max_element(row.begin(), row.end()) - row.begin();
      const bool inside = std::binary_search(recording_->needle.begin(), recording_->needle.end(), most);
      if (!inside || tokens[static_cast<std::size_t>(most)] != recording_->next[static_cast<std::size_t>(step)])
        continue;
      sums_[static_cast<std::size_t>(layer * shape_.heads + head)] += 1.0 / static_cast<double>(copying_.size());
    }
  }
}

std::vector<double> RetrievalScores::scores() const {
  std::vector<double> scores = sums_;
  for (double& score : scores) score = recordings_ == 0 ? 0 : std::min(1.0, score / recordings_);
  return scores;
}

}  // namespace glimpse::calibrate
