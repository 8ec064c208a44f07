// The reference of kernels/index.h: the same functions in plain loops with double accumulators. Slow, allocates, any
// thread. Only tests and benchmarks call it.
#pragma once

#include "glimpse/kernels/index.h"

namespace glimpse::kernels::ref {

void read_keys(const KvFormat& format, const HeadView& head, std::int32_t first, std::int32_t count, float* out);
void row_bounds(const FloatRows& rows, float* least, float* most);
void row_moments(const FloatRows& rows, float* mean, float* variance);
double row_radius(const FloatRows& rows, const float* centre);
void score_nodes(const NodeScoreItem& item);
void score_digests(const DigestScoreItem& item);
void multiply_factors(const FactorItem& item);
void assign_rows(const AssignItem& item);

}  // namespace glimpse::kernels::ref
