#include "glimpse/kv/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/kv/head_table.h"
#include "glimpse/kv/page_pool.h"
#include "glimpse/kv/page_slots.h"

namespace glimpse::kv {
namespace {

using kernels::kPageTokens;

constexpr std::int64_t kRunTokens = std::int64_t{kRunPages} * kPageTokens;
/// Positions and slots are int32, rounded up to pages here and there.
constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max() - kRunTokens;

/// What restore has to undo besides the length: a table that grew, or a token that was freed.
struct JournalEntry {
  enum class Kind : std::uint8_t { grew, freed };
  Kind kind;
  std::int32_t head;
  std::int32_t value;         ///< grew: pages before; freed: slot
  std::int32_t position = 0;  ///< freed: what was in it
};

struct HeldMark {
  std::uint64_t serial;
  std::int64_t length;
  std::size_t journal_size;
};

struct Sequence {
  std::vector<HeadTable> heads;  ///< [layer, head]
  std::int64_t length = 0;
  // Most steps append a token to tables that have a page for it, all alike. So these wait until a table is asked.
  std::int32_t pending = 0;  ///< tokens that every table has beside those that it knows of
  std::int32_t room = 0;  ///< more tokens that may wait so: every table's last page has slots for them, and is its own
  std::uint64_t layout = 0;  ///< Cache::layout
  bool has_copies = false;   ///< maybe: some page has a copy in the tier
  std::uint64_t serial = 0;
  std::vector<HeldMark> marks;  ///< oldest first
  /// Empty when no mark is held. While one is, no page with tokens leaves a table, so slots in it stay right.
  std::vector<JournalEntry> journal;
};

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

struct Cache::State {
  State(const CacheShape& cache_shape, const MakePageMemory& memory)
      : shape(cache_shape),
        pool(runs_for(cache_shape), cache_shape.format.page_bytes(), memory),
        needed(static_cast<std::size_t>(cache_shape.layers) * static_cast<std::size_t>(cache_shape.kv_heads)) {}

  /// Its tables may not know of Sequence::pending.
  Sequence& peek(SequenceId id) {
    check(id >= 0 && static_cast<std::size_t>(id) < sequences.size() && sequences[static_cast<std::size_t>(id)],
          "the sequence exists");
    return *sequences[static_cast<std::size_t>(id)];
  }
  /// To read.
  Sequence& at(SequenceId id) {
    Sequence& sequence = peek(id);
    if (sequence.pending > 0) {
      for (HeadTable& head : sequence.heads) head.take_in(sequence.pending);
      sequence.pending = 0;
    }
    return sequence;
  }
  /// To change its tables, or who reads their pages.
  Sequence& change(SequenceId id) {
    Sequence& sequence = at(id);
    sequence.room = 0;
    sequence.layout = ++last_layout;
    return sequence;
  }

  std::size_t head_index(int layer, int head) const {
    check(layer >= 0 && layer < shape.layers && head >= 0 && head < shape.kv_heads, "layer and head are in range");
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape.kv_heads) + static_cast<std::size_t>(head);
  }

  SequenceId install(std::unique_ptr<Sequence> sequence);
  std::vector<HeldMark>::iterator held(Sequence& sequence, const Mark& mark);
  std::int64_t pages_short(const Sequence& sequence, std::int64_t tokens);
  std::int64_t room(const Sequence& sequence, std::int64_t asked);
  void require_pages(std::size_t pages) const;  ///< to recall
  void grow_layer(Sequence& sequence, int layer, bool whole_runs);

