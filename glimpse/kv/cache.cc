#include "glimpse/kv/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/kv/cache_impl.h"

namespace glimpse::kv {
namespace {

using kernels::kPageTokens;

constexpr std::int64_t kRunTokens = std::int64_t{kRunPages} * kPageTokens;
/// Positions and slots are int32, rounded up to pages here and there.
constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max() - kRunTokens;

std::size_t runs_for(const CacheShape& shape) {
  check(shape.layers > 0 && shape.kv_heads > 0, "a cache has layers and heads");
  check(shape.format.dim > 0 && shape.format.dim % 8 == 0, "the head dimension is a multiple of 8");
  const std::int64_t heads = std::int64_t{shape.layers} * shape.kv_heads;
  // Page numbers are 32 bits wide and the planes' bytes must fit an address; -c can ask for more than both.
  const auto address_pages =
      static_cast<std::int64_t>((std::size_t{1} << 46) / std::max<std::size_t>(1, shape.format.page_bytes()));
  const std::int64_t most_pages = std::min<std::int64_t>(std::numeric_limits<PageId>::max(), address_pages);
  const std::int64_t most_tokens = most_pages / heads / kRunPages * kRunTokens;
  if (shape.capacity_tokens < 1 || shape.capacity_tokens > most_tokens) {
    throw UserError(
        fmt::format("a context of {} tokens: it must be between 1 and {} for this model and KV type; set -c",
                    shape.capacity_tokens, most_tokens));
  }
  return static_cast<std::size_t>((shape.capacity_tokens + kRunTokens - 1) / kRunTokens * heads);
}

}  // namespace

Cache::Impl::Impl(const CacheShape& cache_shape, const MakePageMemory& memory)
    : shape(cache_shape),
      pool(runs_for(cache_shape), cache_shape.format.page_bytes(), memory),
      needed(static_cast<std::size_t>(cache_shape.layers) * static_cast<std::size_t>(cache_shape.kv_heads)) {}

SequenceId Cache::Impl::install(std::unique_ptr<Sequence> sequence) {
  sequence->serial = ++last_table;
  sequence->layout = ++last_layout;
  if (free_ids.empty()) {
    free_ids.reserve(sequences.size() + 1);  // so that destroy cannot fail
    sequences.push_back(std::move(sequence));
    return static_cast<SequenceId>(sequences.size() - 1);
  }
  const SequenceId id = free_ids.back();
  free_ids.pop_back();
  sequences[static_cast<std::size_t>(id)] = std::move(sequence);
  return id;
}

std::vector<HeldMark>::iterator Cache::Impl::held(Sequence& sequence, const Mark& mark) {
  const auto found = std::find_if(sequence.marks.begin(), sequence.marks.end(),
                                  [&](const HeldMark& entry) { return entry.serial == mark.serial; });
  check(found != sequence.marks.end(), "the mark is held");
  return found;
}

std::int64_t Cache::Impl::pages_short(const Sequence& sequence, std::int64_t tokens) {
  std::int64_t sum = 0;
  for (const HeadTable& head : sequence.heads) sum += head.pages_short(pool, tokens);
  return sum;
}

/// How many tokens extend would accept, for the message that refuses `asked`.
std::int64_t Cache::Impl::room(const Sequence& sequence, std::int64_t asked) {
  std::int64_t fits = 0;
  std::int64_t too_many = asked;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    (pages_short(sequence, middle) <= static_cast<std::int64_t>(pool.pages_free()) ? fits : too_many) = middle;
  }
  return fits;
}

/// Adds the pages in `needed`, token range by token range over all heads: dense attention walks a layer in that
/// order, and then reads memory in sequence.
void Cache::Impl::grow_layer(Sequence& sequence, int layer, bool whole_runs) {
  const std::size_t first = head_index(layer, 0);
  for (bool more = true; more;) {
    more = false;
    for (std::size_t index = first; index < first + static_cast<std::size_t>(shape.kv_heads); ++index) {
      HeadTable& head = sequence.heads[index];
      if (needed[index] <= 0) continue;
      const std::int64_t pages = whole_runs ? kRunPages : std::min<std::int64_t>(kRunPages, needed[index]);
      const auto run = pages == kRunPages ? pool.take_run() : std::nullopt;
      for (std::int64_t i = 0; i < pages; ++i) {
        head.add_page(run ? *run + static_cast<PageId>(i) : pool.take_page());
      }
      needed[index] -= pages;
      more = more || needed[index] > 0;
    }
  }
}

Cache::Cache(const CacheShape& shape, const MakePageMemory& memory) : impl_(std::make_unique<Impl>(shape, memory)) {}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

const CacheShape& Cache::shape() const {
  return impl_->shape;
}

