#include "glimpse/kernels/ref/attention_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::ref {

std::vector<double> read_row(const KvFormat& format, const HeadView& head, std::byte* plane, std::int32_t slot) {
  const std::byte* row = head.row_of(plane, slot, format);
  std::vector<double> values(static_cast<std::size_t>(format.dim));
  float scale = 1;
  if (format.type == KvType::q8_0) {
    const std::byte* scales = head.page_of(plane, slot, format) + format.scale_offset();
    std::memcpy(&scale, scales + sizeof(float) * static_cast<std::size_t>(slot & (kPageTokens - 1)), sizeof scale);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    float whole = 0;
    switch (format.type) {
      case KvType::f32:
        std::memcpy(&whole, row + 4 * i, 4);
        break;
      case KvType::f16:
        std::memcpy(&half, row + 2 * i, 2);
        whole = float_from_f16(half);
        break;
      case KvType::bf16:
        std::memcpy(&half, row + 2 * i, 2);
        whole = float_from_bf16(half);
        break;
      case KvType::q8_0:
        whole = static_cast<float>(static_cast<std::int8_t>(row[i]));
        break;
    }
    values[i] = static_cast<double>(whole) * scale;
  }
  return values;
}

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Softmax {
  std::vector<double> out;
  double log_sum = kMinusInfinity;
};

/// Attends one query over `slots`; scores[i] belongs to slots[i].
Softmax softmax(const KvFormat& format, const HeadView& head, const std::vector<std::int32_t>& slots,
                const std::vector<double>& scores) {
  Softmax result{std::vector<double>(static_cast<std::size_t>(format.dim), 0.0)};
  double largest = kMinusInfinity;
  for (const double s : scores) largest = std::max(largest, s);
  if (largest == kMinusInfinity) return result;
  double sum = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const double p = std::exp(scores[i] - largest);
    sum += p;
    const std::vector<double> value = read_row(format, head, head.v_plane, slots[i]);
    for (std::size_t c = 0; c < value.size(); ++c) result.out[c] += p * value[c];
  }
  for (double& x : result.out) x /= sum;
  result.log_sum = largest + std::log(sum);
  return result;
}

double pool(const float* scores, std::size_t stride, const float* lse, int group, std::size_t i, bool largest) {
  double pooled = largest ? kMinusInfinity : 0;
  for (int j = 0; j < group; ++j) {
    double value = scores[static_cast<std::size_t>(j) * stride + i];
    if (lse != nullptr) value = lse[j] == kMinusInfinity ? 0 : std::exp(value - lse[j]);
    pooled = largest ? std::max(pooled, value) : pooled + value;
  }
  return largest ? pooled : pooled / group;
}

}  // namespace

void attend(const KvFormat& format, const AttendItem& item) {
  const auto dim = static_cast<std::size_t>(format.dim);
  for (int j = 0; j < item.group; ++j) {
    const auto jj = static_cast<std::size_t>(j);
    std::vector<std::int32_t> slots;
    std::vector<double> scores;
    for (std::int32_t i = item.begin; i < item.end; ++i) {
      const std::int32_t slot = item.list != nullptr ? item.list[i] : i;
      double s = kMinusInfinity;
      if (!freed(*item.head, slot)) {
        s = dot(item.query + jj * dim, read_row(format, *item.head, item.head->k_plane, slot)) * item.scale;
        slots.push_back(slot);
        scores.push_back(s);
      }
      if (item.scores != nullptr)
        item.scores[jj * item.score_stride + static_cast<std::size_t>(i)] = static_cast<float>(s);
    }
    const Softmax result = softmax(format, *item.head, slots, scores);
    std::transform(result.out.begin(), result.out.end(), item.partial + jj * dim,
                   [](double x) { return static_cast<float>(x); });
    item.partial[static_cast<std::size_t>(item.group) * dim + jj] = static_cast<float>(result.log_sum);
  }
}

void attend_rows(const KvFormat& format, const AttendRowsItem& item,
                 void (*alone)(const KvFormat&, const AttendItem&)) {
  const auto dim = static_cast<std::size_t>(format.dim);
  const auto group = static_cast<std::size_t>(item.group);
  const std::size_t queries = group * static_cast<std::size_t>(item.rows);
  std::vector<float> own(partial_floats(item.group, format.dim));
  float* partial = item.partial;
  for (std::int32_t begin = item.begin; begin < item.end; begin += kSplitTokens) {
    for (int r = 0; r < item.rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      const std::int32_t end = std::min({item.end, begin + kSplitTokens, item.first_slot + r + 1});
      alone(format, {.head = item.head,
                     .query = item.query + row * item.query_stride,
                     .group = item.group,
                     .scale = item.scale,
                     .begin = begin,
                     .end = std::max(begin, end),
                     .partial = own.data()});
      std::copy_n(own.data(), group * dim, partial + row * group * dim);
      std::copy_n(own.data() + group * dim, group, partial + queries * dim + row * group);
    }
    partial += partial_floats(static_cast<int>(queries), format.dim);
  }
}

