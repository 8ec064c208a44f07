#include "glimpse/attention/cpu/audit.h"

#include <chrono>

#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

/// Mean over the queries of the mass that the tokens of `list` have.
double captured_mass(const HeadScores& head, std::span<const std::int32_t> list, ThreadScratch& thread) {
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

/// Where a head's coverage goes, and space.
struct Captured {
  ThreadScratch& thread;
  Coverage& coverage;
};

/// Adds what the lists of a slot capture of a head's scores of all tokens.
void add_mass(Pass& pass, const BatchEntry& entry, plan::SlotId slot, const HeadScores& head, const Captured& to) {
  const int set = entry.set_of(slot), lists = entry.lists_of(slot);
  if (pass.sets.everything(set)) return to.coverage.add(1);
  for (int j = 0; j < lists; ++j) {
    HeadScores own = head;
    if (lists > 1) own = {head.scores + static_cast<std::size_t>(j) * head.stride, head.stride, head.lse + j, 1};
    to.coverage.add(captured_mass(own, pass.sets.list(set + j), to.thread));
  }
}

}  // namespace

void note_coverage(Pass& pass, BatchEntry& entry, plan::SlotId at, const HeadScores& head, ThreadScratch& thread) {
  Coverage& known = entry.known[entry.rows.state->head(at.layer, at.head)];
  add_mass(pass, entry, entry.rows.program->select(at.layer, at.head).writes, head, {thread, known});
}

/// Attend phase, one item a head: the truth about what the head reads in this step.
void add_audit(Pass& pass, BatchEntry& entry, int index) {
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    // What a head has forgotten has no score any more.
    const kernels::HeadView& view = entry.views[static_cast<std::size_t>(head)];
    if (view.positions != nullptr || view.slots < entry.tokens) continue;
    pass.items.add({Item::Kind::audit, index, head});
  }
}

void run_audit(Pass& pass, const Call& call, const Item& item) {
  BatchEntry& entry = pass.entry(item.batch);
  ThreadScratch& thread = pass.thread(call.ith);
  const Stopwatch watch(&entry.audit_s[static_cast<std::size_t>(item.head)]);  // one item a head and layer
  const HeadOp& op = entry.head(call.layer, item.head);
  Coverage& audited = entry.audited[entry.rows.state->head(call.layer, item.head)];
  const bool reads_set = !entry.dense && op.reads == HeadOp::Reads::set;
  const bool reads_window = !entry.dense && op.reads == HeadOp::Reads::window;
  if ((!reads_set && !reads_window) || (reads_set && pass.sets.everything(entry.set_of(op.set)))) {
    audited.add(1);
    return;
  }
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const auto queries = static_cast<std::size_t>(pass.group);
  if (thread.audit_scores.size() < queries * (tokens + 1)) thread.audit_scores.resize(queries * (tokens + 1));
  kernels::ScoreItem work;
  work.head = &entry.views[static_cast<std::size_t>(item.head)];
  work.query = pass.head_query(entry, call.q, 0, item.head);
  work.group = pass.group;
  work.scale = pass.scale;
  work.end = static_cast<std::int32_t>(tokens);
  work.scores = thread.audit_scores.data();
  work.score_stride = tokens;
  kernels::score(pass.cache->shape().format, work);
  float* lse = thread.audit_scores.data() + queries * tokens;
  for (std::size_t j = 0; j < queries; ++j) {
    lse[j] = kernels::log_sum_exp({thread.audit_scores.data() + j * tokens, tokens});
  }
  const HeadScores scored{thread.audit_scores.data(), tokens, lse, pass.group};
  if (reads_set) return add_mass(pass, entry, op.set, scored, {thread, audited});
  window_positions(*op.window, entry.tokens, thread.set);
  audited.add(captured_mass(scored, thread.set, thread));
}

/// In the order of layers and heads, whoever computed them.
void end_coverage(BatchEntry& entry) {
  for (const Coverage& known : entry.known) entry.counters.coverage += known;
  for (const Coverage& audited : entry.audited) entry.counters.audited += audited;
  if (entry.rows.audit) entry.counters.audits = 1;
}

}  // namespace glimpse::attention
