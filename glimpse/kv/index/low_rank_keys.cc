#include "glimpse/kv/index/low_rank_keys.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/kernels/index.h"
#include "glimpse/kv/index/symmetric_eigen.h"

namespace glimpse::kv {
namespace {

constexpr int kBlock = 64;  ///< tokens whose keys are in hand at a time

/// Keys of up to kBlock tokens before RoPE, [tokens, G d].
class Block {
 public:
  explicit Block(const LayerKeys& keys)
      : keys_(keys),
        dim_(static_cast<std::size_t>(keys.format.dim)),
        head_(kBlock * dim_),
        rows_(kBlock * dim_ * keys.heads.size()) {}

  std::size_t width() const { return dim_ * keys_.heads.size(); }
  const float* row(int token) const { return rows_.data() + static_cast<std::size_t>(token) * width(); }
  void load(std::int64_t first, int count) {
    for (std::size_t head = 0; head < keys_.heads.size(); ++head) {
      kernels::read_keys(keys_.format, keys_.heads[head], static_cast<std::int32_t>(first), count, head_.data());
      for (int t = 0; t < count; ++t) {
        float* row = head_.data() + static_cast<std::size_t>(t) * dim_;
        keys_.before_rope(first + t, row);
        std::copy_n(row, dim_,
                    rows_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(t) * width() + head * dim_));
      }
    }
  }

 private:
  const LayerKeys& keys_;
  std::size_t dim_;
  std::vector<float> head_;
  std::vector<float> rows_;
};

/// Calls `work` with each block of tokens in order.
template <class Work>
void for_each_block(const LayerKeys& keys, Block& block, const Work& work) {
  for (std::int64_t first = 0; first < keys.tokens; first += kBlock) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kBlock, keys.tokens - first));
    block.load(first, count);
    work(first, count);
  }
}

/// X^T X. Four tokens at a time, so that a row of the matrix is loaded once for them.
std::vector<double> gram(const LayerKeys& keys, Block& block) {
  const std::size_t n = block.width();
  std::vector<double> matrix(n * n, 0.0), x(4 * n);
  for_each_block(keys, block, [&](std::int64_t, int count) {
    for (int t = 0; t < count; t += 4) {
      for (int i = 0; i < 4; ++i) {
        double* to = x.data() + static_cast<std::size_t>(i) * n;
        if (t + i < count) {
          std::copy_n(block.row(t + i), n, to);
        } else {
          std::fill_n(to, n, 0.0);
        }
      }
      const double *a = x.data(), *b = a + n, *c = b + n, *d = c + n;
      for (std::size_t i = 0; i < n; ++i) {
        double* row = matrix.data() + i * n;
        const double p = a[i], q = b[i], r = c[i], s = d[i];
        for (std::size_t j = 0; j <= i; ++j) row[j] += (p * a[j] + q * b[j]) + (r * c[j] + s * d[j]);
      }
    }
  });
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) matrix[i * n + j] = matrix[j * n + i];
  }
  return matrix;
}

}  // namespace

LowRankKeys::LowRankKeys(const LayerKeys& keys, int rank)
    : rank_(rank),
      dim_(keys.format.dim),
      tokens_(keys.tokens),
      type_(keys.format.type == KvType::q8_0 ? KvType::bf16 : keys.format.type) {
  Block block(keys);
  const std::size_t n = block.width();
  const auto columns = static_cast<std::size_t>(rank);
  const std::vector<float> found = directions(gram(keys, block), n, rank);
  set_basis(found);
  coefficients_.resize(static_cast<std::size_t>(tokens_) * row_bytes(rank));
  std::vector<float> row(columns);
  for_each_block(keys, block, [&](std::int64_t first, int count) {
    for (int t = 0; t < count; ++t) {
      std::fill(row.begin(), row.end(), 0.0F);
      const float* x = block.row(t);
      for (std::size_t i = 0; i < n; ++i) {
        const float* direction = found.data() + i * columns;
        for (std::size_t k = 0; k < columns; ++k) row[k] += x[i] * direction[k];
      }
      store(first + t, row.data());
    }
  });
}

LowRankKeys::LowRankKeys(Made made)
    : rank_(made.rank), dim_(made.dim), tokens_(made.tokens), type_(made.type), coefficients_(std::move(made.factors)) {
  check(coefficients_.size() == static_cast<std::size_t>(tokens_) * row_bytes(rank_),
        "a row of factors for each token");
  set_basis(made.directions);
}

std::vector<float> LowRankKeys::directions(const std::vector<double>& gram, std::size_t width, int rank) {
  const auto columns = static_cast<std::size_t>(rank);
  check(rank >= 1 && columns <= width, "a rank is at most the width of the keys");
  const EigenPairs eigen = symmetric_eigen(gram, width);
  std::vector<float> found(width * columns);
  for (std::size_t k = 0; k < columns; ++k) {
    for (std::size_t i = 0; i < width; ++i) {
      found[i * columns + k] = static_cast<float>(eigen.vectors[k * width + i]);
    }
  }
  return found;
}

/// V [G d, rank] as B [G, rank, d].
void LowRankKeys::set_basis(std::span<const float> directions) {
  const auto columns = static_cast<std::size_t>(rank_), dim = static_cast<std::size_t>(dim_);
  basis_.resize(directions.size());
  for (std::size_t i = 0; i < directions.size() / columns; ++i) {
    for (std::size_t k = 0; k < columns; ++k) {
      basis_[(i / dim * columns + k) * dim + i % dim] = directions[i * columns + k];
    }
  }
}

void LowRankKeys::store(std::int64_t position, const float* row) {
  std::byte* to = coefficients_.data() + static_cast<std::size_t>(position) * row_bytes(rank_);
  if (type_ == KvType::f32) {
    std::memcpy(to, row, row_bytes(rank_));
    return;
  }
  for (std::size_t k = 0; k < static_cast<std::size_t>(rank_); ++k) {
    const std::uint16_t value = type_ == KvType::f16 ? f16_from_float(row[k]) : bf16_from_float(row[k]);
    std::memcpy(to + k * sizeof(value), &value, sizeof(value));
  }
}

std::vector<float> LowRankKeys::coefficients(std::int64_t position) const {
  std::vector<float> row(static_cast<std::size_t>(rank_));
  const std::byte* from = coefficients_.data() + static_cast<std::size_t>(position) * row_bytes(rank_);
  if (type_ == KvType::f32) {
    std::memcpy(row.data(), from, row_bytes(rank_));
    return row;
  }
  for (std::size_t k = 0; k < row.size(); ++k) {
    std::uint16_t value = 0;
    std::memcpy(&value, from + k * sizeof(value), sizeof(value));
    row[k] = type_ == KvType::f16 ? float_from_f16(value) : float_from_bf16(value);
  }
  return row;
}

std::span<const float> LowRankKeys::basis(int head) const {
  const std::size_t floats = static_cast<std::size_t>(rank_) * static_cast<std::size_t>(dim_);
  return {basis_.data() + static_cast<std::size_t>(head) * floats, floats};
}

void LowRankKeys::read(const Read& wanted) const {
  check(wanted.rank >= 1 && wanted.rank <= rank_, "no more columns than there are");
  kernels::multiply_factors({.coefficients = coefficients_.data(),
                             .type = type_,
                             .row_bytes = row_bytes(rank_),
                             .positions = wanted.positions,
                             .basis = basis(wanted.head).data(),
                             .rank = wanted.rank,
                             .dim = dim_,
                             .out = wanted.out});
}

}  // namespace glimpse::kv
