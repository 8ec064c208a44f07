#include "glimpse/attention/cuda/tier.h"

#include <algorithm>

#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"

namespace glimpse::attention::cuda {
namespace {

template <class See>
void for_heads(const Program& program, const See& see) {
  for (int layer = 0; layer < program.shape().layers; ++layer) {
    for (int head = 0; head < program.shape().kv_heads; ++head) {
      if (program.head(layer, head).has_tier()) see(layer, head);
    }
  }
}

}  // namespace

void Tier::begin(std::span<const SequenceRows> batch, std::span<const ProgramFacts* const> facts) {
  waits_.assign(batch.size(), 0);
  any_ = false;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!facts[i]->has_tier || !batch[i].decodes() || reads_everything(batch[i])) continue;
    for_heads(*batch[i].program, [&](int layer, int head) {
      any_ = true;
      if (cache_.waiting_pages(batch[i].sequence, layer, head) > 0) waits_[i] = 1;
    });
  }
}

std::exception_ptr Tier::end(const PassTables& tables, const PassEntry& entry, const HostSets& sets,
                             const std::int32_t* counts, PageTables& pages, ReadCounters& counters) {
  if (entry.dense || !entry.rows.decodes()) return nullptr;
  SequenceState& state = *entry.rows.state;
  const bool drafts = entry.rows.kind == PassKind::draft;  // it leaves no trace
  missing_.clear();
  evicted_.clear();
  for_heads(*entry.rows.program, [&](int layer, int head) {
    auto& kept = state.chosen_at[state.head(layer, head)];
    if (drafts) drafted_ = kept;
    step_.begin(cache_, entry.rows, {layer, head}, drafts ? drafted_ : kept);
    const int lists = entry.rows.program->select(layer, head).lists;
    const int first = first_set(entry, entry.rows.program->head(layer, head).set);
    for (int set = first; set < first + lists; ++set) {
      const auto list = sets.list(tables, set, counts);
      list ? step_.take(*list) : step_.take_everything();
    }
    step_.end();
    step_.count(counters);
    missing_.insert(missing_.end(), step_.missing().begin(), step_.missing().end());
    evicted_.insert(evicted_.end(), step_.evicted().begin(), step_.evicted().end());
  });
  try {
    if (!drafts) move(entry.rows.sequence, pages);
  } catch (const UserError&) {
    return std::current_exception();
  }
  return nullptr;
}

void Tier::move(kv::SequenceId sequence, PageTables& pages) {
  if (!evicted_.empty()) cache_.spill(sequence, evicted_);
  // Without room they go on waiting, and are read there.
  missing_.resize(std::min(missing_.size(), cache_.usage().pages_free));
  if (!missing_.empty()) cache_.recall(sequence, missing_);
  pages.moved(sequence, evicted_);
  pages.moved(sequence, missing_);
}

}  // namespace glimpse::attention::cuda
