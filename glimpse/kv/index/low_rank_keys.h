// ShadowKV's keys of a prompt (Sun et al., ICML 2025, section 4): one layer's keys of all KV heads before RoPE,
// X [tokens, G d], as rank r of their singular value decomposition, X ~ U B with U = X V [tokens, r] and B = V^T
// [r, G d]. Columns go by falling singular value, so the first of them are the best of any smaller rank.
//
// Owns its factors, borrows the cache only while they are made; const after that, any thread. U is kept in the cache's
// own type (of a q8_0 cache in bf16), B in f32. The same bits for the same keys; a GPU's directions of wide
// keys are others, nearly as good (attention/cuda/directions.h).
//
// What it costs: a Gram matrix and an eigen-decomposition of G d x G d in double, O(tokens (G d)^2 + (G d)^3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "glimpse/base/bytes.h"
#include "glimpse/kernels/views.h"

namespace glimpse::kv {

/// What the factors are made of: the first `tokens` of one layer, a position is its slot.
struct LayerKeys {
  std::span<const kernels::HeadView> heads;  ///< [G]
  kernels::KvFormat format;
  std::int64_t tokens = 0;
  std::function<void(std::int64_t position, float* row)> before_rope;  ///< turns a cached key [d] back, in place
};

class LowRankKeys {
 public:
  /// `rank` from 1 to G d.
  LowRankKeys(const LayerKeys& keys, int rank);

  /// For devices that multiply themselves. The first `rank` singular directions of keys X [tokens, width], V [width,
  /// rank], from X^T X.
  static std::vector<float> directions(const std::vector<double>& gram, std::size_t width, int rank);
  struct Made {
    int dim = 0;
    KvType type = KvType::bf16;
    std::int64_t tokens = 0;
    int rank = 0;
    std::span<const float> directions;  ///< V [G d, rank]
    std::vector<std::byte> factors;     ///< U = X V [tokens, rank] in `type`
  };
  explicit LowRankKeys(Made made);

  /// As `save` wrote them, for `heads` heads of `format`. Throws UserError for what cannot be.
  struct Saved {
    int heads = 0;
    kernels::KvFormat format;
    std::int64_t tokens = 0;
    int rank = 0;
  };
  LowRankKeys(ByteReader& from, const Saved& expected);
  void save(ByteWriter& to) const;

  int rank() const { return rank_; }
  std::int64_t tokens() const { return tokens_; }
  std::size_t bytes() const { return coefficients_.size() + basis_.size() * sizeof(float); }
  /// What reading one row of U costs when `rank` of its values are wanted.
  std::size_t row_bytes(int rank) const { return glimpse::row_bytes(type_, rank); }

  /// U of one token, [rank], as it is stored.
  std::vector<float> coefficients(std::int64_t position) const;
  /// U [tokens, rank] in the cache's type; of a q8_0 cache in bf16.
  std::span<const std::byte> factors() const { return coefficients_; }
  /// B of one KV head, [rank, d].
  std::span<const float> basis(int head) const;

  /// Keys before RoPE of one head at `positions` from the first `rank` columns: writes [positions, d] to `out`.
  struct Read {
    int head = 0;
    int rank = 0;
    std::span<const std::int32_t> positions;
    float* out = nullptr;
  };
  void read(const Read& wanted) const;

 private:
  void store(std::int64_t position, const float* row);
  void set_basis(std::span<const float> directions);

  int rank_;
  int dim_;
  std::int64_t tokens_;
  KvType type_;
  std::vector<std::byte> coefficients_;  ///< U [tokens, rank]
  std::vector<float> basis_;             ///< B [G, rank, d]
};

}  // namespace glimpse::kv
