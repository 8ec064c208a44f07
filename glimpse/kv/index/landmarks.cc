#include "glimpse/kv/index/landmarks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "glimpse/kv/index/block_search.h"
#include "glimpse/kv/index/page_bounds.h"

namespace glimpse::kv {

Landmarks::Landmarks(const plan::Selector& selector, int head_dim)
    : selector_(selector), digests_(Digests::Kind::mean, head_dim, 0) {}

void Landmarks::extend(const KeySource& keys, std::int64_t tokens) {
  if (tokens < keys.prompt_tokens || covered() + selector_.block > keys.prompt_tokens) return;
  digests_.append_blocks(keys, selector_.block, static_cast<std::int32_t>(keys.prompt_tokens / selector_.block));
  digests_.seal();  // that is all of them
  if (selector_.terms.front().index.outlier_chunks == 0) return;
  std::vector<float>& cosines = cosines_.own();
  for (std::int32_t chunk = 0; chunk < digests_.count(); ++chunk) cosines.push_back(least_cosine(keys, chunk));
  rank_outliers();
}

void Landmarks::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  const std::int64_t block = selector_.block;
  if (first >= std::min(last, covered())) return;
  const auto begin = static_cast<std::int32_t>(first / block);
  const auto end = static_cast<std::int32_t>((std::min(last, covered()) + block - 1) / block);
  digests_.refresh_blocks(keys, selector_.block, begin, end);
  digests_.seal();
  for (std::int32_t chunk = begin; chunk < end && !cosines_->empty(); ++chunk) {
    cosines_.own()[static_cast<std::size_t>(chunk)] = least_cosine(keys, chunk);
  }
  rank_outliers();
}

std::size_t Landmarks::search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const {
  return search_blocks({&selector_, &digests_, outliers_}, query, scratch, set);
}

std::vector<std::int32_t> Landmarks::units_of(std::span<const std::int32_t> set, std::int64_t tokens) const {
  std::vector<std::int32_t> chunks = open_blocks_of(selector_, digests_.count(), set, tokens);
  std::erase_if(chunks, [this](std::int32_t chunk) {
    return std::binary_search(outliers_by_position_.begin(), outliers_by_position_.end(), chunk);
  });
  return chunks;
}

std::size_t Landmarks::bytes() const {
  return digests_.bytes() + cosines_->size() * sizeof(float) + 2 * outliers_.size() * sizeof(std::int32_t);
}

float Landmarks::least_cosine(const KeySource& keys, std::int32_t chunk) const {
  const auto dim = static_cast<std::size_t>(digests_.dim());
  const auto tokens = static_cast<std::size_t>(selector_.block);
  std::vector<float> rows(tokens * dim);
  kernels::read_keys(keys.format, *keys.head, chunk * selector_.block, selector_.block, rows.data());
  const std::vector<float> mean = digests_.row(chunk);
  double least = 1;
  for (std::size_t r = 0; r < tokens; ++r) {
    double product = 0;
    double squares = 0;
    double mean_squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      const double x = rows[r * dim + i];
      product += x * mean[i];
      squares += x * x;
      mean_squares += static_cast<double>(mean[i]) * mean[i];
    }
    const double norms = std::sqrt(squares * mean_squares);
    // A key or a mean of length 0 points nowhere: as far off as at right angles.
    least = std::min(least, norms > 0 ? product / norms : 0.0);
  }
  return static_cast<float>(least);
}

void Landmarks::rank_outliers() {
  const auto wanted = static_cast<std::size_t>(selector_.terms.front().index.outlier_chunks);
  outliers_.resize(cosines_->size());
  std::iota(outliers_.begin(), outliers_.end(), 0);
  std::stable_sort(outliers_.begin(), outliers_.end(), [this](std::int32_t a, std::int32_t b) {
    return (*cosines_)[static_cast<std::size_t>(a)] < (*cosines_)[static_cast<std::size_t>(b)];
  });
  outliers_.resize(std::min(wanted, outliers_.size()));
  outliers_by_position_ = outliers_;
  std::sort(outliers_by_position_.begin(), outliers_by_position_.end());
}

}  // namespace glimpse::kv
