#include "glimpse/evaluate/fidelity.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/evaluate/logit_statistics.h"
#include "glimpse/evaluate/logits.h"
#include "glimpse/evaluate/perplexity.h"

namespace glimpse::evaluate {
namespace {

/// Sums until end() makes means of them.
void add(Fidelity& to, const Fidelity& one) {
  if (to.tokens == 0) to.first = one.first;
  to.tokens += one.tokens;
  to.divergence += one.divergence;
  to.same_choice += one.same_choice;
  to.scored += one.scored;
  to.dense_nll += one.dense_nll;
  to.nll += one.nll;
}
void end(Fidelity& of) {
  if (of.tokens > 0) {
    of.divergence /= static_cast<double>(of.tokens);
    of.same_choice /= static_cast<double>(of.tokens);
  }
  if (of.scored > 0) {
    of.dense_nll /= static_cast<double>(of.scored);
    of.nll /= static_cast<double>(of.scored);
  }
}

class CoverageSums {
 public:
  explicit CoverageSums(int layers) : sums_(size(layers)), counts_(sums_.size()), least_(sums_.size(), 1) {}

  void add(const engine::SetTrace& trace) {
    if (!trace.reads_all && !trace.coverage) return;  // what was forgotten had a mass that nobody knows
    const double mass = trace.reads_all ? 1 : *trace.coverage;
    const std::size_t layer = size(trace.layer);
    sums_[layer] += mass;
    ++counts_[layer];
    least_[layer] = std::min(least_[layer], mass);
  }
  std::vector<std::optional<LayerCoverage>> layers() const {
    std::vector<std::optional<LayerCoverage>> made(sums_.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (counts_[i] > 0) made[i] = LayerCoverage{sums_[i] / static_cast<double>(counts_[i]), least_[i]};
    }
    return made;
  }

 private:
  std::vector<double> sums_;
  std::vector<std::int64_t> counts_;
  std::vector<double> least_;
};

void require(const FidelityText& text) {
  const auto length = static_cast<std::int64_t>(text.tokens.size());
  require_prompt(text.prompt, length);
  if (text.ranges < 1 || text.ranges > length - text.prompt) {
    throw UserError(fmt::format("{} ranges of {} decoded tokens; give 1 to {}", text.ranges, length - text.prompt,
                                length - text.prompt));
  }
}

}  // namespace

FidelityResult fidelity(engine::Engine& engine, const plan::Plan& plan, const FidelityText& text,
                        const std::function<bool(std::int64_t done)>& on_step, const std::function<bool()>& go_on) {
  require(text);
  const auto length = static_cast<std::int64_t>(text.tokens.size()), steps = length - text.prompt;
  const std::span<const Token> prompt = text.tokens.first(size(text.prompt));
  FidelityResult result;
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(prompt, {}, 0, go_on);
  if (go_on && !go_on()) return result;
  engine::Sequence sequence = engine.open(plan);
  sequence.prefill(prompt, {}, 0, go_on);
  if (go_on && !go_on()) return result;

  CoverageSums coverage(engine.shape().layers);
  sequence.on_sets([&](const engine::SetTrace& trace) { coverage.add(trace); });
  std::vector<float> wanted;
  bool goes_on = true;
  for (std::int64_t position = text.prompt; goes_on && position < length; ++position) {
    const Token token = text.tokens[size(position)];
    const std::span<const float> first = dense.decode(token);  // valid until the next pass
    wanted.assign(first.begin(), first.end());
    const std::span<const float> logits = sequence.decode(token, true);
    Fidelity one{.first = position, .tokens = 1};
    one.divergence = divergence(wanted, logits);
    one.same_choice = arg_max(logits) == arg_max(wanted) ? 1 : 0;
    if (position + 1 < length) {
      const Token next = text.tokens[size(position + 1)];
      one.scored = 1;
      one.dense_nll = token_nll(wanted, next);
      one.nll = token_nll(logits, next);
    }
    add(result.all, one);
    const std::size_t range = size((position - text.prompt) * text.ranges / steps);
    if (range == result.ranges.size()) result.ranges.emplace_back();
    add(result.ranges.back(), one);
    goes_on = on_step(position - text.prompt + 1);
  }
  end(result.all);
  for (Fidelity& range : result.ranges) end(range);
  result.layers = coverage.layers();
  result.attention = sequence.stats();
  return result;
}

}  // namespace glimpse::evaluate
