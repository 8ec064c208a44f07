#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/attend.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/kernels/cpu/attend-inl.h"
#include "glimpse/kernels/cpu/machine.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

/// `item` holds one slice of a group: at most kMaxGroup queries, whose log-sum-exps go to `lse`.
template <KvType kType, class D>
HWY_INLINE void attend_item(D d, const KvFormat& format, const AttendItem& item, float* lse) {
  const auto dim = static_cast<std::size_t>(format.dim);
  const auto group = static_cast<std::size_t>(item.group);
  HWY_ALIGN float queries[kMaxGroup * kMaxDim];
  HWY_ALIGN float out[kMaxGroup * kMaxDim];
  HWY_ALIGN float scores[kMaxGroup * kPaddedBlock];
  Block blocks[2];
  RunningSoftmax running[kMaxGroup];
  arrange_queries<kType>(d, item.query, item.group, dim, queries);
  std::fill(out, out + group * dim, 0.0F);

  const std::int32_t step = block_rows(format);
  const int least_shift = next_keys_shift();
  Block* block = &blocks[0];
  Block* next = &blocks[1];
  const auto locate_from = [&](const AttendItem& from, std::int32_t first, Block& found) HWY_ATTR {
    locate<kType>(format, *from.head, from.list, first, std::min(first + step, from.end), found);
  };
  locate_from(item, item.begin, *block);
  for (std::int32_t from = item.begin; from < item.end; from += step) {
    const std::int32_t to = std::min(from + step, item.end);
    next->count = 0;
    if (to < item.end) {
      locate_from(item, to, *next);
    } else if (item.next != nullptr) {
      locate_from(*item.next, item.next->begin, *next);
    }
    link(*block, *next);
    const bool gathered = item.list != nullptr;
    const int ahead = gathered ? std::min(kAhead, 2 * block->count) : block->count;
    const int known = 2 * block->count + (gathered ? block->linked : 0);
    score_block<kType>(d, format, *block, {queries, item.group, item.scale}, {block->rows + ahead, known - ahead},
                       scores);
    if (item.scores != nullptr) {
      write_scores(*block, from, to, scores, item.group, item.scores, item.score_stride);
    }
    for (std::size_t j = 0; j < group; ++j) {
      take_block<kType>(*block, block->count, scores + j * kPaddedBlock, running[j], out + j * dim, dim);
    }
    ValueRange values{.rows = block->v(), .end = block->count};
    if (gathered && block->linked >= kAhead) {
      values.fetch = block->v() + kAhead;
    } else if (!gathered) {
      values.shift = block->linked >= block->count ? least_shift : 1;
      const int wanted = (block->count + values.shift) >> values.shift;
      if (block->linked >= wanted) values.fetch = block->v() + block->count;
    }
    add_block<kType>(d, values, scores, {out, item.group, dim});
    std::swap(block, next);
  }

  for (std::size_t j = 0; j < group; ++j) {
    write_query<kType>(d, out + j * dim, dim, running[j], item.partial + j * dim, lse[j]);
  }
}

void attend_target(const KvFormat& format, const AttendItem& item, float* lse) {
  with_kv_type(format.type, [&](auto type) HWY_ATTR {
    with_row_tag(format.dim, [&](auto d) HWY_ATTR { attend_item<decltype(type)::value>(d, format, item, lse); });
  });
}

/// Without V between them fewer rows at a time: 0.73 of the streamed bandwidth on a Zen 5, 128 rows 0.64.
constexpr std::int32_t kScoredRows = 64;

template <KvType kType, class D>
HWY_INLINE void score_item(D d, const KvFormat& format, const ScoreItem& item) {
  const auto dim = static_cast<std::size_t>(format.dim);
  HWY_ALIGN float queries[kMaxGroup * kMaxDim];
  HWY_ALIGN float scores[kMaxGroup * kPaddedBlock];
  Block blocks[2];
  arrange_queries<kType>(d, item.query, item.group, dim, queries);
  const std::int32_t step = kScoredRows;
  Block* block = &blocks[0];
  Block* next = &blocks[1];
  const auto locate_from = [&](const ScoreItem& from, std::int32_t first, Block& found) HWY_ATTR {
    locate<kType>(format, *from.head, nullptr, first, std::min(first + step, from.end), found);
  };
  locate_from(item, item.begin, *block);
  for (std::int32_t from = item.begin; from < item.end; from += step) {
    const std::int32_t to = std::min(from + step, item.end);
    next->count = 0;
    if (to < item.end) {
      locate_from(item, to, *next);
    } else if (item.next != nullptr) {
      locate_from(*item.next, item.next->begin, *next);
    }
    score_block<kType>(d, format, *block, {queries, item.group, item.scale}, {next->k(), next->count}, scores);
    write_scores(*block, from, to, scores, item.group, item.scores, item.score_stride);
    std::swap(block, next);
  }
}

void score_target(const KvFormat& format, const ScoreItem& item) {
  with_kv_type(format.type, [&](auto type) HWY_ATTR {
    with_row_tag(format.dim, [&](auto d) HWY_ATTR { score_item<decltype(type)::value>(d, format, item); });
  });
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(attend_target);
HWY_EXPORT(score_target);

void attend(const KvFormat& format, const AttendItem& item) {
  check_queries(format, item.group);
  const auto dim = static_cast<std::size_t>(format.dim);
  float* const lse = item.partial + static_cast<std::size_t>(item.group) * dim;
  for (int first = 0; first < item.group; first += kSliceQueries) {
    const auto from = static_cast<std::size_t>(first);
    AttendItem slice = item;
    slice.query += from * dim;
    slice.partial += from * dim;
    if (item.scores != nullptr) slice.scores += from * item.score_stride;
    slice.group = std::min(item.group - first, kSliceQueries);
    if (first + slice.group < item.group) slice.next = nullptr;
    HWY_DYNAMIC_DISPATCH(attend_target)(format, slice, lse + from);
  }
}

void score(const KvFormat& format, const ScoreItem& item) {
  check_queries(format, item.group);
  for (int first = 0; first < item.group; first += kSliceQueries) {
    const auto from = static_cast<std::size_t>(first);
    ScoreItem slice = item;
    slice.query += from * static_cast<std::size_t>(format.dim);
    slice.scores += from * item.score_stride;
    slice.group = std::min(item.group - first, kSliceQueries);
    if (first + slice.group < item.group) slice.next = nullptr;
    HWY_DYNAMIC_DISPATCH(score_target)(format, slice);
  }
}

}  // namespace glimpse::kernels
#endif
