#include "glimpse/attention/cuda/page_tables.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "glimpse/kernels/cuda/made_rows.h"
#include "glimpse/kv/page_pool.h"

namespace glimpse::attention::cuda {
namespace {

/// More pages than these are sent as a whole table: each write costs what four page numbers do.
constexpr std::size_t kMostWrites = std::size_t{1} << 16;

/// What no slot has: memory that was not written to may hold anything.
constexpr std::int32_t kUnknownPosition = std::numeric_limits<std::int32_t>::min();

bool forgets_single_tokens(const Program& program) {
  for (int layer = 0; layer < program.shape().layers && program.forgets(); ++layer) {
    for (const HeadOp& head : program.layer(layer).heads) {
      if (head.kept != nullptr && plan::forgets_by_statistic(head.kept->rule)) return true;
    }
  }
  return false;
}

/// Pages leave a head's table, and those behind move up.
bool frees_pages(const HeadOp& head) {
  return head.kept != nullptr && !head.has_tier();
}

std::size_t pages_of(std::int64_t slots) {
  return static_cast<std::size_t>((slots + kernels::kPageTokens - 1) / kernels::kPageTokens);
}

}  // namespace

PageTables::PageTables(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

bool PageTables::make_room(Table& table, std::size_t pages, bool positions) {
  const bool grows = pages > table.pages;
  if (!grows && (!positions || table.positions.size() > 0)) return false;
  const std::size_t heads =
      static_cast<std::size_t>(cache_.shape().layers) * static_cast<std::size_t>(cache_.shape().kv_heads);
  stream_.synchronize();  // what is queued may read the old one
  if (grows) {
    table.pages = std::max<std::size_t>(64, pages + pages / 2);
    table.device = {};  // before the new one, which may need its memory
    table.device = kernels::cuda::Array<kernels::PageId>(stream_, heads * table.pages);
    table.known.assign(heads * table.pages, kv::kNoPage);
  }
  if (positions || table.positions.size() > 0) {
    const std::size_t slots = heads * table.pages * kernels::kPageTokens;
    table.positions = {};
    table.positions = kernels::cuda::Array<std::int32_t>(stream_, slots);
    table.known_positions.assign(slots, kUnknownPosition);
  }
  return true;
}

void PageTables::begin() {
  if (!written_) {  // a pass that failed: what is known is not what the device has
    for (auto& [id, table] : tables_) table.serial = 0;
  }
  writes_.clear();
  written_ = false;
}

kernels::PageId PageTables::page_of(kv::SequenceId sequence, const kernels::HeadView& view,
                                    const kv::HeadPage& page) const {
  const kernels::PageId id = view.pages[page.page];
  if (id != kv::kNoPage) return id;
  return kernels::cuda::kWaitingPage | static_cast<kernels::PageId>(cache_.waiting_slot(sequence, page));
}

void PageTables::moved(kv::SequenceId sequence, std::span<const kv::HeadPage> pages) {
  std::vector<kv::HeadPage>& to = tables_.at(sequence).moved;
  to.insert(to.end(), pages.begin(), pages.end());
}

void PageTables::follow(const SequenceRows& rows) {
  Table& table = tables_[rows.sequence];
  const std::uint64_t serial = cache_.serial(rows.sequence), layout = cache_.layout(rows.sequence);
  const std::int64_t length = cache_.length(rows.sequence);
  if (table.serial == serial && table.layout == layout && table.moved.empty()) {  // at most there are more slots
    const auto more = static_cast<std::int32_t>(length - std::exchange(table.length, length));
    for (kernels::HeadView& view : table.views) view.slots += more;
    return;
  }
  table.layout = layout;
  table.length = length;
  const bool positions = forgets_single_tokens(*rows.program);
  bool whole = make_room(table, pages_of(length), positions);
  whole |= table.serial != serial;
  table.serial = serial;
  // A sequence's rows before those of the pass lie where they lay in the last one.
  const auto last = static_cast<std::size_t>(rows.position / kernels::kPageTokens);
  before_ = writes_.size();
  cache_.views(rows.sequence, table.views);
  const auto heads = static_cast<std::size_t>(cache_.shape().kv_heads);
  for (const kv::HeadPage& page : std::exchange(table.moved, {})) {
    if (whole) break;
    const std::size_t head = static_cast<std::size_t>(page.layer) * heads + static_cast<std::size_t>(page.head);
    const std::size_t i = head * table.pages + static_cast<std::size_t>(page.page);
    const kernels::PageId id = page_of(rows.sequence, table.views[head], page);
    if (table.known[i] == id) continue;
    table.known[i] = id;
    write(table.device.pointer().raw() + i, id);
  }
  std::size_t at = 0, number = 0;
  for (int layer = 0; layer < cache_.shape().layers; ++layer) {
    for (int head = 0; head < cache_.shape().kv_heads; ++head, at += table.pages) {
      kernels::HeadView& view = table.views[number++];
      const std::size_t first = whole || frees_pages(rows.program->head(layer, head)) ? 0 : last;
      const std::size_t pages = std::max(first, pages_of(view.slots));
      // No page that waits is known by its number.
      const bool same = std::equal(view.pages + first, view.pages + pages, table.known.data() + at + first);
      for (std::size_t i = first; i < pages && (whole || !same); ++i) {
        kernels::PageId& known = table.known[at + i];
        const kernels::PageId id = page_of(rows.sequence, view, {layer, head, static_cast<std::int32_t>(i)});
        if (!whole && known == id) continue;
        known = id;
        write(table.device.pointer().raw() + at + i, known);
      }
      view.pages = table.device.constant().raw() + at;
      if (positions && view.positions != nullptr) {
        follow_positions(table, at * kernels::kPageTokens, view, whole);
        view.positions = table.positions.constant().raw() + at * kernels::kPageTokens;
      } else {
        view.positions = nullptr;  // heads of other plans free whole pages alone
      }
    }
  }
  if (writes_.size() - before_ < kMostWrites) return;
  writes_.resize(before_);
  table.device.set(table.known);
  if (positions) table.positions.set(table.known_positions);
}

void PageTables::follow_positions(Table& table, std::size_t at, const kernels::HeadView& view, bool whole) {
  auto* const to = reinterpret_cast<std::uint32_t*>(table.positions.pointer().raw());
  for (std::size_t i = at; i < at + static_cast<std::size_t>(view.slots); ++i) {
    const std::int32_t position = view.positions[i - at];
    if (!whole && table.known_positions[i] == position) continue;
    table.known_positions[i] = position;
    write(to + i, static_cast<std::uint32_t>(position));
  }
}

void PageTables::write(std::uint32_t* to, std::uint32_t value) {
  if (writes_.size() - before_ < kMostWrites) writes_.push_back({to, value});
}

}  // namespace glimpse::attention::cuda
