#include "glimpse/engine/prefix/prefix_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "glimpse/engine/fork.h"
#include "glimpse/kernels/views.h"

namespace glimpse::engine {
namespace {

/// True when whoever is served by `old` is served as well by `fresh`.
bool covers(const KeptPrefix& fresh, const KeptPrefix& old) {
  const std::vector<Token>&of = fresh.sequence.tokens, &tokens = old.sequence.tokens;
  if (old.salt != fresh.salt || tokens.size() > of.size()) return false;
  if (!std::equal(tokens.begin(), tokens.end(), of.begin())) return false;
  if (!old.sequence.made.begins(fresh.sequence.made)) return false;
  if (!old.at_end() && !fresh.whole) return false;
  if (old.at_end() && (!fresh.at_end() || tokens.size() != of.size())) return false;
  // A sparse prefill serves its own plan.
  return old.sequence.plan() == fresh.sequence.plan() || (!old.at_end() && !old.sequence.plan().prefill.sparse);
}

/// What it keeps beside its pages.
std::int64_t other_bytes(const ActiveSequence& sequence) {
  const std::size_t text = sequence.tokens.size() * sizeof(Token) + sequence.attention.boundaries.size();
  return static_cast<std::int64_t>(sequence.attention.index_memory() + text + sequence.logits.size() * sizeof(float));
}

}  // namespace

void PrefixCache::keep(kv::Cache& cache, ActiveSequence&& sequence, const std::string& salt) {
  std::list<KeptPrefix> fresh(1);
  fresh.front().sequence = std::move(sequence);
  try {
    fresh.front().salt = salt;
    add(cache, fresh);
  } catch (...) {
    if (!fresh.empty()) close_sequence(cache, fresh.front().sequence);
    throw;
  }
  if (!fresh.empty()) close_sequence(cache, fresh.front().sequence);
}

void PrefixCache::add(kv::Cache& cache, std::list<KeptPrefix>& fresh) {
  KeptPrefix& prefix = fresh.front();
  ActiveSequence& kept = prefix.sequence;
  prefix.whole = !forgetful_head(cache, kept).has_value();
  if (!on() || (!prefix.at_end() && (!prefix.whole || kept.length < kernels::kPageTokens))) return;
  const auto better =
      std::find_if(prefixes_.begin(), prefixes_.end(), [&](const KeptPrefix& old) { return covers(old, prefix); });
  if (better != prefixes_.end()) return touch(*better);
  kept.on_sets = {};
  kept.stats = {};
  if (!prefix.at_end()) {
    attention::SequenceState rows;
    rows.boundaries = std::move(kept.attention.boundaries);
    kept.attention = std::move(rows);
  }
  cache.trim(kept.id);
  for (auto each = prefixes_.begin(); each != prefixes_.end();) {
    const auto old = each++;
    if (!covers(prefix, *old)) continue;
    close_sequence(cache, old->sequence);
    prefixes_.erase(old);
  }
  prefixes_.splice(prefixes_.end(), fresh);
  count(cache);
  while (limit_ > 0 && bytes_ > limit_ && evict(cache)) {
  }
}

bool PrefixCache::evict(kv::Cache& cache) {
  if (prefixes_.empty()) return false;
  close_sequence(cache, prefixes_.front().sequence);
  prefixes_.pop_front();
  count(cache);
  return true;
}

PrefixCache::Found PrefixCache::find(const Asked& asked, const std::string& salt) {
  Found best;
  for (KeptPrefix& prefix : prefixes_) {
    if (prefix.salt != salt) continue;
    const Admitted share = admitted(prefix.offered(), asked);
    // Of equal ones the one used last.
    if (share.tokens > 0 && share.tokens >= best.share.tokens) best = {&prefix, share};
  }
  return best;
}

void PrefixCache::touch(const KeptPrefix& prefix) {
  const auto place =
      std::find_if(prefixes_.begin(), prefixes_.end(), [&](const auto& each) { return &each == &prefix; });
  if (place != prefixes_.end()) prefixes_.splice(prefixes_.end(), prefixes_, place);
}

void PrefixCache::count(const kv::Cache& cache) {
  std::vector<kv::SequenceId> ids;
  bytes_ = 0;
  for (const KeptPrefix& prefix : prefixes_) {
    ids.push_back(prefix.sequence.id);
    bytes_ += other_bytes(prefix.sequence);
  }
  pages_ = cache.distinct_pages(ids);
  bytes_ += pages_ * 2 * static_cast<std::int64_t>(cache.shape().format.page_bytes());
}

ActiveSequence fork_prefix(const ActiveSequence& source, const plan::Plan& plan, const Admitted& share,
                           Programs& programs, kv::Cache& cache) {
  if (share.at_end) {
    ActiveSequence fork = forked(source, plan, source.length, programs, cache);
    fork.logits = source.logits;
    return fork;
  }
  ActiveSequence fork;
  fork.program = program_of(plan, programs);
  fork.attention = attention::SequenceState(plan, programs.gates);
  const auto tokens = static_cast<std::ptrdiff_t>(share.tokens);
  const auto& boundaries = source.attention.boundaries;
  fork.attention.boundaries.assign(boundaries.begin(), boundaries.begin() + tokens);
  fork.tokens.assign(source.tokens.begin(), source.tokens.begin() + tokens);
  fork.made = source.made;
  fork.made.cut(share.tokens);
  if (!(plan == source.plan())) fork.made.change_plan();
  fork.length = share.tokens;
  fork.open_prompt = true;
  fork.id = cache.fork(source.id);
  try {
    cache.recall_all(fork.id);
    cache.truncate(fork.id, source.length - share.tokens);
  } catch (...) {
    close_sequence(cache, fork);
    throw;
  }
  return fork;
}

}  // namespace glimpse::engine
