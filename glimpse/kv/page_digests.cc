#include "glimpse/kv/page_digests.h"

#include <algorithm>

#include "glimpse/kv/page_pool.h"

namespace glimpse::kv {
namespace {

using kernels::kPageShift;
using kernels::kPageTokens;

}  // namespace

bool DigestTiles::is_free_from(std::int32_t at) const {
  const auto first = std::min(static_cast<std::size_t>(at), pages_.size());
  return std::all_of(pages_.begin() + static_cast<std::ptrdiff_t>(first), pages_.end(),
                     [](std::uint32_t pages) { return pages == 0; });
}

void add_to_runs(std::vector<DigestRun>& runs, const std::shared_ptr<DigestTiles>& tiles, std::int32_t at) {
  if (!runs.empty()) {
    DigestRun& last = runs.back();
    if (last.tiles == tiles && last.first + last.count == at) {
      ++last.count;
      return;
    }
  }
  const std::int32_t begin = runs.empty() ? 0 : runs.back().begin + runs.back().count;
  runs.push_back({tiles, at, 1, begin});
}

PageDigests::BlockEnd PageDigests::end_of(const Blocks& blocks, std::int32_t number) {
  const std::int64_t last = (std::int64_t{number} + 1) * blocks.tokens - 1;  // token
  return {blocks.pages[last >> kPageShift], static_cast<std::int32_t>(last % kPageTokens) + 1};
}

PageDigests::Table& PageDigests::table_of(const Blocks& blocks) {
  for (Table& table : tables_) {
    if (table.kind == blocks.kind && table.block == blocks.tokens) return table;
  }
  std::list<Table> fresh(1);
  Table& table = fresh.front();
  table.kind = blocks.kind;
  table.block = blocks.tokens;
  table.per_page = static_cast<std::size_t>((kPageTokens + table.block - 1) / table.block);
  table.pages = HostBuffer(readers_.size() * table.per_page * sizeof(Entry));
  table.slots.resize(slots_ * table.per_page);
  tables_.splice(tables_.end(), fresh);
  return table;
}

void PageDigests::find(const Blocks& blocks, std::int32_t end, std::vector<DigestRun>& runs) {
  const std::lock_guard lock(mutex_);
  const auto table = std::find_if(tables_.begin(), tables_.end(), [&](const Table& each) {
    return each.kind == blocks.kind && each.block == blocks.tokens;
  });
  if (table == tables_.end()) return;
  const DigestTiles* known = nullptr;
  std::shared_ptr<DigestTiles> tiles;
  for (std::int32_t block = runs.empty() ? 0 : runs.back().begin + runs.back().count; block < end; ++block) {
    const BlockEnd at = end_of(blocks, block);
    if (at.page == kNoPage) return;
    const Entry& entry = table->of_block(at);
    if (entry.tiles == nullptr || !entry.tiles->sealed.load()) return;
    if (entry.tiles != known) tiles = held_.at(known = entry.tiles);
    add_to_runs(runs, tiles, entry.at);
  }
}

void PageDigests::hang(const Blocks& blocks, const std::vector<DigestRun>& runs, std::int32_t first,
                       std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Table& table = table_of(blocks);
  table.bytes = bytes;
  if (!runs.empty()) made_ += runs.back().begin + runs.back().count - first;
  for (const DigestRun& run : runs) {
    bool shared = false;
    for (std::int32_t i = std::max(0, first - run.begin); i < run.count; ++i) {
      const BlockEnd at = end_of(blocks, run.begin + i);
      if (at.page == kNoPage || table.of_block(at).tiles != nullptr) continue;
      run.tiles->pages_.resize(static_cast<std::size_t>(run.tiles->used));
      held_.try_emplace(run.tiles.get(), run.tiles);
      set(table, table.of_block(at), {run.tiles.get(), run.first + i, at.slots});
      shared = shared || readers_[at.page] > 1;
    }
    if (shared) run.tiles->sealed.store(true);
  }
}

void PageDigests::set(Table& table, Entry& entry, const Entry& value) {
  const Entry before = entry;
  if (value.tiles != nullptr) {
    ++value.tiles->pages_[static_cast<std::size_t>(value.at)];
    ++value.tiles->all_pages_;
    ++table.count;
  }
  entry = value;
  if (before.tiles == nullptr) return;
  --table.count;
  --before.tiles->pages_[static_cast<std::size_t>(before.at)];
  if (--before.tiles->all_pages_ == 0) held_.erase(before.tiles);
}

void PageDigests::clear(Table& table, std::span<Entry> entries, int slots) {
  for (Entry& entry : entries) {
    if (entry.tiles != nullptr && entry.end > slots) set(table, entry, {});
  }
}

void PageDigests::keep(PageId page, int slots) {
  for (auto each = tables_.begin(); each != tables_.end();) {
    const auto table = each++;
    clear(*table, table->of_page(page), slots);
    if (table->count == 0) tables_.erase(table);
  }
}

void PageDigests::copy(PageId from, PageId to) {
  for (Table& table : tables_) copy(table, table.of_page(from), table.of_page(to));
}

void PageDigests::copy(Table& table, std::span<const Entry> from, std::span<Entry> to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].tiles != nullptr) set(table, to[i], from[i]);
  }
}

