// The factors are made at the end of a prompt that the budget does not cover, else by the first sparse step, and again
// after a correction of the prompt. Each head reads its own rows of U, which are longer than its rows of K, so a CPU
// reads no less: at rank 160, U has 83 % of the bytes of K for 3 heads of 64, and 16 % for 8 heads of 128.
#include "glimpse/attention/cpu/low_rank.h"

#include <algorithm>
#include <cstring>

#include "glimpse/base/error.h"
#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/landmarks.h"

namespace glimpse::attention {
namespace {

constexpr std::int32_t kPage = kernels::kPageTokens;

/// One row of K (or V), its scale included, from one head's pages to another's.
void copy_row(const kernels::KvFormat& format, std::pair<const kernels::HeadView*, std::int32_t> from,
              std::pair<const kernels::HeadView*, std::int32_t> to, std::byte* kernels::HeadView::*plane) {
  std::byte* source = from.first->*plane;
  std::byte* target = to.first->*plane;
  std::memcpy(to.first->row_of(target, to.second, format), from.first->row_of(source, from.second, format),
              format.row_bytes());
  if (format.type != KvType::q8_0) return;
  const auto scale = [&](std::int32_t slot) {
    return format.scale_offset() + static_cast<std::size_t>(slot % kPage) * sizeof(float);
  };
  std::memcpy(to.first->page_of(target, to.second, format) + scale(to.second),
              from.first->page_of(source, from.second, format) + scale(from.second), sizeof(float));
}

void reserve(RowPages& pages, const kernels::KvFormat& format) {
  constexpr std::size_t count = kernels::kSplitTokens / kPage;
  const std::size_t bytes = count * format.page_bytes();
  if (pages.k.size() >= bytes) return;
  pages.k = HostBuffer(bytes);
  pages.v = HostBuffer(bytes);
  pages.numbers.resize(count);
  for (std::size_t i = 0; i < count; ++i) pages.numbers[i] = static_cast<kernels::PageId>(i);
}

LowRankHead low_rank_head(BatchEntry& entry, int layer, int head) {
  const SequenceState& state = *entry.rows.state;
  const plan::Selector& how = *entry.rows.program->select(layer, head).selector;
  const auto* landmarks = dynamic_cast<const kv::Landmarks*>(state.indices[state.head(layer, head)].get());
  check(landmarks != nullptr, "low rank goes with landmarks");
  LowRankHead low;
  low.keys = state.low_rank[static_cast<std::size_t>(layer)].get();
  low.end = std::min(landmarks->covered(), kv::window_block(how, entry.tokens) * how.block);
  low.chunk = how.block;
  low.outliers = landmarks->outliers_by_position();
  return low;
}

/// Rows of one list of a set whose keys are made.
std::int64_t made_rows(const LowRankHead& low, std::span<const std::int32_t> list) {
  const auto before = [&](std::int64_t position) {
    return std::lower_bound(list.begin(), list.end(), static_cast<std::int32_t>(position)) - list.begin();
  };
  std::int64_t rows = before(low.end);
  for (const std::int32_t chunk : low.outliers) {
    const std::int64_t first = std::int64_t{chunk} * low.chunk;
    if (first >= low.end) break;
    rows -= before(std::min(first + low.chunk, low.end)) - before(first);
  }
  return rows;
}

}  // namespace

bool wants_factors(const BatchEntry& entry, int layer) {
  const SequenceState& state = *entry.rows.state;
  if (state.key_ranks[static_cast<std::size_t>(layer)] == 0 || entry.rows.kind == PassKind::verify) return false;
  const bool made = state.low_rank[static_cast<std::size_t>(layer)] != nullptr && !entry.ends_prompt;
  if (entry.rows.kind == PassKind::correct) return made && entry.rows.position < state.prompt_tokens;
  // What is dense for now may stay so: the first sparse step makes up for it.
  return !made && entry.tokens >= entry.rows.prompt_end && !entry.rows.program->dense_at(entry.tokens + 1);
}

void factor_keys(Pass& pass, const Item& item, int layer) {
  BatchEntry& entry = pass.entry(item.batch);
  SequenceState& state = *entry.rows.state;
  const Stopwatch watch(&entry.index_build_s.back());
  kv::LayerKeys keys;
  keys.heads = entry.views;
  keys.format = pass.cache->shape().format;
  keys.tokens = state.prompt_tokens > 0 && !entry.ends_prompt ? state.prompt_tokens : entry.tokens;
  keys.before_rope = [&pass](std::int64_t position, float* row) { pass.shape.rotation->turn_back(position, row); };
  state.low_rank[static_cast<std::size_t>(layer)] =
      std::make_shared<const kv::LowRankKeys>(keys, state.key_ranks[static_cast<std::size_t>(layer)]);
}

bool makes_keys(const BatchEntry& entry, plan::SlotId at, const kernels::Read& read) {
  return read.kind == kernels::Read::Kind::sets && entry.head(at.layer, at.head).key_rank > 0 &&
         entry.rows.state->low_rank[static_cast<std::size_t>(at.layer)] != nullptr;
}

void count_low_rank(Pass& pass, BatchEntry& entry, plan::SlotId at, const kernels::Read& read) {
  const LowRankHead low = low_rank_head(entry, at.layer, at.head);
  const int rank = entry.head(at.layer, at.head).key_rank, lists = read.per_query != 0 ? pass.group : 1;
  for (int set = read.set; set < read.set + lists; ++set) {
    const std::int64_t rows = made_rows(low, pass.sets.list(set));
    if (rows == 0) continue;
    entry.counters.low_rank_rows += rows;
    // A row of U each, and the head's B once.
    entry.counters.low_rank_bytes += rows * static_cast<std::int64_t>(low.keys->row_bytes(rank)) +
                                     std::int64_t{rank} * pass.shape.head_dim * std::int64_t{sizeof(float)};
  }
}

/// Attends to a split of a list by way of pages of its own: made keys there, everything else copied.
void run_low_rank(Pass& pass, const Call& call, const Split& split) {
  const HeadOutput& output = pass.work.output(split);
  BatchEntry& entry = pass.entry(output.batch);
  const kernels::KvFormat& format = pass.cache->shape().format;
  const kernels::HeadView& view = *output.view;
  const LowRankHead low = low_rank_head(entry, call.layer, output.head);
  RowPages& pages = pass.thread(call.ith).rows;
  reserve(pages, format);
  const std::int32_t count = split.end - split.begin;
  const std::int32_t* list = output.list + split.begin;
  const kernels::HeadView own{pages.k.data(), pages.v.data(), pages.numbers.data(), nullptr, count};
  const auto made = [&](std::int32_t position) {
    return position < low.end && !std::binary_search(low.outliers.begin(), low.outliers.end(), position / low.chunk);
  };

  pages.made.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    if (made(list[i])) pages.made.push_back(list[i]);
  }
  const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
  if (pages.keys.size() < pages.made.size() * dim) pages.keys.resize(kernels::kSplitTokens * dim);
  low.keys->read({output.head, output.key_rank, pages.made, pages.keys.data()});
  std::size_t next = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    if (next < pages.made.size() && pages.made[next] == list[i]) {
      float* row = pages.keys.data() + next * dim;
      pass.shape.rotation->turn(list[i], row);
      kernels::append(format, {&own, row, row, dim, i, 1});  // its V is overwritten below
      ++next;
    } else {
      copy_row(format, {&view, list[i]}, {&own, i}, &kernels::HeadView::k_plane);
    }
    copy_row(format, {&view, list[i]}, {&own, i}, &kernels::HeadView::v_plane);
  }
  kernels::AttendItem work = kernels::attend_item(pass.reading(call), output, split);
  work.partial = pass.work.partial(output, split.partial);
  work.head = &own;
  work.list = nullptr;
  work.begin = 0;
  work.end = count;
  if (work.scores != nullptr) work.scores += split.begin;
  kernels::attend(format, work);
}

}  // namespace glimpse::attention
