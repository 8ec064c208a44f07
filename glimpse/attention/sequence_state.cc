#include "glimpse/attention/sequence_state.h"

#include <algorithm>

#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

std::shared_ptr<kv::Gates> gates_of(const plan::Selector& selector, const GateFiles& files) {
  const std::string& file = selector.terms.front().index.gates;
  if (file.empty()) return nullptr;
  const auto found = files.find(file);
  check(found != files.end(), "a plan's gates are loaded before its sequences");
  return found->second;
}

}  // namespace

SequenceState::SequenceState(const plan::Plan& plan, const GateFiles& files) : kv_heads_(plan.shape.kv_heads) {
  indices.resize(plan.roles.size());
  statistics.resize(plan.roles.size());
  dropped.resize(plan.roles.size());
  chosen_at.resize(plan.roles.size());
  key_ranks.resize(static_cast<std::size_t>(plan.shape.layers), 0);
  low_rank.resize(key_ranks.size());
  for (std::size_t i = 0; i < plan.roles.size(); ++i) {
    const plan::Role& role = plan.roles[i];
    if (role.kind == plan::RoleKind::select) {
      const plan::Selector& selector = plan.selectors[static_cast<std::size_t>(role.selector)];
      if (plan::is_index(selector.terms.front().source)) {
        const auto gates = gates_of(selector, files);
        const int of = static_cast<int>(i);
        indices[i] = kv::make_index(selector, plan.shape.head_dim, {gates, {of / kv_heads_, of % kv_heads_}});
        if (gates && std::find(gates_.begin(), gates_.end(), gates) == gates_.end()) gates_.push_back(gates);
      }
      const int key_rank = role.attends_set ? selector.terms.front().index.key_rank : 0;
      int& most = key_ranks[i / static_cast<std::size_t>(kv_heads_)];
      most = std::max(most, key_rank);
      wants_low_rank_ |= key_rank > 0;
      if (plan::reads_heat(selector)) heat = BlockHeat(plan.heat.per_layer ? plan.shape.layers : 1, selector.block);
    }
    if (role.retention < 0) continue;
    const plan::Retention& retention = plan.retentions[static_cast<std::size_t>(role.retention)];
    if (retention.compensates) {
      dropped[i].k_sum.assign(static_cast<std::size_t>(plan.shape.head_dim), 0);
      dropped[i].v_sum.assign(static_cast<std::size_t>(plan.shape.head_dim), 0);
      dropped[i].first = dropped[i].end = retention.sink;
    }
  }
}

SequenceState::SequenceState(const SequenceState& other) {
  *this = other;
}

SequenceState& SequenceState::operator=(const SequenceState& other) {
  if (this == &other) return *this;
  indices.clear();
  for (const auto& index : other.indices) indices.push_back(index ? index->clone() : nullptr);
  key_ranks = other.key_ranks;
  low_rank = other.low_rank;
  statistics = other.statistics;
  dropped = other.dropped;
  chosen_at = other.chosen_at;
  boundaries = other.boundaries;
  prompt_tokens = other.prompt_tokens;
  decode_steps = other.decode_steps;
  heat = other.heat;
  drafted_heat = other.drafted_heat;
  kv_heads_ = other.kv_heads_;
  wants_low_rank_ = other.wants_low_rank_;
  gates_ = other.gates_;
  return *this;
}

void SequenceState::take_over(const SequenceState& source, const plan::Plan& from, const plan::Plan& to,
                              std::int64_t tokens) {
  boundaries = source.boundaries;
  prompt_tokens = source.prompt_tokens;
  decode_steps = source.decode_steps;
  const auto selector_of = [](const plan::Plan& plan, std::size_t i) -> const plan::Selector& {
    return plan.selectors[static_cast<std::size_t>(plan.roles[i].selector)];
  };
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == nullptr || source.indices[i] == nullptr) continue;
    if (!kv::same_content(selector_of(from, i), selector_of(to, i), prompt_tokens, tokens)) continue;
    indices[i] = source.indices[i]->clone();
    indices[i]->serve(selector_of(to, i));
  }
  for (std::size_t layer = 0; layer < key_ranks.size(); ++layer) {
    if (key_ranks[layer] == source.key_ranks[layer]) low_rank[layer] = source.low_rank[layer];
  }
  // Until something is decoded heat is what the prompt's rows gave, which read everything under either plan.
  const bool observed_alike = from.prefill == to.prefill && !to.prefill.sparse && from.heat == to.heat &&
                              from.feedback == to.feedback && from.min_context == to.min_context;
  if (decode_steps == 0 && observed_alike && heat.same_shape(source.heat)) heat = source.heat;
}

bool SequenceState::is_prompt(std::int64_t tokens, bool reads_landmarks) const {
  return decode_steps == 0 || tokens >= 2 * prompt_tokens || reads_landmarks;
}

void SequenceState::end_prompt(const plan::Plan& plan, std::int64_t tokens) {
  if (!is_prompt(tokens, reads_landmarks(plan))) return;
  prompt_tokens = tokens;
  std::fill(low_rank.begin(), low_rank.end(), nullptr);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == nullptr) continue;
    const plan::Selector& selector = plan.selectors[static_cast<std::size_t>(plan.roles[i].selector)];
    if (depends_on_prompt(selector)) indices[i] = kv::make_index(selector, plan.shape.head_dim);
  }
}

std::size_t SequenceState::index_memory() const {
  std::size_t bytes = 0;
  for (const auto& index : indices) bytes += index ? index->bytes() : 0;
  for (const auto& keys : low_rank) bytes += keys ? keys->bytes() : 0;
  return bytes;
}

void SequenceState::take_back_step(std::int64_t tokens) {
  --decode_steps;
  heat.take_back(tokens);
}

void SequenceState::commit_drafts(std::int64_t rows, std::int64_t tokens, double decay) {
  decode_steps += rows;
  if (!heat.any()) return;
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    if (row < drafted_heat.size()) {
      heat.take(drafted_heat[row], decay);
    } else {
      heat.fade(tokens, decay);
    }
  }
  heat.cut(tokens);  // searches grew it for tokens that are gone
  drafted_heat.clear();
}

bool reads_landmarks(const plan::Plan& plan) {
  return std::any_of(plan.selectors.begin(), plan.selectors.end(), [](const plan::Selector& selector) {
    return !selector.terms.empty() && selector.terms.front().source == plan::Source::landmarks;
  });
}

bool depends_on_prompt(const plan::Selector& selector) {
  const plan::Source source = selector.terms.front().source;
  return source != plan::Source::page_bounds && source != plan::Source::gate;
}

bool wants_boundaries(const plan::Plan& plan) {
  return std::any_of(plan.selectors.begin(), plan.selectors.end(), [](const plan::Selector& selector) {
    return !selector.terms.empty() && selector.terms.front().source == plan::Source::chunk_tree &&
           !selector.terms.front().index.fixed_chunks;
  });
}

}  // namespace glimpse::attention
