#include "glimpse/evaluate/observed.h"

#include <algorithm>
#include <optional>

namespace glimpse::evaluate {
namespace {

/// A fork that has what `plan` would have observed; none where it would have seen something else.
std::optional<engine::Sequence> fork_of(const engine::Sequence& observed, const plan::Plan& by,
                                        const plan::Plan& plan) {
  engine::Sequence fork = observed.fork(plan);
  if (by == plan) return fork;
  // Of another plan's a fork has the heat at most, and an empty one where that is another.
  const std::vector<float> heat = fork.heat(0);
  if (!plan.retentions.empty() || heat.empty() || heat != observed.heat(0)) return std::nullopt;
  return fork;
}

}  // namespace

Start ObservedPrompts::start(const engine::Sequence& dense, const plan::Plan& plan,
                             std::span<const engine::Token> prompt) {
  for (const Observed& each : all_) {
    const std::span<const engine::Token> tokens = each.start.sequence.tokens();
    if (each.dense != &dense || each.plan.prefill != plan.prefill || !std::ranges::equal(tokens, prompt)) continue;
    if (auto fork = fork_of(each.start.sequence, each.plan, plan)) return {*std::move(fork), each.start.logits};
  }
  const std::int64_t before = plan.prefill.dense_tokens(std::ssize(prompt));
  engine::Sequence sequence = dense.fork(plan, before);
  const std::span<const float> logits = sequence.prefill(prompt.subspan(static_cast<std::size_t>(before)));
  all_.push_back({&dense, plan, {std::move(sequence), {logits.begin(), logits.end()}}});
  const Start& made = all_.back().start;
  return {made.sequence.fork(plan), made.logits};
}

}  // namespace glimpse::evaluate
