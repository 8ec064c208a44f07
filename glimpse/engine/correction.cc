#include "glimpse/engine/correction.h"

#include <algorithm>

namespace glimpse::engine {

void require_correction(const plan::Plan& plan) {
  require_whole_cache(plan, "a dense pass has nothing to correct them from", "--correct");
}

void correct(PassRunner& passes, ActiveSequence& sequence, std::int64_t count, int chunk) {
  const std::span<const Token> all(sequence.tokens);
  const auto most = static_cast<std::size_t>(chunk);
  for (auto first = static_cast<std::size_t>(sequence.length - count); first < all.size(); first += most) {
    PassEntry entry{&sequence, all.subspan(first, std::min(most, all.size() - first))};
    entry.kind = attention::PassKind::correct;
    entry.logits = PassEntry::Logits::none;
    passes.run_alone(entry);
  }
}

}  // namespace glimpse::engine
