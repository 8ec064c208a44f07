// What attention and its indices need to know of positions: RoPE of single rows. The executor owns the model's, the
// engine those of gates. One thread prepares between passes; any thread turns rows after that.
#pragma once

#include <cstdint>
#include <span>

namespace glimpse::kernels {

/// Which dimensions of a row turn together: the first `dims`, in pairs (i, i + dims / 2), or else (2i, 2i + 1).
struct RotationPairs {
  int dims = 0;
  bool neox = false;
};

class Rotation {
 public:
  virtual ~Rotation() = default;
  /// From now on positions [0, positions) can be turned to.
  virtual void prepare(std::int64_t positions) = 0;
  /// Turns one head's row [d] from before RoPE to `position`, in place, magnitude scaling included (YaRN).
  virtual void turn(std::int64_t position, float* row) const = 0;
  /// The other way.
  virtual void turn_back(std::int64_t position, float* row) const = 0;

  /// For a device that turns rows itself; no dimensions: it cannot.
  virtual RotationPairs pairs() const { return {}; }
  /// Cosine and sine of each pair in turn, magnitude included, of positions [first, last): [last - first, dims]. Valid
  /// until more are prepared.
  virtual std::span<const float> angles(std::int64_t /*first*/, std::int64_t /*last*/) const { return {}; }
};

}  // namespace glimpse::kernels
