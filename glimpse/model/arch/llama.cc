// Llama 2 and 3, Mistral, SmolLM2.
#include "glimpse/model/model.h"

namespace glimpse::model {

Architecture llama_architecture() {
  return {.name = "llama", .rope_neox = false, .qkv_bias = false, .qk_norm = false, .rope_factors = true};
}

}  // namespace glimpse::model
