// How much of a head's softmax mass its set captures: known for free where the set was chosen from exact scores of all
// keys, and measured beside the step where somebody audits.
#include <chrono>

#include "glimpse/attention/runner_state.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;
using plan::SetPer;

}  // namespace

void Coverage::add(double mass) {
  sum += mass;
  ++count;
  least = std::min(least, mass);
}

Coverage& Coverage::operator+=(const Coverage& other) {
  sum += other.sum;
  count += other.count;
  least = std::min(least, other.least);
  return *this;
}

/// Mean over the queries of the mass that the tokens of `list` have.
double Runner::State::captured_mass(const HeadScores& head, std::span<const std::int32_t> list, ThreadScratch& thread) {
  const std::size_t tokens = list.size();
  const auto group = static_cast<std::size_t>(head.group);
  auto& gathered = thread.gathered;
  if (gathered.size() < (group + 1) * tokens) gathered.resize((group + 1) * tokens);
  for (std::size_t j = 0; j < group; ++j) {
    const float* scores = head.scores + j * head.stride;
    float* to = gathered.data() + j * tokens;
    for (std::size_t i = 0; i < tokens; ++i) to[i] = scores[list[i]];
  }
  const std::span<float> mean(gathered.data() + group * tokens, tokens);
  kernels::pool_mean_probability(gathered.data(), tokens, head.lse, head.group, mean);
  double sum = 0;
  for (const float p : mean) sum += static_cast<double>(p);
  return std::min(sum, 1.0);
}

/// The selecting thread's scores of all tokens are still there.
void Runner::State::note_coverage(BatchEntry& entry, plan::SlotId at, const HeadScores& head, const PublishedSet& set,
                                  ThreadScratch& thread) {
  Coverage& known = entry.known[entry.rows.state->head(at.layer, at.head)];
  if (set.everything) {
    known.add(1);
    return;
  }
  const bool per_query = set.lists.size() > 1;
  for (std::size_t j = 0; j < set.lists.size(); ++j) {
    HeadScores own = head;
    if (per_query) own = {head.scores + j * head.stride, head.stride, head.lse + j, 1};
    known.add(captured_mass(own, set.lists[j], thread));
  }
}

/// Attend phase, one item a head: the truth about what the head reads in this step.
void Runner::State::add_audit(BatchEntry& entry, int index) {
  for (int head = 0; head < shape.kv_heads; ++head) {
    // What a head has forgotten has no score any more.
    const kernels::HeadView& view = entry.views[static_cast<std::size_t>(head)];
    if (view.positions != nullptr || view.slots < entry.tokens) continue;
    attend_work.add({Item::Kind::audit, -1, index, head, 0, 0, nullptr, 0});
  }
}

void Runner::State::run_audit(const Item& item, int layer, const float* q, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  ThreadScratch& thread = threads[static_cast<std::size_t>(ith)];
  const Stopwatch watch(&entry.audit_s[static_cast<std::size_t>(item.head)]);  // one item a head and layer
  const plan::Role& head_role = role(entry, layer, item.head);
  Coverage& audited = entry.audited[entry.rows.state->head(layer, item.head)];
  PublishedSet window;
  const PublishedSet* set = nullptr;
  if (!entry.dense && head_role.kind == RoleKind::select && head_role.attends_set) {
    set = &entry.rows.state->sets.at({layer, selector(entry, head_role).per == SetPer::layer ? 0 : item.head});
  } else if (!entry.dense && head_role.kind == RoleKind::reuse) {
    set = &entry.rows.state->sets.at(head_role.reads);
  } else if (!entry.dense && head_role.kind == RoleKind::stream) {
    const plan::Selector& how = selector(entry, head_role);
    const std::int64_t local = plan::window_tokens(how, entry.tokens);
    auto& list = window.lists.emplace_back();
    for (std::int64_t i = 0; i < entry.tokens; ++i) {
      if (i < how.sink || i >= entry.tokens - local) list.push_back(static_cast<std::int32_t>(i));
    }
    set = &window;
  }
  if (set == nullptr || set->everything) {
    audited.add(1);
    return;
  }
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const auto queries = static_cast<std::size_t>(group);
  if (thread.audit_scores.size() < queries * (tokens + 1)) thread.audit_scores.resize(queries * (tokens + 1));
  kernels::ScoreItem work;
  work.head = &entry.views[static_cast<std::size_t>(item.head)];
  work.query = head_query(entry, q, 0, item.head);
  work.group = group;
  work.scale = scale;
  work.end = static_cast<std::int32_t>(tokens);
  work.scores = thread.audit_scores.data();
  work.score_stride = tokens;
  kernels::score(cache->shape().format, work);
  float* lse = thread.audit_scores.data() + queries * tokens;
  for (std::size_t j = 0; j < queries; ++j) {
    lse[j] = kernels::log_sum_exp({thread.audit_scores.data() + j * tokens, tokens});
  }
  const bool per_query = set->lists.size() > 1;
  for (std::size_t j = 0; j < set->lists.size(); ++j) {
    HeadScores own{thread.audit_scores.data(), tokens, lse, group};
    if (per_query) own = {thread.audit_scores.data() + j * tokens, tokens, lse + j, 1};
    audited.add(captured_mass(own, set->lists[j], thread));
  }
}

/// In the order of layers and heads, whoever computed them.
void Runner::State::end_coverage(BatchEntry& entry) {
  for (const Coverage& known : entry.known) entry.counters.coverage += known;
  for (const Coverage& audited : entry.audited) entry.counters.audited += audited;
  if (entry.rows.audit) entry.counters.audits = 1;
}

}  // namespace glimpse::attention
