#include "glimpse/engine/prefix/prefix_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "glimpse/engine/fork.h"
#include "glimpse/kv/cache.h"
#include "glimpse/kv/page_pool.h"

namespace glimpse::engine {
namespace {

/// What lies beside the pages may be so much, or this share of the cache: pages give way to requests, the rest does
/// not.
constexpr std::int64_t kOtherBytes = std::int64_t{64} << 20;
constexpr std::size_t kOtherShare = 8;

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

/// What it keeps beside its pages. An index over blocks holds the very digests that hang on them.
std::int64_t other_bytes(const kv::Cache& cache, const ActiveSequence& sequence) {
  const std::size_t summaries = std::max(sequence.attention.index_memory(), cache.digest_bytes(sequence.id));
  const std::size_t text = sequence.tokens.size() * sizeof(Token) + sequence.attention.boundaries.size();
  return static_cast<std::int64_t>(summaries + text + sequence.logits.size() * sizeof(float));
}

/// Calls `use` with each page of a sequence, of all heads and layers, that does not wait in the tier.
template <class Use>
void each_page(const kv::Cache& cache, kv::SequenceId sequence, const Use& use) {
  const kv::CacheShape& shape = cache.shape();
  for (int i = 0; i < shape.layers * shape.kv_heads; ++i) {
    const kernels::HeadView view = cache.view(sequence, i / shape.kv_heads, i % shape.kv_heads);
    const auto used = (view.slots + kernels::kPageTokens - 1) / kernels::kPageTokens;
    for (const kernels::PageId page : std::span(view.pages, static_cast<std::size_t>(used))) {
      if (page != kv::kNoPage) use(page);
    }
  }
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
    if (covers(prefix, *old)) drop(cache, old);
  }
  readers_.resize(cache.usage().pages_total);
  prefix.other_bytes = other_bytes(cache, kept);
  count(cache, prefix, true);
  prefixes_.splice(prefixes_.end(), fresh);
  const auto most_others = std::max(kOtherBytes, static_cast<std::int64_t>(cache.usage().bytes_reserved / kOtherShare));
  while ((limit_ > 0 && bytes_ > limit_) || other_bytes_ > most_others || prefixes_.size() > kMost) evict(cache);
}

bool PrefixCache::evict(kv::Cache& cache) {
  if (prefixes_.empty()) return false;
  if (on_evict_) on_evict_(prefixes_.front());
  drop(cache, prefixes_.begin());
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
  written_pages_ = -1;
}

std::int64_t PrefixCache::pages_read_by(const kv::Cache& cache, std::span<const kv::SequenceId> sequences) const {
  if (prefixes_.empty()) return 0;
  std::vector<bool> read(readers_.size());
  std::int64_t count = 0;
  for (const kv::SequenceId sequence : sequences) {
    each_page(cache, sequence, [&](kernels::PageId page) {
      if (readers_[page] == 0 || read[page]) return;
      read[page] = true;
      ++count;
    });
  }
  return count;
}

std::int64_t PrefixCache::pages_of_written(const kv::Cache& cache) const {
  std::vector<std::uint32_t> gone(readers_.size());
  std::int64_t pages = 0;
  for (const KeptPrefix& prefix : prefixes_) {
    if (!prefix.written) break;
    each_page(cache, prefix.sequence.id,
              [&](kernels::PageId page) { pages += ++gone[page] == readers_[page] ? 1 : 0; });
  }
  return pages;
}

const KeptPrefix* PrefixCache::next_to_write(const kv::Cache& cache, std::int64_t share) {
  const kv::CacheUsage usage = cache.usage();
  const std::int64_t page_bytes = 2 * static_cast<std::int64_t>(cache.shape().format.page_bytes());
  auto room = static_cast<std::int64_t>(usage.pages_total), free = static_cast<std::int64_t>(usage.pages_free);
  if (limit_ > 0) {
    room = std::min(room, limit_ / page_bytes);
    free = std::min(free, std::max<std::int64_t>(limit_ - bytes_, 0) / page_bytes);
  }
  if (free >= room / share) return nullptr;
  if (written_pages_ < 0) written_pages_ = pages_of_written(cache);
  if (free + written_pages_ >= room / share) return nullptr;
  const auto next =
      std::find_if(prefixes_.begin(), prefixes_.end(), [](const KeptPrefix& each) { return !each.written; });
  if (next == prefixes_.end()) return nullptr;
  next->written = true;
  written_pages_ = -1;
  return &*next;
}

void PrefixCache::drop(kv::Cache& cache, std::list<KeptPrefix>::iterator prefix) {
  if (on_drop_) on_drop_(*prefix);
  count(cache, *prefix, false);
  close_sequence(cache, prefix->sequence);
  prefixes_.erase(prefix);
}

void PrefixCache::count(const kv::Cache& cache, const KeptPrefix& prefix, bool comes) {
  const std::int64_t page_bytes = 2 * static_cast<std::int64_t>(cache.shape().format.page_bytes());
  std::int64_t pages = 0;
  each_page(cache, prefix.sequence.id, [&](kernels::PageId page) {
    std::uint32_t& readers = readers_[page];
    pages += comes ? (readers++ == 0 ? 1 : 0) : (--readers == 0 ? 1 : 0);
  });
  ++changes_;
  written_pages_ = -1;
  pages_ += comes ? pages : -pages;
  other_bytes_ += (comes ? 1 : -1) * prefix.other_bytes;
  bytes_ = pages_ * page_bytes + other_bytes_;
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