void score(const KvFormat& format, const ScoreItem& item) {
  const auto dim = static_cast<std::size_t>(format.dim);
  for (int j = 0; j < item.group; ++j) {
    const auto jj = static_cast<std::size_t>(j);
    for (std::int32_t i = item.begin; i < item.end; ++i) {
      double s = kMinusInfinity;
      if (!freed(*item.head, i)) {
        s = dot(item.query + jj * dim, read_row(format, *item.head, item.head->k_plane, i)) * item.scale;
      }
      item.scores[jj * item.score_stride + static_cast<std::size_t>(i)] = static_cast<float>(s);
    }
  }
}

void combine(const float* partials, int count, int group, int dim, float* out) {
  const auto d = static_cast<std::size_t>(dim);
  const auto g = static_cast<std::size_t>(group);
  for (std::size_t j = 0; j < g; ++j) {
    double largest = kMinusInfinity;
    for (int p = 0; p < count; ++p) {
      largest =
          std::max<double>(largest, partials[static_cast<std::size_t>(p) * partial_floats(group, dim) + g * d + j]);
    }
    std::vector<double> sum(d, 0.0);
    double total = 0;
    for (int p = 0; p < count && largest > kMinusInfinity; ++p) {
      const float* partial = partials + static_cast<std::size_t>(p) * partial_floats(group, dim);
      const double weight = std::exp(partial[g * d + j] - largest);
      if (weight == 0) continue;
      total += weight;
      for (std::size_t c = 0; c < d; ++c) sum[c] += weight * partial[j * d + c];
    }
    for (std::size_t c = 0; c < d; ++c) out[j * d + c] = total > 0 ? static_cast<float>(sum[c] / total) : 0.0F;
  }
}

float log_sum_exp(std::span<const float> scores) {
  double largest = kMinusInfinity;
  for (const float s : scores) largest = std::max<double>(largest, s);
  if (largest == kMinusInfinity) return static_cast<float>(kMinusInfinity);
  double sum = 0;
  for (const float s : scores) sum += std::exp(s - largest);
  return static_cast<float>(largest + std::log(sum));
}

void pool_mean_probability(const float* scores, std::size_t stride, const float* lse, int group,
                           std::span<float> pooled) {
  for (std::size_t i = 0; i < pooled.size(); ++i) {
    pooled[i] = static_cast<float>(pool(scores, stride, lse, group, i, false));
  }
}

void pool_mean_score(const float* scores, std::size_t stride, int group, std::span<float> pooled) {
  pool_mean_probability(scores, stride, nullptr, group, pooled);
}

void pool_max_score(const float* scores, std::size_t stride, int group, std::span<float> pooled) {
  pool_max_probability(scores, stride, nullptr, group, pooled);
}

void pool_max_probability(const float* scores, std::size_t stride, const float* lse, int group,
                          std::span<float> pooled) {
  for (std::size_t i = 0; i < pooled.size(); ++i) {
    pooled[i] = static_cast<float>(pool(scores, stride, lse, group, i, true));
  }
}

std::size_t select_top_k(std::span<const float> scores, std::size_t k, std::span<std::int32_t> out) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > -std::numeric_limits<float>::infinity()) order.push_back(static_cast<std::int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  std::copy(order.begin(), order.end(), out.begin());
  return order.size();
}

std::size_t count_for_mass(std::span<const float> probabilities, double mass) {
  std::vector<float> sorted;
  for (const float p : probabilities) {
    if (p > 0) sorted.push_back(p);
  }
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double sum = 0;
  std::size_t count = 0;
  while (count < sorted.size() && sum < mass) sum += sorted[count++];
  return count;
}

std::size_t count_above(std::span<const float> probabilities, float threshold) {
  return static_cast<std::size_t>(
      std::count_if(probabilities.begin(), probabilities.end(), [&](float p) { return p >= threshold; }));
}

