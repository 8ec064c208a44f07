#include "glimpse/evaluate/sets.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "glimpse/evaluate/logits.h"
#include "glimpse/evaluate/set_quality.h"

namespace glimpse::evaluate {
namespace {

/// A trace with lists of its own: those of the engine end with the callback.
class KeptTrace {
 public:
  explicit KeptTrace(const engine::SetTrace& trace)
      : trace_(trace),
        tokens_(trace.tokens.begin(), trace.tokens.end()),
        published_(trace.published.begin(), trace.published.end()) {
    head_.layer = trace.layer;
    head_.kv_head = trace.kv_head;
    head_.query.assign(trace.query.begin(), trace.query.end());
    head_.sets.assign(trace.query_sets.begin(), trace.query_sets.end());
  }

  double coverage(const KeyHistory& keys, int head_dim) const {
    if (trace_.reads_all) return 1;
    const std::span<const float> rows = keys.keys(head_.layer, head_.kv_head);
    if (!head_.sets.empty()) return evaluate::coverage(head_, rows, head_dim);
    return evaluate::coverage({head_.layer, head_.kv_head, {tokens_}, head_.query}, rows, head_dim);
  }

  plan::SlotId at() const { return {head_.layer, head_.kv_head}; }
  /// What it handed on: a list, or one for each query head.
  std::span<const std::vector<std::int32_t>> published() const {
    if (!trace_.publishes || trace_.publishes_all) return {};
    return head_.sets.empty() ? std::span(&published_, 1) : std::span(head_.sets);
  }

  engine::SetTrace view() const {
    engine::SetTrace view = trace_;
    view.tokens = tokens_;
    view.query_sets = head_.sets;
    view.published = published_;
    view.query = head_.query;
    return view;
  }

 private:
  engine::SetTrace trace_;
  std::vector<std::int32_t> tokens_, published_;
  HeadSets head_;
};

/// What the heads with an index chose in all steps, list by list.
class ChosenUnits {
 public:
  explicit ChosenUnits(const plan::ModelShape& shape)
      : kv_heads_(shape.kv_heads),
        lists_(static_cast<std::size_t>(shape.group())),
        histories_(static_cast<std::size_t>(shape.layers * shape.kv_heads) * lists_) {}

  /// After a decode step of the sequence, whose heads said what they did.
  void follow(const engine::Sequence& sequence, std::span<const KeptTrace> heads) {
    for (const KeptTrace& head : heads) {
      const auto [layer, kv_head] = head.at();
      const std::span<const std::vector<std::int32_t>> lists = head.published();
      UnitHistory* const histories = &histories_[static_cast<std::size_t>(layer * kv_heads_ + kv_head) * lists_];
      for (std::size_t j = 0; j < lists_; ++j) {
        j < lists.size() ? histories[j].add(sequence.units_of(layer, kv_head, lists[j])) : histories[j].interrupt();
      }
    }
  }

  Stability stability() const {
    Stability sum;
    for (const UnitHistory& history : histories_) sum += history.stability();
    return sum;
  }

 private:
  int kv_heads_;
  std::size_t lists_;                   ///< of a head, at most
  std::vector<UnitHistory> histories_;  ///< [layers, kv_heads, lists]
};

}  // namespace

SetsResult run_sets(engine::Engine& engine, const plan::Plan& plan, const SetsText& text,
                    const SetsCallbacks& callbacks) {
  const auto length = static_cast<std::int64_t>(text.tokens.size());
  require_prompt(text.prompt, length);
  const std::span<const Token> prompt = text.tokens.first(static_cast<std::size_t>(text.prompt));
  const plan::ModelShape shape = engine.shape();
  KeyHistory keys(shape);
  if (plan::forgets(plan)) {
    engine::Sequence dense = engine.open(plan::dense_plan(shape));
    dense.prefill(prompt);
    keys.follow(dense);
  }
  engine::Sequence sequence = engine.open(plan);
  sequence.prefill(prompt);
  keys.tokens() > 0 ? keys.replace(sequence) : keys.follow(sequence);

  std::vector<KeptTrace> heads;
  sequence.on_sets([&](const engine::SetTrace& trace) { heads.emplace_back(trace); });
  ChosenUnits units(shape);
  SetsResult result;
  double sum = 0, least = 1;
  std::int64_t count = 0;
  bool go_on = true;
  for (std::int64_t position = text.prompt; go_on && position < length; ++position) {
    const Token token = text.tokens[static_cast<std::size_t>(position)];
    callbacks.on_token(token);
    heads.clear();
    sequence.decode(token);
    keys.follow(sequence);
    units.follow(sequence, heads);
    for (const KeptTrace& head : heads) {
      // Rounding may carry a sum of probabilities over 1.
      const double mass = std::min(head.coverage(keys, shape.head_dim), 1.0);
      sum += mass;
      least = std::min(least, mass);
      ++count;
      callbacks.on_head(head.view(), mass);
    }
    ++result.steps;
    go_on = callbacks.on_step(sequence.stats());
  }
  result.attention = sequence.stats();
  result.coverage_mean = sum / static_cast<double>(count);
  result.coverage_min = least;
  result.units = units.stability();
  return result;
}

}  // namespace glimpse::evaluate