CacheUsage Cache::usage() const {
  PagePool& pool = impl_->pool;
  const std::size_t page_bytes = 2 * impl_->shape.format.page_bytes();
  const std::size_t copies = impl_->tier == nullptr ? 0 : impl_->tier->used();
  return {.pages_total = pool.pages_total(),
          .pages_free = pool.pages_free(),
          .bytes_reserved = pool.pages_total() * page_bytes,
          .tier_bytes = copies * page_bytes,
          .digests_made = pool.digests().made()};
}

SequenceId Cache::create() {
  auto sequence = std::make_unique<Sequence>();
  sequence->heads.resize(impl_->needed.size());
  return impl_->install(std::move(sequence));
}

SequenceId Cache::fork(SequenceId source) {
  const Sequence& original = impl_->change(source);
  auto sequence = std::make_unique<Sequence>();
  sequence->length = original.length;
  sequence->has_copies = original.has_copies;
  sequence->heads.reserve(original.heads.size());
  for (const HeadTable& head : original.heads) sequence->heads.push_back(head.copy());
  Sequence& copy = *sequence;
  const SequenceId id = impl_->install(std::move(sequence));
  for (HeadTable& head : copy.heads) {
    head.share_pages(impl_->pool, impl_->tier.get());
    head.drop_empty_pages(impl_->pool);  // the source may hold a mark that defers this; the fork holds none
  }
  return id;
}

SequenceId Cache::adopt(std::int64_t length, std::span<const HeadLayout> heads) {
  check(heads.size() == impl_->needed.size() && length >= 0 && length <= kMaxLength, "a layout for every head");
  auto sequence = std::make_unique<Sequence>();
  sequence->heads.resize(heads.size());
  sequence->length = length;
  std::int64_t pages = 0;
  std::int64_t runs = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    impl_->needed[i] = (heads[i].slots + kPageTokens - 1) / kPageTokens;
    pages += impl_->needed[i];
    runs += (impl_->needed[i] + kRunPages - 1) / kRunPages;
  }
  if (pages > static_cast<std::int64_t>(impl_->pool.pages_free())) {
    throw CacheFull(fmt::format("the KV cache is full: a saved session of {} tokens needs {} pages and {} are free; {}",
                                length, pages, impl_->pool.pages_free(), impl_->shape.cure));
  }
  const bool whole_runs = !impl_->sparing && runs <= static_cast<std::int64_t>(impl_->pool.whole_runs());
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const std::int64_t needed = impl_->needed[i];
    sequence->heads[i].reserve(whole_runs ? (needed + kRunPages - 1) / kRunPages * kRunPages : needed);
    sequence->heads[i].lay_out(heads[i].slots, heads[i].positions);
  }
  Sequence& adopted = *sequence;
  const SequenceId id = impl_->install(std::move(sequence));
  for (int layer = 0; layer < impl_->shape.layers; ++layer) impl_->grow_layer(adopted, layer, whole_runs);
  return id;
}

void Cache::destroy(SequenceId sequence) {
  for (HeadTable& head : impl_->change(sequence).heads) head.release_pages(impl_->pool, impl_->tier.get());
  impl_->sequences[static_cast<std::size_t>(sequence)].reset();
  impl_->free_ids.push_back(sequence);
}

std::uint64_t Cache::serial(SequenceId sequence) const {
  return impl_->peek(sequence).serial;
}

std::uint64_t Cache::layout(SequenceId sequence) const {
  return impl_->peek(sequence).layout;
}

std::uint64_t Cache::changes() const {
  return impl_->pool.changes();
}

std::int64_t Cache::length(SequenceId sequence) const {
  return impl_->peek(sequence).length;
}

