// The reference that every back end is held against: the functions of kernels/attention.h in plain loops with double
// accumulators. Slow, allocates, any thread. Only tests and benchmarks call it.
#pragma once

#include "glimpse/kernels/attention.h"

namespace glimpse::kernels::ref {

void attend(const KvFormat& format, const AttendItem& item);
/// Row by row and split by split through `alone`.
void attend_rows(const KvFormat& format, const AttendRowsItem& item,
                 void (*alone)(const KvFormat&, const AttendItem&) = ref::attend);
void score(const KvFormat& format, const ScoreItem& item);
void combine(const float* partials, int count, int group, int dim, float* out);
float log_sum_exp(std::span<const float> scores);

void pool_mean_probability(const float* scores, std::size_t stride, const float* lse, int group,
                           std::span<float> pooled);
void pool_mean_score(const float* scores, std::size_t stride, int group, std::span<float> pooled);
void pool_max_score(const float* scores, std::size_t stride, int group, std::span<float> pooled);
void pool_max_probability(const float* scores, std::size_t stride, const float* lse, int group,
                          std::span<float> pooled);

std::size_t select_top_k(std::span<const float> scores, std::size_t k, std::span<std::int32_t> out);
std::size_t count_for_mass(std::span<const float> probabilities, double mass);
std::size_t count_above(std::span<const float> probabilities, float threshold);
void block_max(std::span<const float> scores, int block, std::span<float> out);

/// Bit for bit what every back end must store.
void append(const KvFormat& format, const AppendItem& item);
void prefill(const KvFormat& format, const PrefillItem& item);
void prefill_lse(const KvFormat& format, const PrefillItem& item);
void prefill_column_sums(const KvFormat& format, const ColumnSumsItem& item);

}  // namespace glimpse::kernels::ref
