// Qwen 3: llama with an RMS norm on each head of q and k before the rotary embedding.
#include "glimpse/model/model.h"

namespace glimpse::model {

Architecture qwen3_architecture() {
  return {.name = "qwen3", .rope_neox = true, .qkv_bias = false, .qk_norm = true, .rope_factors = false};
}

}  // namespace glimpse::model
