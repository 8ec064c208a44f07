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
  HWY_ALIGN float scores[kMaxGroup * kPaddedTile];
  RowTile tiles[2];
  RunningSoftmax running[kMaxGroup];
  arrange_queries<kType>(d, item.query, item.group, dim, queries);
  std::fill(out, out + group * dim, 0.0F);

  const std::int32_t step = tile_rows(format);
  const int least_shift = next_keys_shift();
  RowTile* tile = &tiles[0];
  RowTile* next = &tiles[1];
  const auto locate_from = [&](const AttendItem& from, std::int32_t first, RowTile& found) HWY_ATTR {
    locate<kType>(format, *from.head, from.list, first, std::min(first + step, from.end), found);
  };
  locate_from(item, item.begin, *tile);
  for (std::int32_t from = item.begin; from < item.end; from += step) {
    const std::int32_t to = std::min(from + step, item.end);
    next->count = 0;
    if (to < item.end) {
      locate_from(item, to, *next);
    } else if (item.next != nullptr) {
      locate_from(*item.next, item.next->begin, *next);
    }
    link(*tile, *next);
    const bool gathered = item.list != nullptr;
    const int ahead = gathered ? std::min(kAhead, 2 * tile->count) : tile->count;
    const int known = 2 * tile->count + (gathered ? tile->linked : 0);
    score_tile<kType>(d, format, *tile, {queries, item.group, item.scale}, {tile->rows + ahead, known - ahead}, scores);
    if (item.scores != nullptr) {
      write_scores(*tile, from, to, scores, item.group, item.scores, item.score_stride);
    }
    for (std::size_t j = 0; j < group; ++j) {
      take_tile<kType>(*tile, tile->count, scores + j * kPaddedTile, running[j], out + j * dim, dim);
    }
    ValueRange values{.rows = tile->v(), .end = tile->count};
    if (gathered && tile->linked >= kAhead) {
      values.fetch = tile->v() + kAhead;
    } else if (!gathered) {
      values.shift = tile->linked >= tile->count ? least_shift : 1;
      const int wanted = (tile->count + values.shift) >> values.shift;
      if (tile->linked >= wanted) values.fetch = tile->v() + tile->count;
    }
    add_tile<kType>(d, values, scores, {out, item.group, dim});
    std::swap(tile, next);
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
  HWY_ALIGN float scores[kMaxGroup * kPaddedTile];
  RowTile tiles[2];
  arrange_queries<kType>(d, item.query, item.group, dim, queries);
  const std::int32_t step = kScoredRows;
  RowTile* tile = &tiles[0];
  RowTile* next = &tiles[1];
  const auto locate_from = [&](const ScoreItem& from, std::int32_t first, RowTile& found) HWY_ATTR {
    locate<kType>(format, *from.head, nullptr, first, std::min(first + step, from.end), found);
  };
  locate_from(item, item.begin, *tile);
  for (std::int32_t from = item.begin; from < item.end; from += step) {
    const std::int32_t to = std::min(from + step, item.end);
    next->count = 0;
    if (to < item.end) {
      locate_from(item, to, *next);
    } else if (item.next != nullptr) {
      locate_from(*item.next, item.next->begin, *next);
    }
    score_tile<kType>(d, format, *tile, {queries, item.group, item.scale}, {next->k(), next->count}, scores);
    write_scores(*tile, from, to, scores, item.group, item.scores, item.score_stride);
    std::swap(tile, next);
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