bool PageDigests::any_hang(std::span<const Entry> entries) {
  return std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.tiles != nullptr; });
}

bool PageDigests::seal(std::span<const Entry> entries) {
  for (std::size_t i = entries.size(); i-- > 0;) {
    DigestTiles* const tiles = entries[i].tiles;
    if (tiles != nullptr && tiles->sealed.exchange(true)) return false;
  }
  return true;
}

void PageDigests::seal(std::span<const PageId> pages, std::span<const Slot> slots) {
  for (Table& table : tables_) {
    const auto entries_of = [&](std::size_t page) -> std::span<const Entry> {
      return pages[page] != kNoPage ? table.of_page(pages[page]) : table.of_slot(slots[page]);
    };
    // Where the first block has no digest, find() finds none behind it: most heads have none of most kinds.
    const std::size_t first = static_cast<std::size_t>(table.block - 1) >> kPageShift;
    if (first >= pages.size() || !any_hang(entries_of(first))) continue;
    for (std::size_t page = pages.size(); page-- > first;) {
      if (!seal(entries_of(page))) break;
    }
  }
}

void PageDigests::wait(PageId page, Slot slot) {
  for (Table& table : tables_) copy(table, table.of_page(page), table.of_slot(slot));
}

void PageDigests::come_back(Slot slot, PageId page) {
  for (Table& table : tables_) copy(table, table.of_slot(slot), table.of_page(page));
}

void PageDigests::drop_waiting(Slot slot) {
  for (auto each = tables_.begin(); each != tables_.end();) {
    const auto table = each++;
    clear(*table, table->of_slot(slot), 0);
    if (table->count == 0) tables_.erase(table);
  }
}

void PageDigests::make_slots(std::size_t slots) {
  for (Table& table : tables_) table.slots.resize(slots * table.per_page);
  slots_ = slots;
}

std::size_t PageDigests::bytes(const Table& table, std::span<const Entry> entries) {
  const auto taken =
      std::count_if(entries.begin(), entries.end(), [](const Entry& entry) { return entry.tiles != nullptr; });
  return static_cast<std::size_t>(taken) * table.bytes;
}

std::size_t PageDigests::bytes(PageId page) {
  std::size_t sum = 0;
  for (Table& table : tables_) sum += bytes(table, table.of_page(page));
  return sum;
}

std::size_t PageDigests::bytes_waiting(Slot slot) {
  std::size_t sum = 0;
  for (Table& table : tables_) sum += bytes(table, table.of_slot(slot));
  return sum;
}

}  // namespace glimpse::kv
