// Qwen 2 and 2.5: llama with biases on q, k and v.
#include "glimpse/model/model.h"

namespace glimpse::model {

Architecture qwen2_architecture() {
  return {.name = "qwen2", .rope_neox = true, .qkv_bias = true, .qk_norm = false, .rope_factors = false};
}

}  // namespace glimpse::model