void Cache::extend(SequenceId id, std::int64_t tokens) {
  check(tokens >= 0, "extend takes a count");
  if (Sequence& waits = impl_->peek(id); tokens <= waits.room) {
    waits.pending += static_cast<std::int32_t>(tokens);
    waits.room -= static_cast<std::int32_t>(tokens);
    waits.length += tokens;
    return;
  }
  if (tokens == 0) return;
  Sequence& sequence = impl_->change(id);
  if (tokens > kMaxLength - sequence.length) {
    throw UserError(fmt::format("a sequence of {} tokens cannot take {} more: the limit is {}; start a new one",
                                sequence.length, tokens, kMaxLength));
  }

  // Prepare: all that can fail.
  std::int64_t pages = 0;
  std::int64_t runs = 0;
  for (std::size_t i = 0; i < sequence.heads.size(); ++i) {
    impl_->needed[i] = sequence.heads[i].pages_short(impl_->pool, tokens);
    pages += impl_->needed[i];
    runs += (impl_->needed[i] + kRunPages - 1) / kRunPages;
  }
  if (pages > static_cast<std::int64_t>(impl_->pool.pages_free())) {
    throw CacheFull(fmt::format(
        "the KV cache is full: {} more tokens asked, room for {} (of {} in all); {}", tokens,
        impl_->room(sequence, tokens),
        impl_->pool.pages_total() / sequence.heads.size() * static_cast<std::size_t>(kPageTokens), impl_->shape.cure));
  }
  const bool whole_runs = !impl_->sparing && runs <= static_cast<std::int64_t>(impl_->pool.whole_runs());
  for (std::size_t i = 0; i < sequence.heads.size(); ++i) {
    const std::int64_t needed = impl_->needed[i];
    sequence.heads[i].reserve(whole_runs ? (needed + kRunPages - 1) / kRunPages * kRunPages : needed);
  }
  if (!sequence.marks.empty() && pages > 0) {
    for (std::size_t i = 0; i < sequence.heads.size(); ++i) {
      if (impl_->needed[i] == 0) continue;
      sequence.journal.push_back({JournalEntry::Kind::grew, static_cast<std::int32_t>(i),
                                  static_cast<std::int32_t>(sequence.heads[i].pages().size())});
    }
  }

  // Apply.
  if (pages > 0) {
    for (int layer = 0; layer < impl_->shape.layers; ++layer) impl_->grow_layer(sequence, layer, whole_runs);
  }
  for (HeadTable& head : sequence.heads) {
    head.append(impl_->pool, static_cast<std::int32_t>(tokens), sequence.length);
  }
  sequence.length += tokens;
  sequence.holds_all = std::all_of(sequence.heads.begin(), sequence.heads.end(), [&](const HeadTable& head) {
    return head.positions() == nullptr && head.slots() == sequence.length;
  });
  if (!sequence.holds_all) return;
  sequence.room = static_cast<std::int32_t>((kPageTokens - sequence.length % kPageTokens) % kPageTokens);
}

std::int64_t Cache::pages_to_extend(SequenceId sequence, std::int64_t tokens) const {
  if (tokens <= impl_->peek(sequence).room) return 0;
  return impl_->pages_short(impl_->at(sequence), tokens);
}

std::int64_t Cache::pages_held(SequenceId sequence) const {
  std::int64_t sum = 0;
  for (const HeadTable& head : impl_->peek(sequence).heads) {
    sum += static_cast<std::int64_t>(head.pages().size()) - head.waiting();
  }
  return sum;
}

void Cache::set_sparing(bool on) {
  impl_->sparing = on;
}

void Cache::trim(SequenceId id) {
  Sequence& sequence = impl_->change(id);
  check(sequence.marks.empty(), "a sequence is not trimmed while a mark is held");
  for (HeadTable& head : sequence.heads) head.shrink_pages(impl_->pool, head.used_pages());
}

void Cache::truncate(SequenceId id, std::int64_t tokens) {
  Sequence& sequence = impl_->change(id);
  check(sequence.marks.empty(), "a sequence is not truncated while a mark is held");
  check(tokens >= 0 && tokens <= sequence.length, "truncated tokens are there");
  const std::int64_t kept = sequence.length - tokens;
  for (const HeadTable& head : sequence.heads) {
    for (std::int64_t at = kept; head.positions() != nullptr && at < sequence.length; ++at) {
      check(head.find(static_cast<std::int32_t>(at)) >= 0, "a freed token cannot be taken back");
    }
  }
  recall_all(id);  // a copy in the tier would outlive the rows it is of
  for (HeadTable& head : sequence.heads) head.take_back(impl_->pool, static_cast<std::int32_t>(tokens), kept);
  sequence.length = kept;
}

kernels::HeadView Cache::view(SequenceId sequence, int layer, int head) const {
  const Sequence& of = impl_->peek(sequence);
  const HeadTable& table = of.heads[impl_->head_index(layer, head)];
  return {impl_->pool.k_plane(), impl_->pool.v_plane(), table.pages().data(), table.positions(),
          table.slots() + of.pending};
}

void Cache::views(SequenceId sequence, std::vector<kernels::HeadView>& views) const {
  views.clear();
  const Sequence& of = impl_->peek(sequence);
  for (const HeadTable& table : of.heads) {
    views.push_back({impl_->pool.k_plane(), impl_->pool.v_plane(), table.pages().data(), table.positions(),
                     table.slots() + of.pending});
  }
}

