// What a Runner is made for. A value.
#pragma once

#include "glimpse/kernels/rotation.h"

namespace glimpse::attention {

struct RunnerShape {
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int threads = 1;
  kernels::Rotation* rotation = nullptr;  ///< needed by plans that read keys of low rank
};

}  // namespace glimpse::attention