void block_max(std::span<const float> scores, int block, std::span<float> out) {
  for (std::size_t b = 0; b * static_cast<std::size_t>(block) < scores.size(); ++b) {
    const std::size_t begin = b * static_cast<std::size_t>(block);
    const std::size_t end = std::min(scores.size(), begin + static_cast<std::size_t>(block));
    out[b] = *std::max_element(scores.begin() + static_cast<std::ptrdiff_t>(begin),
                               scores.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

namespace {

void store_row(const KvFormat& format, const HeadView& head, std::byte* plane, std::int32_t slot, const float* row) {
  std::byte* to = head.row_of(plane, slot, format);
  float inverse = 0;
  if (format.type == KvType::q8_0) {
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < format.dim; ++i) {
      largest = std::max(largest, std::fabs(row[i]));
      finite = finite && std::isfinite(row[i]);
    }
    float scale = finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
    if (finite && largest >= kLeastOfQ8) {
      scale = largest / 127.0F;
      inverse = 127.0F / largest;
    }
    std::byte* scales = head.page_of(plane, slot, format) + format.scale_offset();
    std::memcpy(scales + sizeof(float) * static_cast<std::size_t>(slot & (kPageTokens - 1)), &scale, sizeof scale);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(format.dim); ++i) {
    std::uint16_t half = 0;
    switch (format.type) {
      case KvType::f32:
        std::memcpy(to + 4 * i, row + i, 4);
        break;
      case KvType::f16:
        half = f16_from_float(row[i]);
        std::memcpy(to + 2 * i, &half, 2);
        break;
      case KvType::bf16:
        half = bf16_from_float(row[i]);
        std::memcpy(to + 2 * i, &half, 2);
        break;
      case KvType::q8_0:
        to[i] = static_cast<std::byte>(
            inverse > 0 ? static_cast<std::int8_t>(std::clamp(std::nearbyint(row[i] * inverse), -127.0F, 127.0F)) : 0);
        break;
    }
  }
}

}  // namespace

void append(const KvFormat& format, const AppendItem& item) {
  for (std::int32_t r = 0; r < item.rows; ++r) {
    const std::size_t offset = static_cast<std::size_t>(r) * item.row_stride;
    store_row(format, *item.head, item.head->k_plane, item.slot + r, item.k + offset);
    store_row(format, *item.head, item.head->v_plane, item.slot + r, item.v + offset);
  }
}

namespace {

/// The slots that row r of a tile sees, ascending.
std::vector<std::int32_t> seen_slots(const PrefillItem& item, std::int32_t r) {
  std::vector<std::int32_t> slots;
  for (std::int32_t i = 0; i < item.list_count; ++i) slots.push_back(item.list[i]);
  for (std::int32_t slot = item.own_begin; slot <= item.first_slot + r; ++slot) slots.push_back(slot);
  std::erase_if(slots,
                [&](std::int32_t slot) { return freed(*item.head, slot) || slot < item.begin || slot >= item.end; });
  return slots;
}

std::vector<double> scores_of(const KvFormat& format, const PrefillItem& item, const float* query,
                              const std::vector<std::int32_t>& slots) {
  std::vector<double> scores;
  for (const std::int32_t slot : slots) {
    scores.push_back(dot(query, read_row(format, *item.head, item.head->k_plane, slot)) * item.scale);
  }
  return scores;
}

/// visit(r, j, query) for every query vector of a tile.
template <class Visit>
void for_each_query(const KvFormat& format, const PrefillItem& item, const Visit& visit) {
  for (std::int32_t r = 0; r < item.rows; ++r) {
    for (std::int32_t j = 0; j < item.group; ++j) {
      visit(r, j,
            item.query + static_cast<std::size_t>(r) * item.query_stride + static_cast<std::size_t>(j * format.dim));
    }
  }
}

}  // namespace

void prefill(const KvFormat& format, const PrefillItem& item) {
  for_each_query(format, item, [&](std::int32_t r, std::int32_t j, const float* query) {
    const std::vector<std::int32_t> slots = seen_slots(item, r);
    const Softmax result = softmax(format, *item.head, slots, scores_of(format, item, query, slots));
    float* out = item.out + static_cast<std::size_t>(r) * item.out_stride + static_cast<std::size_t>(j * format.dim);
    std::transform(result.out.begin(), result.out.end(), out, [](double x) { return static_cast<float>(x); });
    if (item.lse != nullptr) item.lse[r * item.group + j] = static_cast<float>(result.log_sum);
  });
}

void prefill_lse(const KvFormat& format, const PrefillItem& item) {
  for_each_query(format, item, [&](std::int32_t r, std::int32_t j, const float* query) {
    double sum = 0;
    const std::vector<double> scores = scores_of(format, item, query, seen_slots(item, r));
    const double largest = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
    for (const double s : scores) sum += std::exp(s - largest);
    item.lse[r * item.group + j] = static_cast<float>(largest + std::log(sum));
  });
}

void prefill_column_sums(const KvFormat& format, const ColumnSumsItem& item) {
  std::vector<double> sums(static_cast<std::size_t>(item.end - item.begin), 0.0);
  PrefillItem tile = item.tile;
  tile.begin = item.begin;
  tile.end = item.end;
  for_each_query(format, tile, [&](std::int32_t r, std::int32_t j, const float* query) {
    const std::vector<std::int32_t> slots = seen_slots(tile, r);
    const std::vector<double> scores = scores_of(format, tile, query, slots);
    const double weight = item.weights == nullptr ? 1.0 : item.weights[r];
    for (std::size_t i = 0; i < slots.size(); ++i) {
      sums[static_cast<std::size_t>(slots[i] - item.begin)] +=
          weight * std::exp(scores[i] - item.tile.lse[r * item.tile.group + j]);
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i) item.sums[i] = static_cast<float>(item.sums[i] + sums[i]);
}

}  // namespace glimpse::kernels::ref
