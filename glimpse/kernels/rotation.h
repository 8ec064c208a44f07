// What attention and its indices need to know of positions: RoPE of single rows. The executor owns the model's, the
// engine those of gates. One thread prepares between passes; any thread turns rows after that.
#pragma once

#include <cstdint>

namespace glimpse::kernels {

class Rotation {
 public:
  virtual ~Rotation() = default;
  /// From now on positions [0, positions) can be turned to.
  virtual void prepare(std::int64_t positions) = 0;
  /// Turns one head's row [d] from before RoPE to `position`, in place, magnitude scaling included (YaRN).
  virtual void turn(std::int64_t position, float* row) const = 0;
  /// The other way.
  virtual void turn_back(std::int64_t position, float* row) const = 0;
};

}  // namespace glimpse::kernels
