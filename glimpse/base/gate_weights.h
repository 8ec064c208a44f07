// The weights of SeerAttention-R's trained gates after loading: `model` reads and checks their file, the key indices of
// `kv` compute with them, and neither sees the other. A value; any thread may read.
#pragma once

#include <cstddef>
#include <vector>

#include "glimpse/base/dtype.h"

namespace glimpse {

/// A gate belongs to one (layer, KV head). Each matrix row is what one dimension of the gate's space takes from one
/// head's row, so that a row of K or Q meets contiguous weights.
struct GateWeights {
  int layers = 0, kv_heads = 0, group = 0;
  int head_dim = 0;           ///< d of the model
  int dim = 0;                ///< of the gate's space
  int block = 0;              ///< tokens that one gate key stands for
  int rope_dims = 0;          ///< first dimensions of the gate's space that are rotated; 0: none
  float norm_epsilon = 0;     ///< of q_norm and k_norm
  KvType type = KvType::f32;  ///< of q and k: f32, f16 or bf16
  std::vector<std::byte> q;   ///< [layer, kv_head, query head of the group, dim, d]
  std::vector<std::byte> k;   ///< [layer, kv_head, max | min | mean, dim, d]
  std::vector<float> q_norm;  ///< [layer, dim]; empty: no RMS norm in the gate's space
  std::vector<float> k_norm;  ///< [layer, dim]
};

}  // namespace glimpse
