// Heat of a sequence's blocks (EvoSparse, section 3.1): one value a block for all layers together, or for each layer. A
// value owned by SequenceState; one thread at a time, but for distinct layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace glimpse::attention {

/// What one step adds to the heat: [1 or layers][blocks].
using HeatGains = std::vector<std::vector<double>>;

class BlockHeat {
 public:
  BlockHeat() = default;
  /// Of a plan that reads heat: `layers` is 1 where all share it.
  BlockHeat(int layers, int block) : heat_(static_cast<std::size_t>(layers)), block_(block) {}
  BlockHeat(BlockHeat&&) noexcept = default;
  BlockHeat& operator=(BlockHeat&&) noexcept = default;
  /// A copy does not know the heat before the last step.
  BlockHeat(const BlockHeat& other) : heat_(other.heat_), block_(other.block_) {}
  BlockHeat& operator=(const BlockHeat& other) { return *this = BlockHeat(other); }

  bool any() const { return !heat_.empty(); }
  int block() const { return block_; }  ///< tokens
  /// For a layer: [blocks], grown by the runner. Not without any().
  std::vector<float>& of(int layer) { return heat_[heat_.size() > 1 ? static_cast<std::size_t>(layer) : 0]; }
  const std::vector<float>& of(int layer) const { return const_cast<BlockHeat&>(*this).of(layer); }
  bool same_shape(const BlockHeat& other) const { return heat_.size() == other.heat_.size() && block_ == other.block_; }
  /// h <- factor * h.
  void scale(double factor);
  /// A step: h <- decay * h + gains.
  void take(const HeatGains& gains, double decay);
  /// A step that adds nothing to any of the blocks of `tokens`.
  void fade(std::int64_t tokens, double decay);
  /// Takes back the last step; `tokens` are left without it. Once for a step. The heat of a copy stays.
  void take_back(std::int64_t tokens);
  /// Leaves the blocks of so many tokens.
  void cut(std::int64_t tokens);

 private:
  std::size_t blocks(std::int64_t tokens) const;

  std::vector<std::vector<float>> heat_;
  std::vector<std::vector<float>> before_;  ///< the last step; empty where nobody knows
  int block_ = 1;
};

}  // namespace glimpse::attention
