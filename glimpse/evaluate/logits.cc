#include "glimpse/evaluate/logits.h"

#include <algorithm>

#include "glimpse/base/error.h"

namespace glimpse::evaluate {

engine::AttentionStats forced_logits(engine::Engine& engine, const plan::Plan& plan, const ForcedText& text,
                                     const OnLogits& on_logits) {
  const auto length = static_cast<std::int64_t>(text.tokens.size());
  check(text.prefill >= 0 && text.prefill <= length && text.first_wanted >= 0, "the prefill is a part of the text");
  engine::Sequence sequence = engine.open(plan);
  bool go_on = true;
  const auto still = [&] { return go_on = go_on && (!text.go_on || text.go_on()); };
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return text.tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  const std::int64_t silent = std::min(text.prefill, text.first_wanted);
  if (silent > 0) sequence.prefill(part(0, silent), {}, still);
  if (go_on && silent < text.prefill) {
    sequence.prefill(
        part(silent, text.prefill),
        [&](std::int64_t position, std::span<const float> logits) {
          if (go_on) go_on = on_logits(position, logits);
        },
        still);
  }
  for (std::int64_t position = text.prefill; go_on && position < length; ++position) {
    const std::span<const float> logits = sequence.decode(text.tokens[static_cast<std::size_t>(position)]);
    if (position >= text.first_wanted) go_on = on_logits(position, logits);
  }
  return sequence.stats();
}

}  // namespace glimpse::evaluate
