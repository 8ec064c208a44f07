// Penalties for tokens that came before: which tokens those are, and what they make of a logit. A value; one thread at
// a time.
#pragma once

#include <deque>
#include <unordered_map>

#include "glimpse/text/sampling_options.h"

namespace glimpse::text {

class Penalties {
 public:
  Penalties() = default;
  explicit Penalties(const SamplingOptions& options);

  /// False: all logits stay as they are.
  bool any() const { return any_; }
  /// Takes in the next token.
  void accept(Token token, bool of_answer);

  struct Count {
    int all = 0;      ///< uses in sight
    int counted = 0;  ///< of them, those that frequency and presence penalties count
  };
  const std::unordered_map<Token, Count>& counts() const { return counts_; }
  /// The logit of a token that was used so often.
  float penalised(float logit, const Count& count) const;

 private:
  struct Use {
    Token token = -1;
    bool counted = false;
  };

  bool any_ = false, counts_prompt_ = true;
  int last_n_ = 0;  ///< tokens in sight; -1: all
  float repeat_ = 1, frequency_ = 0, presence_ = 0;
  std::deque<Use> uses_;  ///< in sight, the oldest first; none where all are
  std::unordered_map<Token, Count> counts_;
};

}  // namespace glimpse::text
