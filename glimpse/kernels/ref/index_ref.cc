#include "glimpse/kernels/ref/index_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace glimpse::kernels::ref {
namespace {

double element(KvType type, const std::byte* row, std::size_t i) {
  std::uint16_t half = 0;
  float whole = 0;
  switch (type) {
    case KvType::f32:
      std::memcpy(&whole, row + 4 * i, 4);
      return whole;
    case KvType::f16:
      std::memcpy(&half, row + 2 * i, 2);
      return float_from_f16(half);
    case KvType::bf16:
      std::memcpy(&half, row + 2 * i, 2);
      return float_from_bf16(half);
    case KvType::q8_0:
      return static_cast<double>(static_cast<std::int8_t>(row[i]));
  }
  return 0;
}

const float* row_of(const FloatRows& rows, std::int32_t r) {
  return rows.data + static_cast<std::size_t>(r) * static_cast<std::size_t>(rows.dim);
}

}  // namespace

void read_keys(const KvFormat& format, const HeadView& head, std::int32_t first, std::int32_t count, float* out) {
  for (std::int32_t slot = first; slot < first + count; ++slot) {
    float scale = 1;
    if (format.type == KvType::q8_0) {
      const std::byte* scales = head.page_of(head.k_plane, slot, format) + format.scale_offset();
      std::memcpy(&scale, scales + sizeof(float) * static_cast<std::size_t>(slot % kPageTokens), sizeof scale);
    }
    const std::byte* row = head.row_of(head.k_plane, slot, format);
    for (int i = 0; i < format.dim; ++i) {
      *out++ = static_cast<float>(element(format.type, row, static_cast<std::size_t>(i)) * scale);
    }
  }
}

void row_bounds(const FloatRows& rows, float* least, float* most) {
  for (int i = 0; i < rows.dim; ++i) {
    least[i] = most[i] = rows.data[i];
    for (std::int32_t r = 1; r < rows.count; ++r) {
      least[i] = std::min(least[i], row_of(rows, r)[i]);
      most[i] = std::max(most[i], row_of(rows, r)[i]);
    }
  }
}

void row_moments(const FloatRows& rows, float* mean, float* variance) {
  for (int i = 0; i < rows.dim; ++i) {
    double sum = 0;
    for (std::int32_t r = 0; r < rows.count; ++r) sum += row_of(rows, r)[i];
    const double middle = sum / rows.count;
    double squares = 0;
    for (std::int32_t r = 0; r < rows.count; ++r) squares += std::pow(row_of(rows, r)[i] - middle, 2);
    mean[i] = static_cast<float>(middle);
    if (variance != nullptr) variance[i] = static_cast<float>(squares / rows.count);
  }
}

double row_radius(const FloatRows& rows, const float* centre) {
  double largest = 0;
  for (std::int32_t r = 0; r < rows.count; ++r) {
    double sum = 0;
    for (int i = 0; i < rows.dim; ++i) sum += std::pow(static_cast<double>(row_of(rows, r)[i]) - centre[i], 2);
    largest = std::max(largest, sum);
  }
  return std::sqrt(largest);
}

void score_nodes(const NodeScoreItem& item) {
  const auto width = static_cast<std::size_t>(item.width);
  for (std::int32_t n = 0; n < item.count; ++n) {
    const std::byte* row = item.rows + static_cast<std::size_t>(n) * row_bytes(item.type, item.width);
    double most = -std::numeric_limits<double>::infinity();
    double sum = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(item.group); ++j) {
      double product = 0;
      for (std::size_t i = 0; i < width; ++i) product += item.queries[j * width + i] * element(item.type, row, i);
      double score = product * item.scale;
      if (item.radii != nullptr) score += static_cast<double>(item.norms[j]) * item.radii[n];
      most = std::max(most, score);
      sum += score;
    }
    item.scores[n] = static_cast<float>(item.pooling == NodePooling::max ? most : sum / item.group);
  }
}

void score_digests(const DigestScoreItem& item) {
  const auto dim = static_cast<std::size_t>(item.dim);
  constexpr std::size_t tile = kDigestTile;
  const std::size_t values = item.bounds ? 2 * dim : dim;
  for (std::int32_t i = 0; i < item.count; ++i) {
    const auto n = static_cast<std::size_t>(item.first + i);
    const std::size_t at = n % tile;
    const std::byte* const from = item.tiles + n / tile * tile * row_bytes(item.type, static_cast<int>(values));
    double most = -std::numeric_limits<double>::infinity();
    double sum = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(item.group); ++j) {
      double product = 0;
      double spread = 0;
      for (std::size_t k = 0; k < dim; ++k) {
        const double q = item.queries[j * dim + k];
        if (item.bounds) {
          product += std::max(q * element(item.type, from, 2 * k * tile + at),
                              q * element(item.type, from, (2 * k + 1) * tile + at));
        } else {
          product += q * element(item.type, from, k * tile + at);
        }
        if (item.variances != nullptr) {
          spread += static_cast<double>(item.squares[j * dim + k]) * item.variances[(n / tile * dim + k) * tile + at];
        }
      }
      double score = product * item.scale + std::sqrt(spread);
      if (item.radii != nullptr) score += static_cast<double>(item.norms[j]) * item.radii[n];
      most = std::max(most, score);
      sum += score;
    }
    item.scores[i] = static_cast<float>(item.pooling == NodePooling::max ? most : sum / item.group);
  }
}

void multiply_factors(const FactorItem& item) {
  const auto dim = static_cast<std::size_t>(item.dim);
  for (std::size_t n = 0; n < item.positions.size(); ++n) {
    const std::byte* row = item.coefficients + static_cast<std::size_t>(item.positions[n]) * item.row_bytes;
    for (std::size_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < static_cast<std::size_t>(item.rank); ++k) {
        sum += element(item.type, row, k) * static_cast<double>(item.basis[k * dim + i]);
      }
      item.out[n * dim + i] = static_cast<float>(sum);
    }
  }
}

void assign_rows(const AssignItem& item) {
  const auto dim = static_cast<std::size_t>(item.dim);
  for (std::size_t r = 0; r < static_cast<std::size_t>(item.count); ++r) {
    double best = -std::numeric_limits<double>::infinity();
    for (std::size_t c = 0; c < static_cast<std::size_t>(item.clusters); ++c) {
      double product = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        product += static_cast<double>(item.rows[r * dim + i]) * item.centroids[c * dim + i];
      }
      if (product > best) {
        best = product;
        item.nearest[r] = static_cast<std::int32_t>(c);
      }
    }
    item.products[r] = static_cast<float>(best);
  }
}

}  // namespace glimpse::kernels::ref
