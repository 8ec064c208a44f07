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

  /// Not of a head that read everything.
  SetQuality quality(const KeyHistory& keys, int head_dim) const {
    const std::span<const float> rows = keys.keys(head_.layer, head_.kv_head);
    if (!head_.sets.empty()) return evaluate::quality(head_, rows, head_dim);
    return evaluate::quality({head_.layer, head_.kv_head, {tokens_}, head_.query}, rows, head_dim);
  }

  plan::SlotId at() const { return {head_.layer, head_.kv_head}; }
  bool reads_all() const { return trace_.reads_all; }
  /// What it read: a list, or one for each query head.
  std::span<const std::vector<std::int32_t>> read() const {
    if (trace_.reads_all) return {};
    return head_.sets.empty() ? std::span(&tokens_, 1) : std::span(head_.sets);
  }
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

/// What all heads read and chose in all steps, head by head.
class Heads {
 public:
  explicit Heads(const plan::ModelShape& shape)
      : shape_(shape),
        lists_(static_cast<std::size_t>(shape.group())),
        heads_(static_cast<std::size_t>(shape.layers * shape.kv_heads)),
        read_(heads_.size() * lists_),
        chosen_(read_.size()) {}

  /// One head in a decode step of the sequence; the mass that it captured.
  double follow(const engine::Sequence& sequence, const KeptTrace& head, const KeyHistory& keys) {
    const auto [layer, kv_head] = head.at();
    const auto at = static_cast<std::size_t>(layer * shape_.kv_heads + kv_head);
    HeadReads& reads = heads_[at];
    double mass = 1;
    ++reads.steps;
    if (!head.reads_all()) {
      const SetQuality quality = head.quality(keys, shape_.head_dim);
      ++reads.sparse_steps;
      reads.sets += quality;
      // Rounding may carry a sum of probabilities over 1.
      mass = std::min(quality.mass / static_cast<double>(quality.count), 1.0);
    }
    reads.coverage += mass;
    reads.coverage_least = std::min(reads.coverage_least, mass);
    const std::span<const std::vector<std::int32_t>> read = head.read(), published = head.published();
    for (std::size_t j = 0; j < lists_; ++j) {
      UnitHistory &tokens = read_[at * lists_ + j], &units = chosen_[at * lists_ + j];
      j < read.size() ? tokens.add(read[j]) : tokens.interrupt();
      j < published.size() ? units.add(sequence.units_of(layer, kv_head, published[j])) : units.interrupt();
    }
    return mass;
  }

  std::vector<HeadReads> heads() const {
    std::vector<HeadReads> heads = heads_;
    for (std::size_t i = 0; i < read_.size(); ++i) {
      heads[i / lists_].tokens += read_[i].stability();
      heads[i / lists_].units += chosen_[i].stability();
    }
    return heads;
  }

 private:
  plan::ModelShape shape_;
  std::size_t lists_;                       ///< of a head, at most
  std::vector<HeadReads> heads_;            ///< [layers, kv_heads]
  std::vector<UnitHistory> read_, chosen_;  ///< [layers, kv_heads, lists]
};

}  // namespace

HeadReads& HeadReads::operator+=(const HeadReads& other) {
  steps += other.steps;
  sparse_steps += other.sparse_steps;
  coverage += other.coverage;
  coverage_least = std::min(coverage_least, other.coverage_least);
  sets += other.sets;
  tokens += other.tokens;
  units += other.units;
  return *this;
}

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
  Heads all(shape);
  SetsResult result;
  bool go_on = true;
  for (std::int64_t position = text.prompt; go_on && position < length; ++position) {
    const Token token = text.tokens[static_cast<std::size_t>(position)];
    callbacks.on_token(token);
    heads.clear();
    sequence.decode(token);
    keys.follow(sequence);
    for (const KeptTrace& head : heads) callbacks.on_head(head.view(), all.follow(sequence, head, keys));
    ++result.steps;
    go_on = callbacks.on_step(sequence.stats());
  }
  result.attention = sequence.stats();
  result.heads = all.heads();
  HeadReads sum;
  for (const HeadReads& head : result.heads) sum += head;
  result.coverage_mean = sum.coverage / static_cast<double>(sum.steps);
  result.coverage_min = sum.coverage_least;
  result.units = sum.units;
  return result;
}

}  // namespace glimpse::evaluate