  CacheShape shape;
  PagePool pool;
  std::unique_ptr<PageSlots> tier;                   ///< null before open_tier
  std::vector<std::unique_ptr<Sequence>> sequences;  ///< [id], null a free id
  std::vector<SequenceId> free_ids;
  std::uint64_t last_serial = 0;  ///< of marks
  std::uint64_t last_table = 0;   ///< Sequence::serial
  std::uint64_t last_layout = 0;
  bool sparing = false;
  std::vector<std::int64_t> needed;  ///< [layer, head] pages that extend still has to add
  HeadTable::Copies copies;          ///< pages that go to the tier or come back
};

void Cache::State::require_pages(std::size_t pages) const {
  if (pages <= pool.pages_free()) return;
  throw CacheFull(fmt::format("the KV cache is full: {} pages wait in the tier and are needed, and {} are free; {}",
                              pages, pool.pages_free(), shape.cure));
}

SequenceId Cache::State::install(std::unique_ptr<Sequence> sequence) {
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

std::vector<HeldMark>::iterator Cache::State::held(Sequence& sequence, const Mark& mark) {
  const auto found = std::find_if(sequence.marks.begin(), sequence.marks.end(),
                                  [&](const HeldMark& entry) { return entry.serial == mark.serial; });
  check(found != sequence.marks.end(), "the mark is held");
  return found;
}

std::int64_t Cache::State::pages_short(const Sequence& sequence, std::int64_t tokens) {
  std::int64_t sum = 0;
  for (const HeadTable& head : sequence.heads) sum += head.pages_short(pool, tokens);
  return sum;
}

/// How many tokens extend would accept, for the message that refuses `asked`.
std::int64_t Cache::State::room(const Sequence& sequence, std::int64_t asked) {
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
void Cache::State::grow_layer(Sequence& sequence, int layer, bool whole_runs) {
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

Cache::Cache(const CacheShape& shape, const MakePageMemory& memory) : state_(std::make_unique<State>(shape, memory)) {}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

const CacheShape& Cache::shape() const {
  return state_->shape;
}

CacheUsage Cache::usage() const {
  const PagePool& pool = state_->pool;
  const std::size_t page_bytes = 2 * state_->shape.format.page_bytes();
  const std::size_t copies = state_->tier == nullptr ? 0 : state_->tier->used();
  return {pool.pages_total(), pool.pages_free(), pool.pages_total() * page_bytes, copies * page_bytes};
}

SequenceId Cache::create() {
  auto sequence = std::make_unique<Sequence>();
  sequence->heads.resize(state_->needed.size());
  return state_->install(std::move(sequence));
}

SequenceId Cache::fork(SequenceId source) {
  const Sequence& original = state_->change(source);
  auto sequence = std::make_unique<Sequence>();
  sequence->length = original.length;
  sequence->has_copies = original.has_copies;
  sequence->heads.reserve(original.heads.size());
  for (const HeadTable& head : original.heads) sequence->heads.push_back(head.copy());
  Sequence& copy = *sequence;
  const SequenceId id = state_->install(std::move(sequence));
  for (HeadTable& head : copy.heads) {
    head.share_pages(state_->pool, state_->tier.get());
    head.drop_empty_pages(state_->pool);  // the source may hold a mark that defers this; the fork holds none
  }
  return id;
}

SequenceId Cache::adopt(std::int64_t length, std::span<const HeadLayout> heads) {
  check(heads.size() == state_->needed.size() && length >= 0 && length <= kMaxLength, "a layout for every head");
  auto sequence = std::make_unique<Sequence>();
  sequence->heads.resize(heads.size());
  sequence->length = length;
  std::int64_t pages = 0;
  std::int64_t runs = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    state_->needed[i] = (heads[i].slots + kPageTokens - 1) / kPageTokens;
    pages += state_->needed[i];
    runs += (state_->needed[i] + kRunPages - 1) / kRunPages;
  }
  if (pages > static_cast<std::int64_t>(state_->pool.pages_free())) {
    throw CacheFull(fmt::format("the KV cache is full: a saved session of {} tokens needs {} pages and {} are free; {}",
                                length, pages, state_->pool.pages_free(), state_->shape.cure));
  }
  const bool whole_runs = !state_->sparing && runs <= static_cast<std::int64_t>(state_->pool.whole_runs());
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const std::int64_t needed = state_->needed[i];
    sequence->heads[i].reserve(whole_runs ? (needed + kRunPages - 1) / kRunPages * kRunPages : needed);
    sequence->heads[i].lay_out(heads[i].slots, heads[i].positions);
  }
  Sequence& adopted = *sequence;
  const SequenceId id = state_->install(std::move(sequence));
  for (int layer = 0; layer < state_->shape.layers; ++layer) state_->grow_layer(adopted, layer, whole_runs);
  return id;
}

void Cache::destroy(SequenceId sequence) {
  for (HeadTable& head : state_->change(sequence).heads) head.release_pages(state_->pool, state_->tier.get());
  state_->sequences[static_cast<std::size_t>(sequence)].reset();
  state_->free_ids.push_back(sequence);
}

std::uint64_t Cache::serial(SequenceId sequence) const {
  return state_->peek(sequence).serial;
}

std::uint64_t Cache::layout(SequenceId sequence) const {
  return state_->peek(sequence).layout;
}

std::int64_t Cache::length(SequenceId sequence) const {
  return state_->peek(sequence).length;
}

void Cache::extend(SequenceId id, std::int64_t tokens) {
  check(tokens >= 0, "extend takes a count");
  if (Sequence& waits = state_->peek(id); tokens <= waits.room) {
    waits.pending += static_cast<std::int32_t>(tokens);
    waits.room -= static_cast<std::int32_t>(tokens);
    waits.length += tokens;
    return;
  }
  if (tokens == 0) return;
  Sequence& sequence = state_->change(id);
  if (tokens > kMaxLength - sequence.length) {
    throw UserError(fmt::format("a sequence of {} tokens cannot take {} more: the limit is {}; start a new one",
                                sequence.length, tokens, kMaxLength));
  }

  // Prepare: all that can fail.
  std::int64_t pages = 0;
  std::int64_t runs = 0;
  for (std::size_t i = 0; i < sequence.heads.size(); ++i) {
    state_->needed[i] = sequence.heads[i].pages_short(state_->pool, tokens);
    pages += state_->needed[i];
    runs += (state_->needed[i] + kRunPages - 1) / kRunPages;
  }
  if (pages > static_cast<std::int64_t>(state_->pool.pages_free())) {
    throw CacheFull(
        fmt::format("the KV cache is full: {} more tokens asked, room for {} (of {} in all); {}", tokens,
                    state_->room(sequence, tokens),
                    state_->pool.pages_total() / sequence.heads.size() * static_cast<std::size_t>(kPageTokens),
                    state_->shape.cure));
  }
  const bool whole_runs = !state_->sparing && runs <= static_cast<std::int64_t>(state_->pool.whole_runs());
  for (std::size_t i = 0; i < sequence.heads.size(); ++i) {
    const std::int64_t needed = state_->needed[i];
    sequence.heads[i].reserve(whole_runs ? (needed + kRunPages - 1) / kRunPages * kRunPages : needed);
  }
  if (!sequence.marks.empty() && pages > 0) {
    for (std::size_t i = 0; i < sequence.heads.size(); ++i) {
      if (state_->needed[i] == 0) continue;
      sequence.journal.push_back({JournalEntry::Kind::grew, static_cast<std::int32_t>(i),
                                  static_cast<std::int32_t>(sequence.heads[i].pages().size())});
    }
  }

  // Apply.
  if (pages > 0) {
    for (int layer = 0; layer < state_->shape.layers; ++layer) state_->grow_layer(sequence, layer, whole_runs);
  }
  for (HeadTable& head : sequence.heads) {
    head.append(state_->pool, static_cast<std::int32_t>(tokens), sequence.length);
  }
  sequence.length += tokens;
  const bool alike = std::all_of(sequence.heads.begin(), sequence.heads.end(), [&](const HeadTable& head) {
    return head.positions() == nullptr && head.slots() == sequence.length;
  });
  if (alike) sequence.room = static_cast<std::int32_t>((kPageTokens - sequence.length % kPageTokens) % kPageTokens);
}

std::int64_t Cache::pages_to_extend(SequenceId sequence, std::int64_t tokens) const {
  if (tokens <= state_->peek(sequence).room) return 0;
  return state_->pages_short(state_->at(sequence), tokens);
}

std::int64_t Cache::pages_held(SequenceId sequence) const {
  std::int64_t sum = 0;
  for (const HeadTable& head : state_->peek(sequence).heads) {
    sum += static_cast<std::int64_t>(head.pages().size()) - head.waiting();
  }
  return sum;
}

void Cache::set_sparing(bool on) {
  state_->sparing = on;
}

void Cache::trim(SequenceId id) {
  Sequence& sequence = state_->change(id);
  check(sequence.marks.empty(), "a sequence is not trimmed while a mark is held");
  for (HeadTable& head : sequence.heads) head.shrink_pages(state_->pool, head.used_pages());
}

void Cache::truncate(SequenceId id, std::int64_t tokens) {
  Sequence& sequence = state_->change(id);
  check(sequence.marks.empty(), "a sequence is not truncated while a mark is held");
  check(tokens >= 0 && tokens <= sequence.length, "truncated tokens are there");
  const std::int64_t kept = sequence.length - tokens;
  for (const HeadTable& head : sequence.heads) {
    for (std::int64_t at = kept; head.positions() != nullptr && at < sequence.length; ++at) {
      check(head.find(static_cast<std::int32_t>(at)) >= 0, "a freed token cannot be taken back");
    }
  }
  recall_all(id);  // a copy in the tier would outlive the rows it is of
  for (HeadTable& head : sequence.heads) head.take_back(state_->pool, static_cast<std::int32_t>(tokens), kept);
  sequence.length = kept;
}

kernels::HeadView Cache::view(SequenceId sequence, int layer, int head) const {
  const Sequence& of = state_->peek(sequence);
  const HeadTable& table = of.heads[state_->head_index(layer, head)];
  return {state_->pool.k_plane(), state_->pool.v_plane(), table.pages().data(), table.positions(),
          table.slots() + of.pending};
}

void Cache::views(SequenceId sequence, std::vector<kernels::HeadView>& views) const {
  views.clear();
  const Sequence& of = state_->peek(sequence);
  for (const HeadTable& table : of.heads) {
    views.push_back({state_->pool.k_plane(), state_->pool.v_plane(), table.pages().data(), table.positions(),
                     table.slots() + of.pending});
  }
}

void Cache::free_tokens(SequenceId id, int layer, int head, std::span<const std::int32_t> positions) {
  if (positions.empty()) return;
  Sequence& sequence = state_->change(id);
  const std::size_t index = state_->head_index(layer, head);
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
  if (!journaled) table.drop_empty_pages(state_->pool);
}

bool Cache::compact(SequenceId id, int layer, int head) {
  Sequence& sequence = state_->change(id);
  HeadTable& table = sequence.heads[state_->head_index(layer, head)];
  if (!sequence.marks.empty() || !table.worth_compacting()) return false;
  return table.compact(state_->pool, state_->shape.format);
}

void Cache::rewrite(SequenceId id, std::int64_t tokens) {
  Sequence& sequence = state_->change(id);
  check(tokens >= 0 && tokens <= sequence.length, "rewritten tokens are there");
  std::int64_t pages = 0;
  for (const HeadTable& head : sequence.heads) {
    check(head.positions() == nullptr, "a head that freed tokens is not rewritten");
    pages += head.pages_to_own(state_->pool, head.slots() - static_cast<std::int32_t>(tokens));
  }
  if (pages > static_cast<std::int64_t>(state_->pool.pages_free())) {
    throw CacheFull(
        fmt::format("the KV cache is full: correcting {} tokens that another sequence shares needs {} pages "
                    "and {} are free; {}",
                    tokens, pages, state_->pool.pages_free(), state_->shape.cure));
  }
  for (HeadTable& head : sequence.heads) {
    head.own_pages(state_->pool, head.slots() - static_cast<std::int32_t>(tokens));
  }
}

std::int64_t Cache::live_tokens(SequenceId sequence, int layer, int head) const {
  const Sequence& of = state_->peek(sequence);
  return of.heads[state_->head_index(layer, head)].live() + of.pending;
}

void Cache::live_tokens(SequenceId sequence, std::vector<std::int64_t>& tokens) const {
  tokens.clear();
  const Sequence& of = state_->peek(sequence);
  for (const HeadTable& table : of.heads) tokens.push_back(table.live() + of.pending);
}

void Cache::open_tier(const std::filesystem::path& folder) {
  if (state_->tier == nullptr) {
    state_->tier = std::make_unique<PageSlots>(state_->pool.make_waiting(folder), state_->shape.format.page_bytes());
  }
}

bool Cache::may_spill(SequenceId sequence) const {
  return state_->tier != nullptr && state_->peek(sequence).marks.empty();
}

void Cache::spill(SequenceId id, std::span<const HeadPage> pages) {
  check(may_spill(id), "pages are spilled to a tier that is open, and not while a mark is held");
  Sequence& sequence = state_->change(id);
  sequence.has_copies = true;
  const auto table_of = [&](const HeadPage& page) -> HeadTable& {
    return sequence.heads[state_->head_index(page.layer, page.head)];
  };
  std::size_t slots = 0;
  for (const HeadPage& page : pages) {
    slots += table_of(page).copy_of(page.page) < 0;
    table_of(page).reserve_copies();
  }
  state_->tier->reserve(slots);
  state_->copies.clear();
  state_->copies.reserve(slots);
  for (const HeadPage& page : pages) table_of(page).spill(state_->pool, *state_->tier, page.page, state_->copies);
  state_->pool.save(state_->copies);
}

void Cache::recall(SequenceId id, std::span<const HeadPage> pages) {
  Sequence& sequence = state_->change(id);
  state_->require_pages(pages.size());
  state_->copies.clear();
  state_->copies.reserve(pages.size());
  for (const HeadPage& page : pages) {
    HeadTable& table = sequence.heads[state_->head_index(page.layer, page.head)];
    table.recall(state_->pool, *state_->tier, page.page, state_->copies);
  }
  state_->pool.load(state_->copies);
}

void Cache::recall_all(SequenceId id) {
  if (state_->tier == nullptr || !state_->peek(id).has_copies) return;
  Sequence& sequence = state_->change(id);
  std::size_t waiting = 0;
  for (const HeadTable& table : sequence.heads) waiting += static_cast<std::size_t>(table.waiting());
  state_->require_pages(waiting);
  state_->copies.clear();
  state_->copies.reserve(waiting);
  if (waiting > 0) sequence.serial = ++state_->last_table;
  for (HeadTable& table : sequence.heads) {
    for (std::int32_t page = 0; table.waiting() > 0; ++page) {
      if (!table.resident(page)) table.recall(state_->pool, *state_->tier, page, state_->copies);
    }
    table.forget_copies(*state_->tier);
  }
  sequence.has_copies = false;
  state_->pool.load(state_->copies);
}

void Cache::put_away(SequenceId id, bool shared) {
  check(may_spill(id), "pages are put away to a tier that is open, and not while a mark is held");
  Sequence& sequence = state_->change(id);
  sequence.has_copies = true;
  std::size_t slots = 0;
  for (HeadTable& table : sequence.heads) {
    slots += static_cast<std::size_t>(table.copies_to_put_away(state_->pool, shared));
    table.reserve_away();
  }
  state_->tier->reserve(slots);
  state_->copies.clear();
  state_->copies.reserve(slots);
  for (HeadTable& table : sequence.heads) table.put_away(state_->pool, *state_->tier, shared, state_->copies);
  state_->pool.save(state_->copies);
}

void Cache::bring_back(SequenceId id) {
  const auto away = static_cast<std::size_t>(pages_away(id));
  state_->require_pages(away);
  state_->copies.clear();
  state_->copies.reserve(away);
  Sequence& sequence = state_->change(id);
  sequence.serial = ++state_->last_table;
  for (HeadTable& table : sequence.heads) {
    if (table.away() > 0) table.bring_back(state_->pool, *state_->tier, state_->copies);
  }
  state_->pool.load(state_->copies);
}

std::int64_t Cache::pages_away(SequenceId sequence) const {
  std::int64_t sum = 0;
  for (const HeadTable& table : state_->peek(sequence).heads) sum += table.away();
  return sum;
}

std::span<const std::uint64_t> Cache::waiting_bits(SequenceId sequence, int layer, int head) const {
  return state_->peek(sequence).heads[state_->head_index(layer, head)].waiting_bits();
}

WaitingPages Cache::waiting() const {
  if (state_->tier == nullptr) return {};
  return {state_->tier->pieces(), static_cast<std::int32_t>(state_->tier->piece_slots())};
}

std::int32_t Cache::waiting_slot(SequenceId sequence, const HeadPage& page) const {
  return state_->peek(sequence).heads[state_->head_index(page.layer, page.head)].copy_of(page.page);
}

std::int64_t Cache::waiting_pages(SequenceId sequence, int layer, int head) const {
  return state_->peek(sequence).heads[state_->head_index(layer, head)].waiting();
}

const std::byte* Cache::read_page(SequenceId sequence, const HeadPage& page, Plane plane,
                                  std::vector<std::byte>& space) const {
  const HeadTable& table = state_->peek(sequence).heads[state_->head_index(page.layer, page.head)];
  const std::size_t bytes = state_->shape.format.page_bytes();
  check(page.page >= 0 && static_cast<std::size_t>(page.page) < table.pages().size(),
        "a head has the page that is read");
  if (!table.resident(page.page)) {
    return state_->tier->data(table.copy_of(page.page)) + (plane == Plane::v ? bytes : 0);
  }
  const PageId id = table.pages()[static_cast<std::size_t>(page.page)];
  if (state_->pool.on_host()) {
    return (plane == Plane::k ? state_->pool.k_plane() : state_->pool.v_plane()) + id * bytes;
  }
  space.resize(bytes);
  state_->pool.read(plane, id, space);
  return space.data();
}

void Cache::write_pages(SequenceId sequence, const HeadPage& first, Plane plane, std::span<const std::byte> bytes) {
  const HeadTable& table = state_->peek(sequence).heads[state_->head_index(first.layer, first.head)];
  const std::size_t page_bytes = state_->shape.format.page_bytes();
  const std::size_t count = bytes.size() / page_bytes;
  const auto begin = static_cast<std::size_t>(first.page);
  check(bytes.size() % page_bytes == 0 && begin + count <= table.pages().size(), "whole pages of the head are written");
  for (std::size_t page = 0, run = 1; page < count; page += run, run = 1) {
    const PageId id = table.pages()[begin + page];
    check(id != kNoPage, "pages that are written are resident");
    while (page + run < count && table.pages()[begin + page + run] == id + static_cast<PageId>(run)) ++run;
    state_->pool.write(plane, bytes.subspan(page * page_bytes, run * page_bytes), id);
  }
}

Mark Cache::mark(SequenceId id) {
  Sequence& sequence = state_->peek(id);
  sequence.marks.push_back({state_->last_serial + 1, sequence.length, sequence.journal.size()});
  return {id, ++state_->last_serial};
}

void Cache::restore(const Mark& mark) {
  Sequence& sequence = state_->change(mark.sequence);
  const auto held = state_->held(sequence, mark);
  while (sequence.journal.size() > held->journal_size) {
    const JournalEntry& entry = sequence.journal.back();
    HeadTable& head = sequence.heads[static_cast<std::size_t>(entry.head)];
    if (entry.kind == JournalEntry::Kind::freed) {
      head.unfree_slot(entry.value, entry.position);
    } else {
      head.shrink_pages(state_->pool, entry.value);
    }
    sequence.journal.pop_back();
  }
  const auto tokens = static_cast<std::int32_t>(sequence.length - held->length);
  for (HeadTable& head : sequence.heads) head.take_back(state_->pool, tokens, held->length);
  sequence.length = held->length;
  sequence.marks.erase(held, sequence.marks.end());
}

void Cache::commit(const Mark& mark) {
  Sequence& sequence = state_->peek(mark.sequence);
  sequence.marks.erase(state_->held(sequence, mark), sequence.marks.end());
  if (!sequence.marks.empty()) return;
  for (const JournalEntry& entry : sequence.journal) {
    if (entry.kind == JournalEntry::Kind::freed) {
      state_->change(mark.sequence).heads[static_cast<std::size_t>(entry.head)].drop_empty_pages(state_->pool);
    }
  }
  sequence.journal.clear();
}

}  // namespace glimpse::kv