void Cache::free_tokens(SequenceId id, int layer, int head, std::span<const std::int32_t> positions) {
  if (positions.empty()) return;
  Sequence& sequence = impl_->change(id);
  const std::size_t index = impl_->head_index(layer, head);
  HeadTable& table = sequence.heads[index];
  for (std::size_t i = 0; i < positions.size(); ++i) {
    check(i == 0 || positions[i - 1] < positions[i], "positions to free ascend");
    check(table.find(positions[i]) >= 0, "a position to free is there");
  }
  const bool journaled = !sequence.marks.empty();
  if (journaled) {
    const std::size_t wanted = sequence.journal.size() + positions.size();
    if (wanted > sequence.journal.capacity()) {
      sequence.journal.reserve(std::max(wanted, 2 * sequence.journal.capacity()));
    }
  }
  table.track();
  for (const std::int32_t position : positions) {
    const std::int32_t slot = table.find(position);
    table.free_slot(slot);
    if (journaled) {
      sequence.journal.push_back({JournalEntry::Kind::freed, static_cast<std::int32_t>(index), slot, position});
    }
  }
  if (!journaled) table.drop_empty_pages(impl_->pool);
}

bool Cache::compact(SequenceId id, int layer, int head) {
  Sequence& sequence = impl_->change(id);
  HeadTable& table = sequence.heads[impl_->head_index(layer, head)];
  if (!sequence.marks.empty() || !table.worth_compacting()) return false;
  return table.compact(impl_->pool, impl_->shape.format);
}

void Cache::rewrite(SequenceId id, std::int64_t tokens) {
  Sequence& sequence = impl_->change(id);
  check(tokens >= 0 && tokens <= sequence.length, "rewritten tokens are there");
  std::int64_t pages = 0;
  for (const HeadTable& head : sequence.heads) {
    check(head.positions() == nullptr, "a head that freed tokens is not rewritten");
    pages += head.pages_to_own(impl_->pool, head.slots() - static_cast<std::int32_t>(tokens));
  }
  if (pages > static_cast<std::int64_t>(impl_->pool.pages_free())) {
    throw CacheFull(
        fmt::format("the KV cache is full: correcting {} tokens that another sequence shares needs {} pages "
                    "and {} are free; {}",
                    tokens, pages, impl_->pool.pages_free(), impl_->shape.cure));
  }
  for (HeadTable& head : sequence.heads) {
    head.own_pages(impl_->pool, head.slots() - static_cast<std::int32_t>(tokens));
  }
}

PageDigests* Cache::digests() const {
  return impl_->pool.on_host() ? &impl_->pool.digests() : nullptr;
}

std::size_t Cache::digest_bytes(SequenceId sequence) const {
  std::size_t sum = 0;
  for (const HeadTable& table : impl_->peek(sequence).heads) sum += table.digest_bytes(impl_->pool.digests());
  return sum;
}

std::int64_t Cache::live_tokens(SequenceId sequence, int layer, int head) const {
  const Sequence& of = impl_->peek(sequence);
  return of.heads[impl_->head_index(layer, head)].live() + of.pending;
}

bool Cache::holds_all(SequenceId sequence) const {
  return impl_->peek(sequence).holds_all;
}

void Cache::live_tokens(SequenceId sequence, std::vector<std::int64_t>& tokens) const {
  tokens.clear();
  const Sequence& of = impl_->peek(sequence);
  for (const HeadTable& table : of.heads) tokens.push_back(table.live() + of.pending);
}

Mark Cache::mark(SequenceId id) {
  Sequence& sequence = impl_->peek(id);
  sequence.marks.push_back({impl_->last_serial + 1, sequence.length, sequence.journal.size()});
  return {id, ++impl_->last_serial};
}

void Cache::restore(const Mark& mark) {
  Sequence& sequence = impl_->change(mark.sequence);
  const auto held = impl_->held(sequence, mark);
  while (sequence.journal.size() > held->journal_size) {
    const JournalEntry& entry = sequence.journal.back();
    HeadTable& head = sequence.heads[static_cast<std::size_t>(entry.head)];
    if (entry.kind == JournalEntry::Kind::freed) {
      head.unfree_slot(entry.value, entry.position);
    } else {
      head.shrink_pages(impl_->pool, entry.value);
    }
    sequence.journal.pop_back();
  }
  const auto tokens = static_cast<std::int32_t>(sequence.length - held->length);
  for (HeadTable& head : sequence.heads) head.take_back(impl_->pool, tokens, held->length);
  sequence.length = held->length;
  sequence.marks.erase(held, sequence.marks.end());
}

void Cache::commit(const Mark& mark) {
  Sequence& sequence = impl_->peek(mark.sequence);
  sequence.marks.erase(impl_->held(sequence, mark), sequence.marks.end());
  if (!sequence.marks.empty()) return;
  for (const JournalEntry& entry : sequence.journal) {
    if (entry.kind == JournalEntry::Kind::freed) {
      impl_->change(mark.sequence).heads[static_cast<std::size_t>(entry.head)].drop_empty_pages(impl_->pool);
    }
  }
  sequence.journal.clear();
}

}  // namespace glimpse::kv
