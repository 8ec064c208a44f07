#include "glimpse/text/penalties.h"

namespace glimpse::text {

Penalties::Penalties(const SamplingOptions& options)
    : counts_prompt_(options.penalise_prompt),
      last_n_(options.repeat_last_n),
      repeat_(options.repeat_penalty),
      frequency_(options.frequency_penalty),
      presence_(options.presence_penalty) {
  any_ = last_n_ != 0 && (repeat_ != 1.0f || frequency_ != 0.0f || presence_ != 0.0f);
}

void Penalties::accept(Token token, bool of_answer) {
  if (!any_) return;
  const bool counted = of_answer || counts_prompt_;
  Count& count = counts_[token];
  ++count.all;
  count.counted += counted ? 1 : 0;
  if (last_n_ < 0) return;
  uses_.push_back({token, counted});
  if (uses_.size() <= static_cast<std::size_t>(last_n_)) return;
  const Use oldest = uses_.front();
  uses_.pop_front();
  const auto found = counts_.find(oldest.token);
  found->second.counted -= oldest.counted ? 1 : 0;
  if (--found->second.all == 0) counts_.erase(found);
}

float Penalties::penalised(float logit, const Count& count) const {
  const float repeated = logit <= 0 ? logit * repeat_ : logit / repeat_;
  return repeated - (static_cast<float>(count.counted) * frequency_ + (count.counted > 0 ? presence_ : 0.0f));
}

}  // namespace glimpse::text
