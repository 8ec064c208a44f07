#include "glimpse/evaluate/logits.h"

#include <fmt/format.h>

#include "glimpse/base/error.h"

namespace glimpse::evaluate {

void require_prompt(std::int64_t prompt, std::int64_t length) {
  if (prompt >= 1 && prompt < length) return;
  throw UserError(
      fmt::format("a prompt of {} tokens and a text of {}: at least one is prefilled and one decoded", prompt, length));
}

engine::AttentionStats forced_logits(engine::Engine& engine, const plan::Plan& plan, const ForcedText& text,
                                     const OnLogits& on_logits) {
  const auto length = static_cast<std::int64_t>(text.tokens.size());
  check(text.prefill >= 0 && text.prefill <= length && text.first_wanted >= 0, "the prefill is a part of the text");
  engine::Sequence sequence = engine.open(plan);
  bool go_on = true;
  const auto still = [&] { return go_on = go_on && (!text.go_on || text.go_on()); };
  if (text.prefill > 0) {
    const auto take = [&](std::int64_t position, std::span<const float> logits) {
      if (go_on) go_on = on_logits(position, logits);
    };
    sequence.prefill(text.tokens.first(static_cast<std::size_t>(text.prefill)), take, text.first_wanted, still);
  }
  for (std::int64_t position = text.prefill; go_on && position < length; ++position) {
    const std::span<const float> logits = sequence.decode(text.tokens[static_cast<std::size_t>(position)]);
    if (position >= text.first_wanted) go_on = on_logits(position, logits);
  }
  return sequence.stats();
}

}  // namespace glimpse::evaluate
