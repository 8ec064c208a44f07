// The directions that factors of keys keep (ShadowKV, section 4), of several layers at a time: the first right singular
// vectors of the keys X before RoPE, found from X^T X. Where keys are wide and few directions are wanted the
// device does so (kernels/cuda/subspace.h); else the host's threads find all singular vectors
// (kv::LowRankKeys::directions).
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::attention::cuda {

/// Borrows the stream. One thread at a time.
class Directions {
 public:
  /// work(i) for all i below count, on several threads.
  using Share = std::function<void(std::size_t count, const std::function<void(std::size_t)>& work)>;
  struct Shape {
    int layers = 0;  ///< whose directions are wanted
    int width = 0;   ///< of X, G d
    int rank = 0;    ///< the largest
  };
  /// Bytes of the device's memory that one takes.
  static std::size_t bytes(const Shape& shape);

  Directions(kernels::cuda::Stream& stream, Share share, const Shape& shape);

  /// Layers that it takes at a time.
  int at_once() const { return at_once_; }
  /// X^T X [width, width] of each, to be filled in.
  void clear() { matrices_.memory().fill(std::byte{0}); }
  kernels::Pointer<double, kernels::Place::device> matrix(int i) const;
  /// V [width, ranks[i]] of the first of them. Waits for the stream.
  std::vector<std::vector<float>> find(std::span<const int> ranks);

 private:
  std::vector<std::vector<float>> iterate(std::span<const int> ranks);

  kernels::cuda::Stream& stream_;
  Share share_;
  Shape shape_;
  int at_once_;
  kernels::cuda::Array<double> matrices_, basis_, images_, products_, solved_;
};

}  // namespace glimpse::attention::cuda
